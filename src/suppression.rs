//! A suppression: somebody who gets nothing, a row of `batch_suppression`. The noun alone; who heeds it is the store, at begin.

use chrono::{DateTime, Utc};

/// What the reason of a target says that was not sent since its recipient is suppressed.
pub const SUPPRESSED: &str = "suppressed";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppression {
    /// Compared without blanks around it and in lower case, and shown so when it is read back.
    pub recipient: String,
    /// None: every channel.
    pub channel: Option<String>,
    /// For people.
    pub reason: Option<String>,
    /// None in one that is new: now.
    pub since: Option<DateTime<Utc>>,
}
