//! One request and its answer, for each kind of channel that speaks HTTP. What it means that no answer came is here; what an
//! answer means is not: that is answers.rs. How far a request came is told by transport.rs.

use std::cell::OnceCell;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use chrono::NaiveDateTime;
use serde_json::Value;
use ureq::Agent;
use ureq::http::header::{DATE, RETRY_AFTER};
use ureq::http::{HeaderMap, Request, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::transport::{self, Seen, Step};
use super::{LONGEST_LINE, refused};
use crate::moment::Moment;
use crate::sender::{Outcome, Secrets, certificates};

/// Of an answer's body no more than this is read.
pub const LONGEST_BODY: usize = 256 * 1024;

/// Of a body that is only shown, no more than this is kept.
pub const KEPT_BODY: usize = 4 * 1024;

/// ureq's own buffers are 128 KiB each way, for every connection, and twice with TLS. The head of an answer must fit into this one.
pub const INPUT_BUFFER: usize = 16 * 1024;

/// A connection that has been idle for longer is not used again. Below the shortest time after which common servers close one
/// (2 s): a request that meets the closing may have arrived or not, and nobody can tell.
const LONGEST_IDLE: Duration = Duration::from_secs(1);

/// A wait that an answer asks for is believed between these.
pub const SHORTEST_WAIT: Duration = Duration::from_secs(1);
pub const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Asks one host, from many threads at once.
pub struct Client {
    agent: Agent,
    timeout: Duration,
}

/// What bounds one exchange.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of the whole of it.
    pub timeout: Duration,
    /// Past this its first byte does not leave.
    pub until: Moment,
    /// Bytes of the answer's body that are kept.
    pub keep: usize,
}

impl Client {
    /// `timeout` is that of a whole exchange unless its bounds say less; `concurrency` is how many threads ask at once, in all
    /// lanes together: so many connections are kept. No line of a request's head is longer than `longest_line`.
    pub fn open(
        ca_file: Option<&Path>,
        timeout: Duration,
        concurrency: usize,
        longest_line: usize,
    ) -> Result<Self> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("batch-send/", env!("CARGO_PKG_VERSION")))
            .allow_non_standard_methods(true)
            .timeout_global(Some(timeout))
            .max_idle_age(LONGEST_IDLE)
            .max_idle_connections(concurrency)
            .max_idle_connections_per_host(concurrency)
            .input_buffer_size(INPUT_BUFFER)
            .output_buffer_size(output_buffer(longest_line))
            .tls_config(TlsConfig::builder().root_certs(roots(ca_file)?).build())
            .build();
        Ok(Self { agent: transport::agent(config), timeout })
    }

    /// The answer, once its head came whole; else what it means that there is none. Never repeats a request.
    pub fn exchange(
        &self,
        request: Request<&str>,
        bounds: Bounds,
        secrets: &Secrets,
    ) -> Result<Answer, Outcome> {
        if bounds.until.passed() {
            return Err(Outcome::too_late());
        }
        let (answer, Seen { step, broken, .. }) =
            transport::watch(bounds.until, || self.ask(request, bounds));
        let mut answer = answer.map_err(|error| unanswered(&error, step, bounds.timeout, secrets))?;
        if broken && answer.end == End::Whole {
            answer.end = End::Cut;
        }
        Ok(answer)
    }

    /// Connects as for this request, TLS included, and lets nothing of it leave. The error is why it cannot.
    pub fn connect(&self, request: Request<&str>, secrets: &Secrets) -> Result<(), String> {
        // The time for its first byte is over before it begins: what keeps a message from leaving too late keeps this from leaving.
        let until = Moment::now();
        let bounds = Bounds { timeout: self.timeout, until, keep: 0 };
        let (answer, Seen { step, .. }) = transport::watch(until, || self.ask(request, bounds));
        match (step, answer) {
            (Step::TooLate, _) => Ok(()),
            (_, Err(error)) => Err(unanswered(&error, step, self.timeout, secrets).words()),
            (_, Ok(_)) => Err("the host answered, though it was asked nothing".into()),
        }
    }

    /// One request and its answer, on this thread, watched by the caller.
    pub(super) fn ask(&self, mut request: Request<&str>, bounds: Bounds) -> Result<Answer, ureq::Error> {
        // A configuration of its own is a copy of the agent's: not for each message.
        if bounds.timeout < self.timeout {
            let own = self.agent.configure_request(request);
            request = own.timeout_global(Some(bounds.timeout)).build();
        }
        let response = self.agent.run(request)?;
        let status = response.status().as_u16();
        let asks_to_wait = response.headers().contains_key(RETRY_AFTER);
        let retry_after = retry_after(response.headers());
        let (body, end) = read(response.into_body().as_reader(), bounds.keep);
        Ok(Answer { status, asks_to_wait, retry_after, body, end, json: OnceCell::new() })
    }
}

/// An answer whose head came whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// It has a Retry-After, of whatever kind.
    pub asks_to_wait: bool,
    pub retry_after: Option<Duration>,
    /// The beginning of its body.
    pub body: Vec<u8>,
    pub end: End,
    pub(super) json: OnceCell<Option<Value>>,
}

/// How the body of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Whole,
    Cut,
    TooLong,
}

impl Answer {
    /// An empty one, for tests to fill.
    #[cfg(test)]
    pub fn of(status: u16) -> Self {
        let (asks_to_wait, retry_after, body, end) = (false, None, Vec::new(), End::Whole);
        Self { status, asks_to_wait, retry_after, body, end, json: OnceCell::new() }
    }

    /// Its body, if it came whole, was kept whole and is JSON. Parsed once, when it is first asked for.
    pub fn json(&self) -> Option<&Value> {
        let parse = || if self.end == End::Whole { serde_json::from_slice(&self.body).ok() } else { None };
        self.json.get_or_init(parse).as_ref()
    }

    /// What it says, for people: status and the beginning of its body.
    pub fn reason(&self, secrets: &Secrets) -> String {
        let end = match self.end {
            End::Whole => "",
            End::Cut => ", the answer cut short",
            End::TooLong => ", the answer longer than 256 KiB",
        };
        let shown = &self.body[..self.body.len().min(KEPT_BODY)];
        let text = on_one_line(&String::from_utf8_lossy(shown), secrets);
        let colon = if text.is_empty() { "" } else { ": " };
        format!("HTTP {}{end}{colon}{text}", self.status)
    }
}

/// What it means that no answer came.
pub(super) fn unanswered(error: &ureq::Error, step: Step, timeout: Duration, secrets: &Secrets) -> Outcome {
    let what = match error {
        ureq::Error::Timeout(_) => format!("nothing within {timeout:?}"),
        ureq::Error::Io(error) => on_one_line(&error.to_string(), secrets),
        ureq::Error::BadUri(_) => "the URL is none".into(),
        other => on_one_line(&other.to_string(), secrets),
    };
    match step {
        Step::TooLate => Outcome::too_late(),
        Step::Sent => Outcome::Unknown { reason: format!("no complete answer: {what}") },
        Step::Secure if is_refused_certificate(error) => {
            Outcome::Unavailable { reason: format!("the host's certificate is refused: {what}") }
        }
        _ if !is_of_the_network(error) => {
            Outcome::Unavailable { reason: format!("no such request can be made: {what}") }
        }
        Step::LookUp => Outcome::unreached(format!("the host's name is not found: {what}")),
        Step::Connect => Outcome::unreached(format!("no connection: {what}")),
        Step::Secure => Outcome::unreached(format!("no TLS: {what}")),
    }
}

fn is_refused_certificate(error: &ureq::Error) -> bool {
    let ureq::Error::Io(error) = error else { return false };
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// Whether it may pass by itself; else the request is at fault.
fn is_of_the_network(error: &ureq::Error) -> bool {
    use ureq::Error::{ConnectionFailed, HostNotFound, Io, Timeout};
    matches!(error, Io(_) | Timeout(_) | HostNotFound | ConnectionFailed)
}

/// A text from outside: one line, nothing unprintable, no secrets.
fn on_one_line(text: &str, secrets: &Secrets) -> String {
    let mut text =
        text.split(|c: char| c.is_whitespace() || c.is_control()).fold(String::new(), |mut line, word| {
            if !line.is_empty() && !word.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
            line
        });
    secrets.hide(&mut text);
    text
}

/// Reads a body to its end, and keeps its beginning.
fn read(mut body: impl Read, keep: usize) -> (Vec<u8>, End) {
    let mut kept = Vec::new();
    let mut length = 0;
    let mut part = [0; 4096];
    loop {
        match body.read(&mut part) {
            Ok(0) => return (kept, End::Whole),
            Ok(n) => {
                kept.extend_from_slice(&part[..n.min(keep - kept.len())]);
                length += n;
                if length > LONGEST_BODY {
                    return (kept, End::TooLong);
                }
            }
            Err(_) => return (kept, End::Cut),
        }
    }
}

/// How long an answer asks to be left alone, in seconds or until a date. The date is compared with the answer's own: our
/// clock may be wrong. `None`: it does not say, or not in a way that can be used.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let asked = text(RETRY_AFTER).filter(|asked| !asked.is_empty())?;
    let wait = if asked.bytes().all(|byte| byte.is_ascii_digit()) {
        asked.parse().map_or(LONGEST_WAIT, Duration::from_secs)
    } else {
        let wait = http_date(asked)?.signed_duration_since(http_date(text(DATE)?)?);
        wait.to_std().ok().filter(|wait| !wait.is_zero())?
    };
    Some(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT))
}

/// A date in one of the three forms of HTTP, of which two are of old.
fn http_date(text: &str) -> Option<NaiveDateTime> {
    ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"]
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
}

/// A setting that is a URL.
pub fn url(key: &str, text: &str) -> Result<Uri> {
    if text.len() > LONGEST_LINE {
        return Err(refused(format!("{key} is longer than {LONGEST_LINE} bytes")));
    }
    let needs =
        format!("{key} needs http:// or https:// and a host, as in https://api.example.com/v1/messages");
    let url: Uri = text.parse().map_err(|error| refused(format!("{needs}: {error}")))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
        return Err(refused(needs));
    }
    // What is no number would silently be the default port. (The colons before a bracket are those of an IPv6 address.)
    let after_host = url.authority().and_then(|all| all.as_str().rsplit(['@', ']']).next());
    if after_host.is_some_and(|text| text.contains(':')) && url.port_u16().is_none_or(|port| port == 0) {
        return Err(refused(format!("{key} has a port that is not a number between 1 and 65535")));
    }
    Ok(url)
}

/// Each line of a request's head must fit into the buffer, or ureq finds out with half a request sent. A third more than
/// the longest, since credentials in the URL become a line in base64.
fn output_buffer(longest_line: usize) -> usize {
    (longest_line * 4 / 3 + 128).max(4096)
}

/// The built-in roots, and those of the file.
fn roots(ca_file: Option<&Path>) -> Result<RootCerts> {
    let Some(file) = ca_file else { return Ok(RootCerts::WebPki) };
    let own = certificates::of(file)?;
    let own = own.iter().map(|root| Certificate::from_der(root).to_owned());
    let built_in = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(|root| Certificate::from_der(root));
    Ok(built_in.chain(own).collect::<Vec<_>>().into())
}
