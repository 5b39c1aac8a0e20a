//! Fair turns: a task of one does not wait for a task of hundreds of thousands, and who has priority goes first.

use std::time::Duration;

use crate::support::{Cue, Endpoint, Sandbox, check, wait_until};

on_each_database! {
    a_task_of_one_does_not_wait_for_a_task_of_many,
    priority_goes_first,
}

fn a_task_of_one_does_not_wait_for_a_task_of_many(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptAfter(Duration::from_millis(2)));
    it.configure("lanes = 1\nturn = \"1s\"\nbudget = \"60s\"", &endpoint.channel("web", ""));
    let many = it.database.task("web", (0..200_000).map(|n| format!("person-{n}")));
    let run = it.call("run").start();
    wait_until("the large task to be under way", 30, || it.database.count(many, "sent") > 0);
    let one = it.database.task("web", ["ann"]);
    wait_until("the task of one to be finished", 10, || it.database.status(one) == "finished");
    assert!(it.database.count(many, "pending") > 100_000);
    run.terminate();
    run.wait().quietly();
    check(&it, one, &endpoint_of(&endpoint, "ann"));
}

/// The checker compares one task with the whole ledger: this is the part of one recipient.
fn endpoint_of(endpoint: &Endpoint, recipient: &str) -> Endpoint {
    let part = Endpoint::accepting();
    assert_eq!(endpoint.ledger().get(recipient), Some(&1));
    part.remember(endpoint.accepted().into_iter().filter(|request| request.recipient == recipient));
    part
}

fn priority_goes_first(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("lanes = 1", &endpoint.channel("web", "concurrency = 1"));
    let low = it.database.task("web", ["low-0", "low-1"]);
    let high = it.database.task("web", ["high-0", "high-1"]);
    it.database.execute(&format!("UPDATE batch_task SET priority = 5 WHERE id = {high}"));
    it.run();
    let order: Vec<String> = endpoint.accepted().into_iter().map(|request| request.recipient).collect();
    assert_eq!(order, ["high-0", "high-1", "low-0", "low-1"]);
    assert_eq!((it.database.status(low), it.database.status(high)), ("finished".into(), "finished".into()));
}
