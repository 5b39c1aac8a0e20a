//! What waits and what is in doubt, as metrics show it.

use super::super::*;
use super::stage::*;

fn seen(stage: &Stage) -> Backlog {
    let mut backlog = stage.store().backlog().unwrap();
    assert!(backlog.len() <= 1, "{backlog:?}");
    backlog.pop().unwrap_or_default()
}

pub(super) fn the_backlog_is_what_could_be_sent_now(stage: &Stage) {
    assert_eq!(seen(stage), Backlog::default());
    stage.draft(3);
    let (early, _) = stage.task(3);
    stage.sql(&format!("UPDATE {{p}}task SET scheduled_at = {} WHERE id = {early}", stage.ago(-60)));
    let (late, _) = stage.task(3);
    stage.sql(&format!("UPDATE {{p}}task SET expires_at = {} WHERE id = {late}", stage.ago(1)));
    let (halted, _) = stage.task(3);
    pause(&mut *stage.store(), halted);
    assert_eq!(seen(stage), Backlog::default());

    let (task, ids) = stage.task(5);
    stage.sql(&format!("UPDATE {{p}}task SET created_at = {} WHERE id = {task}", stage.ago(500)));
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'sent' WHERE id = {}", ids[0]));
    let due = format!("retry_at = {}", stage.ago(900));
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'retry', {due} WHERE id = {}", ids[1]));
    let later = format!("retry_at = {}", stage.ago(-900));
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'retry', {later} WHERE id = {}", ids[2]));
    let backlog = seen(stage);
    assert_eq!((backlog.channel.as_str(), backlog.targets, backlog.unknown), (CHANNEL, 3, 0));
    assert!((899..960).contains(&backlog.oldest.as_secs()), "{backlog:?}");
    stage.sql(&format!("UPDATE {{p}}task SET scheduled_at = {} WHERE id = {task}", stage.ago(100)));
    stage.sql(&format!("DELETE FROM {{p}}task_target WHERE id = {}", ids[1]));
    let backlog = seen(stage);
    assert!(backlog.targets == 2 && (99..160).contains(&backlog.oldest.as_secs()), "{backlog:?}");
}

pub(super) fn what_is_in_doubt_is_counted_in_every_task_until_it_is_resolved(stage: &Stage) {
    let mut store = stage.store();
    let (task, _) = stage.task(3);
    let lease = ours(&mut *store, task, &terms());
    let answers = begin(&mut *store, &lease, 3).into_iter().map(|flight| flight.answer(task, unknown()));
    settle(&mut *store, answers.collect());
    assert_eq!(seen(stage), Backlog { channel: CHANNEL.into(), unknown: 3, ..Backlog::default() });
    // What close froze says the same, and what a person says of one is seen.
    assert_eq!(close(&mut *store, lease), Closed::Finished);
    assert_eq!(seen(stage).unknown, 3);
    let (id, open) = (stage.value("SELECT min(id) FROM {p}task_target").parse().unwrap(), stage.draft(1).0);
    store.resolve(task, Some(&[id]), Verdict::Sent, &ACT).unwrap();
    assert_eq!(seen(stage).unknown, 2);
    cancel(&mut *store, open);
    store.resolve(task, None, Verdict::Failed, &ACT).unwrap();
    assert_eq!(seen(stage), Backlog::default());
}

pub(super) fn a_large_backlog_is_estimated(stage: &Stage) {
    let (task, ids) = stage.task(4000);
    let backlog = seen(stage).targets;
    assert!((1001..=8000).contains(&backlog), "{backlog}");
    let half = ids[2000];
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'sent' WHERE task_id = {task} AND id < {half}"));
    let backlog = seen(stage).targets;
    assert!((1001..=6000).contains(&backlog), "{backlog}");
    let few = ids[3990];
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'sent' WHERE task_id = {task} AND id < {few}"));
    assert_eq!(seen(stage).targets, 10);
}
