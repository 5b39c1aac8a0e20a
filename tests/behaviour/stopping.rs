//! Every way to stop: a signal, a spent budget, a pause, a cancel, an expiry. What is in flight is waited for, what
//! is not begun stays unsent, and nothing is forgotten.

use std::time::Duration;

use crate::support::{Cue, Endpoint, Process, Sandbox, check, wait_until};

on_each_database! {
    sigterm_waits_for_what_is_in_flight,
    a_second_sigterm_ends_at_once,
    a_spent_budget_leaves_the_rest_to_the_next_run,
    a_limit_is_a_limit,
    a_pause_stops_a_run_and_resume_goes_on,
    a_cancel_stops_a_run_for_good,
    an_expiry_stops_a_run,
    a_pause_stops_a_forced_run_too,
    a_forced_run_passes_the_pause_that_stood_when_it_started,
    to_pause_what_is_paused_stops_the_forced_run_that_passed_it,
    killed_then_paused_nothing_stays_in_flight,
    killed_then_cancelled_nothing_stays_in_flight,
    killed_then_expired_nothing_stays_in_flight,
    nothing_is_sent_before_its_time_or_after_its_end,
}

const RUN: &str = "lease = \"5s\"\nbatch_size = 50";
const KEYS: &str = "timeout = \"20s\"\nconcurrency = 4";

/// Forty targets, four of them in flight until told.
fn in_flight(it: &Sandbox, args: &str) -> (Endpoint, u64, Process) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure(RUN, &endpoint.channel("web", KEYS));
    let task = it.database.task("web", (0..40).map(|n| format!("person-{n}")));
    let run = it.call(&args.replace("{task}", &task.to_string())).start();
    wait_until("four messages to be in flight", 20, || endpoint.waiting() == 4);
    wait_until("the next claim", 20, || it.database.count(task, "processing") > 0);
    (endpoint, task, run)
}

/// A run that was told to stop, and has: the four are sent, the rest untouched.
#[track_caller]
fn four_sent_and_nothing_held(it: &Sandbox, task: u64, endpoint: &Endpoint) {
    check(it, task, endpoint);
    assert_eq!(it.database.count(task, "sent"), 4, "{:?}", it.database.counts(task));
    assert_eq!(it.database.count(task, "pending"), 36, "{:?}", it.database.counts(task));
    let held = format!(
        "SELECT COUNT(*) FROM batch_task WHERE id = {task} AND lock_until > {}",
        it.database.moment(0)
    );
    assert_eq!(it.database.number(&held), 0, "the lease is given back");
}

fn sigterm_waits_for_what_is_in_flight(it: Sandbox) {
    let (endpoint, task, mut run) = in_flight(&it, "run");
    run.terminate();
    wait_until("the rest to be given back", 20, || it.database.count(task, "processing") == 0);
    assert!(run.running(), "four messages are still in flight");
    endpoint.tell();
    run.wait().quietly();
    four_sent_and_nothing_held(&it, task, &endpoint);
    assert_eq!(it.database.status(task), "pending");
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 40);
}

fn a_second_sigterm_ends_at_once(it: Sandbox) {
    let (endpoint, task, run) = in_flight(&it, "run");
    run.terminate();
    wait_until("the rest to be given back", 20, || it.database.count(task, "processing") == 0);
    run.terminate();
    let ended = run.wait();
    assert_ne!(ended.code(), Some(0), "it left messages in flight: {ended}");
    check(&it, task, &endpoint);
    it.database.claims_end(task);
    endpoint.tell();
    it.call("run").done().exits(3);
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "unknown"), it.database.count(task, "sent")), (4, 36));
}

fn a_spent_budget_leaves_the_rest_to_the_next_run(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptAfter(Duration::from_millis(100)));
    it.configure(RUN, &endpoint.channel("web", "concurrency = 1"));
    let task = it.database.task("web", (0..60).map(|n| format!("person-{n}")));
    it.call("run --budget 1s").done().quietly();
    let sent = it.database.count(task, "sent");
    assert!((1..60).contains(&sent), "{sent} sent in a second");
    assert_eq!(it.database.count(task, "pending"), 60 - sent);
    check(&it, task, &endpoint);
    it.run();
    assert_eq!(it.database.count(task, "sent"), 60);
    check(&it, task, &endpoint);
}

fn a_limit_is_a_limit(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", (0..60).map(|n| format!("person-{n}")));
    it.call("run --limit 7").done().quietly();
    assert_eq!((endpoint.requests(), it.database.count(task, "sent")), (7, 7));
    assert_eq!(it.database.count(task, "pending"), 53);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 60);
}

fn a_pause_stops_a_run_and_resume_goes_on(it: Sandbox) {
    let (endpoint, task, run) = in_flight(&it, "run");
    it.call(&format!("task pause {task} --reason")).arg("the text is wrong").done().exits(0);
    wait_until("the rest to be given back", 20, || it.database.count(task, "processing") == 0);
    endpoint.tell();
    run.wait().exits(0);
    four_sent_and_nothing_held(&it, task, &endpoint);
    let (status, reason) = it.database.standing(task);
    assert_eq!(status, "paused");
    assert!(reason.contains("the text is wrong"), "{reason}");
    it.run();
    assert_eq!(endpoint.requests(), 4, "a paused task stays as it is");
    it.call(&format!("task resume {task}")).done().exits(0);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (40, "finished"));
}

fn a_cancel_stops_a_run_for_good(it: Sandbox) {
    let (endpoint, task, run) = in_flight(&it, "run");
    it.call(&format!("task cancel {task} --yes")).done().exits(0);
    wait_until("the rest to be given back", 20, || it.database.count(task, "processing") == 0);
    endpoint.tell();
    run.wait().exits(0);
    four_sent_and_nothing_held(&it, task, &endpoint);
    it.run();
    assert_eq!(it.database.status(task), "cancelled");
    assert_eq!(endpoint.requests(), 4);
    assert_ne!(it.database.text(&format!("SELECT finished_at FROM batch_task WHERE id = {task}")), "");
    it.call(&format!("task resume {task}")).done().exits(2);
}

fn an_expiry_stops_a_run(it: Sandbox) {
    let (endpoint, task, run) = in_flight(&it, "run");
    it.database
        .execute(&format!("UPDATE batch_task SET expires_at = {} WHERE id = {task}", it.database.moment(-1)));
    wait_until("the rest to be given back", 20, || it.database.count(task, "processing") == 0);
    endpoint.tell();
    let run = run.wait();
    assert!(matches!(run.code(), Some(0 | 3)), "{run}");
    four_sent_and_nothing_held(&it, task, &endpoint);
    // Whoever sees it first pauses it and says so; after that it is quiet.
    let next = it.call("run").done();
    assert!(run.code() == Some(3) || next.code() == Some(3), "nobody told of it: {run}{next}");
    let (status, reason) = it.database.standing(task);
    assert!(status == "paused" && reason.contains("expire"), "{status}: {reason}");
    it.run();
    assert_eq!(endpoint.requests(), 4);
    it.call(&format!("task resume {task} --until never")).done().exits(0);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 40);
}

fn a_pause_stops_a_forced_run_too(it: Sandbox) {
    let (endpoint, task, run) = in_flight(&it, "run --task-id {task} --force");
    it.call(&format!("task pause {task}")).done().exits(0);
    wait_until("the rest to be given back", 20, || it.database.count(task, "processing") == 0);
    endpoint.tell();
    run.wait().exits(0);
    four_sent_and_nothing_held(&it, task, &endpoint);
}

fn a_forced_run_passes_the_pause_that_stood_when_it_started(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "bob"]);
    it.call(&format!("task pause {task}")).done().exits(0);
    it.call(&format!("run --task-id {task}")).done().exits(1);
    assert_eq!(endpoint.requests(), 0);
    it.call(&format!("run --task-id {task} --force")).done().exits(0);
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 2);
    assert_eq!(it.database.status(task), "paused");
}

fn to_pause_what_is_paused_stops_the_forced_run_that_passed_it(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure(RUN, &endpoint.channel("web", KEYS));
    let task = it.database.task("web", (0..40).map(|n| format!("person-{n}")));
    it.call(&format!("task pause {task} --reason typo")).done().exits(0);
    let run = it.call(&format!("run --task-id {task} --force")).start();
    wait_until("four messages to be in flight", 20, || endpoint.waiting() == 4);
    it.call(&format!("task pause {task}")).done().exits(0);
    wait_until("the rest to be given back", 20, || it.database.count(task, "processing") == 0);
    endpoint.tell();
    run.wait().exits(0);
    four_sent_and_nothing_held(&it, task, &endpoint);
    assert_eq!(it.database.standing(task), ("paused".into(), "typo".into()), "the first reason stands");
}

/// Killed with four in flight; then `stop`; then runs. All four end as unknown and the rest stays unsent.
fn killed_then(it: &Sandbox, stop: impl FnOnce(u64)) -> u64 {
    let (endpoint, task, run) = in_flight(it, "run");
    run.kill();
    stop(task);
    it.database.claims_end(task);
    endpoint.tell();
    it.call("run").done().exits(3);
    check(it, task, &endpoint);
    assert_eq!((it.database.count(task, "unknown"), it.database.count(task, "pending")), (4, 36));
    it.run();
    assert_eq!(endpoint.requests(), 4);
    task
}

fn killed_then_paused_nothing_stays_in_flight(it: Sandbox) {
    let task = killed_then(&it, |task| {
        it.call(&format!("task pause {task}")).done().exits(0);
    });
    assert_eq!(it.database.status(task), "paused");
}

fn killed_then_cancelled_nothing_stays_in_flight(it: Sandbox) {
    let task = killed_then(&it, |task| {
        it.call(&format!("task cancel {task} --yes")).done().exits(0);
    });
    assert_eq!(it.database.status(task), "cancelled");
    assert_ne!(it.database.text(&format!("SELECT finished_at FROM batch_task WHERE id = {task}")), "");
}

fn killed_then_expired_nothing_stays_in_flight(it: Sandbox) {
    let task = killed_then(&it, |task| {
        let past = it.database.moment(-1);
        it.database.execute(&format!("UPDATE batch_task SET expires_at = {past} WHERE id = {task}"));
    });
    assert_eq!(it.database.status(task), "paused");
}

fn nothing_is_sent_before_its_time_or_after_its_end(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let set = |task: u64, column: &str, seconds: i64| {
        let moment = it.database.moment(seconds);
        it.database.execute(&format!("UPDATE batch_task SET {column} = {moment} WHERE id = {task}"));
    };
    let early = it.database.draft("web");
    it.database.add(early, ["early"]);
    set(early, "scheduled_at", 3600);
    it.database.execute(&format!("UPDATE batch_task SET status = 'pending' WHERE id = {early}"));
    let draft = it.database.draft("web");
    it.database.add(draft, ["draft"]);
    it.run();
    for (task, word) in [(early, "scheduled"), (draft, "draft")] {
        it.call(&format!("run --task-id {task}")).done().exits(1).says(&[word]);
    }
    assert_eq!(endpoint.requests(), 0);
    set(early, "scheduled_at", -1);
    it.run();
    assert_eq!(it.database.status(early), "finished");
    let late = it.database.draft("web");
    it.database.add(late, ["late"]);
    set(late, "expires_at", -1);
    it.database.execute(&format!("UPDATE batch_task SET status = 'pending' WHERE id = {late}"));
    it.call("run").done().exits(3);
    assert_eq!(endpoint.requests(), 1);
    assert_eq!((it.database.count(late, "pending"), it.database.status(late).as_str()), (1, "paused"));
    it.call(&format!("run --task-id {late} --force")).done().exits(1);
    assert_eq!(endpoint.requests(), 1);
}
