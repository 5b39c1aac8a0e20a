//! A channel's rate and its hours: kept over all lanes, runs and hosts, whatever waits for them can be stopped, and waiting costs
//! nobody anything.

use std::time::{Duration, Instant, SystemTime};

use crate::support::{Cue, Endpoint, Engine, Process, Sandbox, check, wait_until};

on_each_database! {
    three_hosts_with_four_lanes_never_go_faster_than_the_rate,
    a_rate_is_kept_between_runs,
    a_slow_rate_is_served_within_one_run,
    a_run_that_cannot_wait_for_its_slot_takes_none,
    claims_follow_the_rate,
    a_pause_is_heard_while_the_rate_is_waited_for,
    sigterm_is_heard_while_the_rate_is_waited_for,
    sigterm_is_heard_while_nothing_but_a_far_slot_is_left,
    a_run_that_slept_through_its_slot_takes_another,
    a_burst_leaves_together_and_no_more_than_that,
    a_slow_task_does_not_hold_up_another,
    a_task_that_comes_while_a_slot_is_waited_for_is_sent,
    each_group_asks_for_its_slots_once,
    nothing_leaves_outside_the_window,
    what_was_deferred_across_the_edge_waits,
}

fn people(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|n| format!("person-{n}"))
}

/// When each message arrived, in order.
fn arrivals(endpoint: &Endpoint) -> Vec<Instant> {
    let mut arrivals: Vec<Instant> = endpoint.all().into_iter().map(|request| request.at).collect();
    arrivals.sort();
    arrivals
}

/// The most that arrived within so much time.
fn most_within(arrivals: &[Instant], time: Duration) -> usize {
    let from = |first: usize| arrivals[first..].iter().take_while(|at| **at - arrivals[first] < time).count();
    (0..arrivals.len()).map(from).max().unwrap_or(0)
}

fn three_hosts_with_four_lanes_never_go_faster_than_the_rate(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("lanes = 4\nbudget = \"7s\"", &endpoint.channel("web", "rate = \"40/s\"\nburst = 4"));
    let tasks: Vec<u64> =
        (0..12).map(|n| it.database.task("web", people(100).map(|p| format!("{n}-{p}")))).collect();
    let runs: Vec<Process> = (1..=3).map(|host| it.call_on_host(host, "run").start()).collect();
    for run in runs {
        run.wait().quietly();
    }
    let arrivals = arrivals(&endpoint);
    // Beside the rate: the four that leave together, and on a machine that is busy with other things a slot may be used
    // up to a second late.
    for seconds in 1..=6 {
        let most = most_within(&arrivals, Duration::from_secs(seconds));
        assert!(most as u64 <= 40 * (seconds + 1) + 4, "{most} within {seconds} s");
    }
    assert!(arrivals.len() > 40 * 7 / 2, "only {} in seven seconds", arrivals.len());
    assert!(endpoint.ledger().values().all(|count| *count == 1));
    let sent: u64 = tasks.iter().map(|task| it.database.count(*task, "sent")).sum();
    assert_eq!(sent, arrivals.len() as u64);
}

fn a_rate_is_kept_between_runs(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("budget = \"20s\"", &endpoint.channel("web", "rate = \"2/min\""));
    let task = it.database.task("web", people(3));
    it.run();
    it.run();
    it.call_on_host(2, "run").done().quietly();
    it.call(&format!("run --task-id {task}")).done().quietly();
    assert_eq!(it.database.count(task, "sent"), 1, "one at once, the next half a minute later");
    assert_eq!(it.database.count(task, "pending"), 2);
    // Half a minute later.
    let past = it.database.pace_moment(-1);
    it.database.execute(&format!("UPDATE batch_pace SET next_at = {past}"));
    it.run();
    assert_eq!(it.database.count(task, "sent"), 2);
    check(&it, task, &endpoint);
}

fn a_slow_rate_is_served_within_one_run(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    // A turn is far shorter than a slot: the lane comes back to the task for each.
    it.configure("turn = \"100ms\"", &endpoint.channel("web", "rate = \"60/min\""));
    let task = it.database.task("web", people(100));
    let run = it.call("run").start();
    wait_until("four to be sent", 30, || it.database.count(task, "sent") == 4);
    run.terminate();
    run.wait().quietly();
    check(&it, task, &endpoint);
}

fn a_run_that_cannot_wait_for_its_slot_takes_none(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("budget = \"30s\"", &endpoint.channel("web", "rate = \"50/h\""));
    let task = it.database.task("web", people(3));
    it.run();
    let next = it.database.text("SELECT next_at FROM batch_pace");
    it.run();
    it.run();
    assert_eq!(it.database.text("SELECT next_at FROM batch_pace"), next, "else an hour's fifty became one");
    assert_eq!(it.database.count(task, "sent"), 1);
}

fn claims_follow_the_rate(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("budget = \"4s\"", &endpoint.channel("web", "rate = \"1/s\"\nconcurrency = 64"));
    let task = it.database.task("web", people(1000));
    let mut run = it.call("run").start();
    let mut most = 0;
    while run.running() {
        most = most.max(it.database.count(task, "processing,sending"));
        std::thread::sleep(Duration::from_millis(20));
    }
    run.wait().quietly();
    assert!((1..=3).contains(&most), "{most} held at once");
    check(&it, task, &endpoint);
}

/// One is sent, and the lane waits six seconds for the next slot.
fn waiting_for_a_slot(it: &Sandbox) -> (Endpoint, u64, Process) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", "rate = \"10/min\""));
    let task = it.database.task("web", people(10));
    let run = it.call("run").start();
    wait_until("the first to be sent and the next to be claimed", 20, || {
        it.database.count(task, "sent") == 1 && it.database.count(task, "processing") > 0
    });
    (endpoint, task, run)
}

fn a_pause_is_heard_while_the_rate_is_waited_for(it: Sandbox) {
    let (endpoint, task, run) = waiting_for_a_slot(&it);
    it.call(&format!("task pause {task}")).done().exits(0);
    run.wait().quietly();
    assert_eq!((it.database.count(task, "sent"), it.database.count(task, "pending")), (1, 9));
    check(&it, task, &endpoint);
}

fn sigterm_is_heard_while_the_rate_is_waited_for(it: Sandbox) {
    let (endpoint, task, run) = waiting_for_a_slot(&it);
    run.terminate();
    run.wait().quietly();
    assert_eq!((it.database.count(task, "sent"), it.database.count(task, "pending")), (1, 9));
    check(&it, task, &endpoint);
}

fn a_run_that_slept_through_its_slot_takes_another(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", "rate = \"10/min\""));
    let task = it.database.task("web", people(10));
    let run = it.call("-vv run").start();
    let slots = |run: &Process| run.stderr().matches(" slots task=").count();
    wait_until("the slot of the second", 20, || slots(&run) == 2);
    it.stop(&run);
    // Its end is six seconds after its beginning; that was more than a second ago then.
    let soon = it.database.pace_moment(4);
    wait_until("its slot to be over", 20, || {
        it.database.number(&format!("SELECT COUNT(*) FROM batch_pace WHERE next_at < {soon}")) == 1
    });
    run.go_on();
    wait_until("the second to be sent", 30, || it.database.count(task, "sent") == 2);
    assert!(slots(&run) >= 3, "it used the slot that it had slept through");
    run.terminate();
    run.wait();
    check(&it, task, &endpoint);
}

fn sigterm_is_heard_while_nothing_but_a_far_slot_is_left(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", "rate = \"2/min\""));
    let task = it.database.task("web", people(2));
    let mut run = it.call("run").start();
    let leased = format!("SELECT COUNT(*) FROM batch_task WHERE id = {task} AND lock_token IS NOT NULL");
    wait_until("the task to be given back after its first message", 20, || {
        it.database.count(task, "sent") == 1
            && it.database.count(task, "pending") == 1
            && it.database.number(&leased) == 0
    });
    assert!(run.running(), "it waits for the slot in half a minute");
    run.terminate();
    run.wait().quietly();
    check(&it, task, &endpoint);
}

fn a_burst_leaves_together_and_no_more_than_that(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure("", &endpoint.channel("web", "rate = \"6/min\"\nburst = 3\nconcurrency = 8"));
    let task = it.database.task("web", people(10));
    let run = it.call("run").start();
    wait_until("three to be in flight", 20, || endpoint.waiting() == 3);
    endpoint.tell();
    wait_until("three to be sent", 20, || it.database.count(task, "sent") == 3);
    run.terminate();
    run.wait().quietly();
    assert_eq!(endpoint.requests(), 3);
    check(&it, task, &endpoint);
}

fn a_slow_task_does_not_hold_up_another(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let channels = endpoint.channel("slow", "rate = \"50/h\"") + &endpoint.channel("web", "");
    it.configure("lanes = 1\nbudget = \"20s\"", &channels);
    let slow = it.database.task("slow", people(3).map(|p| format!("slow-{p}")));
    it.database.execute("UPDATE batch_task SET priority = 9");
    let other = it.database.task("web", people(50));
    it.run();
    assert_eq!(it.database.status(other), "finished");
    assert_eq!(it.database.count(slow, "sent"), 1);
}

fn a_task_that_comes_while_a_slot_is_waited_for_is_sent(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let channels = endpoint.channel("slow", "rate = \"50/h\"") + &endpoint.channel("web", "");
    it.configure("lanes = 1\nbudget = \"10m\"", &channels);
    let slow = it.database.task("slow", people(3).map(|p| format!("slow-{p}")));
    let run = it.call("run").start();
    wait_until("the slow task to wait", 20, || it.database.count(slow, "sent") == 1);
    let other = it.database.task("web", people(50));
    wait_until("the other to be sent", 20, || it.database.status(other) == "finished");
    run.terminate();
    run.wait().quietly();
}

fn each_group_asks_for_its_slots_once(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", "rate = \"200/s\""));
    let task = it.database.task("web", people(300));
    let run = it.call("-vv run").start();
    wait_until("all to be sent", 60, || it.database.count(task, "sent") == 300);
    let finished = run.wait();
    let lines = |what: &str| finished.stderr.lines().filter(|line| line.contains(what)).count();
    let (slots, groups) = (lines(" slots task="), lines(" begun task="));
    assert!(0 < slots && slots <= groups, "{slots} statements for {groups} groups");
    assert!(groups < 300, "{groups} groups");
    check(&it, task, &endpoint);
}

/// Keys of a window that opened so many hours ago and closes so many hours from now; both may be negative.
pub fn window(from: i64, to: i64) -> String {
    let minutes = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64 / 60;
    // Shanghai's clock is eight hours ahead, all year.
    let clock = |hours: i64| {
        let minute = (minutes + (8 + hours) * 60).rem_euclid(24 * 60);
        format!("{:02}:{:02}", minute / 60, minute % 60)
    };
    format!("window = \"{}-{}\"\ntime_zone = \"Asia/Shanghai\"", clock(from), clock(to))
}

fn nothing_leaves_outside_the_window(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", &window(2, 5)));
    let task = it.database.task("web", people(3));
    it.run();
    it.call(&format!("run --task-id {task}")).done().exits(1).says(&["channel web is open"]);
    it.call(&format!("run --task-id {task} --force")).done().exits(1).says(&["opens at"]);
    assert_eq!(endpoint.requests(), 0);
    assert_eq!(it.database.count(task, "pending"), 3);
    it.configure("", &endpoint.channel("web", &window(-2, 5)));
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 3);
}

fn what_was_deferred_across_the_edge_waits(it: Sandbox) {
    let endpoint = Endpoint::new(|request| if request.nth == 1 { Cue::Answer(425) } else { Cue::Accept });
    it.configure("", &endpoint.channel("web", &window(-2, 5)));
    let task = it.database.task("web", people(3));
    it.run();
    assert_eq!(it.database.count(task, "retry"), 3);
    let past = it.database.moment(-1);
    it.database.execute(&format!("UPDATE batch_task_target SET retry_at = {past}"));
    it.configure("", &endpoint.channel("web", &window(-5, -2)));
    it.run();
    assert_eq!((endpoint.requests(), it.database.count(task, "retry")), (3, 3), "the window is closed");
    it.configure("", &endpoint.channel("web", &window(-2, 5)));
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 3);
}

/// Takes up to a minute and a half: a window closes with a minute, and no sooner.
#[test]
fn what_is_under_way_when_the_window_closes_stays_unsent() {
    let it = Sandbox::new(Engine::Sqlite);
    let endpoint = Endpoint::new(|_| Cue::AcceptAfter(Duration::from_millis(50)));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    // At least ten seconds from now.
    let closes = (now + 10).div_ceil(60) * 60;
    let clock = |seconds: u64| format!("{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60);
    let keys = format!("window = \"{}-{}\"\ntime_zone = \"UTC\"", clock(closes - 3600), clock(closes));
    it.configure("budget = \"2m\"", &endpoint.channel("web", &keys));
    let task = it.database.task("web", people(50_000));
    it.run();
    let after = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert!(after.as_secs() >= closes, "it was left alone before its window closed");
    let closed = Instant::now() - (after - Duration::from_secs(closes));
    // What left in time may have been read a little later.
    let late = arrivals(&endpoint).into_iter().filter(|at| *at >= closed + Duration::from_secs(1)).count();
    assert_eq!(late, 0, "{late} arrived after the window had closed");
    assert!(it.database.count(task, "sent") > 0);
    assert!(it.database.count(task, "pending") > 0);
    check(&it, task, &endpoint);
}
