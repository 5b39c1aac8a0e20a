//! docs/runbook.md, played: each symptom is brought about, and then the page's own lines are typed, one after another, and
//! show what the page says. No command of the page is left out.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::journal::four_answers_in_a_dead_runs_journal;
use crate::support::document::{block, document, statements, words};
use crate::support::process::Finished;
use crate::support::{Cue, Endpoint, Engine, Sandbox, check, wait_until};

on_each_database! {
    stop,
    cron_sent_a_mail,
    a_task_does_not_move,
    unknown_targets,
    the_provider_is_down,
    a_run_hangs,
    the_database_was_restored,
    the_table_grew;
    mysql alone:
    a_host_died,
}

const PAGE: &str = "docs/runbook.md";

/// A command of the page, and what the page shows of its output.
struct Step {
    typed: String,
    shown: Vec<String>,
}

/// One section of the page, gone through from its top to its end.
struct Section<'a> {
    it: &'a Sandbox,
    /// Of several hosts, the one where it is typed.
    host: Option<usize>,
    steps: std::vec::IntoIter<Step>,
    /// What is called otherwise here, and how the page calls it.
    names: Vec<(String, &'static str)>,
}

fn section(heading: &str) -> String {
    let page = document(PAGE);
    let (_, rest) =
        page.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    rest.split("\n## ").next().unwrap().to_owned()
}

/// Commands in blocks and in the text, in the order of the page.
fn steps(heading: &str) -> Vec<Step> {
    let section = section(heading);
    let mut steps: Vec<Step> = Vec::new();
    let mut in_block: Option<&str> = None;
    for line in section.lines() {
        let step =
            |typed: &str| Step { typed: typed.split(" > ").next().unwrap().to_owned(), shown: Vec::new() };
        match (line.strip_prefix("```"), in_block) {
            (Some(_), Some(_)) => in_block = None,
            (Some(info), None) => in_block = Some(info),
            (None, Some("console")) => match line.strip_prefix("$ batch-send ") {
                Some(typed) => steps.push(step(typed)),
                None => steps.last_mut().unwrap().shown.push(line.to_owned()),
            },
            (None, Some(_)) => {}
            (None, None) => {
                let spans = line.split('`').skip(1).step_by(2);
                steps.extend(spans.filter_map(|span| span.strip_prefix("batch-send ")).map(step));
            }
        }
    }
    assert!(!steps.is_empty(), "no command in section {heading}");
    steps
}

impl<'a> Section<'a> {
    fn of(it: &'a Sandbox, heading: &str) -> Self {
        Self { it, host: None, steps: steps(heading).into_iter(), names: Vec::new() }
    }

    /// Types the next command, which begins so, and sees what the page shows.
    #[track_caller]
    fn types(&mut self, begins: &str) -> Finished {
        let step = self.steps.next().unwrap_or_else(|| panic!("the page has no more commands: {begins}"));
        assert!(step.typed.starts_with(begins), "the page types `{}`, not {begins}", step.typed);
        let call = match self.host {
            Some(host) => self.it.call_on_host(host, ""),
            None => self.it.call(""),
        };
        let done = words(&step.typed).iter().fold(call, |call, word| call.arg(word)).done();
        let mut text = done.stdout.clone() + &done.stderr;
        for (here, there) in &self.names {
            text = text.replace(here, there);
        }
        let mut lines = text.lines();
        for shown in &step.shown {
            assert!(lines.any(|line| same(line, shown)), "the page shows\n{shown}\nand not {done}");
        }
        done
    }

    /// The page's SQL in this section.
    fn runs(&self, info: &str) {
        for statement in statements(&block(&document(PAGE), info)) {
            self.it.database.execute(&statement);
        }
    }

    #[track_caller]
    fn ends(mut self) {
        if let Some(step) = self.steps.next() {
            panic!("nobody typed `{}`", step.typed);
        }
    }
}

/// Whether the page shows this line: any time stands for any other, three dots for anything, and it may end anywhere after them.
fn same(line: &str, shown: &str) -> bool {
    let (line, shown) = (timeless(line), timeless(shown));
    let mut pieces = shown.split("...");
    let Some(mut rest) = pieces.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut exact = true;
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
        exact = !piece.is_empty();
    }
    !exact || rest.is_empty()
}

/// Digits of times made alike.
fn timeless(line: &str) -> String {
    let mut text: Vec<char> = line.chars().collect();
    let form: Vec<char> = "0000-00-00T00:00:00.000Z".chars().collect();
    let alike = |a: char, b: char| a == b || (a.is_ascii_digit() && b == '0');
    for start in 0..text.len().saturating_sub(form.len() - 1) {
        if form.iter().enumerate().all(|(n, c)| alike(text[start + n], *c)) {
            text[start..start + form.len()].copy_from_slice(&form);
        }
    }
    text.into_iter().collect()
}

/// Task 7, with target 17 and its neighbours.
fn task_7(it: &Sandbox, channel: &str, names: &[&str]) {
    it.database
        .execute(&format!("INSERT INTO batch_task (id, name, channel) VALUES (7, 'Spring', '{channel}')"));
    for (id, name) in (17..).zip(names) {
        it.database.execute(&format!(
            "INSERT INTO batch_task_target (id, task_id, recipient) VALUES ({id}, 7, '{name}@example.com')"
        ));
    }
    it.database.execute("UPDATE batch_task SET status = 'pending' WHERE id = 7");
}

/// An endpoint that works as long as the switch is on; off, it answers so.
fn with_a_switch(off: Cue) -> (Endpoint, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&works);
    let answer = move |_: &_| if works.load(Ordering::SeqCst) { Cue::Accept } else { off };
    (Endpoint::new(answer), switch)
}

fn stop(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure("", &endpoint.channel("welcome", "concurrency = 1"));
    task_7(&it, "welcome", &["ann", "bob", "cy"]);
    let run = it.call("run").start();
    wait_until("a message in flight", 20, || endpoint.waiting() == 1);
    let mut page = Section::of(&it, "Stop");
    page.types("task pause 7").exits(0);
    wait_until("the run to give back what it has not begun", 10, || it.database.count(7, "processing") == 0);
    endpoint.tell();
    run.wait().quietly();
    page.types("status 7").exits(0);
    let sent = page.types("targets 7 --status sent").exits(0);
    assert!(sent.stdout.contains("ann@example.com") && !sent.stdout.contains("bob@"), "{sent}");
    page.types("task resume 7").exits(0);
    page.types("task cancel 7").exits(0);
    page.ends();
    it.run();
    assert_eq!((endpoint.requests(), it.database.count(7, "pending")), (1, 2));
}

fn cron_sent_a_mail(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "bob@example.com" => Cue::AcceptThenClose,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("welcome", ""));
    task_7(&it, "welcome", &["ann", "bob"]);
    let mail = it.call("run").done().exits(3);
    in_the_table(&mail);
    // Its neighbours in the table.
    in_the_table(&it.call("run --database-url mysql://app@127.0.0.1:1/shop").done().exits(75));
    in_the_table(&Sandbox::empty(it.database.engine).call("run").done().exits(2));
    let mut page = Section::of(&it, "Cron sent a mail");
    page.types("status").exits(0);
    page.types("check").exits(0);
    let (drop, mend) = match it.database.engine {
        Engine::Sqlite => (
            "DROP INDEX batch_task_target_k_task_status",
            it.database.text("SELECT sql FROM sqlite_schema WHERE name = 'batch_task_target_k_task_status'"),
        ),
        Engine::MySql => (
            "ALTER TABLE batch_task_target DROP KEY k_task_status",
            "ALTER TABLE batch_task_target ADD KEY k_task_status (task_id, status)".to_owned(),
        ),
    };
    it.database.task("welcome", ["cy"]);
    it.database.execute(drop);
    in_the_table(&it.call("run").done().exits(2));
    let check = page.types("check").exits(2);
    assert!(check.stdout.contains("k_task_status"), "{check}");
    it.database.execute(&mend);
    if it.database.engine == Engine::MySql {
        let (_, place) = it.database.url.split_once('@').unwrap();
        in_the_table(&it.call(&format!("run --database-url mysql://nobody:here@{place}")).done().exits(2));
    }
    page.types("migrate").exits(0);
    it.call("run").done().exits(0);
    page.types("run -v").exits(0);
    page.ends();
}

/// What cron mails begins with something that the page's table knows.
#[track_caller]
fn in_the_table(mail: &Finished) {
    in_the_table_of("Cron sent a mail", mail);
}

#[track_caller]
fn in_the_table_of(heading: &str, mail: &Finished) {
    let section = section(heading);
    let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    let known: Vec<_> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    for line in mail.stderr.lines() {
        let said = line.strip_prefix("batch-send: ").unwrap_or(line);
        let found = known.iter().any(|shown| same(said, shown) || same(said, &format!("...{shown}...")));
        assert!(found, "the page's table does not know: {line}\n{known:?}");
    }
}

fn a_task_does_not_move(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "bob@example.com" if request.nth == 1 => Cue::Answer(421),
        "eve@example.com" => Cue::Answer(401),
        _ => Cue::Accept,
    });
    let channel = endpoint.channel("welcome", "concurrency = 1");
    it.configure("", &channel);
    task_7(&it, "welcome", &["ann"]);
    let database = &it.database;
    let mut page = Section::of(&it, "A task does not move");
    let says = |state: &str| {
        let page = document(PAGE);
        let shown = it.call("status 7").done().exits(0);
        let line =
            shown.stdout.lines().find_map(|line| line.strip_prefix("state")).unwrap().trim().to_owned();
        assert!(line.starts_with(state.trim_end_matches("...")), "{shown}");
        assert!(page.contains(&format!("| `{state}`")), "the page does not know {state}");
    };
    database.execute("UPDATE batch_task SET status = 'draft' WHERE id = 7");
    page.types("status 7").exits(0);
    says("draft");
    page.types("task start 7").exits(0);
    database
        .execute(&format!("UPDATE batch_task SET scheduled_at = {} WHERE id = 7", database.moment(3_600)));
    it.run();
    says("waiting until ...");
    page.types("run --task-id 7 --force").quietly();
    assert_eq!(database.count(7, "sent"), 1);

    database.add(7, ["bob@example.com"]);
    let past = database.moment(-1);
    database.execute(&format!(
        "UPDATE batch_task SET status = 'pending', finished_at = NULL, scheduled_at = NULL, expires_at = {past} WHERE id = 7"
    ));
    in_the_table(&it.call("run").done().exits(3));
    says("paused: it expired at ...");
    page.types("task resume 7 --until +2h").exits(0);
    database.execute("UPDATE batch_task SET status = 'paused', status_reason = 'x' WHERE id = 7");
    says("paused: ...");
    page.types("task resume 7").exits(0);
    page.types("status 7 --watch").exits(2);
    says("pending");
    page.types("run -v").exits(0).says(&["served task=7"]);
    assert_eq!((database.count(7, "retry"), database.status(7).as_str()), (1, "pending"));

    // Added behind the back of a task that has ended, long ago.
    let long_ago = database.moment(-7_200);
    database.execute(&format!(
        "UPDATE batch_task SET status = 'finished', finished_at = {long_ago} WHERE id = 7"
    ));
    database.add(7, ["cy@example.com"]);
    it.run();
    assert_eq!(database.count(7, "pending"), 1);
    says("finished");
    page.types("run --task-id 7").quietly();
    assert_eq!(database.count(7, "sent"), 2);
    let waits = page.types("targets 7 --status retry").exits(0);
    assert!(waits.stdout.contains("bob@example.com"), "{waits}");

    database.add(7, ["dora@example.com"]);
    it.configure("", &channel.replace("welcome", "welcom"));
    page.types("run -v").exits(0);
    page.types("check").exits(0);
    page.ends();
}

fn unknown_targets(it: Sandbox) {
    let (endpoint, works) = with_a_switch(Cue::AcceptThenClose);
    it.configure("", &endpoint.channel("welcome", "concurrency = 1"));
    task_7(&it, "welcome", &["bob", "ann", "cyd", "dan", "eve", "fay"]);
    in_the_table(&it.call("run").done().exits(3));
    assert_eq!((it.database.count(7, "unknown"), it.database.status(7).as_str()), (5, "paused"));
    let keys = |name: &str| {
        let of = |request: &_| -> Option<String> {
            let request: &crate::support::endpoint::Request = request;
            (request.recipient == name).then(|| request.body["key"].as_str().unwrap().to_owned())
        };
        endpoint.all().iter().filter_map(of).collect::<Vec<_>>()
    };
    works.store(true, Ordering::SeqCst);
    let mut page = Section::of(&it, "Unknown targets");
    page.types("targets 7").exits(0);
    assert!(page.types("targets 7 --recipient").exits(0).stdout.contains("begun "));
    let message = page.types("run --dry-run").exits(0);
    assert_eq!(message.json()["key"], keys("bob@example.com")[0], "the key that it bore");
    page.types("resolve 7 --target 17 --as sent").exits(0);
    page.types("resolve 7 --all --as retry").exits(0);
    page.types("resolve 7 --all --as failed").exits(0);
    page.types("task try 7").exits(0);
    page.types("task resume 7").exits(0);
    page.ends();
    it.run();
    assert_eq!((it.database.count(7, "sent"), it.database.status(7).as_str()), (6, "finished"));
    assert_eq!(keys("bob@example.com").len(), 1);
    let ann = keys("ann@example.com");
    assert!(ann.len() == 2 && ann[0] == ann[1], "{ann:?}");
}

fn the_provider_is_down(it: Sandbox) {
    let (endpoint, works) = with_a_switch(Cue::Busy(503, 30));
    it.configure("", &endpoint.channel("welcome", "concurrency = 1"));
    task_7(&it, "welcome", &["ann", "bob"]);
    it.run();
    let mut page = Section::of(&it, "The provider is down");
    page.types("status").exits(0);
    it.run();
    assert_eq!((endpoint.requests(), it.database.count(7, "pending")), (1, 2));

    // It is back, and refuses our key.
    let past = it.database.pace_moment(-1);
    it.database.execute(&format!("UPDATE batch_pace SET held_until = {past}, next_at = {past}"));
    let (refusing, _) = with_a_switch(Cue::Answer(401));
    it.configure("", &refusing.channel("welcome", ""));
    in_the_table(&it.call("run").done().exits(3));
    let shown = it.call("status").done().exits(0);
    assert!(shown.stdout.contains("paused: channel unavailable"), "{shown}");
    it.configure("", &endpoint.channel("welcome", "concurrency = 1"));
    works.store(true, Ordering::SeqCst);
    page.types("task try 7").exits(0);
    page.types("task resume 7").exits(0);
    page.types("task pause 7").exits(0);
    page.ends();
    it.run();
    assert_eq!(it.database.count(7, "pending"), 2);
    it.call("task resume 7").done().exits(0);
    it.run();
    assert_eq!((it.database.count(7, "sent"), it.database.status(7).as_str()), (2, "finished"));
}

fn a_host_died(it: Sandbox) {
    let (endpoint, task) = four_answers_in_a_dead_runs_journal(&it);
    let database = &it.database;
    database.execute(&format!("UPDATE batch_task_target SET task_id = 7 WHERE task_id = {task}"));
    database.execute(&format!("UPDATE batch_task SET id = 7 WHERE id = {task}"));
    database.claims_end(7);
    let mut page = Section::of(&it, "A host died");
    page.host = Some(2);
    page.types("status 7").exits(0);
    // Brought from the disk of the host that died; there it knew the task by another number.
    fs::create_dir_all(it.path("state-2")).unwrap();
    for entry in fs::read_dir(it.path("state")).unwrap().map(Result::unwrap) {
        let text = fs::read_to_string(entry.path()).unwrap();
        let text = text.replace(&format!("\"task\":{task},"), "\"task\":7,");
        if entry.file_name().to_string_lossy().starts_with("journal-") {
            fs::write(it.path("state-2").join(entry.file_name()), text).unwrap();
        }
    }
    page.types("run -v").exits(0);
    page.ends();
    assert_eq!(database.count(7, "sent"), 14, "{:?}", database.targets(7));
    check(&it, 7, &endpoint);
}

fn a_run_hangs(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure("", &endpoint.channel("welcome", "timeout = \"20s\"\nconcurrency = 1"));
    task_7(&it, "welcome", &["ann", "bob"]);
    let hangs = it.call("run").start();
    wait_until("a message in flight", 20, || endpoint.waiting() == 1);
    // For the file it is later: what it says of the holder is that it should have ended.
    let files = fs::read_dir(it.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let lock = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "lock")).unwrap();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
    fs::write(&lock, format!("{} {} {}\n", hangs.pid(), now - 200, now - 10)).unwrap();
    let mut page = Section::of(&it, "A run hangs");
    page.names.push((format!("pid {} ", hangs.pid()), "pid 4711 "));
    // However many seconds have gone by since.
    page.names.extend((21..60).map(|seconds| (format!(" since 3m{seconds}s "), " since 3m20s ")));
    page.names.push((it.path("state").display().to_string(), "/var/lib/batch-send"));
    let still = it.call("run").done().exits(1);
    in_the_table(&still);
    let step = page.types("run -v");
    assert!(step.code() == Some(1), "{step}");
    page.types("run").exits(1);
    hangs.kill();
    it.database.claims_end(7);
    endpoint.tell();
    page.types("run").exits(3);
    page.ends();
    check(&it, 7, &endpoint);
    assert_eq!((it.database.count(7, "unknown"), it.database.count(7, "sent")), (1, 1));
}

fn the_database_was_restored(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("welcome", ""));
    task_7(&it, "welcome", &["ann", "bob", "cy"]);
    // After the backup, ann got hers. The backup does not know, and has a claim of a run that was at work.
    it.call("run --task-id 7 --limit 1").done().quietly();
    assert_eq!(endpoint.ledger().into_keys().collect::<Vec<_>>(), ["ann@example.com"]);
    let past = it.database.moment(-60);
    it.database.execute(
        "UPDATE batch_task_target SET status = 'pending', attempts = 0, cron_token = NULL, claim_until = NULL,
         send_at = NULL, settled_at = NULL, receipt = NULL WHERE id = 17",
    );
    it.database.execute(&format!(
        "UPDATE batch_task_target SET status = 'processing', cron_token = 'x', claim_until = {past} WHERE id = 18"
    ));
    let mut page = Section::of(&it, "The database was restored");
    page.types("status").exits(0);
    page.types("task pause 7").exits(0);
    page.runs("sql restored");
    let listed = page.types("targets 7").exits(0);
    assert_eq!(listed.stdout.lines().count(), 4, "{listed}");
    page.types("resolve 7 --target 17 --as sent").exits(0);
    page.types("resolve 7 --all --as retry").exits(0);
    page.types("task resume 7").exits(0);
    page.ends();
    it.run();
    check(&it, 7, &endpoint);
    assert_eq!((it.database.count(7, "sent"), it.database.status(7).as_str()), (3, "finished"));
}

fn the_table_grew(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("welcome", ""));
    task_7(&it, "welcome", &["ann", "bob", "cy"]);
    let other = it.database.task("welcome", ["dora"]);
    it.run();
    let mut page = Section::of(&it, "The table grew");
    let ago = |days: i64| {
        let then = it.database.moment(-86_400 * days);
        it.database.execute(&format!("UPDATE batch_task SET finished_at = {then} WHERE id = 7"));
    };
    page.types("status").exits(0);
    let kept = page.types("targets 7").exits(0);
    assert_eq!(kept.stdout.lines().count(), 4, "{kept}");
    it.call("purge --finished-before 90d --yes").done().quietly();
    assert_eq!(it.database.count(7, "sent"), 3, "it ended today");
    ago(91);
    page.types("purge --finished-before 90d --dry-run").exits(0);
    assert_eq!(it.database.count(7, "sent"), 3);
    it.database.execute("UPDATE batch_task_target SET status = 'unknown' WHERE id = 17");
    in_the_table_of("The table grew", &it.call("purge --finished-before 90d --yes").done().exits(3));
    it.database.execute("UPDATE batch_task_target SET status = 'sent' WHERE id = 17");
    it.database.add(7, ["late"]);
    in_the_table_of("The table grew", &it.call("purge --finished-before 90d --yes").done().exits(3));
    it.database.execute("DELETE FROM batch_task_target WHERE recipient = 'late'");
    page.types("purge --finished-before 90d --yes").quietly();
    let rows = "SELECT (SELECT COUNT(*) FROM batch_task_target) + (SELECT COUNT(*) FROM batch_task)";
    assert_eq!((it.database.number(rows), it.database.count(other, "sent")), (2, 1));
    page.types("purge --finished-before 90d --with-unknown").quietly();
    page.ends();
    it.call("status 7").done().exits(2);
    it.run();
}

#[test]
fn the_reader_of_the_page_knows_what_is_shown() {
    let line = "at 2026-11-30T15:57:55.911Z: 5 of 7";
    assert!(same(line, "at 2020-01-01T00:00:00.000Z: 5 of 7") && same(line, "at ...: 5 of ..."));
    assert!(
        !same(line, "at ...: 6 of 7")
            && !same(line, "at ...: 5 of")
            && !same(line, "2026-11-30T15:57:55.911Z")
    );
    let total: usize = document(PAGE).matches("batch-send task pause").count();
    assert!(total >= 3);
}
