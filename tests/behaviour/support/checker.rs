//! The judge: reads the endpoint's ledger and the rows, and nothing that the product says of itself.

use std::collections::BTreeMap;

use super::database::Row;
use super::{Endpoint, Sandbox, wait_until};

/// What contradicts the promise, one sentence each.
fn contradictions(ledger: &BTreeMap<String, usize>, rows: &[Row]) -> Vec<String> {
    let mut found = Vec::new();
    for (recipient, times) in ledger {
        if *times > 1 {
            found.push(format!("{recipient} was sent the message {times} times"));
        }
        if !rows.iter().any(|row| row.recipient == *recipient) {
            found.push(format!("{recipient} was sent a message and is in no row"));
        }
    }
    for Row { recipient, status, in_doubt, .. } in rows {
        let times = ledger.get(recipient).copied().unwrap_or(0);
        match (status.as_str(), times) {
            ("sent", 1) | ("unknown", 0 | 1) | ("pending" | "retry" | "failed", 0) => {}
            ("processing", 0) | ("sending", 0 | 1) => {}
            // The provider remembers its key.
            ("pending" | "retry" | "processing", 1) if *in_doubt => {}
            (status, times) => found.push(format!("{recipient} is {status}, and was sent {times} times")),
        }
    }
    found
}

/// Nobody twice; what was delivered can not be sent again; `sent` and `failed` are true. At any moment of any story.
#[track_caller]
pub fn check(it: &Sandbox, task: u64, endpoint: &Endpoint) {
    // The rows first: what is delivered after they were read must not be held against them.
    let rows = it.database.targets(task);
    let found = contradictions(&endpoint.ledger(), &rows);
    assert!(found.is_empty(), "the promise is broken:\n{}", found.join("\n"));
}

/// Runs until every target is final, at most `runs` times, each after the leases and claims of dead runs have ended.
#[track_caller]
pub fn settle_within(it: &Sandbox, task: u64, runs: usize) {
    for _ in 0..runs {
        wait_until("leases and claims to end", 30, || it.database.nothing_held());
        let run = it.call("run").done();
        assert!(matches!(run.code(), Some(0 | 3)), "{run}");
        if it.database.count(task, "pending,processing,sending,retry") == 0 {
            return;
        }
    }
    panic!("after {runs} runs: {:?}, task {:?}", it.database.counts(task), it.database.standing(task));
}

/// Each fault costs at most so many unknown targets.
#[track_caller]
pub fn unknown_at_most(it: &Sandbox, task: u64, most: u64) {
    let unknown = it.database.count(task, "unknown");
    assert!(unknown <= most, "{unknown} unknown, more than {most}: {:?}", it.database.counts(task));
}

/// The faults are over: final within three runs, the promise kept, and no more unknown than the faults explain.
#[track_caller]
pub fn finish(it: &Sandbox, task: u64, endpoint: &Endpoint, most_unknown: u64) {
    settle_within(it, task, 3);
    check(it, task, endpoint);
    unknown_at_most(it, task, most_unknown);
}

#[test]
fn the_judge_knows_every_broken_promise() {
    let row_of = |status: &str, in_doubt| Row {
        id: 1,
        recipient: "ann".into(),
        status: status.into(),
        attempts: 1,
        in_doubt,
        error: String::new(),
        receipt: String::new(),
    };
    let row = |status: &str| [row_of(status, false)];
    let times = |times: usize| BTreeMap::from([("ann".to_owned(), times)]);
    let none = BTreeMap::new();
    for status in ["pending", "retry", "failed", "unknown", "processing", "sending"] {
        assert_eq!(contradictions(&none, &row(status)), Vec::<String>::new());
    }
    for status in ["sent", "unknown", "sending"] {
        assert_eq!(contradictions(&times(1), &row(status)), Vec::<String>::new());
    }
    for status in ["pending", "retry", "failed", "processing"] {
        assert_eq!(contradictions(&times(1), &row(status)).len(), 1, "{status}");
        let in_doubt = contradictions(&times(1), &[row_of(status, true)]);
        assert_eq!(in_doubt.len(), usize::from(status == "failed"), "{status}");
    }
    for status in ["pending", "retry", "failed", "processing", "sent", "unknown", "sending"] {
        for in_doubt in [false, true] {
            assert!(!contradictions(&times(2), &[row_of(status, in_doubt)]).is_empty(), "{status}");
        }
    }
    assert_eq!(contradictions(&none, &row("sent")).len(), 1);
    assert_eq!(contradictions(&times(1), &[]).len(), 1);
}
