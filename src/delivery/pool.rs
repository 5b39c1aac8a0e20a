//! Where begun targets wait for a worker, and a worker's life: take one, send it, hand it back with its outcome. How many
//! workers there are, and what an outcome means, is the lane's business.

use std::collections::VecDeque;
use std::sync::mpsc::Sender as Back;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::logger;
use crate::moment::Moment;
use crate::sender::{self, Outcome, Sender};
use crate::store::InFlight;

/// Put by the lane, taken by its workers.
pub(super) struct Pool {
    inner: Mutex<Waiting>,
    put: Condvar,
    /// Nothing leaves after this moment.
    closes: Option<Moment>,
}

#[derive(Default)]
struct Waiting {
    targets: VecDeque<InFlight>,
    closed: bool,
}

/// Closes the pool when it goes.
pub(super) struct Closing<'a>(pub &'a Pool);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.put.notify_all();
    }
}

impl Pool {
    pub fn new(closes: Option<Moment>) -> Self {
        Self { inner: Mutex::default(), put: Condvar::new(), closes }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn put(&self, targets: Vec<InFlight>) {
        if !targets.is_empty() {
            self.lock().targets.extend(targets);
            self.put.notify_one();
        }
    }

    fn take(&self) -> Option<InFlight> {
        let mut waiting = self.lock();
        loop {
            if let Some(target) = waiting.targets.pop_front() {
                // The woken wakes the next: to wake all at once cost a tenth of a run.
                if !waiting.targets.is_empty() {
                    self.put.notify_one();
                }
                return Some(target);
            }
            if waiting.closed {
                return None;
            }
            waiting = self.put.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A worker's life.
    pub fn work(&self, sender: &dyn Sender, back: &Back<(InFlight, Outcome)>) {
        while let Some(in_flight) = self.take() {
            let until = in_flight.until();
            let until = self.closes.map_or(until, |closes| until.min(closes));
            let _about = logger::about(in_flight.message().task.id, Some(in_flight.id()));
            let outcome = sender::send(sender, in_flight.message(), until);
            if back.send((in_flight, outcome)).is_err() {
                return;
            }
        }
    }
}
