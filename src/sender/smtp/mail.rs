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
    let name =
        HeaderName::new_from_ascii(name.to_owned()).map_err(|_| format!("`{name}` names no header"))?;
    Ok(HeaderValue::new(name, text))
}

fn part(kind: ContentType, text: String) -> SinglePart {
    // Half a line break is none in a mail. (lettre completes it, too, in a time that grows with the square of the length.)
    let text = text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n");
    let strange = text.bytes().any(|byte| byte.is_ascii_control() && !matches!(byte, b'\r' | b'\n' | b'\t'));
    let body = if strange {
        Body::new_with_encoding(text, ContentTransferEncoding::QuotedPrintable).unwrap_or_else(Body::new)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{TargetPart, TaskPart};
    use serde_json::value::RawValue;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn message(texts: Value) -> Message {
        let raw = |text: &str| RawValue::from_string(text.into()).unwrap();
        Message {
            key: Uuid::from_u128(7),
            attempt: 1,
            task: Arc::new(TaskPart { id: 1, name: "Spring".into(), payload: raw("{}") }),
            target: TargetPart { id: 2, recipient: "ann@example.com".into(), params: raw("{}") },
            body: Some(raw(&texts.to_string())),
        }
    }

    /// Of a mail with these texts beside the ones that each has: its lines, without the date.
    fn lines(more: Value) -> Vec<String> {
        let mail = mail(more).unwrap_or_else(|outcome| panic!("{outcome:?}"));
        let text = String::from_utf8(mail.data).unwrap();
        assert!(text.ends_with("\r\n") && !text.replace("\r\n", "").contains(['\r', '\n']), "{text:?}");
        text.split("\r\n").filter(|line| !line.starts_with("Date: ")).map(str::to_owned).collect()
    }

    fn mail(more: Value) -> Result<Mail, Outcome> {
        let mut texts = json!({"from": "Shop <news@b\u{fc}cher.example>", "subject": "Hi"});
        texts.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Mail::new(&message(texts), true)
    }

    #[track_caller]
    fn assert_rejected(more: Value, says: &str) {
        match mail(more) {
            Err(Outcome::Rejected { reason }) if reason.contains(says) => {}
            other => panic!("{:?}", other.map(|mail| String::from_utf8(mail.data))),
        }
    }

    #[test]
    fn a_plain_mail() {
        assert_eq!(
            lines(json!({"text": "Dear Ann,\n.\n..hidden\r\nend"})),
            [
                "From: Shop <news@xn--bcher-kva.example>",
                "To: ann@example.com",
                "Subject: Hi",
                "Message-ID: <00000000-0000-0000-0000-000000000007@xn--bcher-kva.example>",
                "MIME-Version: 1.0",
                "Content-Type: text/plain; charset=utf-8",
                "Content-Transfer-Encoding: 7bit",
                "",
                "Dear Ann,",
                "..",
                "...hidden",
                "end",
                "",
            ]
        );
    }

    #[test]
    fn a_mail_in_two_forms_with_everything() {
        let mail = lines(json!({
            "reply_to": "Help, please <help@shop.example>",
            "subject": "Gr\u{fc}\u{df}e \u{1f600}",
            "text": "Gr\u{fc}\u{df}e, and more of what is ASCII",
            "html": "<p>Gr\u{fc}\u{df}e, and more of what is ASCII</p>",
            "list_unsubscribe": "<https://x.example/u?k=1>, <mailto:u@shop.example>",
            "header.X-Campaign": "Spring",
            "header.X-Empty": "",
        }));
        let boundary = mail.iter().find_map(|line| line.strip_prefix("--")).unwrap().to_owned();
        assert_eq!(
            mail,
            [
                "From: Shop <news@xn--bcher-kva.example>",
                "To: ann@example.com",
                "Reply-To: =?utf-8?b?SGVscCwgcGxlYXNl?= <help@shop.example>",
                "Subject: =?utf-8?b?R3LDvMOfZSDwn5iA?=",
                "Message-ID: <00000000-0000-0000-0000-000000000007@xn--bcher-kva.example>",
                "List-Unsubscribe: <https://x.example/u?k=1>, <mailto:u@shop.example>",
                "List-Unsubscribe-Post: List-Unsubscribe=One-Click",
                "X-Campaign: Spring",
                "MIME-Version: 1.0",
                "Content-Type: multipart/alternative;",
                &format!(" boundary=\"{boundary}\""),
                "",
                &format!("--{boundary}"),
                "Content-Type: text/plain; charset=utf-8",
                "Content-Transfer-Encoding: quoted-printable",
                "",
                "Gr=C3=BC=C3=9Fe, and more of what is ASCII",
                &format!("--{boundary}"),
                "Content-Type: text/html; charset=utf-8",
                "Content-Transfer-Encoding: quoted-printable",
                "",
                "<p>Gr=C3=BC=C3=9Fe, and more of what is ASCII</p>",
                &format!("--{boundary}--"),
                "",
            ]
        );
    }

    #[test]
    fn each_attempt_has_the_same_bytes_but_for_its_date() {
        let texts = json!({"text": "Gr\u{fc}\u{df}e", "html": "<p>Gr\u{fc}\u{df}e</p>"});
        assert_eq!(lines(texts.clone()), lines(texts));
    }

    #[test]
    fn an_empty_text_leaves_out_what_it_is_for() {
        let mail = lines(json!({"text": "x", "html": " ", "reply_to": "", "list_unsubscribe": ""}));
        assert_eq!(mail[5], "Content-Type: text/plain; charset=utf-8");
        assert!(
            !mail.iter().any(|line| line.starts_with("Reply-To") || line.starts_with("List-")),
            "{mail:?}"
        );
        assert_rejected(json!({"text": "", "html": "\n"}), "both empty");
    }

    #[test]
    fn one_click_is_promised_only_for_a_link_that_takes_it() {
        let has = |links: &str, one_click: bool| {
            let texts = json!({"from": "a@b.example", "subject": "", "text": "x", "list_unsubscribe": links});
            let mail = Mail::new(&message(texts), one_click).unwrap_or_else(|outcome| panic!("{outcome:?}"));
            String::from_utf8(mail.data).unwrap().contains("List-Unsubscribe-Post: ")
        };
        assert!(has("<HTTPS://x.example>", true));
        assert!(!has("<https://x.example>", false));
        assert!(!has("<mailto:u@b.example>, <http://x.example>", true));
    }

    #[test]
    fn no_text_can_begin_a_line_of_the_head() {
        for breaks in ["\r\nBcc: eve@x.example", "\nx", "\rx", "\0", "\u{1b}[31m"] {
            for (name, before) in [
                ("from", "ann@example.com"),
                ("reply_to", "ann@example.com"),
                ("subject", "Hi"),
                ("list_unsubscribe", "<https://x.example>"),
                ("header.X-Campaign", "Spring"),
            ] {
                let text = format!("{before}{breaks}");
                assert_rejected(json!({"text": "x", name: text}), "control character");
            }
        }
    }

    #[test]
    fn what_no_head_can_carry_is_rejected() {
        assert_rejected(json!({"text": "x", "from": "Shop"}), "sender (`from`): `Shop` is no address");
        assert_rejected(json!({"text": "x", "list_unsubscribe": "<https://x.example/\u{fc}>"}), "%XX");
        assert_rejected(json!({"text": "x", "header.X-A": "x".repeat(999)}), "longer than 998 bytes");
        assert_rejected(json!({"text": "x", "unheard": "of"}), "a mail has no `unheard`");
    }

    #[test]
    fn long_heads_are_folded_and_links_stay_whole() {
        let link = format!("<https://x.example/{}>", "u".repeat(300));
        let mail = lines(json!({
            "text": "x",
            "subject": "many words ".repeat(60),
            "list_unsubscribe": format!("{link}, <mailto:u@x.example>"),
        }));
        assert!(mail.iter().all(|line| line.len() <= 78 || line.contains(&link)), "{mail:?}");
    }

    #[test]
    fn a_body_of_whatever_text_is_ascii_in_short_lines() {
        for text in
            ["a\0b\u{1b}c\u{b}", &"x".repeat(10_000), &"\u{fc}".repeat(1000), &".".repeat(2000), "a\rb\n\rc"]
        {
            let mail = lines(json!({"text": text, "html": text}));
            assert!(mail.iter().all(|line| line.is_ascii() && line.len() <= 78), "{text:?}: {mail:?}");
            assert!(!mail.iter().any(|line| line.contains('\0')), "{text:?}");
        }
    }

    #[test]
    fn a_body_that_is_none_of_a_mail_is_the_channels_fault() {
        let mut none = message(json!({}));
        assert!(matches!(Mail::new(&none, true), Err(Outcome::Unavailable { .. })));
        none.body = None;
        assert!(matches!(Mail::new(&none, true), Err(Outcome::Unavailable { .. })));
    }
}
