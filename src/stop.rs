//! When a run begins nothing more: a signal, or a spent budget; and how long it may live after that to write down
//! what is still in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::moment::Moment;

/// How long an answer that cannot be written is tried again after the last send must have ended.
const LAST_WRITES: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    budget: Moment,
    end: Moment,
}

impl Stop {
    /// `longest`: the longest timeout of any channel of this run.
    pub fn new(budget: Duration, longest: Duration) -> Self {
        let budget = Moment::now() + budget;
        Self { asked: Arc::new(AtomicBool::new(false)), budget, end: budget + longest + LAST_WRITES }
    }

    /// From now on SIGTERM, SIGINT and SIGHUP (a terminal that goes away) ask to stop; a second one ends the process at once.
    pub fn on_signals(&self) -> Result<()> {
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // The order matters: the first signal must find the flag still down.
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&self.asked))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&self.asked)))
                .context("watch for signals")?;
        }
        Ok(())
    }

    /// Nothing more may be begun.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.budget.passed()
    }

    /// Past this moment nothing is begun.
    pub fn begins_until(&self) -> Moment {
        self.budget
    }

    /// Past this moment even writing is given up: the journal has it.
    pub fn end(&self) -> Moment {
        self.end
    }
}
