//! Whatever is wrong is told in one sentence: what, which, and the way out. Nothing is sent, and one bad target
//! is no trouble for the others.

use crate::support::{Cue, Endpoint, Engine, Sandbox, check};

on_each_database! {
    a_wrong_configuration_is_refused,
    a_wrong_command_line_is_refused,
    a_channel_that_no_host_knows_is_named,
    a_database_without_tables_is_told_how_to_get_them,
    a_recipient_that_is_too_long_is_refused_by_import,
    params_that_are_no_object_fail_alone,
    a_bad_line_ends_an_import_and_says_how_to_go_on,
    an_unreachable_database_is_for_later,
    trouble_can_be_told_as_json,
    a_channel_that_nobody_knows_for_ten_minutes_pauses_its_task,
}

/// Exit 2, nothing on stdout, and every word in one sentence on stderr.
#[track_caller]
fn refused(it: &Sandbox, args: &str, words: &[&str]) {
    let call = it.call(args).done().exits(2);
    assert!(call.stdout.is_empty(), "{call}");
    assert!(!call.stderr.contains("panicked"), "{call}");
    call.says(words);
}

fn a_wrong_configuration_is_refused(it: Sandbox) {
    let web = |keys: &str| format!("[channel.web]\nkind = \"http\"\n{keys}\n");
    let good = "url = \"http://127.0.0.1:1/\"\nbody = '{}'\n";
    let channel = |keys: &str| web(&format!("{good}{keys}"));
    let cases: Vec<(&str, String, Vec<&str>)> = vec![
        ("budgt = \"50s\"", String::new(), vec!["budgt", "budget"]),
        ("budget = \"50\"", String::new(), vec!["budget", "50"]),
        ("budget = 50", String::new(), vec!["budget"]),
        ("budget = \"0s\"", String::new(), vec!["budget"]),
        ("budget = \"25h\"", String::new(), vec!["budget"]),
        ("lease = \"2s\"", String::new(), vec!["lease"]),
        ("lanes = 0", String::new(), vec!["lanes"]),
        ("lanes = -1", String::new(), vec!["lanes"]),
        ("lanes = 65", String::new(), vec!["lanes"]),
        ("batch_size = 0", String::new(), vec!["batch_size"]),
        ("batch_size = -5", String::new(), vec!["batch_size"]),
        ("batch_size = 5001", String::new(), vec!["batch_size"]),
        ("claim = \"sometimes\"", String::new(), vec!["claim"]),
        ("", channel("timout = \"1s\""), vec!["timout", "timeout"]),
        ("", channel("timeout = \"11m\""), vec!["timeout"]),
        ("", channel("timeout = \"soon\""), vec!["timeout", "soon"]),
        ("", channel("concurrency = 0"), vec!["concurrency"]),
        ("", channel("concurrency = -1"), vec!["concurrency"]),
        ("", channel("concurrency = 257"), vec!["concurrency"]),
        ("lanes = 64", channel("concurrency = 256"), vec!["lanes", "concurrency"]),
        ("", channel("max_attempts = 0"), vec!["max_attempts"]),
        ("", channel("max_attempts = 101"), vec!["max_attempts"]),
        ("", channel("backoff = { first = \"2h\", most = \"1h\" }"), vec!["backoff"]),
        ("", channel("rate = \"100/day\""), vec!["rate", "100/day"]),
        ("", web("body = '{}'"), vec!["url"]),
        ("", web("url = \"http://127.0.0.1:1/\""), vec!["body"]),
        ("", web("url = \"http:///messages\"\nbody = '{}'"), vec!["url"]),
        ("", web("url = \"ftp://example.com/\"\nbody = '{}'"), vec!["url"]),
        ("", web("url = \"http://127.0.0.1:1/\"\nbody = '{{ target.recipient'"), vec!["body", "line 1"]),
        (
            "",
            channel("headers = { Authorization = \"Bearer ${NOT_SET_ANYWHERE}\" }"),
            vec!["NOT_SET_ANYWHERE"],
        ),
        ("", "[channel.web]\nkind = \"pigeon\"\n".into(), vec!["pigeon"]),
        ("", "[channel.web]\nkind = \"smtp\"\n".into(), vec!["channel.web", "host"]),
        ("", "[channel.web]\nkind = \"wechat\"\n".into(), vec!["channel.web", "appid"]),
        ("", channel("window = \"22:00\"\ntime_zone = \"UTC\""), vec!["window", "22:00"]),
        (
            "",
            channel("answers = [{ status = 200, outcome = \"acepted\" }]"),
            vec!["answers", "acepted", "accepted"],
        ),
        ("", "[channel.web]\nkind = \"exec\"\ncommand = [\"send\"]\n".into(), vec!["command", "absolute"]),
        ("", "[channel.web]\nkind = \"file\"\npath = \"spool\"\n".into(), vec!["path", "absolute"]),
        ("", "[channel.web\n".into(), vec!["line"]),
    ];
    for (run, channels, words) in cases {
        it.configure(run, &channels);
        let call = it.call("run").done();
        let wrong = call.code() != Some(2)
            || !call.stdout.is_empty()
            || call.stderr.contains("panicked")
            || words.iter().any(|word| !call.stderr.contains(word));
        assert!(!wrong, "expected exit 2 and {words:?} for\n[run]\n{run}\n{channels}\n{call}");
    }
    it.call("run")
        .env("BATCH_SEND_CONFIG", "/nowhere/config.toml")
        .done()
        .exits(2)
        .says(&["/nowhere/config.toml"]);
}

fn a_wrong_command_line_is_refused(it: Sandbox) {
    let task = it.database.draft("web");
    let cases: &[(&str, &[&str])] = &[
        ("run --task-id 999999", &["999999"]),
        ("run --task-id x", &["x"]),
        ("run --force", &["--task-id"]),
        ("run --limit 0", &["limit"]),
        ("run --limit -3", &["-3"]),
        ("run --budget 50", &["50"]),
        ("run --budget -1s", &["-1"]),
        ("--limit 1 status", &["run"]),
        ("--task-id 1 run", &["run"]),
        ("sing", &["sing"]),
        ("status 999999", &["999999"]),
        ("targets 999999", &["999999"]),
        ("targets {task} --status sentt", &["sentt"]),
        ("retry 999999 --yes", &["999999"]),
        ("resolve 999999 --all --as sent --yes", &["999999"]),
        ("resolve {task} --as sent --yes", &["--all"]),
        ("task start 999999", &["999999"]),
        ("task pause 999999", &["999999"]),
        ("task pause {task}", &["draft", "start"]),
        ("task resume {task}", &["draft", "start"]),
        ("task cancel {task}", &["--yes"]),
        ("task create --name x --channel web --payload {", &["payload"]),
        ("task create --name x --channel web --payload @/nowhere.json", &["/nowhere.json"]),
        ("task create --name x --channel web --at tomorrow", &["tomorrow"]),
        ("task create --name x --channel web --targets /nowhere.csv", &["/nowhere.csv"]),
        ("task add 999999 /nowhere.csv", &["999999"]),
        ("migrate --check --database-url mysql://", &["mysql://"]),
        ("run --database-url postgres://localhost/x", &["mysql://", "sqlite://"]),
    ];
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    for (args, words) in cases {
        refused(&it, &args.replace("{task}", &task.to_string()), words);
    }
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_task"), 1, "nothing was created");
}

fn a_channel_that_no_host_knows_is_named(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("webb", ["ann"]);
    it.call("run -v").done().exits(0).says(&["webb"]);
    it.call(&format!("run --task-id {task}")).done().exits(1).says(&["webb"]);
    it.call("task create --name x --channel webb").done().exits(2).says(&["webb", "web"]);
    assert_eq!(it.database.status(task), "pending");
    assert_eq!(endpoint.requests(), 0);
}

fn a_database_without_tables_is_told_how_to_get_them(it: Sandbox) {
    let empty = Sandbox::empty(it.database.engine);
    refused(&empty, "run", &["migrate"]);
    refused(&empty, "status", &["migrate"]);
    refused(&empty, "migrate --check", &[]);
    empty.call("migrate").done().exits(0);
    empty.call("migrate --check").done().exits(0);
    empty.run();
}

fn a_recipient_that_is_too_long_is_refused_by_import(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let list = it.write("list.csv", &format!("recipient\nann\n{}\nbob\n", "x".repeat(256)));
    let call =
        it.call("task create --name x --channel web --targets").arg(&list.display().to_string()).done();
    call.exits(2).says(&["255"]);
    let longest = it.write("longest.csv", &format!("recipient\n{}\n", "é".repeat(255)));
    let call =
        it.call("task create --name x --channel web --targets").arg(&longest.display().to_string()).done();
    let task: u64 = call.exits(0).stdout.trim().parse().unwrap();
    it.run();
    assert_eq!(it.database.count(task, "sent"), 1);
}

fn params_that_are_no_object_fail_alone(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.draft("web");
    it.database.add(task, ["array", "string", "null", "none", "object"]);
    for (name, params) in [
        ("array", "'[1]'"),
        ("string", "'\"x\"'"),
        ("null", "'null'"),
        ("none", "NULL"),
        ("object", "'{\"a\": 1}'"),
    ] {
        it.database
            .execute(&format!("UPDATE batch_task_target SET params = {params} WHERE recipient = '{name}'"));
    }
    it.database.execute(&format!("UPDATE batch_task SET status = 'pending' WHERE id = {task}"));
    it.run();
    check(&it, task, &endpoint);
    for (name, status) in [("array", "failed"), ("string", "failed"), ("none", "sent"), ("object", "sent")] {
        let row = it.database.target(task, name);
        assert!(row.status == status, "{row:?}");
        assert!(status == "sent" || (row.error.contains("object") && row.attempts == 0), "{row:?}");
    }
    assert_eq!(it.database.status(task), "finished");
}

fn a_bad_line_ends_an_import_and_says_how_to_go_on(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let bad = it.write(
        "list.jsonl",
        "{\"recipient\": \"ann\"}\n{\"recipient\": \"bob\", \"age\": 7}\n{\"recipient\": \"cy\"}\n",
    );
    let path = bad.display().to_string();
    let call = it.call("task create --name x --channel web --targets").arg(&path).done().exits(2);
    let task = it.database.number("SELECT MAX(id) FROM batch_task");
    call.says(&["2", "age", &format!("batch-send task add {task} {path}")]);
    assert_eq!(it.database.status(task), "draft");
    it.write("list.jsonl", "{\"recipient\": \"ann\"}\n{\"recipient\": \"bob\"}\n{\"recipient\": \"cy\"}\n");
    it.call(&format!("task add {task}")).arg(&path).done().exits(0);
    it.call(&format!("task start {task}")).done().exits(0);
    it.run();
    assert_eq!(it.database.count(task, "sent"), 3);
}

fn an_unreachable_database_is_for_later(it: Sandbox) {
    let url = match it.database.engine {
        Engine::MySql => "mysql://app:secret-word@127.0.0.1:1/shop",
        // A directory that is not there is a mistake in the configuration, not a database that is away.
        Engine::Sqlite => {
            return refused(&it, "run --database-url sqlite:///nowhere/tasks.db", &["/nowhere"]);
        }
    };
    let run = it.call(&format!("run --database-url {url}")).done().exits(75);
    assert!(!run.stderr.contains("secret-word"), "{run}");
    run.says(&["127.0.0.1"]);
}

fn trouble_can_be_told_as_json(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptThenClose);
    it.configure("", &endpoint.channel("web", ""));
    it.database.task("web", ["ann"]);
    for args in ["run -v --log-format json", "run --task-id 999 --log-format json"] {
        let call = it.call(args).done();
        assert!(!call.stderr.is_empty(), "{call}");
        for line in call.stderr.lines() {
            let value: Result<serde_json::Value, _> = serde_json::from_str(line);
            assert!(value.is_ok_and(|value| value.is_object()), "no JSON object: {line}");
        }
    }
}

fn a_channel_that_nobody_knows_for_ten_minutes_pauses_its_task(it: Sandbox) {
    it.configure("", &Endpoint::accepting().channel("web", ""));
    let task = it.database.task("webb", ["ann"]);
    it.run();
    let long_ago = it.database.moment(-700);
    it.database.execute(&format!("UPDATE batch_audit SET at = {long_ago} WHERE task_id = {task}"));
    it.call("run").done().exits(3).says(&["webb"]);
    let (status, reason) = it.database.standing(task);
    assert!(status == "paused" && reason.contains("webb"), "{status}: {reason}");
    it.run();
}
