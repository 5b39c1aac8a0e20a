//! What `status` is told, beside tasks and their counts: how tasks move, and the details of one.

use super::super::*;
use super::stage::*;
use crate::course::{Course, RECENT_MOST};

fn course(store: &mut dyn Store, task: TaskId) -> Option<Course> {
    let mut all = store.courses(None).unwrap();
    let one = store.courses(Some(task)).unwrap();
    assert!(one.of.keys().all(|id| *id == task), "of one alone: {one:?}");
    assert_eq!(
        one.of.get(&task).map(|course| course.pending),
        all.of.get(&task).map(|course| course.pending)
    );
    all.of.remove(&task)
}

/// Seconds between a time and the stage's now, about.
fn seconds_ago(stage: &Stage, at: Option<DateTime<Utc>>) -> i64 {
    (stage.now() - at.unwrap().timestamp_millis() + 500) / 1000
}

pub(super) fn a_course_tells_since_when_something_is_due(stage: &Stage) {
    let (task, all) = stage.task(3);
    let mut store = stage.store();
    stage.sql(&format!("UPDATE {{p}}task SET created_at = {}", stage.ago(3_600)));
    let found = course(&mut *store, task).unwrap();
    assert!(found.pending && found.retry_at.is_none());
    let now = store.courses(None).unwrap().now;
    let due = |store: &mut dyn Store| seconds_ago(stage, course(store, task).unwrap().due_since(now));
    assert!((3_599..=3_630).contains(&due(&mut *store)), "{}", due(&mut *store));
    stage.sql(&format!("UPDATE {{p}}task SET scheduled_at = {}", stage.ago(600)));
    assert!((599..=630).contains(&due(&mut *store)), "{}", due(&mut *store));
    // Nothing but retries: the first that has come, not the next.
    for (id, ago) in all.iter().zip([-60, 30, 120]) {
        stage.sql(&format!(
            "UPDATE {{p}}task_target SET status = 'retry', retry_at = {} WHERE id = {id}",
            stage.ago(ago)
        ));
    }
    let found = course(&mut *store, task).unwrap();
    assert!(!found.pending && (119..=150).contains(&seconds_ago(stage, found.retry_at)), "{found:?}");
    stage.sql("DELETE FROM {p}task_target");
    let found = course(&mut *store, task).unwrap();
    assert_eq!((found.pending, found.retry_at, found.due_since(now)), (false, None, None));
    for status in ["draft", "paused", "finished", "cancelled"] {
        stage.sql(&format!("UPDATE {{p}}task SET status = '{status}'"));
        assert_eq!(course(&mut *store, task), None, "{status}");
    }
}

pub(super) fn a_course_tells_who_was_started_resumed_or_paused_since(stage: &Stage) {
    let (task, _) = stage.draft(1);
    let mut store = stage.store();
    stage.sql(&format!("UPDATE {{p}}task SET created_at = {}", stage.ago(3_600)));
    let ready = |store: &mut dyn Store| seconds_ago(stage, Some(course(store, task).unwrap().ready_since));
    // By an application, with plain SQL: nobody wrote down when.
    stage.sql("UPDATE {p}task SET status = 'pending'");
    assert!(ready(&mut *store) >= 3_599);
    for what in ["start", "resume"] {
        stage.sql("DELETE FROM {p}audit");
        let act = Act { what, ..ACT };
        stage.sql("UPDATE {p}task SET status = 'draft', halt_at = NULL");
        store.turn(task, &[TaskStatus::Draft], TaskStatus::Pending, None, Expiry::Keep, &act).unwrap();
        assert!(ready(&mut *store) < 60, "{what}");
    }
    stage.sql("DELETE FROM {p}audit");
    assert!(ready(&mut *store) >= 3_599);
    // Paused by a person, and set going again by an application.
    pause(&mut *store, task);
    stage.sql("UPDATE {p}task SET status = 'pending'");
    stage.sql("DELETE FROM {p}audit");
    assert!(ready(&mut *store) < 60);
}

pub(super) fn a_course_tells_a_lease_that_was_lost_and_who_is_at_work(stage: &Stage) {
    let (task, _) = stage.task(2);
    let mut store = stage.store();
    let found = store.courses(None).unwrap();
    assert!((found.now.timestamp_millis() - stage.now()).abs() < 10_000);
    assert_eq!((found.at_work, &found.of[&task].lost, found.of[&task].served_at), (None, &None, None));
    stage.sql(&format!("UPDATE {{p}}task SET priority = -3 WHERE id = {task}"));
    let lease = ours(&mut *store, task, &terms());
    let _claimed = store.claim(&lease, 1).unwrap();
    assert_eq!(
        (course(&mut *store, task).unwrap().lost, store.courses(None).unwrap().at_work),
        (None, Some(-3))
    );
    stage.end_leases();
    // Whatever became of the task meanwhile.
    for status in ["pending", "paused", "cancelled"] {
        stage.sql(&format!("UPDATE {{p}}task SET status = '{status}'"));
        let found = store.courses(None).unwrap();
        let lost = found.of[&task].lost.as_ref().unwrap();
        assert_eq!((lost.owner.as_str(), found.at_work), ("host 1", None));
        assert!(seconds_ago(stage, Some(lost.at)) < 60);
    }
    stage.sql("UPDATE {p}task SET status = 'pending'");
    let lease = ours(&mut *store, task, &terms());
    close(&mut *store, lease);
    let found = course(&mut *store, task).unwrap();
    assert_eq!(found.lost, None, "it was given back");
    assert!(seconds_ago(stage, found.served_at) < 60);
}

pub(super) fn a_course_tells_what_the_channel_lets_through(stage: &Stage) {
    let (task, _) = stage.task(1);
    let mut store = stage.store();
    assert_eq!(course(&mut *store, task).unwrap().gate, crate::course::Gate::default());
    stage.next_slot(CHANNEL, 600);
    let gate = course(&mut *store, task).unwrap().gate;
    assert!((-601..=-570).contains(&seconds_ago(stage, gate.next_slot)) && gate.held_until.is_none());
    let hold = Hold { asked: None, first: secs(10), most: secs(1_000) };
    store.hold(CHANNEL, &hold).unwrap();
    stage.sql(&format!("UPDATE {{p}}pace SET held_until = {}", stage.micros_ago(1)));
    store.hold(CHANNEL, &hold).unwrap();
    let gate = course(&mut *store, task).unwrap().gate;
    assert!(gate.held_until.is_some());
    assert_eq!(gate.holds, 2);
}

pub(super) fn a_rate_is_told_of_what_a_run_holds(stage: &Stage) {
    let (task, all) = stage.task(30);
    let mut store = stage.store();
    stage.sql(&format!("UPDATE {{p}}audit SET at = {}", stage.ago(3_600)));
    stage.sql(&format!("UPDATE {{p}}task SET created_at = {}", stage.ago(3_600)));
    let lease = ours(&mut *store, task, &terms());
    stage.sql(&format!("UPDATE {{p}}task SET started_at = {}", stage.ago(3_600)));
    let sent = |ids: &[TargetId], ago: i64| {
        stage.sql(&format!(
            "UPDATE {{p}}task_target SET status = 'sent', settled_at = {} WHERE id >= {} AND id <= {}",
            stage.ago(ago),
            ids[0],
            ids[ids.len() - 1]
        ));
    };
    let recent = |store: &mut dyn Store| course(store, task).unwrap().recent;
    assert_eq!(recent(&mut *store).unwrap().sent, 0);
    sent(&all[..10], 90);
    sent(&all[10..22], 30);
    let found = recent(&mut *store).unwrap();
    assert_eq!((found.sent, found.within), (12, secs(60)), "of the last minute");
    // As many as are looked for: since the oldest of them.
    let many: Vec<NewTarget> = (0..RECENT_MOST + 500).map(|n| recipient(&format!("s{n}"))).collect();
    store.add(task, &many).unwrap();
    stage.sql(&format!(
        "UPDATE {{p}}task_target SET status = 'sent', settled_at = {} WHERE status = 'pending'",
        stage.ago(10)
    ));
    let found = recent(&mut *store).unwrap();
    assert_eq!(found.sent, RECENT_MOST);
    assert!((10..40).contains(&found.within.as_secs()), "{found:?}");
    close(&mut *store, lease);
    assert!(course(&mut *store, task).is_none_or(|course| course.recent.is_none()), "nobody holds it");
}

pub(super) fn details_of_a_task_add_up(stage: &Stage) {
    let (task, all) = stage.task(8);
    let (other, _) = stage.task(2);
    let mut store = stage.store();
    stage.sql("UPDATE {p}task_target SET attempts = 1");
    for (id, attempts) in all.iter().zip([0, 2, 5]) {
        stage.sql(&format!("UPDATE {{p}}task_target SET attempts = {attempts} WHERE id = {id}"));
    }
    stage.sql(&format!(
        "UPDATE {{p}}task_target SET status = 'unknown', send_at = {}, last_error = 'cut off' WHERE id > {}",
        stage.ago(60),
        all[1]
    ));
    for exact in [false, true] {
        let details = store.details(task, exact).unwrap();
        assert_eq!(details.attempts, Some(Attempts { all: 12, repeated: 2 }));
        let unknown: Vec<TargetId> = details.unknown.iter().map(|row| row.id).collect();
        assert_eq!(unknown, all[2..2 + DETAILED], "the first");
        let first = &details.unknown[0];
        assert_eq!((first.recipient.as_str(), first.last_error.as_deref()), ("r3", Some("cut off")));
        assert!(seconds_ago(stage, first.send_at) >= 59);
    }
    let details = store.details(other, false).unwrap();
    assert_eq!((details.attempts, details.reasons.len()), (Some(Attempts { all: 2, repeated: 0 }), 1));
    let nothing = store.details(999_999, false).unwrap();
    assert_eq!((nothing.attempts, nothing.audits), (Some(Attempts::default()), 0));
}

pub(super) fn details_tell_the_commonest_reasons(stage: &Stage) {
    let (task, all) = stage.task(16);
    let mut store = stage.store();
    let set = |ids: &[TargetId], status: &str, reason: &str| {
        let retry_at = if status == "retry" { stage.ago(0) } else { "NULL".into() };
        stage.sql(&format!(
            "UPDATE {{p}}task_target SET status = '{status}', retry_at = {retry_at}, last_error = '{reason}' \
             WHERE id >= {} AND id <= {}",
            ids[0],
            ids[ids.len() - 1]
        ));
    };
    set(&all[0..3], "failed", "no such user");
    set(&all[3..4], "unknown", "no such user");
    set(&all[4..6], "retry", "too many");
    // Given back, to be sent when the channel is there again.
    set(&all[6..9], "pending", "refused");
    for (n, id) in all[9..13].iter().enumerate() {
        set(&[*id], "failed", &format!("{n}, seldom"));
    }
    // An error of before: it was sent.
    set(&all[13..16], "sent", "of before");
    let reasons = store.details(task, false).unwrap().reasons;
    let found: Vec<(&str, u64)> = reasons.iter().map(|(reason, number)| (reason.as_str(), *number)).collect();
    assert_eq!(
        found,
        [("no such user", 4), ("refused", 3), ("too many", 2), ("0, seldom", 1), ("1, seldom", 1)]
    );
}

pub(super) fn details_tell_the_latest_of_the_audit(stage: &Stage) {
    let (task, all) = stage.task(1);
    let (other, _) = stage.draft(1);
    let mut store = stage.store();
    let act = |what: &'static str| Act { who: "ann@desk", what, why: None };
    for _ in 0..2 {
        store
            .turn(task, &[TaskStatus::Pending], TaskStatus::Paused, None, Expiry::Keep, &act("pause"))
            .unwrap();
        store
            .turn(task, &[TaskStatus::Paused], TaskStatus::Pending, None, Expiry::Keep, &act("resume"))
            .unwrap();
    }
    stage.sql("UPDATE {p}task_target SET status = 'unknown'");
    store.resolve(task, Some(&all), Verdict::Sent, &ACT).unwrap();
    let details = store.details(task, false).unwrap();
    let whats: Vec<&str> = details.audit.iter().map(|line| line.what.as_str()).collect();
    assert_eq!(whats, ["test", "resume", "pause", "resume", "pause"]);
    assert_eq!(details.audits, 6, "and the start");
    let latest = &details.audit[0];
    assert_eq!(
        (latest.who.as_str(), latest.target, latest.why.as_deref()),
        ("ann@desk", Some(all[0]), Some("she knows"))
    );
    assert!(seconds_ago(stage, Some(latest.at)) < 60);
    assert_eq!(details.audit[1].target, None);
    assert_eq!(store.details(other, false).unwrap().audits, 0);
}
