//! The bytes to and from a server: name look-up, TCP, TLS, and a deadline over each. The deadline is of the whole step, not
//! of each read: a server that trickles may not hold a message for longer than its time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::moment::Moment;
use crate::patience;

pub enum Wire {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

/// TCP with a deadline, which is set again for each step.
pub struct Timed {
    tcp: TcpStream,
    until: Moment,
    /// How long one call waits.
    wait: Duration,
}

/// One call waits no longer, and is made again while there is time: so the socket is seldom told anew.
const WAIT: Duration = Duration::from_secs(1);

impl Wire {
    pub fn connect(host: &str, port: u16, until: Moment) -> io::Result<Self> {
        let addresses = look_up(host, port, until)?;
        let mut why = io::Error::new(ErrorKind::NotFound, "the host's name has no address");
        for (number, address) in addresses.iter().enumerate() {
            // One that does not answer leaves time for the others.
            let share = until.left() / (addresses.len() - number) as u32;
            if share.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(address, share) {
                Ok(tcp) => {
                    // The final dot goes by itself, and must not wait for the answer to what went before it.
                    tcp.set_nodelay(true)?;
                    return Ok(Self::Plain(Timed { tcp, until, wait: Duration::ZERO }));
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// The same connection inside TLS, the handshake done.
    pub fn secure(
        self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        until: Moment,
    ) -> io::Result<Self> {
        let Self::Plain(mut tcp) = self else { return Ok(self) };
        tcp.until = until;
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        Ok(Self::Tls(Box::new(StreamOwned::new(tls, tcp))))
    }

    /// What follows must be done by then.
    pub fn set_until(&mut self, until: Moment) {
        match self {
            Self::Plain(timed) => timed.until = until,
            Self::Tls(stream) => stream.sock.until = until,
        }
    }

    /// All of it is with the kernel when this returns.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(timed) => timed.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// Whether something has come, or the connection has ended, without waiting for it.
    pub fn has_news(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(timed) => timed.is_readable(),
            Self::Tls(stream) => {
                // Not each record of TLS is something said.
                while stream.sock.is_readable()? {
                    let ended = stream.conn.read_tls(&mut stream.sock)? == 0;
                    let state = stream.conn.process_new_packets().map_err(io::Error::other)?;
                    if ended || state.peer_has_closed() || state.plaintext_bytes_to_read() > 0 {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// Adds what has come, at least one byte.
    pub fn read(&mut self, to: &mut Vec<u8>) -> io::Result<()> {
        let mut part = [0; 4096];
        let length = match self {
            Self::Plain(timed) => timed.read(&mut part)?,
            Self::Tls(stream) => stream.read(&mut part)?,
        };
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        to.extend_from_slice(&part[..length]);
        Ok(())
    }
}

/// Addresses of a host. The system's look-up knows no deadline, so that it has a thread of its own: connections are made
/// rarely.
fn look_up(host: &str, port: u16, until: Moment) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let host = host.to_owned();
    let look = move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
    patience::within(until.left(), "look-up", look)?
}

impl Timed {
    fn is_readable(&self) -> io::Result<bool> {
        let mut ready = [PollFd::new(&self.tcp, PollFlags::IN)];
        Ok(poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
    }

    /// Does it, with the time that is left; again when that was not all of it, or a signal came in between.
    fn timed(&mut self, mut doing: impl FnMut(&mut TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            let wait = self.until.left().min(WAIT);
            if wait.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            if wait != self.wait {
                self.tcp.set_read_timeout(Some(wait))?;
                self.tcp.set_write_timeout(Some(wait))?;
                self.wait = wait;
            }
            match doing(&mut self.tcp) {
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                done => return done,
            }
        }
    }
}

impl Read for Timed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.timed(|tcp| tcp.read(to))
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.timed(|tcp| tcp.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether TLS failed because nobody vouches for the server.
pub fn is_refused_certificate(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// What broke, in few words.
pub fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => "no answer in time".into(),
        ErrorKind::UnexpectedEof => "the connection was closed".into(),
        _ => error.to_string(),
    }
}
