//! The steps of a transaction, and what a reply or its absence means at each: the table, in two pure functions. Who walks
//! the steps is smtp.rs and connection.rs.

use std::fmt;
use std::time::Duration;

use super::reply::Reply;
use crate::sender::{Outcome, Toll};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Greeting,
    Hello,
    StartTls,
    /// A line of AUTH that is not its last.
    Challenge,
    Auth,
    Reset,
    Mail,
    Rcpt,
    Data,
    /// The message is being written; the final dot has not begun. A server must not deliver what no dot has ended.
    Body,
    /// The final dot has begun: from here on the message may have been accepted.
    Dot,
}

/// Servers that put unknown senders off mean some minutes.
const GREYLISTED: Duration = Duration::from_secs(5 * 60);

impl Step {
    /// How long a reply is waited for at most (RFC 5321 4.5.3.2), however much is left of `timeout`.
    pub fn longest(self) -> Duration {
        match self {
            Self::Data => Duration::from_secs(2 * 60),
            _ => Duration::from_secs(5 * 60),
        }
    }

    /// What it means that no complete reply came.
    pub fn broken(self, why: &str) -> Outcome {
        match self {
            Self::Dot => Outcome::Unknown { reason: format!("no complete answer to the message: {why}") },
            // The server is there. If it is the message that breaks it, attempts must come to an end.
            Self::Rcpt | Self::Data | Self::Body => {
                Outcome::Deferred { reason: format!("{self}: {why}"), after: None, toll: Toll::Attempt }
            }
            _ => Outcome::unreached(format!("{self}: {why}")),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greeting => "greeting",
            Self::Hello => "EHLO",
            Self::StartTls => "STARTTLS",
            Self::Challenge | Self::Auth => "AUTH",
            Self::Reset => "RSET",
            Self::Mail => "MAIL FROM",
            Self::Rcpt => "RCPT TO",
            Self::Data => "DATA",
            Self::Body => "the message",
            Self::Dot => "end of the message",
        })
    }
}

/// What a complete reply means; `None`: go on. A code that the table does not list is Unknown once the dot has begun, and
/// before it proof that nothing was accepted.
pub fn outcome(step: Step, reply: &Reply) -> Option<Outcome> {
    let reason = || format!("{step}: {}", reply.text());
    let deferred = |after| Outcome::Deferred { reason: reason(), after, toll: Toll::Attempt };
    let rejected = || Outcome::Rejected { reason: reason() };
    // Every message would meet the same.
    let unavailable = || Outcome::Unavailable { reason: reason() };
    Some(match (step, reply.code) {
        (Step::Greeting | Step::StartTls, 220)
        | (Step::Hello | Step::Reset | Step::Mail, 250)
        | (Step::Challenge, 334)
        | (Step::Auth, 235)
        | (Step::Rcpt, 250..=252)
        | (Step::Data, 354) => return None,

        (Step::Dot, 250) => Outcome::Accepted { receipt: reply.receipt() },
        (Step::Dot, 400..=499) => deferred(None),
        (Step::Dot, 500..=599) => rejected(),
        (Step::Dot, _) => Outcome::Unknown { reason: reason() },

        (Step::Greeting | Step::Hello | Step::StartTls | Step::Reset, _)
        | (Step::Challenge | Step::Auth | Step::Mail, 421) => Outcome::unreached(reason()),

        (Step::Challenge | Step::Auth, 400..=499) => {
            Outcome::Deferred { reason: reason(), after: None, toll: Toll::Hold }
        }
        (Step::Challenge | Step::Auth, 500..=599) | (_, 530 | 534 | 535 | 538) => unavailable(),

        // Too long is this message; over quota is the sender.
        (Step::Mail, 500..=599) if matches!(reply.enhanced(), Some("5.2.3" | "5.3.4")) => rejected(),
        (Step::Mail, 452 | 500..=599) => unavailable(),
        (Step::Rcpt, 450 | 451) => deferred(Some(GREYLISTED)),
        (Step::Rcpt | Step::Data | Step::Body, 500..=599) => rejected(),
        (Step::Mail | Step::Rcpt | Step::Data | Step::Body, 400..=499) => deferred(None),

        _ => step.broken(&format!("not expected: {}", reply.text())),
    })
}
