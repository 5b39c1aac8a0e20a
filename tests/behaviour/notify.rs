//! The operator's own program hears what became of tasks, and whatever it does changes nothing.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::support::{Cue, Endpoint, Sandbox, wait_until};

on_each_database! {
    each_event_is_one_call_with_one_object,
    an_event_says_who_when_and_how_many,
    what_a_killed_run_left_is_told_by_the_next,
    nothing_is_told_when_nothing_happened,
    a_program_that_fails_is_told_and_changes_nothing,
    a_program_that_hangs_is_killed_and_holds_nobody_up,
}

/// A program that keeps what it is told, one file a call.
fn listen(it: &Sandbox) {
    let dir = it.path("told");
    let program = it.script("tell", "cat > \"$1/$$.json\"");
    fs::create_dir(&dir).unwrap();
    it.configure_end(&format!("[notify]\ncommand = [\"{}\", \"{}\"]", program.display(), dir.display()));
}

fn told(it: &Sandbox) -> Vec<Value> {
    let files = fs::read_dir(it.path("told")).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| fs::read_to_string(path).unwrap())
        .map(|text| {
            assert!(text.ends_with('\n') && text.lines().count() == 1, "one object, one line: {text}");
            serde_json::from_str(&text).unwrap()
        })
        .collect()
}

/// Events by their task.
fn events(it: &Sandbox) -> BTreeMap<u64, Vec<String>> {
    let mut events: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for event in told(it) {
        let task = event["task"]["id"].as_u64().unwrap();
        events.entry(task).or_default().push(event["event"].as_str().unwrap().to_owned());
    }
    events.values_mut().for_each(|events| events.sort());
    events
}

fn each_event_is_one_call_with_one_object(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "unclear" => Cue::AcceptThenClose,
        "unavailable" => Cue::Answer(401),
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    listen(&it);
    let finished = it.database.task("web", ["ann", "bob"]);
    let unknown = it.database.task("web", ["unclear", "ann"]);
    let paused = it.database.task("web", ["unavailable"]);
    let expired = it.database.task("web", ["ann"]);
    let ago = it.database.moment(-60);
    it.database.execute(&format!("UPDATE batch_task SET expires_at = {ago} WHERE id = {expired}"));
    it.call("run").done().exits(3);
    let expected: [(u64, &[&str]); 4] = [
        (finished, &["finished"]),
        (unknown, &["finished", "unknown"]),
        (paused, &["paused"]),
        (expired, &["expired"]),
    ];
    let expected =
        expected.map(|(task, events)| (task, events.iter().map(|event| (*event).to_owned()).collect()));
    assert_eq!(events(&it), BTreeMap::from(expected));
}

fn an_event_says_who_when_and_how_many(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "unclear" => Cue::AcceptThenClose,
        "rejected" => Cue::Answer(422),
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    listen(&it);
    let task = it.database.task("web", ["ann", "unclear", "rejected"]);
    let done = it.call("run -v --log-format json").done().exits(3);
    let run = serde_json::from_str::<Value>(done.stderr.lines().next().unwrap()).unwrap()["run"].clone();
    let mut told = told(&it);
    told.sort_by_key(|event| event["event"].as_str().unwrap().to_owned());
    for (event, happened) in told.into_iter().zip(["finished", "unknown"]) {
        let (host, time) = (event["host"].clone(), event["time"].clone());
        assert!(!host.as_str().unwrap().is_empty());
        assert!(time.as_str().unwrap().len() == 24 && time.as_str().unwrap().ends_with('Z'), "{time}");
        assert_eq!(
            event,
            json!({
                "event": happened,
                "task": {"id": task, "name": "a task", "channel": "web", "status": "finished", "status_reason": null},
                "counts": {
                    "pending": 0, "processing": 0, "sending": 0, "retry": 0, "sent": 1, "failed": 1, "unknown": 1,
                    "total": 3, "estimated": false
                },
                "run": run,
                "host": host,
                "time": time,
            })
        );
    }
    // A pause comes with its reason.
    let endpoint = Endpoint::new(|_| Cue::Answer(401));
    fs::remove_dir_all(it.path("told")).unwrap();
    it.configure("", &endpoint.channel("web", ""));
    listen(&it);
    it.database.task("web", ["ann"]);
    it.call("run").done().exits(3);
    let event = self::told(&it).pop().unwrap();
    assert_eq!((&event["event"], &event["task"]["status"]), (&json!("paused"), &json!("paused")));
    let reason = event["task"]["status_reason"].as_str().unwrap();
    assert!(reason.contains("channel unavailable"), "{event}");
    assert_eq!(event["counts"]["pending"], 1);
}

fn what_a_killed_run_left_is_told_by_the_next(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure("", &endpoint.channel("web", "timeout = \"20s\""));
    listen(&it);
    let task = it.database.task("web", ["ann"]);
    let run = it.call("run").start();
    wait_until("a message in flight", 20, || endpoint.waiting() == 1);
    run.kill();
    endpoint.tell();
    assert!(told(&it).is_empty());
    it.database.claims_end(task);
    it.call("run").done().exits(3);
    assert_eq!(events(&it)[&task], ["finished", "unknown"]);
    it.run();
    assert_eq!(told(&it).len(), 2, "once");
}

fn nothing_is_told_when_nothing_happened(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    listen(&it);
    it.run();
    it.database.task("web", ["ann", "bob"]);
    it.call("run --limit 1").done().quietly();
    it.call("run --dry-run").done().exits(0);
    assert!(told(&it).is_empty());
}

fn a_program_that_fails_is_told_and_changes_nothing(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    for (program, why) in [
        (it.script("fails", "echo 'no such room' >&2; exit 1"), "exit 1: no such room"),
        (it.path("missing"), "cannot start"),
    ] {
        it.configure("", &endpoint.channel("web", ""));
        it.configure_end(&format!("[notify]\ncommand = [\"{}\"]", program.display()));
        let task = it.database.task("web", [why]);
        let done = it.call("run").done().exits(0);
        assert_eq!(done.stderr.lines().count(), 1, "{done}");
        done.says(&[&format!("[notify] failed at finished of task {task}: {why}")]);
        assert_eq!(it.database.status(task), "finished");
        assert!(endpoint.ledger().values().all(|times| *times == 1), "{:?}", endpoint.ledger());
    }
}

fn a_program_that_hangs_is_killed_and_holds_nobody_up(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let program = it.script("hangs", "echo $$ > \"$1\"; sleep 1234 & wait");
    let pid = it.path("pid");
    it.configure_end(&format!("[notify]\ncommand = [\"{}\", \"{}\"]", program.display(), pid.display()));
    let task = it.database.task("web", ["ann"]);
    let run = it.call("run").start();
    wait_until("the program to run", 20, || fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n')));
    let group = fs::read_to_string(&pid).unwrap().trim().to_owned();
    assert_eq!(it.database.status(task), "finished", "told after the work");
    // Whoever comes next finds the lock free, and sends.
    let next = it.database.task("web", ["bob"]);
    let other = it.call("run").start();
    wait_until("the next task to be finished", 20, || it.database.status(next) == "finished");
    run.wait().exits(0).says(&["[notify] failed at finished of task", "killed"]);
    other.wait().exits(0);
    // But for those that nobody has waited for yet.
    let alive = fs::read_dir("/proc").unwrap().map(Result::unwrap).any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
        fields.get(2) == Some(&group.as_str()) && fields[0] != "Z"
    });
    assert!(!alive, "its whole process group is gone");
}
