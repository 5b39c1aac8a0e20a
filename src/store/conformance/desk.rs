//! What an operator asks: the schema, tasks and targets, and a person's word on them.

use super::super::*;
use super::stage::*;
use crate::target::TargetStatus;
use crate::trouble::{Kind, Trouble};

fn usage<T: std::fmt::Debug>(done: Result<T>) {
    let error = done.unwrap_err();
    assert_eq!(Trouble::kind_of(&error), Some(Kind::Usage), "{error:#}");
}

pub(super) fn migrate_twice_is_migrate_once(stage: &Stage) {
    let mut store = stage.store();
    let schema = store.schema().unwrap();
    assert_eq!(schema.version, migrations::VERSION);
    assert!(schema.installation.is_some());
    let migrated = store.migrate(Duration::ZERO).unwrap();
    assert_eq!(migrated, Migrated { from: migrations::VERSION, to: migrations::VERSION, applied: vec![] });
    assert_eq!(store.schema().unwrap(), schema);
    // With nothing to do there is nobody to wait for.
    let (task, _) = stage.task(1);
    let _lease = ours(&mut *store, task, &terms());
    store.migrate(Duration::ZERO).unwrap();
}

pub(super) fn migrate_at_once_makes_one_installation(stage: &Stage) {
    stage.store().drop_tables().unwrap();
    let gate = std::sync::Barrier::new(3);
    let migrated: Vec<Migrated> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut store = stage.store();
                    gate.wait();
                    store.migrate(secs(5)).unwrap()
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let names: Vec<&str> = migrations::MIGRATIONS.iter().map(|migration| migration.name).collect();
    let mut applied: Vec<&str> =
        migrated.iter().flat_map(|migrated| migrated.applied.iter().map(String::as_str)).collect();
    applied.sort_unstable();
    assert_eq!(applied, names, "each once, by one of them");
    assert_eq!(stage.value("SELECT count(*) FROM {p}installation"), "1");
}

pub(super) fn migrate_waits_for_live_leases(stage: &Stage) {
    let (task, _) = stage.task(1);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    // As if the latest step were missing.
    stage.sql("DELETE FROM {p}migration");
    let error = store.migrate(Duration::from_millis(50)).unwrap_err();
    assert_eq!(Trouble::kind_of(&error), Some(Kind::TryLater), "{error:#}");
    assert_eq!(stage.value("SELECT count(*) FROM {p}migration"), "0");
    let waited = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| stage.store().migrate(secs(20)));
        close(&mut *store, lease);
        waiting.join().unwrap()
    });
    assert_eq!(waited.unwrap().applied.len(), migrations::MIGRATIONS.len());
    assert_eq!(task_status(&mut *store, task), TaskStatus::Pending, "the tables were there, and stay");
}

pub(super) fn migrate_refuses_a_newer_database(stage: &Stage) {
    let mut store = stage.store();
    stage.schema_is_at(7_000);
    usage(store.migrate(Duration::ZERO));
    assert_eq!(store.schema().unwrap().version, 7000);
}

pub(super) fn migrate_refuses_a_file_that_was_changed(stage: &Stage) {
    stage.sql("UPDATE {p}migration SET checksum = 'another'");
    usage(stage.store().migrate(Duration::ZERO));
}

pub(super) fn migrate_takes_version_1_along_with_its_rows(stage: &Stage) {
    let mut store = stage.store();
    let installation = store.schema().unwrap().installation.unwrap();
    store.drop_tables().unwrap();
    stage.make_version_1(installation);
    let ago = stage.ago(0);
    stage.sql(&format!(
        "INSERT INTO {{p}}task (id, name, channel, status, created_at) VALUES (7, 'Spring', '{CHANNEL}', 'pending', {ago})"
    ));
    stage.sql("INSERT INTO {p}task_target (id, task_id, recipient) VALUES (70, 7, 'ann'), (71, 7, 'ben')");
    for (channel, held) in [(CHANNEL, 600), ("quiet", -3_600), ("awake", -1)] {
        let at = stage.micros_ago(-held);
        stage.sql(&format!("INSERT INTO {{p}}pace (channel, next_at, holds) VALUES ('{channel}', {at}, 2)"));
    }
    stage.sql(&format!(
        "INSERT INTO {{p}}audit (id, at, who, what, task_id, target_id, why) VALUES (5, {ago}, 'ann', 'pause', 7, NULL, 'x'), \
         (9, {ago}, 'ben', 'resolve', 7, 70, NULL)"
    ));
    let at = stage.ms("at");
    let audit =
        || stage.rows(&format!("SELECT id, {at}, who, what, task_id, target_id, why FROM {{p}}audit"));
    let before = audit();

    usage(store.lease(7, &terms(), false));
    let migrated = store.migrate(Duration::ZERO).unwrap();
    assert_eq!((migrated.from, migrated.to), (1, migrations::VERSION));
    assert_eq!(migrated.applied[0], "0002_holds_and_suppressions");
    assert_eq!(store.schema().unwrap().installation, Some(installation));
    assert_eq!(audit(), before);
    // What was held is held, and what was not is not; a hold right after one of before goes on where that ended.
    let task = store.task(7).unwrap().unwrap();
    let left = task.held_until.unwrap().timestamp_millis() - stage.now();
    assert!((580_000..=600_000).contains(&left), "{left}");
    assert!(store.due(&[CHANNEL], &[]).unwrap().is_none());
    let hold = Hold { asked: None, first: secs(10), most: secs(1_000) };
    assert_eq!(["awake", "quiet"].map(|channel| store.hold(channel, &hold).unwrap()), [secs(40), secs(10)]);
    // The new parts work on the old rows.
    stage.hold_ended(CHANNEL, 1);
    let rows = [Suppression { recipient: "ANN".into(), channel: None, reason: None, since: None }];
    store.suppress(&rows, &ACT).unwrap();
    let lease = ours(&mut *store, 7, &terms());
    let claimed = store.claim(&lease, 9).unwrap();
    let begun = begin_these(&mut *store, &lease, claimed);
    assert_eq!((begun.suppressed, begun.in_flight[0].id()), (vec![70], 71));
}

pub(super) fn tables_are_dropped_and_made_again(stage: &Stage) {
    let mut store = stage.store();
    let before = store.schema().unwrap().installation;
    stage.task(3);
    store.drop_tables().unwrap();
    assert_eq!(store.schema().unwrap(), Schema { version: 0, installation: None });
    usage(stage.store().recover(None));
    let migrated = store.migrate(Duration::ZERO).unwrap();
    assert_eq!((migrated.from, migrated.to), (0, migrations::VERSION));
    assert_ne!(store.schema().unwrap().installation, before);
    assert!(store.tasks(None, true).unwrap().is_empty());
}

pub(super) fn a_task_is_created_as_a_draft(stage: &Stage) {
    let mut store = stage.store();
    let at = DateTime::from_timestamp_millis(1_900_000_000_123).unwrap();
    let payload = r#"{"text": "it's 😀\n"}"#;
    let new = NewTask {
        name: "Ünï 😀 \"name\"",
        channel: "c-1",
        payload: Some(payload),
        priority: -3,
        scheduled: Some(When::At(at)),
        expires: None,
    };
    let id = store.create(&new).unwrap();
    let task = store.task(id).unwrap().unwrap();
    assert_eq!(
        (task.id, task.name.as_str(), task.channel.as_str(), task.priority),
        (id, new.name, "c-1", -3)
    );
    assert_eq!((task.status, task.scheduled_at, task.expires_at), (TaskStatus::Draft, Some(at), None));
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(json(&task.payload.unwrap()), json(payload));
    assert!(task.early && !task.expired && task.lease.is_none());
    assert!((stage.now() - task.created_at.timestamp_millis()).abs() < 10_000);
    assert!(store.task(id + 1).unwrap().is_none());
}

pub(super) fn a_relative_time_is_counted_by_the_database(stage: &Stage) {
    let mut store = stage.store();
    let (scheduled, expires) = (Some(When::In(secs(3_600))), Some(When::In(secs(7_200))));
    let id = store
        .create(&NewTask { name: "n", channel: CHANNEL, payload: None, priority: 0, scheduled, expires })
        .unwrap();
    let task = store.task(id).unwrap().unwrap();
    let ahead = |at: Option<DateTime<Utc>>| at.unwrap().timestamp_millis() - stage.now();
    assert!((3_590_000..=3_600_000).contains(&ahead(task.scheduled_at)));
    assert!((7_190_000..=7_200_000).contains(&ahead(task.expires_at)));
}

pub(super) fn repeats_are_merged_and_the_first_stays(stage: &Stage) {
    let (task, _) = stage.draft(0);
    let (other, _) = stage.draft(1);
    let mut store = stage.store();
    let row = |name: &str, params: &str| NewTarget { recipient: name.into(), params: Some(params.into()) };
    let rows =
        [row("a", r#"{"n": 1}"#), row("b", "{}"), row("a ", r#"{"n": 2}"#), row("A", "{}"), row(" a", "{}")];
    assert_eq!(store.add(task, &rows).unwrap(), Added { new: 4, repeated: 1 });
    assert_eq!(
        store.add(task, &[row("a", r#"{"n": 3}"#), row("c\t", "{}")]).unwrap(),
        Added { new: 1, repeated: 1 }
    );
    assert_eq!(store.add(task, &[]).unwrap(), Added::default());
    let mut found = Vec::new();
    store
        .targets(task, &[], &mut |row| {
            found.push((row.recipient, row.params));
            Ok(())
        })
        .unwrap();
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "A", " a", "c"]);
    let first: serde_json::Value = serde_json::from_str(found[0].1.as_deref().unwrap()).unwrap();
    assert_eq!(first["n"], 1);
    assert_eq!(store.tasks(Some(other), true).unwrap()[0].1.total(), 1);
}

pub(super) fn what_is_too_long_is_refused_and_not_cut(stage: &Stage) {
    let (task, _) = stage.draft(0);
    let mut store = stage.store();
    let longest = "😀".repeat(RECIPIENT_MOST);
    assert_eq!(store.add(task, &[recipient(&longest)]).unwrap().new, 1);
    assert!(store.add(task, &[recipient("a"), recipient(&format!("{longest}x"))]).is_err());
    let found =
        stage.rows(&format!("SELECT recipient FROM {{p}}task_target WHERE task_id = {task} ORDER BY id"));
    assert_eq!(found[0], std::slice::from_ref(&longest));
    assert!(found.iter().all(|row| row[0] == longest || row[0] == "a"), "cut: {found:?}");
}

pub(super) fn add_reopens_a_finished_task_and_refuses_a_cancelled_one(stage: &Stage) {
    let (task, _) = stage.task(1);
    let mut store = stage.store();
    for status in [TaskStatus::Draft, TaskStatus::Pending, TaskStatus::Paused] {
        stage.sql(&format!("UPDATE {{p}}task SET status = '{}'", status.word()));
        store.add(task, &[recipient(status.word())]).unwrap();
        assert_eq!(task_status(&mut *store, task), status);
    }
    stage.sql(&format!("UPDATE {{p}}task SET status = 'finished', finished_at = {}", stage.ago(86_400)));
    store.add(task, &[recipient("late")]).unwrap();
    let found = store.task(task).unwrap().unwrap();
    assert_eq!((found.status, found.finished_at), (TaskStatus::Pending, None));
    cancel(&mut *store, task);
    usage(store.add(task, &[recipient("later")]));
    usage(store.add(999_999, &[recipient("x")]));
    assert_eq!(store.tasks(Some(task), true).unwrap()[0].1.total(), 5);
}

pub(super) fn every_turn_starts_from_its_own_statuses_only(stage: &Stage) {
    use TaskStatus::*;
    let verbs: [(&[TaskStatus], TaskStatus); 4] = [
        (&[Draft], Pending),
        (&[Pending], Paused),
        (&[Paused], Pending),
        (&[Draft, Pending, Paused], Cancelled),
    ];
    let mut store = stage.store();
    for (from, to) in verbs {
        for status in TaskStatus::ALL {
            let (task, _) = stage.draft(1);
            stage.sql(&format!("UPDATE {{p}}task SET status = '{}' WHERE id = {task}", status.word()));
            let audits = stage.audits(ACT.what);
            let turned = turn(&mut *store, task, from, to);
            if from.contains(&status) {
                assert_eq!((turned, task_status(&mut *store, task)), (Turned::From(status), to));
                assert_eq!(stage.audits(ACT.what), audits + 1);
            } else {
                assert_eq!((turned, task_status(&mut *store, task)), (Turned::Refused(status), status));
                assert_eq!(stage.audits(ACT.what), audits, "nothing happened");
            }
        }
        assert_eq!(turn(&mut *store, 999_999, from, to), Turned::NoSuchTask);
    }
}

pub(super) fn turns_leave_their_traces(stage: &Stage) {
    let (task, _) = stage.task(1);
    let mut store = stage.store();
    let halt = || stage.value(&format!("SELECT {} FROM {{p}}task", stage.ms("halt_at")));
    assert_eq!(halt(), "NULL");
    let from = [TaskStatus::Pending];
    store.turn(task, &from, TaskStatus::Paused, Some("wrong 😀"), Expiry::Keep, &ACT).unwrap();
    assert_eq!(store.task(task).unwrap().unwrap().status_reason.as_deref(), Some("wrong 😀"));
    let first = halt();
    assert_ne!(first, "NULL");
    stage.sql("UPDATE {p}task SET unknown_run = 5");
    let until = Expiry::Until(When::In(secs(60)));
    store.turn(task, &[TaskStatus::Paused], TaskStatus::Pending, None, until, &ACT).unwrap();
    let found = store.task(task).unwrap().unwrap();
    assert_eq!((found.status_reason, found.expired), (None, false));
    assert!(found.expires_at.is_some());
    assert_eq!(stage.value("SELECT unknown_run FROM {p}task"), "0");
    assert_eq!(halt(), first, "only a pause or a cancel halts");
    store.turn(task, &from, TaskStatus::Paused, None, Expiry::Keep, &ACT).unwrap();
    assert_ne!(halt(), first, "however soon after the first");
    assert!(store.task(task).unwrap().unwrap().expires_at.is_some());
    store.turn(task, &[TaskStatus::Paused], TaskStatus::Pending, None, Expiry::Never, &ACT).unwrap();
    assert_eq!(store.task(task).unwrap().unwrap().expires_at, None);
    let audit =
        stage.rows(&format!("SELECT who, what, why FROM {{p}}audit WHERE task_id = {task} ORDER BY id"));
    assert_eq!(audit.last().unwrap(), &["ann@desk", "test", "she knows"]);
}

pub(super) fn cancel_ends_a_task_with_nothing_in_flight(stage: &Stage) {
    let mut store = stage.store();
    let (quiet, _) = stage.task(1);
    cancel(&mut *store, quiet);
    assert!(store.task(quiet).unwrap().unwrap().finished_at.is_some());
    let (claimed, _) = stage.task(1);
    let lease = ours(&mut *store, claimed, &terms());
    let rest = store.claim(&lease, 1).unwrap();
    cancel(&mut *store, claimed);
    assert!(store.task(claimed).unwrap().unwrap().finished_at.is_none(), "it may be begun yet");
    store.release(rest).unwrap();
    let Sending { task, id, store: mut run, lease, flight } = stage.sending();
    cancel(&mut *store, task);
    assert!(store.task(task).unwrap().unwrap().finished_at.is_none());
    settle(&mut *run, vec![flight.answer(task, sent())]);
    close(&mut *run, lease);
    store.recover(None).unwrap();
    assert!(store.task(task).unwrap().unwrap().finished_at.is_some());
    assert_eq!((task_status(&mut *store, task), stage.status(id)), (TaskStatus::Cancelled, "sent".into()));
}

pub(super) fn cancel_leaves_no_doubt_behind(stage: &Stage) {
    // Settled before the cancel, and after it.
    for late in [false, true] {
        let Sending { task, id, mut store, lease, flight } = stage.sending_under(&keyed());
        store.add(task, &[recipient("nothing was sent to")]).unwrap();
        let answer = flight.answer(task, retry(true));
        if late {
            cancel(&mut *stage.store(), task);
            settle(&mut *store, vec![answer]);
            assert_eq!(close(&mut *store, lease), Closed::Open);
            let recovered = store.recover(None).unwrap();
            assert_eq!((recovered.unknown, &recovered.doubtful[..]), (1, &[task][..]), "and it is told");
        } else {
            settle(&mut *store, vec![answer]);
            cancel(&mut *store, task);
        }
        let row = stage.row(id);
        assert_eq!((row.status.as_str(), row.retry_at), ("unknown", None), "late {late}");
        assert!(store.task(task).unwrap().unwrap().finished_at.is_some());
        let (_, counts) = store.tasks(Some(task), true).unwrap().pop().unwrap();
        assert_eq!((counts.unknown, counts.pending), (1, 1), "what was not sent is pending");
        assert_eq!(store.resolve(task, None, Verdict::Sent, &ACT).unwrap(), 1);
    }
}

fn listed(store: &mut dyn Store, task: TaskId, statuses: &[&str]) -> Vec<TargetId> {
    let mut found = Vec::new();
    store
        .targets(task, statuses, &mut |row| {
            assert_eq!(row.task_id, task);
            found.push(row.id);
            Ok(())
        })
        .unwrap();
    found
}

pub(super) fn targets_are_listed_in_the_order_of_id(stage: &Stage) {
    let (task, all) = stage.task(2_500);
    stage.task(2);
    let mut store = stage.store();
    stage
        .sql(&format!("UPDATE {{p}}task_target SET status = 'failed' WHERE task_id = {task} AND id % 2 = 0"));
    stage.sql(&format!(
        "UPDATE {{p}}task_target SET status = 'unknown' WHERE task_id = {task} AND id % 5 = 0"
    ));
    assert_eq!(listed(&mut *store, task, &[]), all);
    let wanted: Vec<TargetId> = all.iter().copied().filter(|id| id % 2 == 0 || id % 5 == 0).collect();
    assert_eq!(listed(&mut *store, task, &["unknown", "failed"]), wanted);
    assert!(listed(&mut *store, task, &["sent"]).is_empty());
    assert!(listed(&mut *store, task, &["no such status"]).is_empty());
    stage.sql("DELETE FROM {p}task_target");
    let Sending { task, .. } = stage.sending();
    stage.end_claims();
    store
        .targets(task, &["sending"], &mut |row| {
            assert!(row.overdue && row.send_at.is_some() && row.settled_at.is_none());
            assert_eq!((row.recipient.as_str(), row.status.as_str(), row.attempts), ("r1", "sending", 1));
            Ok(())
        })
        .unwrap();
}

pub(super) fn an_error_of_each_ends_the_list(stage: &Stage) {
    let (task, _) = stage.task(10);
    let mut store = stage.store();
    let mut seen = 0;
    let error = store
        .targets(task, &[], &mut |_| {
            seen += 1;
            if seen == 3 { Err(anyhow::anyhow!("the pipe is closed")) } else { Ok(()) }
        })
        .unwrap_err();
    assert_eq!((seen, error.root_cause().to_string().as_str()), (3, "the pipe is closed"));
    assert_eq!(listed(&mut *store, task, &[]).len(), 10, "the store goes on");
}

pub(super) fn a_snapshot_is_of_one_moment(stage: &Stage) {
    // More than is read at once.
    let (task, all) = stage.task(12_000);
    let mut store = stage.store();
    let mut seen = Vec::new();
    let snapshot = store
        .snapshot(task, &mut |target| {
            if seen.is_empty() {
                stage.sql("UPDATE {p}task_target SET status = 'unknown'");
                stage.sql("UPDATE {p}task SET status = 'paused'");
                stage.sql(&format!(
                    "INSERT INTO {{p}}task_target (task_id, recipient) VALUES ({task}, 'late')"
                ));
            }
            assert_eq!(target.status, Some(TargetStatus::Pending));
            seen.push(target.id);
            Ok(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(seen, all);
    assert_eq!((snapshot.targets, snapshot.task.status), (12_000, TaskStatus::Pending));
    let mut after = 0;
    let mut count = |_| {
        after += 1;
        Ok(())
    };
    let snapshot = store.snapshot(task, &mut count).unwrap().unwrap();
    assert_eq!((after, snapshot.targets, snapshot.task.status), (12_001, 12_001, TaskStatus::Paused));
    // The session is what it was: a claim sees what others committed since.
    stage.sql("UPDATE {p}task SET status = 'pending'");
    let lease = ours(&mut *store, task, &terms());
    assert_eq!(store.claim(&lease, 9).unwrap().len(), 1);
}

pub(super) fn a_snapshot_tells_what_a_report_needs(stage: &Stage) {
    let (task, all) = stage.task(7);
    let mut store = stage.store();
    let words = ["pending", "processing", "sending", "sent", "failed", "retry", "unknown"];
    for (id, status) in all.iter().zip(words) {
        let retry = if status == "retry" { stage.ago(0) } else { "NULL".into() };
        stage.sql(&format!(
            "UPDATE {{p}}task_target SET status = '{status}', attempts = 3, send_at = {}, settled_at = {}, claim_until = {}, \
             retry_at = {retry}, last_error = 'because' WHERE id = {id}",
            stage.ago(9),
            stage.ago(4),
            stage.ago(1)
        ));
    }
    let mut seen = Vec::new();
    let mut keep = |target| {
        seen.push(target);
        Ok(())
    };
    let snapshot = store.snapshot(task, &mut keep).unwrap().unwrap();
    assert_eq!((snapshot.task.id, snapshot.frozen, snapshot.targets), (task, None, 7));
    assert!((snapshot.at.timestamp_millis() - stage.now()).abs() < 10_000);
    seen.sort_by_key(|target| target.id);
    for (target, (id, word)) in seen.iter().zip(all.iter().zip(words)) {
        assert_eq!((target.id, target.status), (*id, TargetStatus::from_word(word)));
        assert_eq!(target.attempts, 3);
        let took = target.settled_at.unwrap() - target.send_at.unwrap();
        assert!((4_000..7_000).contains(&took.num_milliseconds()), "{took}");
        let told = ["failed", "unknown", "retry"].contains(&word);
        assert_eq!(target.last_error.as_deref(), told.then_some("because"), "{word}");
        assert_eq!(target.recipient.as_deref(), (word == "unknown").then_some("r7"), "{word}");
        assert_eq!(target.overdue, word == "sending");
    }
    stage.sql("UPDATE {p}task SET sent_count = 1, failed_count = 2, unknown_count = 3");
    stage.sql("UPDATE {p}task_target SET send_at = NULL, settled_at = NULL");
    let mut timed = 0;
    let snapshot = store
        .snapshot(task, &mut |target| {
            timed += i32::from(target.send_at.is_some() || target.settled_at.is_some());
            Ok(())
        })
        .unwrap()
        .unwrap();
    assert_eq!((snapshot.frozen, timed), (Some(Frozen { sent: 1, failed: 2, unknown: 3 }), 0));
    assert!(store.snapshot(task + 1, &mut |_| panic!("it has none")).unwrap().is_none());
    let error = store.snapshot(task, &mut |_| anyhow::bail!("enough")).unwrap_err();
    assert_eq!(error.root_cause().to_string(), "enough");
    assert_eq!(listed(&mut *store, task, &[]).len(), 7, "the store goes on");
}

pub(super) fn a_snapshot_is_of_one_task(stage: &Stage) {
    // Among many of another, and close together.
    let ((wide, mut all), (near, _)) = (stage.draft(1), stage.draft(40));
    let mut store = stage.store();
    for (task, name) in [(wide, "x"), (near, "x"), (wide, "y"), (near, "y"), (wide, "z")] {
        store.add(task, &[recipient(name)]).unwrap();
    }
    all.extend(
        stage
            .rows(&format!(
                "SELECT id FROM {{p}}task_target WHERE task_id = {wide} AND id > {} ORDER BY id",
                all[0]
            ))
            .into_iter()
            .map(|row| row[0].parse::<TargetId>().unwrap()),
    );
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'unknown' WHERE id = {}", all[1]));
    for (task, number) in [(wide, 4), (near, 42)] {
        let mut seen = Vec::new();
        let mut keep = |target: TargetFacts| {
            seen.push(target.id);
            Ok(())
        };
        let snapshot = store.snapshot(task, &mut keep).unwrap().unwrap();
        seen.sort_unstable();
        assert_eq!((snapshot.targets, seen.len()), (number, number as usize));
        assert_eq!(task == wide, seen == all);
    }
}

pub(super) fn peek_shows_what_is_left_and_claims_nothing(stage: &Stage) {
    let (task, all) = stage.task(6);
    let mut store = stage.store();
    for (id, status) in all.iter().zip(["sent", "failed", "unknown"]) {
        stage.sql(&format!("UPDATE {{p}}task_target SET status = '{status}' WHERE id = {id}"));
    }
    stage.sql(&format!(
        "UPDATE {{p}}task_target SET status = 'retry', retry_at = {} WHERE id = {}",
        stage.ago(0),
        all[4]
    ));
    let peeked: Vec<TargetId> = store.peek(task, 2).unwrap().iter().map(|target| target.id).collect();
    assert_eq!(peeked, all[3..5]);
    assert_eq!(store.peek(task, 100).unwrap().len(), 3);
    assert_eq!((stage.status(all[3]), stage.row(all[3]).token), ("pending".into(), None));

    // Of those that are left the first is suppressed, and the last in a channel that is not this task's.
    for (id, channel) in [(all[3], "*"), (all[5], "another")] {
        stage.sql(&format!(
            "INSERT INTO {{p}}suppression (recipient, channel) SELECT recipient, '{channel}' FROM {{p}}task_target WHERE id = {id}"
        ));
    }
    let peeked: Vec<TargetId> = store.peek(task, 2).unwrap().iter().map(|target| target.id).collect();
    assert_eq!(peeked, all[4..6]);
}

pub(super) fn one_target_is_shown_whatever_its_status(stage: &Stage) {
    let Sending { task, id, mut store, flight, .. } = stage.sending();
    let (other, others) = stage.task(1);
    let look = |store: &mut dyn Store| {
        let before = stage.row(id);
        let found = store.target(task, id).unwrap().unwrap();
        assert_eq!((found.id, found.recipient.as_str(), found.attempts), (id, "r1", 1));
        assert_eq!(stage.row(id), before);
    };
    look(&mut *store);
    settle(&mut *store, vec![flight.answer(task, failed())]);
    look(&mut *store);
    assert_eq!(store.target(other, others[0]).unwrap().unwrap().attempts, 0);
    assert!(store.target(task, others[0]).unwrap().is_none(), "of another task");
    assert!(store.target(task, 999_999).unwrap().is_none());
}

pub(super) fn targets_are_looked_up_by_id_and_by_recipient(stage: &Stage) {
    let (task, all) = stage.task(1_500);
    let (other, others) = stage.task(2);
    let mut store = stage.store();
    store.add(other, &[recipient("Ann"), recipient("ann"), recipient("it's \\ 😀")]).unwrap();
    let mut look = |task: TaskId, names: Names<'_>| -> Vec<(TargetId, String)> {
        let rows = store.named(task, names).unwrap();
        assert!(rows.iter().all(|row| row.task_id == task && row.status == "pending"));
        rows.into_iter().map(|row| (row.id, row.recipient)).collect()
    };
    let ids = |rows: Vec<(TargetId, String)>| rows.into_iter().map(|row| row.0).collect::<Vec<_>>();
    assert_eq!(ids(look(task, Names::Ids(&all))), all);
    assert_eq!(
        look(task, Names::Ids(&[999_999, others[0], all[2], all[1]])),
        [(all[1], "r2".into()), (all[2], "r3".into())]
    );
    let names: Vec<String> = (1..=1_500).rev().map(|n| format!("r{n}")).collect();
    assert_eq!(ids(look(task, Names::Recipients(&names))), all);
    assert_eq!(ids(look(other, Names::Recipients(&names))), others, "another task's");
    let exact =
        look(other, Names::Recipients(&["ANN".into(), "ann".into(), "it's \\ 😀".into(), "%".into()]));
    assert_eq!(exact.into_iter().map(|row| row.1).collect::<Vec<_>>(), ["ann", "it's \\ 😀"]);
    assert!(look(task, Names::Ids(&[])).is_empty() && look(task, Names::Recipients(&[])).is_empty());
}

pub(super) fn counts_add_up(stage: &Stage) {
    let (task, all) = stage.task(9);
    let (other, _) = stage.task(1);
    let mut store = stage.store();
    let states = ["processing", "sending", "sending", "sent", "failed", "unknown", "retry"];
    for (id, status) in all.iter().zip(states) {
        let retry_at = if status == "retry" { stage.ago(0) } else { "NULL".into() };
        stage.sql(&format!(
            "UPDATE {{p}}task_target SET status = '{status}', retry_at = {retry_at}, claim_until = {} WHERE id = {id}",
            stage.ago(-60)
        ));
    }
    stage.age("claim_until", Some(all[1]), 1);
    let expected = Counts {
        pending: 2,
        processing: 1,
        sending: 2,
        retry: 1,
        sent: 1,
        failed: 1,
        unknown: 1,
        invalid: 0,
        overdue: 1,
        estimated: false,
    };
    let tasks = store.tasks(None, true).unwrap();
    let ids: Vec<TaskId> = tasks.iter().map(|(task, _)| task.id).collect();
    assert_eq!(ids, [other, task], "newest first");
    assert_eq!((tasks[1].1, tasks[1].1.total()), (expected, 9));
    assert!(store.tasks(Some(999_999), true).unwrap().is_empty());
}

pub(super) fn a_finished_task_answers_from_what_close_froze(stage: &Stage) {
    let Sending { task, mut store, lease, flight, .. } = stage.sending();
    settle(&mut *store, vec![flight.answer(task, sent())]);
    assert_eq!(close(&mut *store, lease), Closed::Finished);
    let sent = |store: &mut dyn Store| store.tasks(Some(task), false).unwrap()[0].1.sent;
    assert_eq!(sent(&mut *store), 1);
    // Ten million rows are not counted for it.
    stage.sql("UPDATE {p}task SET sent_count = 10000000");
    assert_eq!(sent(&mut *store), 10_000_000);
}

/// Three targets, all unknown.
fn three_unknown(stage: &Stage) -> (TaskId, Vec<TargetId>, Box<dyn Store>, Lease) {
    let (task, all) = stage.task(3);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let answers =
        begin(&mut *store, &lease, 3).into_iter().map(|flight| flight.answer(task, unknown())).collect();
    settle(&mut *store, answers);
    (task, all, store, lease)
}

pub(super) fn resolve_settles_only_what_is_unknown(stage: &Stage) {
    for (verdict, status) in
        [(Verdict::Sent, "sent"), (Verdict::Failed, "failed"), (Verdict::Retry, "pending")]
    {
        let (task, all, _, _) = three_unknown(stage);
        let mut desk = stage.store();
        stage.sql(&format!("UPDATE {{p}}task_target SET status = 'sent' WHERE id = {}", all[0]));
        let other = three_unknown(stage);
        let audits = stage.audits(ACT.what);
        let ids = [all[0], all[1], other.1[0], 999_999];
        assert_eq!(desk.resolve(task, Some(&ids), verdict, &ACT).unwrap(), 1, "{status}");
        assert!(stage.audits(ACT.what) > audits);
        let states = || all.iter().map(|id| stage.status(*id)).collect::<Vec<_>>();
        assert_eq!(states(), ["sent", status, "unknown"]);
        assert_eq!(stage.status(other.1[0]), "unknown", "of another task");
        assert_eq!(desk.resolve(task, None, verdict, &ACT).unwrap(), 1);
        assert_eq!(states(), ["sent", status, status]);
        assert_eq!(stage.row(all[2]).settled_at.is_some(), status != "pending");
        assert_eq!(
            stage.row(all[2]).last_error.is_some(),
            status != "sent",
            "why, as long as it is not sent"
        );
        let audits = stage.audits(ACT.what);
        assert_eq!(desk.resolve(task, None, verdict, &ACT).unwrap(), 0);
        assert_eq!(stage.audits(ACT.what), audits, "nothing happened");
    }
    usage(stage.store().resolve(999_999, None, Verdict::Sent, &ACT));
}

pub(super) fn resolve_recovers_first(stage: &Stage) {
    let Sending { task, id, store: killed, .. } = stage.sending();
    drop(killed);
    let mut desk = stage.store();
    pause(&mut *desk, task);
    assert_eq!(
        desk.resolve(task, None, Verdict::Sent, &ACT).unwrap(),
        0,
        "a live claim may still be answered"
    );
    stage.end_claims();
    assert_eq!(desk.resolve(task, Some(&[id]), Verdict::Sent, &ACT).unwrap(), 1);
    assert_eq!((stage.status(id).as_str(), task_status(&mut *desk, task)), ("sent", TaskStatus::Paused));
}

pub(super) fn resolve_as_retry_keeps_the_key_and_the_token(stage: &Stage) {
    let Sending { task, id, mut store, lease, flight } = stage.sending_under(&keyed());
    settle(&mut *store, vec![flight.answer(task, unknown())]);
    let before = stage.row(id);
    assert!(before.dedupe_until.is_some());
    assert_eq!(store.resolve(task, None, Verdict::Retry, &ACT).unwrap(), 1);
    let row = stage.row(id);
    assert_eq!((row.round, row.attempts, row.token), (0, 1, before.token));
    assert_eq!(
        (row.dedupe_until, row.hashed, row.settled_at),
        (None, false, None),
        "a person ended the doubt"
    );
    let claimed = store.claim(&lease, 1).unwrap();
    assert!(!claimed[0].target().in_doubt);
}

pub(super) fn a_verdict_in_a_finished_task_changes_its_counts(stage: &Stage) {
    for (verdict, counts) in [
        (Verdict::Sent, Counts { sent: 3, ..Counts::default() }),
        (Verdict::Failed, Counts { failed: 3, ..Counts::default() }),
    ] {
        let (task, _, mut store, lease) = three_unknown(stage);
        assert_eq!(close(&mut *store, lease), Closed::Finished);
        assert_eq!(store.tasks(Some(task), false).unwrap()[0].1, Counts { unknown: 3, ..Counts::default() });
        store.resolve(task, None, verdict, &ACT).unwrap();
        assert_eq!(store.tasks(Some(task), false).unwrap()[0].1, counts);
        assert_eq!(task_status(&mut *store, task), TaskStatus::Finished);
    }
}

pub(super) fn requeue_gives_failed_targets_a_new_key(stage: &Stage) {
    let (task, all) = stage.task(3);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let answers = begin(&mut *store, &lease, 3)
        .into_iter()
        .zip([failed(), unknown(), sent()])
        .map(|(flight, settlement)| flight.answer(task, settlement))
        .collect();
    settle(&mut *store, answers);
    let other = stage.task(1).1[0];
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'failed' WHERE id = {other}"));
    let token = stage.row(all[0]).token;
    let audits = stage.audits(ACT.what);
    assert_eq!(stage.store().requeue(task, None, &ACT).unwrap().changed, 1);
    assert_eq!(stage.audits(ACT.what), audits + 1);
    let row = stage.row(all[0]);
    assert_eq!((row.status.as_str(), row.round, row.attempts, row.settled_at), ("pending", 1, 1, None));
    assert_eq!(row.token, token);
    let others = [all[1], all[2], other].map(|id| stage.status(id));
    assert_eq!(others, ["unknown", "sent", "failed"]);
    let claimed = store.claim(&lease, 3).unwrap();
    assert_eq!((ids(&claimed), claimed[0].target().round), (vec![all[0]], 1));
    assert_eq!(stage.store().requeue(task, None, &ACT).unwrap().changed, 0);
    usage(stage.store().requeue(999_999, None, &ACT));
}

pub(super) fn requeue_opens_only_those_that_are_named(stage: &Stage) {
    let (task, all) = stage.task(4);
    let mut store = stage.store();
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'failed' WHERE id <> {}", all[3]));
    stage.sql(&format!(
        "UPDATE {{p}}task SET status = 'finished', finished_at = {} WHERE id = {task}",
        stage.ago(0)
    ));
    let other = stage.task(1).1[0];
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'failed' WHERE id = {other}"));
    stage.sql("DELETE FROM {p}audit");
    assert_eq!(store.requeue(task, Some(&[other, all[3], 999_999]), &ACT).unwrap().changed, 0);
    assert_eq!((task_status(&mut *store, task), stage.audits(ACT.what)), (TaskStatus::Finished, 0));
    assert_eq!(store.requeue(task, Some(&[all[2], all[0], other]), &ACT).unwrap().changed, 2);
    let states = all.iter().map(|id| stage.status(*id)).collect::<Vec<_>>();
    assert_eq!(states, ["pending", "failed", "pending", "pending"]);
    assert_eq!((stage.status(other).as_str(), stage.row(all[2]).round), ("failed", 1));
    assert_eq!(task_status(&mut *store, task), TaskStatus::Pending);
    let audited = stage
        .rows(&format!("SELECT target_id FROM {{p}}audit WHERE what = '{}' ORDER BY target_id", ACT.what));
    assert_eq!(audited, [[all[0].to_string()], [all[2].to_string()]], "each of them by itself");
}

pub(super) fn a_cancelled_task_opens_nothing(stage: &Stage) {
    let (task, all, mut store, lease) = three_unknown(stage);
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'failed' WHERE id = {}", all[0]));
    close(&mut *store, lease);
    // Cancelled, whatever it was.
    stage.sql("UPDATE {p}task SET status = 'cancelled'");
    usage(store.requeue(task, None, &ACT));
    usage(store.resolve(task, None, Verdict::Retry, &ACT));
    assert_eq!(all.iter().map(|id| stage.status(*id)).collect::<Vec<_>>(), ["failed", "unknown", "unknown"]);
    // What happened may still be written down.
    assert_eq!(store.resolve(task, None, Verdict::Sent, &ACT).unwrap(), 2);
    assert_eq!(task_status(&mut *store, task), TaskStatus::Cancelled);
}
