//! One connection to a server: from the name look-up to the end of AUTH, then commands and their replies. What is sent
//! when, and what a reply means, is not decided here, but for the steps before any message.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::reply::{self, Reply};
use super::step::{Step, outcome};
use super::wire::{Wire, is_refused_certificate, said};
use crate::moment::Moment;
use crate::sender::{Outcome, Secrets};

/// Where a server is, and how it is spoken to.
pub struct Server {
    pub host: String,
    pub port: u16,
    pub security: Security,
    pub login: Option<Login>,
    /// Our own name.
    pub hello: String,
}

pub enum Security {
    None,
    StartTls(Arc<ClientConfig>, ServerName<'static>),
    Implicit(Arc<ClientConfig>, ServerName<'static>),
}

/// Without `Debug`.
pub struct Login {
    user: String,
    password: String,
    /// What a server might repeat of it.
    secrets: Secrets,
}

impl Login {
    pub fn new(user: &str, password: &str) -> Self {
        let mut login =
            Self { user: user.into(), password: password.into(), secrets: Secrets::new([].into_iter()) };
        let coded = [login.plain(), BASE64_STANDARD.encode(password)];
        login.secrets = Secrets::new(coded.iter().map(String::as_str).chain([password]));
        login
    }

    fn plain(&self) -> String {
        BASE64_STANDARD.encode(format!("\0{}\0{}", self.user, self.password))
    }
}

/// What a server said to EHLO.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Offers {
    starttls: bool,
    auth: Vec<String>,
    pub pipelining: bool,
    pub smtputf8: bool,
    pub eight_bit_mime: bool,
    /// The longest message; 0 is no limit.
    pub size: Option<usize>,
}

pub struct Connection {
    wire: Wire,
    /// Read, and not yet taken as a reply.
    read: Vec<u8>,
    pub offers: Offers,
    /// The last transaction ended in 250, or there was none.
    pub clean: bool,
}

impl Server {
    /// Ready for the first transaction. The error is what became of the message for which it is.
    pub fn connect(&self, until: Moment) -> Result<Connection, Outcome> {
        let mut wire = Wire::connect(&self.host, self.port, until).map_err(|error| {
            Outcome::unreached(format!("no connection to {}: {}", self.host, said(&error)))
        })?;
        if let Security::Implicit(config, name) = &self.security {
            wire = self.secure(wire, config, name, until)?;
        }
        let mut connection = Connection { wire, read: Vec::new(), offers: Offers::default(), clean: true };
        connection.expect(Step::Greeting, None, until)?;
        self.hello(&mut connection, until)?;
        if let Security::StartTls(config, name) = &self.security {
            if !connection.offers.starttls {
                return Err(Outcome::Unavailable {
                    reason: "the server offers no STARTTLS; `tls` says that it must".into(),
                });
            }
            connection.expect(Step::StartTls, Some("STARTTLS"), until)?;
            let Connection { wire, read, .. } = connection;
            // Said in the clear, by whomever, it would be taken for an answer to what follows.
            if !read.is_empty() {
                return Err(Step::StartTls.broken("the server spoke before TLS began"));
            }
            let wire = self.secure(wire, config, name, until)?;
            connection = Connection { wire, read, offers: Offers::default(), clean: true };
            self.hello(&mut connection, until)?;
        }
        if let Some(login) = &self.login {
            connection.log_in(login, until)?;
        }
        Ok(connection)
    }

    fn secure(
        &self,
        wire: Wire,
        config: &Arc<ClientConfig>,
        name: &ServerName<'static>,
        until: Moment,
    ) -> Result<Wire, Outcome> {
        wire.secure(config.clone(), name.clone(), until).map_err(|error| {
            if is_refused_certificate(&error) {
                Outcome::Unavailable { reason: format!("the server's certificate is refused: {error}") }
            } else {
                Outcome::unreached(format!("no TLS with {}: {}", self.host, said(&error)))
            }
        })
    }

    fn hello(&self, connection: &mut Connection, until: Moment) -> Result<(), Outcome> {
        let reply = connection.expect(Step::Hello, Some(&format!("EHLO {}", self.hello)), until)?;
        connection.offers = Offers::of(&reply);
        Ok(())
    }
}

impl Offers {
    fn of(reply: &Reply) -> Self {
        let mut offers = Self::default();
        for line in reply.lines.iter().skip(1) {
            let mut words = line.split_ascii_whitespace();
            match words.next().unwrap_or_default().to_ascii_uppercase().as_str() {
                "STARTTLS" => offers.starttls = true,
                "AUTH" => offers.auth = words.map(str::to_ascii_uppercase).collect(),
                "PIPELINING" => offers.pipelining = true,
                "SMTPUTF8" => offers.smtputf8 = true,
                "8BITMIME" => offers.eight_bit_mime = true,
                "SIZE" => offers.size = Some(words.next().and_then(|size| size.parse().ok()).unwrap_or(0)),
                _ => {}
            }
        }
        offers
    }
}

impl Connection {
    /// A command and its reply; without a command, what the server says by itself. The error is why none came: the
    /// connection is of no more use.
    pub fn ask(&mut self, command: Option<&str>, until: Moment) -> Result<Reply, String> {
        if let Some(command) = command {
            // A reply to nothing would be taken for the reply to this.
            if !self.read.is_empty() {
                return Err("the server spoke out of turn".into());
            }
            self.write(format!("{command}\r\n").as_bytes(), until)?;
        }
        self.reply(until)
    }

    pub fn write(&mut self, bytes: &[u8], until: Moment) -> Result<(), String> {
        self.wire.set_until(until);
        self.wire.write(bytes).map_err(|error| said(&error))
    }

    pub fn reply(&mut self, until: Moment) -> Result<Reply, String> {
        self.wire.set_until(until);
        loop {
            if let Some(reply) = reply::take(&mut self.read)? {
                return Ok(reply);
            }
            self.wire.read(&mut self.read).map_err(|error| said(&error))?;
        }
    }

    /// Whether something was said that nobody asked for, or the server has left.
    pub fn is_out_of_turn(&mut self) -> bool {
        !self.read.is_empty() || self.wire.has_news().unwrap_or(true)
    }

    /// The reply that lets it go on, or what became of the message.
    fn expect(&mut self, step: Step, command: Option<&str>, until: Moment) -> Result<Reply, Outcome> {
        let until = until.min(Moment::now() + step.longest());
        let reply = self.ask(command, until).map_err(|why| step.broken(&why))?;
        match outcome(step, &reply) {
            None => Ok(reply),
            Some(outcome) => Err(outcome),
        }
    }

    fn log_in(&mut self, login: &Login, until: Moment) -> Result<(), Outcome> {
        let offers = |mechanism: &str| self.offers.auth.iter().any(|offered| offered == mechanism);
        let done = if offers("PLAIN") {
            self.expect(Step::Auth, Some(&format!("AUTH PLAIN {}", login.plain())), until)
        } else if offers("LOGIN") {
            self.expect(Step::Challenge, Some("AUTH LOGIN"), until)
                .and_then(|_| self.expect(Step::Challenge, Some(&BASE64_STANDARD.encode(&login.user)), until))
                .and_then(|_| self.expect(Step::Auth, Some(&BASE64_STANDARD.encode(&login.password)), until))
        } else {
            let offered = match self.offers.auth.join(", ") {
                none if none.is_empty() => "no AUTH".into(),
                some => format!("AUTH {some}"),
            };
            return Err(Outcome::Unavailable {
                reason: format!("the server offers {offered}; `user` and `password` need PLAIN or LOGIN"),
            });
        };
        done.map(drop).map_err(|mut outcome| {
            if let Outcome::Deferred { reason, .. } | Outcome::Unavailable { reason } = &mut outcome {
                login.secrets.hide(reason);
            }
            outcome
        })
    }

    pub fn say_goodbye(&mut self, until: Moment) -> Result<(), String> {
        self.write(b"QUIT\r\n", until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_read_in_letters_of_either_case() {
        let lines = [
            "mx.example STARTTLS",
            "size 1000",
            "AUTH login PLAIN",
            "SmtpUtf8",
            "8BITMIME",
            "Pipelining",
            "HELP",
            "",
        ];
        let reply = Reply { code: 250, lines: lines.map(str::to_owned).to_vec() };
        let expected = Offers {
            starttls: false,
            auth: vec!["LOGIN".into(), "PLAIN".into()],
            pipelining: true,
            smtputf8: true,
            eight_bit_mime: true,
            size: Some(1000),
        };
        assert_eq!(Offers::of(&reply), expected);
    }
}
