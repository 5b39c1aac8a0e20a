//! A target: one recipient of a task, a row of `batch_task_target`. The noun alone; what moves it is in the store.

use chrono::{DateTime, Utc};

pub type TargetId = u64;

/// A target in the hands of a run: what is needed to render and send its message.
#[derive(Clone, Debug)]
pub struct Target {
    pub id: TargetId,
    pub recipient: String,
    /// JSON text, as stored; templates see it as `target.params`. Absent reads as `{}`.
    pub params: Option<String>,
    /// Attempts begun before this one.
    pub attempts: u16,
    /// How often a person asked for one more attempt after `failed`: part of the idempotency key.
    pub round: u8,
    /// An earlier attempt may have been accepted (`dedupe_until` was not NULL when it was claimed).
    pub in_doubt: bool,
}

impl Target {
    /// How much memory its texts take.
    pub fn bytes(&self) -> usize {
        self.recipient.len() + self.params.as_ref().map_or(0, String::len)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetStatus {
    Pending,
    Processing,
    Sending,
    Sent,
    Failed,
    Retry,
    Unknown,
}

impl TargetStatus {
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Processing,
        Self::Sending,
        Self::Sent,
        Self::Failed,
        Self::Retry,
        Self::Unknown,
    ];

    /// The word of the column.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Sending => "sending",
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Retry => "retry",
            Self::Unknown => "unknown",
        }
    }

    /// `None` for a word that no version wrote (the empty ENUM value of a careless application).
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

/// A target that does not exist yet: a line of an import. The recipient is trimmed on the right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTarget {
    pub recipient: String,
    /// JSON text of an object.
    pub params: Option<String>,
}

/// A target as an operator sees it.
#[derive(Clone, Debug)]
pub struct TargetRow {
    pub id: TargetId,
    pub task_id: u64,
    pub recipient: String,
    pub params: Option<String>,
    /// The column's own word, the empty one of a careless application included.
    pub status: String,
    pub attempts: u16,
    pub round: u8,
    pub retry_at: Option<DateTime<Utc>>,
    pub send_at: Option<DateTime<Utc>>,
    pub settled_at: Option<DateTime<Utc>>,
    pub receipt: Option<String>,
    pub last_error: Option<String>,
    /// Status `sending`, and its claim has ended: the next run makes it unknown.
    pub overdue: bool,
}

/// What a report needs of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetFacts {
    pub id: TargetId,
    /// `None`: no word that a version wrote.
    pub status: Option<TargetStatus>,
    /// Of an unknown one; the others stay unnamed.
    pub recipient: Option<String>,
    pub attempts: u16,
    pub send_at: Option<DateTime<Utc>>,
    pub settled_at: Option<DateTime<Utc>>,
    /// Of one that failed, is unknown or waits to be tried again.
    pub last_error: Option<String>,
    /// Status `sending`, and its claim has ended: the next run makes it unknown.
    pub overdue: bool,
}
