//! A server that answers what it is told: each connection follows a script, written as what one would tell it. Whatever
//! it read is kept, so that a test can say what arrived, and that nothing did.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub use crate::sender::testing::PATIENCE;
use crate::sender::testing::{Identity, Listening, Stream};

pub struct Server {
    pub port: u16,
    seen: Arc<Mutex<Seen>>,
    listening: Listening,
}

/// What a server saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub connections: usize,
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
        let seen = Arc::new(Mutex::new(Seen::default()));
        let here = seen.clone();
        let listening = Listening::start(TcpListener::bind("127.0.0.1:0").unwrap(), move |socket, _| {
            let raw = socket.try_clone().unwrap();
            script(&mut Peer { stream: wrap(socket), raw, seen: here.clone() });
        });
        Self { port: listening.port, seen, listening }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1/messages", self.port)
    }

    pub fn tls_url(&self) -> String {
        format!("https://127.0.0.1:{}/v1/messages", self.port)
    }

    pub fn wait_until_ended(&self, connections: usize) {
        self.listening.wait_until_ended(connections);
    }

    /// Everything it saw, once every connection is over: drop the client first.
    pub fn finish(self) -> Seen {
        let connections = self.listening.finish();
        Seen { connections, ..self.seen.lock().unwrap().clone() }
    }
}

/// One connection, from the server's end. When its script ends it is closed; what is still unread then makes it a reset.
pub struct Peer {
    stream: Box<dyn Stream>,
    raw: TcpStream,
    seen: Arc<Mutex<Seen>>,
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
        self.seen.lock().unwrap().requests.push(text.clone());
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
