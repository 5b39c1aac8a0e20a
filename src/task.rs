//! A task: one bulk send, a row of `batch_task`. The noun alone; what moves it is in the store.

use chrono::{DateTime, Utc};
use serde::Serialize;
use std::time::Duration;

use crate::target::TargetStatus;

pub type TaskId = u64;

/// A task as the database has it.
#[derive(Clone, Debug)]
pub struct Task {
    pub id: TaskId,
    pub name: String,
    /// Name of a `[channel.NAME]` of the configuration.
    pub channel: String,
    /// JSON text, as stored; templates see it as `task.payload`. Absent reads as `{}`.
    pub payload: Option<String>,
    pub status: TaskStatus,
    /// Why it is paused, for people.
    pub status_reason: Option<String>,
    pub priority: i16,
    pub scheduled_at: Option<DateTime<Utc>>,
    pub expires_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
    /// The live lease, if a run holds one now. "Running" is not a status: it is this.
    pub lease: Option<Holder>,
    /// By the database's clock: `scheduled_at` is still to come.
    pub early: bool,
    /// By the database's clock: `expires_at` has passed.
    pub expired: bool,
    /// Its channel is left alone until then (`batch_pace`); `None` when that has passed.
    pub held_until: Option<DateTime<Utc>>,
}

/// Who holds a task, for people: the promise rests on the token, never on these words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    pub owner: String,
    #[serde(serialize_with = "crate::task::rfc3339")]
    pub since: DateTime<Utc>,
    #[serde(serialize_with = "crate::task::rfc3339")]
    pub until: DateTime<Utc>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStatus {
    Draft,
    Pending,
    Paused,
    Finished,
    Cancelled,
}

impl TaskStatus {
    pub const ALL: [Self; 5] = [Self::Draft, Self::Pending, Self::Paused, Self::Finished, Self::Cancelled];

    /// The word of the column.
    pub fn word(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Pending => "pending",
            Self::Paused => "paused",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
        }
    }

    /// `None` for a word that no version wrote (the empty ENUM value of a careless application).
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

/// A task that does not exist yet.
#[derive(Clone, Debug)]
pub struct NewTask<'a> {
    pub name: &'a str,
    pub channel: &'a str,
    /// JSON text, already checked.
    pub payload: Option<&'a str>,
    pub priority: i16,
    pub scheduled: Option<When>,
    pub expires: Option<When>,
}

/// A time that a person typed. `In` is counted by the database's clock, so that a host whose clock is wrong
/// does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    At(DateTime<Utc>),
    In(Duration),
}

/// How many targets of a task are in each status. They add up to `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub pending: u64,
    pub processing: u64,
    pub sending: u64,
    pub retry: u64,
    pub sent: u64,
    pub failed: u64,
    pub unknown: u64,
    /// A status that no version wrote: such a target is open, and pauses the task when nothing else is left.
    pub invalid: u64,
    /// Of `sending`: those whose claim has ended. The next run makes them unknown.
    pub overdue: u64,
    /// From index statistics, not counted.
    pub estimated: bool,
}

impl Counts {
    /// Counts `number` targets in the status of this word.
    pub fn add(&mut self, word: &str, number: u64) {
        *match TargetStatus::from_word(word) {
            Some(TargetStatus::Pending) => &mut self.pending,
            Some(TargetStatus::Processing) => &mut self.processing,
            Some(TargetStatus::Sending) => &mut self.sending,
            Some(TargetStatus::Sent) => &mut self.sent,
            Some(TargetStatus::Failed) => &mut self.failed,
            Some(TargetStatus::Retry) => &mut self.retry,
            Some(TargetStatus::Unknown) => &mut self.unknown,
            None => &mut self.invalid,
        } += number;
    }

    pub fn total(&self) -> u64 {
        self.left() + self.sent + self.failed + self.unknown
    }

    /// Not sent, failed or unknown yet.
    pub fn left(&self) -> u64 {
        self.pending + self.processing + self.sending + self.retry + self.invalid
    }
}

/// The one form in which a time is shown: RFC 3339, UTC, milliseconds, `Z`.
pub fn show_time(time: &DateTime<Utc>) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

/// [`show_time`] for serde.
pub fn rfc3339<S: serde::Serializer>(time: &DateTime<Utc>, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&show_time(time))
}
