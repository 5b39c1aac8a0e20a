//! From what the channel said to what we write: one pure function, and the policy that it follows.

use std::time::Duration;

use crate::sender::{Outcome, Toll};
use crate::store::Settlement;

/// A channel's rules for attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Attempts of one target, counted when they begin (1-100).
    pub max_attempts: u16,
    pub backoff: Backoff,
    /// So many Unknowns in a row pause the task.
    pub stop_after_unknown: u16,
    /// The provider deduplicates by key for so long; absent: an Unknown stays unknown.
    pub idempotent_for: Option<Duration>,
}

/// Doubling waits: `first`, twice that, and so on up to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub most: Duration,
}

impl Backoff {
    /// The wait after the `nth` failure (from 1), without jitter.
    pub fn wait(&self, nth: u16) -> Duration {
        let doublings = u32::from(nth.saturating_sub(1)).min(31);
        self.first.saturating_mul(1 << doublings).min(self.most)
    }
}

/// So many Rejected (or not to be rendered) in one run on one task, none accepted before them, pause it.
pub const STOP_AFTER_REJECTED: u32 = 100;

/// So many times in a row not reached hold the channel.
pub const HOLD_AFTER_UNREACHED: u32 = 5;

/// What `outcome` of attempt number `attempt` (from 1) means for the target.
///
/// `in_doubt`: an earlier attempt may have been accepted, so that nothing but an acceptance proves anything: such a
/// target never ends as failed. `jitter` in 0..1 takes up to a quarter off the wait, so that retries do
/// not come back as one wave; it never makes them come later than the cap.
pub fn settle(outcome: Outcome, in_doubt: bool, attempt: u16, policy: &Policy, jitter: f64) -> Settlement {
    let attempts_left = attempt < policy.max_attempts;
    let wait = || policy.backoff.wait(attempt).mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 4.0);
    match outcome {
        Outcome::Accepted { receipt } => Settlement::Sent { receipt },
        Outcome::Deferred { reason, after, toll: Toll::Attempt } if attempts_left => {
            Settlement::Retry { reason, after: after.unwrap_or_default().max(wait()), in_doubt }
        }
        Outcome::Deferred { reason, toll: Toll::Attempt, .. } if in_doubt => Settlement::Unknown { reason },
        Outcome::Deferred { reason, toll: Toll::Attempt, .. } => {
            Settlement::Failed { reason: format!("{reason} (attempt {attempt}, the last)") }
        }
        Outcome::Deferred { reason, .. } => Settlement::Returned { reason },
        Outcome::Rejected { reason } if in_doubt => Settlement::Unknown { reason },
        Outcome::Rejected { reason } => Settlement::Failed { reason },
        Outcome::Unknown { reason } if policy.idempotent_for.is_some() && attempts_left => {
            Settlement::Retry { reason, after: wait(), in_doubt: true }
        }
        Outcome::Unknown { reason } => Settlement::Unknown { reason },
        Outcome::Unavailable { reason } => Settlement::Returned { reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy {
            max_attempts: 3,
            backoff: Backoff { first: Duration::from_secs(30), most: Duration::from_secs(3600) },
            stop_after_unknown: 5,
            idempotent_for: None,
        }
    }

    fn why() -> String {
        "why".into()
    }

    fn deferred(after: Option<u64>, toll: Toll) -> Outcome {
        Outcome::Deferred { reason: why(), after: after.map(Duration::from_secs), toll }
    }

    #[test]
    fn each_outcome_has_its_settlement() {
        let plain = policy();
        let idempotent = Policy { idempotent_for: Some(Duration::from_secs(86_400)), ..policy() };
        let secs = Duration::from_secs;
        let retry = |after, in_doubt| Settlement::Retry { reason: why(), after, in_doubt };
        let table = [
            (
                Outcome::Accepted { receipt: Some("r".into()) },
                false,
                1,
                &plain,
                Settlement::Sent { receipt: Some("r".into()) },
            ),
            (Outcome::Accepted { receipt: None }, true, 3, &plain, Settlement::Sent { receipt: None }),
            (deferred(None, Toll::Attempt), false, 1, &plain, retry(secs(30), false)),
            (deferred(None, Toll::Attempt), false, 2, &plain, retry(secs(60), false)),
            (deferred(Some(7200), Toll::Attempt), false, 1, &plain, retry(secs(7200), false)),
            (deferred(Some(1), Toll::Attempt), false, 1, &plain, retry(secs(30), false)),
            (deferred(None, Toll::Attempt), true, 1, &plain, retry(secs(30), true)),
            (
                deferred(None, Toll::Attempt),
                false,
                3,
                &plain,
                Settlement::Failed { reason: "why (attempt 3, the last)".into() },
            ),
            (deferred(None, Toll::Attempt), true, 3, &plain, Settlement::Unknown { reason: why() }),
            (deferred(None, Toll::Unreached), false, 3, &plain, Settlement::Returned { reason: why() }),
            (deferred(Some(9), Toll::Hold), false, 3, &plain, Settlement::Returned { reason: why() }),
            (deferred(None, Toll::Nothing), true, 3, &plain, Settlement::Returned { reason: why() }),
            (Outcome::Rejected { reason: why() }, false, 1, &plain, Settlement::Failed { reason: why() }),
            (Outcome::Rejected { reason: why() }, true, 1, &plain, Settlement::Unknown { reason: why() }),
            (Outcome::Unknown { reason: why() }, false, 1, &plain, Settlement::Unknown { reason: why() }),
            (Outcome::Unknown { reason: why() }, false, 1, &idempotent, retry(secs(30), true)),
            (
                Outcome::Unknown { reason: why() },
                false,
                3,
                &idempotent,
                Settlement::Unknown { reason: why() },
            ),
            (Outcome::Unavailable { reason: why() }, true, 3, &plain, Settlement::Returned { reason: why() }),
        ];
        for (outcome, in_doubt, attempt, policy, expected) in table {
            let shown = format!("{outcome:?}, in doubt {in_doubt}, attempt {attempt}");
            assert_eq!(settle(outcome, in_doubt, attempt, policy, 0.0), expected, "{shown}");
        }
    }

    #[test]
    fn waits_grow_to_the_cap_and_jitter_only_shortens_them() {
        let policy = Policy { max_attempts: 100, ..policy() };
        let mut before = Duration::ZERO;
        for attempt in 1..100 {
            let at = |jitter| match settle(deferred(None, Toll::Attempt), false, attempt, &policy, jitter) {
                Settlement::Retry { after, .. } => after,
                other => panic!("{other:?}"),
            };
            assert!(at(0.0) >= before, "attempt {attempt} comes sooner than the one before");
            assert!(at(0.0) <= policy.backoff.most);
            assert!(at(1.0) >= at(0.0).mul_f64(0.74) && at(1.0) < at(0.0));
            before = at(0.0);
        }
    }

    #[test]
    fn nothing_in_doubt_ever_ends_as_failed() {
        let outcomes = [
            deferred(None, Toll::Attempt),
            deferred(None, Toll::Unreached),
            deferred(None, Toll::Hold),
            deferred(None, Toll::Nothing),
            Outcome::Rejected { reason: why() },
            Outcome::Unknown { reason: why() },
            Outcome::Unavailable { reason: why() },
        ];
        for outcome in outcomes {
            for attempt in 1..6 {
                let settled = settle(outcome.clone(), true, attempt, &policy(), 0.5);
                assert!(
                    !matches!(settled, Settlement::Failed { .. } | Settlement::Sent { .. }),
                    "{outcome:?}: {settled:?}"
                );
            }
        }
    }
}
