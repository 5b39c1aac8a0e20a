//! What an answer means is said by the channel's own rules where its status does not say it; what no rule knows is never
//! taken for an acceptance.

use crate::support::{Cue, Endpoint, Sandbox, check, wait_until};

on_each_database! {
    a_provider_that_answers_200_to_everything_is_understood,
    a_busy_provider_is_left_alone_for_as_long_as_its_body_says,
    a_channel_at_fault_pauses_its_task_by_its_code,
    a_rule_that_cannot_be_meant_is_refused_by_every_command,
}

const RULES: &str = r#"answers = [
    { status = 200, json = { "/code" = "OK" }, outcome = "accepted" },
    { status = 200, json = { "/code" = ["limit", 7] }, outcome = "deferred", after = "1s" },
    { status = 200, json = { "/code" = "busy" }, outcome = "deferred", after = "/wait", hold = true },
    { status = 200, json = { "/code" = "number" }, outcome = "rejected" },
    { status = 200, json = { "/code" = "balance" }, outcome = "unavailable" },
    { status = 409, json = { "/code" = "duplicate" }, outcome = "accepted" },
]
"#;

const QUICK: &str =
    "stop_after_unknown = 100\ntimeout = \"5s\"\nbackoff = { first = \"100ms\", most = \"1s\" }";

fn a_provider_that_answers_200_to_everything_is_understood(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match (request.recipient.as_str(), request.nth) {
        ("limited", 1) => Cue::Say(200, r#"{"code": "limit"}"#),
        ("limited", 2) => Cue::Say(200, r#"{"code": 7.0}"#),
        ("wrong", _) => Cue::Say(200, r#"{"code": "number", "message": "no such number"}"#),
        ("unlisted", _) => Cue::AcceptThenSay(200, r#"{"code": "SYSTEM_ERROR"}"#),
        ("seven", _) => Cue::AcceptThenSay(200, r#"{"code": "7"}"#),
        ("page", _) => Cue::AcceptThenSay(200, "<html>Welcome to our Wi-Fi</html>"),
        ("half", _) => Cue::AcceptThenHalf,
        ("there", _) => Cue::AcceptThenSay(409, r#"{"code": "duplicate", "id": "r-of-old"}"#),
        _ => Cue::AcceptThenSay(200, r#"{"code": "OK", "id": "r-7"}"#),
    });
    it.configure("", &endpoint.channel("sms", &format!("{QUICK}\n{RULES}")));
    let names = ["ann", "limited", "wrong", "unlisted", "seven", "page", "half", "there"];
    let task = it.database.task("sms", names);
    wait_until("every target to be final", 30, || {
        let run = it.call("run").done();
        assert!(matches!(run.code(), Some(0 | 3)), "{run}");
        it.database.count(task, "pending,processing,sending,retry") == 0
    });
    check(&it, task, &endpoint);
    for (name, status, attempts, said) in [
        ("ann", "sent", 1, "r-7"),
        ("limited", "sent", 3, "r-7"),
        ("there", "sent", 1, "r-of-old"),
        ("wrong", "failed", 1, "no such number"),
        ("unlisted", "unknown", 1, "SYSTEM_ERROR"),
        ("seven", "unknown", 1, "\"7\""),
        ("page", "unknown", 1, "Wi-Fi"),
        ("half", "unknown", 1, "cut short"),
    ] {
        let row = it.database.target(task, name);
        assert_eq!((row.status.as_str(), row.attempts), (status, attempts), "{row:?}");
        assert!(row.receipt == said || row.error.contains(said), "{row:?}");
    }
    assert_eq!(endpoint.requests(), names.len() + 2);
}

fn a_busy_provider_is_left_alone_for_as_long_as_its_body_says(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.nth {
        1 => Cue::Say(200, r#"{"code": "busy", "wait": 3600}"#),
        _ => Cue::AcceptThenSay(200, r#"{"code": "OK"}"#),
    });
    it.configure("", &endpoint.channel("sms", &format!("concurrency = 1\n{RULES}")));
    let task = it.database.task("sms", ["ann"]);
    it.run();
    let ann = it.database.target(task, "ann");
    assert_eq!((ann.status.as_str(), ann.attempts), ("pending", 0), "{ann:?}");
    it.run();
    assert_eq!(endpoint.requests(), 1, "the channel is held");
    it.database.execute("DELETE FROM batch_pace");
    it.run();
    check(&it, task, &endpoint);
    assert_eq!(it.database.target(task, "ann").status, "sent");
}

fn a_channel_at_fault_pauses_its_task_by_its_code(it: Sandbox) {
    let endpoint = Endpoint::new(|_| Cue::Say(200, r#"{"code": "balance"}"#));
    it.configure("", &endpoint.channel("sms", &format!("concurrency = 1\n{RULES}")));
    let task = it.database.task("sms", ["ann", "bob"]);
    it.call("run").done().exits(3).says(&["balance"]);
    let (standing, reason) = it.database.standing(task);
    assert!(standing == "paused" && reason.contains("balance"), "{standing}: {reason}");
    assert!(it.database.targets(task).iter().all(|row| row.status == "pending" && row.attempts == 0));
}

fn a_rule_that_cannot_be_meant_is_refused_by_every_command(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    let task = it.database.task("sms", ["ann"]);
    for (rules, said) in [
        (r#"answers = [{ status = 200, outcome = "acepted" }]"#, "did you mean `accepted`?"),
        (r#"answers = [{ status = 200, json = { code = 0 }, outcome = "accepted" }]"#, "JSON pointer"),
        (
            "answers = [{ status = 200, outcome = 'accepted' }, { status = 200, outcome = 'rejected' }]",
            "rule 2 can never decide",
        ),
    ] {
        it.configure("", &endpoint.channel("sms", rules));
        for command in ["run", "status"] {
            it.call(command).done().exits(2).says(&["[channel.sms]: answers: rule ", said]);
        }
    }
    assert_eq!((it.database.count(task, "pending"), endpoint.requests()), (1, 0));
}
