//! Runs beside runs: cron on one host, cron on many, people in between. Nobody is sent a message twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Cue, Endpoint, Process, Sandbox, check, wait_until};

on_each_database! {
    twenty_runs_on_one_host_send_each_message_once,
    twenty_hosts_send_each_message_once,
    cron_beside_a_person_beside_a_forced_run,
    a_busy_lock_is_no_trouble,
    a_task_held_elsewhere_exits_75_and_names_the_holder,
    a_forced_run_goes_beside_the_holder_and_passes_no_claim,
    hosts_with_different_tasks_do_not_wait_for_each_other,
    with_every_lock_defeated_each_message_is_sent_once;
    mysql alone:
    both_forms_of_claim_beside_each_other,
}

fn people(many: usize) -> Vec<String> {
    (0..many).map(|n| format!("person-{n}@example.com")).collect()
}

fn twenty_runs_on_one_host_send_each_message_once(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", people(200));
    let runs: Vec<Process> = (0..20).map(|_| it.call("run").start()).collect();
    for run in runs {
        run.wait().quietly();
    }
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 200);
    assert_eq!(it.database.status(task), "finished");
}

fn twenty_hosts_send_each_message_once(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let tasks: Vec<u64> = (0..3).map(|_| it.database.task("web", people(100))).collect();
    let runs: Vec<Process> = (0..20).map(|host| it.call_on_host(host, "run").start()).collect();
    for run in runs {
        run.wait().quietly();
    }
    it.run();
    let times: usize = endpoint.ledger().values().sum();
    assert_eq!(times, 300);
    for task in tasks {
        assert_eq!(it.database.count(task, "sent"), 100);
        assert_eq!(it.database.status(task), "finished");
    }
}

fn cron_beside_a_person_beside_a_forced_run(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("batch_size = 10", &endpoint.channel("web", ""));
    let task = it.database.task("web", people(500));
    let mut runs = vec![it.call("run").start()];
    for _ in 0..4 {
        runs.push(it.call(&format!("run --task-id {task}")).start());
        runs.push(it.call(&format!("run --task-id {task} --force")).start());
    }
    for run in runs {
        let run = run.wait();
        // A person may be told that somebody else holds it.
        assert!(matches!(run.code(), Some(0 | 75)), "{run}");
    }
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 500);
    assert_eq!(it.database.status(task), "finished");
}

fn a_busy_lock_is_no_trouble(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    let first = it.call("run").start();
    wait_until("the message to be in flight", 20, || endpoint.waiting() == 1);
    it.run();
    endpoint.tell();
    first.wait().quietly();
    check(&it, task, &endpoint);
    assert_eq!(it.database.status(task), "finished");
}

fn a_task_held_elsewhere_exits_75_and_names_the_holder(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    let first = it.call("run").start();
    wait_until("the message to be in flight", 20, || endpoint.waiting() == 1);
    let owner = it.database.text(&format!("SELECT lock_owner FROM batch_task WHERE id = {task}"));
    assert!(owner.contains(&first.pid().to_string()), "{owner}");
    let second = it.call(&format!("run --task-id {task}")).done().exits(75);
    second.says(&[&owner]);
    endpoint.tell();
    first.wait().quietly();
    check(&it, task, &endpoint);
}

fn a_forced_run_goes_beside_the_holder_and_passes_no_claim(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "claimed-0" | "claimed-1" => Cue::AcceptWhenTold,
        _ => Cue::Accept,
    });
    it.configure("batch_size = 2", &endpoint.channel("web", "concurrency = 2"));
    // In flight, claimed and waiting for an idle sender, and free.
    let names = ["claimed-0", "claimed-1", "next-0", "next-1", "free-0", "free-1", "free-2"];
    let task = it.database.task("web", names);
    let holder = it.call("run").start();
    wait_until("the holder's messages to be in flight", 20, || endpoint.waiting() == 2);
    wait_until("the holder's next claim", 20, || it.database.count(task, "processing") == 2);
    it.call(&format!("run --task-id {task} --force")).done().quietly();
    assert_eq!(it.database.count(task, "sent"), 3, "{:?}", it.database.targets(task));
    assert_eq!((it.database.count(task, "sending"), it.database.count(task, "processing")), (2, 2));
    assert_eq!(it.database.status(task), "pending", "a forced run never closes");
    endpoint.tell();
    holder.wait().quietly();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 7);
    assert_eq!(it.database.status(task), "finished");
}

fn hosts_with_different_tasks_do_not_wait_for_each_other(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "slow" => Cue::AcceptWhenTold,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    let slow = it.database.task("web", ["slow"]);
    let first = it.call_on_host(1, "run").start();
    wait_until("the slow message to be in flight", 20, || endpoint.waiting() == 1);
    let quick = it.database.task("web", ["quick"]);
    it.call_on_host(2, "run").done().quietly();
    assert_eq!(it.database.status(quick), "finished");
    assert_eq!(it.database.count(slow, "sending"), 1);
    endpoint.tell();
    first.wait().quietly();
    assert_eq!(it.database.status(slow), "finished");
}

/// Hosts have no lock file in common, and every lease ends as soon as it is taken. Rows alone are left to keep the promise.
fn with_every_lock_defeated_each_message_is_sent_once(it: Sandbox) {
    // Slow until two leases were taken away: on a busy machine all could be sent before.
    let taken = Arc::new(AtomicU64::new(0));
    let so_far = taken.clone();
    let endpoint = Endpoint::new(move |_| {
        let quick = so_far.load(Ordering::Relaxed) >= 2;
        Cue::AcceptAfter(Duration::from_millis(if quick { 10 } else { 200 }))
    });
    it.configure("batch_size = 5", &endpoint.channel("web", "concurrency = 4"));
    let task = it.database.task("web", people(2_000));
    let mut runs: Vec<Process> = (0..6).map(|host| it.call_on_host(host, "run").start()).collect();
    let thief = it.database.another();
    wait_until("the runs to end", 120, || {
        let now = thief.moment(0);
        let held = format!("SELECT COUNT(*) FROM batch_task WHERE id = {task} AND lock_until > {now}");
        taken.fetch_add(thief.number(&held), Ordering::Relaxed);
        thief.execute(&format!(
            "UPDATE batch_task SET lock_until = {now} WHERE id = {task} AND lock_until > {now}"
        ));
        // A host whose lease was taken leaves; cron would start it again.
        for (host, run) in runs.iter_mut().enumerate() {
            if !run.running() && thief.count(task, "pending") > 0 {
                let next = it.call_on_host(host, "run").start();
                std::mem::replace(run, next).wait().quietly();
            }
        }
        runs.iter_mut().all(|run| !run.running())
    });
    runs.into_iter().for_each(|run| run.wait().quietly());
    assert!(taken.load(Ordering::Relaxed) >= 2, "{taken:?} leases were taken away");
    wait_until("leases and claims to end", 60, || it.database.nothing_held());
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 2_000, "{:?}", it.database.counts(task));
}

fn both_forms_of_claim_beside_each_other(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let tasks: Vec<u64> = (0..3).map(|_| it.database.task("web", people(300))).collect();
    let mut runs = Vec::new();
    for host in 0..8 {
        let claim = if host % 2 == 0 { "update" } else { "skip-locked" };
        it.configure(&format!("claim = \"{claim}\"\nbatch_size = 7"), &endpoint.channel("web", ""));
        runs.push(it.call_on_host(host, "run").start());
        // Beside the holder, so that claims of both forms meet in one task.
        runs.push(it.call_on_host(host, &format!("run --force --task-id {}", tasks[host % 3])).start());
    }
    runs.into_iter().for_each(|run| run.wait().quietly());
    it.run();
    assert_eq!(endpoint.ledger().len(), 300);
    assert_eq!(endpoint.requests(), 900);
    for task in tasks {
        assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (300, "finished"));
    }
}
