//! The proof that a report's numbers agree with each other, and with what was counted or written down elsewhere.

use super::figures::Figures;
use crate::store::{Frozen, Snapshot};

/// Two numbers that must be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    pub what: &'static str,
    /// What the parts come to.
    pub found: u64,
    pub expected: u64,
}

impl Sum {
    pub fn holds(&self) -> bool {
        self.found == self.expected
    }
}

pub fn of(snapshot: &Snapshot, figures: &Figures) -> Vec<Sum> {
    let counts = &figures.counts;
    let settled = counts.sent + counts.failed + counts.unknown;
    let sum = |what, found, expected| Sum { what, found, expected };
    let mut sums = vec![
        sum("all statuses = rows of the task, counted by the database", counts.total(), snapshot.targets),
        sum("all attempts = all statuses", figures.attempts.values().sum(), counts.total()),
        sum(
            "progress over time, and what has no time = sent + failed + unknown",
            figures.timeline.dated() + figures.timeline.undated,
            settled,
        ),
        sum(
            "latencies, and what has none = sent + failed",
            figures.latency.number() + figures.untimed + figures.unattempted,
            counts.sent + counts.failed,
        ),
        sum(
            "reasons = failed + unknown + retry",
            figures.reasons.number(),
            counts.failed + counts.unknown + counts.retry,
        ),
    ];
    if let Some(Frozen { sent, failed, unknown }) = snapshot.frozen {
        sums.push(sum("sent = sent when the task was finished", counts.sent, sent));
        sums.push(sum("failed = failed when the task was finished", counts.failed, failed));
        sums.push(sum("unknown = unknown when the task was finished", counts.unknown, unknown));
    }
    sums
}
