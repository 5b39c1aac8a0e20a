//! The `http` channel: one request for one message. How it is asked is http/exchange.rs, how it is signed http/sign.rs, what
//! the answer means http/answers.rs; what an outcome leads to is settlement.rs.

pub mod answers;
pub mod exchange;
pub mod pointer;
mod sign;
#[cfg(test)]
pub mod tests;
mod transport;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;
use ureq::http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, InvalidHeaderValue};
use ureq::http::{HeaderMap, Method, Request, Uri};
use uuid::Uuid;

use self::answers::Rules;
use self::exchange::{Answer, Bounds, Client, KEPT_BODY, LONGEST_BODY};
use self::pointer::Pointer;
use self::sign::{SignKey, Signer};
use crate::message::Message;
use crate::moment::Moment;
use crate::sender::{Exchange, Outcome, Secrets, Sender};
use crate::trouble::Trouble;

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
    /// What answers mean, before the table of statuses is asked.
    #[serde(default)]
    pub answers: Vec<toml::Table>,
    /// The header that bears the key of the message. Sent when it is named here, or when the channel deduplicates.
    #[serde(default)]
    pub idempotency_header: Option<String>,
    #[serde(default)]
    pub sign: Option<String>,
    #[serde(default)]
    pub sign_key: Option<SignKey>,
}

impl Settings {
    /// All that can be said of them without a look at the disk.
    pub fn check(&self) -> Result<()> {
        Form::read(self).map(drop)
    }
}

fn post() -> String {
    "POST".into()
}

/// The URL, and each header.
const LONGEST_LINE: usize = 8_000;

/// Headers that say where a request ends or that ask for another protocol: ours to write, or not to be had.
const RESERVED: [&str; 6] = ["content-length", "transfer-encoding", "expect", "upgrade", "te", "trailer"];

/// The header of the key, unless it is named.
const IDEMPOTENCY_HEADER: &str = "Idempotency-Key";

/// Characters of a key.
const KEY_LENGTH: usize = 36;

/// The sender of one channel of kind `http`.
pub struct Http {
    client: Client,
    form: Form,
    timeout: Duration,
    /// Each request bears its key in the header for it.
    keyed: bool,
}

/// The settings, checked: what requests look like, and how answers are read.
struct Form {
    method: Method,
    url: Uri,
    headers: HeaderMap,
    key_header: HeaderName,
    signer: Option<Signer>,
    rules: Rules,
    receipt: Option<Pointer>,
    /// No line of a request's head is longer.
    longest_line: usize,
    /// What must not show in a reason, though a server may repeat it in its answer.
    secrets: Secrets,
}

impl Form {
    fn read(settings: &Settings) -> Result<Self> {
        let url = exchange::url("url", &settings.url)?;
        let signer = Signer::read(settings.sign.as_deref(), settings.sign_key.as_ref())?;
        let key_header = key_header(settings.idempotency_header.as_deref(), signer.is_some())?;
        let headers = headers(&settings.headers, &key_header, signer.is_some())?;
        let lines = [
            settings.url.len(),
            key_header.as_str().len() + KEY_LENGTH,
            signer.as_ref().map_or(0, Signer::longest_line),
        ];
        let own = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        Ok(Self {
            method: method(&settings.method)?,
            secrets: secrets(&url, settings),
            rules: answers::read(&settings.answers)?,
            receipt: receipt(settings.receipt.as_deref())?,
            longest_line: own.chain(lines).fold(0, usize::max),
            url,
            headers,
            key_header,
            signer,
        })
    }
}

impl Http {
    /// Errors are about one key, which they name.
    pub fn open(settings: &Settings, exchange: &Exchange) -> Result<Self> {
        let Exchange { timeout, concurrency, keyed } = *exchange;
        let form = Form::read(settings)?;
        let client = Client::open(settings.ca_file.as_deref(), timeout, concurrency, form.longest_line)?;
        Ok(Self { client, form, timeout, keyed: keyed || settings.idempotency_header.is_some() })
    }

    /// The request of one attempt at `seconds` since 1970.
    fn request<'a>(
        &self,
        key: Uuid,
        body: &'a str,
        seconds: u64,
    ) -> Result<Request<&'a str>, InvalidHeaderValue> {
        let Form { method, url, headers, key_header, signer, .. } = &self.form;
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = url.clone();
        *request.headers_mut() = headers.clone();
        let key = key.to_string();
        if self.keyed {
            request.headers_mut().insert(key_header, HeaderValue::from_str(&key)?);
        }
        if let Some(signer) = signer {
            signer.sign(&key, seconds, body, request.headers_mut())?;
        }
        Ok(request)
    }

    fn bounds(&self, until: Moment) -> Bounds {
        let whole = self.form.receipt.is_some() || self.form.rules.ask_for_the_body();
        let keep = if whole { LONGEST_BODY } else { KEPT_BODY };
        Bounds { timeout: self.timeout, until, keep }
    }

    /// The provider's own id of an accepted message.
    fn receipt(&self, answer: &Answer) -> Option<String> {
        let pointer = self.form.receipt.as_ref()?;
        let receipt = match answer.json().and_then(|body| pointer.find(body)) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        if receipt.is_none() {
            log::info!("accepted, but the answer has no receipt at {pointer}");
        }
        receipt
    }
}

impl Sender for Http {
    fn send(&self, message: &Message, until: Moment) -> Outcome {
        let Some(body) = &message.body else {
            return Outcome::Unavailable { reason: "the channel has no body".into() };
        };
        let request = match self.request(message.key, body.get(), seconds_since_1970()) {
            Ok(request) => request,
            Err(error) => {
                return Outcome::Unavailable { reason: format!("no such request can be made: {error}") };
            }
        };
        let answer = match self.client.exchange(request, self.bounds(until), &self.form.secrets) {
            Ok(answer) => answer,
            Err(outcome) => return outcome,
        };
        match self.form.rules.judge(&answer, &self.form.secrets) {
            Outcome::Accepted { .. } => Outcome::Accepted { receipt: self.receipt(&answer) },
            other => other,
        }
    }

    /// A connection, and TLS with the host's certificate. No request: none is known to be harmless at every provider, HEAD and
    /// OPTIONS included. It may be counted, billed, or taken for a message, and where it is ignored its answer says nothing of
    /// the credentials.
    fn probe(&self) -> Result<String, String> {
        let mut request = Request::new("");
        *request.uri_mut() = self.form.url.clone();
        self.client.connect(request, &self.form.secrets)?;
        let host = self.form.url.host().unwrap_or_default();
        let with_tls = match self.form.url.scheme_str() {
            Some("https") => "with TLS",
            _ => "without TLS",
        };
        Ok(format!(
            "{host} takes connections, {with_tls}; credentials are not tried, since that would take a request"
        ))
    }
}

/// When this attempt is made, for who gets it: nothing here is decided by it.
#[allow(
    clippy::disallowed_methods,
    reason = "a signature bears its host's time; the database's may be seconds old"
)]
fn seconds_since_1970() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
}

fn refused(text: impl Into<String>) -> anyhow::Error {
    Trouble::usage(text).into()
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

fn key_header(name: Option<&str>, signed: bool) -> Result<HeaderName> {
    let name = name.unwrap_or(IDEMPOTENCY_HEADER);
    let header = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| refused(format!("idempotency_header {name:?} is not the name of a header")))?;
    let taken = RESERVED.contains(&header.as_str())
        || [CONTENT_TYPE, HOST].contains(&header)
        || signed && sign::HEADERS.contains(&header.as_str());
    if taken {
        return Err(refused(format!("idempotency_header: {name} says something else already; name another")));
    }
    if name.len() > LONGEST_LINE {
        return Err(refused(format!("idempotency_header is longer than {LONGEST_LINE} bytes")));
    }
    Ok(header)
}

fn headers(settings: &BTreeMap<String, String>, key_header: &HeaderName, signed: bool) -> Result<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(settings.len() + 1);
    for (name, value) in settings {
        let key = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| refused(format!("headers: {name:?} is not the name of a header")))?;
        if RESERVED.contains(&key.as_str()) {
            return Err(refused(format!("headers: {name} is not yours to set; leave it out")));
        }
        if key == *key_header {
            return Err(refused(format!(
                "headers: {name} would be the same for every message; leave it out, and idempotency_header = \"{name}\" \
                 sends the key of each"
            )));
        }
        if signed && sign::HEADERS.contains(&key.as_str()) {
            return Err(refused(format!("headers: {name} is written by sign; leave it out")));
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

fn receipt(pointer: Option<&str>) -> Result<Option<Pointer>> {
    pointer.map(Pointer::parse).transpose().map_err(|why| refused(format!("receipt {why}")))
}

/// The password of the URL, the keys that sign, and the values of headers, whole and by word but for the first ("Bearer" is no
/// secret).
fn secrets(url: &Uri, settings: &Settings) -> Secrets {
    let userinfo =
        url.authority().and_then(|all| all.as_str().rsplit_once('@')).map(|(userinfo, _)| userinfo);
    // As it goes out, in the header Authorization.
    let basic = userinfo.map(|all| BASE64_STANDARD.encode(all));
    let password = userinfo.map(|all| all.split_once(':').map_or(all, |(_, password)| password));
    let plain = ["content-type", "accept", "user-agent", "host"];
    let values = settings
        .headers
        .iter()
        .filter(|(name, _)| !plain.contains(&name.to_ascii_lowercase().as_str()))
        .flat_map(|(_, value)| [value.trim()].into_iter().chain(value.split_whitespace().skip(1)));
    let keys = settings.sign_key.iter().flat_map(SignKey::texts);
    let keys = keys.flat_map(|key| [key.as_str(), key.trim_start_matches(sign::PREFIX)]);
    Secrets::new(values.chain(password).chain(basic.as_deref()).chain(keys))
}
