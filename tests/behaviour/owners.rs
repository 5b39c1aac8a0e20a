//! Two users of one host: root, by hand, and the one that cron runs it as. What the one makes never stands in the other's way.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::support::{Cue, Endpoint, Engine, Sandbox, wait_until};

on_each_database! {
    what_root_did_by_hand_is_not_in_cron_s_way,
    a_file_that_root_left_is_named_with_the_way_out,
}

/// A user that any host has, without rights.
const NOBODY: u32 = 65534;

/// A directory of that user, for all files that a run makes. None: only root can play two users.
fn their_directory(it: &Sandbox, channels: &str) -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to be two users");
        return None;
    }
    fs::set_permissions(it.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let theirs = it.path("state");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY), None).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o755)).unwrap();
    let url = match it.database.engine {
        Engine::Sqlite => format!("sqlite://{}", theirs.join("own.db").display()),
        Engine::MySql => it.database.url.clone(),
    };
    let spool = format!("[channel.spool]\nkind = \"file\"\npath = \"{}\"\n", theirs.join("spool").display());
    it.configure_as(&url, "", &format!("{spool}{channels}"));
    let file = |name: &str| theirs.join(name).display().to_string();
    it.configure_top(&format!(
        "log_file = \"{}\"\nmetrics_file = \"{}\"",
        file("batch-send.log"),
        file("batch-send.prom")
    ));
    it.call("migrate").done().exits(0);
    Some(theirs)
}

fn task(it: &Sandbox, channel: &str, recipient: &str) {
    let people = it.write("people.csv", &format!("recipient\n{recipient}\n"));
    it.call(&format!("task create --name n --channel {channel} --targets {}", people.display()))
        .done()
        .exits(0);
}

fn names(theirs: &Path) -> Vec<String> {
    let entries = fs::read_dir(theirs).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .map(|entry| {
            assert_eq!(entry.metadata().unwrap().uid(), NOBODY, "{}", entry.path().display());
            entry.file_name().into_string().unwrap()
        })
        .collect();
    names.sort();
    names
}

fn what_root_did_by_hand_is_not_in_cron_s_way(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    let Some(theirs) = their_directory(&it, &endpoint.channel("web", "")) else { return };
    task(&it, "spool", "ann");
    task(&it, "web", "bob");
    it.call("run --dry-run --limit 1").done().exits(0);
    let by_hand = it.call("run").start();
    wait_until("a message to be in flight", 20, || endpoint.waiting() == 1);
    wait_until("the other to be written", 20, || theirs.join("spool").exists());
    let made = names(&theirs).join(" ");
    let mut kinds = vec!["batch-send-", ".lock", "journal-", ".jsonl", "batch-send.log", "spool"];
    if it.database.engine == Engine::Sqlite {
        kinds.extend(["own.db", "own.db-wal", "own.db-shm"]);
    }
    for kind in kinds {
        assert!(made.contains(kind), "no {kind} in {made}");
    }
    endpoint.tell();
    by_hand.wait().quietly();
    let made = names(&theirs).join(" ");
    assert!(made.contains("metrics-") && made.contains("batch-send.prom"), "{made}");

    task(&it, "spool", "cy");
    it.call("run").by(NOBODY).done().quietly();
    assert_eq!(fs::read_to_string(theirs.join("spool")).unwrap().lines().count(), 2);
    names(&theirs);
}

fn a_file_that_root_left_is_named_with_the_way_out(it: Sandbox) {
    let Some(theirs) = their_directory(&it, "") else { return };
    it.run();
    let file = |part: &str| {
        let name = names(&theirs).into_iter().find(|name| name.starts_with(part));
        theirs.join(name.unwrap_or_else(|| panic!("no {part}")))
    };
    let lock = fs::read_dir(&theirs).unwrap().map(|entry| entry.unwrap().path());
    let lock = lock
        .filter(|path| path.extension().is_some_and(|end| end == "lock"))
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with("batch-send-"))
        .unwrap();
    let mut left = vec![(lock, 2), (file("batch-send.log"), 0), (file("metrics-"), 0)];
    if it.database.engine == Engine::Sqlite {
        left.push((file("own.db"), 2));
    }
    for (path, exit) in left {
        let mode = fs::metadata(&path).unwrap().permissions();
        chown(&path, Some(0), None).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let run = it.call("run").by(NOBODY).done().exits(exit);
        let path_shown = path.display();
        let run = run.says(&[&format!(
            "{path_shown} belongs to root: as root, give it to this user with `chown nobody {path_shown}`"
        )]);
        assert!(!run.stderr.contains("os error"), "{run}");
        chown(&path, Some(NOBODY), None).unwrap();
        fs::set_permissions(&path, mode).unwrap();
        it.call("run").by(NOBODY).done().quietly();
    }
}
