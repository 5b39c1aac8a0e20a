//! How a task moves, beside what its row and its counts say: since when something of it is due, who served it last, what its
//! channel lets through, how fast it is sent. The noun, and what is computed of it alone; what it means is for `status` to say.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::task::TaskId;

/// Courses of tasks, read at one time of the database's clock.
#[derive(Clone, Debug)]
pub struct Courses {
    pub now: DateTime<Utc>,
    /// The highest priority of the tasks that a run holds now: others of them may have to wait for their turn.
    pub at_work: Option<i16>,
    /// By the task's id.
    pub of: HashMap<TaskId, Course>,
}

/// How one task moves. Only of tasks that are pending, or whose lease was never given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    /// Since when its pending targets may be sent, as far as its row shows: it was made, scheduled, paused, or started or resumed
    /// by a person, whichever came last.
    pub ready_since: DateTime<Utc>,
    /// It has a pending target.
    pub pending: bool,
    /// When the first of its retries comes, or came.
    pub retry_at: Option<DateTime<Utc>>,
    /// When a run gave it back.
    pub served_at: Option<DateTime<Utc>>,
    /// A lease that ended and was not given back: the run that had it died, or is stopped.
    pub lost: Option<Lost>,
    /// What its channel lets through.
    pub gate: Gate,
    /// While a run holds it.
    pub recent: Option<Recent>,
}

/// What a channel lets through, over all hosts: a row of `batch_pace`. Times may have passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// When the next slot of its rate begins.
    pub next_slot: Option<DateTime<Utc>>,
    pub held_until: Option<DateTime<Utc>>,
    /// Holds in a row.
    pub holds: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Host and pid, for people.
    pub owner: String,
    /// When the lease ended.
    pub at: DateTime<Utc>,
}

/// How many targets were sent of late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recent {
    pub sent: u64,
    /// In so much time.
    pub within: Duration,
}

/// As far back as a rate looks, and at most so many targets: they are sent about in the order of id, and there is no index by time.
pub const RECENT: Duration = Duration::from_secs(60);
pub const RECENT_MOST: u64 = 1_000;

impl Course {
    /// Since when the oldest target that is due is so, whatever the channel says to it.
    pub fn due_since(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if self.pending {
            return Some(self.ready_since);
        }
        self.retry_at.filter(|at| *at <= now).map(|at| at.max(self.ready_since))
    }
}

impl Recent {
    /// `sent` were found, the oldest of them settled so long ago. Fewer than were looked for: all of them since `began`, or of the
    /// last minute.
    pub fn new(sent: u64, oldest: Duration, began: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        let whole = (now - began).max(TimeDelta::zero()).to_std().unwrap_or_default();
        // Of less time than that nothing can be told.
        let within = if sent >= RECENT_MOST {
            oldest.max(Duration::from_millis(50))
        } else {
            RECENT.min(whole).max(Duration::from_secs(1))
        };
        Self { sent, within }
    }

    /// In a second.
    pub fn rate(&self) -> f64 {
        self.sent as f64 / self.within.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn a_rate_is_of_the_time_in_which_it_was_seen() {
        let rate = |sent, oldest, began: i64| {
            Recent::new(sent, Duration::from_millis(oldest), at(-began), at(0)).rate()
        };
        assert_eq!(rate(1_000, 2_000, 3_600), 500.0, "as many as were looked for: since the oldest of them");
        assert_eq!(rate(30, 20_000, 3_600), 0.5, "of the last minute");
        assert_eq!(rate(30, 9_000, 10), 3.0, "it began ten seconds ago");
        assert_eq!(rate(0, 0, 0), 0.0);
        assert_eq!(rate(1_000, 500, 3_600), 2_000.0);
        assert_eq!(rate(1_000, 0, 0), 20_000.0, "all at once: nothing faster can be told");
        assert_eq!(rate(30, 9_000, -5), 30.0, "a clock that was put back");
    }

    #[test]
    fn the_oldest_that_is_due_is_due_since_it_could_be_sent() {
        let course = |pending, retry_at: Option<i64>| Course {
            ready_since: at(-600),
            pending,
            retry_at: retry_at.map(at),
            served_at: None,
            lost: None,
            gate: Gate::default(),
            recent: None,
        };
        assert_eq!(course(true, Some(-5)).due_since(at(0)), Some(at(-600)));
        assert_eq!(course(false, Some(-5)).due_since(at(0)), Some(at(-5)));
        assert_eq!(course(false, Some(-900)).due_since(at(0)), Some(at(-600)), "paused meanwhile");
        assert_eq!(course(false, Some(5)).due_since(at(0)), None);
        assert_eq!(course(false, None).due_since(at(0)), None);
    }
}
