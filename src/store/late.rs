//! What an answer means for the row that it finds: the rules for answers that come late, come twice, or come to a row in other
//! hands. Pure, and one for every store: how a row is locked, read and written is the adapters' business.

use std::borrow::Cow;

use super::{ANSWERED_LATE, Answer, RECEIPT_MOST, Settlement, fit};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning<'a> {
    /// To be written, in place of what the row says.
    Write(Cow<'a, Settlement>),
    /// The row says so already, or says no less.
    Said,
    /// It changes nothing: others have the row, or a person has spoken.
    Fenced,
    /// Accepted, and the row is gone or bears another token: another attempt was allowed. To be audited.
    Duplicate,
}

/// `token` and `status` are what the row bears. `keyed`: its latest attempt carried a key that the provider remembers.
pub(super) fn meaning<'a>(answer: &'a Answer, token: Option<&str>, status: &str, keyed: bool) -> Meaning<'a> {
    use Settlement as S;
    let as_it_is = Meaning::Write(Cow::Borrowed(&answer.settlement));
    if token != Some(answer.token.to_string().as_str()) {
        return if matches!(answer.settlement, S::Sent { .. }) {
            Meaning::Duplicate
        } else {
            Meaning::Fenced
        };
    }
    match (&answer.settlement, status) {
        (S::Sent { .. }, "sent") => Meaning::Said,
        // Nothing newer has begun, or the token would differ.
        (S::Sent { .. }, _) => as_it_is,
        // To be repeated, though nobody remembers its key.
        (S::Retry { in_doubt: true, reason, .. }, "sending") if !keyed => {
            Meaning::Write(Cow::Owned(S::Unknown { reason: reason.clone() }))
        }
        (_, "sending") => as_it_is,
        // Late. Never back to retry or pending: the task may be finished.
        (S::Unknown { .. } | S::Retry { in_doubt: true, .. }, "unknown") => Meaning::Said,
        (_, "unknown") if answer.in_doubt => Meaning::Said,
        (_, "unknown") => Meaning::Write(Cow::Owned(S::Failed { reason: ANSWERED_LATE.into() })),
        // Written before, and perhaps promoted since.
        (S::Failed { .. } | S::Returned { .. } | S::Retry { in_doubt: false, .. }, "failed") => Meaning::Said,
        (S::Retry { .. }, "retry" | "pending") => Meaning::Said,
        // `processing`: a begin that was never committed. Its claim ends by itself.
        (S::Returned { .. }, "pending" | "processing") => Meaning::Said,
        _ => Meaning::Fenced,
    }
}

/// Whether the attempt proves that nothing was accepted, neither by it nor before it: the target is no longer in doubt.
pub(super) fn forgets(answer: &Answer, settlement: &Settlement) -> bool {
    match settlement {
        Settlement::Failed { .. } | Settlement::Returned { .. } => !answer.in_doubt,
        Settlement::Retry { in_doubt, .. } => !in_doubt && !answer.in_doubt,
        Settlement::Sent { .. } | Settlement::Unknown { .. } => false,
    }
}

/// What the audit says of a [`Meaning::Duplicate`]. The same however often the answer comes, so that it is audited once.
pub(super) fn duplicate(answer: &Answer) -> String {
    let receipt = match &answer.settlement {
        Settlement::Sent { receipt: Some(receipt) } => format!(", receipt {}", fit(receipt, RECEIPT_MOST)),
        _ => String::new(),
    };
    format!("accepted under token {}{receipt}; the row is gone, or another attempt's", answer.token)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;

    fn answer(settlement: Settlement, in_doubt: bool) -> Answer {
        Answer { task: 1, id: 1, token: Uuid::nil(), in_doubt, settlement }
    }

    fn all() -> [Settlement; 6] {
        let reason = || "why".to_owned();
        let retry = |in_doubt| Settlement::Retry { reason: reason(), after: Duration::ZERO, in_doubt };
        [
            Settlement::Sent { receipt: None },
            Settlement::Failed { reason: reason() },
            Settlement::Unknown { reason: reason() },
            Settlement::Returned { reason: reason() },
            retry(false),
            retry(true),
        ]
    }

    const STATUSES: [&str; 8] =
        ["", "pending", "processing", "sending", "sent", "failed", "retry", "unknown"];

    #[test]
    fn under_its_token_an_acceptance_always_counts_and_under_another_it_is_a_duplicate() {
        for status in STATUSES {
            let sent = answer(Settlement::Sent { receipt: None }, false);
            let ours = Uuid::nil().to_string();
            match meaning(&sent, Some(&ours), status, false) {
                Meaning::Write(what) => assert_eq!(*what, sent.settlement),
                other => assert_eq!((other, status), (Meaning::Said, "sent")),
            }
            for other in [None, Some("another")] {
                assert_eq!(meaning(&sent, other, status, false), Meaning::Duplicate);
            }
        }
    }

    #[test]
    fn what_another_attempt_has_is_left_alone_by_all_but_an_acceptance() {
        for settlement in all().into_iter().skip(1) {
            for status in STATUSES {
                let answer = answer(settlement.clone(), false);
                assert_eq!(meaning(&answer, Some("another"), status, true), Meaning::Fenced);
            }
        }
    }

    #[test]
    fn only_from_sending_does_a_way_lead_back() {
        let ours = Uuid::nil().to_string();
        for settlement in all() {
            for status in STATUSES {
                for (in_doubt, keyed) in [(false, false), (false, true), (true, false), (true, true)] {
                    let answer = answer(settlement.clone(), in_doubt);
                    let Meaning::Write(what) = meaning(&answer, Some(&ours), status, keyed) else { continue };
                    let back = matches!(*what, Settlement::Retry { .. } | Settlement::Returned { .. });
                    assert!(!back || status == "sending", "{settlement:?} on {status}");
                    let failed = matches!(*what, Settlement::Failed { .. });
                    assert!(!(failed && in_doubt && status == "unknown"), "{settlement:?} in doubt");
                    let resent = matches!(*what, Settlement::Retry { in_doubt: true, .. });
                    assert!(!resent || keyed, "{settlement:?} without a key that is remembered");
                }
            }
        }
    }
}
