//! Whose turn a task is and when it is over: lease, due, promote, hold, strays, pause, close.

use super::super::*;
use super::stage::*;
use crate::trouble::{Kind, Trouble};

pub(super) fn the_second_taker_is_told_who_holds(stage: &Stage) {
    let (task, _) = stage.task(1);
    let (mut first, mut second) = (stage.store(), stage.store());
    let lease = ours(&mut *first, task, &terms());
    assert!(
        lease.token.is_some() && lease.until() <= Moment::now() + secs(28),
        "a margin before the database's end"
    );
    match second.lease(task, &Terms { owner: "host 2".into(), ..terms() }, false).unwrap() {
        Leasing::Held { owner, token } => {
            assert_eq!(owner, "host 1");
            assert_eq!(token, stage.value("SELECT lock_token FROM {p}task"));
        }
        other => panic!("{other:?}"),
    }
    let holder = second.task(task).unwrap().unwrap().lease.unwrap();
    assert_eq!((holder.owner.as_str(), (holder.until - holder.since).num_seconds()), ("host 1", 30));
    assert_eq!(close(&mut *first, lease), Closed::Open);
    assert!(second.task(task).unwrap().unwrap().lease.is_none());
    let _lease = ours(&mut *second, task, &terms());
}

pub(super) fn a_lease_is_taken_after_its_end_and_its_holder_is_told(stage: &Stage) {
    let (task, _) = stage.task(1);
    let (mut slow, mut quick) = (stage.store(), stage.store());
    let mut lease = ours(&mut *slow, task, &terms());
    stage.end_leases();
    // Nobody took it yet: it can still be renewed.
    assert_eq!(slow.renew(&mut lease).unwrap(), Standing::Ours);
    assert!(matches!(quick.lease(task, &terms(), false).unwrap(), Leasing::Held { .. }));
    stage.end_leases();
    let mut theirs = ours(&mut *quick, task, &terms());
    let token = stage.value("SELECT lock_token FROM {p}task");
    assert_eq!(slow.renew(&mut lease).unwrap(), Standing::Lost);
    assert!(!slow.pause(&lease, "too late").unwrap());
    assert_eq!(close(&mut *slow, lease), Closed::Lost);
    assert_eq!(stage.value("SELECT lock_token FROM {p}task"), token);
    assert_eq!(quick.renew(&mut theirs).unwrap(), Standing::Ours);
}

pub(super) fn a_lease_taken_at_the_same_moment_goes_to_one(stage: &Stage) {
    for _ in 0..5 {
        let (task, _) = stage.task(1);
        let gate = std::sync::Barrier::new(3);
        let leased = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut store = stage.store();
                        gate.wait();
                        matches!(store.lease(task, &terms(), false).unwrap(), Leasing::Ours(_))
                    })
                })
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).filter(|ours| *ours).count()
        });
        assert_eq!(leased, 1);
    }
}

pub(super) fn pause_cancel_and_expiry_halt_a_lease(stage: &Stage) {
    for case in ["pause", "cancel", "expiry", "gone", "plain SQL"] {
        let (task, _) = stage.task(1);
        let (mut run, mut desk) = (stage.store(), stage.store());
        let mut lease = ours(&mut *run, task, &terms());
        assert_eq!(run.renew(&mut lease).unwrap(), Standing::Ours);
        match case {
            "pause" => pause(&mut *desk, task),
            "cancel" => cancel(&mut *desk, task),
            "expiry" => {
                stage.sql(&format!("UPDATE {{p}}task SET expires_at = {} WHERE id = {task}", stage.ago(1)))
            }
            "gone" => stage.sql(&format!("DELETE FROM {{p}}task WHERE id = {task}")),
            _ => stage.sql(&format!("UPDATE {{p}}task SET status = 'paused' WHERE id = {task}")),
        }
        assert_eq!(run.renew(&mut lease).unwrap(), Standing::Halted, "{case}");
    }
}

pub(super) fn a_pause_and_resume_in_between_halts_too(stage: &Stage) {
    let (task, _) = stage.task(1);
    let (mut run, mut desk) = (stage.store(), stage.store());
    let mut lease = ours(&mut *run, task, &terms());
    pause(&mut *desk, task);
    resume(&mut *desk, task);
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Halted);
    close(&mut *run, lease);
    // And whoever comes next is not stopped by it.
    let mut lease = ours(&mut *run, task, &terms());
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Ours);
}

/// Brings a task of its own into a state in which it is not to be worked on.
fn shut(stage: &Stage, case: &str) -> TaskId {
    let (task, _) = stage.draft(1);
    let mut desk = stage.store();
    if case != "draft" {
        start(&mut *desk, task);
    }
    let set = |what: String| stage.sql(&format!("UPDATE {{p}}task SET {what} WHERE id = {task}"));
    match case {
        "paused" => pause(&mut *desk, task),
        "cancelled" => cancel(&mut *desk, task),
        "finished" => set(format!("status = 'finished', finished_at = {}", stage.ago(7_200))),
        "expired" => set(format!("expires_at = {}", stage.ago(1))),
        "early" => set(format!("scheduled_at = {}", stage.ago(-60))),
        "held" => {
            set("channel = 'held'".into());
            desk.hold("held", &Hold { asked: Some(secs(60)), first: secs(1), most: secs(1) }).unwrap();
        }
        _ => {}
    }
    task
}

pub(super) fn a_task_that_is_not_to_be_worked_on_says_why(stage: &Stage) {
    let mut store = stage.store();
    for case in ["draft", "paused", "cancelled", "finished", "expired", "early", "held"] {
        let task = shut(stage, case);
        let why = closed(store.lease(task, &terms(), false).unwrap());
        assert!(!why.is_empty());
        assert!(store.task(task).unwrap().unwrap().lease.is_none(), "{case}");
    }
    closed(store.lease(999_999, &terms(), false).unwrap());
    closed(store.lease(999_999, &terms(), true).unwrap());
}

pub(super) fn force_passes_the_holder_the_schedule_and_a_standing_pause_and_nothing_else(stage: &Stage) {
    let mut store = stage.store();
    let (held, _) = stage.task(1);
    let _holder = ours(&mut *stage.store(), held, &terms());
    for task in [held, shut(stage, "early"), shut(stage, "paused")] {
        let mut lease = beside(&mut *store, task);
        assert!(lease.token.is_none());
        assert_eq!(begin(&mut *store, &lease, 1).len(), 1);
        assert_eq!(store.renew(&mut lease).unwrap(), Standing::Ours);
    }
    for case in ["draft", "cancelled", "finished", "expired", "held"] {
        let task = shut(stage, case);
        closed(store.lease(task, &terms(), true).unwrap());
    }
}

pub(super) fn force_is_stopped_by_a_pause_after_its_start(stage: &Stage) {
    let (mut run, mut desk) = (stage.store(), stage.store());
    let (task, _) = stage.task(1);
    let mut lease = beside(&mut *run, task);
    pause(&mut *desk, task);
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Halted);
    // It may pass the pause that stands, and is stopped by the next one.
    let mut lease = beside(&mut *run, task);
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Ours);
    resume(&mut *desk, task);
    pause(&mut *desk, task);
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Halted);
    // Nobody has to resume it for that: who pauses what is paused means the one that goes on all the same.
    let mut lease = beside(&mut *run, task);
    let from = [TaskStatus::Pending, TaskStatus::Paused];
    assert_eq!(turn(&mut *desk, task, &from, TaskStatus::Paused), Turned::From(TaskStatus::Paused));
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Halted);
    // An application may pause without a word in halt_at.
    resume(&mut *desk, task);
    let mut lease = beside(&mut *run, task);
    stage.sql("UPDATE {p}task SET status = 'paused'");
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Halted);
    let mut lease = beside(&mut *run, task);
    cancel(&mut *desk, task);
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Halted);
}

pub(super) fn force_never_closes_and_takes_nothing_from_the_holder(stage: &Stage) {
    let Sending { task, store: mut run, mut lease, flight, .. } = stage.sending();
    let mut forced = stage.store();
    let mut second = beside(&mut *forced, task);
    settle(&mut *run, vec![flight.answer(task, sent())]);
    assert_eq!(forced.renew(&mut second).unwrap(), Standing::Ours);
    assert_eq!(close(&mut *forced, second), Closed::Open);
    assert_eq!(task_status(&mut *forced, task), TaskStatus::Pending);
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Ours);
    assert_eq!(close(&mut *run, lease), Closed::Finished);
}

pub(super) fn no_lease_on_a_schema_of_another_version(stage: &Stage) {
    let (task, _) = stage.task(1);
    let mut store = stage.store();
    // Migrated under a run that goes on.
    for version in [0, 7_000] {
        stage.schema_is_at(version);
        for beside in [false, true] {
            let error = store.lease(task, &terms(), beside).unwrap_err();
            assert_eq!(Trouble::kind_of(&error), Some(Kind::Usage), "{error:#}");
        }
    }
}

pub(super) fn due_goes_by_priority_then_by_the_least_recently_served(stage: &Stage) {
    let mut store = stage.store();
    let tasks: Vec<TaskId> = (0..4).map(|_| stage.task(1).0).collect();
    stage.sql(&format!("UPDATE {{p}}task SET priority = 5 WHERE id = {}", tasks[3]));
    stage.sql(&format!("UPDATE {{p}}task SET priority = -5 WHERE id = {}", tasks[2]));
    stage.sql(&format!("UPDATE {{p}}task SET served_at = {} WHERE id = {}", stage.ago(60), tasks[0]));
    let mut alone = Vec::new();
    let mut order = Vec::new();
    while let Some(task) = store.due(&[CHANNEL], &alone).unwrap() {
        order.push(task.id);
        alone.push(task.id);
    }
    assert_eq!(order, [tasks[3], tasks[1], tasks[0], tasks[2]], "never served comes first among equals");
    // Its turn came to nothing: it stays where it was.
    let mut lease = ours(&mut *store, tasks[1], &terms());
    lease.pass_turn();
    close(&mut *store, lease);
    assert_eq!(stage.store().due(&[CHANNEL], &[tasks[3]]).unwrap().unwrap().id, tasks[1]);
    // Served: its turn is over, whoever comes next.
    let lease = ours(&mut *store, tasks[1], &terms());
    close(&mut *store, lease);
    assert_eq!(stage.store().due(&[CHANNEL], &[tasks[3]]).unwrap().unwrap().id, tasks[0]);
}

pub(super) fn due_skips_what_is_not_to_be_worked_on(stage: &Stage) {
    let mut store = stage.store();
    for case in ["draft", "paused", "cancelled", "finished", "expired", "early", "held"] {
        shut(stage, case);
        assert!(store.due(&[CHANNEL, "held"], &[]).unwrap().is_none(), "{case}");
    }
    let (task, _) = stage.task(1);
    assert_eq!(store.due(&[CHANNEL], &[]).unwrap().unwrap().id, task);
    assert!(store.due(&[CHANNEL], &[task]).unwrap().is_none(), "left alone");
    assert!(store.due(&["other"], &[]).unwrap().is_none(), "unknown channel");
    assert!(store.due(&[], &[]).unwrap().is_none());
    let lease = ours(&mut *store, task, &terms());
    assert!(stage.store().due(&[CHANNEL], &[]).unwrap().is_none(), "held by a run");
    stage.end_leases();
    assert!(stage.store().due(&[CHANNEL], &[]).unwrap().is_some(), "its lease ended");
    drop(lease);
}

pub(super) fn due_skips_tasks_with_nothing_to_do_now(stage: &Stage) {
    let Sending { task, mut store, lease, flight, .. } = stage.sending();
    close(&mut *store, lease);
    assert!(store.due(&[CHANNEL], &[]).unwrap().is_none(), "all in flight");
    settle(&mut *store, vec![flight.answer(task, retry(false))]);
    assert!(store.due(&[CHANNEL], &[]).unwrap().is_none(), "all waiting");
    stage.end_waits();
    assert_eq!(store.due(&[CHANNEL], &[]).unwrap().unwrap().id, task, "a retry has come");
}

pub(super) fn due_finds_what_only_needs_closing(stage: &Stage) {
    let Sending { task, mut store, lease, flight, .. } = stage.sending();
    settle(&mut *store, vec![flight.answer(task, sent())]);
    // Killed before its close.
    drop(lease);
    stage.end_leases();
    assert_eq!(store.due(&[CHANNEL], &[]).unwrap().unwrap().id, task);
    let lease = ours(&mut *store, task, &terms());
    assert_eq!(close(&mut *store, lease), Closed::Finished);
    assert!(store.due(&[CHANNEL], &[]).unwrap().is_none());
}

pub(super) fn promote_takes_only_what_is_due(stage: &Stage) {
    let (task, all) = stage.task(3);
    let other = stage.task(1);
    let mut store = stage.store();
    for (task, most) in [(task, 3), (other.0, 1)] {
        let lease = ours(&mut *store, task, &terms());
        let answers = begin(&mut *store, &lease, most)
            .into_iter()
            .map(|flight| flight.answer(task, retry(false)))
            .collect();
        settle(&mut *store, answers);
        close(&mut *store, lease);
    }
    for id in [all[0], all[2], other.1[0]] {
        stage.age("retry_at", Some(id), 1);
    }
    let lease = ours(&mut *store, task, &terms());
    assert_eq!(store.promote(&lease).unwrap(), 2);
    assert_eq!(store.promote(&lease).unwrap(), 0);
    assert_eq!(all.iter().map(|id| stage.status(*id)).collect::<Vec<_>>(), ["pending", "retry", "pending"]);
    assert_eq!(stage.row(all[0]).retry_at, None);
    assert_eq!(stage.status(other.1[0]), "retry", "of another task");
    assert_eq!(store.claim(&lease, 1).unwrap()[0].target().attempts, 1);
}

fn see(stage: &Stage) -> Vec<Stray> {
    stage.store().strays(&["other"]).unwrap()
}

fn stray(task: TaskId, paused: bool) -> Stray {
    Stray { task, channel: CHANNEL.into(), paused }
}

fn let_patience_pass(stage: &Stage) {
    stage.sql(&format!("UPDATE {{p}}audit SET at = {} WHERE what = 'unserved'", stage.ago(601)));
}

pub(super) fn a_stray_is_paused_when_nobody_served_it_for_long(stage: &Stage) {
    let (task, _) = stage.task(1);
    shut(stage, "draft");
    shut(stage, "early");
    assert_eq!(stage.store().strays(&[CHANNEL]).unwrap(), []);
    assert_eq!(see(stage), [stray(task, false)]);
    assert_eq!(see(stage), [stray(task, false)]);
    assert_eq!(stage.audits("unserved"), 1, "seen first, remembered once");
    let_patience_pass(stage);
    assert_eq!(see(stage), [stray(task, true)]);
    let found = stage.store().task(task).unwrap().unwrap();
    assert_eq!(found.status, TaskStatus::Paused);
    assert!(found.status_reason.unwrap().contains(CHANNEL));
    assert_eq!(see(stage), []);
}

pub(super) fn a_stray_that_is_served_elsewhere_is_never_paused(stage: &Stage) {
    let (task, _) = stage.task(1);
    see(stage);
    let_patience_pass(stage);
    let mut elsewhere = stage.store();
    let lease = ours(&mut *elsewhere, task, &terms());
    assert_eq!(see(stage), [], "a run holds it");
    close(&mut *elsewhere, lease);
    assert_eq!(see(stage), [stray(task, false)]);
    assert_eq!(task_status(&mut *elsewhere, task), TaskStatus::Pending);
}

pub(super) fn a_stray_that_was_resumed_is_waited_for_anew(stage: &Stage) {
    let (task, _) = stage.task(1);
    see(stage);
    let_patience_pass(stage);
    assert_eq!(see(stage), [stray(task, true)]);
    resume(&mut *stage.store(), task);
    assert_eq!(see(stage), [stray(task, false)]);
}

pub(super) fn pause_needs_the_lease(stage: &Stage) {
    let (task, _) = stage.task(1);
    let (mut run, mut forced) = (stage.store(), stage.store());
    let mut lease = ours(&mut *run, task, &terms());
    lease.count(&unknown());
    assert!(run.pause(&lease, "five in a row").unwrap());
    let found = run.task(task).unwrap().unwrap();
    assert_eq!((found.status, found.status_reason.as_deref()), (TaskStatus::Paused, Some("five in a row")));
    assert_eq!(stage.value("SELECT unknown_run FROM {p}task"), "1");
    assert_eq!(run.renew(&mut lease).unwrap(), Standing::Halted);
    assert!(!run.pause(&lease, "again").unwrap());
    close(&mut *run, lease);
    resume(&mut *run, task);
    // Beside a holder: while it is pending.
    let holder = ours(&mut *run, task, &terms());
    let second = beside(&mut *forced, task);
    assert!(forced.pause(&second, "refused").unwrap());
    assert!(!forced.pause(&second, "refused").unwrap());
    drop(holder);
}

pub(super) fn a_late_close_does_not_undo_a_resume(stage: &Stage) {
    let (task, _) = stage.task(1);
    let mut run = stage.store();
    let mut lease = ours(&mut *run, task, &terms());
    lease.count(&unknown());
    assert!(run.pause(&lease, "five in a row").unwrap());
    // A person looks into it while the run still waits for what is in flight.
    resume(&mut *stage.store(), task);
    close(&mut *run, lease);
    assert_eq!(stage.value("SELECT unknown_run FROM {p}task"), "0");
    assert_eq!(task_status(&mut *run, task), TaskStatus::Pending);
}

pub(super) fn close_finishes_only_what_has_nothing_open(stage: &Stage) {
    for status in ["pending", "processing", "sending", "retry", "sent", "failed", "unknown"] {
        let (task, all) = stage.task(2);
        let mut store = stage.store();
        let retry_at = if status == "retry" { stage.ago(-60) } else { "NULL".into() };
        stage.sql(&format!("UPDATE {{p}}task_target SET status = 'sent' WHERE id = {}", all[0]));
        stage.sql(&format!(
            "UPDATE {{p}}task_target SET status = '{status}', retry_at = {retry_at} WHERE id = {}",
            all[1]
        ));
        let lease = ours(&mut *store, task, &terms());
        let over = ["sent", "failed", "unknown"].contains(&status);
        assert_eq!(close(&mut *store, lease), if over { Closed::Finished } else { Closed::Open }, "{status}");
        let found = store.task(task).unwrap().unwrap();
        assert_eq!(found.status == TaskStatus::Finished, over, "{status}");
        assert_eq!(found.finished_at.is_some(), over, "{status}");
        assert!(found.lease.is_none() && found.started_at.is_some(), "{status}");
    }
}

pub(super) fn close_without_the_lease_does_nothing(stage: &Stage) {
    let Sending { task, mut store, lease, flight, .. } = stage.sending();
    settle(&mut *store, vec![flight.answer(task, sent())]);
    stage.end_leases();
    let mut thief = stage.store();
    let theirs = ours(&mut *thief, task, &terms());
    assert_eq!(close(&mut *store, lease), Closed::Lost);
    assert_eq!(task_status(&mut *store, task), TaskStatus::Pending);
    assert_eq!(close(&mut *thief, theirs), Closed::Finished);
}

pub(super) fn close_of_a_paused_task_leaves_it_paused(stage: &Stage) {
    let Sending { task, mut store, lease, flight, .. } = stage.sending();
    settle(&mut *store, vec![flight.answer(task, sent())]);
    pause(&mut *stage.store(), task);
    assert_eq!(close(&mut *store, lease), Closed::Open);
    let found = store.task(task).unwrap().unwrap();
    assert_eq!((found.status, found.finished_at), (TaskStatus::Paused, None));
    assert!(found.lease.is_none());
}

/// A task of two, one sent, and one that a person could make open.
fn nearly_done(stage: &Stage, settlement: Settlement) -> (TaskId, Box<dyn Store>, Lease) {
    let (task, _) = stage.task(2);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let answers = begin(&mut *store, &lease, 2)
        .into_iter()
        .zip([sent(), settlement])
        .map(|(flight, settlement)| flight.answer(task, settlement))
        .collect();
    settle(&mut *store, answers);
    (task, store, lease)
}

fn make_open(desk: &mut dyn Store, task: TaskId, how: &str) {
    match how {
        "add" => assert_eq!(desk.add(task, &[recipient("new")]).unwrap().new, 1),
        "resolve" => assert_eq!(desk.resolve(task, None, Verdict::Retry, &ACT).unwrap(), 1),
        _ => assert_eq!(desk.requeue(task, None, &ACT).unwrap().changed, 1),
    }
}

fn settlement_for(how: &str) -> Settlement {
    if how == "requeue" { failed() } else { unknown() }
}

pub(super) fn what_is_made_open_before_a_close_keeps_it_open(stage: &Stage) {
    for how in ["add", "resolve", "requeue"] {
        let (task, mut store, lease) = nearly_done(stage, settlement_for(how));
        make_open(&mut *stage.store(), task, how);
        assert_eq!(close(&mut *store, lease), Closed::Open, "{how}");
        assert_eq!(task_status(&mut *store, task), TaskStatus::Pending, "{how}");
    }
}

pub(super) fn what_is_made_open_after_a_close_reopens_it(stage: &Stage) {
    for how in ["add", "resolve", "requeue"] {
        let (task, mut store, lease) = nearly_done(stage, settlement_for(how));
        assert_eq!(close(&mut *store, lease), Closed::Finished, "{how}");
        make_open(&mut *stage.store(), task, how);
        let found = store.task(task).unwrap().unwrap();
        assert_eq!((found.status, found.finished_at), (TaskStatus::Pending, None), "{how}");
        let (_, counts) = store.tasks(Some(task), false).unwrap().pop().unwrap();
        assert_eq!((counts.sent, counts.pending), (1, 1), "{how}: what close froze is not true any more");
        assert_eq!(store.due(&[CHANNEL], &[]).unwrap().unwrap().id, task, "{how}");
        cancel(&mut *store, task);
    }
}

pub(super) fn close_and_requeue_at_once_lose_nothing(stage: &Stage) {
    for _ in 0..20 {
        let (task, mut store, lease) = nearly_done(stage, failed());
        let gate = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut desk = stage.store();
                gate.wait();
                assert_eq!(desk.requeue(task, None, &ACT).unwrap().changed, 1);
            });
            gate.wait();
            close(&mut *store, lease);
        });
        assert_eq!(task_status(&mut *store, task), TaskStatus::Pending, "an open target in a finished task");
    }
}

pub(super) fn a_target_committed_after_the_close_is_found(stage: &Stage) {
    let (task, mut store, lease) = nearly_done(stage, failed());
    assert_eq!(close(&mut *store, lease), Closed::Finished);
    assert_eq!(store.recover(None).unwrap(), Recovered::default());
    // An application's transaction that was open while the task was closed.
    stage.sql(&format!("INSERT INTO {{p}}task_target (task_id, recipient) VALUES ({task}, 'late')"));
    let recovered = store.recover(None).unwrap();
    assert_eq!(recovered, Recovered { reopened: vec![task], ..Recovered::default() });
    let found = store.task(task).unwrap().unwrap();
    assert_eq!((found.status, found.finished_at), (TaskStatus::Pending, None));
    let (_, counts) = store.tasks(Some(task), false).unwrap().pop().unwrap();
    assert_eq!((counts.total(), counts.pending), (3, 1));
}

pub(super) fn a_target_added_long_after_the_close_is_shown_and_found_when_asked_for(stage: &Stage) {
    let (task, mut store, lease) = nearly_done(stage, failed());
    assert_eq!(close(&mut *store, lease), Closed::Finished);
    stage.sql(&format!("UPDATE {{p}}task SET finished_at = {}", stage.ago(7200)));
    stage.sql(&format!("INSERT INTO {{p}}task_target (task_id, recipient) VALUES ({task}, 'late')"));
    assert_eq!(
        store.recover(None).unwrap(),
        Recovered::default(),
        "a run does not look at all that ever finished"
    );
    for (only, exact, pending) in [(None, false, 0), (None, true, 1), (Some(task), false, 1)] {
        let (_, counts) = store.tasks(only, exact).unwrap().pop().unwrap();
        assert_eq!(counts.pending, pending, "only {only:?}, exact {exact}");
    }
    let recovered = store.recover(Some(task)).unwrap();
    assert_eq!(recovered, Recovered { reopened: vec![task], ..Recovered::default() });
}

pub(super) fn a_task_without_targets_is_waited_for_then_paused(stage: &Stage) {
    let (task, _) = stage.task(0);
    let mut store = stage.store();
    assert_eq!(store.due(&[CHANNEL], &[]).unwrap().unwrap().id, task);
    let lease = ours(&mut *store, task, &terms());
    assert_eq!(close(&mut *store, lease), Closed::Open, "its targets may still come");
    assert_eq!(task_status(&mut *store, task), TaskStatus::Pending);
    let ago = stage.ago(601);
    stage.sql(&format!("UPDATE {{p}}task SET created_at = {ago}, started_at = {ago}, served_at = {ago}"));
    let lease = ours(&mut *store, task, &terms());
    let Closed::Paused(reason) = close(&mut *store, lease) else { panic!("not paused") };
    let found = store.task(task).unwrap().unwrap();
    assert_eq!((found.status, found.status_reason), (TaskStatus::Paused, Some(reason)));
    assert!(found.lease.is_none() && found.finished_at.is_none());
}
