//! Every text goes through as it is: emoji, quotes, line breaks, backslashes, in every field that takes one.

use crate::support::{Endpoint, Sandbox, check};

on_each_database! {
    texts_go_through_unchanged,
    long_and_broken_answers_fit_their_columns,
}

const TEXT: &str = "O'Neil \"x\" 😀 \\n ü\u{2028}% _ ${HOME} {{ no }} </script>";

fn texts_go_through_unchanged(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let lines = format!("{TEXT}\r\nsecond line\ttab");
    let payload = serde_json::json!({ "text": lines, TEXT: [1, null, {"b": 1, "a": 2}] });
    let target = serde_json::json!({ "recipient": TEXT, "params": { "name": lines } });
    let list = it.write("list.jsonl", &format!("{target}\n")).display().to_string();
    let call =
        it.call("task create --channel web --name").arg(TEXT).arg("--payload").arg(&payload.to_string());
    let task: u64 = call.arg("--targets").arg(&list).done().exits(0).stdout.trim().parse().unwrap();
    it.run();
    check(&it, task, &endpoint);
    let sent = &endpoint.accepted()[0].body;
    assert_eq!(sent["to"], TEXT);
    assert_eq!(sent["task"], TEXT);
    // As values: MySQL sorts the keys of an object.
    assert_eq!(sent["payload"], payload);
    assert_eq!(sent["params"]["name"], lines);

    let status = it.call(&format!("status {task} --json")).done().exits(0).json();
    assert_eq!(status["name"], TEXT);
    let row = it.call(&format!("targets {task} --format jsonl")).done().exits(0).json();
    assert_eq!((&row["recipient"], &row["params"]["name"]), (&TEXT.into(), &lines.clone().into()));
    let csv = it.call(&format!("targets {task} --format csv")).done().exits(0);
    assert!(csv.stdout.contains(&format!("\"{}\"", TEXT.replace('"', "\"\""))), "{csv}");

    let other = it.database.task("web", ["ann"]);
    it.call(&format!("task pause {other} --reason")).arg(&lines).done().exits(0);
    assert_eq!(it.database.standing(other).1, lines);
}

fn long_and_broken_answers_fit_their_columns(it: Sandbox) {
    use std::os::unix::fs::PermissionsExt;
    let program = it.write(
        "send",
        "#!/bin/sh\ncat > /dev/null\nhead -c 3000 /dev/zero | tr '\\0' x\nprintf '\\377\\376 \\000 \\360\\237\\230\\200\\n'\nhead -c 3000 /dev/zero | tr '\\0' y >&2\nprintf '\\377\\360\\237\\230\\n' >&2\nexit $CODE\n",
    );
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (code, status) in [("0", "sent"), ("65", "failed"), ("1", "unknown")] {
        let wrapper = it
            .write(&format!("send-{code}"), &format!("#!/bin/sh\nCODE={code} exec {}\n", program.display()));
        std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
        it.configure(
            "",
            &format!("[channel.local]\nkind = \"exec\"\ncommand = [\"{}\"]\n", wrapper.display()),
        );
        let task = it.database.task("local", ["ann"]);
        let run = it.call("run").done();
        assert!(matches!(run.code(), Some(0 | 3)), "{run}");
        let ann = it.database.target(task, "ann");
        assert_eq!(ann.status, status, "{ann:?}");
        assert!(ann.receipt.chars().count() <= 191 && ann.error.chars().count() <= 500, "{ann:?}");
    }
}
