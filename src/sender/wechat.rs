//! The `wechat` channel: template messages of official accounts, subscribe messages of mini programs. What the API's errcodes
//! mean for a message is here; the access token is token.rs. How a request goes out, and what HTTP itself says, is http/.

#[cfg(test)]
mod tests;
mod token;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};
use ureq::http::header::{CONTENT_TYPE, HeaderValue};
use ureq::http::{Method, Request, Uri};

use self::token::{Token, Tokens};
use crate::message::Message;
use crate::moment::Moment;
use crate::sender::http::answers::{After, Condition, Rule, Rules, Verdict};
use crate::sender::http::exchange::{self, Answer, Bounds, Client, End, LONGEST_BODY};
use crate::sender::http::pointer::Pointer;
use crate::sender::{Exchange, Memory, Outcome, Sender, Toll};

/// The keys of a `[channel.NAME]` of kind `wechat` beyond those that every kind has. Without `Debug`: the secret is one.
#[derive(Clone, Deserialize)]
pub struct Settings {
    /// Where the API is.
    #[serde(default = "api")]
    pub api: String,
    pub appid: String,
    pub secret: String,
    pub message: Form,
    /// Certificates in PEM that are believed beside the built-in roots.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

fn api() -> String {
    "https://api.weixin.qq.com".into()
}

/// Which messages a channel sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Of an official account.
    Template,
    /// Of a mini program.
    Subscribe,
}

/// What the sender itself puts into a message.
const RECIPIENT: &str = "touser";
const KEY: &str = "client_msg_id";

/// For so long, by its documentation, the API drops a template message whose recipient and `client_msg_id` it has seen.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);

const MINUTE: Duration = Duration::from_secs(60);

/// What errcodes mean for a message. One that is not listed may mean anything.
const TABLE: &[(&[i64], Verdict)] = &[
    // The last one: there is a message with this key already.
    (&[0, 45065], Verdict::Accepted),
    // Busy: it may have been accepted all the same.
    (&[-1], Verdict::Unknown),
    // No such recipient, not a follower, refused or used up, out of reach, limited; data that do not fit the template, or must
    // not be sent.
    (&[40003, 43004, 43101, 45015, 45168, 47003, 50002, 87014], Verdict::Rejected),
    // For a person: the template or the page, the account's rights, its address, its appid; the quota of the day; a key that is
    // too long.
    (&[40013, 40037, 40164, 41030, 43107, 45009, 45067, 48001, 48004, 61004], Verdict::Unavailable),
    (&TOKEN_REFUSED, Verdict::Unavailable),
    // Too fast.
    (&[45011, 45047], Verdict::Deferred { after: After::Fixed(MINUTE), toll: Toll::Hold }),
    // Another message to the same recipient at the same time.
    (&[43108], Verdict::Deferred { after: After::Unsaid, toll: Toll::Attempt }),
    // The same key too soon.
    (&[45066], Verdict::Deferred { after: After::Fixed(MINUTE), toll: Toll::Attempt }),
];

/// The access token is not, or not any more, a good one. The message was not looked at.
const TOKEN_REFUSED: [i64; 4] = [40001, 40014, 42001, 42007];

const DAILY_QUOTA: i64 = 45009;

impl Settings {
    /// Whether they can be, together with the `body` of the channel.
    pub fn check(&self, body: Option<&str>) -> Result<()> {
        self.base()?;
        if self.appid.is_empty() {
            bail!("`appid` is empty: it is the AppID of the account, as in \"wx0123456789abcdef\"");
        }
        if self.secret.is_empty() {
            bail!("`secret` is empty: it is the AppSecret of the account, as in \"${{WX_SECRET}}\"");
        }
        if self.ca_file.as_deref().is_some_and(|file| file.is_relative()) {
            bail!("`ca_file` must be an absolute path");
        }
        let Some(body) = body else {
            bail!(
                "`body` is missing: it is the message, as in \
                 '{{\"template_id\": \"...\", \"data\": {{\"thing1\": {{\"value\": {{{{ target.params.name }}}}}}}}}}'"
            );
        };
        for key in [RECIPIENT, KEY] {
            let key = format!("\"{key}\"");
            if body.split(&key).skip(1).any(|rest| rest.trim_start().starts_with(':')) {
                bail!("`body` has {key}: that is put into each message by itself, take it out");
            }
        }
        Ok(())
    }

    /// `api`, to be continued with a path.
    fn base(&self) -> Result<String> {
        let api = &self.api;
        let url = exchange::url("api", api)?;
        let host = url.host().unwrap_or_default();
        let here = matches!(host, "localhost" | "[::1]")
            || host.parse().is_ok_and(|host: Ipv4Addr| host.is_loopback());
        if url.scheme_str() != Some("https") && !here {
            bail!("`api` must begin with https://: the secret and the messages go there");
        }
        if api.contains(['?', '#', '@']) {
            bail!("`api` must be the beginning of a URL, as in \"https://api.weixin.qq.com\"");
        }
        Ok(api.trim_end_matches('/').to_owned())
    }

    pub fn memory(&self) -> Memory {
        match self.message {
            Form::Template => Memory::Known(REMEMBERED),
            Form::Subscribe => Memory::None,
        }
    }
}

/// The sender of one channel of kind `wechat`.
pub struct Wechat {
    client: Client,
    tokens: Tokens,
    form: Form,
    /// Where messages go; the access token stands behind it.
    url: String,
    rules: Rules,
    /// Of a message and its access token together.
    timeout: Duration,
}

/// How long the sending of one message may take, its access token included.
#[derive(Clone, Copy)]
struct Span {
    /// Past this its first byte does not leave.
    until: Moment,
    /// Past this it is over.
    end: Moment,
}

impl Span {
    /// Until when a first byte may leave.
    fn left(self) -> Duration {
        self.until.min(self.end).left()
    }

    /// It waited for the access token that another message asked for.
    fn waited_in_vain(self) -> Outcome {
        if self.until.passed() {
            return Outcome::too_late();
        }
        Outcome::unreached("the API did not answer in time")
    }

    /// Of the next exchange.
    fn bounds(self) -> Bounds {
        // In whole milliseconds: what was not waited for a token is no loss to the message.
        let left = (self.end.left() + Duration::from_nanos(999_999)).as_millis() as u64;
        Bounds { timeout: Duration::from_millis(left), until: self.until.min(self.end), keep: LONGEST_BODY }
    }
}

impl Wechat {
    /// Errors are about one key, which they name.
    pub fn open(settings: &Settings, exchange: &Exchange) -> Result<Self> {
        let Exchange { timeout, concurrency, .. } = *exchange;
        let base = settings.base()?;
        let path = match settings.message {
            Form::Template => "/cgi-bin/message/template/send?access_token=",
            Form::Subscribe => "/cgi-bin/message/subscribe/send?access_token=",
        };
        let url = base.clone() + path;
        let asked: Uri = format!("{base}/cgi-bin/stable_token").parse()?;
        let longest_line = url.len() + token::LONGEST;
        Ok(Self {
            client: Client::open(settings.ca_file.as_deref(), timeout, concurrency, longest_line)?,
            tokens: Tokens::new(asked, &settings.appid, &settings.secret)?,
            form: settings.message,
            url,
            rules: rules(TABLE)?,
            timeout,
        })
    }

    /// The message as the API wants it; or why it cannot be made.
    fn body(&self, message: &Message) -> Result<String, String> {
        let body = message.body.as_ref().map_or("", |body| body.get());
        let Ok(Value::Object(rest)) = serde_json::from_str(body) else {
            return Err("the body is no JSON object".into());
        };
        if let Some(key) = [RECIPIENT, KEY].into_iter().find(|key| rest.contains_key(*key)) {
            return Err(format!("the body has \"{key}\", which is put into each message by itself"));
        }
        let mut whole = Map::new();
        whole.insert(RECIPIENT.into(), message.target.recipient.as_str().into());
        if self.form == Form::Template {
            whole.insert(KEY.into(), message.key.simple().to_string().into());
        }
        whole.extend(rest);
        // Written anew, not as the template had it: there `<` and `'` are escaped, and the API shows people the `\u003c`.
        Ok(Value::Object(whole).to_string())
    }

    /// One request with one token: what it means, and whether it was the token that was refused.
    fn post(&self, body: &str, token: &Token, span: Span) -> (Outcome, bool) {
        if span.end.left() < self.timeout / 2 {
            // Sent now it might end as unknown for want of time; and its token is there when it is sent next.
            let reason = "not sent: its access token took too long".into();
            return (Outcome::Deferred { reason, after: None, toll: Toll::Nothing }, false);
        }
        let Ok(uri) = format!("{}{}", self.url, token.query).parse() else {
            let reason = "no such request can be made".into();
            return (Outcome::Unavailable { reason }, false);
        };
        let mut answer = match self.client.exchange(post(uri, body), span.bounds(), &token.secrets) {
            Ok(answer) => answer,
            Err(outcome) => return (outcome, false),
        };
        if answer.end != End::Whole {
            // It may break off in the middle of the token, which would not be known by that half.
            answer.body.clear();
        }
        let errcode = errcode(&answer);
        let outcome = match self.rules.judge(&answer, &token.secrets) {
            // Who sends no object is not the API.
            Outcome::Accepted { .. } if errcode.is_none() => {
                Outcome::Unknown { reason: answer.reason(&token.secrets) }
            }
            Outcome::Accepted { .. } => {
                let mut receipt = receipt(&answer);
                receipt.iter_mut().for_each(|receipt| token.secrets.hide(receipt));
                Outcome::Accepted { receipt }
            }
            Outcome::Unavailable { reason } if errcode == Some(DAILY_QUOTA) => Outcome::Unavailable {
                reason: format!("no more messages until the next day in Shanghai, resume it then: {reason}"),
            },
            other => other,
        };
        let refused = errcode.is_some_and(|errcode| TOKEN_REFUSED.contains(&errcode));
        let certain = matches!(outcome, Outcome::Unavailable { .. });
        (outcome, refused && certain)
    }
}

impl Sender for Wechat {
    fn send(&self, message: &Message, until: Moment) -> Outcome {
        let body = match self.body(message) {
            Ok(body) => body,
            Err(reason) => return Outcome::Rejected { reason },
        };
        let span = Span { until, end: Moment::now() + self.timeout };
        let token = match self.tokens.get(&self.client, span, None) {
            Ok(token) => token,
            Err(outcome) => return outcome,
        };
        let (outcome, refused) = self.post(&body, &token, span);
        if !refused {
            return outcome;
        }
        self.tokens.forget(&token);
        let new = match self.tokens.get(&self.client, span, Some(&token)) {
            Ok(new) => new,
            Err(without) => return because(without, &outcome),
        };
        let (outcome, refused) = self.post(&body, &new, span);
        if refused {
            self.tokens.forget(&new);
        }
        outcome
    }

    /// Asks for the access token that there is. One that is asked for so may be asked for often, and ends no other.
    fn probe(&self) -> Result<String, String> {
        let now = Moment::now();
        let span = Span { until: now + self.timeout, end: now + self.timeout };
        self.tokens.get(&self.client, span, None).map_err(Outcome::words)?;
        Ok("the API gives out an access token: appid, secret and this host's address are good".into())
    }
}

/// No token came, and one was asked for because of a refusal: a person wants to know of both.
fn because(mut without: Outcome, refusal: &Outcome) -> Outcome {
    if let (
        Outcome::Unavailable { reason }
        | Outcome::Deferred { reason, toll: Toll::Unreached | Toll::Hold, .. },
        Outcome::Unavailable { reason: refused },
    ) = (&mut without, refusal)
    {
        *reason += &format!("; the one before was refused: {refused}");
    }
    without
}

/// A table of errcodes as rules. An answer without one means the same as 0. Whatever its status: what came to pass is said in the
/// body alone.
fn rules(table: &[(&[i64], Verdict)]) -> Result<Rules> {
    let errcode = Pointer::parse("/errcode").map_err(Error::msg)?;
    let rule = |condition, verdict: &Verdict| Rule {
        statuses: 200..=299,
        conditions: vec![condition],
        verdict: verdict.clone(),
    };
    let mut rules = Vec::new();
    for (errcodes, verdict) in table {
        let among = errcodes.iter().map(|errcode| Value::from(*errcode)).collect();
        rules.push(rule(Condition::Among(errcode.clone(), among), verdict));
        if errcodes.contains(&0) {
            rules.push(rule(Condition::Absent(errcode.clone()), verdict));
        }
    }
    Ok(Rules::new(rules))
}

fn post(uri: Uri, body: &str) -> Request<&str> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    request
}

/// What the API says of a request in its answer: 0 is good, and so is none. `None`: it is no answer of the API.
fn errcode(answer: &Answer) -> Option<i64> {
    match answer.json()?.as_object()?.get("errcode") {
        None => Some(0),
        Some(errcode) => errcode.as_i64(),
    }
}

/// The API's own id of an accepted message.
fn receipt(answer: &Answer) -> Option<String> {
    let body = answer.json()?;
    let id = ["msgid", "msg_id"].iter().find_map(|name| body.get(name));
    match id? {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        _ => None,
    }
}
