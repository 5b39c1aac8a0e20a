//! What a run says while it works: each line names the run and what it is about, a mail is the sentence alone, a log file
//! keeps what happened, and no recipient is shown whole to those who did not ask.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::support::{Cue, Endpoint, Sandbox, check};

on_each_database! {
    every_line_of_a_run_names_the_run_its_task_and_its_target,
    the_journal_reads_a_priority_in_front_of_each_line,
    a_mail_is_the_sentence_alone,
    a_log_file_keeps_what_happened_however_quiet_the_run,
    a_log_file_may_be_moved_away_at_any_time,
    a_log_file_that_cannot_be_opened_is_told_and_the_run_goes_on,
    a_full_disk_fails_no_run,
    runs_beside_each_other_keep_their_lines_whole,
    recipients_are_masked_wherever_a_run_logs_them,
    another_command_writes_no_log_file,
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn every_line_of_a_run_names_the_run_its_task_and_its_target(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let tasks: Vec<u64> = (0..3).map(|_| it.database.task("web", ["ann", "bob"])).collect();
    let mut runs = BTreeSet::new();
    for _ in 0..2 {
        let done = it.call("run -vv --log-format json").done().exits(0);
        let lines: Vec<Value> = done.stderr.lines().map(json).collect();
        let names: BTreeSet<&str> = lines.iter().map(|line| line["run"].as_str().expect("a run")).collect();
        assert_eq!(names.len(), 1, "{done}");
        assert!(runs.insert(names.first().unwrap().to_string()), "another run, another name");
        if runs.len() > 1 {
            continue;
        }
        let of = |task: u64, message: &str| {
            let fits = |line: &&Value| {
                line["task"] == task && line["message"].as_str().unwrap().starts_with(message)
            };
            lines.iter().filter(fits).collect::<Vec<_>>()
        };
        for &task in &tasks {
            for message in ["leased", "begun", "served", "finished"] {
                assert!(!of(task, message).is_empty(), "no \"{message}\" of task {task}: {done}");
            }
            let ids: BTreeSet<u64> =
                of(task, "answered").iter().map(|line| line["target"].as_u64().expect("a target")).collect();
            let targets: BTreeSet<u64> = it.database.targets(task).iter().map(|row| row.id).collect();
            assert_eq!(ids, targets, "{done}");
            assert_eq!(of(task, "served")[0]["sent"], 2, "numbers are numbers: {done}");
        }
    }
    // What a sender says of a message, in a thread of its own.
    let endpoint = Endpoint::new(|_| Cue::AcceptThenSay(200, "{}"));
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["cy"]);
    let id = it.database.targets(task)[0].id;
    let done = it.call("run -v").done().exits(0);
    let line = done.stderr.lines().find(|line| line.contains("no receipt")).expect("a line");
    assert!(line.contains(&format!(" task={task} target={id} run=")), "{line}");
}

fn the_journal_reads_a_priority_in_front_of_each_line(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptThenClose);
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    let done = it.call("run -vv --log-format journal").done().exits(3);
    let priority = |line: &str| match line.as_bytes() {
        [b'<', digit, b'>', ..] => usize::from(digit - b'0'),
        _ => panic!("no priority: {line}"),
    };
    let found: BTreeSet<usize> = done.stderr.lines().map(priority).collect();
    assert_eq!(found, BTreeSet::from([4, 6, 7]), "{done}");
    let told = done.stderr.lines().find(|line| line.starts_with("<4>")).unwrap();
    assert!(told.starts_with(&format!("<4>task {task} has unknown targets")), "{told}");
    assert!(told.contains(&format!(" task={task} run=")), "{told}");
    it.call("run --task-id 999 --log-format journal")
        .done()
        .exits(2)
        .says(&["<3>there is no task 999", " run="]);
    // By the environment, too.
    it.call("run -v")
        .env("BATCH_SEND_LOG_FORMAT", "journal")
        .done()
        .exits(0)
        .says(&["<6>nothing is due run="]);
}

fn a_mail_is_the_sentence_alone(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptThenClose);
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    let mail = it.call("run").done().exits(3).stderr;
    assert_eq!(
        mail,
        format!(
            "batch-send: task {task} has unknown targets (1 sends without a clear answer): see them with \
             `batch-send targets {task} --status unknown`, settle them with `batch-send resolve {task} --all --as \
             VERDICT` (sent, failed or retry)\n"
        )
    );
}

fn log_file(it: &Sandbox) -> String {
    format!("log_file = \"{}\"", it.path("run.log").display())
}

fn a_log_file_keeps_what_happened_however_quiet_the_run(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top(&log_file(&it));
    for args in ["run", "run -q", ""] {
        let task = it.database.task("web", ["ann", "bob"]);
        it.call(args).done().quietly();
        let log = fs::read_to_string(it.path("run.log")).unwrap();
        for message in ["leased", "served", "finished"] {
            let line = log.lines().find(|line| line.contains(&format!(" info {message} task={task} ")));
            let line = line.unwrap_or_else(|| panic!("no \"{message}\" of task {task} in\n{log}"));
            assert!(line.starts_with("20") && line.contains("Z info ") && line.contains(" run="), "{line}");
        }
        assert!(!log.contains("answered"), "not everything, unless it is asked for: {log}");
    }
    assert_eq!(fs::metadata(it.path("run.log")).unwrap().permissions().mode() & 0o777, 0o640);
    // The flag goes before it, and brings what -vv says along.
    let other = it.path("other.log");
    let task = it.database.task("web", ["ann"]);
    it.call(&format!("run -vv --log-format json --log-file {}", other.display())).done().exits(0);
    let lines: Vec<Value> = fs::read_to_string(other).unwrap().lines().map(json).collect();
    let answered = |line: &&Value| line["message"].as_str().unwrap().starts_with("answered");
    assert_eq!(lines.iter().find(answered).expect("answered")["task"], task);
    // Trouble is kept as well as told.
    it.call("run --task-id 999").done().exits(2);
    let log = fs::read_to_string(it.path("run.log")).unwrap();
    assert!(log.lines().last().unwrap().contains(" error there is no task 999"), "{log}");
}

fn a_log_file_may_be_moved_away_at_any_time(it: Sandbox) {
    it.configure("", "");
    it.configure_top(&log_file(&it));
    it.run();
    fs::rename(it.path("run.log"), it.path("run.log.1")).unwrap();
    it.run();
    for name in ["run.log", "run.log.1"] {
        let log = fs::read_to_string(it.path(name)).unwrap();
        assert!(log.lines().count() == 1 && log.contains("nothing is due"), "{name}: {log}");
    }
}

fn a_log_file_that_cannot_be_opened_is_told_and_the_run_goes_on(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top("log_file = \"/nowhere/run.log\"");
    let task = it.database.task("web", ["ann"]);
    let done = it.call("run").done().exits(0);
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    done.says(&["the log file /nowhere/run.log cannot be opened", "the run goes on"]);
    check(&it, task, &endpoint);
    assert_eq!(it.database.status(task), "finished");
    it.call("run --log-file run.log")
        .done()
        .exits(2)
        .says(&["--log-file must be an absolute path", "run.log"]);
    // A pipe that nobody reads holds nobody up.
    let pipe = it.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    it.call(&format!("run --log-file {}", pipe.display())).done().exits(0).says(&["cannot be opened"]);
}

fn a_full_disk_fails_no_run(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top("log_file = \"/dev/full\"");
    let tasks: Vec<u64> =
        (0..3).map(|n| it.database.task("web", [format!("ann-{n}"), format!("bob-{n}")])).collect();
    let done = it.call("run").done().exits(0);
    assert_eq!(done.stderr.lines().count(), 1, "told once: {done}");
    done.says(&["the log file /dev/full cannot be written", "No space left", "the run goes on"]);
    assert!(endpoint.ledger().values().all(|times| *times == 1), "{:?}", endpoint.ledger());
    for task in tasks {
        assert_eq!(it.database.status(task), "finished");
    }
}

fn runs_beside_each_other_keep_their_lines_whole(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top(&log_file(&it));
    let people = (0..100).map(|n| format!("person-{n}")).collect::<Vec<_>>();
    let tasks: Vec<u64> = (0..6).map(|_| it.database.task("web", &people)).collect();
    let runs: Vec<_> = tasks
        .iter()
        .map(|task| it.call(&format!("run -vv --log-format json --task-id {task}")).start())
        .collect();
    for run in runs {
        run.wait().exits(0);
    }
    let log = fs::read_to_string(it.path("run.log")).unwrap();
    let answered =
        log.lines().map(json).filter(|line| line["message"].as_str().unwrap().starts_with("answered"));
    assert_eq!(answered.count(), 600);
}

const WHOLE: [&str; 5] =
    ["wang@example.com", "+8613812341234", "13987654321", "oUpF8uMuAJO_M2pxb1Q9zNjWeS6o", "王小明@例子.公司"];

/// Nor without the plus.
fn shows_none_whole(text: &str) {
    for recipient in WHOLE.map(|recipient| recipient.trim_start_matches('+')) {
        assert_eq!(text.lines().find(|line| line.contains(recipient)), None, "{recipient}");
    }
}

fn recipients_are_masked_wherever_a_run_logs_them(it: Sandbox) {
    const ECHO: &str = r#"{"error": "no such wang@example.com, 8613812341234, 13987654321, oUpF8uMuAJO_M2pxb1Q9zNjWeS6o, 王小明@例子.公司 or ann"}"#;
    let endpoint = Endpoint::new(|_| Cue::Say(422, ECHO));
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top(&log_file(&it));
    let task = it.database.task("web", WHOLE.into_iter().chain(["ann"]));
    let loud = it.call("run -vv").done().exits(0);
    for recipient in WHOLE {
        assert!(loud.stderr.contains(recipient), "-v asks for them: {loud}");
        assert!(
            it.database.target(task, recipient).error.contains("wang@example.com"),
            "rows have them whole"
        );
    }
    let log = fs::read_to_string(it.path("run.log")).unwrap();
    shows_none_whole(&log);
    for masked in
        ["w***@example.com", "86138****1234", "139****4321", "oUp***S6o", "王***@例子.公司", "recipient=a***"]
    {
        assert!(log.contains(masked), "no {masked} in\n{log}");
    }
    assert!(!log.lines().any(|line| line.contains("recipient=a***") && line.contains(" ann")), "{log}");

    // A pause quotes the answer: to a person in `status`, not to a mail.
    let endpoint = Endpoint::new(|_| Cue::Say(401, ECHO));
    it.configure("", &endpoint.channel("web", "concurrency = 1"));
    it.configure_top(&log_file(&it));
    let task = it.database.task("web", ["ann", "bob"]);
    let mail = it.call("run").done().exits(3).stderr;
    assert!(mail.contains("is paused: channel unavailable") && mail.contains("w***@example.com"), "{mail}");
    assert!(mail.contains("or a***") && !mail.contains("or ann"), "{mail}");
    shows_none_whole(&mail);
    shows_none_whole(&fs::read_to_string(it.path("run.log")).unwrap());
    assert!(it.database.standing(task).1.contains("wang@example.com"));
    let refused = it.call(&format!("run --task-id {task}")).done().exits(1);
    shows_none_whole(&refused.stderr);
    for format in ["json", "journal"] {
        it.database.execute(&format!("UPDATE batch_task SET status = 'pending' WHERE id = {task}"));
        let told = it.call(&format!("run --log-format {format}")).done().exits(3);
        assert!(told.stderr.contains("w***@example.com"), "{told}");
        shows_none_whole(&told.stderr);
    }
    // Where everything goes on a staging host is a recipient, too.
    it.configure("", &Endpoint::accepting().channel("web", "redirect_to = \"wang@example.com\""));
    it.database.execute(&format!("UPDATE batch_task SET status = 'pending' WHERE id = {task}"));
    it.call("run").done().exits(0).says(&["everything goes to w***@example.com (`redirect_to`)"]);
}

fn another_command_writes_no_log_file(it: Sandbox) {
    it.configure("", "");
    it.configure_top(&log_file(&it));
    it.call("status").done().exits(0);
    it.call("targets 999").done();
    it.call("run --dry-run").done().quietly();
    assert!(!Path::new(&it.path("run.log")).exists());
    // What a person typed comes back as it was typed.
    let absent = it.call("suppress remove wang@example.com").done().exits(1);
    absent.says(&["wang@example.com"]);
}
