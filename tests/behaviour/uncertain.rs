//! What may have been delivered is never sent again by the program. It is counted, listed, told of, and settled by a
//! person.

use crate::support::{Cue, Endpoint, Sandbox, check, wait_until};

on_each_database! {
    no_answer_is_no_reason_to_send_again,
    a_timeout_is_unknown,
    an_answer_that_no_table_lists_is_unknown,
    unknown_targets_are_listed_and_settled_by_a_person,
    sent_again_on_a_persons_word_it_bears_the_same_key,
    five_unknowns_in_a_row_pause_the_task,
    crashes_count_as_unknowns,
}

/// One exit 3, told on stderr; from then on quiet, and never a second request.
#[track_caller]
fn told_once_and_never_sent_again(it: &Sandbox, task: u64, endpoint: &Endpoint, requests: usize) {
    let run = it.call("run").done().exits(3);
    assert!(!run.stderr.is_empty(), "{run}");
    check(it, task, endpoint);
    for _ in 0..2 {
        it.run();
    }
    assert_eq!(endpoint.requests(), requests);
}

fn no_answer_is_no_reason_to_send_again(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "closed" => Cue::AcceptThenClose,
        "reset" => Cue::AcceptThenReset,
        "reset-unread" => Cue::ResetUnread,
        "half" => Cue::AcceptThenHalf,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", "timeout = \"3s\"\nstop_after_unknown = 100"));
    let task = it.database.task("web", ["closed", "reset", "reset-unread", "half", "ann"]);
    told_once_and_never_sent_again(&it, task, &endpoint, 5);
    for name in ["closed", "reset", "reset-unread", "half"] {
        let row = it.database.target(task, name);
        assert!(row.status == "unknown" && row.attempts == 1 && !row.error.is_empty(), "{row:?}");
    }
    assert_eq!(it.database.target(task, "ann").status, "sent");
    assert_eq!(it.database.status(task), "finished");
}

fn a_timeout_is_unknown(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure("", &endpoint.channel("web", "timeout = \"1s\""));
    let task = it.database.task("web", ["ann"]);
    told_once_and_never_sent_again(&it, task, &endpoint, 1);
    let ann = it.database.target(task, "ann");
    assert_eq!(ann.status, "unknown");
    assert!(!ann.error.is_empty());
}

fn an_answer_that_no_table_lists_is_unknown(it: Sandbox) {
    let statuses = [301, 302, 307, 408, 409, 418, 500, 502, 503, 504, 599];
    let endpoint = Endpoint::new(|request| Cue::AcceptThenAnswer(request.recipient.parse().unwrap()));
    it.configure("", &endpoint.channel("web", "stop_after_unknown = 100"));
    let task = it.database.task("web", statuses.map(|status| status.to_string()));
    told_once_and_never_sent_again(&it, task, &endpoint, statuses.len());
    for status in statuses {
        let row = it.database.target(task, &status.to_string());
        assert!(row.status == "unknown" && row.error.contains(&status.to_string()), "{row:?}");
    }
}

fn unknown_targets_are_listed_and_settled_by_a_person(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptThenClose);
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "bob", "cy"]);
    it.call("run").done().exits(3);
    let listed = it.call(&format!("targets {task} --status unknown --format jsonl")).done().exits(0);
    let rows: Vec<serde_json::Value> =
        listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 3, "{listed}");
    let status = it.call(&format!("status {task} --json")).done().exits(0).json();
    assert_eq!(status["counts"]["unknown"], 3, "{status}");

    let id = |name: &str| it.database.target(task, name).id;
    it.call(&format!("resolve {task} --target {} --as sent", id("ann"))).done().exits(2).says(&["--yes"]);
    it.call(&format!("resolve {task} --target {} --as sent --yes", id("ann"))).done().exits(0);
    let done = it.call(&format!("resolve {task} --target {} --as failed --yes --json", id("bob"))).done();
    assert_eq!(done.exits(0).json()["changed"], 1);
    assert_eq!(it.database.target(task, "ann").status, "sent");
    assert_eq!(it.database.target(task, "bob").status, "failed");
    assert_eq!(it.database.target(task, "cy").status, "unknown");
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_audit WHERE what = 'resolve'"), 2);
    assert_eq!(
        it.database.number(
            "SELECT COUNT(*) FROM batch_audit WHERE what = 'resolve' AND why LIKE 'settled as sent%'"
        ),
        1,
        "the account names the verdict"
    );
    it.run();
    assert_eq!(endpoint.requests(), 3);
}

fn sent_again_on_a_persons_word_it_bears_the_same_key(it: Sandbox) {
    let endpoint = Endpoint::new(|request| if request.nth == 1 { Cue::ResetUnread } else { Cue::Accept });
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    it.call("run").done().exits(3);
    assert_eq!(it.database.status(task), "finished");
    it.call(&format!("resolve {task} --all --as retry --yes")).done().exits(0);
    assert_eq!(it.database.status(task), "pending", "it is open again");
    it.run();
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (1, "finished"));
    let keys: Vec<_> = endpoint.all().iter().map(|request| request.body["key"].clone()).collect();
    assert_eq!(keys[0], keys[1]);
}

fn five_unknowns_in_a_row_pause_the_task(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptThenClose);
    it.configure("", &endpoint.channel("web", "concurrency = 1"));
    let task = it.database.task("web", (0..20).map(|n| format!("person-{n}")));
    it.call("run").done().exits(3);
    check(&it, task, &endpoint);
    let (status, reason) = it.database.standing(task);
    assert!(status == "paused" && !reason.is_empty(), "{status}: {reason}");
    assert_eq!((it.database.count(task, "unknown"), it.database.count(task, "pending")), (5, 15));
    it.run();
    it.call(&format!("task resume {task}")).done().exits(0);
    it.call("run").done().exits(3);
    assert_eq!(it.database.count(task, "unknown"), 10, "five more, after a person let it go on");
}

fn crashes_count_as_unknowns(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure("", &endpoint.channel("web", "concurrency = 1\nstop_after_unknown = 3"));
    let task = it.database.task("web", (0..20).map(|n| format!("person-{n}")));
    for crash in 1..=10 {
        let before = endpoint.requests();
        let mut run = it.call("run").start();
        wait_until("a message in flight, or the run to end", 20, || {
            endpoint.requests() > before || !run.running()
        });
        if endpoint.requests() == before {
            assert!(crash > 3, "paused after {} crashes", crash - 1);
            assert_eq!(it.database.status(task), "paused");
            assert_eq!(run.wait().code(), Some(3));
            check(&it, task, &endpoint);
            return;
        }
        run.kill();
        it.database.claims_end(task);
    }
    panic!("ten crashes in a row, and the task goes on");
}
