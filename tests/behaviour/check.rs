//! `check`: what is well is told so, what is not is told with its way out, one thing does not hide another, and nothing is
//! sent, written or made by looking. Servers that cannot be had here are judged by their facts, in
//! src/commands/check/server/tests.rs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;

use crate::applications::Users;
use crate::support::process::Finished;
use crate::support::server::Server;
use crate::support::{Cue, Endpoint, Engine, Sandbox};

on_each_database! {
    a_fresh_host_is_told_what_to_do_first,
    what_is_well_is_told_so,
    nothing_is_sent_written_or_made,
    a_database_that_is_away_hides_nothing_else,
    a_configuration_that_is_refused_is_an_error,
    a_configuration_that_others_may_read_is_no_place_for_secrets,
    channels_that_cannot_send_are_errors,
    one_channel_or_none_can_be_asked,
    what_holds_of_a_channel_is_told,
    tasks_that_nobody_here_serves_are_told,
    answers_in_a_journal_are_told,
    directories_that_will_not_do_are_told,
    tables_of_another_version_are_an_error,
    the_application_s_triggers_are_told,
    an_index_that_is_gone_is_told,
    a_table_that_alone_is_gone_is_told_as_that,
    what_would_tell_of_a_run_is_looked_at,
    a_setting_that_each_run_refuses_is_an_error,
    whoever_checks_for_another_user_is_told_so;
    mysql alone:
    the_rights_of_the_documents_are_enough_and_not_too_many,
    who_only_purges_is_told_so_and_no_more,
    a_right_that_is_missing_is_named_with_the_grant_that_gives_it,
    tables_that_were_changed_by_hand_are_told_with_the_statement_that_mends_them,
    a_copy_of_the_database_is_told,
    a_proxy_in_between_is_told,
}

#[test]
fn a_file_in_another_mode_is_told_and_left_so() {
    let it = Sandbox::new(Engine::Sqlite);
    assert_eq!(it.database.text("PRAGMA journal_mode = DELETE"), "delete");
    is(&check(&it), "file", "warning", &["delete mode", "WAL"]);
    assert_eq!(it.database.text("PRAGMA journal_mode"), "delete", "looking changes nothing");
}

#[test]
fn a_file_that_is_no_database_is_an_error() {
    let it = Sandbox::new(Engine::Sqlite);
    let other = it.write("list.csv", &"recipient,name\n".repeat(100));
    it.configure_as(&format!("sqlite://{}", other.display()), "", "");
    is(&check(&it), "database", "error", &["list.csv is not an SQLite database"]);
}

#[test]
fn a_damaged_file_is_an_error() {
    let it = Sandbox::new(Engine::Sqlite);
    it.database.task("web", (0..2_000).map(|number| format!("ann-{number}@example.com")));
    it.database.rows("PRAGMA wal_checkpoint(TRUNCATE)");
    is(&check(&it), "integrity", "ok", &[]);
    let path = it.path("tasks.db");
    let mut bytes = fs::read(&path).unwrap();
    let half = bytes.len() / 2;
    bytes[half..half + 8_192].fill(7);
    fs::write(&path, bytes).unwrap();
    is(&check(&it), "integrity", "error", &["restore a backup"]);
}

/// The findings that `check --json` prints, as `what [about]` and what it says.
fn findings(done: &Finished) -> Vec<(String, String, String)> {
    let all = done.json();
    let findings = all["findings"].as_array().unwrap();
    let worst = ["error", "warning", "ok"]
        .into_iter()
        .find(|state| findings.iter().any(|one| one["state"] == *state));
    assert_eq!(all["state"], worst.unwrap(), "{done}");
    assert_eq!(done.code(), Some(if worst == Some("error") { 2 } else { 0 }), "{done}");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let each = findings.iter().map(|one| {
        let keys: Vec<_> = one.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["what", "about", "state", "detail", "way_out"], "{done}");
        let about = one["about"].as_str().map_or(String::new(), |about| format!(" {about}"));
        // Whoever is told that something is wrong is told what to do, by the way out or by the sentence.
        let said = [text(&one["detail"]), text(&one["way_out"])].join("; ");
        (text(&one["what"]) + &about, text(&one["state"]), said)
    });
    each.collect()
}

fn check(it: &Sandbox) -> Vec<(String, String, String)> {
    findings(&it.call("check --json").done())
}

/// What is said of one thing, once.
#[track_caller]
fn of<'a>(findings: &'a [(String, String, String)], what: &str) -> (&'a str, &'a str) {
    let found: Vec<_> = findings.iter().filter(|(name, ..)| name == what).collect();
    assert_eq!(found.len(), 1, "{what} in {findings:#?}");
    (&found[0].1, &found[0].2)
}

#[track_caller]
fn is(findings: &[(String, String, String)], what: &str, state: &str, words: &[&str]) {
    let (found, said) = of(findings, what);
    assert_eq!(found, state, "{what}: {said}");
    for word in words {
        assert!(said.contains(word), "no {word:?} in what is said of {what}: {said}");
    }
}

fn errors(findings: &[(String, String, String)]) -> Vec<&str> {
    findings.iter().filter(|(_, state, _)| state == "error").map(|(what, ..)| what.as_str()).collect()
}

/// Tables and files, as they are.
fn everything(it: &Sandbox) -> (BTreeMap<String, String>, Vec<String>) {
    let mut rows = BTreeMap::new();
    for table in ["task", "task_target", "pace", "installation", "migration", "audit", "suppression"] {
        rows.insert(
            table.to_owned(),
            format!("{:?}", it.database.rows(&format!("SELECT * FROM batch_{table}"))),
        );
    }
    let mut files = Vec::new();
    let mut dirs = vec![it.path("")];
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            // What the call itself prints, and what SQLite needs to read.
            let name = path.display().to_string();
            if !["/call-", "-shm", "-wal"].iter().any(|own| name.contains(own)) {
                files.push(name);
            }
            dirs.extend(path.is_dir().then_some(path));
        }
    }
    files.sort();
    (rows, files)
}

fn a_fresh_host_is_told_what_to_do_first(_migrated: Sandbox) {
    let it = Sandbox::empty(_migrated.database.engine);
    let sqlite = it.database.engine == Engine::Sqlite;
    if sqlite {
        // What the story's own connection has made.
        fs::remove_file(it.path("tasks.db")).unwrap();
    }
    let before = check(&it);
    is(&before, "configuration", "warning", &["0 channels", "[channel.NAME]"]);
    is(&before, if sqlite { "database" } else { "schema" }, "error", &["batch-send migrate"]);
    assert!(!it.path("tasks.db").exists() && !it.path("state").exists(), "nothing is made by looking");
    it.call("migrate").done().exits(0);
    is(&check(&it), "schema", "ok", &["version"]);
    assert_eq!(errors(&check(&it)), [""; 0]);
}

fn what_is_well_is_told_so(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let done = it.call("check").done().exits(0);
    assert!(done.stderr.is_empty() && !done.stdout.contains('\u{1b}'), "{done}");
    for line in done.stdout.lines() {
        let good = line.starts_with("ok       ");
        assert!(good || line.starts_with("warning  "), "{done}");
    }
    let all = check(&it);
    assert_eq!(all.len(), done.stdout.lines().count(), "{done}");
    let common =
        ["configuration", "config-file", "user", "lock-file", "journal", "database", "schema", "channel web"];
    let own: &[&str] = match it.database.engine {
        Engine::Sqlite => &["integrity"],
        Engine::MySql => {
            &["server", "proxy", "read-only", "session", "clock", "rights", "tables", "indexes", "plans"]
        }
    };
    for what in common.iter().chain(own) {
        is(&all, what, "ok", &[]);
    }
    is(&all, "channel web", "ok", &["127.0.0.1 takes connections"]);
    assert_eq!(endpoint.requests(), 0);
}

fn nothing_is_sent_written_or_made(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let spool =
        format!("[channel.spool]\nkind = \"file\"\npath = \"{}\"\n", it.path("spool.jsonl").display());
    let local = format!(
        "[channel.local]\nkind = \"exec\"\ncommand = [\"/usr/bin/touch\", \"{}\"]\n",
        it.path("ran").display()
    );
    it.configure("", &(endpoint.channel("web", "") + &spool + &local));
    for channel in ["web", "spool", "local", "nowhere"] {
        it.database.task(channel, ["ann", "bob"]);
    }
    // Expired, and due for what a run would pause or recover.
    it.database
        .execute(&format!("UPDATE batch_task SET expires_at = {} WHERE id = 1", it.database.moment(-60)));
    let before = everything(&it);
    for call in ["check", "check --json", "check --channel spool"] {
        it.call(call).done().exits(0);
    }
    assert_eq!(everything(&it), before);
    assert_eq!(endpoint.requests(), 0);
}

fn a_database_that_is_away_hides_nothing_else(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = match it.database.engine {
        Engine::Sqlite => format!("sqlite://{}", it.path("nowhere/tasks.db").display()),
        Engine::MySql => format!("mysql://app:s3cr3t-w0rd@127.0.0.1:{closed}/shop"),
    };
    it.configure_as(&url, "", &endpoint.channel("web", "redirect_to = \"me\""));
    let done = it.call("check --json").done();
    assert!(!done.stdout.contains("s3cr3t-w0rd") && done.stderr.is_empty(), "{done}");
    let all = findings(&done);
    assert_eq!(errors(&all), ["database"]);
    if it.database.engine == Engine::MySql {
        is(&all, "database", "error", &["cannot be reached", "correct host and port in `database_url`"]);
    }
    is(&all, "channel web", "ok", &[]);
    is(&all, "redirect web", "warning", &["me", "redirect_to"]);
    is(&all, "journal", "ok", &[]);
}

fn a_configuration_that_is_refused_is_an_error(it: Sandbox) {
    it.configure(
        "",
        "[channel.web]\nkind = \"http\"\nurl = \"https://api.example.com\"\nbody = '{{ target.nmae }}'\n",
    );
    let all = check(&it);
    assert_eq!(all.len(), 1);
    is(&all, "configuration", "error", &["unknown variable `target.nmae`"]);
    let done = it.call("check").done().exits(2);
    assert!(done.stdout.starts_with("error    configuration  ") && done.stderr.is_empty(), "{done}");
}

fn a_configuration_that_others_may_read_is_no_place_for_secrets(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let file = it.path("config.toml");
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    let with = |value: &str| {
        it.configure(
            "",
            &endpoint.channel("web", &format!("headers = {{ Authorization = \"Bearer {value}\" }}")),
        );
    };
    with("s3cr3t-t0ken");
    mode(0o644);
    let done = it.call("check --json").done();
    assert!(!done.stdout.contains("s3cr3t-t0ken"), "{done}");
    is(
        &findings(&done),
        "config-file",
        "warning",
        &["the header Authorization in [channel.web]", "chmod o-r"],
    );
    mode(0o640);
    is(&check(&it), "config-file", "ok", &[]);
    mode(0o642);
    is(&check(&it), "config-file", "error", &["chmod o-w"]);
    mode(0o644);
    with("${TOKEN}");
    is(&check(&it), "config-file", "ok", &[]);
    is(&check(&it), "channel web", "error", &["TOKEN", "set it where batch-send is started"]);
    let known = it.call("check --json").env("TOKEN", "s3cr3t-t0ken").done();
    is(&findings(&known), "channel web", "ok", &[]);
}

fn channels_that_cannot_send_are_errors(it: Sandbox) {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // Speaks out of turn, as whatever else may listen there.
    let no_mail = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = no_mail.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in no_mail.incoming() {
            stream.unwrap().write_all(b"554 not a mail server\r\n").ok();
        }
    });
    let api =
        Endpoint::new(|_| Cue::Say(200, "{\"errcode\":40125,\"errmsg\":\"invalid appsecret 5ecret0f0urs\"}"));
    let dir = it.path("no-such-directory").display().to_string();
    let program = it.write("program", "#!/bin/sh\n");
    let good = it.path("spool.jsonl").display().to_string();
    it.configure(
        "",
        &format!(
            "[channel.web]\nkind = \"http\"\nurl = \"http://127.0.0.1:{closed}/\"\nbody = '1'\n\
             [channel.mail]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\nport = {port}\ntls = \"none\"\nfrom = \"a@b.example\"\n\
             subject = \"Hi\"\ntext = \"Hello\"\n\
             [channel.wx]\nkind = \"wechat\"\napi = \"http://{}\"\nappid = \"wx0123456789abcdef\"\nsecret = \"5ecret0f0urs\"\n\
             message = \"template\"\nbody = '{{}}'\n\
             [channel.spool]\nkind = \"file\"\npath = \"{dir}/spool.jsonl\"\n\
             [channel.local]\nkind = \"exec\"\ncommand = [\"{}\"]\n\
             [channel.good]\nkind = \"file\"\npath = \"{good}\"\n",
            api.address(),
            program.display()
        ),
    );
    let done = it.call("check --json").done();
    assert!(!done.stdout.contains("5ecret0f0urs"), "{done}");
    let all = findings(&done);
    assert_eq!(errors(&all), ["channel local", "channel mail", "channel spool", "channel web", "channel wx"]);
    is(&all, "channel good", "ok", &["will be made"]);
    is(&all, "channel web", "error", &["no connection", "`url`"]);
    is(&all, "channel mail", "error", &["554 not a mail server", "`host`"]);
    is(&all, "channel wx", "error", &["40125", "`secret`"]);
    is(&all, "channel spool", "error", &["no-such-directory", "`path`"]);
    is(&all, "channel local", "error", &["cannot be run by this user", "`command`"]);
    assert_eq!(api.requests(), 1, "one look, and no message");
}

fn one_channel_or_none_can_be_asked(it: Sandbox) {
    let missing = "[channel.local]\nkind = \"exec\"\ncommand = [\"/no/such/program\"]\n";
    it.configure("", &(Endpoint::accepting().channel("web", "timeout = \"1s\"") + missing));
    let asked = |args: &str| {
        let all = findings(&it.call(&format!("check --json {args}")).done());
        let channels = all.into_iter().map(|(what, ..)| what).filter(|what| what.starts_with("channel "));
        channels.collect::<Vec<_>>()
    };
    assert_eq!(asked(""), ["channel local", "channel web"]);
    assert_eq!(asked("--channel local"), ["channel local"]);
    assert_eq!(asked("--no-channels"), [""; 0]);
    it.call("check --channel wbe").done().exits(2).says(&["no channel wbe", "did you mean `web`?"]);
}

fn what_holds_of_a_channel_is_told(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let hours = |hours: &str| {
        it.configure("", &endpoint.channel("web", &format!("window = \"{hours}\"\ntime_zone = \"UTC\"")));
        let all = check(&it);
        let (state, said) = of(&all, "window web");
        assert_eq!(state, "ok");
        said.to_owned()
    };
    assert!(hours("00:00-24:00").starts_with("open 00:00-24:00 UTC: now, until "));
    let minute = match it.database.engine {
        Engine::Sqlite => it.database.text("SELECT strftime('%H:%M', 'now', '+5 hours')"),
        Engine::MySql => it.database.text("SELECT DATE_FORMAT(UTC_TIMESTAMP() + INTERVAL 5 HOUR, '%H:%i')"),
    };
    let later = if minute == "23:59" { "23:58-23:59".to_owned() } else { format!("{minute}-24:00") };
    let closed = hours(&later);
    assert!(closed.contains(": not now, from ") || minute.as_str() < "05:00", "{closed}");
}

fn tasks_that_nobody_here_serves_are_told(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    it.database.task("web", ["ann"]);
    assert!(check(&it).iter().all(|(what, ..)| what != "unserved"));
    it.database.task("wbe", ["ann"]);
    it.database.draft("wbe");
    it.database.task("old", ["ann"]);
    it.database.execute("UPDATE batch_task SET status = 'cancelled' WHERE channel = 'old'");
    is(&check(&it), "unserved", "warning", &["wbe (2 tasks)"]);
    assert!(!of(&check(&it), "unserved").1.contains("old"));
}

fn answers_in_a_journal_are_told(it: Sandbox) {
    let state = it.path("state");
    fs::create_dir(&state).unwrap();
    is(&check(&it), "journal", "ok", &[]);
    let name = "journal-00000000-0000-0000-0000-000000000000-00000000-0000-0000-0000-000000000001";
    let file = state.join(format!("{name}.jsonl"));
    fs::write(&file, "{}\n{}\n").unwrap();
    is(&check(&it), "journal", "warning", &["2 answers", "batch-send run"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}\n{}\n");
    fs::rename(&file, state.join(format!("{name}.unreadable"))).unwrap();
    is(&check(&it), "journal", "warning", &["cannot be read", "resolve"]);
}

fn directories_that_will_not_do_are_told(it: Sandbox) {
    let with = |state: &str, locks: &str| {
        let url = &it.database.url;
        it.write(
            "config.toml",
            &format!("database_url = \"{url}\"\nstate_dir = \"{state}\"\nlock_dir = \"{locks}\"\n"),
        );
        check(&it)
    };
    let open = it.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let all = with("/tmp/batch-send-state", &open.display().to_string());
    is(&all, "state-dir", "warning", &["/tmp/batch-send-state", "would not survive", "`state_dir`"]);
    is(&all, "lock-dir", "warning", &["everybody may write", "chmod 700"]);
    let file = it.write("file", "").display().to_string();
    let below = format!("{file}/locks");
    let all = with(&file, &below);
    is(&all, "state-dir", "error", &["it is no directory", "`state_dir`"]);
    is(&all, "lock-dir", "error", &["cannot write in ", &below, "`lock_dir`"]);
    let all = with("/dev/shm/batch-send-state", "/dev/shm/batch-send-locks");
    is(&all, "state-dir", "warning", &["a restart"]);
    is(&all, "lock-dir", "ok", &[]);
    // A lock that was put there by somebody.
    fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
    let all = with("/tmp/batch-send-state", &open.display().to_string());
    let lock = of(&all, "lock-file").1.trim_end_matches("; ").to_owned();
    std::os::unix::fs::symlink("/etc/passwd", &lock).unwrap();
    is(&check(&it), "lock-file", "error", &["symbolic link"]);
}

fn tables_of_another_version_are_an_error(it: Sandbox) {
    let version = it.database.number("SELECT MAX(version) FROM batch_migration");
    it.database
        .execute(&format!("UPDATE batch_migration SET version = {} WHERE version = {version}", version + 7));
    is(&check(&it), "schema", "error", &["a newer batch-send"]);
    it.database.execute(&format!("DELETE FROM batch_migration WHERE version > {version}"));
    is(&check(&it), "schema", "error", &["batch-send migrate"]);
}

fn the_application_s_triggers_are_told(it: Sandbox) {
    it.database.execute(match it.database.engine {
        Engine::Sqlite => "CREATE TRIGGER shop_sees AFTER UPDATE ON batch_task BEGIN SELECT 1; END",
        Engine::MySql => "CREATE TRIGGER shop_sees AFTER UPDATE ON batch_task FOR EACH ROW SET @seen = 1",
    });
    is(&check(&it), "triggers", "warning", &["shop_sees"]);
}

fn an_index_that_is_gone_is_told(it: Sandbox) {
    let (drop, words) = match it.database.engine {
        Engine::Sqlite => (
            "DROP INDEX batch_task_target_k_task_retry",
            ["batch_task_target_k_task_retry", "--print --from 0"],
        ),
        Engine::MySql => {
            ("ALTER TABLE batch_task_target DROP KEY k_task_retry", ["k_task_retry", "ALTER TABLE"])
        }
    };
    it.database.execute(drop);
    let all = check(&it);
    let said = all.iter().find(|(what, state, _)| what.starts_with("indexes") && state == "error");
    let (.., said) = said.unwrap_or_else(|| panic!("{all:#?}"));
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

fn a_table_that_alone_is_gone_is_told_as_that(it: Sandbox) {
    it.database.execute("DROP TABLE batch_migration");
    let all = check(&it);
    is(&all, "schema", "error", &["batch_migration; the others are", "batch-send migrate"]);
    // The way out leads out.
    it.call("migrate").done().exits(0);
    is(&check(&it), "schema", "ok", &[]);
}

fn what_would_tell_of_a_run_is_looked_at(it: Sandbox) {
    let service = Endpoint::accepting();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let program = it.script("tell", "true");
    let with = |log: &str, metrics: &str, ping: &str, program: &str| {
        it.configure("", "");
        let (log, metrics) = (it.path(log), it.path(metrics));
        let (log, metrics) = (log.display(), metrics.display());
        it.configure_top(&format!(
            "log_file = \"{log}\"\nmetrics_file = \"{metrics}\"\nping_url = \"http://{ping}/s3cr3t-p4th\"\n"
        ));
        it.configure_end(&format!("[notify]\ncommand = [\"{program}\"]\n"));
    };
    with("run.log", "run.prom", &service.address().to_string(), &program.display().to_string());
    let before = everything(&it);
    let all = check(&it);
    is(&all, "log-file", "ok", &["run.log will be made"]);
    is(&all, "metrics-file", "ok", &["run.prom will be made"]);
    is(&all, "ping", "ok", &["127.0.0.1 takes connections"]);
    is(&all, "notify", "ok", &["tell can be run"]);
    assert_eq!(service.requests(), 0, "a request would be a ping");
    assert_eq!(everything(&it), before);
    it.call("run").done().exits(0);
    is(&check(&it), "log-file", "ok", &["run.log can be appended to"]);
    is(&check(&it), "metrics-file", "ok", &["run.prom can be replaced"]);

    let file = it.write("file", "").display().to_string();
    with("no-such/run.log", "no-such/run.prom", &format!("127.0.0.1:{closed}"), &file);
    let done = it.call("check --json").done();
    assert!(!done.stdout.contains("s3cr3t-p4th"), "{done}");
    let all = findings(&done);
    is(&all, "log-file", "warning", &["no-such", "`log_file`", "is not kept"]);
    is(&all, "metrics-file", "warning", &["no-such", "`metrics_file`"]);
    is(&all, "ping", "warning", &["no connection", "`ping_url`"]);
    is(&all, "notify", "warning", &["cannot be run by this user", "[notify]"]);
    // As it says, none of these stops a run.
    assert_eq!(it.call("run").done().code(), Some(0));
    fs::create_dir(it.path("directory")).unwrap();
    with("directory", "run.prom", &service.address().to_string(), "/no/such/program");
    let all = check(&it);
    is(&all, "log-file", "warning", &["is a directory"]);
    is(&all, "notify", "warning", &["/no/such/program"]);
}

fn a_setting_that_each_run_refuses_is_an_error(it: Sandbox) {
    it.configure("", "");
    it.configure_top("ping_url = \"https://hc.example/${PING_ID}\"\n");
    it.configure_end("[notify]\ncommand = [\"/bin/true\", \"${ROOM}\"]\n");
    let all = check(&it);
    is(&all, "ping", "error", &["PING_ID", "set it where batch-send is started"]);
    is(&all, "notify", "error", &["ROOM", "set it where batch-send is started"]);
    it.call("run").done().exits(2);
}

fn whoever_checks_for_another_user_is_told_so(it: Sandbox) {
    let state = it.path("state");
    fs::create_dir(&state).unwrap();
    is(&check(&it), "user", "ok", &[]);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&state, Some(4711), None).unwrap();
        let way_out =
            ["uid 4711", "the user that cron runs it as: setpriv --reuid=4711", " batch-send check"];
        is(&check(&it), "user", "warning", &way_out);
        let daemon = fs::read_to_string("/etc/passwd").unwrap();
        let daemon = daemon.lines().find_map(|line| line.strip_prefix("daemon:x:")?.split(':').next());
        std::os::unix::fs::chown(&state, Some(daemon.unwrap().parse().unwrap()), None).unwrap();
        is(&check(&it), "user", "warning", &["cron runs it as: runuser -u daemon -- batch-send check"]);
    }
}

// ---- MySQL and MariaDB alone --------------------------------------------------------------------------------------

/// Whoever has the rights of docs/applications.md uses the database from now on.
fn as_the_document_s_user(it: &Sandbox) -> Users<'_> {
    let mut users = Users::of(it);
    users.grant("sql grants of batch-send");
    it.configure_as(&users.url("send", "secret of batch-send"), "", "");
    users
}

fn the_rights_of_the_documents_are_enough_and_not_too_many(it: Sandbox) {
    is(&check(&it), "power", "warning", &["docs/applications.md"]);
    let _users = as_the_document_s_user(&it);
    let all = check(&it);
    is(&all, "rights", "ok", &["_send@", "CREATE and ALTER"]);
    for what in ["tables", "indexes", "plans", "server", "schema"] {
        is(&all, what, "ok", &[]);
    }
    assert!(all.iter().all(|(what, ..)| what != "power" && what != "unseen"), "{all:#?}");
}

fn who_only_purges_is_told_so_and_no_more(it: Sandbox) {
    let mut users = Users::of(&it);
    users.grant("sql grants to purge");
    it.configure_as(&users.url("purge", "secret of purge"), "", "");
    let all = check(&it);
    is(&all, "rights", "warning", &["`batch-send purge` needs", "not what runs need", "another user"]);
    assert_eq!(errors(&all), [""; 0], "{all:#?}");
    assert!(all.iter().all(|(what, ..)| what != "plans" && what != "unseen"), "{all:#?}");
    is(&all, "tables", "ok", &[]);
}

fn a_right_that_is_missing_is_named_with_the_grant_that_gives_it(it: Sandbox) {
    let _users = as_the_document_s_user(&it);
    let name = it.database.name();
    it.database.execute(&format!("REVOKE UPDATE ON {name}.batch_task_target FROM {name}_send@'127.0.0.1'"));
    let all = check(&it);
    is(&all, "rights", "error", &["lacks UPDATE on batch_task_target"]);
    // The way out is typed as it is.
    let (_, said) = of(&all, "rights");
    it.database.execute(&said[said.find("GRANT ").unwrap()..]);
    is(&check(&it), "rights", "ok", &[]);
}

fn tables_that_were_changed_by_hand_are_told_with_the_statement_that_mends_them(it: Sandbox) {
    for (change, what) in [
        ("ALTER TABLE batch_pace ENGINE=MyISAM", "tables batch_pace"),
        (
            "ALTER TABLE batch_task_target MODIFY recipient VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL",
            "tables batch_task_target",
        ),
        (
            "ALTER TABLE batch_task MODIFY name VARCHAR(191) CHARACTER SET latin1 NOT NULL",
            "tables batch_task",
        ),
        ("ALTER TABLE batch_task DROP COLUMN halt_at", "tables batch_task"),
        ("ALTER TABLE batch_task_target DROP KEY u_task_recipient", "indexes batch_task_target"),
        ("ALTER TABLE batch_task_target DROP KEY k_task_status", "indexes batch_task_target"),
        (
            "ALTER TABLE batch_task_target DROP KEY k_task_retry, ADD KEY k_task_retry (retry_at)",
            "indexes batch_task_target",
        ),
        ("ALTER TABLE batch_task DROP KEY k_status", "indexes batch_task"),
    ] {
        it.database.execute(change);
        let all = check(&it);
        is(&all, what, "error", &["ALTER TABLE"]);
        if change.ends_with("DROP KEY k_task_status") || change.ends_with("DROP KEY k_status") {
            // Not told again for each statement.
            is(&all, "plans", "warning", &["not looked at before"]);
        }
        let (_, said) = of(&all, what);
        it.database.execute(&said[said.find("ALTER TABLE").unwrap()..]);
        let all = check(&it);
        assert_eq!(errors(&all), [""; 0], "after {change}: {all:#?}");
    }
    it.database.execute("CREATE TABLE shop_order (id INT PRIMARY KEY, target BIGINT UNSIGNED) ENGINE=InnoDB");
    it.database.execute(
        "ALTER TABLE shop_order ADD CONSTRAINT of_target FOREIGN KEY (target) REFERENCES batch_task_target (id)",
    );
    is(&check(&it), "foreign-keys", "warning", &["of_target"]);
}

fn a_copy_of_the_database_is_told(it: Sandbox) {
    is(&check(&it), "server", "ok", &[]);
    it.database.execute("UPDATE batch_installation SET server = 'db-of-old:3306'");
    is(&check(&it), "server", "warning", &["db-of-old:3306", "send everything again"]);
    let all = check(&it);
    let (_, said) = of(&all, "server");
    it.database.execute(&said[said.find("UPDATE ").unwrap()..]);
    is(&check(&it), "server", "ok", &[]);
}

/// Passes on everything that two sides say, but gives each session another number than the server does, as whoever shares the
/// server's sessions among clients.
fn relay_to(server: std::net::SocketAddr) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().map(Result::unwrap) {
            let mut server = TcpStream::connect(server).unwrap();
            let (mut up, mut back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut up, &mut back));
            std::thread::spawn(move || {
                // The first packet: its head, the protocol, the version and a zero, the session's number.
                let mut first = [0; 512];
                let length = server.read(&mut first).unwrap();
                let number = 5 + first[5..].iter().position(|byte| *byte == 0).unwrap() + 1;
                first[number] ^= 0xff;
                let mut client = client;
                client.write_all(&first[..length]).unwrap();
                std::io::copy(&mut server, &mut client)
            });
        }
    });
    port
}

fn a_proxy_in_between_is_told(it: Sandbox) {
    is(&check(&it), "proxy", "ok", &[]);
    let (user, rest) = it.database.url.split_once('@').unwrap();
    let (place, name) = rest.split_once('/').unwrap();
    let server = place.to_socket_addrs().unwrap().next().unwrap();
    it.configure_as(&format!("{user}@127.0.0.1:{}/{name}", relay_to(server)), "", "");
    let all = check(&it);
    is(&all, "proxy", "warning", &["replica", "the server itself"]);
    is(&all, "server", "ok", &[]);
}

/// On a server of their own: its settings are everybody's.
mod own_server {
    use super::*;

    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn settings_that_the_promise_does_not_stand_on_are_told() {
        let server = Server::start();
        let it = Sandbox::on_server(&server.url());
        is(&check(&it), "durability", "ok", &[]);
        for (setting, value, back, what, state, word) in [
            ("innodb_flush_log_at_trx_commit", "2", "1", "durability", "warning", "sent twice"),
            ("innodb_flush_log_at_trx_commit", "0", "1", "durability", "warning", "sent twice"),
            ("max_allowed_packet", "1048576", "16777216", "packet", "warning", "16M"),
            ("read_only", "1", "0", "read-only", "error", "takes the writes"),
        ] {
            it.database.execute(&format!("SET GLOBAL {setting} = {value}"));
            let all = check(&it);
            is(&all, what, state, &[setting, word]);
            it.database.execute(&format!("SET GLOBAL {setting} = {back}"));
            is(&check(&it), what, "ok", &[]);
        }
    }

    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn a_server_that_stands_still_is_told_in_time() {
        let server = Server::start();
        let it = Sandbox::on_server(&server.url());
        let endpoint = Endpoint::accepting();
        it.configure("", &endpoint.channel("web", ""));
        server.stop();
        let all = check(&it);
        server.go_on();
        assert_eq!(errors(&all), ["database"]);
        is(&all, "database", "error", &["cannot be reached"]);
        is(&all, "channel web", "ok", &[]);
    }
}
