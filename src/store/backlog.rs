//! What waits and what is in doubt, by channel: added up here for both databases.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

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

impl Backlog {
    /// What of it may leave, through a channel that is open since then, or closed (`None`): outside its hours nothing could be
    /// sent, and nothing waits for longer than they last.
    pub fn within(self, open_since: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Self {
        match open_since {
            Some(since) => {
                Self { oldest: self.oldest.min((now - since).to_std().unwrap_or_default()), ..self }
            }
            None => Self { targets: 0, oldest: Duration::ZERO, ..self },
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_its_hours_nothing_waits_but_doubt_does() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let waits =
            Backlog { channel: "web".into(), targets: 3, oldest: Duration::from_secs(900), unknown: 2 };
        let within = |seconds: Option<u64>| {
            let seen = waits.clone().within(seconds.map(|open| now - Duration::from_secs(open)), now);
            assert_eq!((seen.channel.as_str(), seen.unknown), ("web", 2));
            (seen.targets, seen.oldest.as_secs())
        };
        assert_eq!(within(None), (0, 0));
        assert_eq!(within(Some(60)), (3, 60), "it has been open for a minute");
        assert_eq!(within(Some(3_600)), (3, 900));
    }
}
