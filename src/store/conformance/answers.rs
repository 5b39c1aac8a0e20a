//! What becomes of an answer: settle in time, late and twice; doubt and the provider's memory.

use super::super::*;
use super::stage::*;

pub(super) fn an_answer_is_written(stage: &Stage) {
    let table = [
        (sent(), "sent", None, Some("receipt")),
        (Settlement::Sent { receipt: None }, "sent", None, None),
        (failed(), "failed", Some("no such address"), None),
        (unknown(), "unknown", Some("no answer"), None),
        (retry(false), "retry", Some("too many"), None),
        (returned(), "pending", Some("not reached"), None),
    ];
    for (settlement, status, error, receipt) in table {
        let Sending { task, id, mut store, flight, .. } = stage.sending();
        let settled = settle(&mut *store, vec![flight.answer(task, settlement)]);
        assert_eq!(settled, Settled { written: 1, ..Settled::default() }, "{status}");
        let row = stage.row(id);
        assert_eq!(
            (row.status.as_str(), row.last_error.as_deref(), row.receipt.as_deref()),
            (status, error, receipt)
        );
        assert_eq!(row.settled_at.is_some(), ["sent", "failed", "unknown"].contains(&status), "{status}");
        assert_eq!(row.retry_at.is_some(), status == "retry", "{status}");
        if let Some(at) = row.retry_at {
            let wait = at - stage.now();
            assert!((50_000..=60_000).contains(&wait), "waits {wait} ms");
        }
    }
}

pub(super) fn settling_twice_is_settling_once(stage: &Stage) {
    for settlement in [sent(), failed(), unknown(), retry(false), returned()] {
        let Sending { task, id, mut store, flight, .. } = stage.sending();
        let answer = flight.answer(task, settlement);
        let copies = vec![again(&answer), again(&answer)];
        settle(&mut *store, vec![answer]);
        let before = stage.row(id);
        // A journal is replayed by another run, perhaps twice.
        let settled = settle(&mut *stage.store(), copies);
        assert_eq!(settled, Settled { written: 2, ..Settled::default() }, "{before:?}");
        assert_eq!(stage.row(id), before);
    }
}

pub(super) fn a_settle_needs_no_lease(stage: &Stage) {
    let Sending { task, id, mut store, lease, flight } = stage.sending();
    stage.end_leases();
    let mut thief = stage.store();
    let theirs = ours(&mut *thief, task, &terms());
    cancel(&mut *thief, task);
    assert_eq!(settle(&mut *store, vec![flight.answer(task, sent())]).written, 1);
    assert_eq!(stage.status(id), "sent");
    assert_eq!(close(&mut *store, lease), Closed::Lost);
    drop(theirs);
}

pub(super) fn an_attempt_that_is_returned_was_none(stage: &Stage) {
    let Sending { task, id, mut store, lease, flight } = stage.sending_under(&keyed());
    let answer = flight.answer(task, returned());
    let copy = again(&answer);
    settle(&mut *store, vec![answer]);
    let row = stage.row(id);
    assert_eq!(
        (row.status.as_str(), row.attempts, row.dedupe_until, row.hashed),
        ("pending", 0, None, false)
    );
    // A copy of it that comes while the next attempt is in flight takes nothing off that one.
    let next = begin(&mut *store, &lease, 1).pop().unwrap();
    assert_eq!(settle(&mut *store, vec![copy]).fenced, [id]);
    assert_eq!((stage.status(id).as_str(), stage.row(id).attempts, next.attempt()), ("sending", 1, 1));
}

pub(super) fn returned_leaves_a_target_alone_that_was_not_begun(stage: &Stage) {
    let (task, all) = stage.task(1);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let claimed = store.claim(&lease, 1).unwrap().pop().unwrap();
    // What a begin gives back when it does not know whether its COMMIT was carried out.
    let answer = Answer { task, id: all[0], token: claimed.token, in_doubt: false, settlement: returned() };
    assert_eq!(settle(&mut *store, vec![answer]), Settled { written: 1, ..Settled::default() });
    assert_eq!(stage.status(all[0]), "processing");
}

pub(super) fn an_answer_of_a_fenced_attempt_changes_nothing_and_is_told(stage: &Stage) {
    for settlement in [failed(), unknown(), retry(false), retry(true), returned()] {
        let Sending { task, id, mut store, lease, flight } = stage.sending();
        stage.end_claims();
        store.recover(None).unwrap();
        store.resolve(task, None, Verdict::Retry, &ACT).unwrap();
        let newer = begin(&mut *store, &lease, 1).pop().unwrap();
        let before = stage.row(id);
        let settled = settle(&mut *store, vec![flight.answer(task, settlement)]);
        assert_eq!(settled, Settled { fenced: vec![id], ..Settled::default() });
        assert_eq!(stage.row(id), before);
        assert_eq!(settle(&mut *store, vec![newer.answer(task, sent())]).written, 1);
    }
}

pub(super) fn an_answer_that_contradicts_a_person_is_told(stage: &Stage) {
    for settlement in [failed(), unknown(), retry(false), returned()] {
        let Sending { task, id, mut store, flight, .. } = stage.sending();
        stage.end_claims();
        assert_eq!(stage.store().resolve(task, None, Verdict::Sent, &ACT).unwrap(), 1);
        let settled = settle(&mut *store, vec![flight.answer(task, settlement)]);
        assert_eq!(settled, Settled { fenced: vec![id], ..Settled::default() });
        assert_eq!(stage.status(id), "sent", "a person said so");
    }
}

pub(super) fn without_a_key_a_retry_in_doubt_becomes_unknown(stage: &Stage) {
    let Sending { task, id, mut store, flight, .. } = stage.sending();
    settle(&mut *store, vec![flight.answer(task, retry(true))]);
    assert_eq!(stage.status(id), "unknown");
}

pub(super) fn answers_of_several_claims_do_not_cross(stage: &Stage) {
    let (task, all) = stage.task(2);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let first = begin(&mut *store, &lease, 1).pop().unwrap();
    let second = begin(&mut *store, &lease, 1).pop().unwrap();
    // The first is fenced: its target is in flight under a token that this group of answers has, too, elsewhere.
    stage.sql(&format!(
        "UPDATE {{p}}task_target SET cron_token = '{}' WHERE id = {}",
        stage.row(all[1]).token.unwrap(),
        all[0]
    ));
    let settled = settle(&mut *store, vec![first.answer(task, failed()), second.answer(task, failed())]);
    assert_eq!((settled.written, settled.fenced), (1, vec![all[0]]));
    assert_eq!((stage.status(all[0]), stage.status(all[1])), ("sending".into(), "failed".into()));
}

pub(super) fn late_answers_settle_what_recover_gave_up(stage: &Stage) {
    let table = [
        (sent(), "sent", None),
        (failed(), "failed", Some(ANSWERED_LATE)),
        (returned(), "failed", Some(ANSWERED_LATE)),
        (retry(false), "failed", Some(ANSWERED_LATE)),
    ];
    for (settlement, status, error) in table {
        let Sending { task, id, mut store, flight, .. } = stage.sending();
        stage.end_claims();
        assert_eq!(stage.store().recover(None).unwrap().unknown, 1);
        let answer = flight.answer(task, settlement);
        let copy = again(&answer);
        let settled = settle(&mut *store, vec![answer]);
        assert_eq!(settled, Settled { written: 1, late: 1, ..Settled::default() }, "{status}");
        let row = stage.row(id);
        assert_eq!((row.status.as_str(), row.last_error.as_deref(), row.attempts), (status, error, 1));
        assert!(row.settled_at.is_some() && row.retry_at.is_none());
        assert_eq!(
            settle(&mut *store, vec![copy]),
            Settled { written: 1, ..Settled::default() },
            "once more"
        );
        assert_eq!(stage.row(id), row);
    }
}

pub(super) fn a_late_not_accepted_leaves_doubt_unknown(stage: &Stage) {
    for settlement in [failed(), returned(), retry(true), unknown()] {
        let Sending { task, id, mut store, lease, flight: lost } = stage.sending_under(&keyed());
        drop(lost);
        stage.end_claims();
        assert_eq!(store.recover(None).unwrap().pending, 1);
        let flight = begin(&mut *store, &lease, 1).pop().unwrap();
        assert!(flight.in_doubt());
        stage.age("dedupe_until", None, 1);
        stage.end_claims();
        assert_eq!(store.recover(None).unwrap().unknown, 1);
        let before = stage.row(id);
        let settled = settle(&mut *store, vec![flight.answer(task, settlement)]);
        assert_eq!((settled.fenced, settled.duplicates), (vec![], vec![]));
        assert_eq!(stage.row(id), before);
    }
}

pub(super) fn a_late_answer_that_knows_nothing_changes_nothing(stage: &Stage) {
    for settlement in [unknown(), retry(true)] {
        let Sending { task, id, mut store, flight, .. } = stage.sending();
        stage.end_claims();
        store.recover(None).unwrap();
        let before = stage.row(id);
        let settled = settle(&mut *store, vec![flight.answer(task, settlement)]);
        assert_eq!((settled.fenced, settled.duplicates), (vec![], vec![]));
        assert_eq!(stage.row(id), before);
    }
}

pub(super) fn accepted_wins_from_failed_pending_and_retry(stage: &Stage) {
    for case in ["failed", "resolved", "requeued", "recovered", "retry"] {
        let Sending { task, id, mut store, flight, .. } =
            stage.sending_under(&if case == "recovered" { keyed() } else { terms() });
        let answer = flight.answer(task, sent());
        if case == "retry" {
            // Two answers to one attempt: the timeout was told first.
            let first = Answer { settlement: retry(false), ..again(&answer) };
            settle(&mut *store, vec![first]);
        } else {
            stage.end_claims();
            store.recover(None).unwrap();
        }
        let status = match case {
            "failed" => {
                store.resolve(task, None, Verdict::Failed, &ACT).unwrap();
                "failed"
            }
            "requeued" => {
                store.resolve(task, None, Verdict::Failed, &ACT).unwrap();
                store.requeue(task, None, &ACT).unwrap();
                "pending"
            }
            "resolved" => {
                store.resolve(task, None, Verdict::Retry, &ACT).unwrap();
                "pending"
            }
            "recovered" => "pending",
            _ => "retry",
        };
        assert_eq!(stage.status(id), status, "{case}");
        let settled = settle(&mut *store, vec![again(&answer)]);
        assert_eq!((settled.written, settled.duplicates.len(), settled.fenced.len()), (1, 0, 0), "{case}");
        let row = stage.row(id);
        assert_eq!(
            (row.status.as_str(), row.receipt.as_deref(), row.retry_at),
            ("sent", Some("receipt"), None),
            "{case}"
        );
        assert!(
            store.claim(&beside(&mut *stage.store(), task), 1).unwrap().is_empty(),
            "{case}: it is not sent again"
        );
    }
}

pub(super) fn accepted_under_another_token_is_an_audited_duplicate(stage: &Stage) {
    for status in ["processing", "sending", "sent", "failed", "unknown", "pending"] {
        let Sending { task, id, mut store, flight, .. } = stage.sending();
        // Another run has had it since.
        stage.sql(&format!(
            "UPDATE {{p}}task_target SET cron_token = '{}', status = '{status}' WHERE id = {id}",
            Uuid::new_v4()
        ));
        let before = stage.row(id);
        let audits = stage.audits("duplicate");
        let answer = flight.answer(task, sent());
        let copy = again(&answer);
        let settled = settle(&mut *store, vec![answer]);
        assert_eq!(settled, Settled { duplicates: vec![id], ..Settled::default() }, "{status}");
        assert_eq!(stage.row(id), before, "{status}");
        assert_eq!(stage.audits("duplicate"), audits + 1, "{status}");
        settle(&mut *store, vec![copy]);
        assert_eq!(stage.audits("duplicate"), audits + 1, "{status}: one contradiction is audited once");
    }
    let who =
        stage.rows("SELECT DISTINCT who FROM {p}audit WHERE what = 'duplicate' AND target_id IS NOT NULL");
    assert_eq!(who, [["batch-send"]]);
}

pub(super) fn an_answer_for_a_target_that_is_gone_is_fenced_and_an_acceptance_is_audited(stage: &Stage) {
    let Sending { task, id, mut store, flight, .. } = stage.sending();
    stage.sql("DELETE FROM {p}task_target");
    let answer = flight.answer(task, failed());
    let accepted = Answer { settlement: sent(), ..again(&answer) };
    let settled = settle(&mut *store, vec![answer]);
    assert_eq!(settled, Settled { fenced: vec![id], ..Settled::default() });
    // An application that deletes a target while it is sent may insert it again, and the message goes out twice.
    let settled = settle(&mut *store, vec![accepted]);
    assert_eq!(settled, Settled { duplicates: vec![id], ..Settled::default() });
    assert_eq!(stage.audits("duplicate"), 1);
}

pub(super) fn a_late_answer_keeps_a_finished_task_finished_and_its_counts_true(stage: &Stage) {
    for (settlement, status) in
        [(sent(), "sent"), (failed(), "failed"), (returned(), "failed"), (retry(false), "failed")]
    {
        let Sending { task, id, mut store, lease, flight } = stage.sending();
        stage.end_claims();
        assert_eq!(store.recover(None).unwrap().unknown, 1);
        assert_eq!(close(&mut *store, lease), Closed::Finished);
        let counts = |store: &mut dyn Store| store.tasks(Some(task), false).unwrap().pop().unwrap().1;
        assert_eq!(counts(&mut *store), Counts { unknown: 1, ..Counts::default() });
        settle(&mut *store, vec![flight.answer(task, settlement)]);
        assert_eq!(stage.status(id), status);
        assert_eq!(task_status(&mut *store, task), TaskStatus::Finished);
        let expected = if status == "sent" {
            Counts { sent: 1, ..Counts::default() }
        } else {
            Counts { failed: 1, ..Counts::default() }
        };
        assert_eq!(counts(&mut *store), expected);
        assert_eq!(store.recover(None).unwrap(), Recovered::default());
    }
}

pub(super) fn the_window_does_not_slide(stage: &Stage) {
    let Sending { id, mut store, lease, .. } = stage.sending_under(&keyed());
    let first = stage.row(id);
    let window = first.dedupe_until.unwrap() - stage.now();
    assert!((86_390_000..=86_400_000).contains(&window), "{window}");
    assert!(first.hashed);
    stage.age("dedupe_until", None, -3_600);
    let window = stage.row(id).dedupe_until;
    for _ in 0..2 {
        stage.end_claims();
        assert_eq!(store.recover(None).unwrap().pending, 1);
        assert_eq!(begin(&mut *store, &lease, 1).len(), 1);
        assert_eq!(stage.row(id).dedupe_until, window, "it counts from the first begin in doubt");
    }
}

pub(super) fn the_window_is_checked_at_begin(stage: &Stage) {
    let Sending { id, mut store, lease, .. } = stage.sending_under(&keyed());
    stage.end_claims();
    assert_eq!(store.recover(None).unwrap().pending, 1);
    let claimed = store.claim(&lease, 1).unwrap();
    // Still open, but not until the end of a send (10 s and a margin of 2 s).
    stage.age("dedupe_until", None, -8);
    let begun = begin_these(&mut *store, &lease, claimed);
    assert_eq!((begun.in_flight.len(), begun.unknown), (0, vec![id]));
    let row = stage.row(id);
    assert_eq!((row.status.as_str(), row.attempts), ("unknown", 1));
    assert!(row.last_error.is_some() && row.settled_at.is_some());
}

pub(super) fn doubt_is_remembered_over_a_deferral(stage: &Stage) {
    let Sending { task, id, mut store, lease, flight } = stage.sending_under(&keyed());
    let window = stage.row(id).dedupe_until;
    // No answer came; then one that proves nothing of the first.
    settle(&mut *store, vec![flight.answer(task, retry(true))]);
    for settlement in [retry(true), returned()] {
        stage.end_waits();
        store.promote(&lease).unwrap();
        let flight = begin(&mut *store, &lease, 1).pop().unwrap();
        assert!(flight.in_doubt());
        settle(&mut *store, vec![flight.answer(task, settlement)]);
        assert_eq!((stage.row(id).dedupe_until, stage.row(id).hashed), (window, true));
    }
}

pub(super) fn certainty_ends_the_window(stage: &Stage) {
    for settlement in [retry(false), returned(), failed()] {
        let Sending { task, id, mut store, flight, .. } = stage.sending_under(&keyed());
        assert!(stage.row(id).dedupe_until.is_some());
        settle(&mut *store, vec![flight.answer(task, settlement)]);
        assert_eq!((stage.row(id).dedupe_until, stage.row(id).hashed), (None, false), "{}", stage.status(id));
    }
}

pub(super) fn a_message_that_differs_is_not_sent_in_doubt(stage: &Stage) {
    let Sending { id, mut store, lease, .. } = stage.sending_under(&keyed());
    stage.end_claims();
    store.recover(None).unwrap();
    let claimed = store.claim(&lease, 1).unwrap().pop().unwrap();
    let edited = Ready { hash: Some([8; 16]), ..ready(claimed, &lease) };
    let begun = store.begin(&lease, vec![edited], Vec::new()).unwrap();
    assert_eq!((begun.in_flight.len(), begun.unknown), (0, vec![id]));
    assert_eq!(stage.status(id), "unknown");
}

pub(super) fn without_a_key_nothing_in_doubt_is_sent(stage: &Stage) {
    let Sending { task, id, mut store, lease, .. } = stage.sending_under(&keyed());
    stage.end_claims();
    store.recover(None).unwrap();
    drop(lease);
    stage.end_leases();
    // The other host's configuration says nothing of keys.
    let plain = ours(&mut *store, task, &terms());
    let claimed = store.claim(&plain, 1).unwrap();
    let begun = begin_these(&mut *store, &plain, claimed);
    assert_eq!((begun.in_flight.len(), begun.unknown), (0, vec![id]));
    assert_eq!(stage.status(id), "unknown");
}

pub(super) fn recover_repeats_only_inside_the_window(stage: &Stage) {
    // Begun without a key: whatever the configuration says since, it is unknown.
    let plain = stage.sending();
    let inside = stage.sending_under(&keyed());
    let outside = stage.sending_under(&keyed());
    stage.age("dedupe_until", Some(outside.id), 1);
    stage.end_claims();
    let mut recovered = stage.store().recover(None).unwrap();
    recovered.doubtful.sort_unstable();
    assert_eq!((recovered.pending, recovered.unknown), (1, 2));
    assert_eq!(recovered.doubtful, [plain.task, outside.task]);
    let states = [plain.id, inside.id, outside.id].map(|id| stage.status(id));
    assert_eq!(states, ["unknown", "pending", "unknown"]);
    assert!(stage.row(inside.id).dedupe_until.is_some(), "it is still in doubt");
}

pub(super) fn any_text_survives_a_settle(stage: &Stage) {
    let texts = ["it's \"😀\"\r\n\\ %_ ; -- '", "a\0b", &"é😀".repeat(400), "\u{202e}\u{feff}tail   ", ""];
    for text in texts {
        let (task, all) = stage.task(2);
        let mut store = stage.store();
        let lease = ours(&mut *store, task, &Terms { owner: text.into(), ..terms() });
        let mut flights = begin(&mut *store, &lease, 2).into_iter();
        let mut answer = |settlement| flights.next().unwrap().answer(task, settlement);
        let answers = vec![
            answer(Settlement::Sent { receipt: Some(text.into()) }),
            answer(Settlement::Failed { reason: text.into() }),
        ];
        assert_eq!(settle(&mut *store, answers).written, 2);
        let fits = |most| text.replace('\0', "").chars().take(most).collect::<String>();
        assert_eq!(stage.row(all[0]).receipt, Some(fits(RECEIPT_MOST)));
        assert_eq!(stage.row(all[1]).last_error, Some(fits(REASON_MOST)));
        assert!(store.pause(&lease, text).unwrap());
        assert_eq!(store.task(task).unwrap().unwrap().status_reason, Some(fits(REASON_MOST)));
    }
}
