//! Which channels may be sent to at this hour, by the database's clock. What a window is, is window.rs.

use anyhow::Result;

use crate::config::{Channel, Config};
use crate::moment::Moment;
use crate::store::Relay;
use crate::task::show_time;
use crate::window::Clock;

pub(super) struct Hours<'a> {
    config: &'a Config,
    /// Without any window nobody asks what time it is.
    clock: Option<Clock>,
}

impl<'a> Hours<'a> {
    pub fn read(config: &'a Config, store: &mut dyn Relay) -> Result<Self> {
        let clock = if config.channels.values().any(|channel| channel.window.is_some()) {
            let asked = Moment::now();
            Some(Clock::new(asked, store.now()?))
        } else {
            None
        };
        Ok(Self { config, clock })
    }

    /// The channels that may be sent to now.
    pub fn open(&self) -> Vec<&'a str> {
        let now = self.clock.as_ref().map(Clock::now);
        let open =
            |channel: &&Channel| channel.window.zip(now).is_none_or(|(window, now)| window.is_open(now));
        self.config.channels.values().filter(open).map(|channel| channel.name.as_str()).collect()
    }

    /// Why a channel may not be sent to now, if so, and when it may.
    pub fn refusal(&self, channel: &Channel) -> Option<String> {
        let (window, clock) = (channel.window.as_ref()?, self.clock.as_ref()?);
        let now = clock.now();
        let opens = window.opens(now);
        (opens > now)
            .then(|| format!("channel {} is open {window}, and opens at {}", channel.name, show_time(&opens)))
    }

    /// When its window closes.
    pub fn closes(&self, channel: &Channel) -> Option<Moment> {
        let (window, clock) = (channel.window.as_ref()?, self.clock.as_ref()?);
        // The host's moment is taken first: nothing leaves too late by the time between the two.
        let now = Moment::now();
        Some(now + window.left(clock.now()))
    }
}
