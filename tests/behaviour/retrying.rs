//! What was certainly not accepted is tried again: later, not for ever, and at nobody's cost when the channel was at
//! fault.

use std::net::TcpListener;

use crate::support::endpoint::channel;
use crate::support::{Cue, Endpoint, Sandbox, check, wait_until};

on_each_database! {
    a_deferred_target_is_tried_again_until_it_is_taken,
    attempts_used_up_end_as_failed,
    a_busy_channel_is_left_alone_and_costs_no_attempt,
    a_channel_that_cannot_be_reached_costs_no_attempt,
    a_rejected_target_fails_and_the_others_go_on,
    a_channel_at_fault_pauses_the_task_and_gives_the_attempt_back,
    a_hundred_rejections_pause_the_task,
    every_target_rejected_finishes_the_task,
    a_person_retries_failed_targets_with_a_new_key,
}

const QUICK: &str = "backoff = { first = \"100ms\", most = \"1s\" }";

fn due(it: &Sandbox) -> bool {
    let sql = format!("SELECT COUNT(*) FROM batch_task_target WHERE retry_at > {}", it.database.moment(0));
    it.database.number(&sql) == 0
}

fn a_deferred_target_is_tried_again_until_it_is_taken(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match (request.recipient.as_str(), request.nth) {
        ("ann", 1 | 2) => Cue::Answer(421),
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", "backoff = { first = \"1s\", most = \"1s\" }"));
    let task = it.database.task("web", ["ann", "bob"]);
    it.run();
    check(&it, task, &endpoint);
    let mut ann = it.database.target(task, "ann");
    assert_eq!(it.database.target(task, "bob").status, "sent");
    for _ in 0..5 {
        if ann.status == "sent" {
            break;
        }
        assert!(ann.status == "retry" && ann.error.contains("421"), "{ann:?}");
        assert_eq!(it.database.status(task), "pending");
        wait_until("the retry to be due", 10, || due(&it));
        it.run();
        check(&it, task, &endpoint);
        ann = it.database.target(task, "ann");
    }
    assert_eq!((ann.status.as_str(), ann.attempts), ("sent", 3), "{ann:?}");
    assert_eq!(it.database.status(task), "finished");
    assert_eq!(endpoint.requests(), 4);
}

fn attempts_used_up_end_as_failed(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::Answer(425));
    it.configure("", &endpoint.channel("web", &format!("max_attempts = 3\n{QUICK}")));
    let task = it.database.task("web", ["ann"]);
    wait_until("the attempts to be used up", 30, || {
        it.run();
        it.database.count(task, "failed") == 1
    });
    let ann = it.database.target(task, "ann");
    assert!(ann.attempts == 3 && ann.error.contains("425") && ann.error.contains("last"), "{ann:?}");
    assert_eq!((endpoint.requests(), it.database.status(task).as_str()), (3, "finished"));
}

fn a_busy_channel_is_left_alone_and_costs_no_attempt(it: Sandbox) {
    for (name, status) in [("slow_down", 429), ("down", 503)] {
        let endpoint =
            Endpoint::new(move |request| if request.nth == 1 { Cue::Busy(status, 2) } else { Cue::Accept });
        it.configure("", &endpoint.channel(name, "concurrency = 1"));
        let task = it.database.task(name, ["ann", "bob"]);
        it.call("run").done().exits(0);
        let asked = endpoint.requests();
        assert!((1..=2).contains(&asked), "asked {asked} times, though told to wait");
        assert_eq!(it.database.count(task, "pending"), 2, "{:?}", it.database.targets(task));
        assert_eq!(it.database.target(task, "ann").attempts, 0);
        it.run();
        assert_eq!(endpoint.requests(), asked, "the channel is held");
        it.call(&format!("run --task-id {task}")).done().exits(1).says(&[name]);
        let held = format!(
            "SELECT COUNT(*) FROM batch_pace WHERE held_until > {}",
            match it.database.engine {
                crate::support::Engine::Sqlite => format!("{} * 1000", it.database.moment(0)),
                crate::support::Engine::MySql => "NOW(6)".into(),
            }
        );
        wait_until("the hold to end", 10, || it.database.number(&held) == 0);
        for _ in 0..3 {
            it.call("run").done().exits(0);
            wait_until("the hold to end", 10, || it.database.number(&held) == 0);
        }
        check(&it, task, &endpoint);
        assert_eq!(it.database.count(task, "sent"), 2);
        assert_eq!(it.database.target(task, "ann").attempts, 1);
    }
}

fn a_channel_that_cannot_be_reached_costs_no_attempt(it: Sandbox) {
    // Bound and let go: nobody listens there.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    it.configure("", &channel("web", address, QUICK));
    let task = it.database.task("web", (0..20).map(|n| format!("person-{n}")));
    let run = it.call("run").done();
    assert_eq!(run.code(), Some(0), "{run}");
    assert_eq!(it.database.count(task, "pending"), 20, "{:?}", it.database.counts(task));
    assert!(it.database.targets(task).iter().all(|row| row.attempts == 0));
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_pace WHERE channel = 'web' AND holds > 0"), 1);
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", QUICK));
    wait_until("the hold to end and the messages to go", 20, || {
        it.call("run").done().exits(0);
        it.database.count(task, "sent") == 20
    });
    check(&it, task, &endpoint);
    assert_eq!(it.database.status(task), "finished");
}

fn a_rejected_target_fails_and_the_others_go_on(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.strip_prefix("rejected-") {
        Some(status) => Cue::Answer(status.parse().unwrap()),
        None => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    let rejected = [400, 404, 410, 413, 414, 415, 422, 451];
    let names = rejected.iter().map(|status| format!("rejected-{status}")).chain(["ann".into()]);
    let task = it.database.task("web", names);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "failed"), it.database.count(task, "sent")), (8, 1));
    for status in rejected {
        let row = it.database.target(task, &format!("rejected-{status}"));
        assert!(row.error.contains(&status.to_string()), "{row:?}");
    }
    assert_eq!(it.database.status(task), "finished");
    it.run();
    assert_eq!(endpoint.requests(), 9);
}

fn a_channel_at_fault_pauses_the_task_and_gives_the_attempt_back(it: Sandbox) {
    for status in [401, 402, 403, 407, 501, 505] {
        let name = format!("web{status}");
        let endpoint = Endpoint::new(move |_| Cue::Answer(status));
        it.configure("", &endpoint.channel(&name, "concurrency = 1"));
        let task = it.database.task(&name, ["ann", "bob"]);
        let run = it.call("run").done().exits(3);
        run.says(&[&status.to_string()]);
        let (standing, reason) = it.database.standing(task);
        assert!(standing == "paused" && reason.contains(&status.to_string()), "{standing}: {reason}");
        let rows = it.database.targets(task);
        assert!(rows.iter().all(|row| row.status == "pending" && row.attempts == 0), "{rows:?}");
        it.run();
    }
}

fn a_hundred_rejections_pause_the_task(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::Answer(422));
    it.configure("", &endpoint.channel("web", "concurrency = 4"));
    let task = it.database.task("web", (0..300).map(|n| format!("person-{n}")));
    it.call("run").done().exits(3);
    let failed = it.database.count(task, "failed");
    assert!((100..120).contains(&failed), "{failed} failed");
    assert_eq!(it.database.status(task), "paused");
    it.run();
}

fn every_target_rejected_finishes_the_task(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::Answer(400));
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", (0..30).map(|n| format!("person-{n}")));
    it.run();
    assert_eq!((it.database.count(task, "failed"), it.database.status(task).as_str()), (30, "finished"));
}

fn a_person_retries_failed_targets_with_a_new_key(it: Sandbox) {
    let endpoint = Endpoint::new(|request| if request.nth == 1 { Cue::Answer(422) } else { Cue::Accept });
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    it.run();
    assert_eq!(it.database.count(task, "failed"), 1);
    assert_eq!(it.database.status(task), "finished");
    let changed = it.call(&format!("retry {task} --yes --json")).done().exits(0).json();
    assert_eq!((changed["id"].as_u64(), changed["changed"].as_u64()), (Some(task), Some(1)));
    it.run();
    check(&it, task, &endpoint);
    let ann = it.database.target(task, "ann");
    assert_eq!((ann.status.as_str(), ann.attempts), ("sent", 2), "{ann:?}");
    let keys: Vec<_> = endpoint.all().iter().map(|request| request.body["key"].clone()).collect();
    assert_ne!(keys[0], keys[1]);
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_audit WHERE what = 'retry'"), 1);
}
