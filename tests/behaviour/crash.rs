//! Killed with SIGKILL at each step of the relay. What was delivered is never sent again, what was not begun is
//! sent, and a crash leaves no more unknown than were in flight.

use std::time::Duration;

use crate::support::{Cue, Endpoint, FullHouse, Gate, Sandbox, check, finish, unknown_at_most, wait_until};

on_each_database! {
    killed_in_flight,
    killed_before_the_first_byte,
    killed_between_the_answer_and_its_row,
    killed_again_and_again;
    mysql alone:
    killed_inside_the_lease,
    killed_inside_the_claim,
    killed_inside_the_begin,
    killed_inside_the_settle,
}

const RUN: &str = "lease = \"3s\"\nbatch_size = 50";
const KEYS: &str = "timeout = \"1s\"\nconcurrency = 4";

fn people() -> Vec<String> {
    (0..40).map(|n| format!("person-{n}")).collect()
}

fn killed_in_flight(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure(RUN, &endpoint.channel("web", "timeout = \"20s\"\nconcurrency = 4"));
    let task = it.database.task("web", people());
    let run = it.call("run").start();
    wait_until("four messages to be in flight", 20, || endpoint.waiting() == 4);
    wait_until("the next claim", 20, || it.database.count(task, "processing") > 0);
    run.kill();
    endpoint.tell();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sending"), 4);
    assert!(it.database.count(task, "processing") > 0, "{:?}", it.database.counts(task));

    it.database.claims_end(task);
    let next = it.call("run").done().exits(3);
    assert!(!next.stderr.is_empty(), "unknown targets are told of: {next}");
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "unknown"), it.database.count(task, "sent")), (4, 36));
    for row in it.database.targets(task).iter().filter(|row| row.status == "unknown") {
        assert!(row.attempts == 1 && !row.error.is_empty(), "{row:?}");
    }
    assert_eq!(it.database.status(task), "finished");
    it.run();
}

fn killed_before_the_first_byte(it: Sandbox) {
    let full = FullHouse::new();
    it.configure(RUN, &full.channel("web", "timeout = \"20s\"\nconcurrency = 4"));
    let task = it.database.task("web", people());
    let run = it.call("run").start();
    wait_until("four targets to be begun", 20, || it.database.count(task, "sending") == 4);
    run.kill();
    assert_eq!(full.bytes_heard(Duration::from_secs(1)), 0);

    let endpoint = Endpoint::accepting();
    it.configure(RUN, &endpoint.channel("web", KEYS));
    it.database.claims_end(task);
    finish(&it, task, &endpoint, 4);
}

fn killed_between_the_answer_and_its_row(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure(RUN, &endpoint.channel("web", "timeout = \"20s\"\nconcurrency = 4"));
    let task = it.database.task("web", people());
    let run = it.call("run").start();
    wait_until("four messages to be in flight", 20, || endpoint.waiting() == 4);
    // A third session holds the rows, so that the answers cannot be written.
    let other = it.database.another();
    match it.database.engine {
        crate::support::Engine::Sqlite => other.execute("BEGIN IMMEDIATE"),
        crate::support::Engine::MySql => {
            other.execute("BEGIN");
            other.rows(&format!("SELECT * FROM batch_task_target WHERE task_id = {task} FOR UPDATE"));
        }
    }
    endpoint.tell();
    wait_until("the answers to have left", 20, || endpoint.waiting() == 0);
    run.kill();
    other.execute("ROLLBACK");
    check(&it, task, &endpoint);
    it.database.claims_end(task);
    finish(&it, task, &endpoint, 4);
}

fn killed_again_and_again(it: Sandbox) {
    let seed = std::env::var("BATCH_SEND_TEST_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    eprintln!("BATCH_SEND_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let endpoint = Endpoint::new(|_| Cue::AcceptAfter(Duration::from_millis(5)));
    it.configure(RUN, &endpoint.channel("web", KEYS));
    let task = it.database.task("web", (0..2_000).map(|n| format!("person-{n}")));
    let mut kills = 0;
    for _ in 0..8 {
        let run = it.call("run").start();
        let asleep = Duration::from_millis(random.u64(20..700));
        std::thread::sleep(asleep);
        run.kill();
        kills += 1;
        check(&it, task, &endpoint);
        it.database.claims_end(task);
        // Crashes count towards the Unknowns that pause a task: a person looks, and lets it go on.
        it.database.execute(&format!("UPDATE batch_task SET unknown_run = 0 WHERE id = {task}"));
    }
    finish(&it, task, &endpoint, 4 * kills);
    assert!(it.database.count(task, "sent") > 0);
}

/// Killed inside the statement that the gate holds; the server may still carry it out.
fn killed_at(it: &Sandbox, gate: impl FnOnce(&Sandbox) -> Gate, most_unknown: u64) {
    let endpoint = Endpoint::accepting();
    it.configure(RUN, &endpoint.channel("web", KEYS));
    let task = it.database.task("web", people());
    let gate = gate(it);
    let run = it.call("run").start();
    gate.reached();
    run.kill();
    gate.open();
    check(it, task, &endpoint);
    finish(it, task, &endpoint, most_unknown);
    unknown_at_most(it, task, most_unknown);
}

fn killed_inside_the_lease(it: Sandbox) {
    killed_at(&it, |it| Gate::on_lease(&it.database), 0);
}

fn killed_inside_the_claim(it: Sandbox) {
    killed_at(&it, |it| Gate::on_targets(&it.database, "pending", "processing"), 0);
}

fn killed_inside_the_begin(it: Sandbox) {
    killed_at(&it, |it| Gate::on_targets(&it.database, "processing", "sending"), 4);
}

fn killed_inside_the_settle(it: Sandbox) {
    killed_at(&it, |it| Gate::on_targets(&it.database, "sending", "sent"), 4);
}
