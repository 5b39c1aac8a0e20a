//! Secrets show nowhere: not on stdout or stderr, in no table and no file of ours, not in the process list; not even when the
//! peer repeats them in its answer. Channels of kind wechat, whose tokens come and go, are in wechat.rs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;

use crate::support::{Cue, Endpoint, Engine, Pings, Sandbox, wait_until};

on_each_database! {
    a_configuration_or_a_database_that_is_refused_shows_none,
    http_shows_none,
    exec_shows_none,
    smtp_shows_none,
    what_a_run_tells_shows_none,
}

const SECRET: &str = "s3cr3t-t0ken";

/// Everything that can be looked at when a run is over: what the commands print of every task, the rows, the files.
pub fn everything(it: &Sandbox) -> String {
    let mut all = String::new();
    let tasks = it.database.rows("SELECT id FROM batch_task");
    let each = tasks.iter().map(|row| row[0].clone().unwrap());
    let calls =
        each.flat_map(|task| [format!("targets {task} --format jsonl"), format!("-vv targets {task}")]);
    for args in calls.chain(["-vv status".into(), "status --json".into(), "task list".into()]) {
        let done = it.call(&args).done();
        all += &(done.stdout + &done.stderr);
    }
    for table in [
        "SELECT name, payload, status_reason, lock_owner FROM batch_task",
        "SELECT recipient, params, receipt, last_error FROM batch_task_target",
        "SELECT who, what, why FROM batch_audit",
        "SELECT channel FROM batch_pace",
    ] {
        for row in it.database.rows(table) {
            all += &format!("{row:?}\n");
        }
    }
    all + &files(&it.path("state"))
}

/// Every file under a directory, as text.
pub fn files(dir: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            all += &files(&path);
        } else {
            all += &String::from_utf8_lossy(&fs::read(path).unwrap());
        }
    }
    all
}

/// None of these words is anywhere, and there is something to look at.
#[track_caller]
fn shows_none(all: &str, words: &[&str]) {
    assert!(all.contains("[hidden]"), "nothing was repeated: {all}");
    for word in words {
        assert_eq!(all.lines().find(|line| line.contains(word)), None, "{word}");
    }
}

fn a_configuration_or_a_database_that_is_refused_shows_none(it: Sandbox) {
    let channel =
        Endpoint::accepting().channel("web", &format!("headers = {{ Authorization = \"Bearer {SECRET}\" }}"));
    let mut printed = String::new();
    it.configure("budgt = \"1s\"", &channel);
    printed += &it.call("run").done().exits(2).stderr;
    it.configure("", "");
    for url in
        [format!("mysql://app:{SECRET}@127.0.0.1:1/shop"), format!("mysql://app:{SECRET}@127.0.0.1:x/shop")]
    {
        printed += &it.call(&format!("run -vv --database-url {url}")).done().stderr;
    }
    if it.database.engine == Engine::MySql {
        let url = it.database.url.replace("root@", &format!("root:{SECRET}@"));
        printed += &it.call(&format!("run -vv --database-url {url}")).done().exits(2).stderr;
    }
    assert!(!printed.is_empty() && !printed.contains(SECRET), "{printed}");
}

fn http_shows_none(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "in-flight" => Cue::AcceptWhenTold,
        "rejected" => Cue::Say(
            422,
            "no such key: s3cr3t-t0ken, MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, p4ssw0rd or dXNlcjpwNHNzdzByZA==",
        ),
        "odd" => {
            Cue::Say(500, r#"{"token": "s3cr3t-t0ken", "sign": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}"#)
        }
        "receipt" => Cue::AcceptThenSay(200, r#"{"id": "s3cr3t-t0ken"}"#),
        "unclear" => Cue::AcceptThenClose,
        _ => Cue::Say(401, "who is s3cr3t-t0ken? /messages?token=s3cr3t-t0ken"),
    });
    let keys = "headers = { Authorization = \"Bearer ${API_TOKEN}\" }\nsign = \"standard-webhooks\"\n\
                sign_key = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\nconcurrency = 1";
    let channel = endpoint
        .channel("web", keys)
        .replace("http://", "http://user:p4ssw0rd@")
        .replace("/messages", "/messages?token=${API_TOKEN}");
    it.configure("", &channel);
    it.database.task("web", ["rejected", "odd", "receipt", "unclear", "in-flight", "unavailable"]);
    let run = it.call("-vv run").env("API_TOKEN", SECRET).start();
    wait_until("a message in flight", 20, || endpoint.waiting() == 1);
    let mut all =
        fs::read_to_string(format!("/proc/{}/cmdline", run.pid())).unwrap() + &files(&it.path("state"));
    endpoint.tell();
    let run = run.wait().exits(3);
    all += &(run.stdout + &run.stderr + &everything(&it));
    assert!(all.contains("HTTP 401") && all.contains("HTTP 422"), "{all}");
    // The last is "user:p4ssw0rd" in base64.
    shows_none(&all, &[SECRET, "p4ssw0rd", "MfKQ9r8GKYq", "dXNlcjpwNHNzdzByZA"]);
}

fn exec_shows_none(it: Sandbox) {
    // The program has it from the environment, as it should, and says it wherever it can.
    let program = it.write("send", "#!/bin/sh\ncat >&2\necho id=$API_TOKEN\necho cannot log in with $API_TOKEN >&2\nexit $(($(echo $1)))\n");
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let channel = |name: &str, code: u8| {
        let program = program.display();
        format!(
            "[channel.{name}]\nkind = \"exec\"\ncommand = [\"{program}\", \"{code}\", \"${{API_TOKEN}}\"]\n"
        )
    };
    it.configure("", &(channel("good", 0) + &channel("bad", 65) + &channel("odd", 1) + &channel("off", 77)));
    for name in ["good", "bad", "odd", "off"] {
        it.database.task(name, ["ann"]);
    }
    let run = it.call("-vv run").env("API_TOKEN", SECRET).done().exits(3);
    let all = run.stdout + &run.stderr + &everything(&it);
    assert!(all.contains("exit 65") && all.contains("exit 77"), "{all}");
    shows_none(&all, &[SECRET]);
}

fn smtp_shows_none(it: Sandbox) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Repeats what it is told, and what it makes of it.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut to = &stream;
            let mut lines = BufReader::new(&stream).lines();
            if to.write_all(b"220 mx\r\n").is_err() {
                continue;
            }
            while let Some(Ok(line)) = lines.next() {
                let answer = if line.starts_with("EHLO") {
                    "250-mx\r\n250 AUTH PLAIN\r\n".to_owned()
                } else {
                    format!("535 5.7.8 no: {line}, which is s3cr3t-t0ken\r\n")
                };
                if to.write_all(answer.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    it.configure(
        "",
        &format!(
            "[channel.mail]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\nport = {port}\ntls = \"none\"\nuser = \"app\"\n\
             password = \"${{SMTP_PASSWORD}}\"\nfrom = \"a@example.com\"\nsubject = \"s\"\ntext = \"t\"\n"
        ),
    );
    it.database.task("mail", ["ann@example.com"]);
    let run = it.call("-vv run").env("SMTP_PASSWORD", SECRET).done().exits(3);
    let all = run.stdout + &run.stderr + &everything(&it);
    assert!(all.contains("535 5.7.8"), "{all}");
    // "\0app\0s3cr3t-t0ken" in base64.
    shows_none(&all, &[SECRET, "AGFwcABzM2NyM3QtdDBrZW4="]);
}

fn what_a_run_tells_shows_none(it: Sandbox) {
    const PING: &str = "p1ng-s3cr3t";
    let endpoint = Endpoint::new(|_| Cue::Say(401, "who is s3cr3t-t0ken? /messages?token=s3cr3t-t0ken"));
    let program = it.script("tell", "cat >> \"$1\"; echo \"no $2 here\" >&2; exit 1");
    let event = it.path("event");
    for status in [200, 404] {
        let pings = Pings::answering(status);
        it.configure(
            "",
            &endpoint
                .channel("web", "headers = { Authorization = \"Bearer ${API_TOKEN}\" }\nconcurrency = 1"),
        );
        it.configure_top(&format!(
            "log_file = \"{}\"\nmetrics_file = \"{}\"\n{}",
            it.path("run.log").display(),
            it.path("bs.prom").display(),
            pings.key("${PING}/shop"),
        ));
        it.configure_end(&format!(
            "[notify]\ncommand = [\"{}\", \"{}\", \"${{API_TOKEN}}\"]",
            program.display(),
            event.display()
        ));
        it.database.task("web", ["ann"]);
        let run = it.call("-vv run").env("API_TOKEN", SECRET).env("PING", PING).done().exits(3);
        let mut all = run.stdout + &run.stderr;
        for name in ["run.log", "bs.prom", "event"] {
            let text = fs::read_to_string(it.path(name)).unwrap();
            assert!(!text.is_empty(), "{name}");
            all += &text;
        }
        let seen = pings.seen();
        assert!(seen.iter().all(|ping| ping.path.starts_with("/p1ng-s3cr3t/shop/")), "{seen:?}");
        all += &seen.iter().map(|ping| ping.body.as_str()).collect::<String>();
        all += &everything(&it);
        assert!(all.contains("no [hidden] here") && all.contains("who is [hidden]?"), "{all}");
        shows_none(&all, &[SECRET, PING]);
    }
    // Nor where it is not what it should be.
    it.configure("", "");
    it.configure_top("ping_url = \"${PING}\"");
    let refused = it.call("-vv run").env("PING", PING).done().exits(2);
    assert!(!refused.stderr.contains(PING), "{refused}");
}
