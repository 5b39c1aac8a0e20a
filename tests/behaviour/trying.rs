//! Before a message goes to everybody it goes to one: tried out on oneself, looked at in a dry run, or, on a staging host,
//! sent to one recipient in place of all.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::{Cue, Endpoint, Sandbox, check};

on_each_database! {
    a_message_is_tried_out_whatever_the_status_and_no_row_is_touched,
    the_message_that_was_tried_out_is_still_sent_to_its_recipient,
    the_target_that_is_tried_out_is_the_next_one_or_the_one_asked_for,
    every_outcome_of_a_trial_is_told,
    what_cannot_be_tried_out_is_refused,
    a_message_is_tried_out_by_every_kind_of_channel,
    a_trial_never_shows_a_secret,
    a_dry_run_shows_the_message_of_one_target,
    on_a_staging_host_everything_goes_to_one_recipient,
    a_trial_on_a_staging_host_does_not_leak,
    a_redirected_message_is_kept_from_those_on_the_list,
    a_missing_variable_fails_its_target_alone,
}

/// A channel whose program answers as a provider would, and one that writes a file. What they got, one message a line.
fn local_channels(it: &Sandbox, keys: &str) -> String {
    let program = it.write(
        "send",
        &format!(
            "#!/bin/sh\nread -r line\nprintf '%s\\n' \"$line\" >> {}\necho receipt-7\n",
            it.path("exec").display()
        ),
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!(
        "[channel.exec]\nkind = \"exec\"\ncommand = [\"{}\"]\n{keys}\n[channel.file]\nkind = \"file\"\npath = \"{}\"\n{keys}\n",
        program.display(),
        it.path("file").display()
    )
}

fn messages(it: &Sandbox, channel: &str) -> Vec<Value> {
    let text = fs::read_to_string(it.path(channel)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every row there is, of every table.
fn rows(it: &Sandbox) -> Vec<Vec<Vec<Option<String>>>> {
    let tables = ["task", "task_target", "pace", "audit", "suppression"];
    tables.map(|table| it.database.rows(&format!("SELECT * FROM batch_{table}"))).into()
}

fn a_message_is_tried_out_whatever_the_status_and_no_row_is_touched(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "bob"]);
    for (nth, status) in ["draft", "pending", "paused", "finished", "cancelled"].into_iter().enumerate() {
        it.database.execute(&format!("UPDATE batch_task SET status = '{status}' WHERE id = {task}"));
        let before = rows(&it);
        let tried = it.call(&format!("task try {task} --to me@example.com")).done().exits(0);
        assert_eq!(
            (tried.stdout.as_str(), tried.stderr.as_str()),
            (&*format!("accepted, receipt r-{}\n", nth + 1), "")
        );
        assert_eq!(rows(&it), before);
        assert_eq!(endpoint.all()[nth].body["to"], "me@example.com");
    }
    let tried = it.call(&format!("task try {task} --to me --json")).done().exits(0).json();
    assert_eq!(tried, json!({ "outcome": "accepted", "receipt": "r-6" }));
}

fn the_message_that_was_tried_out_is_still_sent_to_its_recipient(it: Sandbox) {
    // As a provider that drops every message whose key it has seen.
    let seen = std::sync::Mutex::new(Vec::new());
    let endpoint = Endpoint::new(move |request| {
        let key = request.body["key"].as_str().unwrap().to_owned();
        let mut seen = seen.lock().unwrap();
        if seen.contains(&key) {
            return Cue::Answer(409);
        }
        seen.push(key);
        Cue::Accept
    });
    it.configure("", &endpoint.channel("web", "idempotent_for = \"24h\""));
    let task = it.database.task("web", ["ann"]);
    let shown = it.call("run --dry-run").done().exits(0).json();
    for _ in 0..2 {
        it.call(&format!("task try {task} --to me")).done().exits(0);
    }
    it.run();
    let keys: Vec<Value> = endpoint.accepted().iter().map(|request| request.body["key"].clone()).collect();
    assert!(keys.len() == 3 && keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
    assert_eq!(keys[2], shown["key"]);
    assert_eq!(
        endpoint.ledger().into_iter().collect::<Vec<_>>(),
        [("ann".to_owned(), 1), ("me".to_owned(), 2)]
    );
    assert_eq!(it.database.target(task, "ann").attempts, 1);
}

fn the_target_that_is_tried_out_is_the_next_one_or_the_one_asked_for(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "bob", "cy"]);
    it.database.execute(&format!(
        "UPDATE batch_task_target SET params = '{{\"name\": \"Ann\"}}' WHERE task_id = {task} AND recipient = 'ann'"
    ));
    let name = |nth: usize| endpoint.all()[nth].body["params"]["name"].clone();
    let status = |recipient: &str, status: &str| {
        it.database.execute(&format!(
            "UPDATE batch_task_target SET status = '{status}' WHERE task_id = {task} AND recipient = '{recipient}'"
        ));
    };
    let tried = || it.call(&format!("task try {task} --to me")).done().exits(0);
    tried();
    assert_eq!(name(0), "Ann");
    status("ann", "sent");
    tried();
    assert_eq!(name(1), Value::Null, "ann is settled, bob is not");
    status("bob", "failed");
    status("cy", "unknown");
    tried();
    assert_eq!(name(2), "Ann", "nobody is left: the first");
    let cy = it.database.target(task, "cy").id;
    it.call(&format!("task try {task} --to me --target {cy}")).done().exits(0);
    assert_eq!(name(3), Value::Null);
    assert_eq!(endpoint.ledger().into_keys().collect::<Vec<_>>(), ["me"]);
}

fn every_outcome_of_a_trial_is_told(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "rejected" => Cue::Answer(422),
        "deferred" => Cue::Answer(421),
        "unavailable" => Cue::Answer(401),
        "unknown" => Cue::AcceptThenClose,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    let before = rows(&it);
    for (outcome, reason, words) in [
        ("rejected", "422", "would not take it later"),
        ("deferred", "421", "later it may"),
        ("unavailable", "401", "the channel is at fault"),
        ("unknown", "", "may have arrived"),
    ] {
        let call = || it.call(&format!("task try {task} --to {outcome}"));
        let told = call().done().exits(1);
        assert!(told.stdout.starts_with(&format!("{outcome}: ")) && told.stdout.contains(reason), "{told}");
        assert_eq!((told.stdout.lines().count(), told.stderr.lines().count()), (1, 1), "{told}");
        let told = call().arg("--json").done().exits(1).says(&["web", words]);
        let json = told.json();
        assert!(
            json["outcome"] == outcome && json["reason"].as_str().is_some_and(|text| text.contains(reason)),
            "{told}"
        );
        assert!(json.get("receipt").is_none(), "{told}");
    }
    assert_eq!(rows(&it), before);
}

fn what_cannot_be_tried_out_is_refused(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let (task, empty) = (it.database.task("web", ["ann"]), it.database.draft("web"));
    let (other, stray) = (it.database.task("web", ["bob"]), it.database.task("webb", ["ann"]));
    let bob = it.database.target(other, "bob").id;
    for (args, code, words) in [
        ("task try 999999 --to me".to_owned(), 2, ["999999", "task list"]),
        (format!("task try {task}"), 2, ["--to", "RECIPIENT"]),
        (format!("task try {task} --to {}", "x".repeat(256)), 2, ["--to", "255"]),
        (format!("task try {task} --to me --target {bob}"), 2, [&bob.to_string(), "batch-send targets"]),
        (format!("task try {empty} --to me"), 2, ["no target", "task add"]),
        (format!("task try {stray} --to me"), 1, ["webb", "[channel.webb]"]),
    ] {
        let call = it.call(&args).done().exits(code);
        assert!(call.stdout.is_empty(), "{call}");
        call.says(&words);
    }
    it.call(&format!("task try {task} --to")).arg("  ").done().exits(2).says(&["--to", "empty"]);
    assert_eq!(endpoint.requests(), 0);
}

fn a_message_is_tried_out_by_every_kind_of_channel(it: Sandbox) {
    it.configure("", &local_channels(&it, ""));
    for (channel, said) in [("exec", "accepted, receipt receipt-7\n"), ("file", "accepted\n")] {
        let task = it.database.task(channel, ["ann"]);
        let tried = it.call(&format!("task try {task} --to me")).done().exits(0);
        assert_eq!(tried.stdout, said);
        it.run();
        let messages = messages(&it, channel);
        let to: Vec<_> = messages.iter().map(|message| &message["target"]["recipient"]).collect();
        assert_eq!(to, ["me", "ann"]);
        assert_ne!(messages[0]["key"], messages[1]["key"]);
    }
    // A channel that does not answer in this life: what became of the message is not known.
    it.configure(
        "",
        "[channel.slow]\nkind = \"exec\"\ncommand = [\"/bin/sleep\", \"60\"]\ntimeout = \"300ms\"\n",
    );
    let task = it.database.task("slow", ["ann"]);
    it.call(&format!("task try {task} --to me")).done().exits(1).says(&["may have arrived"]);
}

fn a_trial_never_shows_a_secret(it: Sandbox) {
    let program = it.write("send", "#!/bin/sh\ncat > /dev/null\necho \"key $1 is wrong\" >&2\nexit 77\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let command = format!("command = [\"{}\", \"${{API_TOKEN}}\"]", program.display());
    it.configure("", &format!("[channel.local]\nkind = \"exec\"\n{command}\n"));
    let task = it.database.task("local", ["ann"]);
    let line = format!("task try {task} --to me -vv");
    let tried = it.call(&line).env("API_TOKEN", "s3cr3t-t0ken").done().exits(1);
    assert_eq!(tried.stdout, "unavailable: exit 77: key [hidden] is wrong\n");
    assert!(!tried.stderr.contains("s3cr3t"), "{tried}");
    it.call(&line).done().exits(2).says(&["API_TOKEN"]);
}

fn a_dry_run_shows_the_message_of_one_target(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "bob"]);
    let other = it.database.task("web", ["cy"]);
    let bob = it.database.target(task, "bob").id;
    let before = rows(&it);
    let show = |id: u64| it.call(&format!("run --dry-run --task-id {task} --target {id}")).done();
    let shown = show(bob).exits(0).json();
    assert_eq!((&shown["target"]["id"], &shown["body"]["to"]), (&json!(bob), &json!("bob")));
    assert_eq!((rows(&it), endpoint.requests()), (before, 0));
    it.run();
    assert_eq!(show(bob).exits(0).json()["key"], shown["key"], "it is sent, and still shown");
    for id in [999_999, it.database.target(other, "cy").id] {
        let call = show(id).exits(2);
        assert!(call.stdout.is_empty(), "{call}");
        call.says(&[&id.to_string(), &format!("batch-send targets {task}")]);
    }
    for (args, missing) in [
        (format!("run --target {bob}"), "--dry-run"),
        (format!("run --dry-run --target {bob}"), "--task-id"),
        (format!("run --task-id {task} --target {bob}"), "--dry-run"),
        (format!("run --dry-run --task-id {task} --target {bob} --limit 3"), "--limit"),
    ] {
        it.call(&args).done().exits(2).says(&[missing, "Usage"]);
    }
    assert_eq!(endpoint.requests(), 3);
}

const STAGING: &str = "redirect_to = \"team@example.com\"";

fn on_a_staging_host_everything_goes_to_one_recipient(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &(endpoint.channel("web", STAGING) + &local_channels(&it, STAGING)));
    let names = ["ann", "bob", "cy"];
    // Two tasks of one channel: the warning is the channel's, and comes once.
    let tasks = ["web", "web", "exec", "file"].map(|channel| it.database.task(channel, names));
    let run = it.call("run").done().exits(0);
    for channel in ["web", "exec", "file"] {
        let said: Vec<_> =
            run.stderr.lines().filter(|line| line.contains(&format!("channel {channel}:"))).collect();
        assert_eq!(said.len(), 1, "{run}");
        assert!(said[0].contains("t***@example.com") && said[0].contains("`redirect_to`"), "{run}");
    }
    assert_eq!(run.stderr.lines().count(), 3, "{run}");
    assert_eq!(endpoint.ledger().into_iter().collect::<Vec<_>>(), [("team@example.com".to_owned(), 6)]);
    for channel in ["exec", "file"] {
        let messages = messages(&it, channel);
        assert_eq!(messages.len(), 3);
        assert!(
            messages.iter().all(|message| message["target"]["recipient"] == "team@example.com"),
            "{messages:?}"
        );
        let text = fs::read_to_string(it.path(channel)).unwrap();
        assert!(!names.iter().any(|name| text.contains(&format!("\"{name}\""))), "{text}");
    }
    // The rows are about those they were about; each has a key of its own.
    for task in tasks {
        let rows = it.database.targets(task);
        assert!(rows.iter().all(|row| row.status == "sent"), "{rows:?}");
        assert_eq!(rows.iter().map(|row| row.recipient.as_str()).collect::<Vec<_>>(), names);
    }
    let mut keys: Vec<_> = endpoint.all().iter().map(|request| request.body["key"].to_string()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6);
    // Nothing to send, nothing to warn of.
    it.run();
    let shown = it.call(&format!("run --dry-run --task-id {} --limit 1", it.database.task("web", ["ann"])));
    assert_eq!(shown.done().exits(0).json()["body"]["to"], "team@example.com");
}

fn a_trial_on_a_staging_host_does_not_leak(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", STAGING));
    let task = it.database.task("web", ["ann"]);
    let tried = it.call(&format!("task try {task} --to customer@example.com")).done().exits(0);
    assert_eq!(tried.stdout, "accepted, receipt r-1\n");
    tried.says(&["team@example.com", "customer@example.com", "`redirect_to`"]);
    assert_eq!(endpoint.ledger().into_keys().collect::<Vec<_>>(), ["team@example.com"]);
}

/// The list is about people, not about where their messages are sent for the time being.
fn a_redirected_message_is_kept_from_those_on_the_list(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", STAGING));
    it.call("suppress add ann team@example.com").done().quietly();
    let task = it.database.task("web", ["ann", "bob"]);
    it.call("run").done().exits(0);
    assert_eq!(it.database.target(task, "ann").error, "suppressed");
    assert_eq!(it.database.target(task, "bob").status, "sent");
    assert_eq!(endpoint.requests(), 1);
}

fn a_missing_variable_fails_its_target_alone(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let body = r#"{"to": {{ target.recipient }}, "text": {{ "Hi " ~ target.params.first_name }}}"#;
    let channel = endpoint.channel("web", "");
    let (before, after) = channel.split_once("body = '").unwrap();
    let after = after.split_once("'\n").unwrap().1;
    it.configure("", &format!("{before}body = '{body}'\n{after}"));
    let task = it.database.draft("web");
    it.database.add(task, ["ann", "bob", "cy"]);
    for (name, params) in [
        ("ann", r#"{"first_name": "Ann"}"#),
        ("bob", r#"{"firstname": "Bob"}"#),
        ("cy", r#"{"first_name": "Cy"}"#),
    ] {
        it.database
            .execute(&format!("UPDATE batch_task_target SET params = '{params}' WHERE recipient = '{name}'"));
    }
    // Before it is let go, the trial and the dry run tell of it, too.
    let bob = it.database.target(task, "bob").id;
    let words = ["target.params.first_name", &bob.to_string()];
    it.call(&format!("task try {task} --to me --target {bob}")).done().exits(1).says(&words);
    it.call(&format!("run --dry-run --task-id {task}")).done().exits(1).says(&words);
    assert_eq!(endpoint.requests(), 0);

    it.call(&format!("task start {task}")).done().exits(0);
    it.run();
    check(&it, task, &endpoint);
    let bob = it.database.target(task, "bob");
    assert_eq!((bob.status.as_str(), bob.attempts), ("failed", 0), "{bob:?}");
    assert!(bob.error.contains("target.params.first_name"), "{bob:?}");
    let texts: Vec<_> = endpoint.accepted().iter().map(|request| request.body["text"].clone()).collect();
    assert!(
        texts.len() == 2 && texts.contains(&"Hi Ann".into()) && texts.contains(&"Hi Cy".into()),
        "{texts:?}"
    );
    assert_eq!(it.database.status(task), "finished");
}
