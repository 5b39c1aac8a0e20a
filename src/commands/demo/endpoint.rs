//! The demo's provider: a small HTTP endpoint that takes messages, keeps its own ledger of what it took, and answers after a
//! moment. Not a server for anything else.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// How often each recipient's message was taken.
type Ledger = Arc<Mutex<HashMap<String, u32>>>;

pub struct Endpoint {
    pub url: String,
    ledger: Ledger,
}

impl Endpoint {
    /// Listens on a free port of this machine until the process ends. `latency`: between taking a message and the answer.
    pub fn start(latency: Duration) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("open a port for the demo's endpoint")?;
        let url = format!("http://{}/messages", listener.local_addr()?);
        let ledger = Ledger::default();
        let takes = Arc::clone(&ledger);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let takes = Arc::clone(&takes);
                // A client that goes away in the middle is part of the story.
                std::thread::spawn(move || serve(stream, &takes, latency));
            }
        });
        Ok(Self { url, ledger })
    }

    pub fn delivered(&self) -> usize {
        self.ledger().len()
    }

    /// A copy of the ledger as it stands.
    pub fn ledger(&self) -> HashMap<String, u32> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(stream: TcpStream, ledger: &Ledger, latency: Duration) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut from = BufReader::new(stream.try_clone().ok()?);
    let mut to = stream;
    loop {
        let body = request(&mut from)?;
        let message: serde_json::Value = serde_json::from_slice(&body).ok()?;
        let recipient = message.get("to")?.as_str()?.to_owned();
        *ledger.lock().unwrap_or_else(PoisonError::into_inner).entry(recipient).or_default() += 1;
        std::thread::sleep(latency);
        let answer = format!("{{\"id\":{}}}", message.get("key")?);
        write!(
            to,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{answer}",
            answer.len()
        )
        .ok()?;
    }
}

/// The body of the next request on the connection; `None` when there is none.
fn request(from: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some(body)
}
