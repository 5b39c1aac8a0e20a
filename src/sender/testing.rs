//! What the tests of several senders meet on the other side: a listener, streams in the clear or inside TLS, and a host that lets
//! nobody in. What a server says is in each sender's tests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Nothing in a test takes so long, unless something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Serves each connection on a thread of its own, and counts them.
pub struct Listening {
    pub port: u16,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    counts: Mutex<Counts>,
    one_more_ended: Condvar,
    /// Where the connection comes from that only says that no more will come.
    last: Mutex<Option<SocketAddr>>,
}

/// Connections so far.
#[derive(Clone, Copy, Default)]
struct Counts {
    begun: usize,
    ended: usize,
}

impl Listening {
    /// `serve` gets each connection with its number, from 1.
    pub fn start(listener: TcpListener, serve: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> Self {
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let (here, serve) = (shared.clone(), Arc::new(serve));
        let thread = thread::spawn(move || {
            let mut connections = Vec::new();
            for socket in listener.incoming().map(Result::unwrap) {
                let from = socket.peer_addr().ok();
                if from.is_some() && from == *here.last.lock().unwrap() {
                    break;
                }
                let number = {
                    let mut counts = here.counts.lock().unwrap();
                    counts.begun += 1;
                    counts.begun
                };
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                socket.set_write_timeout(Some(PATIENCE)).unwrap();
                let (shared, serve) = (here.clone(), serve.clone());
                let connection = move || {
                    serve(socket, number);
                    shared.counts.lock().unwrap().ended += 1;
                    shared.one_more_ended.notify_all();
                };
                let small = thread::Builder::new().stack_size(512 * 1024);
                connections.push(small.spawn(connection).unwrap());
            }
            connections.into_iter().for_each(|connection| connection.join().unwrap());
        });
        Self { port, shared, thread }
    }

    pub fn wait_until_ended(&self, connections: usize) {
        let counts = self.shared.counts.lock().unwrap();
        let few = |counts: &mut Counts| counts.ended < connections;
        let waited = self.shared.one_more_ended.wait_timeout_while(counts, PATIENCE, few);
        assert!(!waited.unwrap().1.timed_out(), "no {connections} connections have ended");
    }

    /// How many connections there were, once every one is over: drop the client first.
    pub fn finish(self) -> usize {
        // One more connection ends the listening; those before it in the queue still count.
        let mut last = self.shared.last.lock().unwrap();
        let end = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        *last = Some(end.local_addr().unwrap());
        drop(last);
        self.thread.join().unwrap();
        self.shared.counts.lock().unwrap().begun
    }
}

pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// A certificate for one name that signed itself, and its key.
#[derive(Clone)]
pub struct Identity {
    pub pem: String,
    config: Arc<ServerConfig>,
}

impl Identity {
    pub fn of(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        Self { pem: made.cert.pem(), config: config.into() }
    }

    /// The server's side of a connection, inside TLS.
    pub fn secure(&self, socket: TcpStream) -> Box<dyn Stream> {
        Box::new(StreamOwned::new(ServerConnection::new(self.config.clone()).unwrap(), socket))
    }
}

/// A listener whose queue is full, and those that fill it: who connects is left waiting.
pub fn full_house() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It is full when a connection is refused or left waiting twice in a row.
    let (mut queue, mut failures) = (Vec::new(), 0);
    while failures < 2 {
        assert!(queue.len() < 10_000, "the queue never fills");
        match TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            Ok(waiting) => queue.push(waiting),
            Err(_) => failures += 1,
        }
    }
    (listener, queue)
}
