//! The seam to the channels: one trait, one message in, one outcome out. What an outcome leads to is decided in
//! settlement.rs; that a target may be sent at all is the store's word. A sender knows neither.

pub mod certificates;
pub mod exec;
pub mod file;
pub mod http;
pub mod smtp;
#[cfg(test)]
mod testing;
pub mod wechat;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use anyhow::Result;

use crate::message::Message;
use crate::moment::Moment;

/// The code behind a kind of channel. Called from many threads at once, one message each.
pub trait Sender: Send + Sync {
    /// Sends one message and says what the channel said. Never an error: what is not known is
    /// [`Outcome::Unknown`]. It looks at `until` once more right before the first byte leaves, and past it
    /// sends nothing ([`Outcome::too_late`]): the run may have been stopped since the target was begun.
    fn send(&self, message: &Message, until: Moment) -> Outcome;

    /// Looks whether it could send, and sends nothing: as far along the way of a message as that goes. In words for people, what was
    /// seen, or what is wrong. Takes no longer than `timeout`.
    fn probe(&self) -> Result<String, String>;
}

/// [`Sender::send`] by a sender that may panic: what became of the message then is not known.
pub fn send(sender: &dyn Sender, message: &Message, until: Moment) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| sender.send(message, until)))
        .unwrap_or_else(|_| Outcome::Unknown { reason: "the sender panicked".into() })
}

/// A kind of channel and its own settings.
pub enum Kind {
    Http(http::Settings),
    Exec(exec::Settings),
    File(file::Settings),
    Smtp(smtp::Settings),
    Wechat(wechat::Settings),
}

impl Kind {
    /// The sender: ready, nothing sent, connected to nothing. Errors are about the settings.
    pub fn open(&self, exchange: &Exchange) -> Result<Box<dyn Sender>> {
        let Exchange { timeout, concurrency, .. } = *exchange;
        Ok(match self {
            Self::Http(settings) => Box::new(http::Http::open(settings, exchange)?),
            Self::Exec(settings) => Box::new(exec::Exec::open(settings, timeout)?),
            Self::File(settings) => Box::new(file::File::open(settings, timeout)?),
            Self::Smtp(settings) => Box::new(smtp::Smtp::open(settings, timeout, concurrency)?),
            Self::Wechat(settings) => Box::new(wechat::Wechat::open(settings, exchange)?),
        })
    }

    /// As in the configuration.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Exec(_) => "exec",
            Self::File(_) => "file",
            Self::Smtp(_) => "smtp",
            Self::Wechat(_) => "wechat",
        }
    }

    /// How long one send may take in all, of a channel with this `timeout`.
    pub fn longest(&self, timeout: Duration) -> Duration {
        match self {
            Self::Http(_) | Self::Exec(_) | Self::File(_) | Self::Wechat(_) => timeout,
            Self::Smtp(settings) => settings.longest(timeout),
        }
    }

    pub fn memory(&self) -> Memory {
        match self {
            Self::Http(_) | Self::Exec(_) => Memory::Said,
            Self::File(_) | Self::Smtp(_) => Memory::None,
            Self::Wechat(settings) => settings.memory(),
        }
    }
}

/// What every sender is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Of one exchange.
    pub timeout: Duration,
    /// How many of them are in flight at once, of all lanes.
    pub concurrency: usize,
    /// The provider drops a message whose key it has seen: each must carry its key.
    pub keyed: bool,
}

/// Whether what is behind a kind of channel drops a message whose key it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Never: an Unknown stays unknown.
    None,
    /// The operator says, with `idempotent_for`.
    Said,
    /// For so long; `idempotent_for` can only shorten it.
    Known(Duration),
}

/// Words that must not show, though a server or a program may repeat them in its answer.
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Words of less than four characters are no secrets, and would be found everywhere.
    pub fn new<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let mut secrets: Vec<String> = words.filter(|word| word.len() > 3).flat_map(forms).collect();
        // The whole before its parts.
        secrets.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        secrets.dedup();
        Self(secrets)
    }

    pub fn hide(&self, text: &mut String) {
        for secret in &self.0 {
            if text.contains(secret) {
                *text = text.replace(secret, "[hidden]");
            }
        }
    }
}

/// A word as it may come back: as it is, as a part of a URL, in a string of JSON.
fn forms(word: &str) -> [String; 5] {
    let json = serde_json::Value::from(word).to_string();
    let json = &json[1..json.len() - 1];
    let small = encoded(word, |byte| format!("%{byte:02x}"));
    [word.to_owned(), percent_encoded(word), small, json.to_owned(), json.replace('/', "\\/")]
}

/// All but RFC 3986's unreserved characters, so that a value cannot end the part of a URL that it stands in.
pub fn percent_encoded(value: &str) -> String {
    encoded(value, |byte| format!("%{byte:02X}"))
}

fn encoded(value: &str, encode: fn(u8) -> String) -> String {
    value.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&encode(byte));
        }
        encoded
    })
}

/// A sender whose answers are fit to be shown: short, and without certain words, which came from the environment into its settings
/// and may come back in the answer of a server or of a program.
pub struct Discreet {
    sender: Box<dyn Sender>,
    secrets: Secrets,
}

/// Characters of a reason.
const SHOWN: usize = 300;

impl Discreet {
    pub fn new(sender: Box<dyn Sender>, secrets: &[String]) -> Self {
        Self { sender, secrets: Secrets::new(secrets.iter().map(String::as_str)) }
    }
}

impl Sender for Discreet {
    fn send(&self, message: &Message, until: Moment) -> Outcome {
        let mut outcome = self.sender.send(message, until);
        match &mut outcome {
            Outcome::Accepted { receipt } => {
                receipt.iter_mut().for_each(|receipt| self.secrets.hide(receipt))
            }
            Outcome::Deferred { reason, .. }
            | Outcome::Rejected { reason }
            | Outcome::Unknown { reason }
            | Outcome::Unavailable { reason } => {
                // Before the cut: one that lies across it would show its beginning.
                self.secrets.hide(reason);
                if let Some((cut, _)) = reason.char_indices().nth(SHOWN) {
                    reason.truncate(cut);
                }
            }
        }
        outcome
    }

    fn probe(&self) -> Result<String, String> {
        let fit = |mut words: String| {
            self.secrets.hide(&mut words);
            if let Some((cut, _)) = words.char_indices().nth(SHOWN) {
                words.truncate(cut);
            }
            words
        };
        self.sender.probe().map(fit).map_err(fit)
    }
}

/// What a channel said of one message. Reasons are for people: short, without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took the message, and the answer was complete. The receipt is the provider's own id of it.
    Accepted { receipt: Option<String> },
    /// Certainly not accepted; later it may be. `after`: not sooner than this, when the channel said so.
    Deferred { reason: String, after: Option<Duration>, toll: Toll },
    /// Certainly not accepted, and this message never will be.
    Rejected { reason: String },
    /// It may have been accepted.
    Unknown { reason: String },
    /// Certainly not accepted; the channel, not the target, is at fault, and needs a person.
    Unavailable { reason: String },
}

/// What a deferral costs, and whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toll {
    /// The target: one of its attempts is used up.
    Attempt,
    /// The channel could not be reached. No attempt is used up; five in a row hold the channel.
    Unreached,
    /// The channel asked to be left alone. No attempt is used up, and the channel is held at once.
    Hold,
    /// Nobody: it was this run that came too late.
    Nothing,
}

impl Outcome {
    /// The sender woke up past its deadline and let nothing leave.
    pub fn too_late() -> Self {
        Self::Deferred {
            reason: "not sent: the time allowed for it had passed".into(),
            after: None,
            toll: Toll::Nothing,
        }
    }

    /// What was said, for people. Of an acceptance: its receipt.
    pub fn words(self) -> String {
        match self {
            Self::Accepted { receipt } => receipt.unwrap_or_default(),
            Self::Deferred { reason, .. }
            | Self::Rejected { reason }
            | Self::Unknown { reason }
            | Self::Unavailable { reason } => reason,
        }
    }

    /// Nothing left: the channel could not be reached.
    pub fn unreached(reason: impl Into<String>) -> Self {
        Self::Deferred { reason: reason.into(), after: None, toll: Toll::Unreached }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{TargetPart, TaskPart};
    use serde_json::value::RawValue;
    use std::sync::Arc;
    use uuid::Uuid;

    /// Says what it was given to say.
    struct Parrot(Outcome);

    impl Sender for Parrot {
        fn send(&self, _: &Message, _: Moment) -> Outcome {
            self.0.clone()
        }

        fn probe(&self) -> Result<String, String> {
            match self.0.clone() {
                seen @ Outcome::Accepted { .. } => Ok(seen.words()),
                wrong => Err(wrong.words()),
            }
        }
    }

    #[test]
    fn what_the_environment_gave_is_hidden_wherever_an_answer_repeats_it() {
        let json = || RawValue::from_string("{}".into()).unwrap();
        let message = Message {
            key: Uuid::nil(),
            attempt: 1,
            task: Arc::new(TaskPart { id: 1, name: "t".into(), payload: json() }),
            target: TargetPart { id: 1, recipient: "r".into(), params: json() },
            body: None,
        };
        let secrets = ["s3cret", "s3cret-and-more", "abc", "", "p/w \"é\""].map(str::to_owned);
        let said = |text: &str| {
            let reason = || text.to_owned();
            [
                Outcome::Accepted { receipt: Some(reason()) },
                Outcome::Deferred { reason: reason(), after: None, toll: Toll::Attempt },
                Outcome::Rejected { reason: reason() },
                Outcome::Unknown { reason: reason() },
                Outcome::Unavailable { reason: reason() },
            ]
        };
        let shown = said("bad key [hidden] in /v1/[hidden]?abc [hidden] [hidden] [hidden] [hidden] [hidden]");
        let forms = r#"p/w "é" p%2Fw%20%22%C3%A9%22 p%2fw%20%22%c3%a9%22 p/w \"é\" p\/w \"é\""#;
        let answer = format!("bad key s3cret in /v1/s3cret-and-more?abc {forms}");
        for (outcome, shown) in said(&answer).into_iter().zip(shown) {
            let discreet = Discreet::new(Box::new(Parrot(outcome)), &secrets);
            let (Ok(probed) | Err(probed)) = discreet.probe();
            assert_eq!(discreet.send(&message, Moment::now()), shown);
            assert_eq!(probed, shown.words());
        }
        let long = format!("{}s3cret", "ü".repeat(SHOWN - 2));
        let cut = format!("{}[h", "ü".repeat(SHOWN - 2));
        for (outcome, shown) in said(&long).into_iter().zip(said(&cut)).skip(1) {
            assert_eq!(
                Discreet::new(Box::new(Parrot(outcome)), &secrets).send(&message, Moment::now()),
                shown
            );
        }
    }
}
