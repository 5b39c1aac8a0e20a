//! The table does not grow for ever: what ended long ago is removed, beside runs that go on, and nothing that may still matter
//! goes with it.

use crate::support::process::Process;
use crate::support::server::Server;
use crate::support::{Cue, Endpoint, Sandbox, check, wait_until};

on_each_database! {
    what_ended_long_ago_goes_and_nothing_else,
    an_unresolved_doubt_does_not_vanish,
    a_run_goes_on_sending_beside_a_purge,
    a_task_that_is_half_purged_is_opened_by_nobody,
    purges_beside_each_other_are_no_trouble,
    what_an_application_adds_meanwhile_stays,
    a_person_at_a_terminal_is_asked_and_sees_how_far_it_is,
}

const PURGE: &str = "purge --finished-before 90d --yes";

/// For the rows it ended so many days ago.
fn ends(it: &Sandbox, task: u64, days: i64) {
    let then = it.database.moment(-86_400 * days);
    it.database.execute(&format!("UPDATE batch_task SET finished_at = {then} WHERE id = {task}"));
}

fn targets(it: &Sandbox, task: u64) -> u64 {
    it.database.number(&format!("SELECT COUNT(*) FROM batch_task_target WHERE task_id = {task}"))
}

fn tasks(it: &Sandbox) -> Vec<u64> {
    let rows = it.database.rows("SELECT id FROM batch_task ORDER BY id");
    rows.into_iter().map(|row| row[0].as_deref().unwrap().parse().unwrap()).collect()
}

/// A task of so many hundred thousand who got their message a hundred days ago.
fn large(it: &Sandbox, number: u64) -> u64 {
    let task = it.database.draft("web");
    fill(it, task, number, "sent");
    it.database.execute(&format!("UPDATE batch_task SET status = 'finished' WHERE id = {task}"));
    ends(it, task, 100);
    task
}

/// So many hundred thousand targets, `p0` and so on, in this order: a purge begins with the first.
pub fn fill(it: &Sandbox, task: u64, number: u64, status: &str) {
    let digits = "WITH d(n) AS (SELECT 0 UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL
        SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    for from in (0..number).step_by(100_000) {
        it.database.execute(&format!(
            "INSERT INTO batch_task_target (task_id, recipient, status) {digits}
             SELECT {task}, CONCAT('p', {from} + a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n), '{status}'
             FROM d AS e, d, d AS c, d AS b, d AS a ORDER BY e.n, d.n, c.n, b.n, a.n"
        ));
    }
}

/// A purge that has removed something, and has more to do.
fn half_way(it: &Sandbox, task: u64) -> Process {
    let all = targets(it, task);
    let purge = it.call(PURGE).start();
    wait_until("the first of it to be gone", 60, || targets(it, task) < all);
    purge
}

fn what_ended_long_ago_goes_and_nothing_else(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "rejected" => Cue::Answer(422),
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    let old = it.database.task("web", ["ann", "rejected"]);
    let young = it.database.task("web", ["ann"]);
    it.run();
    let cancelled = it.database.task("web", ["ann", "bob"]);
    it.call(&format!("task cancel {cancelled} --yes")).done().exits(0);
    let paused = it.database.task("web", ["ann"]);
    it.call(&format!("task pause {paused}")).done().exits(0);
    for (task, days) in [(old, 91), (young, 89), (cancelled, 91), (paused, 91)] {
        ends(&it, task, days);
    }

    let none = it.call("purge --finished-before 1000d --dry-run").done().exits(0);
    assert_eq!(none.stdout, "no task ended so long ago: nothing would go\n");
    it.call("purge --finished-before 90d").done().exits(2).says(&["--yes"]);
    it.call("purge --finished-before 59m --yes").done().exits(2).says(&["59m", "1h"]);
    let dry = it.call("purge --finished-before 90d --dry-run").done().exits(0);
    assert!(dry.stdout.contains("2 tasks would go, with 4 targets") && dry.stderr.is_empty(), "{dry}");
    assert_eq!(dry.stdout.lines().count(), 4, "{dry}");
    let dry = it.call("purge --finished-before 90d --dry-run --json").done().exits(0).json();
    assert_eq!((&dry["purged"][0]["id"], &dry["purged"][0]["targets"]), (&old.into(), &2.into()), "{dry}");
    assert_eq!(tasks(&it), [old, young, cancelled, paused]);

    it.call(PURGE).done().quietly();
    assert_eq!(tasks(&it), [young, paused]);
    assert_eq!((targets(&it, old), targets(&it, cancelled), targets(&it, young)), (0, 0, 1));
    let audit = it.database.rows(&format!("SELECT what, why FROM batch_audit WHERE task_id = {old}"));
    assert_eq!(audit.len(), 1, "{audit:?}");
    let why = audit[0][1].as_deref().unwrap();
    assert!(
        why.starts_with("finished at 2") && why.contains("1 sent, 1 failed, 0 unknown; channel web: a task"),
        "{why}"
    );
    // Nothing is left to do, and it is as quiet.
    it.call(PURGE).done().quietly();
    it.call(&format!("status {old}")).done().exits(2);
    it.run();
    assert_eq!(endpoint.requests(), 3);
}

fn an_unresolved_doubt_does_not_vanish(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "closed" => Cue::AcceptThenClose,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    let doubtful = it.database.task("web", ["ann", "closed"]);
    let clear = it.database.task("web", ["bob"]);
    it.call("run").done().exits(3);
    ends(&it, doubtful, 91);
    ends(&it, clear, 91);
    let dry = it.call("purge --finished-before 90d --dry-run").done().exits(0);
    assert!(
        dry.stdout.contains("stays: it has unknown targets")
            && dry.stdout.contains("1 task would go, with 1 target\n"),
        "{dry}"
    );
    let done = it.call("purge --finished-before 90d --yes --json").done().exits(3);
    let words =
        [&format!("task {doubtful} stays"), &format!("batch-send resolve {doubtful}"), "--with-unknown"];
    let done = done.says(&words.map(|word| word as &str)).json();
    assert_eq!(
        (&done["purged"][0]["id"], &done["left"][0]["id"]),
        (&clear.into(), &doubtful.into()),
        "{done}"
    );
    assert_eq!((tasks(&it), it.database.status(doubtful).as_str()), (vec![doubtful], "finished"));
    it.call(&format!("{PURGE} --with-unknown")).done().quietly();
    assert_eq!((tasks(&it), targets(&it, doubtful)), (vec![], 0));
}

fn a_run_goes_on_sending_beside_a_purge(it: Sandbox) {
    beside(&it);
}

fn beside(it: &Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    // Many more than are gone by the time that a run takes.
    let old = large(it, 300_000);
    let task = it.database.task("web", (0..100).map(|n| format!("person-{n}")));
    let purge = half_way(it, old);
    it.run();
    assert!(targets(it, old) > 0, "the run was not beside the purge");
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (100, "finished"));
    check(it, task, &endpoint);
    purge.wait().quietly();
    assert_eq!((tasks(it), targets(it, old)), (vec![task], 0));
}

fn a_task_that_is_half_purged_is_opened_by_nobody(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = large(&it, 100_000);
    half_way(&it, task).kill();
    let left = targets(&it, task);
    assert!(left > 0 && left < 100_000, "{left}");
    let (status, why) = it.database.standing(task);
    assert_eq!((status.as_str(), why.as_str()), ("cancelled", "it is being purged"));
    // p0 got the message, and nothing says so any more: added once more, it would get it again.
    it.call(&format!("task add {task} -")).stdin("recipient\np0\n").done().exits(2).says(&["is cancelled"]);
    it.call(&format!("run --task-id {task}")).done().exits(1).says(&["is cancelled"]);
    it.call(&format!("run --task-id {task} --force")).done().exits(1);
    it.run();
    it.call(PURGE).done().quietly();
    assert_eq!((tasks(&it), targets(&it, task), endpoint.requests()), (vec![], 0, 0));
}

fn purges_beside_each_other_are_no_trouble(it: Sandbox) {
    it.configure("", &Endpoint::accepting().channel("web", ""));
    for _ in 0..12 {
        let task = it.database.draft("web");
        let rows: Vec<String> = (0..40).map(|n| format!("({task}, 'p{n}', 'sent')")).collect();
        it.database.execute(&format!(
            "INSERT INTO batch_task_target (task_id, recipient, status) VALUES {}",
            rows.join(", ")
        ));
        it.database.execute(&format!("UPDATE batch_task SET status = 'finished' WHERE id = {task}"));
        ends(&it, task, 100);
    }
    let purges = [(); 3].map(|()| it.call(PURGE).start());
    for purge in purges {
        purge.wait().quietly();
    }
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_task"), 0);
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_audit WHERE what = 'purge'"), 12);
}

fn what_an_application_adds_meanwhile_stays(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = large(&it, 100_000);
    let purge = half_way(&it, task);
    it.database.add(task, ["p0", "late"]);
    let done = purge.wait().exits(3);
    done.says(&[
        &format!("task {task} stays: somebody added targets"),
        &format!("batch-send targets {task}"),
    ]);
    let left: Vec<_> = it.database.targets(task).into_iter().map(|row| (row.recipient, row.status)).collect();
    let pending = |name: &str| (name.to_owned(), "pending".to_owned());
    assert_eq!(left, [pending("p0"), pending("late")]);
    it.run();
    assert_eq!(endpoint.requests(), 0, "p0 has it already");
    it.call(PURGE).done().exits(3).says(&["somebody added targets"]);
    assert_eq!(targets(&it, task), 2);
}

fn a_person_at_a_terminal_is_asked_and_sees_how_far_it_is(it: Sandbox) {
    it.configure("", &Endpoint::accepting().channel("web", ""));
    let task = large(&it, 100_000);
    let question = format!("Remove task {task} (a task) with 100000 targets for good? [y/N] ");
    let purge = || it.call("purge --finished-before 90d").env("TERM", "xterm").on_terminal(100, 24);
    let asked = purge();
    asked.answer(&question, "n");
    let (code, drawn) = asked.wait();
    assert!(code == Some(1) && drawn.contains("nothing was changed"), "{code:?} {drawn}");
    assert_eq!((targets(&it, task), it.database.status(task).as_str()), (100_000, "finished"));
    let asked = purge();
    asked.answer(&question, "y");
    let (code, drawn) = asked.wait();
    let told = drawn.contains("targets, ") && drawn.contains("/s ETA") && drawn.contains("1 task removed");
    assert!(code == Some(0) && told, "{code:?} {drawn}");
    assert_eq!(tasks(&it), Vec::<u64>::new());
}

mod own_server {
    use super::*;

    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn nobody_waits_for_a_purge() {
        let server = Server::start();
        let it = Sandbox::on_server(&server.url());
        let waits = || {
            it.database.number(
                "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Innodb_row_lock_waits'",
            )
        };
        let before = waits();
        beside(&it);
        assert_eq!(waits() - before, 0, "lock waits");
    }
}
