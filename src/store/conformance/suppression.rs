//! Who gets nothing: suppressions are heeded by begin, at the last moment, and kept by an operator or an application.

use super::super::*;
use super::stage::*;
use crate::trouble::{Kind, Trouble};

fn entry(recipient: &str, channel: Option<&str>) -> Suppression {
    let channel = channel.map(str::to_owned);
    Suppression { recipient: recipient.into(), channel, reason: None, since: None }
}

fn suppress(store: &mut dyn Store, recipient: &str) {
    assert_eq!(store.suppress(&[entry(recipient, None)], &ACT).unwrap(), Added { new: 1, repeated: 0 });
}

/// A started task for these recipients.
fn task_for(stage: &Stage, recipients: &[&str]) -> (TaskId, Vec<TargetId>) {
    let (task, _) = stage.draft(0);
    let mut store = stage.store();
    let rows: Vec<NewTarget> = recipients.iter().map(|name| recipient(name)).collect();
    assert_eq!(store.add(task, &rows).unwrap().new, recipients.len() as u64);
    start(&mut *store, task);
    let ids = stage.rows(&format!("SELECT id FROM {{p}}task_target WHERE task_id = {task} ORDER BY id"));
    (task, ids.into_iter().map(|row| row[0].parse().unwrap()).collect())
}

fn begin_all(store: &mut dyn Store, lease: &Lease) -> Begun {
    let claimed = store.claim(lease, 100).unwrap();
    begin_these(store, lease, claimed)
}

fn flying(begun: &Begun) -> Vec<TargetId> {
    begun.in_flight.iter().map(InFlight::id).collect()
}

fn listed(store: &mut dyn Store) -> Vec<Suppression> {
    let mut found = Vec::new();
    store
        .suppressions(&mut |row| {
            found.push(row);
            Ok(())
        })
        .unwrap();
    found
}

pub(super) fn who_is_suppressed_is_not_begun(stage: &Stage) {
    let (task, all) = stage.task(4);
    let mut store = stage.store();
    let rows = [entry("r2", None), entry("r3", Some(CHANNEL)), entry("r4", Some("other"))];
    assert_eq!(store.suppress(&rows, &ACT).unwrap().new, 3);
    let lease = ours(&mut *store, task, &terms());
    let begun = begin_all(&mut *store, &lease);
    assert_eq!(flying(&begun), [all[0], all[3]], "another channel's does not matter");
    assert_eq!((&begun.suppressed[..], &begun.fenced[..]), (&all[1..3], &[][..]));
    for id in &all[1..3] {
        let row = stage.row(*id);
        assert_eq!((row.status.as_str(), row.last_error.as_deref()), ("failed", Some("suppressed")));
        assert_eq!((row.attempts, row.settled_at.is_some()), (0, true));
    }
    // Their end is an end: the task finishes with them.
    settle(&mut *store, begun.in_flight.into_iter().map(|flight| flight.answer(task, sent())).collect());
    assert_eq!(close(&mut *store, lease), Closed::Finished);
    let (_, counts) = store.tasks(Some(task), false).unwrap().pop().unwrap();
    assert_eq!((counts.sent, counts.failed), (2, 2));
}

pub(super) fn who_is_suppressed_after_the_claim_is_not_begun(stage: &Stage) {
    let (task, all) = stage.task(2);
    let mut run = stage.store();
    let lease = ours(&mut *run, task, &terms());
    let claimed = run.claim(&lease, 2).unwrap();
    suppress(&mut *stage.store(), "r1");
    let begun = begin_these(&mut *run, &lease, claimed);
    assert_eq!((flying(&begun), begun.suppressed), (vec![all[1]], vec![all[0]]));
    assert_eq!((stage.status(all[0]).as_str(), stage.status(all[1]).as_str()), ("failed", "sending"));
}

pub(super) fn in_doubt_and_suppressed_is_unknown(stage: &Stage) {
    let Sending { task, id, mut store, lease, flight } = stage.sending_under(&keyed());
    settle(&mut *store, vec![flight.answer(task, retry(true))]);
    suppress(&mut *store, "r1");
    stage.end_waits();
    store.promote(&lease).unwrap();
    let begun = begin_all(&mut *store, &lease);
    assert_eq!((begun.in_flight.len(), &begun.unknown[..]), (0, &[id][..]));
    let row = stage.row(id);
    assert_eq!((row.status.as_str(), row.last_error.as_deref()), ("unknown", Some("suppressed")));
    assert_eq!(row.attempts, 1, "what was begun before stays counted");
    assert_eq!(store.resolve(task, None, Verdict::Retry, &ACT).unwrap(), 1);
    assert_eq!(begin_all(&mut *store, &lease).suppressed, [id]);
    assert_eq!(stage.status(id), "failed", "a person said that it did not arrive");
}

pub(super) fn letters_and_blanks_make_no_difference(stage: &Stage) {
    let recipients = [" Ann@Example.com", "ben@example.com", "Ärger@example.com", "öl@example.com", "dora"];
    let (task, all) = task_for(stage, &recipients);
    let mut store = stage.store();
    let rows = ["ann@EXAMPLE.com ", "\tBEN@example.com\n", "ärger@example.com", "ÖL@example.com", "do"];
    let rows = rows.map(|recipient| entry(recipient, None));
    assert_eq!(store.suppress(&rows, &ACT).unwrap().new, 5);
    let lease = ours(&mut *store, task, &terms());
    let begun = begin_all(&mut *store, &lease);
    assert_eq!((flying(&begun), &begun.suppressed[..]), (vec![all[4]], &all[..4]));
    for recipient in [" Ann@Example.com", "BEN@EXAMPLE.COM", "ÄRGER@example.com", "öl@example.com"] {
        assert_eq!(store.unsuppress(recipient, None, &ACT).unwrap(), 1, "{recipient}");
    }
    assert_eq!(listed(&mut *store).len(), 1);
}

pub(super) fn an_application_suppresses_with_plain_sql(stage: &Stage) {
    let (task, all) = task_for(stage, &["ann@example.com", "BEN@example.com", "cem@example.com"]);
    stage.sql("INSERT INTO {p}suppression (recipient) VALUES (' Ann@Example.com ')");
    stage.sql(&format!(
        "INSERT INTO {{p}}suppression (recipient, channel, reason) VALUES ('ben@example.com', '{CHANNEL}', 'unsubscribed')"
    ));
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let begun = begin_all(&mut *store, &lease);
    assert_eq!((flying(&begun), &begun.suppressed[..]), (vec![all[2]], &all[..2]));
    let found = listed(&mut *store);
    assert_eq!((found[0].recipient.as_str(), found[0].channel.as_deref()), ("ann@example.com", None));
    assert_eq!(
        (found[1].channel.as_deref(), found[1].reason.as_deref()),
        (Some(CHANNEL), Some("unsubscribed"))
    );
    assert!((found[0].since.unwrap().timestamp_millis() - stage.now()).abs() < 10_000);
    let again = [entry("ANN@example.com", None), entry("ben@example.com", None)];
    assert_eq!(store.suppress(&again, &ACT).unwrap(), Added { new: 1, repeated: 1 });
    assert_eq!(store.unsuppress("ann@example.com", None, &ACT).unwrap(), 1);
}

pub(super) fn a_begin_of_which_all_are_suppressed_settles_all_the_same(stage: &Stage) {
    let (task, all) = stage.task(3);
    let mut store = stage.store();
    let lease = ours(&mut *store, task, &terms());
    let answers: Vec<Answer> =
        begin(&mut *store, &lease, 1).into_iter().map(|flight| flight.answer(task, sent())).collect();
    store.suppress(&[entry("r2", None), entry("r3", None)], &ACT).unwrap();
    let claimed = store.claim(&lease, 2).unwrap();
    let these = claimed.into_iter().map(|claimed| ready(claimed, &lease)).collect();
    let begun = store.begin(&lease, these, answers).map_err(|unwritten| unwritten.why).unwrap();
    assert_eq!((begun.in_flight.len(), begun.settled.written, &begun.suppressed[..]), (0, 1, &all[1..]));
    assert_eq!(all.iter().map(|id| stage.status(*id)).collect::<Vec<_>>(), ["sent", "failed", "failed"]);
}

pub(super) fn suppression_leaves_what_is_not_ours(stage: &Stage) {
    let (task, all) = stage.task(3);
    let (mut slow, mut quick) = (stage.store(), stage.store());
    let lease = ours(&mut *slow, task, &terms());
    let stopped = slow.claim(&lease, 3).unwrap();
    stage.end_claims();
    quick.recover(None).unwrap();
    let rival = beside(&mut *quick, task);
    let flight = begin(&mut *quick, &rival, 1);
    let claimed = quick.claim(&rival, 1).unwrap();
    let rows = ["r1", "r2", "r3"].map(|name| entry(name, None));
    slow.suppress(&rows, &ACT).unwrap();
    let begun = begin_these(&mut *slow, &lease, stopped);
    assert_eq!((begun.in_flight.len(), begun.suppressed.len()), (0, 0));
    assert_eq!(begun.fenced, all);
    assert_eq!(
        all.iter().map(|id| stage.status(*id)).collect::<Vec<_>>(),
        ["sending", "processing", "pending"]
    );
    assert_eq!((flight[0].id(), ids(&claimed)), (all[0], vec![all[1]]));
}

pub(super) fn repeated_suppressions_are_merged_and_the_first_stays(stage: &Stage) {
    let mut store = stage.store();
    let since = DateTime::from_timestamp_millis(1_700_000_000_123);
    let first = Suppression { reason: Some("it's 😀 spam".into()), since, ..entry("ann", None) };
    let second = Suppression { reason: Some("again".into()), ..entry(" ANN ", None) };
    let rows = [first.clone(), second.clone(), entry("ann", Some(CHANNEL))];
    assert_eq!(store.suppress(&rows, &ACT).unwrap(), Added { new: 2, repeated: 1 });
    assert_eq!(store.suppress(&[second], &ACT).unwrap(), Added { new: 0, repeated: 1 });
    assert_eq!(store.suppress(&[], &ACT).unwrap(), Added::default());
    let found = listed(&mut *store);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], first);
    assert_eq!((found[1].recipient.as_str(), found[1].channel.as_deref()), ("ann", Some(CHANNEL)));
    assert!((found[1].since.unwrap().timestamp_millis() - stage.now()).abs() < 10_000);
}

pub(super) fn a_suppression_that_does_not_fit_is_refused_and_not_cut(stage: &Stage) {
    let mut store = stage.store();
    let longest = "😀".repeat(RECIPIENT_MOST);
    suppress(&mut *store, &format!("  {longest} "));
    let long = entry(&format!("{longest}x"), None);
    for bad in [long, entry("b", Some(&"c".repeat(65)))] {
        let error = store.suppress(&[entry("a", None), bad], &ACT).unwrap_err();
        assert_eq!(Trouble::kind_of(&error), Some(Kind::Usage), "{error:#}");
    }
    let reason = Some("why ".repeat(1_000));
    store.suppress(&[Suppression { reason, ..entry("c", None) }], &ACT).unwrap();
    let names: Vec<String> = listed(&mut *store).into_iter().map(|row| row.recipient).collect();
    assert_eq!(names, ["c".to_owned(), longest], "all or nothing");
}

pub(super) fn a_suppression_ends_for_its_own_channel_alone(stage: &Stage) {
    let (task, all) = stage.task(1);
    let mut store = stage.store();
    store.suppress(&[entry("r1", None), entry("r1", Some(CHANNEL)), entry("r2", None)], &ACT).unwrap();
    let lease = ours(&mut *store, task, &terms());
    let refused = |store: &mut dyn Store| {
        let begun = begin_all(store, &lease);
        let suppressed = begun.suppressed == all;
        assert_eq!(begun.in_flight.len(), usize::from(!suppressed));
        if suppressed {
            assert_eq!(store.requeue(task, None, &ACT).unwrap().changed, 1);
        }
        suppressed
    };
    assert_eq!(store.unsuppress("r1", Some("other"), &ACT).unwrap(), 0);
    assert!(refused(&mut *store));
    assert_eq!(store.unsuppress(" R1", None, &ACT).unwrap(), 1);
    assert!(refused(&mut *store), "the one for the channel stays");
    assert_eq!(store.unsuppress("r1", None, &ACT).unwrap(), 0);
    assert_eq!(store.unsuppress("r1", Some(CHANNEL), &ACT).unwrap(), 1);
    assert!(!refused(&mut *store));
    assert_eq!(listed(&mut *store).len(), 1);
}

pub(super) fn suppressions_are_listed_in_order(stage: &Stage) {
    let mut store = stage.store();
    let name = |n: usize| format!("person-{n:04}");
    let of = |n: usize| {
        let own = n.is_multiple_of(2).then(|| (name(n), Some("z".to_owned())));
        std::iter::once((name(n), None)).chain(own)
    };
    let wanted: Vec<_> = (0..1_700).flat_map(of).collect();
    let rows: Vec<_> = wanted.iter().rev().map(|(name, channel)| entry(name, channel.as_deref())).collect();
    assert_eq!(store.suppress(&rows, &ACT).unwrap().new, 2_550);
    let found: Vec<_> = listed(&mut *store).into_iter().map(|row| (row.recipient, row.channel)).collect();
    assert!(found == wanted, "{} listed", found.len());
    let mut seen = 0;
    let error = store
        .suppressions(&mut |_| {
            seen += 1;
            if seen == 3 { Err(anyhow::anyhow!("the pipe is closed")) } else { Ok(()) }
        })
        .unwrap_err();
    assert_eq!((seen, error.root_cause().to_string().as_str()), (3, "the pipe is closed"));
}

pub(super) fn acts_on_suppressions_are_audited(stage: &Stage) {
    let mut store = stage.store();
    store.suppress(&[entry("ann", None), entry("ben", None), entry("ann", None)], &ACT).unwrap();
    suppress(&mut *store, " Cem ");
    store.suppress(&[entry("ann", None)], &ACT).unwrap();
    store.unsuppress("ben", None, &ACT).unwrap();
    store.unsuppress("ben", None, &ACT).unwrap();
    store.suppress(&[entry("ben", Some(CHANNEL))], &Act { why: None, ..ACT }).unwrap();
    let audit = stage.rows("SELECT who, what, task_id, target_id, why FROM {p}audit ORDER BY id");
    let whys: Vec<&str> = audit.iter().map(|row| row[4].as_str()).collect();
    assert_eq!(
        whys,
        ["2 recipients: she knows", "Cem: she knows", "ben: she knows", "ben (channel letters)"],
        "one row an act, and none for what changed nothing"
    );
    assert!(audit.iter().all(|row| row[..4] == ["ann@desk", "test", "NULL", "NULL"]), "{audit:?}");
}
