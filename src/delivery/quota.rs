//! `--limit`: how many targets this run may still begin.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many targets this run may still begin (`--limit`), shared by its lanes.
#[derive(Debug)]
pub struct Quota(AtomicU64);

impl Quota {
    pub fn new(most: Option<u64>) -> Self {
        Self(AtomicU64::new(most.unwrap_or(u64::MAX)))
    }

    /// Takes up to `most` of what is left.
    pub(super) fn take(&self, most: usize) -> usize {
        let most = most as u64;
        let take = |left: u64| Some(left - most.min(left));
        let before =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or_else(|left| left);
        most.min(before) as usize
    }

    /// Gives back what was taken and not begun.
    pub(super) fn give(&self, back: usize) {
        let add = |left: u64| Some(left.saturating_add(back as u64));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub fn spent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}
