//! Who is on the list gets nothing: from one channel or from every one, however late they were put there, and whoever put
//! them there. Everybody else gets theirs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::process::bare;
use crate::support::sandbox::BINARY;
use crate::support::{Cue, Endpoint, Sandbox, check, wait_until};

on_each_database! {
    who_is_on_the_list_gets_nothing_and_the_others_get_theirs,
    who_is_put_on_the_list_after_the_claim_gets_nothing,
    one_channel_is_not_another,
    case_and_blanks_do_not_matter,
    an_application_writes_the_list_in_sql,
    who_is_taken_off_the_list_and_retried_gets_the_message,
    a_task_of_nobody_but_those_on_the_list_finishes,
    a_retry_that_waits_is_stopped_by_the_list,
    acts_on_the_list_are_audited,
    the_list_has_a_stable_form,
    a_reader_of_the_list_may_go_away,
    a_hundred_thousand_lines_are_imported,
    a_bad_line_ends_the_import_and_is_named,
    what_cannot_be_on_the_list_is_refused,
    a_channel_that_this_host_does_not_know_is_taken_and_named,
}

/// Not sent, and the row says why.
#[track_caller]
fn suppressed(it: &Sandbox, task: u64, recipient: &str) {
    let row = it.database.target(task, recipient);
    let ended = (row.status.as_str(), row.attempts, row.error.as_str());
    assert_eq!(ended, ("failed", 0, "suppressed"), "{row:?}");
}

fn who_is_on_the_list_gets_nothing_and_the_others_get_theirs(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", (0..40).map(|n| format!("person-{n}")));
    it.call("suppress add person-7 person-23").done().quietly();
    let shown = it.call("run --dry-run --limit 100").done().exits(0).stdout;
    assert!(shown.lines().count() == 38 && !shown.contains("\"person-7\""), "{shown}");
    it.run();
    check(&it, task, &endpoint);
    suppressed(&it, task, "person-7");
    suppressed(&it, task, "person-23");
    assert_eq!((it.database.count(task, "sent"), endpoint.requests()), (38, 38));
    assert_eq!(it.database.status(task), "finished");
}

fn who_is_put_on_the_list_after_the_claim_gets_nothing(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::AcceptWhenTold);
    it.configure("", &endpoint.channel("web", "concurrency = 1"));
    let task = it.database.task("web", ["ann", "bob", "cy"]);
    let run = it.call("run").start();
    wait_until("ann to be in flight and bob to be claimed", 20, || {
        endpoint.waiting() == 1 && it.database.target(task, "bob").status == "processing"
    });
    it.call("suppress add bob").done().quietly();
    endpoint.tell();
    run.wait().quietly();
    check(&it, task, &endpoint);
    suppressed(&it, task, "bob");
    assert_eq!(it.database.count(task, "sent"), 2);
}

fn one_channel_is_not_another(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &(endpoint.channel("web", "") + &endpoint.channel("sms", "")));
    it.call("suppress add ann --channel web").done().quietly();
    it.call("suppress add bob").done().quietly();
    let (web, sms) = (it.database.task("web", ["ann", "bob"]), it.database.task("sms", ["ann", "bob"]));
    it.run();
    suppressed(&it, web, "ann");
    suppressed(&it, web, "bob");
    suppressed(&it, sms, "bob");
    assert_eq!(it.database.target(sms, "ann").status, "sent");
    assert_eq!(endpoint.ledger(), BTreeMap::from([("ann".to_owned(), 1)]));

    // The entry for every channel is none of these, and stands.
    let removed = it.call("suppress remove bob --channel web --json").done().exits(1);
    assert_eq!(removed.json(), json!({ "changed": 0 }));
    removed.says(&["bob", "web", "batch-send suppress list"]);
    let again = it.database.task("web", ["bob"]);
    it.run();
    suppressed(&it, again, "bob");
}

fn case_and_blanks_do_not_matter(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    it.call("suppress add").arg("  Ann@Example.COM ").done().quietly();
    it.call("suppress import -").stdin("recipient\n\" BOB@example.com \"\nÉve@example.com\n").done().exits(0);
    let names =
        ["ann@example.com", " ANN@example.com", "Bob@Example.com", "éve@example.com", "ann@example.org"];
    let task = it.database.task("web", names);
    it.run();
    check(&it, task, &endpoint);
    for name in &names[..4] {
        suppressed(&it, task, name);
    }
    assert_eq!(endpoint.ledger().into_keys().collect::<Vec<_>>(), ["ann@example.org"]);
}

fn an_application_writes_the_list_in_sql(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &(endpoint.channel("web", "") + &endpoint.channel("sms", "")));
    it.database.execute("INSERT INTO batch_suppression (recipient) VALUES ('Ann@x')");
    it.database.execute(
        "INSERT INTO batch_suppression (recipient, channel, reason) VALUES ('bob@x', 'web', 'full')",
    );
    let (web, sms) =
        (it.database.task("web", ["ann@x", "bob@x"]), it.database.task("sms", ["ann@x", "bob@x"]));
    it.run();
    for (task, name) in [(web, "ann@x"), (web, "bob@x"), (sms, "ann@x")] {
        suppressed(&it, task, name);
    }
    assert_eq!(it.database.target(sms, "bob@x").status, "sent");
    let list = it.call("suppress list --format csv").done().exits(0).stdout;
    assert!(list.contains("\nann@x,*,,2") && list.contains("\nbob@x,web,full,2"), "{list}");
    // What an application wrote, a person takes off.
    it.call("suppress remove ann@x").done().quietly();
    it.call("suppress remove bob@x --channel web").done().quietly();
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_suppression"), 0);
}

fn who_is_taken_off_the_list_and_retried_gets_the_message(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    let task = it.database.task("web", ["ann", "bob"]);
    it.call("suppress add ann bob").done().quietly();
    it.run();
    assert_eq!((it.database.count(task, "failed"), endpoint.requests()), (2, 0));
    it.call("suppress remove ANN").done().quietly();
    let retried = it.call(&format!("retry {task} --yes")).done().exits(0);
    assert!(retried.stdout.contains("\n2 of them had failed as suppressed"), "{retried}");
    it.run();
    check(&it, task, &endpoint);
    let ann = it.database.target(task, "ann");
    assert_eq!((ann.status.as_str(), ann.attempts), ("sent", 1), "{ann:?}");
    suppressed(&it, task, "bob");
    assert_eq!(it.database.status(task), "finished");
}

/// More of them than the rejections that pause a task: they say nothing of its message.
fn a_task_of_nobody_but_those_on_the_list_finishes(it: Sandbox) {
    let endpoint =
        Endpoint::new(|request| if request.recipient == "wrong" { Cue::Answer(422) } else { Cue::Accept });
    it.configure("", &endpoint.channel("web", ""));
    let everybody: Vec<String> = (0..250).map(|n| format!("person-{n}")).collect();
    let list = format!("recipient\n{}\n", everybody.join("\n"));
    let imported = it.call("suppress import - --json").stdin(&list).done().exits(0).json();
    assert_eq!(imported, json!({ "new": 250, "repeated": 0 }));
    let nobody = it.database.task("web", &everybody);
    let one = it.database.task("web", everybody.iter().map(String::as_str).chain(["wrong"]));
    it.run();
    for (task, failed) in [(nobody, 250), (one, 251)] {
        assert_eq!(it.database.standing(task), ("finished".into(), String::new()));
        assert_eq!(it.database.count(task, "failed"), failed);
    }
    assert_eq!(endpoint.requests(), 1);
    it.run();
}

fn a_retry_that_waits_is_stopped_by_the_list(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::Answer(421));
    it.configure("", &endpoint.channel("web", "backoff = { first = \"100ms\", most = \"100ms\" }"));
    let task = it.database.task("web", ["ann"]);
    it.run();
    let asked = endpoint.requests();
    assert!(asked >= 1 && it.database.target(task, "ann").status == "retry");
    it.call("suppress add ann").done().quietly();
    wait_until("the retry to be due and settled", 20, || {
        it.run();
        it.database.count(task, "retry") == 0
    });
    let ann = it.database.target(task, "ann");
    assert_eq!((ann.status.as_str(), ann.error.as_str()), ("failed", "suppressed"), "{ann:?}");
    assert_eq!((u64::from(ann.attempts), endpoint.requests()), (asked as u64, asked));
}

fn acts_on_the_list_are_audited(it: Sandbox) {
    it.configure("", &Endpoint::accepting().channel("web", ""));
    it.call("suppress add ann --channel web --reason").arg("asked by phone").done().quietly();
    it.call("suppress import -").stdin("recipient\nbob\ncy\n").done().exits(0);
    it.call("suppress remove ann --channel web").done().quietly();
    it.call("suppress remove nobody").done().exits(1);
    let audit = it
        .database
        .rows("SELECT what, why, who, task_id FROM batch_audit WHERE what LIKE 'suppress%' ORDER BY id");
    let text = |row: &Vec<Option<String>>, column: usize| row[column].clone().unwrap_or_default();
    let acts: Vec<_> = audit.iter().map(|row| (text(row, 0), text(row, 1))).collect();
    let expected = [
        ("suppress add", "ann (channel web): asked by phone"),
        ("suppress import", "2 recipients"),
        ("suppress remove", "ann (channel web)"),
    ];
    assert_eq!(acts, expected.map(|(what, why)| (what.to_owned(), why.to_owned())));
    assert!(audit.iter().all(|row| text(row, 2).contains('@') && row[3].is_none()), "{audit:?}");
}

fn the_list_has_a_stable_form(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &(endpoint.channel("web", "") + &endpoint.channel("sms", "")));
    it.call("suppress add ann@x --reason bounced").done().quietly();
    let added = it.call("suppress add ann@x bob@x --channel web --json").done().exits(0).json();
    assert_eq!(added, json!({ "new": 2, "repeated": 0 }));
    let added = it.call("suppress add ANN@x --json").done().exits(0).json();
    assert_eq!(added, json!({ "new": 0, "repeated": 1 }));
    let shown = it.call("suppress list --format jsonl").done().exits(0);
    let rows: Vec<Value> = shown.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = rows.iter().map(|row| (&row["recipient"], &row["channel"], &row["reason"])).collect();
    let (ann, bob, every, web) = (json!("ann@x"), json!("bob@x"), json!("*"), json!("web"));
    assert_eq!(
        told,
        [(&ann, &every, &json!("bounced")), (&ann, &web, &Value::Null), (&bob, &web, &Value::Null)]
    );
    assert!(rows.iter().all(|row| row["since"].as_str().is_some_and(|time| time.ends_with('Z'))), "{shown}");
    let csv = it.call("suppress list --format csv").done().exits(0).stdout;
    assert!(csv.starts_with("recipient,channel,reason,since\nann@x,*,bounced,2"), "{csv}");
    let table = it.call("suppress list").done().exits(0).stdout;
    assert_eq!(table.lines().count(), 4, "{table}");

    // What it prints goes back in as it was.
    for format in ["csv", "jsonl"] {
        let list = it.call(&format!("suppress list --format {format}")).done().exits(0).stdout;
        let again = it.call("suppress import - --channel sms --json").stdin(&list).done().exits(0);
        assert_eq!((again.json(), again.stderr.as_str()), (json!({ "new": 0, "repeated": 3 }), ""));
    }
    let removed = it.call("suppress remove ann@x bob@x nobody@x --channel web --json").done().exits(1);
    assert_eq!(removed.json(), json!({ "changed": 2 }));
    removed.says(&["nobody@x"]);
}

fn a_reader_of_the_list_may_go_away(it: Sandbox) {
    let list =
        format!("recipient\n{}", (0..5_000).map(|n| format!("person-{n}@example.com\n")).collect::<String>());
    it.call("suppress import -").stdin(&list).done().exits(0);
    for format in ["table", "csv", "jsonl"] {
        let mut child = bare(BINARY)
            .args(["suppress", "list", "--format", format])
            .env("BATCH_SEND_CONFIG", it.path("config.toml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        let mut stdout = BufReader::with_capacity(64, child.stdout.take().unwrap());
        stdout.read_line(&mut first).unwrap();
        drop(stdout);
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        assert!(
            status.success() && stderr.is_empty() && first.contains("recipient"),
            "{status}: {first}{stderr}"
        );
    }
}

fn a_hundred_thousand_lines_are_imported(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    // As a provider exports it: more columns than are asked for.
    let lines =
        (0..100_000).map(|n| format!("2026-01-01,User-{n}@example.com,\"550, no such user\",bounce\n"));
    let list = it.write("bounces.csv", &format!("created,recipient,reason,\n{}", lines.collect::<String>()));
    let list = list.display().to_string();
    let imported = it.call("suppress import").arg(&list).done().exits(0);
    assert_eq!(imported.stdout, "100000 recipients added, 0 repeated\n");
    assert!(imported.stderr.is_empty(), "{imported}");
    let again = it.call("suppress import --json").arg(&list).done().exits(0).json();
    assert_eq!(again, json!({ "new": 0, "repeated": 100_000 }));
    let task = it.database.task("web", ["user-99999@example.com", "user-100000@example.com"]);
    it.run();
    check(&it, task, &endpoint);
    suppressed(&it, task, "user-99999@example.com");
    assert_eq!(it.database.count(task, "sent"), 1);
    assert_eq!(it.call("suppress list --format csv").done().exits(0).stdout.lines().count(), 100_001);
}

fn a_bad_line_ends_the_import_and_is_named(it: Sandbox) {
    let long = "x".repeat(256);
    for (list, words) in [
        ("recipient,reason\nann,x\n  ,y\nbob,z\n".to_owned(), ["line 3", "the recipient is empty"]),
        (format!("recipient\nann\n{long}\n"), ["line 3", "255"]),
        ("{\"recipient\": \"ann\"}\n{\"recipient\": 7}\n".into(), ["line 2", "not a string"]),
        ("recipient,channel\nann,\nbob,no name\n".into(), ["line 3", "no name"]),
        ("email\nann\n".into(), ["line 1", "no column `recipient`"]),
        (String::new(), ["line 1", "nothing is here"]),
    ] {
        let call = it.call("suppress import -").stdin(&list).done().exits(2);
        assert!(call.stdout.is_empty(), "{call}");
        call.says(&words);
    }
    // What came before the line is there, once.
    assert_eq!(it.call("suppress list --format csv").done().exits(0).stdout.lines().count(), 2);
}

fn what_cannot_be_on_the_list_is_refused(it: Sandbox) {
    let long = "x".repeat(256);
    for (args, last, words) in [
        ("suppress add ann", "  ", "empty"),
        ("suppress add ann", long.as_str(), "255"),
        ("suppress add ann --channel", "no name", "`no name`"),
        ("suppress remove", "", "empty"),
        ("suppress import", "/nowhere.csv", "/nowhere.csv"),
        ("suppress list --format", "xml", "xml"),
        ("suppress", "add", "RECIPIENT"),
    ] {
        let call = it.call(args).arg(last).done().exits(2);
        assert!(call.stdout.is_empty(), "{call}");
        call.says(&[words]);
    }
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_suppression"), 0);
    let longest = "é".repeat(255);
    it.call("suppress add").arg(&longest).done().quietly();
    let shown = it.call("suppress list --format jsonl").done().exits(0).json();
    assert_eq!(shown["recipient"], longest);
}

fn a_channel_that_this_host_does_not_know_is_taken_and_named(it: Sandbox) {
    it.configure("", &Endpoint::accepting().channel("web", ""));
    let added = it.call("suppress add ann --channel webb --json").done().exits(0);
    assert_eq!(added.json(), json!({ "new": 1, "repeated": 0 }));
    added.says(&["webb", "web"]);
    let list = "recipient,channel\nann,web\nbob,sms\ncy,sms\n";
    let imported = it.call("suppress import -").stdin(list).done().exits(0);
    assert_eq!(imported.stderr.matches("sms").count(), 1, "{imported}");
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_suppression"), 4);
}
