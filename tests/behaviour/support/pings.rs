//! The service that watches cron jobs: writes down who pinged it, and answers as it was told to, or never.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Pinged {
    pub path: String,
    pub body: String,
}

pub struct Pings {
    address: std::net::SocketAddr,
    seen: Arc<Mutex<Vec<Pinged>>>,
}

impl Pings {
    /// Answers with this status; 0: never.
    pub fn answering(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let server = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let seen = Arc::clone(&server);
                std::thread::spawn(move || drop(converse(&stream, status, &seen)));
            }
        });
        Self { address, seen }
    }

    /// `ping_url`, with this in its path.
    pub fn key(&self, path: &str) -> String {
        format!("ping_url = \"http://{}/{path}\"", self.address)
    }

    pub fn seen(&self) -> Vec<Pinged> {
        self.seen.lock().unwrap().clone()
    }

    /// What was pinged, without the name of the run; each had one, the same for all of them.
    #[track_caller]
    pub fn of_one_run(&self) -> Vec<String> {
        let seen = self.seen();
        let halves = seen.iter().map(|ping| ping.path.split_once("?rid=").expect("a rid"));
        let (paths, mut runs): (Vec<_>, Vec<_>) =
            halves.map(|(path, run)| (path.to_owned(), run.to_owned())).unzip();
        runs.dedup();
        assert!(runs.len() == 1 && runs[0].len() == 36, "{seen:?}");
        paths
    }
}

fn converse(stream: &TcpStream, status: u16, seen: &Mutex<Vec<Pinged>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).expect("a request line").to_owned();
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            if line.trim_end().is_empty() {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8(body).expect("the body is UTF-8");
        seen.lock().unwrap().push(Pinged { path, body });
        if status == 0 {
            // Longer than any story.
            std::thread::sleep(Duration::from_secs(3600));
        }
        let mut to = stream;
        to.write_all(format!("HTTP/1.1 {status} Said\r\nContent-Length: 2\r\n\r\nOK").as_bytes())?;
    }
}
