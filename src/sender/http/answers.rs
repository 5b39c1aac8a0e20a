//! What an answer means: the table of statuses, in one pure function. What an outcome leads to is not here: that is settlement.rs.

use super::exchange::{Answer, End};
use crate::sender::{Outcome, Toll};

/// What the status alone means. One that the table does not list may mean anything, so that it is Unknown.
pub fn table(answer: &Answer, reason: String) -> Outcome {
    match answer.status {
        200..=299 if answer.end == End::Whole => Outcome::Accepted { receipt: None },
        400 | 404 | 410 | 413 | 414 | 415 | 422 | 451 => Outcome::Rejected { reason },
        401 | 402 | 403 | 407 | 501 | 505 => Outcome::Unavailable { reason },
        421 | 425 => Outcome::Deferred { reason, after: None, toll: Toll::Attempt },
        429 => Outcome::Deferred { reason, after: answer.retry_after, toll: Toll::Hold },
        503 if answer.asks_to_wait => {
            Outcome::Deferred { reason, after: answer.retry_after, toll: Toll::Hold }
        }
        _ => Outcome::Unknown { reason },
    }
}
