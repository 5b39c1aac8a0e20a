//! The pace of a channel: its slots, which all hosts share, and its holds.

use super::super::*;
use super::stage::*;

fn reserve(store: &mut dyn Store, span: Duration, horizon: Duration) -> Slot {
    store.reserve(CHANNEL, span, horizon).unwrap()
}

/// How long a slot is waited for, taken or not.
fn wait(slot: Slot) -> Duration {
    match slot {
        Slot::In(wait) | Slot::Later(wait) => wait,
    }
}

fn minutes(minutes: u64) -> Duration {
    secs(minutes * 60)
}

pub(super) fn the_clock_is_the_databases(stage: &Stage) {
    let now = stage.store().now().unwrap();
    assert!((stage.now() - now.timestamp_millis()).abs() < 10_000, "{now}");
}

pub(super) fn slots_of_two_stores_never_overlap_and_leave_no_gap(stage: &Stage) {
    stage.next_slot(CHANNEL, 60);
    let first = stage.next_at(CHANNEL);
    let waits: Vec<Duration> = std::thread::scope(|scope| {
        let hosts: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut store = stage.store();
                    let slots = (0..20).map(|_| reserve(&mut *store, minutes(10), minutes(10_000)));
                    slots.map(wait).collect::<Vec<_>>()
                })
            })
            .collect();
        hosts.into_iter().flat_map(|host| host.join().unwrap()).collect()
    });
    // One begins each ten minutes, and none is asked for that long after the first.
    let mut taken: Vec<u64> = waits.iter().map(|wait| wait.as_secs() / 600).collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..60).collect::<Vec<_>>());
    assert_eq!(stage.next_at(CHANNEL), first + 60 * 600_000_000);
}

pub(super) fn slots_are_exact_to_the_microsecond(stage: &Stage) {
    stage.next_slot(CHANNEL, 60);
    let first = stage.next_at(CHANNEL);
    let mut store = stage.store();
    for n in 1..=30 {
        reserve(&mut *store, Duration::from_micros(33_333), minutes(10));
        assert_eq!(stage.next_at(CHANNEL), first + n * 33_333);
    }
    // A third of a second is no whole number of them: not more often than asked.
    reserve(&mut *store, Duration::from_secs(1) / 3, minutes(10));
    assert_eq!(stage.next_at(CHANNEL), first + 30 * 33_333 + 333_334);
}

pub(super) fn the_first_slot_is_at_once_and_the_next_a_span_later(stage: &Stage) {
    let mut store = stage.store();
    assert_eq!(reserve(&mut *store, minutes(10), secs(0)), Slot::In(secs(0)));
    let Slot::In(second) = reserve(&mut *store, minutes(10), minutes(60)) else { panic!("not taken") };
    assert!((minutes(8)..=minutes(10)).contains(&second), "{second:?}");
    assert_eq!(store.reserve("other", minutes(10), secs(0)).unwrap(), Slot::In(secs(0)), "its own pace");
}

pub(super) fn idle_time_is_not_saved_up(stage: &Stage) {
    let mut store = stage.store();
    stage.next_slot(CHANNEL, -3_600);
    assert_eq!(reserve(&mut *store, minutes(10), secs(0)), Slot::In(secs(0)));
    assert!(wait(reserve(&mut *store, minutes(10), secs(0))) > minutes(8));
}

pub(super) fn a_slot_beyond_the_horizon_is_not_taken(stage: &Stage) {
    let mut store = stage.store();
    stage.next_slot(CHANNEL, 3_600);
    let before = stage.next_at(CHANNEL);
    for horizon in [secs(0), minutes(55)] {
        let Slot::Later(wait) = reserve(&mut *store, secs(1), horizon) else { panic!("taken") };
        assert!((minutes(58)..=minutes(60)).contains(&wait), "{wait:?}");
    }
    assert_eq!(stage.next_at(CHANNEL), before, "left for whoever has the time");
    let Slot::In(wait) = reserve(&mut *store, secs(1), minutes(61)) else { panic!("not taken") };
    assert!((minutes(58)..=minutes(60)).contains(&wait), "{wait:?}");
    assert_eq!(stage.next_at(CHANNEL), before + 1_000_000);
}

pub(super) fn a_channel_whose_rate_is_used_up_is_due_and_a_held_one_is_not(stage: &Stage) {
    let (task, _) = stage.task(1);
    let mut store = stage.store();
    reserve(&mut *store, minutes(600), secs(0));
    let found = store.due(&[CHANNEL], &[]).unwrap().unwrap();
    assert_eq!((found.id, found.held_until), (task, None));
    let lease = ours(&mut *store, task, &terms());
    close(&mut *store, lease);
    assert_eq!(stage.store().strays(&["other"]).unwrap().len(), 1);

    // A hold of its own length, not until the next slot.
    let silent = Hold { asked: None, first: secs(100), most: secs(3_600) };
    assert_eq!(store.hold(CHANNEL, &silent).unwrap(), secs(100));
    assert!(store.due(&[CHANNEL], &[]).unwrap().is_none());
    assert_eq!(stage.store().strays(&["other"]).unwrap(), []);
    assert!(closed(store.lease(task, &terms(), false).unwrap()).contains(CHANNEL));
    let until = store.task(task).unwrap().unwrap().held_until.unwrap().timestamp_millis();
    assert!((90_000..=101_000).contains(&(until - stage.now())));
    // The hold is over, and the rate used up again.
    stage.hold_ended(CHANNEL, 1);
    reserve(&mut *store, minutes(600), secs(0));
    assert_eq!(store.due(&[CHANNEL], &[]).unwrap().unwrap().held_until, None);
}

pub(super) fn a_hold_moves_the_slots_and_never_nearer(stage: &Stage) {
    let mut store = stage.store();
    let asked = |time| Hold { asked: Some(time), first: secs(1), most: secs(10) };
    store.hold(CHANNEL, &asked(minutes(30))).unwrap();
    let Slot::Later(wait) = reserve(&mut *store, minutes(10), minutes(10)) else { panic!("taken in a hold") };
    assert!((minutes(28)..=minutes(30)).contains(&wait), "{wait:?}");
    let before = stage.next_at(CHANNEL);
    assert!(matches!(reserve(&mut *store, minutes(60), minutes(31)), Slot::In(_)));
    store.hold(CHANNEL, &asked(minutes(40))).unwrap();
    assert_eq!(stage.next_at(CHANNEL), before + 3_600_000_000, "the slots taken stay taken");
}

pub(super) fn a_held_channel_is_not_due_until_its_hold_ends(stage: &Stage) {
    let (task, _) = stage.task(1);
    let mut store = stage.store();
    let hold = Hold { asked: Some(secs(90)), first: secs(1), most: secs(10) };
    assert_eq!(store.hold(CHANNEL, &hold).unwrap().as_secs_f64().round(), 90.0);
    let mut other = stage.store();
    assert!(other.due(&[CHANNEL], &[]).unwrap().is_none());
    let until = other.task(task).unwrap().unwrap().held_until.unwrap().timestamp_millis();
    assert!((80_000..=91_000).contains(&(until - stage.now())));
    stage.hold_ended(CHANNEL, 1);
    let found = other.due(&[CHANNEL], &[]).unwrap().unwrap();
    assert_eq!((found.id, found.held_until), (task, None));
}

pub(super) fn holds_double_up_to_most_and_start_anew_after_a_quiet_time(stage: &Stage) {
    let mut store = stage.store();
    let hold = Hold { asked: None, first: secs(10), most: secs(35) };
    let mut next = || {
        let held = store.hold(CHANNEL, &hold).unwrap().as_secs_f64().round();
        stage.hold_ended(CHANNEL, 1);
        held
    };
    assert_eq!([next(), next(), next(), next()], [10.0, 20.0, 35.0, 35.0]);
    stage.hold_ended(CHANNEL, 36);
    let mut store = stage.store();
    // Quiet is a time without holds, however many slots were taken.
    reserve(&mut *store, minutes(10), secs(0));
    assert_eq!(store.hold(CHANNEL, &hold).unwrap().as_secs_f64().round(), 10.0);
}

pub(super) fn a_hold_never_shortens_another(stage: &Stage) {
    let (mut one, mut two) = (stage.store(), stage.store());
    let asked = |seconds| Hold { asked: Some(secs(seconds)), first: secs(1), most: secs(10) };
    let silent = Hold { asked: None, first: secs(10), most: secs(3_600) };
    // Four lanes meet the same silence: they are one hold.
    for _ in 0..4 {
        assert!(one.hold("silent", &silent).unwrap() <= secs(10));
    }
    one.hold(CHANNEL, &asked(600)).unwrap();
    for hold in [asked(5), silent] {
        assert!(two.hold(CHANNEL, &hold).unwrap() > secs(590));
    }
    assert!(two.hold(CHANNEL, &asked(900)).unwrap() > secs(890));
}
