//! What a person types: tasks created, listed, started, stopped and settled, and what is printed of it.

use serde_json::Value;

use crate::support::{Cue, Endpoint, Sandbox, check};

on_each_database! {
    the_first_minute,
    repeats_are_merged,
    verbs_start_from_where_they_may,
    status_tells_what_is_there_in_a_stable_form,
    a_dry_run_shows_messages_and_writes_nothing,
    a_program_is_a_channel,
    a_file_is_a_channel,
    migrate_twice_is_no_trouble,
    somebody_else_runs_the_printed_statements,
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

fn the_first_minute(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let created = it.call("task create --name Spring --channel web --draft --targets -");
    let created = created.stdin("recipient,name\nann@example.com,Ann\nbob@example.com,Bob\n").done().exits(0);
    let task: u64 = created.stdout.trim_end().parse().expect("the id and nothing else");
    it.run();
    assert_eq!(endpoint.requests(), 0, "a draft stays");
    it.call(&format!("task start {task}")).done().exits(0);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 2);
    let names: Vec<_> =
        endpoint.accepted().iter().map(|request| request.body["params"]["name"].clone()).collect();
    assert!(names.contains(&"Ann".into()) && names.contains(&"Bob".into()), "{names:?}");
    for args in ["task list".to_owned(), "status".into(), format!("status {task}"), format!("targets {task}")]
    {
        let shown = it.call(&args).done().exits(0);
        assert!(!shown.stdout.is_empty() && shown.stderr.is_empty(), "{shown}");
    }
}

fn repeats_are_merged(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let csv = "recipient\nann\nann   \nbob\nann\n";
    let created =
        it.call("task create --name x --channel web --json --targets -").stdin(csv).done().exits(0).json();
    assert_eq!((created["new"].as_u64(), created["repeated"].as_u64()), (Some(2), Some(2)), "{created}");
    let task = created["id"].as_u64().unwrap();
    let jsonl = "{\"recipient\": \"cy\"}\n{\"recipient\": \"bob\"}\n";
    let added = it.call(&format!("task add {task} - --json")).stdin(jsonl).done().exits(0).json();
    assert_eq!((added["new"].as_u64(), added["repeated"].as_u64()), (Some(1), Some(1)), "{added}");
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 3);
}

fn verbs_start_from_where_they_may(it: Sandbox) {
    it.configure("", &Endpoint::accepting().channel("web", ""));
    let table = [
        ("start", ["pending", "pending", "", "", ""]),
        ("pause", ["", "paused", "paused", "", ""]),
        ("resume", ["", "pending", "pending", "", ""]),
        ("cancel", ["cancelled", "cancelled", "cancelled", "", "cancelled"]),
    ];
    for (verb, ends) in table {
        for (from, to) in ["draft", "pending", "paused", "finished", "cancelled"].into_iter().zip(ends) {
            let task = it.database.draft("web");
            it.database.execute(&format!("UPDATE batch_task SET status = '{from}' WHERE id = {task}"));
            let yes = if verb == "cancel" { " --yes" } else { "" };
            let call = it.call(&format!("task {verb} {task}{yes}")).done();
            let (code, status) = if to.is_empty() { (2, from) } else { (0, to) };
            let call = call.exits(code);
            assert_eq!(it.database.status(task), status, "{verb} from {from}");
            assert!(code == 0 || call.stderr.contains(from), "{call}");
        }
    }
}

fn status_tells_what_is_there_in_a_stable_form(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "rejected" => Cue::Answer(422),
        "deferred" => Cue::Answer(421),
        "closed" => Cue::AcceptThenClose,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "rejected", "deferred", "closed"]);
    it.call("run").done().exits(3);
    let all = it.call("status --json").done().exits(0).json();
    let one = it.call(&format!("status {task} --json")).done().exits(0).json();
    assert_eq!(all["tasks"][0], one);
    let counts = &one["counts"];
    for (status, count) in [
        ("pending", 0),
        ("processing", 0),
        ("sending", 0),
        ("retry", 1),
        ("sent", 1),
        ("failed", 1),
        ("unknown", 1),
        ("total", 4),
    ] {
        assert_eq!(counts[status], count, "{status} in {counts}");
    }
    for key in [
        "id",
        "name",
        "channel",
        "status",
        "status_reason",
        "priority",
        "scheduled_at",
        "expires_at",
        "created_at",
        "started_at",
        "finished_at",
        "lease",
    ] {
        assert!(one.get(key).is_some(), "{key} in {one}");
    }
    let rows = it.call(&format!("targets {task} --format jsonl")).done().exits(0);
    for row in lines(&rows.stdout) {
        for key in [
            "id",
            "task_id",
            "recipient",
            "params",
            "status",
            "attempts",
            "round",
            "retry_at",
            "send_at",
            "settled_at",
            "receipt",
            "last_error",
        ] {
            assert!(row.get(key).is_some(), "{key} in {row}");
        }
    }
}

fn a_dry_run_shows_messages_and_writes_nothing(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", (0..30).map(|n| format!("person-{n}")));
    let before = it.database.rows("SELECT * FROM batch_task");
    let shown = it.call("run --dry-run").done().exits(0);
    let messages = lines(&shown.stdout);
    assert_eq!(messages.len(), 10);
    assert_eq!(
        shown.stderr,
        format!(
            "batch-send: only the first 10 targets of task {task} are shown: `--limit N` says how many of each\n"
        )
    );
    for limit in [3, 30] {
        let shown = it.call(&format!("run --dry-run --limit {limit}")).done().exits(0);
        assert!(lines(&shown.stdout).len() == limit && shown.stderr.is_empty(), "{shown}");
    }
    assert_eq!(messages[0]["target"]["recipient"], "person-0");
    assert_eq!(messages[0]["body"]["to"], "person-0");
    assert_eq!(
        lines(&it.call(&format!("run --dry-run --limit 3 --task-id {task}")).done().exits(0).stdout).len(),
        3
    );
    assert_eq!(it.database.rows("SELECT * FROM batch_task"), before);
    assert_eq!((it.database.count(task, "pending"), endpoint.requests()), (30, 0));
    it.run();
    assert_eq!(
        endpoint.accepted()[0].body["key"].as_str(),
        sent_key(&messages, &endpoint.accepted()[0].recipient)
    );
}

fn sent_key<'a>(messages: &'a [Value], recipient: &str) -> Option<&'a str> {
    messages.iter().find(|message| message["target"]["recipient"] == recipient)?["key"].as_str()
}

fn a_program_is_a_channel(it: Sandbox) {
    use std::os::unix::fs::PermissionsExt;
    let spool = it.path("spool");
    let program = it.write(
        "send",
        &format!(
            "#!/bin/sh\nread -r line\ncase $line in\n*rejected*) echo no such person >&2; exit 65;;\n*deferred*) exit 75;;\n*unclear*) exit 1;;\nesac\nprintf '%s\\n' \"$line\" >> {}\necho receipt-7\n",
            spool.display()
        ),
    );
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    it.configure("", &format!("[channel.local]\nkind = \"exec\"\ncommand = [\"{}\"]\n", program.display()));
    let task = it.database.task("local", ["ann", "rejected", "deferred", "unclear"]);
    it.call("run").done().exits(3);
    for (name, status) in
        [("ann", "sent"), ("rejected", "failed"), ("deferred", "retry"), ("unclear", "unknown")]
    {
        assert_eq!(it.database.target(task, name).status, status, "{name}");
    }
    assert_eq!(it.database.target(task, "ann").receipt, "receipt-7");
    assert!(it.database.target(task, "rejected").error.contains("no such person"));
    let messages = lines(&std::fs::read_to_string(&spool).unwrap());
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["target"]["recipient"], "ann");

    it.configure("", "[channel.gone]\nkind = \"exec\"\ncommand = [\"/nowhere/send\"]\n");
    let gone = it.database.task("gone", ["ann"]);
    let run = it.call("run").done();
    assert!(matches!(run.code(), Some(2 | 3)), "{run}");
    assert_eq!(it.database.count(gone, "pending"), 1);
}

fn a_file_is_a_channel(it: Sandbox) {
    let spool = it.path("spool.jsonl");
    it.configure("", &format!("[channel.spool]\nkind = \"file\"\npath = \"{}\"\n", spool.display()));
    let task = it.database.task("spool", (0..50).map(|n| format!("person-{n}")));
    it.run();
    let messages = lines(&std::fs::read_to_string(&spool).unwrap());
    let mut names: Vec<_> =
        messages.iter().map(|message| message["target"]["recipient"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!((messages.len(), names.len()), (50, 50));
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (50, "finished"));
}

fn migrate_twice_is_no_trouble(it: Sandbox) {
    let again = it.call("migrate --json").done().exits(0).json();
    assert_eq!((&again["from"], again["applied"].as_array().unwrap().len()), (&again["to"], 0));
    it.call("migrate --check").done().exits(0);
    let fresh = Sandbox::empty(it.database.engine);
    let both = [fresh.call("migrate").start(), fresh.call("migrate").start()];
    for one in both {
        one.wait().exits(0);
    }
    assert_eq!(fresh.database.number("SELECT COUNT(*) FROM batch_installation"), 1);
}

fn somebody_else_runs_the_printed_statements(it: Sandbox) {
    let fresh = Sandbox::empty(it.database.engine);
    let printed = fresh.call("migrate --print").done().exits(0);
    assert_eq!(printed.stdout, fresh.call("migrate --print --from 0").done().exits(0).stdout);
    fresh.call("migrate --check").done().exits(2);
    fresh.database.execute(&printed.stdout);
    fresh.call("migrate --check").done().quietly();
    assert_eq!(fresh.call("migrate --print").done().exits(0).stdout, "", "nothing is lacking");
    let upgrade = fresh.call("migrate --print --from 1").done().exits(0).stdout;
    assert!(upgrade.contains("batch_suppression") && !upgrade.contains("batch_task "), "{upgrade}");
}
