//! What `status` says: to a person at a terminal, to a file, to a program, to a monitor. What is wrong is said plainly, and
//! what merely waits is not called wrong.

use std::io::{BufReader, Read};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::support::document::document;
use crate::support::endpoint::channel;
use crate::support::process::{Finished, bare};
use crate::support::sandbox::BINARY;
use crate::support::{Cue, Endpoint, Sandbox, wait_until};

on_each_database! {
    each_state_is_said,
    a_provider_that_cannot_be_reached_is_said,
    a_running_task_has_a_rate_and_an_end,
    one_task_is_told_in_full,
    the_json_has_its_documented_shape,
    a_monitor_is_told_what_is_true,
    a_backlog_is_what_could_have_been_sent,
    what_is_stalled_is_told_from_what_waits,
    a_word_that_means_nothing_is_refused,
    a_table_is_cut_to_its_terminal_and_whole_off_one,
    colours_are_for_terminals_that_want_them,
    watch_draws_over_what_stood_there,
    watch_needs_a_terminal,
    a_reader_of_status_may_go_away,
}

/// The state of a task in the table, which begins behind this.
#[track_caller]
fn state_of(it: &Sandbox, task: u64) -> String {
    let shown = it.call(&format!("status {task}")).done().exits(0);
    let line = shown.stdout.lines().find_map(|line| line.strip_prefix("state"));
    line.unwrap_or_else(|| panic!("no state in {shown}")).trim().to_owned()
}

fn json_of(it: &Sandbox, task: u64) -> Value {
    it.call(&format!("status {task} --json")).done().exits(0).json()
}

fn set(it: &Sandbox, task: u64, what: &str) {
    it.database.execute(&format!("UPDATE batch_task SET {what} WHERE id = {task}"));
}

/// A window of the day, so many minutes from now.
fn hours(from: u64, to: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 60;
    let time = |minutes: u64| format!("{:02}:{:02}", (now + minutes) / 60 % 24, (now + minutes) % 60);
    format!("window = \"{}-{}\"\ntime_zone = \"UTC\"", time(from), time(to))
}

/// An hour ago it was made, and nobody has looked at it since.
fn an_hour_old(it: &Sandbox, task: u64) {
    set(it, task, &format!("created_at = {}", it.database.moment(-3_600)));
}

fn each_state_is_said(it: Sandbox) {
    let (endpoint, database) = (Endpoint::accepting(), &it.database);
    let channels = [
        endpoint.channel("web", ""),
        endpoint.channel("night", &hours(120, 180)),
        endpoint.channel("slow", "rate = \"10/h\""),
        endpoint.channel("away", ""),
    ];
    it.configure("", &channels.join("\n"));
    let [hour, minutes] = [3_600, 600].map(|seconds| it.database.pace_moment(seconds));
    database.execute(&format!("INSERT INTO batch_pace (channel, next_at) VALUES ('slow', {minutes})"));
    database.execute(&format!(
        "INSERT INTO batch_pace (channel, next_at, held_until, holds) VALUES ('away', {hour}, {hour}, 3)"
    ));
    let draft = database.draft("web");
    let pending = database.task("web", ["ann"]);
    let scheduled = database.task("web", ["ann"]);
    set(&it, scheduled, &format!("scheduled_at = {}", database.moment(3_600)));
    let retry = database.task("web", ["ann"]);
    database.execute(&format!(
        "UPDATE batch_task_target SET status = 'retry', retry_at = {} WHERE task_id = {retry}",
        database.moment(600)
    ));
    let [night, slow, away] = ["night", "slow", "away"].map(|channel| database.task(channel, ["ann"]));
    let paused = database.task("web", ["ann"]);
    set(&it, paused, "status = 'paused', status_reason = 'the text is wrong'");
    let cancelled = database.draft("web");
    set(&it, cancelled, "status = 'cancelled'");
    let finished = database.task("web", ["ann"]);
    it.call(&format!("run --task-id {finished}")).done().quietly();
    let stranger = database.task("wob", ["ann"]);

    for (task, begins, ends, word, waits) in [
        (draft, "draft", "", "draft", Value::Null),
        (pending, "pending", "", "pending", Value::Null),
        (scheduled, "waiting until 2", "Z", "waiting", json!("schedule")),
        (retry, "waiting until 2", ": retry", "waiting", json!("retry")),
        (night, "waiting until 2", " UTC", "waiting", json!("window")),
        (slow, "waiting until 2", ": rate of the channel", "waiting", json!("rate")),
        (away, "channel held until 2", "Z", "waiting", json!("hold")),
        (paused, "paused: the text is wrong", "", "paused", Value::Null),
        (cancelled, "cancelled", "", "cancelled", Value::Null),
        (finished, "finished", "", "finished", Value::Null),
        (stranger, "pending", "", "pending", Value::Null),
    ] {
        let state = state_of(&it, task);
        assert!(state.starts_with(begins) && state.ends_with(ends), "{state}, and not {begins}...{ends}");
        let shown = json_of(&it, task);
        assert_eq!((&shown["state"], &shown["waiting_for"]), (&json!(word), &waits), "{shown}");
        assert_eq!(shown["waiting_until"].is_string(), !waits.is_null());
        assert_eq!(shown["channel_known"], task != stranger);
    }
    let all = it.call("status").done().exits(0).stdout;
    for said in [
        format!("task {stranger}: channel wob is not in this host's configuration"),
        "channel away is held until 2".into(),
        "3 times in a row: it cannot be reached, or asked to be left alone".into(),
    ] {
        assert!(all.contains(&said), "no \"{said}\" in\n{all}");
    }
    assert_eq!(all.matches("is not in this host's").count(), 1, "{all}");

    // However narrow the terminal, until when is what is read there.
    for columns in [60, 80] {
        let (_, drawn) = it.call("status").on_terminal(columns, 40).wait();
        let table: Vec<String> = drawn.lines().take(12).map(bare_of_colours).collect();
        let until = table.iter().filter_map(|line| line.split_once(" until ")).map(|(_, time)| time);
        assert_eq!(until.filter(|time| time.contains("Z…") || time.contains("Z, ")).count(), 5, "{table:#?}");
    }

    // Held by a run.
    let (since, until) = (database.moment(-5), database.moment(60));
    set(
        &it,
        pending,
        &format!("lock_token = 'x', lock_owner = 'web-1:7', lock_at = {since}, lock_until = {until}"),
    );
    let state = state_of(&it, pending);
    assert!(state.starts_with("running since 2") && state.ends_with("Z (web-1:7)"), "{state}");
    assert_eq!(json_of(&it, pending)["lease"]["owner"], "web-1:7");
}

fn a_provider_that_cannot_be_reached_is_said(it: Sandbox) {
    // Nobody listens there any more.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    it.configure(
        "",
        &channel("web", address, "concurrency = 1\nbackoff = { first = \"60s\", most = \"1h\" }"),
    );
    let task = it.database.task("web", (0..20).map(|n| format!("person-{n}")));
    it.run();
    let held = json_of(&it, task);
    assert_eq!((&held["state"], &held["waiting_for"]), (&json!("waiting"), &json!("hold")), "{held}");
    assert!(held["due_since"].is_string(), "it waits, and it is due: {held}");
    let shown = it.call("status").done().exits(0);
    assert!(
        shown.stdout.contains("  channel held until 2") && shown.stdout.contains("  due since\n"),
        "{shown}"
    );
    let said = format!("channel web is held until {}", held["waiting_until"].as_str().unwrap());
    assert!(shown.stdout.contains(&said), "{shown}");
    let full = it.call(&format!("status {task}")).done().exits(0);
    assert!(
        full.stdout.contains(&said) && full.stdout.contains("commonest errors\n"),
        "why it is held: {full}"
    );
}

fn a_running_task_has_a_rate_and_an_end(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", "rate = \"20/s\""));
    let task = it.database.task("web", (0..1_000).map(|n| format!("person-{n}")));
    assert_eq!(json_of(&it, task)["rate"], Value::Null, "nobody holds it");
    let run = it.call("run").start();
    let mut shown = Value::Null;
    wait_until("thirty to be sent", 60, || {
        shown = json_of(&it, task);
        shown["counts"]["sent"].as_u64() >= Some(30) && shown["state"] == "running"
    });
    let rate = shown["rate"].as_f64().unwrap();
    assert!((0.5..=40.0).contains(&rate), "{shown}");
    let sum: u64 = ["pending", "processing", "sending", "retry", "sent", "failed", "unknown"]
        .iter()
        .map(|status| shown["counts"][status].as_u64().unwrap())
        .sum();
    assert_eq!((sum, &shown["counts"]["total"]), (1_000, &json!(1_000)));
    let left = 1_000 - shown["counts"]["sent"].as_u64().unwrap();
    let (seconds, expected) = (shown["finishes_in"].as_f64().unwrap(), left as f64 / rate);
    assert!((seconds - expected).abs() <= 1.0 + expected / 100.0, "{seconds} and not {expected}: {shown}");
    let table = it.call("status").done().exits(0);
    assert!(table.stdout.contains("rate  ends in  due since\n") && table.stdout.contains("/s  "), "{table}");
    run.terminate();
    run.wait().quietly();
    let shown = json_of(&it, task);
    assert_eq!(
        (&shown["rate"], &shown["finishes_in"], &shown["lease"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
}

fn one_task_is_told_in_full(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        name if name.starts_with("rejected") => Cue::Answer(422),
        name if name.starts_with("closed") => Cue::AcceptThenClose,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", "concurrency = 1\nstop_after_unknown = 20"));
    let names = ["ann", "rejected-1", "rejected-2"].map(str::to_owned);
    let task = it.database.task("web", names.into_iter().chain((0..7).map(|n| format!("closed-{n}"))));
    it.call("run").done().exits(3);
    it.database.execute("UPDATE batch_task_target SET attempts = 3 WHERE recipient = 'ann'");
    let first = it.database.target(task, "closed-0");
    it.call(&format!("resolve {task} --target {} --as sent --yes --reason seen", first.id)).done().exits(0);
    let full = it.call(&format!("status {task}")).done().exits(0);
    let second = it.database.target(task, "closed-1");
    for line in [
        "sent        2",
        "failed      2",
        "unknown     6",
        "total       10",
        "attempts    12, 1 target needed more than one",
        "commonest errors",
        "unknown targets",
        &format!("  and 1 more: `batch-send targets {task} --status unknown`"),
        "audit, the latest first",
    ] {
        assert!(full.stdout.lines().any(|shown| shown == line), "no \"{line}\" in {full}");
    }
    let begins = |words: &[&str]| {
        full.stdout.lines().any(|line| line.split_whitespace().take(words.len()).eq(words.iter().copied()))
    };
    assert!(begins(&["6"]) && begins(&["2"]), "how many met which error: {full}");
    assert!(begins(&[&second.id.to_string(), "closed-1"]), "{full}");
    let settles = format!("`batch-send resolve {task} --all --as VERDICT`");
    assert!(
        full.stdout.contains(&settles) && full.stdout.contains(&format!("target {}", first.id)),
        "{full}"
    );
    assert!(full.stdout.lines().any(|line| line.ends_with("seen")), "{full}");
}

/// The keys that docs/status.md promises, in its order, and what each is.
fn documented() -> Vec<(String, String)> {
    let page = document("docs/status.md");
    let (_, table) = page.split_once("| key of a TASK | is | |\n").expect("the table of keys");
    let row = |line: &str| {
        let mut cells =
            line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`').to_owned());
        Some((cells.next()?, cells.next()?))
    };
    table.lines().skip(1).take_while(|line| line.starts_with('|')).filter_map(row).collect()
}

fn is(value: Option<&Value>, kind: &str) -> bool {
    let time = |text: &str| {
        text.len() == 24 && chrono::DateTime::parse_from_rfc3339(text).is_ok() && text.ends_with('Z')
    };
    match (value, kind) {
        (None, kind) => kind.ends_with("absent"),
        (Some(Value::Null), kind) => kind.ends_with("null"),
        (Some(value), "number" | "number or null" | "number, or absent") => value.is_number(),
        (Some(value), "text" | "text or null") => value.is_string(),
        (Some(value), "time" | "time or null") => value.as_str().is_some_and(time),
        (Some(value), "object" | "object or null") => value.is_object(),
        (Some(value), "true or false" | "true, or absent") => value.is_boolean(),
        (_, kind) => panic!("docs/status.md says \"{kind}\""),
    }
}

fn the_json_has_its_documented_shape(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "closed" => Cue::AcceptThenClose,
        "waits" => Cue::AcceptWhenTold,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", "concurrency = 1"));
    let database = &it.database;
    let ended = database.task("web", ["ann", "closed"]);
    it.call("run").done().exits(3);
    let scheduled = database.task("web", ["ann"]);
    let (soon, later) = (database.moment(3_600), database.moment(7_200));
    set(&it, scheduled, &format!("scheduled_at = {soon}, expires_at = {later}"));
    let paused = database.task("web", ["ann"]);
    set(&it, paused, "status = 'paused', status_reason = 'x'");
    let running = database.task("web", ["ann", "waits", "bob"]);
    let stranger = database.task("wob", ["ann"]);
    let run = it.call("run").start();
    wait_until("a message in flight", 20, || endpoint.waiting() == 1);

    let all = it.call("status --json").done().exits(0);
    assert_eq!(all.stdout.lines().count(), 1);
    let all = all.json();
    assert_eq!(all.as_object().unwrap().keys().collect::<Vec<_>>(), ["tasks"]);
    let tasks = all["tasks"].as_array().unwrap();
    let ids: Vec<_> = tasks.iter().map(|task| task["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [stranger, running, paused, scheduled, ended], "newest first");
    let documented = documented();
    assert!(documented.len() > 30, "{documented:?}");
    let mut seen: Vec<&str> = Vec::new();
    for task in tasks {
        for (key, kind) in &documented {
            let value = match key.split_once('.') {
                None => task.get(key),
                Some((outer, _)) if task[outer].is_null() => continue,
                Some((outer, inner)) => task[outer].get(inner),
            };
            assert!(is(value, kind), "{key} is {value:?}, and not {kind}");
            if value.is_some_and(|value| !value.is_null()) {
                seen.push(key);
            }
        }
        // No key that is not documented, and all in the order of the page.
        let known = |outer: &str| {
            let inner = documented.iter().filter_map(move |(key, _)| match (outer, key.split_once('.')) {
                ("", None) => Some(key.as_str()),
                (outer, Some((of, inner))) if of == outer => Some(inner),
                _ => None,
            });
            inner.collect::<Vec<_>>()
        };
        for (outer, object) in [("", task), ("lease", &task["lease"]), ("counts", &task["counts"])] {
            let Some(object) = object.as_object() else { continue };
            let known: Vec<_> = known(outer).into_iter().filter(|key| object.contains_key(*key)).collect();
            assert_eq!(object.keys().collect::<Vec<_>>(), known, "of {outer:?}");
        }
    }
    // Each was there once, but for what only trouble brings about.
    let unseen: Vec<_> =
        documented.iter().map(|(key, _)| key.as_str()).filter(|key| !seen.contains(key)).collect();
    assert_eq!(unseen, ["counts.overdue", "counts.invalid", "counts.estimated"]);
    endpoint.tell();
    run.wait();
    assert_eq!(tasks[4], json_of(&it, ended), "the same of one");
}

/// Asked after these, of all tasks or of one.
#[track_caller]
fn fails(it: &Sandbox, of: &str, words: &str, said: &[&str]) -> Finished {
    let answer = it.call(&format!("status {of} --fail-if {words}")).done();
    let answer = if said.is_empty() { answer.exits(0) } else { answer.exits(3).says(said) };
    assert_eq!(answer.stderr.lines().count(), said.len(), "a line for each that is true: {answer}");
    assert!(!answer.stdout.is_empty(), "{answer}");
    answer
}

fn a_monitor_is_told_what_is_true(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "rejected" => Cue::Answer(422),
        "closed" => Cue::AcceptThenClose,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    let all = "unknown,failed,paused,stalled,backlog=10m";
    assert_eq!(fails(&it, "", all, &[]).stdout, "no tasks\n");
    let fine = it.database.task("web", ["ann"]);
    it.run();
    fails(&it, "", all, &[]);
    let flawed = it.database.task("web", ["ann", "rejected", "closed"]);
    it.call("run").done().exits(3);
    let paused = it.database.task("web", ["ann"]);
    it.call(&format!("task pause {paused} --reason typo")).done().exits(0);

    fails(&it, "", "unknown", &[&format!("unknown: 1 target, of task {flawed}\n")]);
    fails(&it, "", "failed", &[&format!("failed: 1 target, of task {flawed}\n")]);
    fails(&it, "", "paused", &[&format!("paused: task {paused} (typo)\n")]);
    fails(&it, "", "stalled,backlog=1ms", &[]);
    fails(&it, "", "unknown,failed --fail-if paused", &["unknown: ", "failed: ", "paused: "]);
    fails(&it, &fine.to_string(), all, &[]);
    fails(&it, &paused.to_string(), "unknown,failed,stalled", &[]);
    fails(&it, &flawed.to_string(), all, &["unknown: 1", "failed: 1"]);
    let told = it.call("status --json --fail-if unknown").done().exits(3).says(&["unknown: "]);
    assert_eq!(told.json()["tasks"].as_array().unwrap().len(), 3);
    let quiet = it.call("status -q --fail-if unknown").done().exits(3).says(&["unknown: "]);
    assert!(quiet.stdout.contains("channel"), "{quiet}");
    it.call("status 999 --fail-if unknown").done().exits(2).says(&["there is no task 999"]);
    let several = it.database.task("web", ["ann"]);
    set(&it, several, "status = 'paused'");
    fails(&it, "", "paused", &[&format!("paused: tasks {several} and {paused}\n")]);
    // Nothing can be done about it any more.
    set(&it, flawed, "status = 'cancelled'");
    fails(&it, "", "failed", &[]);
}

fn a_backlog_is_what_could_have_been_sent(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let database = &it.database;
    let task = database.task("web", ["ann"]);
    fails(&it, "", "backlog=10m", &[]);
    an_hour_old(&it, task);
    let said = format!("backlog: due for longer than 10m and not sent, of task {task}, the oldest since 2");
    fails(&it, "", "backlog=10m", &[&said]);
    fails(&it, &task.to_string(), "backlog=59m", &["longer than 59m"]);
    fails(&it, "", "backlog=61m", &[]);
    // It cannot be sent, and should be.
    let until = database.pace_moment(3_600);
    database.execute(&format!(
        "INSERT INTO batch_pace (channel, next_at, held_until, holds) VALUES ('web', {until}, {until}, 1)"
    ));
    fails(&it, "", "backlog=10m", &[&said]);
    database.execute("DELETE FROM batch_pace");
    // It should not be sent: its channel is closed; or could be for a minute or two only.
    for (keys, word, true_now) in
        [(hours(120, 180), "10m", false), (hours(0, 60), "10m", false), (hours(0, 60), "1ms", true)]
    {
        it.configure("", &endpoint.channel("web", &keys));
        fails(&it, "", &format!("backlog={word}"), if true_now { &["backlog: "] } else { &[] });
    }
    it.configure("", &endpoint.channel("web", ""));
    for status in ["paused", "draft", "cancelled"] {
        set(&it, task, &format!("status = '{status}'"));
        fails(&it, "", "backlog=10m", &[]);
    }
    set(&it, task, "status = 'pending'");
    set(&it, task, &format!("scheduled_at = {}", database.moment(60)));
    fails(&it, "", "backlog=10m", &[]);
    set(&it, task, &format!("scheduled_at = {}", database.moment(-60)));
    fails(&it, "", "backlog=10m", &[]);
    set(&it, task, "scheduled_at = NULL");
    fails(&it, "", "backlog=10m", &[&said]);
    // A draft of yesterday that a person starts now is due since now.
    set(&it, task, "status = 'draft'");
    it.call(&format!("task start {task}")).done().exits(0);
    fails(&it, "", "backlog=10m", &[]);
    it.run();
    fails(&it, "", "backlog=1ms", &[]);
}

fn what_is_stalled_is_told_from_what_waits(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let database = &it.database;
    let task = database.task("web", ["ann"]);
    fails(&it, "", "stalled", &[]);
    an_hour_old(&it, task);
    let said = format!("stalled: task {task} (no run took it since 2");
    let told = fails(&it, "", "stalled", &[&said]);
    assert!(told.stdout.contains("  stalled: no run took it since 2"), "{told}");
    assert!(told.stdout.contains(&format!("task {task}: no run takes it: `batch-send run -v`")), "{told}");
    fails(&it, &task.to_string(), "stalled", &[&said]);
    // A channel that is held.
    let until = database.pace_moment(60);
    database.execute(&format!(
        "INSERT INTO batch_pace (channel, next_at, held_until, holds) VALUES ('web', {until}, {until}, 1)"
    ));
    fails(&it, "", "stalled", &[]);
    database.execute("DELETE FROM batch_pace");
    // Runs are at work, on what goes before it.
    let other = database.task("web", ["ann"]);
    let (since, until, past) = (database.moment(-1), database.moment(60), database.moment(-400));
    set(
        &it,
        other,
        &format!("lock_token = 'x', lock_owner = 'web-1:7', lock_at = {since}, lock_until = {until}"),
    );
    fails(&it, "", "stalled", &[]);
    assert_eq!(state_of(&it, task), "waiting for its turn");
    set(&it, task, "priority = 1");
    fails(&it, "", "stalled", &[&said]);
    // A run that died, and what it left, in whatever status.
    set(&it, task, "status = 'paused'");
    set(&it, other, &format!("lock_until = {past}"));
    fails(&it, "", "stalled", &[]);
    database.execute(&format!(
        "UPDATE batch_task_target SET status = 'sending', cron_token = 'x', claim_until = {past} WHERE task_id = {other}"
    ));
    for status in ["pending", "paused", "cancelled"] {
        set(&it, other, &format!("status = '{status}'"));
        let died = format!("stalled: task {other} (web-1:7 died, and no run came since 2");
        let told = fails(&it, "", "stalled", &[&died]);
        assert!(told.stdout.contains("of a run that died: unknown at the next run"), "{told}");
    }
    // A run comes, and repairs it.
    it.call("run").done().exits(3);
    fails(&it, "", "stalled", &[]);
}

fn a_word_that_means_nothing_is_refused(it: Sandbox) {
    for (words, says) in [
        ("unknwon", "did you mean `unknown`?"),
        ("failed,stald", "did you mean `stalled`?"),
        ("backlog", "`backlog` takes a time, as in backlog=10m"),
        ("backlog=ten", "\"ten\" is no duration"),
        ("paused=10m", "`paused` takes no time"),
        ("finished", "known here: unknown, failed, paused, stalled, backlog"),
    ] {
        let refused = it.call("status --fail-if").arg(words).done().exits(2).says(&[says]);
        assert!(refused.stdout.is_empty(), "{refused}");
    }
    it.call("status --watch --json").done().exits(2);
    it.call("status --watch --fail-if unknown").done().exits(2);
}

/// A line as a terminal shows it: without what steers it.
fn bare_of_colours(line: &str) -> String {
    let mut pieces = line.split('\x1b');
    let first = pieces.next().unwrap_or_default().to_owned();
    let end = |c: char| c.is_ascii_alphabetic();
    pieces.fold(first, |shown, piece| shown + piece.split_once(end).map_or("", |(_, text)| text))
}

/// Several tasks, with long names and reasons.
fn some_tasks(it: &Sandbox) -> u64 {
    it.configure("", &Endpoint::accepting().channel("welcome-mail", ""));
    let (database, mut last) = (&it.database, 0);
    for n in 0..5 {
        last = database.task("welcome-mail", ["ann", "bob"]);
        set(it, last, &format!("name = 'Spring sale {n}, for all customers in the northern provinces'"));
    }
    set(
        it,
        last,
        "status = 'paused', status_reason = 'channel unavailable on web-1: 401 Unauthorized: the key is not valid any more'",
    );
    database.execute(&format!("UPDATE batch_task_target SET status = 'unknown' WHERE task_id = {last}"));
    last
}

fn a_table_is_cut_to_its_terminal_and_whole_off_one(it: Sandbox) {
    let task = some_tasks(&it);
    let whole = it.call("status").done().exits(0);
    assert!(
        whole
            .stdout
            .contains("Spring sale 4, for all customers in the northern provinces  welcome-mail  paused: channel unavailable on web-1: 401 Unauthorized: the key is not valid any more  "),
        "{whole}"
    );
    for columns in [60_u16, 80, 160] {
        let (code, drawn) = it.call("status").on_terminal(columns, 40).wait();
        assert_eq!(code, Some(0), "{drawn}");
        let table: Vec<String> = drawn.lines().take(6).map(bare_of_colours).collect();
        for line in &table {
            let cells = line.trim_end().chars().count();
            assert!(cells <= usize::from(columns), "{cells} cells at {columns} columns: {line}");
        }
        let heading = &table[0];
        for name in ["id", "name", "state", "sent", "unknown", "left"] {
            assert!(heading.contains(name), "no {name} at {columns} columns: {heading}");
        }
        for name in ["channel", "total", "  due"] {
            assert_eq!(heading.contains(name), columns > 60, "{name} at {columns} columns: {heading}");
        }
        assert!(table[1].contains("paused: chan") && table[1].contains('…'), "{table:?}");
        let settles = format!(
            "task {task}: 2 targets unknown: `batch-send targets {task} --status unknown` lists them"
        );
        assert!(bare_of_colours(&drawn).contains(&settles), "{drawn}");
    }
}

fn colours_are_for_terminals_that_want_them(it: Sandbox) {
    let task = some_tasks(&it);
    for args in ["status".to_owned(), format!("status {task}"), "task list".into()] {
        let drawn = |name: &str, value: &str| it.call(&args).env(name, value).on_terminal(120, 40).wait().1;
        let red = "\x1b[1m\x1b[31m2\x1b[0m";
        assert!(drawn("TERM", "xterm").contains(red), "{args}: two are unknown");
        assert!(drawn("NO_COLOR", "").contains(red), "{args}: empty is unset");
        for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let drawn = drawn(name, value);
            assert!(!drawn.contains('\x1b') && drawn.contains("unknown"), "{args} {name}: {drawn}");
        }
        let piped = it.call(&args).env("TERM", "xterm").done().exits(0);
        assert!(!piped.stdout.contains('\x1b'), "{piped}");
    }
}

/// What was drawn last: what stands on the terminal, line by line.
fn last_frame(drawn: &str) -> Vec<String> {
    let frame = drawn.rsplit("\x1b[H").next().unwrap_or_default();
    frame.lines().map(|line| bare_of_colours(line).trim_end().to_owned()).collect()
}

fn watch_draws_over_what_stood_there(it: Sandbox) {
    some_tasks(&it);
    let terminal = it.call("status --watch").env("TERM", "xterm").on_terminal(160, 30);
    wait_until("a first look", 20, || last_frame(&terminal.drawn()).len() >= 7);
    let wide = last_frame(&terminal.drawn());
    assert!(wide[0].starts_with("batch-send status, 2") && wide[1].contains("  due"), "{wide:?}");
    // A smaller one, at once and not at the next look: what does not fit is counted.
    terminal.resize(70, 6);
    wait_until("the new size to be drawn", 20, || {
        let frame = last_frame(&terminal.drawn());
        frame.len() <= 6 && frame.iter().any(|line| line.contains(" more tasks"))
    });
    let narrow = last_frame(&terminal.drawn());
    assert!(narrow.iter().all(|line| line.chars().count() <= 70), "{narrow:?}");
    terminal.resize(160, 30);
    let newest = it.database.task("welcome-mail", ["ann"]);
    set(&it, newest, "name = 'Summer'");
    wait_until("what is new to be drawn", 20, || {
        last_frame(&terminal.drawn()).iter().any(|line| line.contains("Summer"))
    });
    assert_eq!(terminal.drawn().matches("\x1b[2J").count(), 1, "cleared once, then drawn over");
    assert!(terminal.drawn().matches("\x1b[H").count() >= 4);
    terminal.interrupt();
    let (code, drawn) = terminal.wait();
    assert_eq!(code, Some(0), "{drawn}");

    let terminal = it.call(&format!("status {newest} --watch")).on_terminal(60, 12);
    wait_until("a first look", 20, || {
        last_frame(&terminal.drawn()).iter().any(|line| line.contains("Summer"))
    });
    let frame = last_frame(&terminal.drawn());
    assert!(
        frame.len() <= 12 && frame.iter().any(|line| line.ends_with("more lines: without --watch")),
        "{frame:?}"
    );
    terminal.interrupt();
    assert_eq!(terminal.wait().0, Some(0));
    let (code, drawn) = it.call("status 999 --watch").on_terminal(80, 24).wait();
    assert!(code == Some(2) && drawn.contains("there is no task 999"), "{drawn}");
}

fn watch_needs_a_terminal(it: Sandbox) {
    some_tasks(&it);
    let refused = it.call("status --watch").done().exits(2).says(&["--watch draws on a terminal"]);
    assert!(refused.stdout.is_empty() && refused.stderr.lines().count() == 1, "{refused}");
}

fn a_reader_of_status_may_go_away(it: Sandbox) {
    it.configure("", "");
    let values: Vec<_> =
        (0..3_000).map(|n| format!("('Task {n} with a name of some length', 'web')")).collect();
    it.database.execute(&format!("INSERT INTO batch_task (name, channel) VALUES {}", values.join(", ")));
    for args in [vec!["status"], vec!["status", "--json"], vec!["task", "list"]] {
        let mut child = bare(BINARY)
            .args(&args)
            .env("BATCH_SEND_CONFIG", it.path("config.toml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::with_capacity(64, child.stdout.take().unwrap());
        let mut some = vec![0; 40];
        stdout.read_exact(&mut some).unwrap();
        drop(stdout);
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() && stderr.is_empty(), "{args:?} {status}: {stderr}");
    }
}
