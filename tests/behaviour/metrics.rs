//! What Prometheus is told: counters that rise over runs and hosts' minutes, whatever is killed or runs beside, and what waits.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::pace::window;
use crate::support::{Cue, Endpoint, Sandbox, wait_until};

on_each_database! {
    counters_rise_over_runs,
    runs_beside_each_other_lose_nothing,
    a_killed_run_leaves_a_whole_file_and_the_counters_of_those_before,
    what_a_long_run_does_is_seen_meanwhile,
    what_waits_and_what_is_in_doubt_is_seen,
    how_the_last_run_ended_is_seen,
    a_directory_that_is_not_there_is_told_once_and_the_run_goes_on,
    whoever_keeps_the_metrics_locked_holds_up_no_message,
    promtool_finds_nothing_to_say,
}

fn configure(it: &Sandbox, run: &str, channels: &str) {
    it.configure(run, channels);
    it.configure_top(&format!("metrics_file = \"{}\"", it.path("bs.prom").display()));
}

fn text(it: &Sandbox) -> String {
    fs::read_to_string(it.path("bs.prom")).unwrap()
}

/// The value of a series.
#[track_caller]
fn value(it: &Sandbox, series: &str) -> f64 {
    let text = text(it);
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("batch_send_{series} ")));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
}

#[track_caller]
fn outcome(it: &Sandbox, outcome: &str) -> f64 {
    value(it, &format!("targets_total{{channel=\"web\",outcome=\"{outcome}\"}}"))
}

fn counters_rise_over_runs(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "rejected" => Cue::Answer(422),
        "unclear" => Cue::AcceptThenClose,
        "later" => Cue::Answer(425),
        _ => Cue::Accept,
    });
    configure(&it, "", &endpoint.channel("web", ""));
    // With zeros, before anything has happened.
    it.run();
    assert_eq!((outcome(&it, "sent"), outcome(&it, "unknown")), (0.0, 0.0));
    assert_eq!(value(&it, "attempts_total{channel=\"web\"}"), 0.0);
    for n in 1..=2 {
        it.database.task("web", ["ann", "bob", "rejected", "unclear", "later"]);
        it.call("run").done().exits(3);
        let n = f64::from(n);
        assert_eq!(outcome(&it, "sent"), 2.0 * n);
        assert_eq!((outcome(&it, "failed"), outcome(&it, "unknown")), (n, n));
        assert_eq!(outcome(&it, "retry"), n);
        assert_eq!(value(&it, "attempts_total{channel=\"web\"}"), 5.0 * n);
    }
    assert_eq!(value(&it, "runs_total"), 3.0);
    assert_eq!(fs::metadata(it.path("bs.prom")).unwrap().permissions().mode() & 0o777, 0o644);
}

fn runs_beside_each_other_lose_nothing(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    configure(&it, "", &endpoint.channel("web", ""));
    let people = |task| (0..50).map(move |n| format!("person-{task}-{n}"));
    let tasks: Vec<u64> = (0..6).map(|task| it.database.task("web", people(task))).collect();
    let mut runs: Vec<_> =
        tasks.iter().map(|task| it.call(&format!("run --task-id {task}")).start()).collect();
    runs.push(it.call("run").start());
    for run in runs {
        // Whoever came second to a task says so.
        run.wait();
    }
    it.run();
    assert!(endpoint.ledger().values().all(|times| *times == 1), "{:?}", endpoint.ledger());
    for &task in &tasks {
        assert_eq!(it.database.status(task), "finished");
    }
    assert_eq!(outcome(&it, "sent"), 300.0);
    assert_eq!(value(&it, "runs_total"), 8.0);
}

fn a_killed_run_leaves_a_whole_file_and_the_counters_of_those_before(it: Sandbox) {
    let endpoint =
        Endpoint::new(
            |request| {
                if request.recipient == "in-flight" { Cue::AcceptWhenTold } else { Cue::Accept }
            },
        );
    configure(&it, "lease = \"3s\"", &endpoint.channel("web", "timeout = \"20s\""));
    it.database.task("web", ["ann", "bob"]);
    it.run();
    assert_eq!(outcome(&it, "sent"), 2.0);
    let task = it.database.task("web", ["in-flight"]);
    let run = it.call("run").start();
    wait_until("a message in flight", 20, || endpoint.waiting() == 1);
    let before = text(&it);
    run.kill();
    assert_eq!(text(&it), before);
    endpoint.tell();
    it.database.claims_end(task);
    it.database.task("web", ["cy"]);
    it.call("run").done().exits(3);
    assert_eq!(outcome(&it, "sent"), 3.0);
    assert_eq!(value(&it, "unknown_targets{channel=\"web\"}"), 1.0);

    // Killed wherever it is, the file is the old one or the new one, whole.
    for n in 0..20 {
        it.database.task("web", ["dan"]);
        let run = it.call("run").start();
        std::thread::sleep(Duration::from_millis(5 * n));
        run.kill();
        let text = text(&it);
        assert!(text.ends_with('\n') && text.contains("\nbatch_send_last_run_exit_code "), "{text}");
        assert!(outcome(&it, "sent") >= 3.0);
    }
}

fn what_a_long_run_does_is_seen_meanwhile(it: Sandbox) {
    let endpoint =
        Endpoint::new(|request| if request.recipient == "slow" { Cue::AcceptWhenTold } else { Cue::Accept });
    configure(&it, "", &endpoint.channel("web", "timeout = \"60s\"\nconcurrency = 2"));
    it.database.task("web", ["ann", "bob", "slow"]);
    let mut run = it.call("run").start();
    wait_until("the metrics of a run at work", 60, || it.path("bs.prom").exists());
    assert!(run.running());
    assert_eq!((outcome(&it, "sent"), value(&it, "attempts_total{channel=\"web\"}")), (2.0, 3.0));
    assert!(!text(&it).contains("last_run"), "it has not ended");
    endpoint.tell();
    run.wait().quietly();
    assert_eq!(outcome(&it, "sent"), 3.0);
}

fn what_waits_and_what_is_in_doubt_is_seen(it: Sandbox) {
    let endpoint =
        Endpoint::new(
            |request| {
                if request.recipient == "unclear" { Cue::AcceptThenClose } else { Cue::Accept }
            },
        );
    configure(&it, "", &(endpoint.channel("web", "") + &endpoint.channel("other", "")));
    let task = it.database.task("web", ["unclear", "ann", "bob", "cy", "dan"]);
    let long_ago = it.database.moment(-7200);
    it.database.execute(&format!("UPDATE batch_task SET created_at = {long_ago} WHERE id = {task}"));
    it.call("run --limit 2").done().exits(3);
    assert_eq!(value(&it, "backlog_targets{channel=\"web\"}"), 3.0);
    let age = value(&it, "backlog_oldest_age_seconds{channel=\"web\"}");
    assert!((7200.0..7800.0).contains(&age), "{age}");
    assert_eq!(value(&it, "backlog_targets{channel=\"other\"}"), 0.0);
    assert_eq!(value(&it, "unknown_targets{channel=\"web\"}"), 1.0);
    it.run();
    assert_eq!(value(&it, "backlog_targets{channel=\"web\"}"), 0.0);
    assert_eq!(value(&it, "unknown_targets{channel=\"web\"}"), 1.0, "until a person has settled it");
    it.call(&format!("resolve {task} --all --as sent --yes")).done().exits(0);
    it.run();
    assert_eq!(value(&it, "unknown_targets{channel=\"web\"}"), 0.0);

    // At night nothing could be sent.
    configure(&it, "", &endpoint.channel("web", &window(1, 2)));
    it.database.task("web", ["eve"]);
    it.run();
    assert_eq!(value(&it, "backlog_targets{channel=\"web\"}"), 0.0);
    assert_eq!(value(&it, "backlog_oldest_age_seconds{channel=\"web\"}"), 0.0);
}

fn how_the_last_run_ended_is_seen(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptThenClose);
    configure(&it, "", &endpoint.channel("web", ""));
    it.database.task("web", ["ann"]);
    it.call("run").done().exits(3);
    assert_eq!(value(&it, "last_run_exit_code"), 3.0);
    assert!(!text(&it).contains("last_success"), "there was none");
    it.run();
    assert_eq!(value(&it, "last_run_exit_code"), 0.0);
    let (run, success) =
        (value(&it, "last_run_timestamp_seconds"), value(&it, "last_success_timestamp_seconds"));
    assert_eq!(run, success);
    it.call("run --task-id 999").done().exits(2);
    assert_eq!(value(&it, "last_run_exit_code"), 2.0);
    assert!(value(&it, "last_run_timestamp_seconds") > run);
    assert_eq!(value(&it, "last_success_timestamp_seconds"), success);
    assert!(value(&it, "last_run_duration_seconds") < 60.0);
}

fn a_directory_that_is_not_there_is_told_once_and_the_run_goes_on(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top(&format!("metrics_file = \"{}\"", it.path("textfile/bs.prom").display()));
    for name in ["ann", "bob"] {
        let task = it.database.task("web", [name]);
        let done = it.call("run").done().exits(0);
        assert_eq!(done.stderr.lines().count(), 1, "{done}");
        done.says(&["the metrics cannot be written", "textfile/bs.prom", "the run goes on"]);
        assert!(endpoint.ledger().values().all(|times| *times == 1), "{:?}", endpoint.ledger());
        assert_eq!(it.database.status(task), "finished");
    }
    // What was done meanwhile was counted all the same.
    fs::create_dir(it.path("textfile")).unwrap();
    it.run();
    let text = fs::read_to_string(it.path("textfile/bs.prom")).unwrap();
    assert!(text.contains("outcome=\"sent\"} 2\n"), "{text}");
}

/// A run that was stopped in the middle of writing them, say.
fn whoever_keeps_the_metrics_locked_holds_up_no_message(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    configure(&it, "", &endpoint.channel("web", ""));
    it.run();
    let mut files = fs::read_dir(it.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let is_lock = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("metrics-") && name.ends_with(".lock")
    };
    let lock = files.find(is_lock).expect("a lock");
    let held = fs::File::open(lock).unwrap();
    held.lock().unwrap();
    let task = it.database.task("web", ["ann", "bob"]);
    let done = it.call("run").done().exits(0);
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    done.says(&["the metrics cannot be written: another run has held"]);
    assert_eq!(it.database.status(task), "finished");
    drop(held);
    it.database.task("web", ["cy"]);
    it.run();
    assert_eq!(outcome(&it, "sent"), 1.0);
}

fn promtool_finds_nothing_to_say(it: Sandbox) {
    let promtool = std::env::var("BATCH_SEND_TEST_PROMTOOL").unwrap_or_else(|_| "promtool".into());
    let endpoint =
        Endpoint::new(
            |request| {
                if request.recipient == "unclear" { Cue::AcceptThenClose } else { Cue::Accept }
            },
        );
    configure(&it, "", &(endpoint.channel("web", "") + &endpoint.channel("\"a.b-c\"", "")));
    it.database.task("web", ["ann", "unclear"]);
    it.call("run").done().exits(3);
    it.run();
    let checked = Command::new(&promtool)
        .args(["check", "metrics"])
        .stdin(fs::File::open(it.path("bs.prom")).unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap_or_else(|error| {
            panic!(
                "{promtool}: {error}; it comes with prometheus, and BATCH_SEND_TEST_PROMTOOL or PATH names it"
            )
        });
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.success() && said.is_empty(), "{said}\n{}", text(&it));
}
