//! Finished is proved, never guessed from an empty batch.

use crate::support::{Cue, Endpoint, Sandbox, check};

on_each_database! {
    a_message_that_cannot_be_rendered_fails_alone,
    a_target_added_to_a_finished_task_is_sent,
    a_target_waiting_for_its_retry_keeps_the_task_open,
    a_task_without_targets_is_not_finished;
    mysql alone:
    a_target_committed_while_the_task_closes_is_sent,
}

fn a_message_that_cannot_be_rendered_fails_alone(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let channel = endpoint.channel("web", "").replace("{{ task.name }}", "{{ target.params.name }}");
    it.configure("", &channel);
    let task = it.database.task("web", ["ann", "bob", "cy"]);
    for name in ["ann", "cy"] {
        it.database.execute(&format!(
            "UPDATE batch_task_target SET params = '{{\"name\": \"x\"}}' WHERE recipient = '{name}'"
        ));
    }
    it.run();
    check(&it, task, &endpoint);
    let bob = it.database.target(task, "bob");
    assert!(
        bob.status == "failed" && bob.error.contains("target.params.name") && bob.attempts == 0,
        "{bob:?}"
    );
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (2, "finished"));
}

fn a_target_added_to_a_finished_task_is_sent(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    it.run();
    assert_eq!(it.database.status(task), "finished");
    // By the command, and by an application that does not know better.
    it.call(&format!("task add {task} -")).stdin("recipient\nann\nbob\n").done().exits(0);
    assert_eq!(it.database.status(task), "pending");
    it.run();
    it.database.add(task, ["cy"]);
    it.run();
    it.run();
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (3, "finished"));
}

fn a_target_waiting_for_its_retry_keeps_the_task_open(it: Sandbox) {
    let endpoint = Endpoint::new(|request| if request.nth == 1 { Cue::Answer(421) } else { Cue::Accept });
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    it.run();
    it.run();
    assert_eq!((it.database.status(task).as_str(), endpoint.requests()), ("pending", 1));
    it.database.execute(&format!(
        "UPDATE batch_task_target SET retry_at = {} WHERE task_id = {task}",
        it.database.moment(-1)
    ));
    it.run();
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (1, "finished"));
}

fn a_task_without_targets_is_not_finished(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let none: [&str; 0] = [];
    let task = it.database.task("web", none);
    it.run();
    it.run();
    assert_eq!(it.database.status(task), "pending");
    let long_ago = it.database.moment(-700);
    it.database.execute(&format!(
        "UPDATE batch_task SET created_at = {long_ago}, started_at = {long_ago} WHERE id = {task}"
    ));
    it.call("run").done().exits(3);
    let (status, reason) = it.database.standing(task);
    assert!(status == "paused" && reason.contains("target"), "{status}: {reason}");
}

fn a_target_committed_while_the_task_closes_is_sent(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann"]);
    let application = it.database.another();
    application.execute("BEGIN");
    application.add(task, ["bob"]);
    it.run();
    application.execute("COMMIT");
    it.run();
    it.run();
    check(&it, task, &endpoint);
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (2, "finished"));
}
