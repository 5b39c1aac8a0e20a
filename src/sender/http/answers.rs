//! What an answer means: a channel's own rules, and behind them the built-in table of statuses. What an outcome leads to is not here:
//! that is settlement.rs. How rules are written is answers/read.rs.
//!
//! The first rule that fits decides. Where none fits, the table does, unless a rule for that status asks for the body: then the
//! status alone says nothing, and the answer is Unknown. A body that cannot be read is what every rule that asks for it may have
//! been about: a later rule decides only if all of these, and that rule, mean that the message was not accepted.

mod read;

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Number, Value};

use self::Verdict::{Accepted, Deferred, Rejected, Unavailable, Unknown};
pub use self::read::read;
use super::exchange::{Answer, End, LONGEST_WAIT, SHORTEST_WAIT};
use super::pointer::Pointer;
use crate::sender::{Outcome, Secrets, Toll};

/// In the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub struct Rules(Vec<Rule>);

#[derive(Clone, Debug)]
pub struct Rule {
    pub statuses: RangeInclusive<u16>,
    /// Of the body; all of them must hold.
    pub conditions: Vec<Condition>,
    pub verdict: Verdict,
}

#[derive(Clone, Debug)]
pub enum Condition {
    /// The pointer finds one of these texts, numbers or truth values. Numbers are the same as numbers: 0 is 0.0, and is not "0".
    Among(Pointer, Vec<Value>),
    /// The pointer finds nothing, or null.
    Absent(Pointer),
}

/// What a rule says of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    Deferred { after: After, toll: Toll },
    Rejected,
    Unknown,
    Unavailable,
}

/// How long a deferred message waits at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum After {
    /// As the answer's Retry-After says, if it has one.
    Unsaid,
    Fixed(Duration),
    /// As many seconds as the pointer finds; if that cannot be used, as if unsaid.
    At(Pointer),
}

impl Rules {
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    /// Whether any of them looks into a body.
    pub fn ask_for_the_body(&self) -> bool {
        let seconds = |verdict: &Verdict| matches!(verdict, Deferred { after: After::At(_), .. });
        self.0.iter().any(|rule| !rule.conditions.is_empty() || seconds(&rule.verdict))
    }

    /// An acceptance is without its receipt.
    pub fn judge(&self, answer: &Answer, secrets: &Secrets) -> Outcome {
        // Of the rules that ask for the body: whether there are any, and whether one that could not be asked might have meant
        // that the message was accepted.
        let (mut asked, mut perhaps) = (false, false);
        for rule in self.0.iter().filter(|rule| rule.statuses.contains(&answer.status)) {
            if rule.conditions.is_empty() {
                let unread = asked && answer.json().is_none();
                if unread && (perhaps || rule.verdict == Accepted) {
                    break;
                }
                return rule.verdict.outcome(answer, secrets);
            }
            asked = true;
            match answer.json() {
                Some(body) if rule.conditions.iter().all(|condition| condition.holds(body)) => {
                    return rule.verdict.outcome(answer, secrets);
                }
                Some(_) => {}
                None => perhaps |= matches!(rule.verdict, Accepted | Unknown),
            }
        }
        if !asked {
            return table(answer).outcome(answer, secrets);
        }
        let reason = answer.reason(secrets);
        let reason = match answer.json() {
            Some(_) => format!("an answer that no rule knows: {reason}"),
            None if answer.end == End::Whole => format!("an answer that is no JSON: {reason}"),
            None => reason,
        };
        Outcome::Unknown { reason }
    }
}

/// What the status alone means. One that is not listed may mean anything.
fn table(answer: &Answer) -> Verdict {
    let deferred = |toll| Deferred { after: After::Unsaid, toll };
    match answer.status {
        200..=299 => Accepted,
        400 | 404 | 410 | 413 | 414 | 415 | 422 | 451 => Rejected,
        401 | 402 | 403 | 407 | 501 | 505 => Unavailable,
        421 | 425 => deferred(Toll::Attempt),
        429 => deferred(Toll::Hold),
        503 if answer.asks_to_wait => deferred(Toll::Hold),
        _ => Unknown,
    }
}

impl Verdict {
    /// An acceptance counts only if the whole answer came.
    fn outcome(&self, answer: &Answer, secrets: &Secrets) -> Outcome {
        if *self == Accepted && answer.end == End::Whole {
            return Outcome::Accepted { receipt: None };
        }
        let reason = answer.reason(secrets);
        match self {
            Deferred { after, toll } => Outcome::Deferred { reason, after: after.of(answer), toll: *toll },
            Rejected => Outcome::Rejected { reason },
            Unavailable => Outcome::Unavailable { reason },
            Accepted | Unknown => Outcome::Unknown { reason },
        }
    }
}

impl After {
    fn of(&self, answer: &Answer) -> Option<Duration> {
        match self {
            Self::Unsaid => answer.retry_after,
            Self::Fixed(wait) => Some(*wait),
            Self::At(pointer) => {
                let found = answer.json().and_then(|body| pointer.find(body));
                found.and_then(seconds).or(answer.retry_after)
            }
        }
    }
}

/// A number of seconds, or its text.
fn seconds(value: &Value) -> Option<Duration> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => {
            let text = text.trim();
            let decimal = |c: char| c.is_ascii_digit() || c == '.';
            text.parse::<f64>().ok().filter(|_| text.chars().all(decimal))?
        }
        _ => return None,
    };
    if number < 0.0 {
        return None;
    }
    let wait = Duration::try_from_secs_f64(number).unwrap_or(LONGEST_WAIT);
    Some(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT))
}

impl Condition {
    fn holds(&self, body: &Value) -> bool {
        match self {
            Self::Among(pointer, values) => {
                pointer.find(body).is_some_and(|found| values.iter().any(|value| same(found, value)))
            }
            Self::Absent(pointer) => pointer.find(body).is_none_or(Value::is_null),
        }
    }
}

fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (whole(one), whole(other)) {
            (Some(one), Some(other)) => one == other,
            (None, None) => one.as_f64() == other.as_f64(),
            _ => false,
        },
        _ => one == other,
    }
}

/// The integer that a number is, however it is written.
fn whole(number: &Number) -> Option<i128> {
    let written = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    let exact = |float: f64| (float.fract() == 0.0 && float.abs() < 1e30).then_some(float as i128);
    written.or_else(|| number.as_f64().and_then(exact))
}

#[cfg(test)]
mod tests;
