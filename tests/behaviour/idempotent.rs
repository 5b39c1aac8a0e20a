//! A channel whose provider drops a message whose key it has seen (`idempotent_for`): what may have arrived is sent again by
//! itself, with the same key and the very same bytes, while the provider certainly remembers, and never after that.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::support::endpoint::Request;
use crate::support::{Cue, Endpoint, FullHouse, Sandbox, check, wait_until};

on_each_database! {
    an_answer_that_was_lost_is_asked_for_again_with_the_same_key_and_the_same_bytes,
    after_the_window_nothing_in_doubt_is_sent,
    what_could_not_end_within_the_window_is_not_begun,
    the_window_counts_from_the_first_attempt_in_doubt,
    doubt_outlasts_every_later_refusal,
    a_busy_channel_does_not_end_the_doubt,
    certainty_about_the_first_attempt_is_no_doubt,
    attempts_used_up_in_doubt_end_as_unknown,
    killed_with_its_last_attempt_in_flight_it_is_not_sent_again,
    killed_in_flight_it_is_sent_again_only_within_the_window,
    a_key_that_is_configured_after_the_crash_was_not_sent_before_it,
    a_window_that_is_taken_away_or_made_longer_is_no_window_for_what_is_in_doubt,
    what_was_edited_between_attempts_is_not_sent,
    stopped_before_the_first_byte_it_lets_nothing_leave_after_the_window,
    a_body_that_tells_attempts_apart_is_refused,
    a_persons_retry_bears_another_key_so_that_a_stored_refusal_is_not_replayed,
    a_persons_word_sends_again_under_the_same_key_after_the_window,
    the_key_stands_in_the_header_that_the_channel_names,
}

/// Retries wait for [`due`].
const KEYS: &str = "timeout = \"5s\"\nconcurrency = 2\nbackoff = { first = \"1h\", most = \"1h\" }\nidempotent_for = \"24h\"\n";

/// For the rows the waits are over.
fn due(it: &Sandbox) {
    let past = it.database.moment(-1);
    it.database.execute(&format!("UPDATE batch_task_target SET retry_at = {past} WHERE status = 'retry'"));
}

/// The provider's memory of what is in doubt ends so many seconds from now.
fn window_ends_in(it: &Sandbox, seconds: i64) {
    let end = it.database.moment(seconds);
    let sql = format!("UPDATE batch_task_target SET dedupe_until = {end} WHERE dedupe_until IS NOT NULL");
    it.database.execute(&sql);
}

fn window(it: &Sandbox) -> String {
    it.database.text("SELECT dedupe_until FROM batch_task_target")
}

/// Loses the answer to the first request for each recipient; then `later`.
fn losing_the_first(later: Cue) -> Endpoint {
    Endpoint::remembering(move |request| if request.nth == 1 { Cue::AcceptThenClose } else { later })
}

/// A task for ann alone, whose first answer was lost: she waits to be sent again.
fn in_doubt(it: &Sandbox, endpoint: &Endpoint, keys: &str) -> u64 {
    it.configure("lease = \"3s\"", &endpoint.channel("web", keys));
    let task = it.database.task("web", ["ann"]);
    it.run();
    let ann = it.database.target(task, "ann");
    assert_eq!((ann.status.as_str(), ann.attempts, endpoint.requests()), ("retry", 1, 1), "{ann:?}");
    task
}

/// Ann ends as unknown at the next run, which sends nothing.
#[track_caller]
fn ends_unknown_and_unsent(it: &Sandbox, task: u64, endpoint: &Endpoint) {
    let before = endpoint.requests();
    let run = it.call("run").done().exits(3);
    assert!(!run.stderr.is_empty(), "{run}");
    let ann = it.database.target(task, "ann");
    assert!(ann.status == "unknown" && !ann.error.is_empty(), "{ann:?}");
    it.run();
    assert_eq!(endpoint.requests(), before);
    check(it, task, endpoint);
}

#[track_caller]
fn the_same_to_the_byte(requests: &[Request]) {
    let key = requests[0].key().expect("it bears a key");
    assert_eq!(requests[0].body["key"], key);
    for request in requests {
        assert_eq!((request.key(), &request.text), (Some(key), &requests[0].text));
    }
}

fn an_answer_that_was_lost_is_asked_for_again_with_the_same_key_and_the_same_bytes(it: Sandbox) {
    let endpoint = losing_the_first(Cue::Accept);
    let task = in_doubt(&it, &endpoint, KEYS);
    it.run();
    assert_eq!(endpoint.requests(), 1, "it is not due yet");
    due(&it);
    it.run();
    check(&it, task, &endpoint);
    let ann = it.database.target(task, "ann");
    assert_eq!((ann.status.as_str(), ann.attempts, ann.receipt.as_str()), ("sent", 2, "r-1"), "{ann:?}");
    assert_eq!(it.database.status(task), "finished");
    let requests = endpoint.all();
    assert_eq!(requests.len(), 2);
    the_same_to_the_byte(&requests);
}

fn after_the_window_nothing_in_doubt_is_sent(it: Sandbox) {
    let endpoint = losing_the_first(Cue::Accept);
    let task = in_doubt(&it, &endpoint, KEYS);
    window_ends_in(&it, -1);
    endpoint.forget();
    due(&it);
    ends_unknown_and_unsent(&it, task, &endpoint);
}

fn what_could_not_end_within_the_window_is_not_begun(it: Sandbox) {
    let endpoint = losing_the_first(Cue::Accept);
    let task = in_doubt(&it, &endpoint, KEYS);
    // Longer than an answer takes, shorter than one may take.
    window_ends_in(&it, 3);
    due(&it);
    ends_unknown_and_unsent(&it, task, &endpoint);
}

fn the_window_counts_from_the_first_attempt_in_doubt(it: Sandbox) {
    let endpoint = Endpoint::remembering(|request| match request.nth {
        1 | 3 => Cue::AcceptThenClose,
        2 => Cue::AcceptThenReset,
        _ => Cue::Accept,
    });
    let task = in_doubt(&it, &endpoint, KEYS);
    let first = window(&it);
    assert!(!first.is_empty());
    for attempts in 2..=3 {
        due(&it);
        it.run();
        assert_eq!(it.database.target(task, "ann").attempts, attempts);
        assert_eq!(window(&it), first, "it moved with attempt {attempts}");
    }
    due(&it);
    it.run();
    check(&it, task, &endpoint);
    the_same_to_the_byte(&endpoint.all());
    assert_eq!(it.database.count(task, "sent"), 1);
}

fn doubt_outlasts_every_later_refusal(it: Sandbox) {
    // What proves that a first attempt failed proves nothing of one before it.
    for (status, becomes) in
        [(422, "unknown"), (404, "unknown"), (409, "retry"), (421, "retry"), (500, "retry")]
    {
        let endpoint = losing_the_first(Cue::Answer(status));
        let task = in_doubt(&it, &endpoint, &format!("{KEYS}stop_after_unknown = 100"));
        due(&it);
        let run = it.call("run").done();
        assert!(matches!(run.code(), Some(0 | 3)), "{run}");
        let ann = it.database.target(task, "ann");
        assert!(ann.status == becomes && ann.error.contains(&status.to_string()), "{ann:?}");
        check(&it, task, &endpoint);
        if becomes == "retry" {
            window_ends_in(&it, -1);
            endpoint.forget();
            due(&it);
            ends_unknown_and_unsent(&it, task, &endpoint);
        }
        assert_eq!(endpoint.requests(), 2, "{status}");
        it.database.execute("DELETE FROM batch_task_target");
    }
}

fn a_busy_channel_does_not_end_the_doubt(it: Sandbox) {
    for (name, cue) in [("busy", Cue::Busy(429, 1)), ("at_fault", Cue::Answer(401))] {
        let endpoint = losing_the_first(cue);
        it.configure("", &endpoint.channel(name, KEYS));
        let task = it.database.task(name, ["ann"]);
        it.run();
        due(&it);
        let run = it.call("run").done();
        assert!(matches!(run.code(), Some(0 | 3)), "{run}");
        let ann = it.database.target(task, "ann");
        assert_eq!((ann.status.as_str(), ann.attempts), ("pending", 1), "{name}: {ann:?}");
        window_ends_in(&it, -1);
        endpoint.forget();
        it.database.execute("DELETE FROM batch_pace");
        if it.database.status(task) == "paused" {
            it.call(&format!("task resume {task}")).done().exits(0);
        }
        ends_unknown_and_unsent(&it, task, &endpoint);
        assert_eq!(endpoint.requests(), 2);
    }
}

fn certainty_about_the_first_attempt_is_no_doubt(it: Sandbox) {
    let endpoint = Endpoint::remembering(|request| match (request.recipient.as_str(), request.nth) {
        ("refused", _) => Cue::Answer(422),
        ("later", 1) => Cue::Answer(421),
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", KEYS));
    let task = it.database.task("web", ["refused", "later"]);
    it.run();
    assert_eq!(it.database.target(task, "refused").status, "failed");
    assert_eq!(it.database.target(task, "later").status, "retry");
    assert_eq!(
        it.database.number("SELECT COUNT(*) FROM batch_task_target WHERE dedupe_until IS NOT NULL"),
        0
    );
    // Nothing of it has arrived: edited, it is sent as it is now.
    it.database.execute("UPDATE batch_task_target SET params = '{\"name\": \"Later\"}'");
    due(&it);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.target(task, "later").status, "sent");
}

fn attempts_used_up_in_doubt_end_as_unknown(it: Sandbox) {
    for (name, later) in [("deferred", Cue::Answer(421)), ("lost", Cue::AcceptThenClose)] {
        let endpoint = losing_the_first(later);
        it.configure("", &endpoint.channel(name, &format!("{KEYS}max_attempts = 3")));
        let task = it.database.task(name, ["ann"]);
        for attempt in 1..=3 {
            let run = it.call("run").done();
            assert_eq!(run.code(), Some(if attempt == 3 { 3 } else { 0 }), "{run}");
            assert_eq!(it.database.target(task, "ann").attempts, attempt);
            due(&it);
        }
        assert_eq!(
            it.database.target(task, "ann").status,
            "unknown",
            "never failed: the first may have arrived"
        );
        it.run();
        assert_eq!(endpoint.requests(), 3);
        check(&it, task, &endpoint);
    }
}

/// A run that was killed with ann's message in flight, which arrived; its claim has ended.
fn killed_in_flight(it: &Sandbox, keys: &str) -> (u64, Endpoint) {
    let endpoint =
        Endpoint::remembering(|request| if request.nth == 1 { Cue::AcceptWhenTold } else { Cue::Accept });
    it.configure("lease = \"3s\"", &endpoint.channel("web", &keys.replace("\"5s\"", "\"60s\"")));
    let task = it.database.task("web", ["ann"]);
    let run = it.call("run").start();
    wait_until("the message to be in flight", 20, || endpoint.waiting() == 1);
    run.kill();
    endpoint.tell();
    it.database.claims_end(task);
    (task, endpoint)
}

fn killed_in_flight_it_is_sent_again_only_within_the_window(it: Sandbox) {
    let keys = format!("{KEYS}idempotency_header = \"Idempotency-Key\"\n");
    let (task, endpoint) = killed_in_flight(&it, &keys);
    it.run();
    check(&it, task, &endpoint);
    let ann = it.database.target(task, "ann");
    assert_eq!((ann.status.as_str(), ann.attempts, ann.receipt.as_str()), ("sent", 2, "r-1"), "{ann:?}");
    the_same_to_the_byte(&endpoint.all());

    it.database.execute("DELETE FROM batch_task_target");
    let (task, endpoint) = killed_in_flight(&it, &keys);
    window_ends_in(&it, -1);
    endpoint.forget();
    ends_unknown_and_unsent(&it, task, &endpoint);

    it.database.execute("DELETE FROM batch_task_target");
    let (task, endpoint) = killed_in_flight(&it, &keys.replace("idempotent_for", "#idempotent_for"));
    ends_unknown_and_unsent(&it, task, &endpoint);
}

fn killed_with_its_last_attempt_in_flight_it_is_not_sent_again(it: Sandbox) {
    let (task, endpoint) = killed_in_flight(&it, &format!("{KEYS}max_attempts = 1"));
    ends_unknown_and_unsent(&it, task, &endpoint);
    assert_eq!((endpoint.requests(), it.database.target(task, "ann").attempts), (1, 1));
}

fn a_key_that_is_configured_after_the_crash_was_not_sent_before_it(it: Sandbox) {
    let endpoint = Endpoint::new(|request| if request.nth == 1 { Cue::AcceptWhenTold } else { Cue::Accept });
    it.configure("lease = \"3s\"", &endpoint.channel("web", "timeout = \"20s\"\nconcurrency = 1"));
    let task = it.database.task("web", ["ann", "bob"]);
    let run = it.call("run").start();
    wait_until("the message to be in flight", 20, || endpoint.waiting() == 1);
    run.kill();
    endpoint.tell();
    assert!(endpoint.all()[0].key().is_none(), "no key where none is asked for");
    it.configure("lease = \"3s\"", &endpoint.channel("web", KEYS));
    it.database.claims_end(task);
    it.call("run").done().exits(3);
    check(&it, task, &endpoint);
    let statuses = ["ann", "bob"].map(|name| it.database.target(task, name).status);
    assert_eq!(statuses, ["unknown", "sent"]);
    assert_eq!(endpoint.requests(), 2);
}

fn a_window_that_is_taken_away_or_made_longer_is_no_window_for_what_is_in_doubt(it: Sandbox) {
    for (today, ends_in) in [
        (KEYS.replace("idempotent_for", "#idempotent_for"), 3_600),
        (KEYS.replace("24h", "2h"), -1),
        (KEYS.replace("24h", "30d"), -1),
    ] {
        let endpoint = losing_the_first(Cue::Accept);
        let task = in_doubt(&it, &endpoint, KEYS);
        window_ends_in(&it, ends_in);
        if ends_in < 0 {
            endpoint.forget();
        }
        it.configure("", &endpoint.channel("web", &today));
        due(&it);
        ends_unknown_and_unsent(&it, task, &endpoint);
        it.database.execute("DELETE FROM batch_task_target");
    }
}

fn what_was_edited_between_attempts_is_not_sent(it: Sandbox) {
    for edit in [
        "UPDATE batch_task_target SET params = '{\"name\": \"Ann\"}'",
        "UPDATE batch_task SET payload = '{\"text\": \"Hello\"}'",
        "UPDATE batch_task SET name = 'another name'",
    ] {
        let endpoint = losing_the_first(Cue::Accept);
        let task = in_doubt(&it, &endpoint, KEYS);
        it.database.execute(edit);
        due(&it);
        ends_unknown_and_unsent(&it, task, &endpoint);
        it.database.execute("DELETE FROM batch_task_target");
    }
}

fn stopped_before_the_first_byte_it_lets_nothing_leave_after_the_window(it: Sandbox) {
    let endpoint = losing_the_first(Cue::Accept);
    let task = in_doubt(&it, &endpoint, KEYS);
    let full = FullHouse::new();
    it.configure("lease = \"3s\"", &full.channel("web", KEYS));
    due(&it);
    let sleeper = it.call_on_host(1, "run").start();
    wait_until("the second attempt to be begun", 20, || it.database.count(task, "sending") == 1);
    it.stop(&sleeper);
    // Its own deadline lies within the window; by the time it wakes up, both are over.
    wait_until("leases and claims to end", 30, || it.database.nothing_held());
    window_ends_in(&it, -1);
    endpoint.forget();
    sleeper.go_on();
    sleeper.terminate();
    assert_eq!(full.bytes_heard(Duration::from_secs(3)), 0, "the time allowed had passed");
    sleeper.wait();
    it.configure("lease = \"3s\"", &endpoint.channel("web", KEYS));
    it.database.execute("DELETE FROM batch_pace");
    ends_unknown_and_unsent(&it, task, &endpoint);
    assert_eq!(endpoint.requests(), 1);
}

fn a_body_that_tells_attempts_apart_is_refused(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let channel = endpoint.channel("web", KEYS).replace(r#""key": {{ key }}"#, r#""key": {{ attempt }}"#);
    it.configure("", &channel);
    let task = it.database.task("web", ["ann"]);
    it.call("run").done().exits(2).says(&["`body` in [channel.web]", "`attempt`", "`idempotent_for`"]);
    assert_eq!((it.database.count(task, "pending"), endpoint.requests()), (1, 0));
}

fn a_persons_retry_bears_another_key_so_that_a_stored_refusal_is_not_replayed(it: Sandbox) {
    // It stores its answer under the key, a refusal too, and gives it again.
    let stored: Mutex<BTreeMap<String, Cue>> = Mutex::default();
    let endpoint = Endpoint::remembering(move |request| {
        let first = if request.nth == 1 { Cue::Answer(422) } else { Cue::Accept };
        *stored.lock().unwrap().entry(request.key().unwrap().to_owned()).or_insert(first)
    });
    it.configure("", &endpoint.channel("web", KEYS));
    let task = it.database.task("web", ["ann"]);
    it.run();
    assert_eq!(it.database.target(task, "ann").status, "failed");
    it.call(&format!("retry {task} --yes")).done().exits(0);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.target(task, "ann").status, "sent");
    let keys: Vec<_> = endpoint.all().iter().map(|request| request.key().unwrap().to_owned()).collect();
    assert!(keys.len() == 2 && keys[0] != keys[1], "{keys:?}");
}

fn a_persons_word_sends_again_under_the_same_key_after_the_window(it: Sandbox) {
    let endpoint = losing_the_first(Cue::Accept);
    let task = in_doubt(&it, &endpoint, KEYS);
    window_ends_in(&it, -1);
    due(&it);
    ends_unknown_and_unsent(&it, task, &endpoint);
    // The person saw that it still remembers; and edited what was wrong.
    it.call(&format!("resolve {task} --all --as retry --yes")).done().exits(0);
    assert_eq!(window(&it), "", "it is a person's word now, and a window of its own");
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.target(task, "ann").status, "sent");
    the_same_to_the_byte(&endpoint.all());
}

fn the_key_stands_in_the_header_that_the_channel_names(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    // Without a window, too: a provider may want it for reasons of its own.
    let keys = "idempotency_header = \"X-Message-Id\"";
    it.configure("", &endpoint.channel("web", keys));
    it.database.task("web", ["ann"]);
    it.run();
    let request = endpoint.all().remove(0);
    assert_eq!(request.body["key"], request.headers["x-message-id"].as_str());
    assert!(request.key().is_none());
}
