//! A healthy minute prints nothing and exits 0: cron sends no mail.

use crate::support::{Endpoint, Sandbox, check};

on_each_database! {
    nothing_to_do_is_quiet,
    a_task_is_sent_and_finished_without_a_word,
}

fn nothing_to_do_is_quiet(it: Sandbox) {
    it.run();
    it.call("").done().quietly();
}

fn a_task_is_sent_and_finished_without_a_word(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "bob", "cy"]);
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.count(task, "sent"), 3);
    assert_eq!(it.database.status(task), "finished");
    let ann = it.database.target(task, "ann");
    assert_eq!((ann.attempts, ann.receipt.starts_with("r-")), (1, true), "{ann:?}");
    it.run();
    assert_eq!(endpoint.requests(), 3);
}
