//! The numbers of a report: one pass over the targets of a task, in an order of any kind and in bounded memory. It counts, and
//! judges nothing: whether the numbers agree is in sums.rs.

use std::collections::BTreeMap;

use super::latency::Latency;
use super::reasons::{REASONED, Reasons};
use super::timeline::{SETTLED, Timeline};
use crate::suppression::SUPPRESSED;
use crate::target::{TargetFacts, TargetStatus};
use crate::task::Counts;

/// Unknown targets that are named.
pub const NAMED: usize = 100;

#[derive(Default)]
pub struct Figures {
    pub counts: Counts,
    pub timeline: Timeline,
    /// Of answers: of what was sent, or failed after an attempt.
    pub latency: Latency,
    /// Sent, or failed after an attempt, and from when to when is not known.
    pub untimed: u64,
    /// Failed, and no attempt was behind it: suppressed, or no message could be made.
    pub unattempted: u64,
    /// How many targets were attempted so often.
    pub attempts: BTreeMap<u16, u64>,
    pub reasons: Reasons,
    /// The first of the unknown targets.
    pub unknown: Vec<TargetFacts>,
}

impl Figures {
    pub fn take(&mut self, target: TargetFacts) {
        let word = target.status.map_or("", TargetStatus::word);
        self.counts.add(word, 1);
        self.counts.overdue += u64::from(target.overdue);
        *self.attempts.entry(target.attempts).or_default() += 1;
        if let Some(as_what) = SETTLED.iter().position(|settled| *settled == word) {
            match target.settled_at {
                Some(at) => self.timeline.add(at.timestamp_millis(), as_what),
                None => self.timeline.undated += 1,
            }
        }
        let reason = target.last_error.as_deref().unwrap_or_default();
        if let Some(of) = REASONED.iter().position(|reasoned| *reasoned == word) {
            self.reasons.add(of, reason);
        }
        match target.status {
            Some(TargetStatus::Failed) if target.attempts == 0 || reason == SUPPRESSED => {
                self.unattempted += 1
            }
            Some(TargetStatus::Sent | TargetStatus::Failed) => match took(&target) {
                Some(ms) => self.latency.add(ms),
                None => self.untimed += 1,
            },
            Some(TargetStatus::Unknown) if self.unknown.len() < NAMED => self.unknown.push(target),
            _ => {}
        }
    }
}

/// From the begin of the latest attempt to its settlement, in milliseconds.
fn took(target: &TargetFacts) -> Option<u64> {
    let ms = (target.settled_at? - target.send_at?).num_milliseconds();
    u64::try_from(ms).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;

    fn target(
        status: TargetStatus,
        attempts: u16,
        send_at: i64,
        settled_at: i64,
        error: &str,
    ) -> TargetFacts {
        let at = |ms: i64| DateTime::from_timestamp_millis(ms).filter(|_| ms != 0);
        TargetFacts {
            id: 1,
            status: Some(status),
            recipient: None,
            attempts,
            send_at: at(send_at),
            settled_at: at(settled_at),
            last_error: Some(error.to_owned()).filter(|error| !error.is_empty()),
            overdue: false,
        }
    }

    #[test]
    fn only_answers_have_a_latency() {
        use TargetStatus::*;
        let mut figures = Figures::default();
        for target in [
            target(Sent, 1, 1_000, 1_040, ""),
            target(Failed, 2, 1_000, 1_050, "HTTP 422"),
            // Settled before it began: somebody wrote into the rows.
            target(Sent, 1, 1_000, 900, ""),
            target(Sent, 1, 0, 1_000, ""),
            target(Failed, 0, 0, 1_000, "no such template"),
            target(Failed, 1, 1_000, 9_000, SUPPRESSED),
            target(Unknown, 1, 1_000, 31_000, "timeout"),
            target(Retry, 1, 1_000, 0, "HTTP 421"),
            target(Sent, 0, 0, 0, ""),
        ] {
            figures.take(target);
        }
        assert_eq!((figures.latency.number(), figures.latency.longest()), (2, Some(50)));
        assert_eq!((figures.untimed, figures.unattempted), (3, 2));
        assert_eq!((figures.timeline.dated(), figures.timeline.undated), (7, 1));
        assert_eq!(figures.reasons.number(), 5);
        assert_eq!(figures.attempts, BTreeMap::from([(0, 2), (1, 6), (2, 1)]));
        assert_eq!(figures.unknown.len(), 1);
    }

    #[test]
    fn the_first_unknown_are_named_and_all_are_counted() {
        let mut figures = Figures::default();
        for _ in 0..NAMED + 7 {
            figures.take(target(TargetStatus::Unknown, 1, 1, 2, "x"));
        }
        assert_eq!((figures.unknown.len(), figures.counts.unknown), (NAMED, NAMED as u64 + 7));
    }
}
