//! What is removed for good: ended tasks, in steps, and nothing that came to them meanwhile.

use super::super::*;
use super::stage::*;
use crate::trouble::{Kind, Trouble};

const DAY: Duration = Duration::from_secs(86_400);

/// Ended two days ago: all of its targets are sent.
fn ended(stage: &Stage, targets: usize) -> (TaskId, Vec<TargetId>) {
    let (task, all) = stage.task(targets);
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'sent' WHERE task_id = {task}"));
    ends(stage, task, "finished", 2 * 86_400);
    (task, all)
}

fn ends(stage: &Stage, task: TaskId, status: &str, seconds: i64) {
    let at = stage.ago(seconds);
    stage.sql(&format!(
        "UPDATE {{p}}task SET status = '{status}', finished_at = {at}, lock_token = NULL, lock_until = NULL WHERE id = {task}"
    ));
}

fn becomes(stage: &Stage, target: TargetId, status: &str) {
    let retry_at = if status == "retry" { stage.ago(-60) } else { "NULL".into() };
    stage.sql(&format!(
        "UPDATE {{p}}task_target SET status = '{status}', retry_at = {retry_at} WHERE id = {target}"
    ));
}

fn condemn(store: &mut dyn Store, task: TaskId, with_unknown: bool) -> Option<Stays> {
    store.condemn(task, DAY, with_unknown, &Act { what: PURGE, ..ACT }).unwrap()
}

/// Step by step to the end, and how many targets went before it.
fn purge(store: &mut dyn Store, task: TaskId, with_unknown: bool) -> (u64, Purged) {
    let (mut gone, mut after) = (0, 0);
    loop {
        match store.purge(task, DAY, with_unknown, after).unwrap() {
            Purged::Some(number, last) => {
                assert!(number <= PURGED_MOST as u64, "{number} in one step");
                gone += number;
                after = last;
            }
            end => return (gone, end),
        }
    }
}

fn targets(stage: &Stage, task: TaskId) -> u64 {
    stage.value(&format!("SELECT count(*) FROM {{p}}task_target WHERE task_id = {task}")).parse().unwrap()
}

pub(super) fn only_what_ended_long_ago_is_purged(stage: &Stage) {
    let mut store = stage.store();
    let (old, _) = ended(stage, 1);
    let (cancelled, _) = stage.task(1);
    ends(stage, cancelled, "cancelled", 2 * 86_400);
    let (late, _) = ended(stage, 1);
    ends(stage, late, "finished", 86_400 - 60);
    let mut others = vec![late];
    for status in ["draft", "pending", "paused"] {
        // Its end is left from before it was opened again.
        let (task, _) = ended(stage, 1);
        ends(stage, task, status, 2 * 86_400);
        others.push(task);
    }
    let (in_flight, _) = stage.task(1);
    stage.sql(&format!("UPDATE {{p}}task SET status = 'cancelled' WHERE id = {in_flight}"));
    others.push(in_flight);
    let held = ended(stage, 1).0;
    let until = stage.ago(-60);
    let before: Vec<TaskId> = store.ended(DAY).unwrap().iter().map(|task| task.id).collect();
    assert_eq!(before, [old, cancelled, held]);
    stage.sql(&format!(
        "UPDATE {{p}}task SET lock_token = 'x', lock_owner = 'y', lock_at = {until}, lock_until = {until} WHERE id = {held}"
    ));
    others.push(held);
    let audits = stage.audits(PURGE);
    for task in others {
        assert_eq!(condemn(&mut *store, task, true), Some(Stays::NotEnded), "task {task}");
        assert_eq!(store.purge(task, DAY, true, 0).unwrap(), Purged::Stays(Stays::NotEnded), "task {task}");
    }
    assert_eq!(condemn(&mut *store, 999_999, true), Some(Stays::Gone));
    assert_eq!(stage.audits(PURGE), audits, "nothing happened");
    // Without a condemnation nothing goes of a finished one.
    assert_eq!(store.purge(old, DAY, true, 0).unwrap(), Purged::Stays(Stays::NotEnded));
    assert_eq!((targets(stage, old), task_status(&mut *store, old)), (1, TaskStatus::Finished));
}

pub(super) fn a_purge_takes_a_task_whole_and_leaves_the_others(stage: &Stage) {
    let mut store = stage.store();
    let (task, first) = ended(stage, 3_000);
    let (other, others) = ended(stage, 3);
    // Its own are on both sides of another's.
    store.add(other, &[recipient("x")]).unwrap();
    let more: Vec<NewTarget> = (0..1_500).map(|n| recipient(&format!("more{n}"))).collect();
    store.add(task, &more).unwrap();
    stage
        .sql(&format!("UPDATE {{p}}task_target SET status = 'failed' WHERE task_id = {task} AND id % 3 = 0"));
    stage.sql(&format!(
        "UPDATE {{p}}task_target SET status = 'sent' WHERE status = 'pending' AND task_id = {task}"
    ));
    ends(stage, task, "finished", 2 * 86_400);
    for what in ["resolve", "duplicate"] {
        stage.sql(&format!(
            "INSERT INTO {{p}}audit (who, what, task_id, target_id) VALUES ('ann', '{what}', {task}, {}), ('ann', '{what}', {other}, 7)",
            first[0]
        ));
    }
    assert_eq!(condemn(&mut *store, task, false), None);
    assert_eq!(purge(&mut *store, task, false), (4_500, Purged::Whole));
    assert_eq!((targets(stage, task), store.task(task).unwrap().map(|task| task.id)), (0, None));
    assert_eq!(targets(stage, other), 4);
    assert_eq!(stage.status(others[0]), "sent");
    let kept = stage.rows(&format!("SELECT who, what, why FROM {{p}}audit WHERE task_id = {task}"));
    assert_eq!(kept, [["ann@desk", PURGE, "she knows"]], "who removed it is told for ever");
    assert_eq!(stage.value(&format!("SELECT count(*) FROM {{p}}audit WHERE task_id = {other}")), "3");
    assert_eq!(condemn(&mut *store, task, false), Some(Stays::Gone));
    assert_eq!(store.purge(task, DAY, false, 0).unwrap(), Purged::Stays(Stays::Gone));
}

pub(super) fn unknown_targets_keep_their_task_unless_they_are_meant(stage: &Stage) {
    let mut store = stage.store();
    for status in ["finished", "cancelled"] {
        let (task, all) = ended(stage, 3);
        becomes(stage, all[1], "unknown");
        ends(stage, task, status, 2 * 86_400);
        assert_eq!(condemn(&mut *store, task, false), Some(Stays::Unknown), "{status}");
        assert_eq!(stage.value(&format!("SELECT status FROM {{p}}task WHERE id = {task}")), status);
        assert_eq!(targets(stage, task), 3);
        assert_eq!(condemn(&mut *store, task, true), None);
        // Said of the first step, and not of this one.
        assert_eq!(purge(&mut *store, task, false), (2, Purged::Stays(Stays::Unknown)));
        assert_eq!(stage.status(all[1]), "unknown");
        assert_eq!(store.resolve(task, None, Verdict::Sent, &ACT).unwrap(), 1, "it may still be settled");
        becomes(stage, all[1], "unknown");
        assert_eq!(purge(&mut *store, task, true), (1, Purged::Whole));
    }
}

pub(super) fn a_condemned_task_is_opened_by_nobody(stage: &Stage) {
    let mut store = stage.store();
    let (task, all) = ended(stage, 3);
    becomes(stage, all[0], "failed");
    becomes(stage, all[1], "unknown");
    assert_eq!(condemn(&mut *store, task, true), None);
    let found = store.task(task).unwrap().unwrap();
    assert_eq!((found.status, found.status_reason.as_deref()), (TaskStatus::Cancelled, Some(PURGING)));
    assert!(found.finished_at.is_some(), "its end stays");
    let usage = |done: anyhow::Error| assert_eq!(Trouble::kind_of(&done), Some(Kind::Usage), "{done:#}");
    // Whose row is gone already would be new.
    usage(store.add(task, &[recipient("r3")]).unwrap_err());
    usage(store.requeue(task, None, &ACT).unwrap_err());
    usage(store.requeue(task, Some(&all[..1]), &ACT).unwrap_err());
    usage(store.resolve(task, None, Verdict::Retry, &ACT).unwrap_err());
    for beside in [false, true] {
        closed(store.lease(task, &terms(), beside).unwrap());
    }
    stage.sql(&format!("INSERT INTO {{p}}task_target (task_id, recipient) VALUES ({task}, 'late')"));
    assert!(store.due(&[CHANNEL], &[]).unwrap().is_none());
    assert_eq!(store.recover(None).unwrap(), Recovered::default());
    assert_eq!(store.recover(Some(task)).unwrap(), Recovered::default());
    assert_eq!(task_status(&mut *store, task), TaskStatus::Cancelled);
}

pub(super) fn what_is_opened_before_a_purge_is_left_alone(stage: &Stage) {
    let mut store = stage.store();
    let (task, _) = ended(stage, 2);
    store.add(task, &[recipient("new")]).unwrap();
    assert_eq!(condemn(&mut *store, task, true), Some(Stays::NotEnded));
    // Behind our back, so that it still reads as finished.
    let (task, _) = ended(stage, 2);
    stage.sql(&format!("INSERT INTO {{p}}task_target (task_id, recipient) VALUES ({task}, 'new')"));
    assert_eq!(condemn(&mut *store, task, true), Some(Stays::Open));
    assert_eq!((targets(stage, task), task_status(&mut *store, task)), (3, TaskStatus::Finished));
}

pub(super) fn what_comes_while_a_task_is_purged_stays(stage: &Stage) {
    let mut store = stage.store();
    let (task, _) = ended(stage, 3);
    assert_eq!(condemn(&mut *store, task, true), None);
    stage.sql(&format!("INSERT INTO {{p}}task_target (task_id, recipient) VALUES ({task}, 'late')"));
    assert_eq!(purge(&mut *store, task, true), (3, Purged::Stays(Stays::Open)));
    let left = stage.rows(&format!("SELECT recipient, status FROM {{p}}task_target WHERE task_id = {task}"));
    assert_eq!(left, [["late", "pending"]]);
    assert_eq!(condemn(&mut *store, task, true), Some(Stays::Open), "nor does the next one take it");
}

pub(super) fn a_task_that_is_opened_by_hand_while_it_is_purged_loses_no_more(stage: &Stage) {
    let mut store = stage.store();
    let (task, all) = ended(stage, 2_500);
    assert_eq!(condemn(&mut *store, task, true), None);
    let step = store.purge(task, DAY, true, 0).unwrap();
    assert_eq!(step, Purged::Some(PURGED_MOST as u64, all[PURGED_MOST - 1]));
    stage.sql(&format!("UPDATE {{p}}task SET status = 'pending', finished_at = NULL WHERE id = {task}"));
    let step = store.purge(task, DAY, true, all[PURGED_MOST - 1]).unwrap();
    assert_eq!(step, Purged::Stays(Stays::NotEnded));
    assert_eq!(targets(stage, task), 500);
}

pub(super) fn a_cancelled_task_goes_with_what_was_not_sent(stage: &Stage) {
    let mut store = stage.store();
    let (task, all) = stage.task(5);
    for (id, status) in all.iter().zip(["sent", "pending", "retry", "retry", "sending"]) {
        becomes(stage, *id, status);
    }
    ends(stage, task, "cancelled", 2 * 86_400);
    assert_eq!(condemn(&mut *store, task, false), Some(Stays::Open), "one may be on its way");
    becomes(stage, all[4], "failed");
    assert_eq!(condemn(&mut *store, task, false), None);
    assert_eq!(purge(&mut *store, task, false), (5, Purged::Whole));
}

pub(super) fn a_purge_that_was_killed_is_gone_on_with(stage: &Stage) {
    let (task, all) = ended(stage, 2_500);
    let mut killed = stage.store();
    assert_eq!(condemn(&mut *killed, task, true), None);
    assert!(matches!(killed.purge(task, DAY, true, 0).unwrap(), Purged::Some(..)));
    drop(killed);
    let mut store = stage.store();
    assert_eq!(store.ended(DAY).unwrap().iter().map(|task| task.id).collect::<Vec<_>>(), [task]);
    assert_eq!(condemn(&mut *store, task, true), None);
    assert_eq!(purge(&mut *store, task, true), ((all.len() - PURGED_MOST) as u64, Purged::Whole));
    assert_eq!(stage.audits(PURGE), 1, "told once, with the counts of the whole");
}

pub(super) fn a_purge_waits_for_what_is_about_to_be_committed(stage: &Stage) {
    // On SQLite nothing is about to be committed while somebody else writes.
    if stage.on_sqlite() {
        return;
    }
    let (task, _) = ended(stage, 2);
    assert_eq!(condemn(&mut *stage.store(), task, true), None);
    stage.sql("START TRANSACTION");
    stage.sql(&format!("INSERT INTO {{p}}task_target (task_id, recipient) VALUES ({task}, 'late')"));
    let done = std::thread::scope(|scope| {
        let purging = scope.spawn(|| purge(&mut *stage.store(), task, true));
        // Seen at work each of many times: what does not wait is over at once.
        let waits = "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%{p}task_target%FOR UPDATE'";
        let mut seen = 0;
        while !purging.is_finished() && seen < 20 {
            seen = if stage.value(waits) == "0" { 0 } else { seen + 1 };
            std::thread::sleep(Duration::from_millis(2));
        }
        stage.sql("COMMIT");
        purging.join().unwrap()
    });
    assert_eq!(done, (2, Purged::Stays(Stays::Open)));
    assert_eq!(targets(stage, task), 1);
}

pub(super) fn a_purge_locks_nothing_of_another_task(stage: &Stage) {
    let (task, _) = ended(stage, 3_000);
    let mut store = stage.store();
    let (other, all) = stage.task(3);
    let more: Vec<NewTarget> = (0..500).map(|n| recipient(&format!("more{n}"))).collect();
    stage.sql(&format!("UPDATE {{p}}task SET status = 'pending' WHERE id = {task}"));
    store.add(task, &more).unwrap();
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'sent' WHERE task_id = {task}"));
    ends(stage, task, "finished", 2 * 86_400);
    let lease = ours(&mut *store, other, &terms());
    let flight = begin(&mut *store, &lease, 1);
    if !stage.on_sqlite() {
        // Somebody works on the other task, in a transaction that stays open.
        stage.sql("START TRANSACTION");
        stage.sql(&format!("SELECT id FROM {{p}}task WHERE id = {other} FOR UPDATE"));
        stage.sql(&format!("UPDATE {{p}}task_target SET last_error = 'x' WHERE task_id = {other}"));
    }
    let began = Moment::now();
    assert_eq!(condemn(&mut *store, task, false), None);
    assert_eq!(purge(&mut *store, task, false), (3_500, Purged::Whole));
    // A lock wait lasts 5 s before it is given up.
    assert!(began.elapsed() < secs(5), "it waited for another task's rows: {:?}", began.elapsed());
    if !stage.on_sqlite() {
        stage.sql("ROLLBACK");
    }
    settle(&mut *store, flight.into_iter().map(|flight| flight.answer(other, sent())).collect());
    assert_eq!(stage.status(all[0]), "sent");
}
