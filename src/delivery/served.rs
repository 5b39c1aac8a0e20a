//! What came of the work on a task, and why it ended: for the log, the report of the run and its metrics. The rows say it, too;
//! this is what the run saw of it.

use std::fmt;
use std::time::Duration;

use anyhow::Error;

use crate::store::Settled;

/// Why the work on a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing is left that can be sent now.
    Drained,
    /// Its turn is over, and others wait.
    Yielded,
    /// The run begins nothing more: a signal, the budget, the limit.
    Stopped,
    /// Somebody paused or cancelled the task, or it expired.
    Halted,
    /// Another run has the lease.
    Lost,
    /// The channel wants to be left alone, or cannot be reached.
    Held(Duration),
    /// The channel's next slot comes only after this time.
    Paced(Duration),
    /// The channel's window has closed.
    Closed,
    /// We paused the task, for this reason.
    Paused(String),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drained => f.write_str("drained"),
            Self::Yielded => f.write_str("turn over"),
            Self::Stopped => f.write_str("stopped"),
            Self::Halted => f.write_str("halted"),
            Self::Lost => f.write_str("lease lost"),
            Self::Held(length) => write!(f, "channel held for {} s", length.as_secs()),
            Self::Paced(wait) => write!(f, "next slot in {} s", wait.as_secs()),
            Self::Closed => f.write_str("window closed"),
            Self::Paused(_) => f.write_str("paused"),
        }
    }
}

/// What came of the work on a task, as the run saw it.
#[derive(Debug, Default)]
pub struct Served {
    pub begun: u64,
    pub sent: u64,
    pub failed: u64,
    pub retry: u64,
    pub unknown: u64,
    pub returned: u64,
    /// Never begun: no message could be made of them, or they are suppressed.
    pub refused: u64,
    pub settled: Settled,
    pub ended: Option<Ended>,
    /// At whose target we paused the task: the reason may repeat the recipient.
    pub paused_at: Option<String>,
    /// The database failed us; everything that was in flight is written or in the journal.
    pub failure: Option<Error>,
}
