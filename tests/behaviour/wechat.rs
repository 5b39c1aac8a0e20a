//! A channel of kind wechat: its access token comes and goes by itself, a template message in doubt is sent again for ten minutes, a
//! subscribe message never, and neither the secret nor a token shows anywhere.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::secrets::{everything, files};
use crate::support::endpoint::Request;
use crate::support::{Cue, Endpoint, Sandbox, check, wait_until};

on_each_database! {
    a_task_goes_through_the_channel,
    a_lost_answer_is_asked_for_again_within_ten_minutes_with_the_same_key,
    after_ten_minutes_a_lost_answer_is_unknown,
    a_busy_api_may_have_accepted_a_template_message,
    a_lost_answer_of_a_mini_program_is_unknown,
    each_errcode_means_what_it_means_in_the_middle_of_a_task,
    a_wrong_secret_pauses_the_task_until_a_person_has_mended_it,
    a_token_that_ends_in_the_middle_costs_nothing,
    an_api_that_gives_no_token_costs_nothing,
    neither_the_secret_nor_a_token_shows_anywhere,
}

const SECRET: &str = "5ecret0fTheAcc0unt0123456789abcd";
const OK: &str = r#"{"errcode":0,"errmsg":"ok","msgid":3519512346231685123}"#;
const FIRST_TOKEN: &str = r#"{"access_token":"72_F1rstT0ken","expires_in":7200}"#;
const SECOND_TOKEN: &str = r#"{"access_token":"72_Sec0ndT0ken","expires_in":7200}"#;

/// The API: gives one token after the other, accepts a template message of one key once, and does with a message what
/// `script` says.
fn api(script: impl Fn(&Request) -> Cue + Send + Sync + 'static) -> Endpoint {
    Endpoint::remembering(move |request| match request.recipient.as_str() {
        "" if request.nth == 1 => Cue::Say(200, FIRST_TOKEN),
        "" => Cue::Say(200, SECOND_TOKEN),
        _ => script(request),
    })
}

fn accept(_: &Request) -> Cue {
    Cue::AcceptThenSay(200, OK)
}

fn channel(api: &Endpoint, message: &str, secret: &str, keys: &str) -> String {
    let address = api.address();
    let body = r#"{"template_id": "T1", "data": {"thing1": {"value": {{ "Dear " ~ target.recipient }}}}}"#;
    format!(
        "[channel.wx]\nkind = \"wechat\"\napi = \"http://{address}\"\nappid = \"wx0123456789abcdef\"\n\
         secret = \"{secret}\"\nmessage = \"{message}\"\nbody = '{body}'\n{keys}\n"
    )
}

fn configure(it: &Sandbox, api: &Endpoint, message: &str, keys: &str) {
    it.configure("lease = \"3s\"", &channel(api, message, SECRET, keys));
}

/// What came: how often a token was asked for, and the messages.
fn heard(api: &Endpoint) -> (usize, Vec<Request>) {
    let (tokens, messages): (Vec<_>, Vec<_>) =
        api.all().into_iter().partition(|request| request.recipient.is_empty());
    (tokens.len(), messages)
}

/// For the rows the waits are over.
fn due(it: &Sandbox) {
    let past = it.database.moment(-1);
    it.database.execute(&format!("UPDATE batch_task_target SET retry_at = {past} WHERE status = 'retry'"));
}

fn a_task_goes_through_the_channel(it: Sandbox) {
    let api = api(accept);
    configure(&it, &api, "template", "");
    let people: Vec<_> = (0..20).map(|n| format!("o-{n}")).collect();
    let task = it.database.task("wx", &people);
    it.run();
    check(&it, task, &api);
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (20, "finished"));
    assert_eq!(it.database.target(task, "o-7").receipt, "3519512346231685123");
    let (tokens, messages) = heard(&api);
    assert_eq!((tokens, messages.len()), (1, 20));
    let to_7 = messages.iter().find(|message| message.recipient == "o-7").unwrap();
    assert_eq!(to_7.path, "/cgi-bin/message/template/send?access_token=72_F1rstT0ken");
    assert_eq!(to_7.body["data"]["thing1"]["value"], "Dear o-7");
    let key = to_7.key().unwrap();
    assert!(key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
}

/// Ann's answer was lost: she waits to be asked again.
fn in_doubt(it: &Sandbox, cue: Cue) -> (Endpoint, u64) {
    let api = api(move |request| if request.nth == 1 { cue } else { accept(request) });
    configure(it, &api, "template", "backoff = { first = \"1m\" }");
    let task = it.database.task("wx", ["ann"]);
    it.run();
    let ann = it.database.target(task, "ann");
    assert!(ann.status == "retry" && ann.in_doubt, "{ann:?}");
    (api, task)
}

fn a_lost_answer_is_asked_for_again_within_ten_minutes_with_the_same_key(it: Sandbox) {
    let (api, task) = in_doubt(&it, Cue::AcceptThenClose);
    let remembered = |from, to| {
        let (from, to) = (it.database.moment(from), it.database.moment(to));
        let sql =
            format!("SELECT COUNT(*) FROM batch_task_target WHERE dedupe_until BETWEEN {from} AND {to}");
        it.database.number(&sql) == 1
    };
    assert!(remembered(300, 600));
    due(&it);
    it.run();
    check(&it, task, &api);
    let ann = it.database.target(task, "ann");
    assert_eq!((ann.status.as_str(), ann.attempts), ("sent", 2), "{ann:?}");
    let (_, messages) = heard(&api);
    assert_eq!(messages.len(), 2);
    assert!(messages[0].key().is_some() && messages[0].text == messages[1].text, "{messages:?}");
}

fn after_ten_minutes_a_lost_answer_is_unknown(it: Sandbox) {
    let (api, task) = in_doubt(&it, Cue::AcceptThenReset);
    it.database.execute(&format!("UPDATE batch_task_target SET dedupe_until = {}", it.database.moment(-1)));
    api.forget();
    due(&it);
    it.call("run").done().exits(3);
    check(&it, task, &api);
    assert_eq!(it.database.target(task, "ann").status, "unknown");
    it.run();
    assert_eq!(heard(&api).1.len(), 1);
}

fn a_busy_api_may_have_accepted_a_template_message(it: Sandbox) {
    let (api, task) = in_doubt(&it, Cue::AcceptThenSay(200, r#"{"errcode":-1,"errmsg":"system error"}"#));
    due(&it);
    it.run();
    check(&it, task, &api);
    assert_eq!(it.database.target(task, "ann").status, "sent");
    assert_eq!(heard(&api).1.len(), 2);
}

fn a_lost_answer_of_a_mini_program_is_unknown(it: Sandbox) {
    let api = Endpoint::new(|request| match request.recipient.as_str() {
        "" => Cue::Say(200, FIRST_TOKEN),
        "lost" => Cue::AcceptThenClose,
        "half" => Cue::AcceptThenHalf,
        "busy" => Cue::AcceptThenSay(200, r#"{"errcode":-1,"errmsg":"system error"}"#),
        _ => Cue::AcceptThenSay(200, r#"{"errcode":0,"errmsg":"ok"}"#),
    });
    configure(&it, &api, "subscribe", "");
    let task = it.database.task("wx", ["lost", "half", "busy", "ann"]);
    let run = it.call("run").done().exits(3);
    assert!(!run.stderr.is_empty(), "{run}");
    check(&it, task, &api);
    for name in ["lost", "half", "busy"] {
        let row = it.database.target(task, name);
        assert!(row.status == "unknown" && row.attempts == 1 && !row.error.is_empty(), "{row:?}");
    }
    assert_eq!(it.database.target(task, "ann").status, "sent");
    it.run();
    let (_, messages) = heard(&api);
    assert_eq!(messages.len(), 4);
    for message in &messages {
        assert!(message.path.starts_with("/cgi-bin/message/subscribe/send?"), "{message:?}");
        assert!(message.key().is_none(), "{message:?}");
    }
}

fn each_errcode_means_what_it_means_in_the_middle_of_a_task(it: Sandbox) {
    let api = api(|request| match request.recipient.as_str() {
        "stranger" => {
            Cue::Say(200, r#"{"errcode":40003,"errmsg":"invalid openid rid: 61b0437c-57de737e-47cbfd49"}"#)
        }
        "gone" => Cue::Say(200, r#"{"errcode":43004,"errmsg":"require subscribe rid: 1-2-3"}"#),
        "crowded" if request.nth == 1 => Cue::Say(200, r#"{"errcode":43108,"errmsg":"concurrent send"}"#),
        "twice" => {
            Cue::AcceptThenSay(200, r#"{"errcode":45065,"errmsg":"clientmsgid exist","msg_id":3147483730}"#)
        }
        "odd" => Cue::AcceptThenSay(200, r#"{"errcode":1119003,"errmsg":"?"}"#),
        _ => accept(request),
    });
    configure(&it, &api, "template", "max_attempts = 2");
    let names = ["ann", "stranger", "gone", "crowded", "twice", "odd", "zoe"];
    let task = it.database.task("wx", names);
    it.run();
    check(&it, task, &api);
    let expected = ["sent", "failed", "failed", "retry", "sent", "retry", "sent"];
    let statuses = || it.database.targets(task).into_iter().map(|row| row.status).collect::<Vec<_>>();
    assert_eq!(statuses(), expected);
    assert_eq!(it.database.target(task, "twice").receipt, "3147483730");
    assert!(it.database.target(task, "stranger").error.contains("40003"));
    due(&it);
    it.call("run").done().exits(3);
    check(&it, task, &api);
    assert_eq!(statuses(), ["sent", "failed", "failed", "sent", "sent", "unknown", "sent"]);
}

fn a_wrong_secret_pauses_the_task_until_a_person_has_mended_it(it: Sandbox) {
    let mended = Arc::new(AtomicBool::new(false));
    let good = mended.clone();
    let api = Endpoint::remembering(move |request| match request.recipient.as_str() {
        "" if good.load(Ordering::SeqCst) => Cue::Say(200, FIRST_TOKEN),
        "" => Cue::Say(200, r#"{"errcode":40125,"errmsg":"invalid appsecret rid: 5f719c75-2c3cfa91-1"}"#),
        _ => accept(request),
    });
    configure(&it, &api, "template", "");
    let task = it.database.task("wx", (0..10).map(|n| format!("o-{n}")));
    let run = it.call("run").done().exits(3);
    let (status, reason) = it.database.standing(task);
    assert_eq!(status, "paused");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for word in ["channel unavailable on ", host.trim(), "no access token: ", "40125"] {
        assert!(reason.contains(word), "no \"{word}\" in {reason}");
    }
    assert!(run.stderr.contains("40125"), "{run}");
    let rows = it.database.targets(task);
    assert!(rows.iter().all(|row| row.status == "pending" && row.attempts == 0), "{rows:?}");
    it.run();
    assert!(heard(&api).1.is_empty());

    mended.store(true, Ordering::SeqCst);
    it.call(&format!("task resume {task}")).done().exits(0);
    it.run();
    check(&it, task, &api);
    assert_eq!(it.database.count(task, "sent"), 10);
}

fn a_token_that_ends_in_the_middle_costs_nothing(it: Sandbox) {
    let api = api(|request| {
        let late = request.body["touser"].as_str().unwrap() >= "o-10";
        if late && request.path.ends_with("F1rstT0ken") {
            return Cue::Say(200, r#"{"errcode":42001,"errmsg":"access_token expired rid: 1-2-3"}"#);
        }
        accept(request)
    });
    configure(&it, &api, "template", "concurrency = 4");
    let task = it.database.task("wx", (0..30).map(|n| format!("o-{n:02}")));
    it.run();
    check(&it, task, &api);
    let rows = it.database.targets(task);
    assert!(rows.iter().all(|row| row.status == "sent" && row.attempts == 1), "{rows:?}");
    let (tokens, messages) = heard(&api);
    assert!(
        tokens == 2 && (31..=34).contains(&messages.len()),
        "{tokens} tokens, {} messages",
        messages.len()
    );
}

fn an_api_that_gives_no_token_costs_nothing(it: Sandbox) {
    for cue in
        [Cue::Answer(502), Cue::ResetUnread, Cue::Say(200, r#"{"errcode":-1,"errmsg":"system error"}"#)]
    {
        let api = Endpoint::new(move |_| cue);
        configure(&it, &api, "template", "concurrency = 1");
        let task = it.database.task("wx", ["ann", "bob"]);
        it.run();
        let rows = it.database.targets(task);
        assert!(rows.iter().all(|row| row.status == "pending" && row.attempts == 0), "{cue:?}: {rows:?}");
        assert!(heard(&api).1.is_empty(), "{cue:?}");
        // The channel is held: cron does not knock each minute.
        let asked = api.requests();
        it.run();
        assert_eq!((asked, api.requests()), (5, 5), "{cue:?}");
        it.call(&format!("task cancel {task} --yes")).done().exits(0);
        it.database.execute("DELETE FROM batch_pace");
    }
}

fn neither_the_secret_nor_a_token_shows_anywhere(it: Sandbox) {
    // A peer that repeats what it was told, and a token that is refused for good in the end.
    let api = Endpoint::new(|request| match request.recipient.as_str() {
        "" if request.nth == 1 => Cue::Say(200, FIRST_TOKEN),
        "" if request.nth == 2 => Cue::Say(
            200,
            r#"{"errcode":-1,"access_token":"72_Sec0ndT0ken","errmsg":"5ecret0fTheAcc0unt0123456789abcd"}"#,
        ),
        "" => Cue::Say(200, SECOND_TOKEN),
        "in-flight" => Cue::AcceptWhenTold,
        "rejected" => Cue::Say(
            200,
            r#"{"errcode":40003,"errmsg":"/send?access_token=72_F1rstT0ken 5ecret0fTheAcc0unt0123456789abcd"}"#,
        ),
        "page" => {
            Cue::Say(404, "<p>no route to /cgi-bin/message/template/send?access_token=72_F1rstT0ken</p>")
        }
        "odd" => Cue::Say(500, "5ecret0fTheAcc0unt0123456789abcd"),
        _ => Cue::Say(
            200,
            r#"{"errcode":40001,"errmsg":"invalid credential, access_token is invalid or not latest 72_Sec0ndT0ken 5ecret0fTheAcc0unt0123456789abcd"}"#,
        ),
    });
    it.configure("", &channel(&api, "subscribe", "${WX_SECRET}", "concurrency = 1"));
    let mut shown = String::new();
    let task = it.database.task("wx", ["rejected", "page", "odd", "in-flight"]);
    let run = it.call("-vv run").env("WX_SECRET", SECRET).start();
    wait_until("a message in flight", 20, || api.waiting() == 1);
    shown += &fs::read_to_string(format!("/proc/{}/cmdline", run.pid())).unwrap();
    shown += &files(&it.path("state"));
    api.tell();
    let run = run.wait().exits(3);
    shown += &(run.stdout + &run.stderr);
    assert!(shown.contains("HTTP 404: "), "{shown}");

    // No token at first; then one that is refused, and refused again.
    let refused = it.database.task("wx", ["refused", "again"]);
    for format in ["text", "json"] {
        let args = format!("-vv --log-format {format} run");
        let run = it.call(&args).env("WX_SECRET", SECRET).done();
        shown += &(run.stdout + &run.stderr);
    }
    assert_eq!(it.database.status(refused), "paused", "{shown}");
    let dry = it.call(&format!("run --dry-run --task-id {task}")).env("WX_SECRET", SECRET).done();
    shown += &(dry.stdout + &dry.stderr);
    shown += &everything(&it);
    assert!(shown.contains("40001") && shown.contains("40003") && shown.contains("[hidden]"), "{shown}");
    for word in ["5ecret0f", "F1rstT0ken", "Sec0ndT0ken"] {
        let line = shown.lines().find(|line| line.contains(word));
        assert_eq!(line, None, "{word}");
    }
}
