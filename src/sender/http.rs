//! The `http` channel: one request for one message. How it is asked is http/exchange.rs, what the answer means http/answers.rs; what an
//! outcome leads to is settlement.rs.

pub mod answers;
pub mod exchange;
#[cfg(test)]
mod tests;
mod transport;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;
use ureq::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use ureq::http::{HeaderMap, Method, Request, Uri};

use self::exchange::{Bounds, Client, KEPT_BODY, LONGEST_BODY};
use crate::message::Message;
use crate::moment::Moment;
use crate::sender::{Outcome, Secrets, Sender};
use crate::target::TargetId;
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
}

fn post() -> String {
    "POST".into()
}

/// The URL, and each header.
const LONGEST_LINE: usize = 8_000;

/// Headers that say where a request ends or that ask for another protocol: ours to write, or not to be had.
const RESERVED: [&str; 6] = ["content-length", "transfer-encoding", "expect", "upgrade", "te", "trailer"];

/// The sender of one channel of kind `http`.
pub struct Http {
    client: Client,
    method: Method,
    url: Uri,
    headers: HeaderMap,
    receipt: Option<String>,
    timeout: Duration,
    /// What must not show in a reason, though a server may repeat it in its answer.
    secrets: Secrets,
}

impl Http {
    /// `timeout` is that of a whole exchange; `concurrency` is how many threads send at once, in all lanes together. Errors are
    /// about one key, which they name.
    pub fn open(settings: &Settings, timeout: Duration, concurrency: usize) -> Result<Self> {
        let lines = settings.headers.iter().map(|(name, value)| name.len() + value.len());
        let longest_line = lines.fold(settings.url.len(), usize::max);
        let client = Client::open(settings.ca_file.as_deref(), timeout, concurrency, longest_line)?;
        let url = exchange::url(&settings.url)?;
        Ok(Self {
            client,
            method: method(&settings.method)?,
            secrets: secrets(&url, &settings.headers),
            url,
            headers: headers(&settings.headers)?,
            receipt: receipt(settings.receipt.as_deref())?,
            timeout,
        })
    }

    fn request<'a>(&self, body: &'a str) -> Request<&'a str> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }

    fn bounds(&self, until: Moment) -> Bounds {
        let keep = if self.receipt.is_some() { LONGEST_BODY } else { KEPT_BODY };
        Bounds { timeout: self.timeout, until, keep }
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
}

impl Sender for Http {
    fn send(&self, message: &Message, until: Moment) -> Outcome {
        let Some(body) = &message.body else {
            return Outcome::Unavailable { reason: "the channel has no body".into() };
        };
        let request = self.request(body.get());
        let answer = match self.client.exchange(request, self.bounds(until), &self.secrets) {
            Ok(answer) => answer,
            Err(outcome) => return outcome,
        };
        match answers::table(&answer, answer.reason(&self.secrets)) {
            Outcome::Accepted { .. } => {
                Outcome::Accepted { receipt: self.receipt(message.target.id, &answer.body) }
            }
            other => other,
        }
    }
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

fn receipt(pointer: Option<&str>) -> Result<Option<String>> {
    match pointer {
        Some(pointer) if !pointer.starts_with('/') => {
            Err(refused(format!("receipt {pointer:?} is not a JSON pointer: it must begin with /")))
        }
        pointer => Ok(pointer.map(str::to_owned)),
    }
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
