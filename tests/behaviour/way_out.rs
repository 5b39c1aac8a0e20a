//! What ends a run, a check or a verb at a person's cost says the way out in the same sentence: whose a file is and who may
//! read it, which command names the statement that mends the tables, what of `database_url` to correct.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use crate::support::{Endpoint, Engine, Sandbox};

on_each_database! {
    an_index_that_is_gone_is_told_by_the_run_with_who_names_the_statement,
    a_configuration_that_may_not_be_read_is_told_with_whose_it_is,
    a_journal_of_another_user_is_told_with_the_way_to_give_it_on;
    mysql alone:
    access_that_is_denied_is_told_with_what_to_correct,
}

fn an_index_that_is_gone_is_told_by_the_run_with_who_names_the_statement(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    it.database.task("web", ["ann"]);
    let (drop, mends) = match it.database.engine {
        Engine::Sqlite => {
            ("DROP INDEX batch_task_target_k_task_status", "`batch-send migrate --print --from 0`")
        }
        Engine::MySql => ("ALTER TABLE batch_task_target DROP KEY k_task_status", "names the ALTER TABLE"),
    };
    it.database.execute(drop);
    it.call("run").done().exits(2).says(&["k_task_status", "index", "`batch-send check`", mends]);
    assert!(it.call("check").done().exits(2).stdout.contains("k_task_status"));
    assert_eq!(endpoint.requests(), 0);
}

fn access_that_is_denied_is_told_with_what_to_correct(it: Sandbox) {
    let (_, place) = it.database.url.split_once('@').unwrap();
    let user = format!("{}_stranger", it.database.name());
    it.database.execute(&format!("CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'right'"));
    for (password, words) in [
        ("wr0ng-s3cret", ["denies access", "correct user and password in `database_url`"]),
        ("right", ["denies access", "correct user and database in `database_url`"]),
    ] {
        it.configure_as(&format!("mysql://{user}:{password}@{place}"), "", "");
        let run = it.call("run").done().exits(2);
        assert!(!run.stderr.contains("s3cret"), "{run}");
        run.says(&words);
        it.call("task list").done().exits(2).says(&words);
        let check = it.call("check").done().exits(2);
        let line = check.stdout.lines().find(|line| line.starts_with("error    database"));
        let line = line.unwrap_or_else(|| panic!("{check}"));
        assert!(words.iter().all(|word| line.contains(word)), "{check}");
    }
    it.database.execute(&format!("DROP USER {user}@'127.0.0.1'"));
}

/// A user of this host that is not this one, nor anybody.
const STRANGER: u32 = 4711;

/// Whether a story can be told as somebody else: only root can.
fn somebody_else_can_call(it: &Sandbox) -> bool {
    fs::set_permissions(it.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: it takes root to be two users");
    }
    root
}

fn a_configuration_that_may_not_be_read_is_told_with_whose_it_is(it: Sandbox) {
    if !somebody_else_can_call(&it) {
        return;
    }
    fs::set_permissions(it.path("config.toml"), fs::Permissions::from_mode(0o640)).unwrap();
    let words =
        ["config.toml", "Permission denied", "root:root, mode 0640", "user 4711", "a user who may read it"];
    for call in ["run", "status", "purge --finished-before 90d --yes"] {
        it.call(call).by(STRANGER).done().exits(2).says(&words);
    }
    let check = it.call("check").by(STRANGER).done().exits(2);
    assert!(words.iter().all(|word| check.stdout.contains(word)), "{check}");
    it.call("run")
        .env("BATCH_SEND_CONFIG", "/no/such.toml")
        .done()
        .exits(2)
        .says(&["write it, or name another"]);
}

fn a_journal_of_another_user_is_told_with_the_way_to_give_it_on(it: Sandbox) {
    if !somebody_else_can_call(&it) {
        return;
    }
    it.configure("", &Endpoint::accepting().channel("web", ""));
    let state = it.path("state");
    fs::create_dir(&state).unwrap();
    for path in fs::read_dir(it.path("")).unwrap().map(|entry| entry.unwrap().path()).chain([it.path("")]) {
        chown(path, Some(STRANGER), None).unwrap();
    }
    // As root leaves it behind.
    let installation = it.database.text("SELECT id FROM batch_installation");
    let name = format!("journal-{installation}-00000000-0000-0000-0000-000000000001.jsonl");
    fs::write(state.join(&name), "{}\n").unwrap();
    fs::set_permissions(state.join(&name), fs::Permissions::from_mode(0o600)).unwrap();
    let words = [&name, "belongs to root", "as root", "chown 4711 "];
    let run = it.call("run").by(STRANGER).done();
    assert_ne!(run.code(), Some(0), "{run}");
    run.says(&words);
    let check = it.call("check").by(STRANGER).done().exits(2);
    assert!(words.iter().all(|word| check.stdout.contains(word)), "{check}");
    // The way out leads out, though what the line says cannot be read by anybody.
    chown(state.join(&name), Some(STRANGER), None).unwrap();
    let run = it.call("run").by(STRANGER).done();
    assert!(!run.stderr.contains("Permission denied"), "{run}");
}
