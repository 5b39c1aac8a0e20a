//! A mail server that does what it is told: in order, but for the steps that a test names. Whatever it read is kept, so that
//! a test can say what arrived, and that nothing did.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::moment::Moment;
pub use crate::sender::testing::PATIENCE;
use crate::sender::testing::{Identity, Listening, Stream};

/// What the server does at a step in place of what is right.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Say(&'static str),
    /// Says it, and leaves in order.
    SayAndClose(&'static str),
    /// Says it with a pause before each byte.
    Trickle(&'static str),
    Close,
    Reset,
    /// Says nothing until the client leaves.
    Hang,
    /// Reads nothing more, until the test is over.
    Stall,
    /// Goes on in order, but not before then.
    Wait(Moment),
}

/// Steps are commands, CONNECT for the greeting, TLS for the handshake of STARTTLS, and `.` for the end of a message.
pub struct Rule {
    pub step: &'static str,
    /// Of connections and of commands of this name in one, which; `None`: each.
    pub connection: Option<usize>,
    pub time: Option<usize>,
    pub act: Act,
}

pub fn at(step: &'static str, act: Act) -> Rule {
    Rule { step, connection: None, time: None, act }
}

impl Rule {
    /// Only on this connection, from 1.
    pub fn of(self, connection: usize) -> Self {
        Self { connection: Some(connection), ..self }
    }

    /// Only at this command of its name, from 1.
    pub fn time(self, time: usize) -> Self {
        Self { time: Some(time), ..self }
    }
}

/// How a server is, beside its rules.
#[derive(Clone, Default)]
pub struct Manner {
    /// Lines of the reply to EHLO.
    pub offers: Vec<&'static str>,
    pub identity: Option<Identity>,
    /// TLS from the first byte.
    pub implicit: bool,
    /// Of a message it reads no more than this, and then does that.
    pub body: Option<(usize, Option<Act>)>,
}

pub struct Server {
    pub port: u16,
    shared: Arc<Shared>,
    listening: Listening,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    over: Mutex<bool>,
    is_over: Condvar,
}

/// What a server saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub connections: usize,
    /// Every line but those of messages.
    pub lines: Vec<String>,
    /// Messages that had their final dot, without it.
    pub messages: Vec<String>,
}

impl Seen {
    pub fn commands(&self) -> Vec<&str> {
        self.lines.iter().map(|line| line.split(' ').next().unwrap()).collect()
    }
}

impl Server {
    pub fn start(manner: Manner, rules: Vec<Rule>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if manner.body.is_some() {
            // Little of a message is on the way when it breaks off.
            rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        }
        let shared = Arc::new(Shared::default());
        let (here, rules) = (shared.clone(), Arc::new(rules));
        let listening = Listening::start(listener, move |socket, number| {
            socket.set_nodelay(true).unwrap();
            let raw = socket.try_clone().unwrap();
            let stream: Box<dyn Stream> = match &manner.identity {
                Some(identity) if manner.implicit => identity.secure(socket),
                _ => Box::new(socket),
            };
            let (manner, rules, shared) = (manner.clone(), rules.clone(), here.clone());
            Peer { stream, raw, number, times: Vec::new(), manner, rules, shared }.serve();
        });
        Self { port: listening.port, shared, listening }
    }

    pub fn wait_until_ended(&self, connections: usize) {
        self.listening.wait_until_ended(connections);
    }

    /// Everything it saw, once every connection is over: drop the client first.
    pub fn finish(self) -> Seen {
        *self.shared.over.lock().unwrap() = true;
        self.shared.is_over.notify_all();
        let connections = self.listening.finish();
        Seen { connections, ..self.shared.seen.lock().unwrap().clone() }
    }
}

/// One connection, from the server's end.
struct Peer {
    stream: Box<dyn Stream>,
    raw: TcpStream,
    number: usize,
    /// The steps so far.
    times: Vec<String>,
    manner: Manner,
    rules: Arc<Vec<Rule>>,
    shared: Arc<Shared>,
}

impl Peer {
    /// The whole dialogue; `None` is its end.
    fn serve(&mut self) -> Option<()> {
        self.answer("CONNECT", "220 mx.example.com\r\n")?;
        loop {
            let line = self.line()?;
            let step = line.split(' ').next()?.to_ascii_uppercase();
            match step.as_str() {
                "EHLO" => drop(self.answer("EHLO", &self.hello())?),
                "STARTTLS" if self.answer("STARTTLS", "220 go\r\n")? => {
                    self.answer("TLS", "")?;
                    let identity = self.manner.identity.clone()?;
                    self.stream = identity.secure(self.raw.try_clone().ok()?);
                }
                "STARTTLS" => {}
                "AUTH" => drop(self.answer("AUTH", "235 2.7.0 welcome\r\n")?),
                "MAIL" => drop(self.answer("MAIL", "250 2.1.0 ok\r\n")?),
                "RCPT" => drop(self.answer("RCPT", "250 2.1.5 ok\r\n")?),
                "RSET" => drop(self.answer("RSET", "250 2.0.0 ok\r\n")?),
                "DATA" if self.answer("DATA", "354 go on\r\n")? => {
                    self.message()?;
                    self.answer(".", "250 2.0.0 Ok: queued as 4Qk1Z21xxz\r\n")?;
                }
                "DATA" => {}
                "QUIT" => {
                    self.answer("QUIT", "221 bye\r\n");
                    return None;
                }
                // The lines of AUTH LOGIN.
                _ => drop(self.answer("LINE", "235 2.7.0 welcome\r\n")?),
            }
        }
    }

    fn hello(&self) -> String {
        let mut lines = vec!["mx.example.com"];
        lines.extend(&self.manner.offers);
        let last = lines.len() - 1;
        lines
            .iter()
            .enumerate()
            .map(|(number, line)| format!("250{}{line}\r\n", if number == last { ' ' } else { '-' }))
            .collect()
    }

    /// Does what a rule says, or else answers in order: then it is true.
    fn answer(&mut self, step: &str, text: &str) -> Option<bool> {
        self.times.push(step.to_owned());
        let time = self.times.iter().filter(|one| *one == step).count();
        let rule = self.rules.iter().find(|rule| {
            rule.step == step
                && rule.connection.is_none_or(|of| of == self.number)
                && rule.time.is_none_or(|at| at == time)
        });
        match rule.map(|rule| rule.act) {
            None => self.say(text).map(|()| true),
            Some(act) => self.act(act, text),
        }
    }

    fn act(&mut self, act: Act, text: &str) -> Option<bool> {
        match act {
            Act::Say(other) => self.say(other).map(|()| other.starts_with("354")),
            Act::SayAndClose(other) => {
                self.say(other);
                None
            }
            Act::Trickle(other) => {
                for byte in other.bytes() {
                    thread::sleep(Duration::from_millis(20));
                    self.stream.write_all(&[byte]).and_then(|()| self.stream.flush()).ok()?;
                }
                Some(false)
            }
            Act::Close => None,
            Act::Reset => {
                rustix::net::sockopt::set_socket_linger(&self.raw, Some(Duration::ZERO)).unwrap();
                None
            }
            Act::Hang => {
                io::copy(&mut self.raw, &mut io::sink()).ok();
                None
            }
            Act::Stall => {
                let over = self.shared.over.lock().unwrap();
                drop(self.shared.is_over.wait_timeout_while(over, PATIENCE, |over| !*over).unwrap());
                None
            }
            Act::Wait(until) => {
                thread::sleep(until.left());
                self.say(text).map(|()| true)
            }
        }
    }

    /// The client may be gone already; that is its own affair.
    fn say(&mut self, text: &str) -> Option<()> {
        self.stream.write_all(text.as_bytes()).and_then(|()| self.stream.flush()).ok()
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(self.byte()?);
        }
        line.truncate(line.len() - 2);
        let line = String::from_utf8(line).unwrap();
        self.shared.seen.lock().unwrap().lines.push(line.clone());
        Some(line)
    }

    fn message(&mut self) -> Option<()> {
        let mut message = Vec::new();
        if let Some((most, act)) = self.manner.body {
            for _ in 0..most {
                self.byte()?;
            }
            return act.and_then(|act| self.act(act, "")).map(drop);
        }
        while !message.ends_with(b"\r\n.\r\n") {
            message.push(self.byte()?);
        }
        message.truncate(message.len() - 3);
        self.shared.seen.lock().unwrap().messages.push(String::from_utf8(message).unwrap());
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(1)).then_some(byte[0])
    }
}
