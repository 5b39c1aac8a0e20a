//! The `smtp` channel: one transaction with a mail server for one message, step by step, since how far it came decides what
//! became of the message: before the final dot nothing is accepted, and after it anything may be. What a reply means is the
//! table in smtp/step.rs, the mail itself is smtp/mail.rs.

mod address;
mod connection;
mod mail;
mod reply;
mod step;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Deserializer};

use crate::message::Message;
use crate::moment::Moment;
use crate::sender::{Outcome, Sender, certificates};
use crate::trouble::Trouble;
use crate::{cli, who};
use connection::{Connection, Login, Security, Server};
use mail::{HEADER, Mail};
use step::{Step, outcome};

/// The keys of a `[channel.NAME]` of kind `smtp` beyond those that every kind has. Without `Debug`: it has a password.
#[derive(Clone, Deserialize)]
pub struct Settings {
    pub host: String,
    #[serde(default)]
    pub port: Option<u16>,
    #[serde(default)]
    pub tls: Tls,
    /// Certificates in PEM that are believed beside the built-in roots.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub password: Option<String>,
    /// Our own name for the server; this host's if absent.
    #[serde(default)]
    pub hello: Option<String>,
    /// How long the answer to a whole message is waited for.
    #[serde(default = "ten_minutes", deserialize_with = "duration")]
    pub answer_timeout: Duration,

    // Templates, each of a text.
    pub from: String,
    #[serde(default)]
    pub reply_to: Option<String>,
    pub subject: String,
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub html: Option<String>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub list_unsubscribe: Option<String>,

    /// A link in `list_unsubscribe` unsubscribes by one POST (RFC 8058).
    #[serde(default)]
    pub list_unsubscribe_post: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tls {
    None,
    #[default]
    Starttls,
    Implicit,
}

fn ten_minutes() -> Duration {
    LONGEST_ANSWER
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    cli::duration(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

/// What RFC 5321 4.5.3.2.6 asks for: a server may look into a message for minutes, and who leaves earlier never knows.
const LONGEST_ANSWER: Duration = Duration::from_secs(10 * 60);

/// A connection that has been idle for longer is not used again: a firewall may have forgotten it, and nobody would say.
const LONGEST_IDLE: Duration = Duration::from_secs(5);

/// A server that has left may have said why, while the message was being written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// All servers together have so long to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Headers that the channel writes itself, or that are not a sender's to write.
const RESERVED: [&str; 14] = [
    "bcc",
    "cc",
    "content-transfer-encoding",
    "content-type",
    "date",
    "from",
    "message-id",
    "mime-version",
    "received",
    "resent-to",
    "return-path",
    "sender",
    "subject",
    "to",
];

impl Settings {
    /// The templates by the names that the rendered texts have in a message's body.
    pub fn texts(&self) -> Vec<(String, String)> {
        let one = |name: &str, text: &String| (name.to_owned(), text.clone());
        let optional = [
            ("reply_to", &self.reply_to),
            ("text", &self.text),
            ("html", &self.html),
            ("list_unsubscribe", &self.list_unsubscribe),
        ];
        let mut texts = vec![one("from", &self.from), one("subject", &self.subject)];
        texts.extend(optional.iter().filter_map(|(name, text)| text.as_ref().map(|text| one(name, text))));
        texts.extend(self.headers.iter().map(|(name, text)| one(&format!("{HEADER}{name}"), text)));
        texts
    }

    /// How long one send may take, with this `timeout` up to the final dot.
    pub fn longest(&self, timeout: Duration) -> Duration {
        timeout + self.answer_timeout
    }

    /// Errors are about one key, which they name, and never show a value that may be a secret.
    pub fn check(&self) -> Result<()> {
        if self.host.is_empty() || self.host.contains(|c: char| !c.is_ascii_graphic() || "/@[]".contains(c)) {
            return Err(refused(
                "`host` must be a name or an address, as in mail.example.com, and nothing else",
            ));
        }
        if self.host.contains(':') && self.host.parse::<IpAddr>().is_err() {
            return Err(refused(
                "`host` must be a name or an address without a port: that is the key `port`",
            ));
        }
        if self.port == Some(0) {
            return Err(refused("`port` must be 1 to 65535"));
        }
        if self.tls != Tls::None && ServerName::try_from(self.host.as_str()).is_err() {
            return Err(refused("`host` is no name that a certificate can have"));
        }
        if self.tls == Tls::None && self.ca_file.is_some() {
            return Err(refused("`ca_file` is for TLS, and `tls` is \"none\": take one of them out"));
        }
        if self.ca_file.as_deref().is_some_and(Path::is_relative) {
            return Err(refused("`ca_file` must be an absolute path"));
        }
        self.check_login()?;
        if let Some(hello) = &self.hello
            && (hello.is_empty() || hello.len() > 255 || !hello.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(refused("`hello` must be this host's name for the server, as in app1.example.com"));
        }
        if !(Duration::from_millis(1)..=LONGEST_ANSWER).contains(&self.answer_timeout) {
            return Err(refused("`answer_timeout` must be 1ms to 10m"));
        }
        self.check_texts()
    }

    fn check_login(&self) -> Result<()> {
        let (user, password) = match (&self.user, &self.password) {
            (None, None) => return Ok(()),
            (Some(user), Some(password)) => (user, password),
            _ => return Err(refused("`user` and `password` go together: give both, or neither")),
        };
        if user.is_empty() || password.is_empty() || user.contains('\0') || password.contains('\0') {
            return Err(refused("`user` and `password` must not be empty, nor have a NUL in them"));
        }
        if self.tls == Tls::None && !is_loopback(&self.host) {
            return Err(refused(
                "`password` would cross the network in the clear: set `tls` to \"starttls\" or \"implicit\"",
            ));
        }
        Ok(())
    }

    fn check_texts(&self) -> Result<()> {
        if self.text.is_none() && self.html.is_none() {
            return Err(refused("`text` or `html` is missing: a mail needs one of them, or both"));
        }
        for (key, text) in [("from", Some(&self.from)), ("reply_to", self.reply_to.as_ref())] {
            let Some(text) = text.filter(|text| !text.contains("{{") && !text.contains("{%")) else {
                continue;
            };
            address::mailbox(text).map_err(|why| refused(format!("`{key}`: {why}")))?;
        }
        let mut names: Vec<String> = Vec::new();
        for name in self.headers.keys() {
            let lower = name.to_ascii_lowercase();
            let graphic = name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
            if !(1..=76).contains(&name.len()) || !graphic {
                return Err(refused(format!("headers: {name:?} is not the name of a header")));
            }
            if let "reply-to" | "list-unsubscribe" | "list-unsubscribe-post" = lower.as_str() {
                let key = lower.replace('-', "_");
                return Err(refused(format!("headers: {name} has a key of its own: `{key}`")));
            }
            if RESERVED.contains(&lower.as_str()) {
                return Err(refused(format!("headers: {name} is not yours to set; leave it out")));
            }
            if names.contains(&lower) {
                return Err(refused(format!("headers: {name} is there twice")));
            }
            names.push(lower);
        }
        if self.list_unsubscribe.is_none() && self.list_unsubscribe_post.is_some() {
            return Err(refused(
                "`list_unsubscribe_post` says how the link of `list_unsubscribe` works, which is missing",
            ));
        }
        Ok(())
    }
}

fn refused(text: impl Into<String>) -> anyhow::Error {
    Trouble::usage(text).into()
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The sender of one channel of kind `smtp`.
pub struct Smtp {
    server: Server,
    /// Up to the final dot.
    timeout: Duration,
    /// After it.
    answer_timeout: Duration,
    one_click: bool,
    concurrency: usize,
    /// Connections between two transactions, and since when.
    kept: Mutex<Vec<(Connection, Moment)>>,
}

/// How a transaction ended, and what the connection is good for.
enum Ended {
    /// The next transaction.
    Kept(Outcome),
    /// Nothing.
    Over(Outcome),
    /// Nothing, and of this message nothing had left: where the connection was an old one, another may do.
    Stale(Outcome),
}

impl Smtp {
    /// `timeout` is of a transaction up to its final dot; `concurrency` is how many threads send at once, in all lanes
    /// together: so many connections are kept. Errors are about one key, which they name.
    pub fn open(settings: &Settings, timeout: Duration, concurrency: usize) -> Result<Self> {
        settings.check()?;
        let security = match settings.tls {
            Tls::None => Security::None,
            Tls::Starttls => Security::StartTls(tls_config(settings)?, server_name(settings)?),
            Tls::Implicit => Security::Implicit(tls_config(settings)?, server_name(settings)?),
        };
        let port = settings.port.unwrap_or(match settings.tls {
            Tls::None => 25,
            Tls::Starttls => 587,
            Tls::Implicit => 465,
        });
        let login = settings.user.as_ref().zip(settings.password.as_ref());
        let server = Server {
            host: settings.host.clone(),
            port,
            security,
            login: login.map(|(user, password)| Login::new(user, password)),
            hello: settings.hello.clone().unwrap_or_else(own_name),
        };
        Ok(Self {
            server,
            timeout,
            answer_timeout: settings.answer_timeout,
            one_click: settings.list_unsubscribe_post.unwrap_or(true),
            concurrency,
            kept: Mutex::default(),
        })
    }

    /// One message on one connection. Each step has what is left until `end`, and no more than is usual for it.
    fn transact(&self, connection: &mut Connection, mail: &Mail, until: Moment, end: Moment) -> Ended {
        if !connection.clean {
            match ask(connection, Step::Reset, Some("RSET"), end) {
                Ok(()) => connection.clean = true,
                Err(Ended::Kept(outcome) | Ended::Over(outcome) | Ended::Stale(outcome)) => {
                    return Ended::Stale(outcome);
                }
            }
        }
        let mail_from = match mail_from(connection, mail) {
            Ok(command) => command,
            Err(outcome) => return Ended::Kept(outcome),
        };
        if until.passed() {
            return Ended::Kept(Outcome::too_late());
        }
        connection.clean = false;
        if let Err(ended) = begin(connection, &mail_from, &format!("RCPT TO:<{}>", mail.to), end) {
            return ended;
        }
        if let Err(why) = connection.write(&mail.data, end) {
            return Ended::Over(last_words(connection).unwrap_or_else(|_| Step::Body.broken(&why)));
        }
        // Left or said already, it would be taken for the answer.
        if connection.is_out_of_turn() {
            return Ended::Over(last_words(connection).unwrap_or_else(|why| Step::Body.broken(&why)));
        }
        if until.passed() {
            return Ended::Over(Outcome::too_late());
        }
        self.finish(connection)
    }

    /// The final dot and its answer. Whatever is not a complete answer means that nobody knows.
    fn finish(&self, connection: &mut Connection) -> Ended {
        let end = Moment::now() + self.answer_timeout;
        let reply = match connection.write(b".\r\n", end).and_then(|()| connection.reply(end)) {
            Ok(reply) => reply,
            Err(why) => return Ended::Over(Step::Dot.broken(&why)),
        };
        match outcome(Step::Dot, &reply) {
            Some(accepted @ Outcome::Accepted { .. }) => {
                connection.clean = true;
                Ended::Kept(accepted)
            }
            Some(refused) => refused_by(&reply, refused),
            None => Ended::Over(Step::Dot.broken(&reply.text())),
        }
    }

    /// A connection that was used before, or none.
    fn take(&self) -> Option<Connection> {
        let (taken, old): (Option<_>, Vec<_>) = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let old = kept.extract_if(.., |(_, since)| since.elapsed() >= LONGEST_IDLE).collect();
            (kept.pop(), old)
        };
        goodbye(old.into_iter().map(|(connection, _)| connection), Duration::ZERO);
        taken.map(|(connection, _)| connection)
    }

    fn keep(&self, connection: Connection) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < self.concurrency {
            kept.push((connection, Moment::now()));
        }
    }
}

impl Sender for Smtp {
    fn send(&self, message: &Message, until: Moment) -> Outcome {
        if until.passed() {
            return Outcome::too_late();
        }
        let mail = match Mail::new(message, self.one_click) {
            Ok(mail) => mail,
            Err(outcome) => return outcome,
        };
        let end = Moment::now() + self.timeout;
        let mut kept = self.take();
        loop {
            let is_old = kept.is_some();
            let mut connection = match kept.take().map_or_else(|| self.server.connect(end), Ok) {
                Ok(connection) => connection,
                Err(outcome) => return outcome,
            };
            match self.transact(&mut connection, &mail, until, end) {
                Ended::Kept(outcome) => {
                    self.keep(connection);
                    return outcome;
                }
                // Once: the next is a new one.
                Ended::Stale(_) if is_old && !end.passed() => {}
                Ended::Over(outcome) | Ended::Stale(outcome) => return outcome,
            }
        }
    }

    /// As before a transaction: greeting, EHLO, STARTTLS, AUTH. Then QUIT.
    fn probe(&self) -> Result<String, String> {
        let connection = self.server.connect(Moment::now() + self.timeout).map_err(Outcome::words)?;
        goodbye([connection].into_iter(), GOODBYE);
        let Server { host, port, security, login, .. } = &self.server;
        let with_tls = match security {
            Security::None => "without TLS",
            Security::StartTls(..) | Security::Implicit(..) => "with TLS",
        };
        let with_login = if login.is_some() { ", and the log-in is good" } else { "" };
        Ok(format!("{host}:{port} takes mail, {with_tls}{with_login}"))
    }
}

impl Drop for Smtp {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        goodbye(kept.drain(..).map(|(connection, _)| connection), GOODBYE);
    }
}

/// Takes leave of connections that are between two transactions: politely, and no longer than that.
fn goodbye(connections: impl Iterator<Item = Connection>, wait: Duration) {
    let until = Moment::now() + wait.max(Duration::from_millis(50));
    let told =
        connections.filter_map(|mut connection| connection.say_goodbye(until).ok().map(|()| connection));
    let told: Vec<Connection> = told.collect();
    if !wait.is_zero() {
        for mut connection in told {
            // Whether it answers is its own affair.
            connection.reply(until).ok();
        }
    }
}

/// From MAIL to the reply after which the message may be written. A server that offers it gets the three commands in one go
/// (RFC 2920), which spares two waits for each message.
fn begin(connection: &mut Connection, mail_from: &str, rcpt_to: &str, end: Moment) -> Result<(), Ended> {
    if !connection.offers.pipelining {
        ask(connection, Step::Mail, Some(mail_from), end)?;
        ask(connection, Step::Rcpt, Some(rcpt_to), end)?;
        return ask(connection, Step::Data, Some("DATA"), end);
    }
    let mut together = Some(format!("{mail_from}\r\n{rcpt_to}\r\nDATA"));
    let mut refused = None;
    for step in [Step::Mail, Step::Rcpt, Step::Data] {
        let replied = ask(connection, step, together.take().as_deref(), end);
        match (replied, refused.take()) {
            (replied, None) => match replied {
                Err(Ended::Kept(outcome)) => refused = Some(outcome),
                other => other?,
            },
            // It waits for the text of what it has refused. No dot may follow, not even one to get out of this.
            (Ok(()), Some(outcome)) if step == Step::Data => return Err(Ended::Over(outcome)),
            (Ok(()) | Err(Ended::Kept(_)), Some(outcome)) => refused = Some(outcome),
            (Err(Ended::Over(_) | Ended::Stale(_)), Some(outcome)) => return Err(Ended::Over(outcome)),
        }
    }
    refused.map_or(Ok(()), |outcome| Err(Ended::Kept(outcome)))
}

/// A command, or none where it was sent together with the one before, and the reply that lets the transaction go on.
fn ask(connection: &mut Connection, step: Step, command: Option<&str>, end: Moment) -> Result<(), Ended> {
    let reply = match connection.ask(command, end.min(Moment::now() + step.longest())) {
        Ok(reply) => reply,
        Err(why) if step == Step::Mail => return Err(Ended::Stale(step.broken(&why))),
        Err(why) => return Err(Ended::Over(step.broken(&why))),
    };
    match outcome(step, &reply) {
        None => Ok(()),
        // It closes what was idle for too long, or has served enough.
        Some(outcome) if step == Step::Mail && reply.code == 421 => Err(Ended::Stale(outcome)),
        Some(outcome) => Err(refused_by(&reply, outcome)),
    }
}

/// A server that refuses in order goes on in order.
fn refused_by(reply: &reply::Reply, outcome: Outcome) -> Ended {
    match reply.code {
        421 => Ended::Over(outcome),
        400..=599 => Ended::Kept(outcome),
        _ => Ended::Over(outcome),
    }
}

/// What a server said before the message had ended.
fn last_words(connection: &mut Connection) -> Result<Outcome, String> {
    let reply = connection.reply(Moment::now() + LAST_WORDS)?;
    Ok(outcome(Step::Body, &reply).unwrap_or_else(|| Step::Body.broken(&reply.text())))
}

/// The command that begins a transaction, if this server can take the mail at all.
fn mail_from(connection: &Connection, mail: &Mail) -> Result<String, Outcome> {
    let offers = &connection.offers;
    let mut command = format!("MAIL FROM:<{}>", mail.from);
    if mail.is_utf8 {
        if !offers.smtputf8 {
            let reason =
                |whose| format!("{whose} is not ASCII before its @, and the server offers no SMTPUTF8");
            return Err(if mail.to.user().is_ascii() {
                Outcome::Unavailable { reason: reason("an address of the sender") }
            } else {
                Outcome::Rejected { reason: reason("the recipient's address") }
            });
        }
        command.push_str(" SMTPUTF8");
        if offers.eight_bit_mime {
            command.push_str(" BODY=8BITMIME");
        }
    }
    if let Some(size) = offers.size {
        if size > 0 && mail.size > size {
            return Err(Outcome::Rejected {
                reason: format!(
                    "the message has {} bytes, and the server takes no more than {size}",
                    mail.size
                ),
            });
        }
        command.push_str(&format!(" SIZE={}", mail.size));
    }
    Ok(command)
}

/// This host's name, or the address that stands for having none.
fn own_name() -> String {
    let name = who::host();
    let good =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    if good { name } else { "[127.0.0.1]".into() }
}

fn server_name(settings: &Settings) -> Result<ServerName<'static>> {
    ServerName::try_from(settings.host.clone())
        .map_err(|_| refused("`host` is no name that a certificate can have"))
}

/// What is believed: the built-in roots, and those of the file.
fn tls_config(settings: &Settings) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
    if let Some(file) = &settings.ca_file {
        roots.add_parsable_certificates(certificates::of(file)?);
    }
    let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
