//! What is SQLite's alone: the file, its URL, its one writer. The promises are in store/conformance.rs.

use std::path::Path;

use rusqlite::Connection;

use super::*;
use crate::trouble::Kind;

fn open(path: &Path) -> Result<Box<dyn Store>> {
    Database::open(&format!("sqlite://{}", path.display()), "batch_", ClaimForm::Auto)?.store()
}

fn kind<T>(done: Result<T>) -> Option<Kind> {
    Trouble::kind_of(&done.err().expect("an error"))
}

#[test]
fn only_an_absolute_path_without_parameters_is_a_url() {
    for url in [
        "sqlite:tasks.db",
        "sqlite://tasks.db",
        "sqlite::memory:",
        "sqlite:///a?mode=ro",
        "sqlite:///a%2",
        "sqlite:///%ff",
    ] {
        assert_eq!(kind(Writer::new(url, "batch_")), Some(Kind::Usage), "{url}");
    }
    assert_eq!(kind(Writer::new("sqlite:///a", "1_")), Some(Kind::Usage));
    let writer = Writer::new("sqlite:///no/such%20folder/100%25.db", "b_").unwrap();
    assert_eq!(writer.path, Path::new("/no/such folder/100%.db"));
    assert_eq!(writer.identity(), "sqlite:/no/such folder/100%.db b_");
}

#[test]
fn only_migrate_makes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db");
    let mut store = open(&path).unwrap();
    assert_eq!(store.schema().unwrap(), Schema { version: 0, installation: None });
    assert_eq!(kind(store.recover(None)), Some(Kind::Usage));
    assert!(!path.exists(), "a mistyped path leaves nothing behind");
    store.migrate(Duration::ZERO).unwrap();
    assert_eq!(open(&path).unwrap().schema().unwrap().version, migrations::VERSION);
    let missing = open(&folder.path().join("no/tasks.db"));
    assert!(missing.as_ref().err().expect("an error").to_string().contains("no directory"));
    assert_eq!(kind(missing), Some(Kind::Usage));
}

#[test]
fn an_empty_file_is_not_migrated_and_another_file_is_no_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db");
    std::fs::write(&path, "").unwrap();
    let mut store = open(&path).unwrap();
    assert_eq!(store.schema().unwrap().version, 0);
    assert_eq!(kind(store.tasks(None, true)), Some(Kind::Usage));
    std::fs::write(&path, "recipient,name\n".repeat(200)).unwrap();
    assert_eq!(kind(open(&path)), Some(Kind::Usage));
}

#[test]
fn one_file_is_one_installation_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("tasks.db"), folder.path().join("link.db"));
    let identity = |path: &Path, prefix| {
        Writer::new(&format!("sqlite://{}", path.display()), prefix).unwrap().identity()
    };
    let before = identity(&path, "b_");
    open(&path).unwrap().migrate(Duration::ZERO).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!([identity(&path, "b_"), identity(&link, "b_")], [before.clone(), before.clone()]);
    assert_ne!(identity(&path, "c_"), before);
}

#[test]
fn a_commit_lasts_and_a_busy_file_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db");
    let mut store = open(&path).unwrap();
    store.migrate(Duration::ZERO).unwrap();
    let other = Connection::open(&path).unwrap();
    let pragma = |name: &str| {
        let mut writer = Writer::new(&format!("sqlite://{}", path.display()), "batch_").unwrap();
        writer.open(false).unwrap();
        writer
            .connection
            .unwrap()
            .pragma_query_value(None, name, |row| {
                row.get::<_, String>(0).or_else(|_| row.get::<_, i64>(0).map(|number| number.to_string()))
            })
            .unwrap()
    };
    assert_eq!([pragma("journal_mode"), pragma("synchronous"), pragma("busy_timeout")], ["wal", "2", "0"]);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| open(&path).unwrap().recover(None).map(drop));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished(), "it waits for the writer");
        assert!(store.tasks(None, true).unwrap().is_empty(), "a look does not wait");
        other.execute_batch("COMMIT").unwrap();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_row_that_the_database_refuses_does_not_keep_the_others_from_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db");
    let mut store = open(&path).unwrap();
    store.migrate(Duration::ZERO).unwrap();
    let other = Connection::open(&path).unwrap();
    let token = Uuid::new_v4();
    other
        .execute_batch(&format!(
            "INSERT INTO batch_task (name, channel, status) VALUES ('n', 'c', 'pending');
             INSERT INTO batch_task_target (task_id, recipient, status, cron_token)
             VALUES (1, 'a', 'sending', '{token}'), (1, 'b', 'sending', '{token}'), (1, 'c', 'sending', '{token}');
             CREATE TRIGGER odd BEFORE UPDATE ON batch_task_target WHEN NEW.recipient = 'b'
             BEGIN SELECT RAISE(ABORT, 'not b'); END"
        ))
        .unwrap();
    let answer = |id| {
        let settlement = Settlement::Sent { receipt: None };
        Answer { task: 1, id, token, in_doubt: false, settlement }
    };
    let unwritten = store.settle(vec![answer(1), answer(2), answer(3)]).unwrap_err();
    assert_eq!(unwritten.answers.iter().map(|answer| answer.id).collect::<Vec<_>>(), [2]);
    assert!(format!("{:#}", unwritten.why).contains("not b"));
    let (_, counts) = store.tasks(Some(1), true).unwrap().pop().unwrap();
    assert_eq!((counts.sent, counts.sending), (2, 1));
}

#[test]
fn of_a_large_file_a_million_targets_are_counted_and_the_others_estimated() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = folder.path().join("tasks.db");
    let mut store = open(&path).unwrap();
    store.migrate(Duration::ZERO).unwrap();
    let raw = Connection::open(&path).unwrap();
    raw.pragma_update(None, "synchronous", "OFF").unwrap();
    // The first two come in turns, each with one of 900 failed among those that are sent; the third is small.
    raw.execute_batch(
        "INSERT INTO batch_task (id, name, channel, status) VALUES (1, 'a', 'c', 'pending'), (2, 'b', 'c', 'pending'), (3, 'c', 'c', 'pending');
         INSERT INTO batch_task_target (id, task_id, recipient, status)
         WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 1199999)
         SELECT n + 1, 1 + n % 2, n, CASE WHEN n >= 800000 THEN 'pending' WHEN n / 2 % 900 = 7 THEN 'failed' ELSE 'sent' END FROM n;
         INSERT INTO batch_task_target (task_id, recipient) VALUES (3, 'ann'), (3, 'bob');",
    )
    .unwrap();
    let exact = store.tasks(None, true).unwrap();
    let seen = store.tasks(None, false).unwrap();
    assert_eq!((seen[0].1, exact[0].1.total()), (exact[0].1, 2), "the small one is counted");
    for ((task, seen), (_, exact)) in seen.iter().zip(&exact).skip(1) {
        assert!(seen.estimated && !exact.estimated, "task {}", task.id);
        assert_eq!((seen.failed, seen.unknown, seen.retry), (exact.failed, 0, 0), "so few are counted");
        for (seen, exact) in [(seen.sent, exact.sent), (seen.pending, exact.pending)] {
            assert!(seen.abs_diff(exact) < exact / 5, "{seen} for {exact}");
        }
    }
    assert!(store.tasks(Some(1), false).unwrap()[0].1.estimated, "of one alone, too");
}
