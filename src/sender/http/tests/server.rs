//! A server that answers what it is told: each connection follows a script, written as what one would tell it. Whatever
//! it read is kept, so that a test can say what arrived, and that nothing did.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::sender::testing::{Identity, Stream};

/// Nothing in a test takes so long, unless something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Server {
    pub port: u16,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    one_more_ended: Condvar,
    /// Where the connection comes from that only says that no more will come.
    last: Mutex<Option<SocketAddr>>,
}

/// What a server saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub connections: usize,
    /// Of the connections, how many are over.
    pub ended: usize,
    /// Heads and bodies as they came; the last one may be in part.
    pub requests: Vec<String>,
}

impl Server {
    /// Follows `script` on every connection, each on a thread of its own.
    pub fn plain(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Self {
        Self::start(|socket| Box::new(socket), script)
    }

    /// The same inside TLS.
    pub fn tls(identity: &Identity, script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Self {
        let identity = identity.clone();
        Self::start(move |socket| identity.secure(socket), script)
    }

    fn start(
        wrap: impl Fn(TcpStream) -> Box<dyn Stream> + Send + Sync + 'static,
        script: impl Fn(&mut Peer) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let (here, script) = (shared.clone(), Arc::new(script));
        let listening = thread::spawn(move || {
            let mut connections = Vec::new();
            for socket in listener.incoming().map(Result::unwrap) {
                let from = socket.peer_addr().ok();
                if from.is_some() && from == *here.last.lock().unwrap() {
                    break;
                }
                here.seen.lock().unwrap().connections += 1;
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                socket.set_write_timeout(Some(PATIENCE)).unwrap();
                let raw = socket.try_clone().unwrap();
                let (shared, script) = (here.clone(), script.clone());
                let mut peer = Peer { stream: wrap(socket), raw, shared: shared.clone() };
                let connection = move || {
                    script(&mut peer);
                    drop(peer);
                    shared.seen.lock().unwrap().ended += 1;
                    shared.one_more_ended.notify_all();
                };
                let small = thread::Builder::new().stack_size(256 * 1024);
                connections.push(small.spawn(connection).unwrap());
            }
            connections.into_iter().for_each(|connection| connection.join().unwrap());
        });
        Self { port, shared, listening }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1/messages", self.port)
    }

    pub fn tls_url(&self) -> String {
        format!("https://127.0.0.1:{}/v1/messages", self.port)
    }

    pub fn wait_until_ended(&self, connections: usize) {
        let seen = self.shared.seen.lock().unwrap();
        let waited = self.shared.one_more_ended.wait_timeout_while(seen, PATIENCE, |s| s.ended < connections);
        assert!(!waited.unwrap().1.timed_out(), "no {connections} connections have ended");
    }

    /// Everything it saw, once every connection is over: drop the client first.
    pub fn finish(self) -> Seen {
        // One more connection ends the listening; those before it in the queue still count.
        let mut last = self.shared.last.lock().unwrap();
        let end = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        *last = Some(end.local_addr().unwrap());
        drop(last);
        self.listening.join().unwrap();
        self.shared.seen.lock().unwrap().clone()
    }
}

/// One connection, from the server's end. When its script ends it is closed; what is still unread then makes it a reset.
pub struct Peer {
    stream: Box<dyn Stream>,
    raw: TcpStream,
    shared: Arc<Shared>,
}

impl Peer {
    /// Reads one request. `None`: the connection ended instead.
    pub fn read(&mut self) -> Option<String> {
        self.read_but(0)
    }

    /// Reads a request and leaves its last byte, so that closing will be a reset though all had arrived.
    pub fn read_but_the_last_byte(&mut self) {
        self.read_but(1);
    }

    fn read_but(&mut self, unread: usize) -> Option<String> {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") && self.read_byte(&mut text) {}
        let head = String::from_utf8_lossy(&text).to_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let end = text.len() + length.map_or(0, |length| length.parse::<usize>().unwrap()) - unread;
        while text.len() < end && self.read_byte(&mut text) {}
        if text.is_empty() {
            return None;
        }
        let text = String::from_utf8(text).unwrap();
        self.shared.seen.lock().unwrap().requests.push(text.clone());
        Some(text)
    }

    fn read_byte(&mut self, text: &mut Vec<u8>) -> bool {
        let mut byte = [0];
        let read = matches!(self.stream.read(&mut byte), Ok(1));
        if read {
            text.push(byte[0]);
        }
        read
    }

    /// Waits for the first byte and reads nothing: closing will be a reset.
    pub fn read_nothing(&mut self) {
        self.raw.peek(&mut [0]).ok();
    }

    /// The client may be gone already; that is its own affair.
    pub fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).and_then(|()| self.stream.flush()).ok();
    }

    /// Says nothing more until the client leaves.
    pub fn hang(&mut self) {
        io::copy(&mut self.raw, &mut io::sink()).ok();
    }
}

/// An answer with a body of its length.
pub fn answer(head: &str, body: &str) -> String {
    format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
