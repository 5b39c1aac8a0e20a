//! Stopped with SIGSTOP, as by a suspended machine, for longer than lease and claim last; another host takes over; then it
//! wakes up. It sends nothing that is not its own any more, and what it was answered still counts.

use std::time::Duration;

use crate::support::{Cue, Endpoint, FullHouse, Gate, Sandbox, check, finish, wait_until};

on_each_database! {
    late_answers_count,
    late_answers_count_after_a_takeover_in_real_time,
    stopped_before_the_first_byte_it_lets_nothing_leave,
    stopped_again_and_again,
    paused_while_it_was_stopped_it_begins_nothing_more;
    mysql alone:
    stopped_between_the_begin_and_the_first_byte_it_lets_nothing_leave,
    stopped_inside_the_claim,
    stopped_inside_the_begin,
    stopped_inside_the_settle,
}

const RUN: &str = "lease = \"3s\"\nbatch_size = 50";
const KEYS: &str = "timeout = \"1s\"\nconcurrency = 4";

fn people() -> Vec<String> {
    (0..40).map(|n| format!("person-{n}")).collect()
}

fn paused_while_it_was_stopped_it_begins_nothing_more(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure(
        "lease = \"30s\"\nbatch_size = 50",
        &endpoint.channel("web", "timeout = \"60s\"\nconcurrency = 4"),
    );
    let task = it.database.task("web", people());
    let sleeper = it.call("run").start();
    wait_until("four messages to be in flight", 20, || endpoint.waiting() == 4);
    wait_until("the next claim", 20, || it.database.count(task, "processing") > 0);
    it.stop(&sleeper);
    // It renews each second: by its end the lease is three seconds old.
    let end = it.database.moment(27);
    wait_until("it to stand still for long", 20, || {
        it.database
            .number(&format!("SELECT COUNT(*) FROM batch_task WHERE id = {task} AND lock_until < {end}"))
            == 1
    });
    it.call(&format!("task pause {task}")).done().exits(0);
    // Its answers are there when it wakes up, and its senders idle.
    endpoint.tell();
    wait_until("the answers to be on their way", 20, || endpoint.waiting() == 0);
    sleeper.go_on();
    sleeper.wait().quietly();
    assert_eq!(endpoint.requests(), 4);
    assert_eq!((it.database.count(task, "sent"), it.database.count(task, "pending")), (4, 36));
    check(&it, task, &endpoint);
}

fn late_answers_count(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "accepted" => Cue::AcceptWhenTold,
        "rejected" => Cue::AnswerWhenTold(422),
        "deferred" => Cue::AnswerWhenTold(421),
        "unclear" => Cue::AnswerWhenTold(500),
        _ => Cue::Accept,
    });
    it.configure(RUN, &endpoint.channel("web", "timeout = \"60s\"\nconcurrency = 4"));
    let names = ["accepted", "rejected", "deferred", "unclear"].map(String::from);
    let task = it.database.task("web", names.into_iter().chain(people()));
    let sleeper = it.call_on_host(1, "run").start();
    wait_until("four messages to be in flight", 20, || endpoint.waiting() == 4);
    it.stop(&sleeper);
    it.database.claims_end(task);

    it.call_on_host(2, "run").done().exits(3);
    assert_eq!((it.database.count(task, "unknown"), it.database.count(task, "sent")), (4, 40));
    check(&it, task, &endpoint);

    endpoint.tell();
    sleeper.go_on();
    let woken = sleeper.wait();
    assert!(matches!(woken.code(), Some(0 | 3)), "{woken}");
    check(&it, task, &endpoint);
    for (name, status) in
        [("accepted", "sent"), ("rejected", "failed"), ("deferred", "failed"), ("unclear", "unknown")]
    {
        let row = it.database.target(task, name);
        assert_eq!(row.status, status, "{row:?}");
    }
    assert_eq!(endpoint.requests(), 44);
    it.run();
}

fn late_answers_count_after_a_takeover_in_real_time(it: Sandbox) {
    let endpoint = Endpoint::new(|request| {
        if request.nth == 1 && request.recipient.ends_with("-0") { Cue::AcceptWhenTold } else { Cue::Accept }
    });
    it.configure(RUN, &endpoint.channel("web", "timeout = \"2s\"\nconcurrency = 4"));
    let task = it.database.task("web", people());
    let sleeper = it.call_on_host(1, "run").start();
    wait_until("a message to be in flight", 20, || endpoint.waiting() == 1);
    it.stop(&sleeper);
    endpoint.tell();
    wait_until("leases and claims to end", 30, || it.database.nothing_held());
    let taker = it.call_on_host(2, "run").done();
    assert!(matches!(taker.code(), Some(0 | 3)), "{taker}");
    sleeper.go_on();
    let woken = sleeper.wait();
    assert!(matches!(woken.code(), Some(0 | 3)), "{woken}");
    finish(&it, task, &endpoint, 4);
}

fn stopped_before_the_first_byte_it_lets_nothing_leave(it: Sandbox) {
    let full = FullHouse::new();
    it.configure(RUN, &full.channel("web", "timeout = \"2s\"\nconcurrency = 4"));
    let task = it.database.task("web", people());
    let sleeper = it.call_on_host(1, "run").start();
    wait_until("four targets to be begun", 20, || it.database.count(task, "sending") == 4);
    it.stop(&sleeper);
    wait_until("leases and claims to end", 30, || it.database.nothing_held());
    sleeper.go_on();
    sleeper.terminate();
    assert_eq!(full.bytes_heard(Duration::from_secs(3)), 0, "the time allowed had passed");
    sleeper.wait();
    let endpoint = Endpoint::accepting();
    it.configure(RUN, &endpoint.channel("web", KEYS));
    it.database.execute("DELETE FROM batch_pace");
    finish(&it, task, &endpoint, 0);
}

fn stopped_again_and_again(it: Sandbox) {
    let seed = std::env::var("BATCH_SEND_TEST_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    eprintln!("BATCH_SEND_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let endpoint = Endpoint::new(|_| Cue::AcceptAfter(Duration::from_millis(5)));
    it.configure(RUN, &endpoint.channel("web", &format!("{KEYS}\nstop_after_unknown = 1000")));
    let task = it.database.task("web", (0..3_000).map(|n| format!("person-{n}")));
    let stops = 5;
    for _ in 0..stops {
        let sleeper = it.call_on_host(1, "run").start();
        std::thread::sleep(Duration::from_millis(random.u64(20..500)));
        it.stop(&sleeper);
        it.database.claims_end(task);
        // A person's run that is over soon: it takes what the sleeper left.
        let taker = it.call_on_host(2, "run --limit 100").done();
        assert!(matches!(taker.code(), Some(0 | 3)), "{taker}");
        sleeper.go_on();
        sleeper.terminate();
        let woken = sleeper.wait();
        // No code: it was told to stop before it had begun anything, and knew of no better way.
        assert!(matches!(woken.code(), Some(0 | 3) | None), "{woken}");
        check(&it, task, &endpoint);
    }
    finish(&it, task, &endpoint, 4 * stops);
    assert!(it.database.count(task, "sent") > 0);
}

fn stopped_between_the_begin_and_the_first_byte_it_lets_nothing_leave(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure(RUN, &endpoint.channel("web", KEYS));
    let task = it.database.task("web", people());
    let gate = Gate::on_targets(&it.database, "processing", "sending");
    let sleeper = it.call_on_host(1, "run").start();
    gate.reached();
    sleeper.stop();
    // The server carries it out, and the one who asked does not hear of it yet.
    gate.open();
    wait_until("four targets to be begun", 20, || it.database.count(task, "sending") == 4);
    wait_until("leases and claims to end", 30, || it.database.nothing_held());
    it.call_on_host(2, "run").done().exits(3);
    assert_eq!((it.database.count(task, "unknown"), it.database.count(task, "sent")), (4, 36));

    sleeper.go_on();
    let woken = sleeper.wait();
    assert!(matches!(woken.code(), Some(0 | 3)), "{woken}");
    check(&it, task, &endpoint);
    assert_eq!(endpoint.requests(), 36, "it woke up past its time");
    for row in it.database.targets(task).iter().filter(|row| row.status != "sent") {
        assert!(row.status == "failed" && row.error.contains("not accepted"), "{row:?}");
    }
}

/// Stopped inside the statement that the gate holds, until lease and claims have ended; then let go.
fn stopped_at(it: &Sandbox, from: &str, to: &str, most_unknown: u64) {
    let endpoint = Endpoint::accepting();
    it.configure(RUN, &endpoint.channel("web", KEYS));
    let task = it.database.task("web", people());
    let gate = Gate::on_targets(&it.database, from, to);
    let sleeper = it.call_on_host(1, "run").start();
    gate.reached();
    sleeper.stop();
    gate.open();
    wait_until("leases and claims to end", 30, || it.database.nothing_held());
    sleeper.go_on();
    let woken = sleeper.wait();
    assert!(matches!(woken.code(), Some(0 | 3)), "{woken}");
    check(it, task, &endpoint);
    finish(it, task, &endpoint, most_unknown);
}

fn stopped_inside_the_claim(it: Sandbox) {
    stopped_at(&it, "pending", "processing", 0);
}

fn stopped_inside_the_begin(it: Sandbox) {
    stopped_at(&it, "processing", "sending", 4);
}

fn stopped_inside_the_settle(it: Sandbox) {
    stopped_at(&it, "sending", "sent", 4);
}
