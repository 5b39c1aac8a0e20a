//! From the rendered texts of a message to the mail that goes out, head and body. The same message gives the same mail, byte for
//! byte, whatever the server offers, but for its Date: bodies are always such that the oldest server takes them.

use std::collections::BTreeMap;
use std::fmt::Display;

use lettre::Address;
use lettre::message::header::{self, ContentTransferEncoding, ContentType, HeaderName, HeaderValue, Headers};
use lettre::message::{Body, Mailbox, Mailboxes, MultiPart, SinglePart};
use serde::Deserialize;
use uuid::Uuid;

use super::address::{address, mailbox, no_control};
use crate::message::Message;
use crate::sender::Outcome;

/// Before the name of a header among the texts of a message.
pub const HEADER: &str = "header.";

/// A line without its end (RFC 5322 2.1.1). Bodies are encoded in shorter ones.
const LONGEST_LINE: usize = 998;

/// One mail to one recipient.
pub struct Mail {
    pub from: Address,
    pub to: Address,
    /// As it is written after DATA: with dots doubled, up to the final dot.
    pub data: Vec<u8>,
    /// Without the doubled dots.
    pub size: usize,
    /// It has an address whose local part is not ASCII, which only a server with SMTPUTF8 takes.
    pub is_utf8: bool,
}

/// What the channel's templates rendered, by the names of `Settings::texts`.
#[derive(Deserialize)]
struct Texts {
    from: String,
    reply_to: Option<String>,
    subject: String,
    text: Option<String>,
    html: Option<String>,
    list_unsubscribe: Option<String>,
    #[serde(flatten)]
    headers: BTreeMap<String, String>,
}

impl Mail {
    /// `one_click`: a link in List-Unsubscribe takes a POST. The error is what became of the message.
    pub fn new(message: &Message, one_click: bool) -> Result<Self, Outcome> {
        let body = message.body.as_ref().map_or("", |body| body.get());
        let texts: Texts = serde_json::from_str(body).map_err(|error| Outcome::Unavailable {
            reason: format!("the rendered texts are not those of a mail: {error}"),
        })?;
        Self::of(message, texts, one_click).map_err(|reason| Outcome::Rejected { reason })
    }

    fn of(message: &Message, texts: Texts, one_click: bool) -> Result<Self, String> {
        let from = mailbox(&texts.from).map_err(in_the("sender (`from`)"))?;
        let to = address(&message.target.recipient).map_err(in_the("recipient"))?;
        let mut head = Headers::new();
        // lettre's clock is the host's. Nothing is decided by it.
        head.set(header::Date::now());
        head.set(header::From::from(Mailboxes::from(from.clone())));
        head.set(header::To::from(Mailboxes::from(Mailbox::new(None, to.clone()))));
        if let Some(text) = texts.reply_to.filter(|text| !text.is_empty()) {
            let reply_to = mailbox(&text).map_err(in_the("`reply_to`"))?;
            head.set(header::ReplyTo::from(Mailboxes::from(reply_to)));
        }
        head.insert_raw(value("Subject", texts.subject)?);
        let id = format!("<{}@{}>", message.key, from.email.domain());
        head.insert_raw(value("Message-ID", id)?);
        if let Some(links) = texts.list_unsubscribe.filter(|links| !links.is_empty()) {
            if !links.is_ascii() {
                return Err("list_unsubscribe: a link is ASCII, with %XX for everything else".into());
            }
            let takes_a_post = one_click && links.to_ascii_lowercase().contains("<https://");
            head.insert_raw(value("List-Unsubscribe", links)?);
            if takes_a_post {
                head.insert_raw(value("List-Unsubscribe-Post", "List-Unsubscribe=One-Click".into())?);
            }
        }
        for (name, text) in texts.headers {
            let name = name.strip_prefix(HEADER).ok_or_else(|| format!("a mail has no `{name}`"))?;
            if !text.is_empty() {
                head.insert_raw(value(name, text)?);
            }
        }
        head.set(header::MIME_VERSION_1_0);

        let mut mail = head.to_string().into_bytes();
        mail.extend(match (filled(texts.text), filled(texts.html)) {
            (Some(text), None) => part(ContentType::TEXT_PLAIN, text).formatted(),
            (None, Some(html)) => part(ContentType::TEXT_HTML, html).formatted(),
            // The last is the one that is preferred.
            (Some(text), Some(html)) => MultiPart::alternative()
                .boundary(boundary(message))
                .singlepart(part(ContentType::TEXT_PLAIN, text))
                .singlepart(part(ContentType::TEXT_HTML, html))
                .formatted(),
            (None, None) => return Err("`text` and `html` are both empty".into()),
        });
        let (size, is_utf8) = (mail.len(), !mail.is_ascii());
        Ok(Self { from: from.email, to, data: dotted(&mail)?, size, is_utf8 })
    }
}

fn in_the(place: impl Display) -> impl Fn(String) -> String {
    move |why| format!("{place}: {why}")
}

fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.trim().is_empty())
}

/// A header; words that are not ASCII are encoded, long lines folded.
fn value(name: &str, text: String) -> Result<HeaderValue, String> {
    no_control(&text).map_err(in_the(name))?;
    let name = HeaderName::new_from_ascii(name.to_owned()).map_err(|_| format!("`{name}` names no header"))?;
    Ok(HeaderValue::new(name, text))
}

fn part(kind: ContentType, text: String) -> SinglePart {
    // A line break alone is none in a mail, whichever of the two it is.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let strange = text.chars().any(|c| c.is_ascii_control() && !matches!(c, '\n' | '\t'));
    let body = if strange {
        Body::new_with_encoding(text, ContentTransferEncoding::QuotedPrintable)
            .unwrap_or_else(|text| Body::new(text))
    } else {
        Body::new(text)
    };
    SinglePart::builder().content_type(kind).body(body)
}

/// Between the parts. No part can have it in it, as it is made of their hash.
fn boundary(message: &Message) -> String {
    Uuid::from_bytes(message.hash()).simple().to_string()
}

/// A dot at the beginning of a line is doubled: alone it would end the mail, and what follows would be commands.
fn dotted(mail: &[u8]) -> Result<Vec<u8>, String> {
    let mut dotted = Vec::with_capacity(mail.len() + mail.len() / 50 + 2);
    for line in mail.split_inclusive(|byte| *byte == b'\n') {
        let text = line.strip_suffix(b"\r\n").ok_or("the mail has a line without its end")?;
        if text.contains(&b'\r') {
            return Err("the mail has a line break in a line".into());
        }
        if text.len() > LONGEST_LINE {
            return Err(format!("a header is longer than {LONGEST_LINE} bytes and has no space to fold it"));
        }
        if text.starts_with(b".") {
            dotted.push(b'.');
        }
        dotted.extend_from_slice(line);
    }
    Ok(dotted)
}
