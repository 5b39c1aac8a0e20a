//! The `http` channel: one request for one message, and what the answer means. The table of statuses is here, in one
//! pure function. What an outcome leads to is not: that is settlement.rs. How far a request came is told by transport.rs.

#[cfg(test)]
mod tests;
mod transport;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use chrono::NaiveDateTime;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use serde::Deserialize;
use serde_json::Value;
use ureq::Agent;
use ureq::http::header::{CONTENT_TYPE, DATE, HeaderName, HeaderValue, RETRY_AFTER};
use ureq::http::{HeaderMap, Method, Request, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::message::Message;
use crate::moment::Moment;
use crate::sender::{Outcome, Secrets, Sender, Toll};
use crate::target::TargetId;
use crate::trouble::Trouble;
use transport::{Seen, Step};

/// The keys of a `[channel.NAME]` of kind `http` beyond those that every kind has. Without `Debug`: headers are secrets.
#[derive(Clone, Deserialize)]
pub struct Settings {
    pub url: String,
    #[serde(default = "post")]
    pub method: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Where the provider's own id of the message stands in its answer, as a JSON pointer.
    #[serde(default)]
    pub receipt: Option<String>,
    /// Certificates in PEM that are believed beside the built-in roots.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

fn post() -> String {
    "POST".into()
}

/// Of an answer's body no more than this is read.
const LONGEST_BODY: usize = 256 * 1024;

/// Of a body that is only shown, no more than this is kept.
const KEPT_BODY: usize = 4 * 1024;

/// Characters of a body in a reason.
const SHOWN_BODY: usize = 200;

/// The URL, and each header.
const LONGEST_LINE: usize = 8_000;

/// ureq's own buffers are 128 KiB each way, for every connection, and twice with TLS. The head of an answer must fit into this one.
const INPUT_BUFFER: usize = 16 * 1024;

/// A connection that has been idle for longer is not used again. Below the shortest time after which common servers close one
/// (2 s): a request that meets the closing may have arrived or not, and nobody can tell.
const LONGEST_IDLE: Duration = Duration::from_secs(1);

/// Retry-After is believed between these.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Headers that say where a request ends or that ask for another protocol: ours to write, or not to be had.
const RESERVED: [&str; 6] = ["content-length", "transfer-encoding", "expect", "upgrade", "te", "trailer"];

/// The sender of one channel of kind `http`.
pub struct Http {
    agent: Agent,
    method: Method,
    url: Uri,
    headers: HeaderMap,
    receipt: Option<String>,
    timeout: Duration,
    /// What must not show in a reason, though a server may repeat it in its answer.
    secrets: Secrets,
}

impl Http {
    /// `timeout` is that of a whole exchange; `concurrency` is how many threads send at once, in all lanes together: so many
    /// connections are kept. Errors are about one key, which they name.
    pub fn open(settings: &Settings, timeout: Duration, concurrency: usize) -> Result<Self> {
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
            .output_buffer_size(output_buffer(settings))
            .tls_config(TlsConfig::builder().root_certs(roots(settings.ca_file.as_deref())?).build())
            .build();
        let url = url(&settings.url)?;
        Ok(Self {
            agent: transport::agent(config),
            method: method(&settings.method)?,
            secrets: secrets(&url, &settings.headers),
            url,
            headers: headers(&settings.headers)?,
            receipt: receipt(settings.receipt.as_deref())?,
            timeout,
        })
    }

    /// One request and its answer, on this thread.
    fn exchange(&self, body: &str) -> Result<Answer, ureq::Error> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        let response = self.agent.run(request)?;

        let status = response.status().as_u16();
        let keep = if self.receipt.is_some() { LONGEST_BODY } else { KEPT_BODY };
        let asks_to_wait = response.headers().contains_key(RETRY_AFTER);
        let retry_after = retry_after(response.headers());
        let (body, end) = read(response.into_body().as_reader(), keep);
        Ok(Answer { status, asks_to_wait, retry_after, body, end })
    }

    /// What it means that no answer came.
    fn unanswered(&self, error: &ureq::Error, step: Step) -> Outcome {
        let what = match error {
            ureq::Error::Timeout(_) => format!("nothing within {:?}", self.timeout),
            ureq::Error::Io(error) => self.on_one_line(&error.to_string()),
            ureq::Error::BadUri(_) => "the URL is none".into(),
            other => self.on_one_line(&other.to_string()),
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

    /// The provider's own id of an accepted message.
    fn receipt(&self, target: TargetId, body: &[u8]) -> Option<String> {
        let pointer = self.receipt.as_deref()?;
        let answer: Option<Value> = serde_json::from_slice(body).ok();
        let receipt = match answer.as_ref().and_then(|answer| answer.pointer(pointer)) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        if receipt.is_none() {
            log::info!("target {target}: accepted, but the answer has no receipt at {pointer}");
        }
        receipt
    }

    fn reason(&self, answer: &Answer) -> String {
        let end = match answer.end {
            End::Whole => "",
            End::Cut => ", the answer cut short",
            End::TooLong => ", the answer longer than 256 KiB",
        };
        let text = self.on_one_line(&String::from_utf8_lossy(&answer.body));
        let colon = if text.is_empty() { "" } else { ": " };
        format!("HTTP {}{end}{colon}{text}", answer.status)
    }

    /// The beginning of a text from outside: one line, nothing unprintable, no secrets.
    fn on_one_line(&self, text: &str) -> String {
        let mut text = text.split(|c: char| c.is_whitespace() || c.is_control()).fold(
            String::new(),
            |mut line, word| {
                if !line.is_empty() && !word.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
                line
            },
        );
        self.secrets.hide(&mut text);
        text.chars().take(SHOWN_BODY).collect()
    }
}

impl Sender for Http {
    fn send(&self, message: &Message, until: Moment) -> Outcome {
        if until.passed() {
            return Outcome::too_late();
        }
        let Some(body) = &message.body else {
            return Outcome::Unavailable { reason: "the channel has no body".into() };
        };
        let (answer, Seen { step, broken, .. }) = transport::watch(until, || self.exchange(body.get()));
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.unanswered(&error, step),
        };
        if broken && answer.end == End::Whole {
            answer.end = End::Cut;
        }
        match outcome(&answer, self.reason(&answer)) {
            Outcome::Accepted { .. } => {
                Outcome::Accepted { receipt: self.receipt(message.target.id, &answer.body) }
            }
            other => other,
        }
    }
}

/// An answer whose head came whole.
struct Answer {
    status: u16,
    /// It has a Retry-After, of whatever kind.
    asks_to_wait: bool,
    retry_after: Option<Duration>,
    /// The beginning of its body.
    body: Vec<u8>,
    end: End,
}

/// How the body of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    Cut,
    TooLong,
}

/// What an answer means. A status that the table does not list may mean anything, so that it is Unknown.
fn outcome(answer: &Answer, reason: String) -> Outcome {
    match answer.status {
        200..=299 if answer.end == End::Whole => Outcome::Accepted { receipt: None },
        400 | 404 | 410 | 413 | 414 | 415 | 422 | 451 => Outcome::Rejected { reason },
        401 | 402 | 403 | 407 | 501 | 505 => Outcome::Unavailable { reason },
        421 | 425 => Outcome::Deferred { reason, after: None, toll: Toll::Attempt },
        429 => Outcome::Deferred { reason, after: answer.retry_after, toll: Toll::Hold },
        503 if answer.asks_to_wait => {
            Outcome::Deferred { reason, after: answer.retry_after, toll: Toll::Hold }
        }
        _ => Outcome::Unknown { reason },
    }
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
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
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

fn refused(text: impl Into<String>) -> anyhow::Error {
    Trouble::usage(text).into()
}

fn url(text: &str) -> Result<Uri> {
    if text.len() > LONGEST_LINE {
        return Err(refused(format!("url is longer than {LONGEST_LINE} bytes")));
    }
    let needs = "url needs http:// or https:// and a host, as in https://api.example.com/v1/messages";
    let url: Uri = text.parse().map_err(|error| refused(format!("{needs}: {error}")))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
        return Err(refused(needs));
    }
    // What is no number would silently be the default port. (The colons before a bracket are those of an IPv6 address.)
    let after_host = url.authority().and_then(|all| all.as_str().rsplit(['@', ']']).next());
    if after_host.is_some_and(|text| text.contains(':')) && url.port_u16().is_none_or(|port| port == 0) {
        return Err(refused("url has a port that is not a number between 1 and 65535"));
    }
    Ok(url)
}

fn method(text: &str) -> Result<Method> {
    let method = Method::from_bytes(text.as_bytes())
        .map_err(|_| refused(format!("method {text:?} is not a method; POST is the default")))?;
    if method == Method::CONNECT {
        return Err(refused("method CONNECT carries no message; POST is the default"));
    }
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(refused(format!("method {text:?} must be in capitals")));
    }
    Ok(method)
}

fn headers(settings: &BTreeMap<String, String>) -> Result<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(settings.len() + 1);
    for (name, value) in settings {
        let key = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| refused(format!("headers: {name:?} is not the name of a header")))?;
        if RESERVED.contains(&key.as_str()) {
            return Err(refused(format!("headers: {name} is not yours to set; leave it out")));
        }
        let mut value = HeaderValue::from_str(value).map_err(|_| {
            refused(format!("headers: the value of {name} has a character that no header can carry"))
        })?;
        if name.len() + value.len() > LONGEST_LINE {
            return Err(refused(format!("headers: {name} is longer than {LONGEST_LINE} bytes")));
        }
        value.set_sensitive(true);
        if headers.insert(key, value).is_some() {
            return Err(refused(format!("headers: {name} is there twice")));
        }
    }
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    Ok(headers)
}

/// Each line of a request's head must fit into the buffer, or ureq finds out with half a request sent. A third more than
/// the longest, since credentials in the URL become a line in base64.
fn output_buffer(settings: &Settings) -> usize {
    let headers = settings.headers.iter().map(|(name, value)| name.len() + value.len());
    let longest = headers.fold(settings.url.len(), usize::max);
    (longest * 4 / 3 + 128).max(4096)
}

fn receipt(pointer: Option<&str>) -> Result<Option<String>> {
    match pointer {
        Some(pointer) if !pointer.starts_with('/') => {
            Err(refused(format!("receipt {pointer:?} is not a JSON pointer: it must begin with /")))
        }
        pointer => Ok(pointer.map(str::to_owned)),
    }
}

/// The built-in roots, and those of the file.
fn roots(ca_file: Option<&Path>) -> Result<RootCerts> {
    let Some(file) = ca_file else { return Ok(RootCerts::WebPki) };
    let refused = |why: &str| refused(format!("ca_file {}: {why}", file.display()));
    let pem = std::fs::read(file).map_err(|error| refused(&error.to_string()))?;
    let mut own = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|_| refused("not PEM"))? {
            // ureq would leave out in silence what cannot be used.
            RootCertStore::empty()
                .add(CertificateDer::from(certificate.der()))
                .map_err(|error| refused(&format!("a certificate cannot be used: {error}")))?;
            own.push(certificate);
        }
    }
    if own.is_empty() {
        return Err(refused("no certificate in it"));
    }
    let built_in = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(|root| Certificate::from_der(root));
    Ok(built_in.chain(own).collect::<Vec<_>>().into())
}

/// The password of the URL, and the values of headers, whole and by word but for the first ("Bearer" is no secret).
fn secrets(url: &Uri, headers: &BTreeMap<String, String>) -> Secrets {
    let plain = ["content-type", "accept", "user-agent", "host"];
    let values = headers
        .iter()
        .filter(|(name, _)| !plain.contains(&name.to_ascii_lowercase().as_str()))
        .flat_map(|(_, value)| [value.trim()].into_iter().chain(value.split_whitespace().skip(1)));
    let userinfo =
        url.authority().and_then(|all| all.as_str().rsplit_once('@')).map(|(userinfo, _)| userinfo);
    let password = userinfo.map(|all| all.split_once(':').map_or(all, |(_, password)| password));
    Secrets::new(values.chain(password))
}
