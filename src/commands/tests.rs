//! The verbs as they are typed, parsed by the real command line, on a real SQLite database.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::screen::Screen;
use super::{migrate, purge, report, resolve, retry, status, suppress, targets, task};
use crate::cli::{Cli, Command};
use crate::config::Config;
use crate::exit::Exit;
use crate::message::Renderer;
use crate::moment::Moment;
use crate::store::migrations::VERSION;
use crate::store::{ClaimForm, Database, InFlight, Lease, Leasing, Settlement, Store, Terms};
use crate::task::{NewTask, When};

/// A database of its own, and a directory for files.
struct Stage {
    folder: TempDir,
    config: Config,
    database: Database,
    store: Box<dyn Store>,
}

const CHANNELS: &str =
    "[channel.mail]\nkind = \"file\"\npath = \"/m\"\n[channel.sms]\nkind = \"file\"\npath = \"/s\"\n";

impl Stage {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let config = config(&folder, "tasks.db", CHANNELS);
        let database = Database::open(&config.database_url, "batch_", ClaimForm::Auto).unwrap();
        database.store().unwrap().migrate(Duration::ZERO).unwrap();
        let store = database.store().unwrap();
        Self { folder, config, database, store }
    }

    /// Runs one line; `{}` in it is the directory.
    fn run(&mut self, line: &str) -> (Result<Exit>, String) {
        let line = line.replace("{}", &self.folder.path().display().to_string());
        let command = Cli::try_parse_from(["batch-send"].into_iter().chain(line.split(' '))).unwrap().command;
        let (store, mut out) = (self.store.as_mut(), Vec::new());
        let ended = match command.unwrap() {
            Command::Task(command) => task::run(&command, &self.config, store, &Screen::default(), &mut out),
            Command::Status(args) => status::run(&args, &self.config, store, &Screen::default(), &mut out),
            Command::Targets(args) => targets::run(&args, store, &mut out),
            Command::Report(args) => report::run(&args, &self.config, store, &mut out),
            Command::Resolve(args) => resolve::run(&args, store, &mut out),
            Command::Retry(args) => retry::run(&args, store, &mut out),
            Command::Purge(args) => purge::run(&args, store, &mut out),
            Command::Suppress(command) => suppress::run(&command, &self.config, store, &mut out),
            Command::Migrate(args) => migrate::run(&args, &self.config, &self.database, &mut out),
            Command::Run(_)
            | Command::Check(_)
            | Command::Demo(_)
            | Command::Completions(_)
            | Command::Man(_) => {
                panic!("not an operator's verb")
            }
        };
        (ended, String::from_utf8(out).unwrap())
    }

    /// What a line that succeeds prints.
    fn says(&mut self, line: &str) -> String {
        let (ended, said) = self.run(line);
        assert_eq!(ended.unwrap_or_else(|error| panic!("{line}: {error:#}")), Exit::Done, "{line}");
        said
    }

    fn json(&mut self, line: &str) -> Value {
        let said = self.says(line);
        assert_eq!(said.matches('\n').count(), 1, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    /// The sentence of a line that is refused, with exit 2.
    fn refused(&mut self, line: &str) -> String {
        let (sentence, said) = self.fails(line, Exit::Usage);
        assert_eq!(said, "", "{line}");
        sentence
    }

    fn fails(&mut self, line: &str, exit: Exit) -> (String, String) {
        let (ended, said) = self.run(line);
        let error = ended.expect_err(line);
        assert_eq!(Exit::of(&error), exit, "{line}: {error:#}");
        (format!("{error:#}"), said)
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::File::create(self.folder.path().join(name)).unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// A pending task with so many targets, r1, r2 and so on.
    fn task(&mut self, targets: usize) -> String {
        let rows: String = (1..=targets).map(|n| format!("r{n},{n}\n")).collect();
        self.file("rows.csv", &format!("recipient,n\n{rows}"));
        self.says("task create --name Spring --channel mail --targets {}/rows.csv").trim().to_owned()
    }

    fn lease(&mut self, task: &str, claim: Duration) -> Lease {
        let terms = Terms {
            owner: "host 1".into(),
            channel: "mail".into(),
            lease: Duration::from_secs(30),
            send: claim,
            margin: Duration::ZERO,
            dedupe: None,
        };
        match self.store.lease(task.parse().unwrap(), &terms, false).unwrap() {
            Leasing::Ours(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    /// Begins the next targets, with a claim that lasts so long.
    fn begin(&mut self, lease: &Lease, most: usize) -> Vec<InFlight> {
        let task = self.store.task(lease.task()).unwrap().unwrap();
        let renderer = Renderer::new(uuid::Uuid::nil(), &task, None, None);
        let claimed = self.store.claim(lease, most).unwrap();
        let ready = claimed
            .into_iter()
            .map(|claimed| {
                let message = renderer.render(claimed.target()).unwrap();
                claimed.ready(message, None)
            })
            .collect();
        self.store.begin(lease, ready, Vec::new()).map_err(|unwritten| unwritten.why).unwrap().in_flight
    }

    /// A task whose first targets were settled like this; the lease is given back.
    fn settled(&mut self, targets: usize, settlements: &[Settlement]) -> String {
        let id = self.task(targets);
        let lease = self.lease(&id, Duration::from_secs(60));
        let begun = self.begin(&lease, settlements.len());
        let answers = begun
            .into_iter()
            .zip(settlements)
            .map(|(in_flight, settlement)| in_flight.answer(lease.task(), settlement.clone()))
            .collect();
        self.store.settle(answers).map_err(|unwritten| unwritten.why).unwrap();
        self.store.close(lease).unwrap();
        id
    }

    fn status_of(&mut self, id: &str) -> String {
        self.json(&format!("status {id} --json"))["status"].as_str().unwrap().to_owned()
    }

    fn counts(&mut self, id: &str) -> Value {
        self.json(&format!("status {id} --json"))["counts"].clone()
    }
}

fn config(folder: &TempDir, database: &str, channels: &str) -> Config {
    let (folder, file) = (folder.path().display(), folder.path().join("config.toml"));
    let text = format!(
        "database_url = \"sqlite://{folder}/{database}\"\nstate_dir = \"{folder}/state\"\n{channels}"
    );
    std::fs::write(&file, text).unwrap();
    let line = ["batch-send", "--config", file.to_str().unwrap()];
    Config::load(&Cli::try_parse_from(line).unwrap().global, None).unwrap()
}

fn sent() -> Settlement {
    Settlement::Sent { receipt: Some("abc".into()) }
}

fn failed() -> Settlement {
    Settlement::Failed { reason: "no such\tuser".into() }
}

fn unknown() -> Settlement {
    Settlement::Unknown { reason: "timed out".into() }
}

#[test]
fn create_prints_the_id_and_lets_the_task_be_sent() {
    let mut stage = Stage::new();
    stage.file("p.csv", "recipient,name\na,A\nb,B\na,again\n");
    assert_eq!(stage.says("task create --name Spring --channel mail --targets {}/p.csv"), "1\n");
    let task = stage.json("status 1 --json");
    assert_eq!(task["status"], "pending");
    assert_eq!(task["counts"]["total"], 2);

    let made = stage.json("task create --name X --channel sms --targets {}/p.csv --draft --json");
    assert_eq!(made, json!({"id": 2, "status": "draft", "new": 2, "repeated": 1}));
    let made = stage.json("task create --name X --channel sms --json");
    assert_eq!(made, json!({"id": 3, "status": "draft", "new": 0, "repeated": 0}));
}

#[test]
fn create_keeps_what_was_typed() {
    let mut stage = Stage::new();
    stage.file("payload.json", "\u{feff}{\"text\":\n\"hi\"}");
    stage.says("task create --name S --channel mail --payload @{}/payload.json --priority -3 --at 2030-01-31T09:00:00+08:00 --expires 2030-02-01T00:00:00Z");
    let task = stage.json("status 1 --json");
    assert_eq!(task["scheduled_at"], "2030-01-31T01:00:00.000Z");
    assert_eq!(task["expires_at"], "2030-02-01T00:00:00.000Z");
    assert_eq!(task["priority"], -3);
    let stored = stage.store.task(1).unwrap().unwrap().payload.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), json!({"text": "hi"}));
}

#[test]
fn what_cannot_become_a_task_is_refused_before_there_is_one() {
    let mut stage = Stage::new();
    stage.file("broken.json", "{\n\"a\": }");
    stage.file("wrong.csv", "email\na\n");
    stage.file("first.csv", "recipient\n \na\n");
    stage.file("empty.csv", "recipient\n");
    let long = "n".repeat(192);
    for (flags, expected) in [
        ("--name S --channel fax", "no channel `fax` in the configuration, only: mail, sms"),
        ("--name  --channel mail", "--name is empty"),
        (&format!("--name {long} --channel mail"), "--name is longer than 191 characters"),
        (
            "--name S --channel mail --payload {\"a\":}",
            "--payload is not JSON: expected value at line 1 column 6",
        ),
        (
            "--name S --channel mail --payload @{}/broken.json",
            "broken.json is not JSON: expected value at line 2 column 6",
        ),
        ("--name S --channel mail --payload [1]", "--payload is not a JSON object"),
        ("--name S --channel mail --payload @{}/none", "none: No such file"),
        ("--name S --channel mail --targets {}/none.csv", "none.csv cannot be opened: No such file"),
        (
            "--name S --channel mail --targets {}/wrong.csv",
            "wrong.csv, line 1, column 1: no column `recipient`",
        ),
        (
            "--name S --channel mail --targets {}/first.csv",
            "first.csv, line 2, column 1: the recipient is empty",
        ),
        ("--name S --channel mail --targets {}/empty.csv", "--targets: no target in "),
        ("--name S --channel mail --at +2h --expires +1h", "--expires is not after --at"),
        ("--name S --channel mail --at 2030-01-31T09:00:00Z --expires +1h", "--expires is not after --at"),
        (
            "--name S --channel mail --expires 2020-01-01T00:00:00Z",
            "--expires 2020-01-01T00:00:00.000Z is past",
        ),
    ] {
        let sentence = stage.refused(&format!("task create {flags}"));
        assert!(sentence.contains(expected), "{sentence}");
    }
    stage.config = config(&stage.folder, "tasks.db", "");
    let sentence = stage.refused("task create --name S --channel mail");
    assert!(sentence.contains("no channel: add [channel.mail]"), "{sentence}");
    assert_eq!(stage.says("status"), "no tasks\n");
}

#[test]
fn an_import_that_met_a_bad_line_is_completed_by_the_command_it_names() {
    let mut stage = Stage::new();
    let path = stage.folder.path().join("o'k.csv");
    stage.file("o'k.csv", "recipient\na\nb\n \nc\n");
    let sentence = stage.refused("task create --name S --channel mail --targets {}/o'k.csv");
    let quoted = format!(
        "complete it with `batch-send task add 1 '{}'`",
        path.display().to_string().replace('\'', "'\\''")
    );
    assert!(sentence.ends_with(&quoted) && sentence.contains("`batch-send task start 1`"), "{sentence}");
    assert!(
        sentence.contains(
            "o'k.csv, line 4, column 1: the recipient is empty; task 1 stays in draft with the 2 targets before it: `batch-send task cancel 1`"
        ),
        "{sentence}"
    );
    assert_eq!(stage.status_of("1"), "draft");

    stage.file("o'k.csv", "recipient\na\nb\nc\n");
    assert_eq!(stage.says("task add 1 {}/o'k.csv"), "1 target added, 2 repeated\n");
    assert_eq!(stage.status_of("1"), "draft");
    assert_eq!(stage.says("task start 1"), "task 1 is pending\n");
}

#[test]
fn a_file_without_targets_adds_none() {
    let mut stage = Stage::new();
    stage.file("none.csv", "recipient\n");
    stage.says("task create --name S --channel mail");
    assert_eq!(stage.says("task add 1 {}/none.csv"), "0 targets added, 0 repeated\n");
}

#[test]
fn add_leaves_the_status_but_opens_a_finished_task_again() {
    let mut stage = Stage::new();
    let id = stage.settled(1, &[sent()]);
    assert_eq!(stage.status_of(&id), "finished");
    stage.file("more.jsonl", "{\"recipient\": \"r1\"}\n{\"recipient\": \"new\", \"params\": {\"n\": 1}}\n");
    let added = stage.json(&format!("task add {id} {{}}/more.jsonl --json"));
    assert_eq!(added, json!({"id": 1, "status": "pending", "new": 1, "repeated": 1}));

    stage.says("task cancel 1 --yes");
    let sentence = stage.refused("task add 1 {}/more.jsonl");
    assert!(sentence.starts_with("task 1 is cancelled: "), "{sentence}");
    assert!(stage.refused("task add 9 {}/more.jsonl").starts_with("there is no task 9"));
}

#[test]
fn each_verb_goes_from_its_statuses_and_names_the_one_that_fits() {
    let mut stage = Stage::new();
    let table: [(&str, &[&str]); 4] = [
        ("start", &["draft"]),
        ("pause", &["pending"]),
        ("resume", &["paused"]),
        ("cancel --yes", &["draft", "pending", "paused"]),
    ];
    let fits = [
        ("draft", "use `batch-send task start"),
        ("pending", "use `batch-send task pause"),
        ("paused", "use `batch-send task resume"),
        ("finished", "nothing is left of it"),
        ("cancelled", "that is for good"),
    ];
    for (verb, from) in table {
        let to = match verb {
            "start" | "resume" => "pending",
            "pause" => "paused",
            _ => "cancelled",
        };
        let (word, flags) = verb.split_once(' ').unwrap_or((verb, "--json"));
        for (status, fitting) in fits {
            let id = in_status(&mut stage, status);
            let line = format!("task {word} {id} {flags}");
            if from.contains(&status) || status == to {
                stage.says(&line);
                assert_eq!(stage.status_of(&id), to, "{line} from {status}");
            } else {
                let sentence = stage.refused(&line);
                assert!(sentence.starts_with(&format!("task {id} is {status}: {fitting}")), "{sentence}");
                assert_eq!(stage.status_of(&id), status);
            }
        }
        assert!(stage.refused(&format!("task {word} 999 {flags}")).starts_with("there is no task 999"));
    }
}

fn in_status(stage: &mut Stage, status: &str) -> String {
    match status {
        "draft" => stage.says("task create --name S --channel mail").trim().to_owned(),
        "finished" => stage.settled(1, &[sent()]),
        _ => {
            let id = stage.task(1);
            match status {
                "paused" => stage.says(&format!("task pause {id}")),
                "cancelled" => stage.says(&format!("task cancel {id} --yes")),
                _ => String::new(),
            };
            id
        }
    }
}

#[test]
fn a_pause_says_why_and_a_resume_forgets_it() {
    let mut stage = Stage::new();
    let id = stage.task(1);
    assert_eq!(
        stage.json(&format!("task pause {id} --reason typo --json")),
        json!({"id": 1, "status": "paused"})
    );
    assert_eq!(stage.json("status 1 --json")["status_reason"], "typo");
    assert!(stage.says("status").contains("paused: typo"));
    stage.says("task resume 1");
    assert_eq!(stage.json("status 1 --json")["status_reason"], Value::Null);
    stage.says("task pause 1");
    assert_eq!(stage.json("status 1 --json")["status_reason"], format!("by {}", crate::who::person()));
}

#[test]
fn an_expired_task_is_resumed_with_a_new_end() {
    let mut stage = Stage::new();
    stage.file("p.csv", "recipient\na\n");
    let expires = chrono::DateTime::from_timestamp(1_577_836_800, 0).map(When::At);
    let task = NewTask { name: "S", channel: "mail", payload: None, priority: 0, scheduled: None, expires };
    stage.store.create(&task).unwrap();
    stage.says("task add 1 {}/p.csv");
    stage.says("task start 1");
    assert!(stage.says("status").contains("expired: the next run pauses it"));
    stage.store.recover(None).unwrap();
    assert_eq!(stage.status_of("1"), "paused");
    let sentence = stage.refused("task resume 1");
    assert!(sentence.starts_with("task 1 expired at 2020-01-01T00:00:00.000Z"), "{sentence}");
    let sentence = stage.refused("task resume 1 --until 2020-01-01T00:00:00Z");
    assert!(sentence.starts_with("--until 2020-01-01T00:00:00.000Z is past"), "{sentence}");
    stage.says("task resume 1 --until never");
    let task = stage.json("status 1 --json");
    assert_eq!((&task["status"], &task["expires_at"]), (&json!("pending"), &Value::Null));
    assert!(stage.refused("task resume 1 --until +1h").contains("while it is paused"));
}

#[test]
fn status_shows_every_state_in_line() {
    let mut stage = Stage::new();
    stage.settled(3, &[sent(), failed(), unknown()]);
    stage.says("task create --name 春 --channel sms");
    stage.file("p.csv", "recipient\na\n");
    stage.says("task create --name Later --channel mail --at 2030-01-01T00:00:00Z --targets {}/p.csv");
    let running = stage.task(1);
    let _lease = stage.lease(&running, Duration::from_secs(60));
    let expected = "\
id  name    channel  state                                            sent  failed  unknown  left  total  rate  due since
 4  Spring  mail     running since 2000-00-00T00:00:00.000Z (host 1)     0       0        0     1      1   0/s  2000-00-00T00:00:00.000Z
 3  Later   mail     waiting until 2030-01-01T00:00:00.000Z              0       0        0     1      1
 2  春      sms      draft                                               0       0        0     0      0
 1  Spring  mail     finished                                            1       1        1     0      3
task 1: 1 target unknown: `batch-send targets 1 --status unknown` lists them, `batch-send resolve 1 --all --as VERDICT` (sent, failed or retry) settles them
task 1: 1 target failed: `batch-send targets 1 --status failed` says why, `batch-send retry 1` gives each one more attempt
";
    assert_eq!(timeless(&stage.says("status")), expected);
    assert_eq!(timeless(&stage.says("task list")), expected);
    let full = stage.says("status 4");
    assert!(full.contains("\nheld by     host 1, since 2") && full.contains("\npending     1\n"), "{full}");
    assert!(stage.refused("status 9").starts_with("there is no task 9"));
}

/// Times of now made alike.
fn timeless(text: &str) -> String {
    let mut text: Vec<char> = text.chars().collect();
    let form: Vec<char> = "2000-00-00T00:00:00.000Z".chars().collect();
    let alike = |c: char, form: char| c == form || (c.is_ascii_digit() && form.is_ascii_digit());
    for start in 0..text.len().saturating_sub(form.len() - 1) {
        let found = &text[start..start + form.len()];
        let later = found.starts_with(&['2', '0', '3', '0']);
        if !later && found.iter().zip(&form).all(|(c, form)| alike(*c, *form)) {
            text[start..start + form.len()].copy_from_slice(&form);
        }
    }
    text.into_iter().collect()
}

#[test]
fn the_public_form_of_a_task_has_its_keys_in_order() {
    let mut stage = Stage::new();
    assert_eq!(stage.json("status --json"), json!({"tasks": []}));
    let id = stage.task(2);
    let _lease = stage.lease(&id, Duration::from_secs(60));
    let task = stage.json("status 1 --json");
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(&task),
        "id name channel status status_reason priority scheduled_at expires_at created_at started_at finished_at lease counts \
         state waiting_for waiting_until channel_known due_since rate finishes_in"
    );
    assert_eq!(keys(&task["lease"]), "owner since until");
    assert_eq!(keys(&task["counts"]), "pending processing sending retry sent failed unknown total");
    assert_eq!(stage.json("status --json")["tasks"][0]["id"], 1);
    assert_eq!(stage.json("task list --json")["tasks"][0]["counts"]["total"], 2);
}

#[test]
fn sending_of_a_dead_run_is_shown_as_what_the_next_run_makes_of_it_and_can_be_resolved() {
    let mut stage = Stage::new();
    let id = stage.task(2);
    let lease = stage.lease(&id, Duration::ZERO);
    let begun = stage.begin(&lease, 1);
    assert_eq!(begun.len(), 1);
    drop((lease, begun));
    // Its claim ends within this millisecond or the next.
    let shown = "task 1: 1 target sending, of a run that died: unknown at the next run";
    let patience = Moment::now() + Duration::from_secs(5);
    while !stage.says("status").contains(shown) {
        assert!(!patience.passed(), "{}", stage.says("status"));
    }
    assert_eq!(stage.counts(&id)["sending"], 1);
    assert_eq!(stage.counts(&id)["overdue"], 1);
    assert!(stage.says("targets 1").contains("sending: unknown at the next run"));
    assert_eq!(stage.says("resolve 1 --all --as sent --yes"), "1 target settled as sent\n");
    assert_eq!(stage.counts(&id)["sent"], 1);
}

#[test]
fn targets_are_listed_for_eyes_and_for_programs() {
    let mut stage = Stage::new();
    stage.settled(3, &[sent(), failed(), unknown()]);
    let table = stage.says("targets 1");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(lines[0].starts_with("id  recipient  status   attempts  at "), "{table}");
    assert!(lines[2].ends_with("  no such\\tuser"), "{table}");

    let csv = stage.says("targets 1 --format csv --status failed,sent");
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    assert_eq!(
        reader.headers().unwrap().iter().collect::<Vec<_>>().join(","),
        "id,task_id,recipient,params,status,attempts,round,retry_at,send_at,settled_at,receipt,last_error"
    );
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0][10], &rows[1][11]), ("abc", "no such\tuser"));

    let lines = stage.says("targets 1 --format jsonl --status unknown");
    let row: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!(row["params"], json!({"n": "3"}));
    assert_eq!(
        (&row["status"], &row["attempts"], &row["retry_at"]),
        (&json!("unknown"), &json!(1), &Value::Null)
    );
    let keys: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, csv.lines().next().unwrap().split(',').collect::<Vec<_>>());

    let sentence = stage.refused("targets 1 --status unkown");
    assert!(sentence.ends_with("pending, processing, sending, sent, failed, retry, unknown"), "{sentence}");
    assert!(stage.refused("targets 9").starts_with("there is no task 9"));
}

#[test]
fn resolve_settles_what_is_unknown_and_names_what_is_not() {
    let mut stage = Stage::new();
    stage.settled(4, &[sent(), unknown(), unknown(), unknown()]);
    let (sentence, said) = stage.fails("resolve 1 --target 1,2,77 --as failed --yes", Exit::Trouble);
    assert_eq!(said, "1 target settled as failed\n");
    assert!(sentence.contains("left as they are: 1 (sent), 77 (none of task 1);"), "{sentence}");
    assert_eq!(stage.json("resolve 1 --target 3 --as retry --yes --json"), json!({"id": 1, "changed": 1}));
    assert_eq!(stage.status_of("1"), "pending");
    assert_eq!(stage.says("resolve 1 --all --as sent --yes --reason log"), "1 target settled as sent\n");
    assert_eq!(stage.says("resolve 1 --all --as sent --yes"), "0 targets settled as sent\n");
    let counts = stage.counts("1");
    assert_eq!((&counts["sent"], &counts["failed"], &counts["pending"]), (&json!(2), &json!(1), &json!(1)));
    assert!(stage.refused("resolve 9 --all --as sent --yes").starts_with("there is no task 9"));
}

#[test]
fn retry_gives_failed_targets_one_more_attempt() {
    let mut stage = Stage::new();
    stage.settled(3, &[sent(), failed(), failed()]);
    assert_eq!(stage.json("retry 1 --yes --json"), json!({"id": 1, "changed": 2, "suppressed": 0}));
    assert_eq!(stage.status_of("1"), "pending");
    assert_eq!(stage.says("retry 1 --yes"), "0 targets to be sent once more, with a new key\n");
    assert!(stage.refused("retry 9 --yes").starts_with("there is no task 9"));
}

#[test]
fn those_that_are_chosen_are_settled_and_the_others_named() {
    let mut stage = Stage::new();
    stage.settled(5, &[sent(), unknown(), unknown(), unknown(), unknown()]);
    let (sentence, said) =
        stage.fails("resolve 1 --recipient r1 r2 R3 nobody --as sent --yes --json", Exit::Trouble);
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), json!({"id": 1, "changed": 1}));
    assert!(sentence.starts_with("not unknown, or not of task 1"), "{sentence}");
    assert!(sentence.contains(": r1 (sent), R3 (none of task 1), nobody (none of task 1);"), "{sentence}");
    // A file is looked through before anything is changed.
    stage.file("ids.csv", "id,note\n3,\nfour,\n4,\n");
    let sentence = stage.refused("resolve 1 --file {}/ids.csv --as failed --yes");
    assert!(
        sentence.contains("ids.csv, line 3, column 1: the id is not a whole number; nothing was changed")
    );
    assert_eq!(stage.counts("1")["unknown"], 3);
    stage.file("ids.csv", "id,note\n3,\n4,\n");
    assert_eq!(stage.says("resolve 1 --file {}/ids.csv --as failed --yes"), "2 targets settled as failed\n");
    // Whom `targets` lists can be given back, filtered or not.
    for format in ["csv", "jsonl"] {
        let listed = stage.says(&format!("targets 1 --status failed --format {format}"));
        stage.file("failed", &listed);
        assert_eq!(
            stage.json("retry 1 --file {}/failed --yes --json"),
            json!({"id": 1, "changed": 2, "suppressed": 0}),
            "{format}"
        );
        let lease = stage.lease("1", Duration::from_secs(60));
        let begun = stage.begin(&lease, 2);
        let answers = begun.into_iter().map(|in_flight| in_flight.answer(1, failed())).collect();
        stage.store.settle(answers).map_err(|unwritten| unwritten.why).unwrap();
        stage.store.close(lease).unwrap();
    }
}

#[test]
fn support_asks_what_became_of_a_recipient() {
    let mut stage = Stage::new();
    stage.settled(3, &[sent(), failed()]);
    let shown = stage.says("targets 1 --recipient r2");
    for line in [
        "recipient  r2\n",
        "status     failed: certainly",
        "attempts   1\n",
        "begun      2",
        "last error no such\\tuser\n",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let shown = stage.says("targets 1 --recipient r3 r1");
    let places = ["r3\n", "pending: nothing was sent yet\n", "\n\nrecipient  r1\n", "receipt    abc\n"]
        .map(|part| shown.find(part));
    assert!(places.is_sorted() && places[0].is_some(), "{places:?}: {shown}");
    assert_eq!(stage.json("targets 1 --recipient r1 --format jsonl")["receipt"], "abc");
    let (sentence, said) = stage.fails("targets 1 --recipient r1 R1 --format csv", Exit::Trouble);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(sentence.starts_with("task 1 has no target R1: nothing of it was sent"), "{sentence}");
    assert!(stage.refused("targets 9 --recipient r1").starts_with("there is no task 9"));
}

#[test]
fn the_list_of_those_who_get_nothing_is_written_shown_and_shortened() {
    let mut stage = Stage::new();
    assert_eq!(stage.says("suppress add Ann@x bob@x ann@X --reason asked"), "");
    assert_eq!(stage.json("suppress add ann@x cy@x --channel sms --json"), json!({"new": 2, "repeated": 0}));
    assert_eq!(stage.json("suppress add ann@x dan@x --json"), json!({"new": 1, "repeated": 1}));

    let table = stage.says("suppress list");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 6);
    assert!(lines[0].starts_with("recipient  channel  reason  since"), "{table}");
    assert!(lines[1].starts_with("ann@x      *        asked   2"), "{table}");
    assert!(lines[2].starts_with("ann@x      sms              2"), "{table}");

    assert_eq!(stage.json("suppress remove ANN@x --json"), json!({"changed": 1}));
    for (line, changed) in [("ann@x nobody@x", 0), ("ann@x cy@x --channel sms", 2)] {
        let (ended, said) = stage.run(&format!("suppress remove {line} --json"));
        let expected = if changed == 0 { Exit::Trouble } else { Exit::Done };
        assert_eq!((ended.unwrap(), said), (expected, format!("{{\"changed\":{changed}}}\n")), "{line}");
    }
    let left = stage.says("suppress list --format jsonl");
    let left: Vec<Value> = left.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let keys: Vec<&str> = left[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["recipient", "channel", "reason", "since"]);
    assert_eq!((&left[0]["recipient"], &left[1]["reason"]), (&json!("bob@x"), &Value::Null));
    assert_eq!(left.len(), 2);
}

#[test]
fn what_list_prints_import_takes() {
    let mut stage = Stage::new();
    stage.says("suppress add a,\"b --reason =1,\"x");
    stage.says("suppress add c --channel sms");
    for format in ["csv", "jsonl"] {
        let exported = stage.says(&format!("suppress list --format {format}"));
        stage.file("list", &exported);
        assert_eq!(stage.says("suppress import {}/list --channel mail"), "0 recipients added, 2 repeated\n");
        stage.says("suppress remove a,\"b");
        stage.says("suppress remove c --channel sms");
        assert_eq!(stage.json("suppress import {}/list --json"), json!({"new": 2, "repeated": 0}));
        let again = stage.says(&format!("suppress list --format {format}"));
        let told = |text: &str| {
            text.lines().map(|line| line.rsplit_once(',').unwrap().0.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(told(&again), told(&exported), "all but `since`");
    }
}

#[test]
fn flags_of_an_import_are_for_those_of_whom_the_file_does_not_say() {
    let mut stage = Stage::new();
    stage.file("list.csv", "recipient,channel,reason\na,,\nb,*,\nc,mail,bounced\n");
    stage.says("suppress import {}/list.csv --channel sms --reason spring");
    let csv = stage.says("suppress list --format csv");
    let rows: Vec<&str> = csv.lines().skip(1).map(|line| line.rsplit_once(',').unwrap().0).collect();
    assert_eq!(rows, ["a,sms,spring", "b,*,spring", "c,mail,bounced"]);
}

#[test]
fn who_cannot_be_on_the_list_is_refused() {
    let mut stage = Stage::new();
    let long = "x".repeat(256);
    for (line, expected) in [
        (format!("suppress add ok {long}"), "the recipient is longer than 255 characters"),
        ("suppress add ok \t".into(), "the recipient is empty"),
        ("suppress add ok --channel we/b".into(), "`we/b` is no name for a channel: it takes 1-64"),
        ("suppress remove \t".into(), "the recipient is empty"),
        ("suppress import {}/none.csv".into(), "none.csv cannot be opened: No such file"),
    ] {
        let sentence = stage.refused(&line);
        assert!(sentence.contains(expected), "{sentence}");
    }
    assert_eq!(stage.says("suppress list --format jsonl"), "");
    stage.file("bad.csv", "recipient\na\n \nb\n");
    let sentence = stage.refused("suppress import {}/bad.csv");
    let expected =
        "bad.csv, line 3, column 1: the recipient is empty; the list has the 1 recipient before it: mend";
    assert!(sentence.contains(expected), "{sentence}");
    assert_eq!(stage.says("suppress list --format jsonl").lines().count(), 1);
}

#[test]
fn migrate_tells_what_it_did_and_check_only_looks() {
    let mut stage = Stage::new();
    assert_eq!(stage.json("migrate --json")["applied"], json!([]));
    assert_eq!(stage.says("migrate --check"), "");
    stage.config = config(&stage.folder, "other.db", "");
    stage.database = Database::open(&stage.config.database_url, "batch_", ClaimForm::Auto).unwrap();
    assert!(stage.refused("migrate --check").contains("batch-send migrate"));
    let first = stage.json("migrate --json");
    assert_eq!((&first["from"], &first["to"]), (&json!(0), &json!(VERSION)));
    assert_eq!(first["applied"][0], "0001_create_tables");
}

#[test]
fn what_migrate_prints_makes_the_same_tables() {
    let mut stage = Stage::new();
    stage.config = config(&stage.folder, "other.db", "");
    let script = stage.says("migrate --print --from 0");
    let file = stage.folder.path().join("other.db");
    let by_hand = rusqlite::Connection::open(&file).unwrap();
    by_hand.execute_batch(&script).unwrap();
    stage.database = Database::open(&stage.config.database_url, "batch_", ClaimForm::Auto).unwrap();
    let schema = stage.database.store().unwrap().schema().unwrap();
    assert!(schema.version == VERSION && schema.installation.is_some(), "{schema:?}");
    assert_eq!(stage.says("migrate"), format!("the tables are at version {VERSION}\n"));

    // Name and text of every table and index, but those of the list of migrations itself.
    let listed = |connection: &rusqlite::Connection| -> Vec<(String, Option<String>)> {
        let sql = "SELECT name, sql FROM sqlite_schema WHERE tbl_name <> 'batch_migration' ORDER BY name";
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let migrated = rusqlite::Connection::open(stage.folder.path().join("tasks.db")).unwrap();
    assert_eq!(listed(&by_hand), listed(&migrated));
}
