//! An answer that cannot be written to the database is on this host's disk before anything else happens, and a later run
//! writes it: what the provider said is not lost with the process that heard it.

use std::fs;

use crate::support::{Cue, Endpoint, Engine, Process, Sandbox, check, wait_until};

on_each_database! {
    answers_that_cannot_be_written_are_written_by_the_next_run,
    a_journalled_answer_counts_after_its_target_was_given_up,
    a_journal_with_half_a_line_is_no_trouble,
    a_run_that_cannot_write_its_state_begins_nothing,
}

fn journalled(it: &Sandbox) -> Option<std::path::PathBuf> {
    let files = fs::read_dir(it.path("state")).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    files.into_iter().find(|path| {
        path.extension().is_some_and(|end| end == "jsonl")
            && fs::read_to_string(path).is_ok_and(|text| text.matches("\"sent\"").count() >= 4)
    })
}

/// Four accepted, their rows held by a third session, the answers in the journal, and the run killed.
pub fn four_answers_in_a_dead_runs_journal(it: &Sandbox) -> (Endpoint, u64) {
    let endpoint =
        Endpoint::new(
            |request| if request.recipient.starts_with("slow") { Cue::AcceptWhenTold } else { Cue::Accept },
        );
    it.configure("lease = \"5s\"", &endpoint.channel("web", "timeout = \"20s\"\nconcurrency = 4"));
    let names = (0..4).map(|n| format!("slow-{n}")).chain((0..10).map(|n| format!("person-{n}")));
    let task = it.database.task("web", names);
    let run: Process = it.call("run").start();
    wait_until("four messages to be in flight", 20, || endpoint.waiting() == 4);
    let other = it.database.another();
    match it.database.engine {
        Engine::Sqlite => other.execute("BEGIN IMMEDIATE"),
        Engine::MySql => {
            other.execute("BEGIN");
            other.rows(&format!("SELECT * FROM batch_task_target WHERE task_id = {task} FOR UPDATE"));
        }
    }
    endpoint.tell();
    wait_until("the answers to be in the journal", 40, || journalled(it).is_some());
    run.kill();
    // The server would carry out what the dead run asked for last.
    it.database.cut_others(&other);
    other.execute("ROLLBACK");
    check(it, task, &endpoint);
    assert_eq!(it.database.count(task, "sending"), 4);
    (endpoint, task)
}

fn answers_that_cannot_be_written_are_written_by_the_next_run(it: Sandbox) {
    let (endpoint, task) = four_answers_in_a_dead_runs_journal(&it);
    it.database.claims_end(task);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 14, "{:?}", it.database.targets(task));
    assert!(it.database.targets(task).iter().all(|row| row.receipt.starts_with("r-")));
    assert_eq!(journalled(&it), None, "it is gone once it is written");
}

fn a_journalled_answer_counts_after_its_target_was_given_up(it: Sandbox) {
    let (endpoint, task) = four_answers_in_a_dead_runs_journal(&it);
    it.database.claims_end(task);
    it.call_on_host(2, "run").done().exits(3);
    assert_eq!(it.database.count(task, "unknown"), 4);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "sent"), endpoint.requests()), (14, 14));
}

fn a_journal_with_half_a_line_is_no_trouble(it: Sandbox) {
    let (endpoint, task) = four_answers_in_a_dead_runs_journal(&it);
    let path = journalled(&it).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.rfind("\"sent\"").unwrap()]).unwrap();
    it.database.claims_end(task);
    let run = it.call("run").done();
    assert!(matches!(run.code(), Some(0 | 3)), "{run}");
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "unknown"), 1, "{:?}", it.database.targets(task));
    assert_eq!(it.database.count(task, "sent"), 13);
}

fn a_run_that_cannot_write_its_state_begins_nothing(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    // A file stands where the directory would be: nobody, not even root, can write there.
    fs::remove_dir_all(it.path("state")).ok();
    fs::write(it.path("state"), "").unwrap();
    let run = it.call("run").done().exits(2);
    run.says(&[&it.path("state").display().to_string()]);
    assert_eq!((endpoint.requests(), it.database.count(task, "pending")), (0, 1));
}
