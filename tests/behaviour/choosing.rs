//! What a person does to some targets of a task: by id, by recipient, or by a file; and what support asks about one of them.

use std::fs;

use crate::purge::fill;
use crate::support::process::{Process, bare};
use crate::support::sandbox::BINARY;
use crate::support::{Cue, Endpoint, Sandbox, check};

on_each_database! {
    support_learns_what_became_of_a_recipient,
    the_log_of_a_provider_settles_what_was_unknown,
    a_line_that_is_wrong_changes_nothing_or_says_how_far_it_came,
    failed_targets_are_retried_by_name,
    lists_of_any_length_pass_in_flat_memory,
    a_finished_task_that_is_added_to_says_so,
}

/// Some are accepted and never answered, some rejected.
fn endpoint() -> Endpoint {
    Endpoint::new(|request| match request.recipient.as_str() {
        "rejected" | "refused" if request.nth == 1 => Cue::Answer(422),
        name if name.starts_with("closed") && request.nth == 1 => Cue::AcceptThenClose,
        name if name.starts_with("reset") && request.nth == 1 => Cue::ResetUnread,
        _ => Cue::Accept,
    })
}

fn support_learns_what_became_of_a_recipient(it: Sandbox) {
    let endpoint = endpoint();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "rejected"]);
    let ask = |name: &str| it.call(&format!("targets {task} --recipient")).arg(name).done();
    let shown = ask("ann").exits(0);
    assert!(shown.stdout.contains("status     pending: nothing was sent yet"), "{shown}");
    it.run();
    let shown = ask("ann").exits(0);
    let receipt = it.database.target(task, "ann").receipt;
    for line in [
        "recipient  ann\n",
        "status     sent: ",
        "attempts   1\n",
        "settled    2",
        &format!("receipt    {receipt}\n"),
    ] {
        assert!(shown.stdout.contains(line), "no {line:?}: {shown}");
    }
    let shown = ask("rejected").exits(0);
    assert!(
        shown.stdout.contains("status     failed: certainly not") && shown.stdout.contains("last error "),
        "{shown}"
    );
    let absent = ask("Ann").exits(1).says(&[&format!("task {task} has no target Ann")]);
    assert!(absent.stdout.is_empty(), "{absent}");
    let row = it.call(&format!("targets {task} --recipient ann --format jsonl")).done().exits(0).json();
    assert_eq!((&row["recipient"], &row["status"]), (&"ann".into(), &"sent".into()));
}

fn the_log_of_a_provider_settles_what_was_unknown(it: Sandbox) {
    let endpoint = endpoint();
    it.configure("", &endpoint.channel("web", "stop_after_unknown = 100"));
    let names = ["ann", "closed-1", "closed-2", "closed, \"3\"", "reset-1", "reset-2", "reset-3"];
    let task = it.database.task("web", names);
    it.call("run").done().exits(3);
    assert_eq!(it.database.count(task, "unknown"), 6);
    let id = |name: &str| it.database.target(task, name).id;

    // What `targets` prints, filtered by what the provider knows, goes back in.
    let listed = it.call(&format!("targets {task} --status unknown --format csv")).done().exits(0).stdout;
    let known: String =
        listed.lines().filter(|line| !line.contains("reset")).map(|line| format!("{line}\n")).collect();
    let resolve = |args: &str| it.call(&format!("resolve {task} --yes --json {args}"));
    let done = resolve("--as sent --file -").stdin(&known).done().exits(0).json();
    assert_eq!(done, serde_json::json!({"id": task, "changed": 3}));
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 4);
    // By recipient, one of whom is not in doubt and one is nobody.
    let done = resolve("--as retry --recipient reset-1 ann nobody").done().exits(1);
    assert_eq!(done.json()["changed"], 1);
    done.says(&["left as they are: ann (sent), nobody (none of task"]);
    // By a list of one column. At a terminal its number is asked about.
    let list = it.write("list.csv", "recipient\nreset-2\nann\nreset-3   \n");
    let asked = it.call(&format!("resolve {task} --as retry --file {}", list.display())).on_terminal(100, 24);
    asked.answer(&format!("2 targets of task {task} (a task): to be sent again? [y/N]"), "n");
    assert_eq!(asked.wait().0, Some(1));
    assert_eq!(it.database.count(task, "unknown"), 2);
    let list = it.write("list.csv", "recipient\nreset-2\nreset-3   \n");
    let done = resolve(&format!("--as retry --file {}", list.display())).done().exits(0).json();
    assert_eq!(done["changed"], 2);
    let audited = it.database.rows(&format!(
        "SELECT target_id FROM batch_audit WHERE task_id = {task} AND what = 'resolve' ORDER BY target_id"
    ));
    let mut expected = names[1..].iter().map(|name| id(name)).collect::<Vec<_>>();
    expected.sort_unstable();
    let audited: Vec<u64> = audited.iter().map(|row| row[0].as_deref().unwrap().parse().unwrap()).collect();
    assert_eq!(audited, expected, "each by itself");
    it.run();
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (7, "finished"));
}

fn a_line_that_is_wrong_changes_nothing_or_says_how_far_it_came(it: Sandbox) {
    it.configure("", &Endpoint::accepting().channel("web", ""));
    let task = it.database.draft("web");
    it.database.add(task, (1..=2_500).map(|n| format!("p{n}")));
    it.database.execute("UPDATE batch_task_target SET status = 'unknown'");
    let mut list: String = (1..=2_500).map(|n| format!("p{n}\n")).collect();
    list = format!("recipient\n{list}\"p1\n");
    let path = it.write("list.csv", &list);
    let call = |file: &str| it.call(&format!("resolve {task} --as sent --yes --file {file}"));
    let refused = call(&path.display().to_string()).done().exits(2);
    refused.says(&["list.csv, line 2502", "a quote", "nothing was changed"]);
    assert_eq!(it.database.count(task, "unknown"), 2_500);
    // It can be read only once.
    let refused = call("-").stdin(&list).done().exits(2);
    refused.says(&["standard input, line 2502", "2500 targets changed before it"]);
    assert_eq!(it.database.count(task, "sent"), 2_500);
    for (list, says) in
        [("17\n18\n", "`id` or `recipient`"), ("", "nothing is here"), ("id\nann\n", "line 2")]
    {
        call("-").stdin(list).done().exits(2).says(&[says]);
    }
    call("/nowhere/list.csv").done().exits(2).says(&["/nowhere/list.csv"]);
}

fn failed_targets_are_retried_by_name(it: Sandbox) {
    let endpoint = endpoint();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "rejected", "refused"]);
    it.run();
    assert_eq!(it.database.count(task, "failed"), 2);
    let key = |name: &str| {
        endpoint
            .all()
            .iter()
            .filter(|request| request.recipient == name)
            .map(|request| request.body["key"].clone())
            .collect::<Vec<_>>()
    };
    let call = it.call(&format!("retry {task} --recipient refused ann --yes")).done().exits(1);
    assert!(call.stdout.starts_with("1 target to be sent once more"), "{call}");
    call.says(&["not failed", "ann (sent)"]);
    it.run();
    assert_eq!(
        (it.database.target(task, "refused").status.as_str(), it.database.count(task, "failed")),
        ("sent", 1)
    );
    let keys = key("refused");
    assert!(keys.len() == 2 && keys[0] != keys[1], "{keys:?}");
    // Without a choice: every one.
    it.call(&format!("retry {task} --yes")).done().exits(0);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 3);
    it.call(&format!("retry {task} --all --target 1 --yes")).done().exits(2);
}

/// The most resident memory that a process ever had, in KiB; waits for its end.
fn peak(mut process: Process) -> (u64, crate::support::process::Finished) {
    let mut peak = 0;
    while process.running() {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak = line.map_or(peak, |line| line.trim().trim_end_matches(" kB").parse().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    (peak, process.wait())
}

const ROWS: usize = 100_000;
/// Kept whole, the rows would take more.
const PEAK_MOST: u64 = 40 * 1024;

fn lists_of_any_length_pass_in_flat_memory(it: Sandbox) {
    it.configure("", &Endpoint::accepting().channel("web", ""));
    let task = it.database.draft("web");
    fill(&it, task, ROWS as u64, "sent");
    let some = "params = '{\"name\": \"somebody with a name\", \"more\": \"and more of it, as an application would have it\"}'";
    it.database.execute(&format!("UPDATE batch_task_target SET {some} WHERE task_id = {task}"));
    it.database.execute(&format!(
        "UPDATE batch_task_target SET status = 'unknown' WHERE task_id = {task} AND id % 100 = 0"
    ));
    let list = |format: &str| {
        let (highest, listed) = peak(it.call(&format!("targets {task} --format {format}")).start());
        let listed = listed.exits(0);
        assert!(highest > 0 && highest <= PEAK_MOST, "{format}: {highest} KiB");
        eprintln!("{:?}, targets --format {format}: {highest} KiB", it.database.engine);
        listed.stdout
    };
    assert_eq!(list("jsonl").lines().count(), ROWS);
    let csv = list("csv");
    assert_eq!(csv.lines().count(), ROWS + 1);

    // A reader that goes away is no trouble.
    for format in ["csv", "jsonl", "table"] {
        let line = format!("set -o pipefail; {BINARY} targets {task} --format {format} | head -n 1");
        let config = it.path("config.toml");
        let done = bare("bash").args(["-c", &line]).env("BATCH_SEND_CONFIG", config).output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && stderr.is_empty(), "{format}: {}, {stderr}", done.status);
        assert_eq!(done.stdout.iter().filter(|byte| **byte == b'\n').count(), 1, "{format}");
    }

    // All of it goes back in; one in a hundred is what is asked for.
    let path = it.write("all.csv", &csv);
    drop(csv);
    let resolve = it.call(&format!("resolve {task} --as sent --yes --file {}", path.display())).start();
    let (highest, resolved) = peak(resolve);
    let resolved = resolved.exits(1);
    assert_eq!(resolved.stdout, format!("{} targets settled as sent\n", ROWS / 100));
    let others = ROWS - ROWS / 100;
    let left = resolved.stderr.contains("left as they are: ")
        && resolved.stderr.contains(&format!("{} more;", others - 20));
    assert!(left, "{}", resolved.stderr);
    assert!(highest > 0 && highest <= PEAK_MOST, "{highest} KiB");
    eprintln!("{:?}, resolve --file: {highest} KiB", it.database.engine);
}

fn a_finished_task_that_is_added_to_says_so(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    it.run();
    let add =
        |args: &str, list: &str| it.call(&format!("task add {task} - {args}")).stdin(list).done().exits(0);
    let again = add("--json", "recipient\nann\n").json();
    assert_eq!((&again["status"], &again["new"]), (&"finished".into(), &0.into()), "{again}");
    let more = add("--json", "recipient\nbob\n").json();
    assert_eq!((&more["status"], &more["new"]), (&"pending".into(), &1.into()), "{more}");
    it.run();
    // A hint is for a terminal.
    assert!(add("", "recipient\ncy\n").stderr.is_empty());
    it.run();
    let list = it.write("list.csv", "recipient\ndan\n");
    let again = it.call(&format!("task add {task} {}", list.display()));
    let (code, drawn) = again.on_terminal(100, 24).wait();
    let hint = format!("task {task} was finished and is pending again");
    assert!(code == Some(0) && drawn.contains(&hint), "{code:?} {drawn}");
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 4);
}
