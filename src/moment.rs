//! A point on this host's clock that goes on while the machine is suspended. For deadlines inside one run:
//! how long a lease or a claim may still be trusted. Not for anything that is stored or compared between
//! hosts: that is the database's clock.

use std::ops::{Add, Sub};
use std::time::Duration;

use chrono::{DateTime, Utc};
use rustix::time::{ClockId, clock_gettime};

/// A moment since boot (`CLOCK_BOOTTIME`). `Instant` would not do: it stands still in suspend, and a machine
/// that slept for an hour would think that its claims are fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        Self(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Whether it lies behind us.
    pub fn passed(self) -> bool {
        Self::now() >= self
    }

    /// The time until it comes; zero once it has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    /// The time since it was; zero while it is still to come.
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// Seconds since boot, for the text that the lock file shows to other runs of this boot.
    pub fn seconds(self) -> u64 {
        self.0.as_secs()
    }

    /// The moment so many seconds after boot: what `seconds` of another run's moment meant.
    pub fn at_seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

/// What this host's clock says, to be shown to whoever reads logs and metrics: nothing is decided by it.
pub fn wall() -> DateTime<Utc> {
    let now = clock_gettime(ClockId::Realtime);
    DateTime::from_timestamp(now.tv_sec, now.tv_nsec as u32).unwrap_or_default()
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}
