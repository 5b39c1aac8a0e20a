//! What waits and what is in doubt, by channel: added up here for both databases.

use std::collections::BTreeMap;
use std::time::Duration;

/// Of a task so many targets are counted; above, their number is estimated.
pub(super) const COUNTED: u64 = 1000;

/// So many tasks are looked at.
pub(super) const TASKS: usize = 1000;

/// Of one channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    pub channel: String,
    /// Those that could be sent now.
    pub targets: u64,
    /// For how long the oldest of them could have been sent: since its task was made or scheduled, or its retry was due.
    pub oldest: Duration,
    /// Those that wait for a person, of whatever task.
    pub unknown: u64,
}

#[derive(Default)]
pub(super) struct Backlogs(BTreeMap<String, Backlog>);

impl Backlogs {
    fn of(&mut self, channel: &str) -> &mut Backlog {
        let new = || Backlog { channel: channel.to_owned(), ..Backlog::default() };
        self.0.entry(channel.to_owned()).or_insert_with(new)
    }

    pub fn waits(&mut self, channel: &str, targets: u64, oldest: Duration) {
        if targets > 0 {
            let backlog = self.of(channel);
            backlog.targets += targets;
            backlog.oldest = backlog.oldest.max(oldest);
        }
    }

    pub fn unknown(&mut self, channel: &str, targets: u64) {
        if targets > 0 {
            self.of(channel).unknown += targets;
        }
    }

    pub fn list(self) -> Vec<Backlog> {
        self.0.into_values().collect()
    }
}
