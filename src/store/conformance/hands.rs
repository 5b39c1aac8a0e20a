//! In whose hands a target is: claim, begin, release, refuse, recover.

use super::super::*;
use super::stage::*;

pub(super) fn claims_of_two_stores_never_overlap(stage: &Stage) {
    let (task, all) = stage.task(60);
    let mut first = stage.store();
    let lease = ours(&mut *first, task, &terms());
    let claimed: Vec<Vec<TargetId>> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut store = stage.store();
                    let lease = beside(&mut *store, task);
                    let mut mine = Vec::new();
                    loop {
                        let batch = store.claim(&lease, 7).unwrap();
                        if batch.is_empty() {
                            return mine;
                        }
                        mine.extend(ids(&batch));
                    }
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let mut together: Vec<TargetId> = claimed.into_iter().flatten().collect();
    // A claim that skips locked rows may come back empty while others hold them; what it skipped is left for the next.
    together.extend(ids(&first.claim(&lease, 60).unwrap()));
    together.sort_unstable();
    assert_eq!(together, all);
}

pub(super) fn a_claim_takes_at_most_so_many_in_the_order_of_id(stage: &Stage) {
    let (task, all) = stage.task(5);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    assert!(store.claim(&lease, 0).unwrap().is_empty());
    assert_eq!(ids(&store.claim(&lease, 3).unwrap()), all[..3]);
    assert_eq!(ids(&store.claim(&lease, 3).unwrap()), all[3..]);
    let other = stage.task(2);
    let lease = ours(&mut *store, other.0, &terms());
    assert_eq!(ids(&store.claim(&lease, 10).unwrap()), other.1, "targets of another task");
}

pub(super) fn an_empty_task_gives_an_empty_claim(stage: &Stage) {
    let (task, _) = stage.task(0);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    assert!(store.claim(&lease, 10).unwrap().is_empty());
}

pub(super) fn each_claim_has_a_fresh_token(stage: &Stage) {
    let (task, all) = stage.task(1);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let claimed = store.claim(&lease, 1).unwrap();
        assert_eq!(claimed.len(), 1);
        tokens.push(stage.row(all[0]).token.unwrap());
        assert_eq!(store.release(claimed).unwrap(), 1);
        assert_eq!(stage.row(all[0]).token.as_ref(), tokens.last(), "the token stays until the next claim");
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 3);
}

pub(super) fn begin_takes_only_what_bears_our_token(stage: &Stage) {
    let (task, all) = stage.task(2);
    let (mut slow, mut quick) = (stage.store(), stage.store());
    let lease = ours(&mut *slow, task, &terms());
    let stopped = slow.claim(&lease, 2).unwrap();
    // The claim ends under the stopped run, and the first target is claimed and begun by another one.
    stage.end_claims();
    assert_eq!(quick.recover(None).unwrap().pending, 2);
    let rival = beside(&mut *quick, task);
    let flight = begin(&mut *quick, &rival, 1);
    let taken = quick.claim(&rival, 1).unwrap();
    let begun = begin_these(&mut *slow, &lease, stopped);
    assert_eq!(begun.in_flight.len(), 0);
    assert_eq!(begun.fenced, all, "what is not ours any more is told");
    assert_eq!(stage.row(all[0]).attempts, 1);
    assert_eq!((stage.status(all[0]), stage.status(all[1])), ("sending".into(), "processing".into()));
    assert_eq!((flight[0].id(), ids(&taken)), (all[0], vec![all[1]]));
}

pub(super) fn begin_takes_nothing_whose_claim_has_ended(stage: &Stage) {
    let (task, all) = stage.task(1);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let claimed = store.claim(&lease, 1).unwrap();
    stage.end_claims();
    let begun = begin_these(&mut *store, &lease, claimed);
    assert_eq!((begun.in_flight.len(), begun.fenced), (0, all.clone()));
    assert_eq!((stage.status(all[0]).as_str(), stage.row(all[0]).attempts), ("processing", 0));
}

pub(super) fn begin_takes_nothing_whose_status_changed(stage: &Stage) {
    for status in ["pending", "sent", "failed", "unknown"] {
        let (task, all) = stage.task(1);
        let mut store = stage.store();
        let lease = ours(&mut *store, task, &terms());
        let claimed = store.claim(&lease, 1).unwrap();
        // The token is still ours.
        stage.sql(&format!("UPDATE {{p}}task_target SET status = '{status}' WHERE id = {}", all[0]));
        let begun = begin_these(&mut *store, &lease, claimed);
        assert_eq!((begun.in_flight.len(), begun.fenced), (0, all.clone()), "{status}");
        assert_eq!((stage.status(all[0]).as_str(), stage.row(all[0]).attempts), (status, 0));
    }
}

pub(super) fn begin_counts_the_attempt_and_moves_the_end_of_the_claim(stage: &Stage) {
    let (task, all) = stage.task(1);
    let mut store = stage.store();
    let lease =
        ours(&mut *store, task, &Terms { lease: secs(30), send: secs(100), margin: secs(7), ..terms() });
    let claimed = store.claim(&lease, 1).unwrap();
    let claim = stage.row(all[0]).claim_until.unwrap() - stage.now();
    assert!((25_000..=30_000).contains(&claim), "claimed for {claim} ms");
    assert!(
        claimed[0].until() <= Moment::now() + secs(23),
        "our own deadline comes a margin before the database's"
    );
    let begun = begin_these(&mut *store, &lease, claimed);
    let claim = stage.row(all[0]).claim_until.unwrap() - stage.now();
    assert!((102_000..=107_000).contains(&claim), "begun for {claim} ms");
    assert_eq!((stage.row(all[0]).attempts, begun.in_flight[0].attempt()), (1, 1));
    assert!(!begun.in_flight[0].in_doubt());
    assert!(begun.in_flight[0].until() <= Moment::now() + secs(100));
}

pub(super) fn begin_settles_in_the_same_commit(stage: &Stage) {
    let (task, all) = stage.task(3);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let answers: Vec<Answer> =
        begin(&mut *store, &lease, 2).into_iter().map(|flight| flight.answer(task, sent())).collect();
    let next = store.claim(&lease, 1).unwrap().pop().unwrap();
    let begun = store.begin(&lease, vec![ready(next, &lease)], answers).unwrap();
    assert_eq!((begun.in_flight.len(), begun.settled.written, begun.settled.late), (1, 2, 0));
    assert_eq!(all.iter().map(|id| stage.status(*id)).collect::<Vec<_>>(), ["sent", "sent", "sending"]);
}

pub(super) fn release_needs_no_lease_and_gives_back_only_what_was_not_begun(stage: &Stage) {
    let (task, all) = stage.task(3);
    let (mut store, mut thief) = (stage.store(), stage.store());
    let lease = ours(&mut *store, task, &terms());
    let claimed = store.claim(&lease, 2).unwrap();
    stage.end_leases();
    let _theirs = ours(&mut *thief, task, &terms());
    pause(&mut *thief, task);
    stage.sql(&format!("UPDATE {{p}}task_target SET status = 'sending' WHERE id = {}", all[1]));
    assert_eq!(store.release(claimed).unwrap(), 1);
    assert_eq!(all.iter().map(|id| stage.status(*id)).collect::<Vec<_>>(), ["pending", "sending", "pending"]);
    assert_eq!(stage.row(all[0]).attempts, 0);
}

pub(super) fn release_leaves_what_another_run_has_claimed_since(stage: &Stage) {
    let (task, all) = stage.task(1);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let stopped = store.claim(&lease, 1).unwrap();
    stage.end_claims();
    store.recover(None).unwrap();
    let rival = store.claim(&lease, 1).unwrap();
    assert_eq!(store.release(stopped).unwrap(), 0);
    assert_eq!((stage.status(all[0]).as_str(), rival.len()), ("processing", 1));
}

pub(super) fn refused_targets_fail_with_the_reason(stage: &Stage) {
    let (task, all) = stage.task(2);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let reasons = ["no name", "it's \"😀\""];
    let refused = store.claim(&lease, 2).unwrap().into_iter().zip(reasons.map(str::to_owned)).collect();
    assert_eq!(store.refuse(&lease, refused).unwrap(), 2);
    for (id, reason) in all.iter().zip(reasons) {
        let row = stage.row(*id);
        assert_eq!(
            (row.status.as_str(), row.last_error.as_deref(), row.attempts),
            ("failed", Some(reason), 0)
        );
        assert!(row.settled_at.is_some());
    }
    assert_eq!(close(&mut *store, lease), Closed::Finished);
}

pub(super) fn a_refused_target_in_doubt_becomes_unknown(stage: &Stage) {
    let Sending { id, mut store, lease, .. } = stage.sending_under(&keyed());
    stage.end_claims();
    assert_eq!(store.recover(None).unwrap().pending, 1);
    let claimed = store.claim(&lease, 1).unwrap().pop().unwrap();
    assert!(claimed.target().in_doubt);
    assert_eq!(store.refuse(&lease, vec![(claimed, "no name".into())]).unwrap(), 1);
    assert_eq!(stage.status(id), "unknown");
}

pub(super) fn refuse_leaves_what_is_not_ours(stage: &Stage) {
    let (task, all) = stage.task(1);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let claimed = store.claim(&lease, 1).unwrap().pop().unwrap();
    stage.end_claims();
    store.recover(None).unwrap();
    let rival = store.claim(&lease, 1).unwrap();
    assert_eq!(store.refuse(&lease, vec![(claimed, "no name".into())]).unwrap(), 0);
    assert_eq!((stage.status(all[0]).as_str(), rival.len()), ("processing", 1));
}

pub(super) fn recover_gives_back_what_was_claimed_and_not_begun(stage: &Stage) {
    let (task, all) = stage.task(2);
    let mut killed = stage.store();
    let lease = ours(&mut *killed, task, &terms());
    let _ = killed.claim(&lease, 2).unwrap();
    drop(killed);
    stage.end_claims();
    // A careless hand: a claim without an end has ended.
    stage.sql(&format!("UPDATE {{p}}task_target SET claim_until = NULL WHERE id = {}", all[1]));
    let recovered = stage.store().recover(None).unwrap();
    assert_eq!(recovered, Recovered { pending: 2, ..Recovered::default() });
    for id in all {
        assert_eq!((stage.status(id).as_str(), stage.row(id).attempts), ("pending", 0));
    }
    assert_eq!(stage.value("SELECT unknown_run FROM {p}task"), "0");
}

pub(super) fn recover_makes_unknown_what_was_begun(stage: &Stage) {
    let Sending { task, id, store: killed, .. } = stage.sending();
    drop(killed);
    stage.end_claims();
    let mut next = stage.store();
    let recovered = next.recover(None).unwrap();
    assert_eq!(recovered, Recovered { unknown: 1, doubtful: vec![task], ..Recovered::default() });
    let row = stage.row(id);
    assert_eq!((row.status.as_str(), row.attempts), ("unknown", 1));
    assert!(row.last_error.is_some() && row.settled_at.is_some(), "{row:?}");
    assert_eq!(next.recover(None).unwrap(), Recovered::default(), "nothing is recovered twice");
}

pub(super) fn recover_leaves_live_claims_alone(stage: &Stage) {
    let (task, all) = stage.task(2);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &keyed());
    let flight = begin(&mut *store, &lease, 1);
    let claimed = store.claim(&lease, 1).unwrap();
    stage.end_leases();
    let mut other = stage.store();
    assert_eq!(other.recover(None).unwrap(), Recovered::default());
    assert_eq!(other.recover(Some(task)).unwrap(), Recovered::default());
    assert_eq!((stage.status(all[0]), stage.status(all[1])), ("sending".into(), "processing".into()));
    assert_eq!((flight.len(), claimed.len()), (1, 1));
}

pub(super) fn recover_needs_no_lease_and_no_pending_task(stage: &Stage) {
    for case in ["paused", "cancelled", "expired", "leased", "draft"] {
        let (task, all) = stage.task(2);
        let mut killed = stage.store();
        let lease = ours(&mut *killed, task, &terms());
        assert_eq!(begin(&mut *killed, &lease, 1).len(), 1);
        let _ = killed.claim(&lease, 1).unwrap();
        drop(killed);
        let mut desk = stage.store();
        match case {
            "paused" => pause(&mut *desk, task),
            "cancelled" => {
                cancel(&mut *desk, task);
                assert_eq!(desk.task(task).unwrap().unwrap().finished_at, None, "it has targets in flight");
            }
            "expired" => {
                stage.sql(&format!("UPDATE {{p}}task SET expires_at = {} WHERE id = {task}", stage.ago(5)))
            }
            "draft" => stage.sql(&format!("UPDATE {{p}}task SET status = 'draft' WHERE id = {task}")),
            _ => {}
        }
        stage.end_claims();
        let recovered = stage.store().recover(None).unwrap();
        assert_eq!((recovered.pending, recovered.unknown), (1, 1), "{case}");
        assert_eq!(recovered.doubtful, [task], "{case}");
        assert_eq!(
            (stage.status(all[0]), stage.status(all[1])),
            ("unknown".into(), "pending".into()),
            "{case}"
        );
        let over = desk.task(task).unwrap().unwrap().finished_at.is_some();
        assert_eq!(over, case == "cancelled", "{case}");
    }
}

pub(super) fn recover_finds_what_was_claimed_while_its_task_was_cancelled(stage: &Stage) {
    let (task, all) = stage.task(2);
    let mut killed = stage.store();
    let lease = ours(&mut *killed, task, &terms());
    cancel(&mut *stage.store(), task);
    assert!(killed.task(task).unwrap().unwrap().finished_at.is_some(), "nothing was in flight");
    // The run has not heard of it yet.
    let _ = begin(&mut *killed, &lease, 1);
    let _ = killed.claim(&lease, 1).unwrap();
    drop(killed);
    stage.end_claims();
    stage.store().recover(None).unwrap();
    for id in all {
        assert!(["pending", "unknown"].contains(&stage.status(id).as_str()), "{}", stage.status(id));
    }
}

pub(super) fn recover_of_one_task_leaves_the_others(stage: &Stage) {
    let (first, second) = (stage.sending(), stage.sending());
    stage.end_claims();
    let recovered = stage.store().recover(Some(second.task)).unwrap();
    assert_eq!(recovered.doubtful, [second.task]);
    assert_eq!((stage.status(first.id), stage.status(second.id)), ("sending".into(), "unknown".into()));
}

pub(super) fn crashes_count_in_a_row_until_something_is_sent(stage: &Stage) {
    let (task, _) = stage.task(6);
    for crashes in 0..3 {
        let mut killed = stage.store();
        let lease = ours(&mut *killed, task, &terms());
        assert_eq!(lease.unknown_run(), crashes);
        // One crash, however many were in flight.
        assert_eq!(begin(&mut *killed, &lease, 2).len(), 2);
        drop(killed);
        stage.end_claims();
        stage.end_leases();
        assert_eq!(stage.store().recover(None).unwrap().unknown, 2);
    }
    let mut store = stage.store();
    let mut lease = ours(&mut *store, task, &terms());
    assert_eq!(lease.unknown_run(), 3);
    lease.count(&unknown());
    assert_eq!(store.renew(&mut lease).unwrap(), Standing::Ours);
    assert_eq!(stage.value("SELECT unknown_run FROM {p}task"), "4");
    lease.count(&sent());
    close(&mut *store, lease);
    assert_eq!(stage.value("SELECT unknown_run FROM {p}task"), "0");
}

pub(super) fn recover_pauses_what_has_expired(stage: &Stage) {
    let (task, all) = stage.task(1);
    let (other, _) = stage.task(1);
    stage.sql(&format!("UPDATE {{p}}task SET expires_at = {} WHERE id = {task}", stage.ago(1)));
    let mut store = stage.store();
    let recovered = store.recover(None).unwrap();
    let paused: Vec<TaskId> = recovered.expired.iter().map(|(task, _)| *task).collect();
    assert_eq!(paused, [task]);
    let found = store.task(task).unwrap().unwrap();
    assert_eq!(found.status, TaskStatus::Paused);
    assert_eq!(found.status_reason.as_deref(), Some(recovered.expired[0].1.as_str()));
    assert_eq!(task_status(&mut *store, other), TaskStatus::Pending);
    assert_eq!(stage.status(all[0]), "pending");
    assert!(store.recover(None).unwrap().expired.is_empty());
}
