//! The service that watches cron jobs hears when a run begins and how it ended, and can do it no harm.

use std::time::{Duration, Instant};

use crate::support::{Cue, Endpoint, Pings, Sandbox, wait_until};

on_each_database! {
    a_run_pings_its_start_and_its_success,
    what_needs_a_person_is_pinged_as_a_failure_with_the_log,
    a_long_log_is_cut_at_ten_kilobytes,
    a_run_that_finds_another_at_work_pings_nothing,
    a_run_that_is_killed_has_started_and_never_ends,
    trouble_before_the_lock_is_a_failure_without_a_start,
    a_person_at_one_task_pings_nothing,
    a_service_that_never_answers_keeps_nobody,
    a_service_that_is_away_is_a_line_in_the_log,
}

fn a_run_pings_its_start_and_its_success(it: Sandbox) {
    let (endpoint, pings) = (Endpoint::accepting(), Pings::answering(200));
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top(&pings.key("ping/shop"));
    it.database.task("web", ["ann"]);
    it.run();
    assert_eq!(pings.of_one_run(), ["/ping/shop/start", "/ping/shop"]);
    assert!(pings.seen().iter().all(|ping| ping.body.is_empty()), "{:?}", pings.seen());
    // A query stays; nothing due is a success.
    let pings = Pings::answering(200);
    it.configure("", "");
    it.configure_top(&pings.key("key/shop?create=1"));
    it.run();
    let paths: Vec<String> = pings.seen().into_iter().map(|ping| ping.path).collect();
    assert!(paths[0].starts_with("/key/shop/start?create=1&rid="), "{paths:?}");
    assert!(paths[1].starts_with("/key/shop?create=1&rid=") && paths.len() == 2, "{paths:?}");
}

fn what_needs_a_person_is_pinged_as_a_failure_with_the_log(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::Say(401, r#"{"error": "not for wang@example.com"}"#));
    let pings = Pings::answering(200);
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top(&pings.key("p"));
    let task = it.database.task("web", ["wang@example.com"]);
    // Whatever stderr shows.
    it.call("run -v").done().exits(3);
    assert_eq!(pings.of_one_run(), ["/p/start", "/p/3"]);
    let body = &pings.seen()[1].body;
    for words in [
        format!("task {task} is paused"),
        format!(" task={task}"),
        "served".into(),
        "w***@example.com".into(),
    ] {
        assert!(body.contains(&words), "no \"{words}\" in\n{body}");
    }
    assert!(!body.contains("wang@example.com"), "{body}");
}

fn a_long_log_is_cut_at_ten_kilobytes(it: Sandbox) {
    let (endpoint, pings) = (Endpoint::new(|_| Cue::AcceptThenClose), Pings::answering(200));
    it.configure("lanes = 1", &endpoint.channel("web", ""));
    it.configure_top(&pings.key("p"));
    for _ in 0..60 {
        it.database.task("web", ["ann"]);
    }
    it.call("run").done().exits(3);
    let body = pings.seen().pop().unwrap().body;
    assert!((8_000..=10_000).contains(&body.len()), "{} bytes", body.len());
    assert!(body.starts_with("20") && body.ends_with('\n'), "{body}");
}

fn a_run_that_finds_another_at_work_pings_nothing(it: Sandbox) {
    let (endpoint, pings) = (Endpoint::new(|_| Cue::AcceptWhenTold), Pings::answering(200));
    it.configure("", &endpoint.channel("web", "timeout = \"20s\""));
    it.configure_top(&pings.key("p"));
    it.database.task("web", ["ann"]);
    let run = it.call("run").start();
    wait_until("a message in flight", 20, || endpoint.waiting() == 1);
    wait_until("the ping of its start", 20, || pings.seen().len() == 1);
    for _ in 0..3 {
        it.run();
    }
    assert_eq!(pings.of_one_run(), ["/p/start"]);
    endpoint.tell();
    run.wait().quietly();
    assert_eq!(pings.of_one_run(), ["/p/start", "/p"]);
}

fn a_run_that_is_killed_has_started_and_never_ends(it: Sandbox) {
    let (endpoint, pings) = (Endpoint::new(|_| Cue::AcceptWhenTold), Pings::answering(200));
    it.configure("", &endpoint.channel("web", "timeout = \"20s\""));
    it.configure_top(&pings.key("p"));
    let task = it.database.task("web", ["ann"]);
    let run = it.call("run").start();
    wait_until("a message in flight", 20, || endpoint.waiting() == 1);
    wait_until("the ping of its start", 20, || pings.seen().len() == 1);
    run.kill();
    endpoint.tell();
    it.database.claims_end(task);
    it.call("run").done().exits(3);
    let paths: Vec<String> = pings.seen().into_iter().map(|ping| ping.path).collect();
    let shown: Vec<&str> = paths.iter().map(|path| path.split('?').next().unwrap()).collect();
    assert_eq!(shown, ["/p/start", "/p/start", "/p/3"]);
    assert_ne!(paths[0], paths[1]);
}

fn trouble_before_the_lock_is_a_failure_without_a_start(it: Sandbox) {
    let (endpoint, pings) = (Endpoint::accepting(), Pings::answering(200));
    it.configure("", &endpoint.channel("web", "headers = { Authorization = \"${API_TOKEN}\" }"));
    it.configure_top(&pings.key("p"));
    it.call("run").done().exits(2).says(&["API_TOKEN"]);
    assert_eq!(pings.of_one_run(), ["/p/2"]);
    assert!(pings.seen()[0].body.contains("the environment has no `API_TOKEN`"), "{:?}", pings.seen());
}

fn a_person_at_one_task_pings_nothing(it: Sandbox) {
    let (endpoint, pings) = (Endpoint::accepting(), Pings::answering(200));
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top(&pings.key("p"));
    let task = it.database.task("web", ["ann"]);
    it.call(&format!("run --task-id {task}")).done().quietly();
    it.call("run --dry-run").done().quietly();
    it.call("status").done().exits(0);
    assert_eq!(pings.seen().len(), 0);
}

fn a_service_that_never_answers_keeps_nobody(it: Sandbox) {
    let (endpoint, pings) = (Endpoint::accepting(), Pings::answering(0));
    it.configure("", &endpoint.channel("web", ""));
    it.configure_top(&pings.key("p"));
    let task = it.database.task("web", (0..20).map(|n| format!("person-{n}")));
    let run = it.call("run -v").start();
    wait_until("the task to be finished", 20, || it.database.status(task) == "finished");
    // Its work is done; whoever comes next finds the lock free.
    let next = it.database.task("web", ["ann"]);
    let other = it.call("run").start();
    wait_until("the next task to be finished", 20, || it.database.status(next) == "finished");
    let since = Instant::now();
    // Given up, or not even tried.
    run.wait().exits(0).says(&["ping of the end"]);
    other.wait().quietly();
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    assert!(endpoint.ledger().values().all(|times| *times == 1), "{:?}", endpoint.ledger());
}

fn a_service_that_is_away_is_a_line_in_the_log(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    for (key, why) in [
        ("ping_url = \"http://127.0.0.1:1/p\"".to_owned(), "no connection"),
        (Pings::answering(404).key("p"), "HTTP 404"),
    ] {
        it.configure("", &endpoint.channel("web", ""));
        it.configure_top(&key);
        it.database.task("web", ["ann"]);
        it.call("run -v").done().exits(0).says(&[
            "info: the ping of the start failed",
            "info: the ping of the end failed",
            why,
        ]);
        it.run();
    }
}
