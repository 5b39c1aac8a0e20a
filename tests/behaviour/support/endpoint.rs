//! The other side: an HTTP endpoint that answers on cue and keeps a ledger of what it accepted. The ledger, not the
//! product, says how often a recipient was sent the message.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What the endpoint does with one request.
#[derive(Clone, Copy, Debug)]
pub enum Cue {
    Accept,
    AcceptAfter(Duration),
    /// Accepted at once, answered when told ([`Endpoint::tell`]).
    AcceptWhenTold,
    /// Accepted, and never a word of it.
    AcceptThenClose,
    AcceptThenReset,
    AcceptThenAnswer(u16),
    /// The answer breaks off in the middle of its body.
    AcceptThenHalf,
    /// With this text for its body.
    AcceptThenSay(u16, &'static str),
    /// Not accepted.
    Answer(u16),
    Say(u16, &'static str),
    AnswerWhenTold(u16),
    /// Not accepted; come again after so many seconds.
    Busy(u16, u64),
    ResetUnread,
}

/// A request as the endpoint read it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where to, with its query.
    pub path: String,
    /// Empty where an access token was asked for.
    pub recipient: String,
    /// 1 for the first request for this recipient.
    pub nth: usize,
    /// When it had been read.
    pub at: Instant,
    pub body: serde_json::Value,
    /// The body as it came.
    pub text: String,
    /// By their names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Request {
    pub fn key(&self) -> Option<&str> {
        self.headers.get("idempotency-key").map(String::as_str).or(self.body["client_msg_id"].as_str())
    }
}

#[derive(Default)]
struct State {
    accepted: Vec<Request>,
    all: Vec<Request>,
    seen: BTreeMap<String, usize>,
    /// Requests that wait to be told.
    waiting: usize,
    told: bool,
    /// The number of what it accepted under each key, of an endpoint that remembers them.
    keys: Option<BTreeMap<String, usize>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    closed: AtomicBool,
    script: Box<dyn Fn(&Request) -> Cue + Send + Sync>,
}

pub struct Endpoint {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Endpoint {
    /// Answers each request as `script` says.
    pub fn new(script: impl Fn(&Request) -> Cue + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
            script: Box::new(script),
        });
        let server = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if server.closed.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(stream) = stream else { continue };
                let server = Arc::clone(&server);
                // A client that was killed breaks off anywhere.
                std::thread::spawn(move || drop(converse(&server, stream)));
            }
        });
        Self { shared, address }
    }

    pub fn accepting() -> Self {
        Self::new(|_| Cue::Accept)
    }

    /// Accepts what has a key it knows only once, as a provider that deduplicates does.
    pub fn remembering(script: impl Fn(&Request) -> Cue + Send + Sync + 'static) -> Self {
        let endpoint = Self::new(script);
        endpoint.forget();
        endpoint
    }

    /// Its memory of keys is over: what bears one of them is new again.
    pub fn forget(&self) {
        self.shared.state().keys = Some(BTreeMap::new());
    }

    /// A `[channel.NAME]` that sends here, with further keys.
    pub fn channel(&self, name: &str, keys: &str) -> String {
        channel(name, self.address, keys)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers those that wait, and from now on at once.
    pub fn tell(&self) {
        self.shared.state().told = true;
        self.shared.changed.notify_all();
    }

    /// How many requests wait to be told.
    pub fn waiting(&self) -> usize {
        self.shared.state().waiting
    }

    /// How often it accepted the message for each recipient.
    pub fn ledger(&self) -> BTreeMap<String, usize> {
        let mut ledger = BTreeMap::new();
        for request in &self.shared.state().accepted {
            *ledger.entry(request.recipient.clone()).or_insert(0) += 1;
        }
        ledger
    }

    /// What it accepted, in order.
    pub fn accepted(&self) -> Vec<Request> {
        self.shared.state().accepted.clone()
    }

    /// Every request read, in order.
    pub fn all(&self) -> Vec<Request> {
        self.shared.state().all.clone()
    }

    /// Takes these into the ledger.
    pub fn remember(&self, accepted: impl Iterator<Item = Request>) {
        self.shared.state().accepted.extend(accepted);
    }

    /// Requests read, whatever became of them.
    pub fn requests(&self) -> usize {
        self.shared.state().all.len()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.tell();
        let _ = TcpStream::connect(self.address);
    }
}

/// A channel of kind http to `address`.
pub fn channel(name: &str, address: SocketAddr, keys: &str) -> String {
    let body = r#"{"to": {{ target.recipient }}, "key": {{ key }}, "params": {{ target.params }}, "payload": {{ task.payload }}, "task": {{ task.name }}}"#;
    format!(
        "[channel.{name}]\nkind = \"http\"\nurl = \"http://{address}/messages\"\nreceipt = \"/id\"\nbody = '{body}'\n{keys}\n"
    )
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn accept(&self, request: &Request) -> usize {
        let mut state = self.state();
        let number = state.accepted.len() + 1;
        if let (Some(keys), Some(key)) = (&mut state.keys, request.key()) {
            let known = *keys.entry(key.to_owned()).or_insert(number);
            if known != number {
                return known;
            }
        }
        state.accepted.push(request.clone());
        number
    }

    fn wait_to_be_told(&self) {
        let mut state = self.state();
        state.waiting += 1;
        while !state.told {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
    }
}

fn converse(shared: &Shared, stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut headers = BTreeMap::new();
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).expect("a request line").to_owned();
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim_end().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                headers.insert(name.to_lowercase(), value.trim().to_owned());
            }
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let text = String::from_utf8(body).expect("the body is UTF-8");
        let body: serde_json::Value = serde_json::from_str(&text).expect("the body is JSON");
        let named = ["to", "touser"].iter().find_map(|name| body[name].as_str());
        let recipient = match named {
            None if path.ends_with("_token") => String::new(),
            named => named.expect("the body names its recipient").to_owned(),
        };
        let nth = {
            let mut state = shared.state();
            let nth = state.seen.entry(recipient.clone()).or_insert(0);
            *nth += 1;
            *nth
        };
        let request = Request { path, recipient, nth, at: Instant::now(), body, text, headers };
        shared.state().all.push(request.clone());
        if !answer(shared, &stream, &request)? {
            return Ok(());
        }
    }
}

/// Whether the connection stays.
fn answer(shared: &Shared, stream: &TcpStream, request: &Request) -> io::Result<bool> {
    let accept = || format!("{{\"id\": \"r-{}\"}}", shared.accept(request));
    match (shared.script)(request) {
        Cue::Accept => respond(stream, 200, "", &accept())?,
        Cue::AcceptAfter(time) => {
            std::thread::sleep(time);
            respond(stream, 200, "", &accept())?;
        }
        Cue::AcceptWhenTold => {
            let body = accept();
            shared.wait_to_be_told();
            respond(stream, 200, "", &body)?;
        }
        Cue::AcceptThenClose => {
            accept();
            return Ok(false);
        }
        Cue::AcceptThenReset => {
            accept();
            return reset(stream);
        }
        Cue::AcceptThenAnswer(status) => respond(stream, status, "", &accept())?,
        Cue::AcceptThenHalf => {
            accept();
            (&mut &*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"id\": ")?;
            return Ok(false);
        }
        Cue::AcceptThenSay(status, body) => {
            accept();
            respond(stream, status, "", body)?;
        }
        Cue::Say(status, body) => respond(stream, status, "", body)?,
        Cue::Answer(status) => respond(stream, status, "", r#"{"error": "no"}"#)?,
        Cue::AnswerWhenTold(status) => {
            shared.wait_to_be_told();
            respond(stream, status, "", r#"{"error": "no"}"#)?;
        }
        Cue::Busy(status, seconds) => {
            respond(stream, status, &format!("Retry-After: {seconds}\r\n"), r#"{"error": "busy"}"#)?;
        }
        Cue::ResetUnread => return reset(stream),
    }
    Ok(true)
}

fn respond(mut stream: &TcpStream, status: u16, headers: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    // One write: a client must not see half of it because this thread was slow.
    let text = format!(
        "HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes())
}

fn reset(stream: &TcpStream) -> io::Result<bool> {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
    Ok(false)
}

/// A listener whose queue is full: a client stands before its first byte.
pub struct FullHouse {
    listener: TcpListener,
    /// Takes the one place in the queue.
    _filler: Vec<TcpStream>,
    address: SocketAddr,
}

impl FullHouse {
    pub fn new() -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&fd, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&fd, 0).unwrap();
        let listener = TcpListener::from(fd);
        let address = listener.local_addr().unwrap();
        let mut filler = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            filler.push(stream);
        }
        Self { listener, _filler: filler, address }
    }

    pub fn channel(&self, name: &str, keys: &str) -> String {
        channel(name, self.address, keys)
    }

    /// Lets everybody in who still wants to, for this long, and counts the bytes that they say.
    pub fn bytes_heard(self, time: Duration) -> usize {
        self.listener.set_nonblocking(true).unwrap();
        let end = Instant::now() + time;
        let mut guests = Vec::new();
        let mut heard = 0;
        while Instant::now() < end {
            while let Ok((guest, _)) = self.listener.accept() {
                guest.set_nonblocking(true).unwrap();
                guests.push(guest);
            }
            for guest in &mut guests {
                heard += guest.read(&mut [0; 4096]).unwrap_or(0);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        heard
    }
}
