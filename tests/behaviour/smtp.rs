//! Mail goes to a real server (postfix's smtp-sink), one message for each recipient, and what the server did is what the
//! rows say. The outcomes are the same on each database; the stories are told on SQLite.

use std::collections::BTreeSet;

use crate::support::{Sandbox, Sink, wait_until};

macro_rules! on_a_sink {
    ($($story:ident),* $(,)?) => {
        mod sink {
            $(#[test] #[ignore = "needs smtp-sink of postfix: BATCH_SEND_TEST_SMTP_SINK"]
            fn $story() { super::$story(crate::support::Sandbox::new(crate::support::Engine::Sqlite)); })*
        }
    };
}

on_a_sink! {
    each_recipient_gets_one_message_of_their_own,
    dots_and_other_letters_arrive_as_they_are,
    a_refused_recipient_fails_with_the_servers_words,
    a_greylisted_recipient_waits_for_minutes,
    a_refused_sender_pauses_the_task,
    a_server_that_is_not_there_costs_no_attempt,
    a_server_that_hangs_before_the_message_costs_no_unknown,
    silence_after_the_message_is_unknown_and_never_sent_again,
    a_message_refused_at_its_end_was_not_accepted,
    a_run_killed_while_it_waits_for_the_answer_leaves_an_unknown,
    nothing_goes_in_the_clear_where_tls_is_asked_for,
    a_run_that_is_told_to_stop_waits_for_the_answer,
}

const PLAIN: &str = "tls = \"none\"";

fn named(it: &Sandbox, channel: &str, people: &[(&str, &str)]) -> u64 {
    let task = it.database.draft(channel);
    it.database
        .execute(&format!("UPDATE batch_task SET payload = '{{\"season\": \"spring\"}}' WHERE id = {task}"));
    for (recipient, name) in people {
        it.database.execute(&format!(
            "INSERT INTO batch_task_target (task_id, recipient, params) VALUES ({task}, '{recipient}', '{{\"name\": \"{name}\"}}')"
        ));
    }
    it.database.execute(&format!("UPDATE batch_task SET status = 'pending' WHERE id = {task}"));
    task
}

/// The sink got a message at most once for each, and for nobody that the rows do not say it of.
#[track_caller]
fn check(it: &Sandbox, task: u64, sink: &Sink) {
    let ledger = sink.ledger();
    for row in it.database.targets(task) {
        let times = ledger.get(&row.recipient).copied().unwrap_or(0);
        let good = match row.status.as_str() {
            "sent" => times == 1,
            "unknown" | "sending" => times <= 1,
            _ => times == 0,
        };
        assert!(good, "sent {times} times: {row:?}");
    }
}

fn each_recipient_gets_one_message_of_their_own(it: Sandbox) {
    let sink = Sink::new(&[]);
    let channel = format!(
        "[channel.mail]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\nport = {}\n{PLAIN}\n{}",
        sink.port,
        r#"
        from = "Acme, Inc. <news@acme.example>"
        reply_to = "help@acme.example"
        subject = "{{ target.params.name }}, it is {{ task.payload.season }}"
        text = "Dear {{ target.params.name }}"
        html = "<p>Dear {{ target.params.name }}</p>"
        headers = { X-Task = "{{ task.name }}" }
        list_unsubscribe = "<https://acme.example/u?{{ key }}>"
        "#
    );
    it.configure("", &channel);
    let people =
        [("ann@example.com", "Ann <3"), ("bo@example.com", "Bo"), ("cy@b\u{fc}cher.example", "J\u{f6}rg")];
    let task = named(&it, "mail", &people);
    it.run();

    let mails = sink.mails();
    let mut ledger: Vec<&str> = mails.iter().map(|mail| mail.recipient()).collect();
    ledger.sort_unstable();
    assert_eq!(ledger, ["ann@example.com", "bo@example.com", "cy@xn--bcher-kva.example"]);
    let ann = mails.iter().find(|mail| mail.recipient() == "ann@example.com").unwrap();
    assert!(ann.one("X-Mail-Args").starts_with("<news@acme.example>"));
    assert_eq!(ann.one("To"), "ann@example.com");
    assert_eq!(ann.one("Reply-To"), "help@acme.example");
    assert_eq!(ann.one("Subject"), "Ann <3, it is spring");
    assert_eq!(ann.one("X-Task"), "a task");
    assert_eq!(ann.one("List-Unsubscribe-Post"), "List-Unsubscribe=One-Click");
    let key = ann.one("Message-ID").strip_prefix('<').unwrap().strip_suffix("@acme.example>").unwrap();
    assert_eq!(ann.one("List-Unsubscribe"), format!("<https://acme.example/u?{key}>"));
    assert!(
        ann.body.contains("\nDear Ann <3\n") && ann.body.contains("\n<p>Dear Ann &lt;3</p>\n"),
        "{}",
        ann.body
    );
    let keys: BTreeSet<&str> = mails.iter().map(|mail| mail.one("Message-ID")).collect();
    assert_eq!(keys.len(), 3);

    for row in it.database.targets(task) {
        assert!(row.status == "sent" && row.attempts == 1 && !row.receipt.is_empty(), "{row:?}");
    }
    assert_eq!(it.database.status(task), "finished");
}

fn dots_and_other_letters_arrive_as_they_are(it: Sandbox) {
    let sink = Sink::new(&["-8"]);
    let text = "text = \".\\n..\\nRCPT TO:<eve@example.com>\\n.\\nGr\u{fc}\u{df}e\"";
    it.configure("", &sink.channel("mail", PLAIN).replace("text = \"Hello\"", text));
    let task = it.database.task("mail", ["ann@example.com"]);
    it.run();
    check(&it, task, &sink);
    let mail = &sink.mails()[0];
    assert_eq!(mail.one("Content-Transfer-Encoding"), "quoted-printable");
    assert!(mail.body.starts_with(".\n..\nRCPT TO:<eve@example.com>\n.\nGr=C3=BC=C3=9Fe\n"), "{}", mail.body);
}

fn a_refused_recipient_fails_with_the_servers_words(it: Sandbox) {
    let sink = Sink::new(&["-f", "RCPT", "-B", "550 5.1.1 no such user"]);
    it.configure("", &sink.channel("mail", PLAIN));
    let task = it.database.task("mail", ["ann@example.com", "no address"]);
    it.run();
    check(&it, task, &sink);
    let ann = it.database.target(task, "ann@example.com");
    assert_eq!((ann.status.as_str(), ann.error.as_str()), ("failed", "RCPT TO: 550 5.1.1 no such user"));
    let none = it.database.target(task, "no address");
    assert!(none.status == "failed" && none.error.contains("`no address` is no address"), "{none:?}");
    assert_eq!(it.database.status(task), "finished");
}

fn a_greylisted_recipient_waits_for_minutes(it: Sandbox) {
    let sink = Sink::new(&["-r", "RCPT", "-b", "451 4.7.1 greylisted"]);
    it.configure(
        "",
        &sink.channel("mail", &format!("{PLAIN}\nbackoff = {{ first = \"1s\", most = \"1s\" }}")),
    );
    let task = it.database.task("mail", ["ann@example.com"]);
    it.run();
    check(&it, task, &sink);
    let ann = it.database.target(task, "ann@example.com");
    assert_eq!((ann.status.as_str(), ann.error.as_str()), ("retry", "RCPT TO: 451 4.7.1 greylisted"));
    let later =
        format!("SELECT COUNT(*) FROM batch_task_target WHERE retry_at > {}", it.database.moment(240));
    assert_eq!(it.database.number(&later), 1);
}

fn a_refused_sender_pauses_the_task(it: Sandbox) {
    let sink = Sink::new(&["-f", "MAIL", "-B", "553 5.7.1 not your address"]);
    it.configure("", &sink.channel("mail", PLAIN));
    let task = it.database.task("mail", ["ann@example.com", "bo@example.com"]);
    it.call("run").done().exits(3);
    check(&it, task, &sink);
    let (status, reason) = it.database.standing(task);
    assert!(status == "paused" && reason.contains("MAIL FROM: 553 5.7.1 not your address"), "{reason}");
    for row in it.database.targets(task) {
        assert_eq!((row.status.as_str(), row.attempts), ("pending", 0), "{row:?}");
    }
}

fn a_server_that_is_not_there_costs_no_attempt(it: Sandbox) {
    // From the recipient on it may be this message that it does not stand.
    for (option, step, attempts) in
        [("-q", "CONNECT", 0), ("-Q", "EHLO", 0), ("-Q", "MAIL", 0), ("-Q", "RCPT", 1)]
    {
        let sink = Sink::new(&[option, step]);
        it.configure("", &sink.channel(step, PLAIN));
        let task = it.database.task(step, ["ann@example.com"]);
        it.call("run").done().exits(0);
        check(&it, task, &sink);
        let ann = it.database.target(task, "ann@example.com");
        assert_eq!(ann.attempts, attempts, "{step}: {ann:?}");
        assert!(["pending", "retry"].contains(&ann.status.as_str()), "{step}: {ann:?}");
        it.call(&format!("task cancel {task} --yes")).done().exits(0);
    }
}

fn a_server_that_hangs_before_the_message_costs_no_unknown(it: Sandbox) {
    for step in ["EHLO", "MAIL", "RCPT", "DATA"] {
        // It goes on reading while it delays a command, and answers out of order what it would be sent in one go: -p, not so.
        let sink = Sink::new(&["-p", "-W", &format!("{step}:60")]);
        it.configure("", &sink.channel(step, &format!("{PLAIN}\ntimeout = \"1s\"")));
        let task = it.database.task(step, ["ann@example.com"]);
        it.call("run").done().exits(0);
        check(&it, task, &sink);
        let ann = it.database.target(task, "ann@example.com");
        assert!(["pending", "retry"].contains(&ann.status.as_str()), "{step}: {ann:?}");
        it.call(&format!("task cancel {task} --yes")).done().exits(0);
    }
}

fn silence_after_the_message_is_unknown_and_never_sent_again(it: Sandbox) {
    for (name, options) in [("hangs", ["-W", ".:60"]), ("leaves", ["-q", "."])] {
        let sink = Sink::new(&options);
        it.configure("", &sink.channel(name, &format!("{PLAIN}\nanswer_timeout = \"1s\"")));
        let task = it.database.task(name, ["ann@example.com"]);
        it.call("run").done().exits(3);
        let ann = it.database.target(task, "ann@example.com");
        assert!(ann.status == "unknown" && ann.error.starts_with("no complete answer"), "{name}: {ann:?}");
        it.run();
        assert!(sink.ledger().values().all(|times| *times == 1), "{name}");
        check(&it, task, &sink);
    }
}

fn a_message_refused_at_its_end_was_not_accepted(it: Sandbox) {
    for (name, options, status) in [
        ("for-good", ["-f", ".", "-B", "554 5.7.1 spam"], "failed"),
        ("for-now", ["-r", ".", "-b", "451 4.3.0 later"], "retry"),
    ] {
        let sink = Sink::new(&options);
        it.configure("", &sink.channel(name, PLAIN));
        let task = it.database.task(name, ["ann@example.com"]);
        it.run();
        let ann = it.database.target(task, "ann@example.com");
        assert_eq!((ann.status.as_str(), ann.attempts), (status, 1), "{ann:?}");
        assert_eq!(ann.error, format!("end of the message: {}", options[3]));
        it.call(&format!("task cancel {task} --yes")).done();
    }
}

fn a_run_killed_while_it_waits_for_the_answer_leaves_an_unknown(it: Sandbox) {
    let sink = Sink::new(&["-W", ".:600"]);
    it.configure("", &sink.channel("mail", &format!("{PLAIN}\nanswer_timeout = \"1m\"")));
    let task = it.database.task("mail", ["ann@example.com"]);
    let run = it.call("run").start();
    wait_until("the message to be read", 20, || sink.ledger().len() == 1);
    run.kill();
    // It is in flight for as long as its answer may come.
    let claim =
        format!("SELECT COUNT(*) FROM batch_task_target WHERE claim_until > {}", it.database.moment(60));
    assert_eq!(it.database.number(&claim), 1);
    it.database.claims_end(task);
    it.call("run").done().exits(3);
    it.run();
    assert_eq!(it.database.target(task, "ann@example.com").status, "unknown");
    check(&it, task, &sink);
}

fn nothing_goes_in_the_clear_where_tls_is_asked_for(it: Sandbox) {
    let sink = Sink::new(&[]);
    it.configure("", &sink.channel("mail", ""));
    let task = it.database.task("mail", ["ann@example.com"]);
    it.call("run").done().exits(3);
    check(&it, task, &sink);
    let (status, reason) = it.database.standing(task);
    assert!(status == "paused" && reason.contains("offers no STARTTLS"), "{reason}");
    assert!(sink.mails().is_empty());
}

fn a_run_that_is_told_to_stop_waits_for_the_answer(it: Sandbox) {
    let sink = Sink::new(&["-W", ".:2"]);
    it.configure("", &sink.channel("mail", &format!("{PLAIN}\nconcurrency = 1")));
    let task = it.database.task("mail", ["ann@example.com", "bo@example.com"]);
    let run = it.call("run").start();
    wait_until("a message to be read", 20, || !sink.ledger().is_empty());
    run.terminate();
    run.wait().exits(0);
    check(&it, task, &sink);
    assert_eq!((it.database.count(task, "sent"), it.database.count(task, "pending")), (1, 1));
}
