//! What the tests of several senders meet on the other side: streams in the clear or inside TLS, and a host that lets nobody in.
//! The servers themselves are in each sender's tests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

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
