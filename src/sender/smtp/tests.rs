//! Every row of the table, against a server that misbehaves on cue.

mod server;

use std::net::TcpListener;

use serde_json::value::RawValue;
use tempfile::NamedTempFile;
use uuid::Uuid;

use super::reply::Reply;
use super::*;
use crate::message::{TargetPart, TaskPart};
use crate::sender::Toll;
use crate::sender::testing::{Identity, full_house};
use server::{Act, Manner, PATIENCE, Rule, Seen, at};

/// For servers that never answer.
const SHORT: Duration = Duration::from_secs(1);

/// How long a client waits for a server that acts so: only one that is still there lets the time run out.
fn patience(act: Act) -> Duration {
    match act {
        Act::Close | Act::Reset | Act::SayAndClose(_) => PATIENCE,
        _ => SHORT,
    }
}

fn settings(port: u16) -> Settings {
    Settings {
        host: "127.0.0.1".into(),
        port: Some(port),
        tls: Tls::None,
        ca_file: None,
        user: None,
        password: None,
        hello: Some("app1.example.com".into()),
        answer_timeout: PATIENCE,
        from: "Shop <news@shop.example>".into(),
        reply_to: None,
        subject: "Hi".into(),
        text: Some("Hello".into()),
        html: None,
        headers: BTreeMap::new(),
        list_unsubscribe: None,
        list_unsubscribe_post: None,
    }
}

fn message_of(recipient: &str, text: &str) -> Message {
    let raw = |text: &str| RawValue::from_string(text.into()).unwrap();
    let body = serde_json::json!({"from": "Shop <news@shop.example>", "subject": "Hi", "text": text});
    Message {
        key: Uuid::from_u128(7),
        attempt: 1,
        task: Arc::new(TaskPart { id: 1, name: "Spring".into(), payload: raw("{}") }),
        target: TargetPart { id: 2, recipient: recipient.into(), params: raw("{}") },
        body: Some(raw(&body.to_string())),
    }
}

fn message() -> Message {
    message_of("ann@example.com", "Hello")
}

fn soon() -> Moment {
    Moment::now() + PATIENCE
}

fn open(settings: &Settings, timeout: Duration) -> Smtp {
    Smtp::open(settings, timeout, 2).unwrap()
}

fn in_order() -> Manner {
    Manner::default()
}

/// One message to a server with these rules: its outcome, and what the server saw in the end.
fn outcome_of(manner: Manner, rules: Vec<Rule>) -> (Outcome, Seen) {
    outcome_within(PATIENCE, PATIENCE, manner, rules)
}

fn outcome_within(
    timeout: Duration,
    answer_timeout: Duration,
    manner: Manner,
    rules: Vec<Rule>,
) -> (Outcome, Seen) {
    let server = server::Server::start(manner, rules);
    let smtp = open(&Settings { answer_timeout, ..settings(server.port) }, timeout);
    let outcome = smtp.send(&message(), soon());
    drop(smtp);
    (outcome, server.finish())
}

fn accepted() -> Outcome {
    Outcome::Accepted { receipt: Some("4Qk1Z21xxz".into()) }
}

/// An outcome in one word, which is enough for a table.
fn kind(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Accepted { .. } => "accepted",
        Outcome::Deferred { toll: Toll::Attempt, after: None, .. } => "deferred",
        Outcome::Deferred { toll: Toll::Attempt, after: Some(_), .. } => "deferred for minutes",
        Outcome::Deferred { toll: Toll::Unreached, .. } => "unreached",
        Outcome::Deferred { toll: Toll::Hold, .. } => "hold",
        Outcome::Deferred { toll: Toll::Nothing, .. } => "too late",
        Outcome::Rejected { .. } => "rejected",
        Outcome::Unknown { .. } => "unknown",
        Outcome::Unavailable { .. } => "unavailable",
    }
}

fn reason(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Accepted { .. } => panic!("{outcome:?}"),
        Outcome::Deferred { reason, .. }
        | Outcome::Rejected { reason }
        | Outcome::Unknown { reason }
        | Outcome::Unavailable { reason } => reason,
    }
}

/// What a server may do in place of a reply, none of which is one.
const NO_REPLY: [Act; 6] = [
    Act::Close,
    Act::Reset,
    Act::Hang,
    Act::SayAndClose("250-half a re"),
    Act::SayAndClose("250 no end of line"),
    Act::Say("I'm a teapot\r\n"),
];

#[test]
fn a_message_goes_out_step_by_step_and_its_receipt_comes_back() {
    let (outcome, seen) = outcome_of(in_order(), vec![]);
    assert_eq!(outcome, accepted());
    let steps = [
        "EHLO app1.example.com",
        "MAIL FROM:<news@shop.example>",
        "RCPT TO:<ann@example.com>",
        "DATA",
        "QUIT",
    ];
    assert_eq!(seen.lines, steps);
    assert_eq!(seen.messages.len(), 1);
    let mail = &seen.messages[0];
    assert!(mail.contains("\r\nTo: ann@example.com\r\n") && mail.ends_with("\r\n\r\nHello\r\n"), "{mail}");
}

mod before_the_transaction {
    use super::*;

    /// Nothing of any message was said.
    #[track_caller]
    fn assert_nothing_left(seen: &Seen) {
        assert!(!seen.commands().contains(&"MAIL") && seen.messages.is_empty(), "{:?}", seen.lines);
    }

    #[test]
    fn a_refused_connection_costs_nothing() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let outcome = open(&settings(port), PATIENCE).send(&message(), soon());
        assert_eq!(kind(&outcome), "unreached");
        assert!(reason(&outcome).starts_with("no connection to 127.0.0.1: "), "{outcome:?}");
    }

    #[test]
    fn a_name_that_nobody_has_costs_nothing() {
        let settings = Settings { host: "nobody.invalid".into(), ..settings(25) };
        assert_eq!(kind(&open(&settings, Duration::from_secs(2)).send(&message(), soon())), "unreached");
    }

    #[test]
    fn a_host_that_lets_nobody_in_costs_nothing() {
        let (listener, _queue) = full_house();
        let address = listener.local_addr().unwrap();
        let outcome = open(&settings(address.port()), SHORT).send(&message(), soon());
        assert_eq!(outcome, Outcome::unreached("no connection to 127.0.0.1: no answer in time"));
    }

    #[test]
    fn whatever_the_server_does_at_its_greeting_or_ours_costs_nothing() {
        let replies =
            ["421 4.3.2 closing", "554 5.7.1 not you", "450 busy", "354 go", "199 what", "250-a\r\n220 b"];
        for step in ["CONNECT", "EHLO"] {
            let says = replies.map(|reply| Act::SayAndClose(format!("{reply}\r\n").leak()));
            for act in NO_REPLY.into_iter().chain(says) {
                let (outcome, seen) =
                    outcome_within(patience(act), PATIENCE, in_order(), vec![at(step, act)]);
                assert_eq!(kind(&outcome), "unreached", "{step} {act:?}: {outcome:?}");
                assert_nothing_left(&seen);
            }
        }
    }

    #[test]
    fn a_server_that_trickles_has_no_longer_than_the_rest() {
        let endless = "250-a\r\n".repeat(1000).leak();
        let before = Moment::now();
        let (outcome, _) =
            outcome_within(SHORT, PATIENCE, in_order(), vec![at("EHLO", Act::Trickle(endless))]);
        assert_eq!(outcome, Outcome::unreached("EHLO: no answer in time"));
        assert!(before.elapsed() < PATIENCE / 2);
    }

    #[test]
    fn past_its_time_nothing_is_even_tried() {
        let server = server::Server::start(in_order(), vec![]);
        let smtp = open(&settings(server.port), PATIENCE);
        assert_eq!(smtp.send(&message(), Moment::now()), Outcome::too_late());
        assert_eq!(server.finish().connections, 0);
    }

    #[test]
    fn a_run_that_was_stopped_while_connecting_begins_no_transaction() {
        let until = Moment::now() + SHORT;
        let server = server::Server::start(in_order(), vec![at("EHLO", Act::Wait(until))]);
        let smtp = open(&settings(server.port), PATIENCE);
        assert_eq!(smtp.send(&message(), until), Outcome::too_late());
        assert_eq!(smtp.send(&message(), soon()), accepted(), "the connection is as good as new");
        drop(smtp);
        let seen = server.finish();
        assert_eq!((seen.connections, seen.messages.len()), (1, 1));
    }
}

mod tls {
    use super::*;

    fn file(identity: &Identity) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &identity.pem).unwrap();
        file
    }

    fn manner(identity: &Identity, implicit: bool) -> Manner {
        let offers = if implicit { vec![] } else { vec!["STARTTLS"] };
        Manner { offers, identity: Some(identity.clone()), implicit, ..in_order() }
    }

    fn send(
        identity: &Identity,
        tls: Tls,
        known: bool,
        timeout: Duration,
        manner: Manner,
        rules: Vec<Rule>,
    ) -> (Outcome, Seen) {
        let server = server::Server::start(manner, rules);
        let file = file(identity);
        let ca_file = known.then(|| file.path().into());
        let smtp = open(&Settings { tls, ca_file, ..settings(server.port) }, timeout);
        let outcome = smtp.send(&message(), soon());
        drop(smtp);
        (outcome, server.finish())
    }

    #[test]
    fn a_server_that_the_file_vouches_for_is_believed() {
        let identity = Identity::of("127.0.0.1");
        for tls in [Tls::Starttls, Tls::Implicit] {
            let manner = manner(&identity, tls == Tls::Implicit);
            let (outcome, seen) = send(&identity, tls, true, PATIENCE, manner, vec![]);
            assert_eq!(outcome, accepted(), "{tls:?}");
            assert_eq!(seen.messages.len(), 1);
            let hellos = seen.commands().iter().filter(|command| **command == "EHLO").count();
            assert_eq!(
                hellos,
                if tls == Tls::Starttls { 2 } else { 1 },
                "what was offered in the clear is forgotten"
            );
        }
    }

    #[test]
    fn a_certificate_that_nobody_vouches_for_or_of_another_host_needs_a_person() {
        for tls in [Tls::Starttls, Tls::Implicit] {
            for (name, known) in [("127.0.0.1", false), ("elsewhere.example", true)] {
                let identity = Identity::of(name);
                let manner = manner(&identity, tls == Tls::Implicit);
                let (outcome, seen) = send(&identity, tls, known, PATIENCE, manner, vec![]);
                assert_eq!(kind(&outcome), "unavailable", "{tls:?} {name}: {outcome:?}");
                assert!(reason(&outcome).starts_with("the server's certificate is refused: "), "{outcome:?}");
                assert!(!seen.commands().contains(&"MAIL"));
            }
        }
    }

    #[test]
    fn a_server_without_starttls_gets_nothing_in_the_clear() {
        let identity = Identity::of("127.0.0.1");
        let (outcome, seen) = send(&identity, Tls::Starttls, true, PATIENCE, in_order(), vec![]);
        assert_eq!(kind(&outcome), "unavailable");
        assert!(reason(&outcome).contains("offers no STARTTLS"), "{outcome:?}");
        assert_eq!(seen.commands(), ["EHLO"]);
    }

    #[test]
    fn a_handshake_that_fails_costs_nothing() {
        let identity = Identity::of("127.0.0.1");
        let refused = [
            at("STARTTLS", Act::Say("454 4.7.0 not now\r\n")),
            at("STARTTLS", Act::Say("502 5.5.1 what\r\n")),
            at("STARTTLS", Act::Close),
            at("STARTTLS", Act::Hang),
            at("TLS", Act::SayAndClose("this is no TLS at all\r\n")),
            at("TLS", Act::Close),
            at("TLS", Act::Reset),
            at("TLS", Act::Hang),
        ];
        for rule in refused {
            let said = format!("{} {:?}", rule.step, rule.act);
            let manner = manner(&identity, false);
            let (outcome, seen) =
                send(&identity, Tls::Starttls, true, patience(rule.act), manner, vec![rule]);
            assert_eq!(kind(&outcome), "unreached", "{said}: {outcome:?}");
            assert_eq!(seen.commands(), ["EHLO", "STARTTLS"], "{said}");
        }
        for act in [Act::Close, Act::Reset, Act::Hang, Act::SayAndClose("220 mx.example.com\r\n")] {
            let (outcome, _) =
                send(&identity, Tls::Implicit, true, patience(act), in_order(), vec![at("CONNECT", act)]);
            assert_eq!(kind(&outcome), "unreached", "{act:?}: {outcome:?}");
        }
    }

    #[test]
    fn what_was_said_before_tls_began_is_no_answer_to_what_follows() {
        let identity = Identity::of("127.0.0.1");
        let forged = Act::Say("220 go\r\n250 forged\r\n");
        let (outcome, seen) = send(
            &identity,
            Tls::Starttls,
            true,
            PATIENCE,
            manner(&identity, false),
            vec![at("STARTTLS", forged)],
        );
        assert_eq!(outcome, Outcome::unreached("STARTTLS: the server spoke before TLS began"));
        assert_eq!(seen.commands(), ["EHLO", "STARTTLS"]);
    }
}

mod auth {
    use super::*;

    const PLAIN: &str = "AGFwcABzM2NyZXQh";

    fn log_in(offers: &'static str, rules: Vec<Rule>) -> (Outcome, Seen) {
        let server = server::Server::start(Manner { offers: vec![offers], ..in_order() }, rules);
        let login =
            Settings { user: Some("app".into()), password: Some("s3cret!".into()), ..settings(server.port) };
        let smtp = open(&login, SHORT);
        let outcome = smtp.send(&message(), soon());
        drop(smtp);
        (outcome, server.finish())
    }

    #[test]
    fn the_server_chooses_between_plain_and_login() {
        let (outcome, seen) = log_in("AUTH LOGIN PLAIN", vec![]);
        assert_eq!(outcome, accepted());
        assert_eq!(seen.lines[1], format!("AUTH PLAIN {PLAIN}"));

        let asks = vec![
            at("AUTH", Act::Say("334 VXNlcm5hbWU6\r\n")),
            at("LINE", Act::Say("334 UGFzc3dvcmQ6\r\n")).time(1),
        ];
        let (outcome, seen) = log_in("AUTH CRAM-MD5 LOGIN", asks);
        assert_eq!(outcome, accepted());
        assert_eq!(seen.lines[1..4], ["AUTH LOGIN", "YXBw", "czNjcmV0IQ=="]);
    }

    #[test]
    fn a_probe_goes_as_far_as_the_log_in_and_takes_its_leave() {
        for (reply, good) in [(None, true), (Some("535 5.7.8 bad password s3cret!\r\n"), false)] {
            let rules = reply.map(|reply| at("AUTH", Act::Say(reply))).into_iter().collect();
            let server = server::Server::start(Manner { offers: vec!["AUTH PLAIN"], ..in_order() }, rules);
            let login = Settings {
                user: Some("app".into()),
                password: Some("s3cret!".into()),
                ..settings(server.port)
            };
            let probed = open(&login, SHORT).probe();
            let (Ok(said) | Err(said)) = &probed;
            assert_eq!(probed.is_ok(), good, "{said}");
            assert!(said.contains(if good { "the log-in is good" } else { "535 5.7.8" }), "{said}");
            assert!(!said.contains("s3cret!"), "{said}");
            let seen = server.finish();
            let expected: &[&str] = if good { &["EHLO", "AUTH", "QUIT"] } else { &["EHLO", "AUTH"] };
            assert_eq!(seen.commands(), expected);
        }
    }

    #[test]
    fn a_server_that_offers_neither_needs_a_person() {
        for (offers, said) in [("SIZE 1000", "no AUTH"), ("AUTH CRAM-MD5 XOAUTH2", "AUTH CRAM-MD5, XOAUTH2")]
        {
            let (outcome, seen) = log_in(offers, vec![]);
            assert_eq!(kind(&outcome), "unavailable");
            assert!(reason(&outcome).contains(said), "{outcome:?}");
            assert_eq!(seen.commands()[..1], ["EHLO"]);
            assert!(!seen.commands().contains(&"AUTH") && !seen.commands().contains(&"MAIL"));
        }
    }

    #[test]
    fn replies_to_it_are_about_the_channel() {
        for (reply, expected) in [
            ("535 5.7.8 bad password", "unavailable"),
            ("534 5.7.9 too weak", "unavailable"),
            ("530 5.7.0 TLS first", "unavailable"),
            ("538 5.7.11 TLS first", "unavailable"),
            ("504 5.5.4 what", "unavailable"),
            ("454 4.7.0 not now", "hold"),
            ("451 4.3.0 not now", "hold"),
            ("421 4.3.2 closing", "unreached"),
            ("250 ok", "unreached"),
            ("334 more", "unreached"),
        ] {
            let reply = format!("{reply}\r\n").leak();
            let (outcome, seen) = log_in("AUTH PLAIN", vec![at("AUTH", Act::Say(reply))]);
            assert_eq!(kind(&outcome), expected, "{reply}: {outcome:?}");
            assert!(!seen.commands().contains(&"MAIL"), "{reply}");
        }
        for act in NO_REPLY {
            let (outcome, seen) = log_in("AUTH PLAIN", vec![at("AUTH", act)]);
            assert_eq!(kind(&outcome), "unreached", "{act:?}: {outcome:?}");
            assert!(!seen.commands().contains(&"MAIL"), "{act:?}");
        }
    }

    #[test]
    fn a_server_that_repeats_the_password_does_not_show_it() {
        let echo = Act::Say("535 5.7.8 what is AGFwcABzM2NyZXQh, s3cret! or czNjcmV0IQ==\r\n");
        let (outcome, _) = log_in("AUTH PLAIN", vec![at("AUTH", echo)]);
        assert_eq!(reason(&outcome), "AUTH: 535 5.7.8 what is [hidden], [hidden] or [hidden]");
    }
}

mod before_the_dot {
    use super::*;

    #[test]
    fn without_a_reply_the_message_was_not_accepted() {
        for (step, expected) in [("MAIL", "unreached"), ("RCPT", "deferred"), ("DATA", "deferred")] {
            for act in NO_REPLY {
                let (outcome, seen) =
                    outcome_within(patience(act), PATIENCE, in_order(), vec![at(step, act)]);
                assert_eq!(kind(&outcome), expected, "{step} {act:?}: {outcome:?}");
                assert!(seen.messages.is_empty() && seen.connections == 1, "{step} {act:?}");
            }
        }
    }

    #[test]
    fn a_reply_that_refuses_is_in_the_reason_whole() {
        let long = "550-5.1.1 <ann@example.com>: no such user\r\n550 5.1.1 see https://mx.example/x\r\n";
        let (outcome, seen) = outcome_of(in_order(), vec![at("RCPT", Act::Say(long))]);
        let reason = "RCPT TO: 550 5.1.1 <ann@example.com>: no such user see https://mx.example/x";
        assert_eq!(outcome, Outcome::Rejected { reason: reason.into() });
        assert_eq!(seen.commands(), ["EHLO", "MAIL", "RCPT", "QUIT"]);
    }

    #[test]
    fn a_server_that_closes_is_no_fault_of_the_message() {
        // From RCPT on it may be this message that it does not stand: attempts must come to an end.
        for (step, expected) in [("MAIL", "unreached"), ("RCPT", "deferred"), ("DATA", "deferred")] {
            let (outcome, _) =
                outcome_of(in_order(), vec![at(step, Act::SayAndClose("421 4.3.2 closing\r\n"))]);
            assert_eq!(kind(&outcome), expected, "{step}: {outcome:?}");
        }
    }

    #[test]
    fn a_reply_that_nobody_asked_for_is_no_reply_to_what_follows() {
        for (step, reply, says) in [
            ("MAIL", "250 ok\r\n250 ok\r\n", "RCPT TO: the server spoke out of turn"),
            ("DATA", "354 go\r\n250 queued as X\r\n", "the message: not expected: 250 queued as X"),
        ] {
            let (outcome, seen) = outcome_of(in_order(), vec![at(step, Act::Say(reply))]);
            assert_eq!(kind(&outcome), "deferred", "{step}: {outcome:?}");
            assert_eq!(reason(&outcome), says);
            assert!(seen.messages.is_empty());
        }
    }

    #[test]
    fn a_server_that_has_left_or_spoken_is_noticed_before_the_dot() {
        for tls in [Tls::None, Tls::Implicit] {
            let identity = Identity::of("127.0.0.1");
            let (file, implicit) = (NamedTempFile::new().unwrap(), tls == Tls::Implicit);
            std::fs::write(file.path(), &identity.pem).unwrap();
            let manner = Manner { identity: Some(identity), implicit, ..in_order() };
            let server = server::Server::start(manner, vec![at("RSET", Act::Close).of(1)]);
            let ca_file = implicit.then(|| file.path().into());
            let smtp = open(&Settings { tls, ca_file, ..settings(server.port) }, PATIENCE);
            let connect = || smtp.server.connect(soon()).unwrap_or_else(|outcome| panic!("{outcome:?}"));

            let mut left = connect();
            assert!(!left.is_out_of_turn(), "{tls:?}: what TLS says by itself is nothing said");
            left.write(b"RSET\r\n", soon()).unwrap();
            server.wait_until_ended(1);
            assert!(left.is_out_of_turn(), "{tls:?}");

            let mut spoken = connect();
            spoken.write(b"RSET\r\nRSET\r\n", soon()).unwrap();
            assert_eq!(spoken.reply(soon()).unwrap().code, 250);
            let end = soon();
            while !spoken.is_out_of_turn() {
                assert!(!end.passed());
            }
            assert_eq!(spoken.reply(soon()).unwrap().code, 250, "and it can be heard");
        }
    }

    /// A mail that is longer than any socket holds on the way.
    fn send_long(port: u16, timeout: Duration) -> Outcome {
        let smtp = open(&settings(port), PATIENCE);
        let mut mail = Mail::new(&message(), true).unwrap_or_else(|outcome| panic!("{outcome:?}"));
        mail.data = (String::from("x").repeat(70) + "\r\n").repeat(300_000).into_bytes();
        let mut connection = smtp.server.connect(soon()).unwrap_or_else(|outcome| panic!("{outcome:?}"));
        match smtp.transact(&mut connection, &mail, soon(), Moment::now() + timeout) {
            Ended::Over(outcome) => outcome,
            Ended::Kept(outcome) | Ended::Stale(outcome) => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn a_message_that_breaks_off_was_not_accepted() {
        for read in [0, 1, 10_000] {
            for act in [Act::Close, Act::Reset, Act::Stall] {
                let manner = Manner { body: Some((read, Some(act))), ..in_order() };
                let server = server::Server::start(manner, vec![]);
                let timeout = if matches!(act, Act::Stall) { SHORT } else { PATIENCE };
                let outcome = send_long(server.port, timeout);
                assert_eq!(kind(&outcome), "deferred", "{read} {act:?}: {outcome:?}");
                assert!(reason(&outcome).starts_with("the message: "), "{outcome:?}");
                assert!(server.finish().messages.is_empty());
            }
        }
    }

    #[test]
    fn the_last_words_of_a_server_that_breaks_off_are_heard() {
        for (reply, expected) in [
            ("552 5.3.4 too long", "rejected"),
            ("451 4.3.0 out of disk", "deferred"),
            ("421 4.3.2 closing", "deferred"),
            ("250 ok", "deferred"),
        ] {
            let last = Act::SayAndClose(format!("{reply}\r\n").leak());
            let manner = Manner { body: Some((1000, Some(last))), ..in_order() };
            let server = server::Server::start(manner, vec![]);
            let outcome = send_long(server.port, PATIENCE);
            assert_eq!(kind(&outcome), expected, "{reply}: {outcome:?}");
            assert!(server.finish().messages.is_empty());
        }
    }

    #[test]
    fn a_run_that_was_stopped_while_writing_sends_no_dot() {
        let until = Moment::now() + SHORT;
        let server = server::Server::start(in_order(), vec![at("DATA", Act::Wait(until))]);
        let smtp = open(&settings(server.port), PATIENCE);
        assert_eq!(smtp.send(&message(), until), Outcome::too_late());
        drop(smtp);
        let seen = server.finish();
        assert_eq!((seen.commands(), seen.messages.len()), (vec!["EHLO", "MAIL", "RCPT", "DATA"], 0));
    }
}

/// MAIL, RCPT and DATA in one go, to a server that offers it.
mod in_one_go {
    use super::*;

    fn together() -> Manner {
        Manner { offers: vec!["PIPELINING"], ..in_order() }
    }

    #[test]
    fn replies_mean_what_they_mean_one_by_one() {
        for step in ["MAIL", "RCPT", "DATA"] {
            let replies = [
                "250 2.1.0 ok",
                "354 go on",
                "421 4.3.2 closing",
                "450 4.2.0 greylisted",
                "451 4.3.0 not now",
                "452 4.2.2 full",
                "500 what",
                "530 5.7.0 log in",
                "550 5.1.1 nobody",
                "552 5.3.4 too long",
            ];
            for reply in replies {
                let rules = || vec![at(step, Act::Say(format!("{reply}\r\n").leak()))];
                let (one_by_one, _) = outcome_of(in_order(), rules());
                let (outcome, seen) = outcome_of(together(), rules());
                assert_eq!(outcome, one_by_one, "{step} {reply}");
                assert!(seen.messages.is_empty() || outcome == accepted(), "{step} {reply}");
            }
        }
    }

    #[test]
    fn without_a_reply_the_message_was_not_accepted() {
        for (step, expected) in [("MAIL", "unreached"), ("RCPT", "deferred"), ("DATA", "deferred")] {
            for act in NO_REPLY {
                let (outcome, seen) =
                    outcome_within(patience(act), PATIENCE, together(), vec![at(step, act)]);
                // A server that closes before it has read everything may take back what it has said.
                let taken_back = kind(&outcome) == "unreached" && !matches!(act, Act::Hang | Act::Say(_));
                assert!(kind(&outcome) == expected || taken_back, "{step} {act:?}: {outcome:?}");
                assert!(seen.messages.is_empty() && seen.connections == 1, "{step} {act:?}");
            }
        }
    }

    #[test]
    fn a_refused_message_is_never_ended_by_a_dot() {
        for step in ["MAIL", "RCPT"] {
            let server =
                server::Server::start(together(), vec![at(step, Act::Say("550 5.1.1 nobody\r\n")).of(1)]);
            let smtp = open(&settings(server.port), PATIENCE);
            // It says 354 all the same, and would take a lone dot for a message.
            assert_eq!(reason(&smtp.send(&message(), soon())).split(':').nth(1), Some(" 550 5.1.1 nobody"));
            server.wait_until_ended(1);
            assert_eq!(smtp.send(&message_of("bo@example.com", "2"), soon()), accepted());
            drop(smtp);
            let seen = server.finish();
            assert_eq!((seen.connections, seen.messages.len()), (2, 1), "{step}");
            assert!(seen.messages[0].contains("To: bo@example.com"), "{step}");
        }
    }

    #[test]
    fn a_server_that_refuses_in_order_goes_on_in_order() {
        let rules = vec![
            at("RCPT", Act::Say("550 5.1.1 nobody\r\n")).time(1),
            at("DATA", Act::Say("554 5.5.1 no valid recipients\r\n")).time(1),
        ];
        let server = server::Server::start(together(), rules);
        let smtp = open(&settings(server.port), PATIENCE);
        assert_eq!(
            smtp.send(&message(), soon()),
            Outcome::Rejected { reason: "RCPT TO: 550 5.1.1 nobody".into() }
        );
        assert_eq!(smtp.send(&message(), soon()), accepted());
        drop(smtp);
        let seen = server.finish();
        let one = ["MAIL", "RCPT", "DATA"];
        assert_eq!(seen.commands(), [&["EHLO"][..], &one, &["RSET"], &one, &["QUIT"]].concat());
        assert_eq!((seen.connections, seen.messages.len()), (1, 1));
    }

    #[test]
    fn one_that_was_closed_in_between_is_replaced_once() {
        for act in [Act::Close, Act::Reset, Act::SayAndClose("421 4.4.2 idle for too long\r\n")] {
            let server = server::Server::start(together(), vec![at("MAIL", act).of(1).time(2)]);
            let smtp = open(&settings(server.port), PATIENCE);
            assert_eq!([(); 2].map(|()| smtp.send(&message(), soon())), [accepted(), accepted()], "{act:?}");
            drop(smtp);
            let seen = server.finish();
            assert_eq!((seen.connections, seen.messages.len()), (2, 2), "{act:?}");
        }
    }

    #[test]
    fn a_reply_that_nobody_asked_for_ends_it() {
        for (step, reply) in [("MAIL", "250 ok\r\n250 ok\r\n"), ("RCPT", "250 ok\r\n250 ok\r\n")] {
            let (outcome, seen) = outcome_of(together(), vec![at(step, Act::Say(reply))]);
            assert_eq!(kind(&outcome), "deferred", "{step}: {outcome:?}");
            assert!(seen.messages.is_empty(), "{step}");
        }
    }
}

mod after_the_dot {
    use super::*;

    #[test]
    fn without_a_complete_reply_nobody_knows() {
        let cut = [
            Act::SayAndClose("250-2.0.0 Ok: queued as 4Qk1Z21xxz\r\n"),
            Act::SayAndClose("250 2.0.0 Ok: queued as 4Qk1Z21xxz\r"),
            Act::SayAndClose("25"),
            Act::Say("250-a\r\n251 b\r\n"),
            Act::Trickle("250-a\r\n250-b\r\n250-c\r\n250-d\r\n"),
        ];
        for act in NO_REPLY.into_iter().chain(cut) {
            let (outcome, seen) = outcome_within(PATIENCE, SHORT, in_order(), vec![at(".", act)]);
            assert_eq!(kind(&outcome), "unknown", "{act:?}: {outcome:?}");
            assert_eq!((seen.messages.len(), seen.connections), (1, 1), "{act:?}: it must not be sent again");
        }
    }

    #[test]
    fn the_answer_has_a_time_of_its_own() {
        let (outcome, _) = outcome_within(
            2 * SHORT,
            20 * SHORT,
            in_order(),
            vec![at(".", Act::Wait(Moment::now() + 4 * SHORT))],
        );
        assert_eq!(outcome, accepted());
    }

    #[test]
    fn a_connection_that_may_still_answer_is_not_used_again() {
        let server = server::Server::start(in_order(), vec![at(".", Act::Hang).of(1)]);
        let smtp = open(&Settings { answer_timeout: SHORT, ..settings(server.port) }, PATIENCE);
        assert_eq!(kind(&smtp.send(&message(), soon())), "unknown");
        assert_eq!(smtp.send(&message(), soon()), accepted());
        drop(smtp);
        let seen = server.finish();
        assert_eq!((seen.connections, seen.messages.len()), (2, 2));
    }

    #[test]
    fn an_accepted_message_needs_no_polite_end() {
        for act in [Act::Close, Act::Reset, Act::Say("500 what\r\n")] {
            let (outcome, _) = outcome_of(in_order(), vec![at("QUIT", act)]);
            assert_eq!(outcome, accepted());
        }
    }
}

mod connections {
    use super::*;

    fn send_twice(rules: Vec<Rule>) -> (Vec<Outcome>, Seen) {
        let server = server::Server::start(in_order(), rules);
        let smtp = open(&settings(server.port), PATIENCE);
        let outcomes =
            vec![smtp.send(&message(), soon()), smtp.send(&message_of("bo@example.com", "2"), soon())];
        drop(smtp);
        (outcomes, server.finish())
    }

    #[test]
    fn a_connection_serves_one_message_after_the_other_each_with_one_recipient() {
        let (outcomes, seen) = send_twice(vec![]);
        assert_eq!(outcomes, [accepted(), accepted()]);
        let one = ["MAIL", "RCPT", "DATA"];
        assert_eq!(seen.commands(), [&["EHLO"][..], &one, &one, &["QUIT"]].concat());
    }

    #[test]
    fn what_a_refused_message_left_is_reset() {
        for step in ["MAIL", "RCPT", "DATA", "."] {
            let refused = at(step, Act::Say("451 4.3.0 not now\r\n")).time(1);
            let (outcomes, seen) = send_twice(vec![refused]);
            assert_eq!(outcomes[1], accepted(), "{step}");
            assert_eq!(seen.connections, 1, "{step}");
            let resets = seen.commands().iter().filter(|command| **command == "RSET").count();
            assert_eq!(resets, 1, "{step}: {:?}", seen.commands());
            assert!(seen.messages.last().unwrap().contains("To: bo@example.com"));
        }
    }

    #[test]
    fn one_that_died_in_between_is_replaced_once() {
        for act in [Act::Close, Act::Reset, Act::SayAndClose("421 4.4.2 idle for too long\r\n")] {
            let (outcomes, seen) = send_twice(vec![at("MAIL", act).of(1).time(2)]);
            assert_eq!(outcomes, [accepted(), accepted()], "{act:?}");
            assert_eq!((seen.connections, seen.messages.len()), (2, 2), "{act:?}");

            let refused = at("RCPT", Act::Say("550 5.1.1 nobody\r\n")).of(1);
            let (outcomes, seen) = send_twice(vec![refused, at("RSET", act).of(1)]);
            assert_eq!(outcomes[1], accepted(), "{act:?}");
            assert_eq!((seen.connections, seen.messages.len()), (2, 1), "{act:?}");

            let (outcomes, seen) = send_twice(vec![at("MAIL", act).of(1).time(2), at("MAIL", act).of(2)]);
            assert_eq!(kind(&outcomes[1]), "unreached", "{act:?}");
            assert_eq!((seen.connections, seen.messages.len()), (2, 1), "{act:?}: once, and not for ever");
        }
    }

    #[test]
    fn one_that_died_later_is_not_replaced() {
        for (step, expected) in [("RCPT", "deferred"), ("DATA", "deferred"), (".", "unknown")] {
            let (outcomes, seen) = send_twice(vec![at(step, Act::Close).time(2)]);
            assert_eq!(kind(&outcomes[1]), expected, "{step}");
            assert_eq!(seen.connections, 1, "{step}");
        }
    }

    #[test]
    fn one_that_was_idle_for_long_is_left() {
        let server = server::Server::start(in_order(), vec![]);
        let smtp = open(&settings(server.port), PATIENCE);
        assert_eq!(smtp.send(&message(), soon()), accepted());
        smtp.kept.lock().unwrap()[0].1 = Moment::now() - LONGEST_IDLE;
        assert_eq!(smtp.send(&message(), soon()), accepted());
        server.wait_until_ended(1);
        drop(smtp);
        let seen = server.finish();
        let quits = seen.commands().iter().filter(|command| **command == "QUIT").count();
        assert_eq!((seen.connections, quits), (2, 2));
    }

    #[test]
    fn no_more_are_kept_than_are_used_at_once() {
        let server = server::Server::start(in_order(), vec![]);
        let smtp = open(&settings(server.port), PATIENCE);
        let connect = || smtp.server.connect(soon()).map_err(|outcome| format!("{outcome:?}")).unwrap();
        for connection in [connect(), connect(), connect()] {
            smtp.keep(connection);
        }
        assert_eq!(smtp.kept.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_server_that_does_not_say_goodbye_is_not_waited_for() {
        let server = server::Server::start(in_order(), vec![at("QUIT", Act::Hang)]);
        let smtp = open(&settings(server.port), PATIENCE);
        assert_eq!(smtp.send(&message(), soon()), accepted());
        let before = Moment::now();
        drop(smtp);
        assert!(before.elapsed() < PATIENCE / 2);
        server.finish();
    }
}

mod what_a_server_can_take {
    use super::*;

    fn send(offers: Vec<&'static str>, message: &Message) -> (Outcome, Seen) {
        let server = server::Server::start(Manner { offers, ..in_order() }, vec![]);
        let smtp = open(&settings(server.port), PATIENCE);
        let outcome = smtp.send(message, soon());
        drop(smtp);
        (outcome, server.finish())
    }

    #[test]
    fn a_message_that_is_too_long_for_it_is_not_even_tried() {
        let long = message_of("ann@example.com", &"x".repeat(2000));
        let (outcome, seen) = send(vec!["SIZE 1000"], &long);
        assert_eq!(kind(&outcome), "rejected");
        assert!(reason(&outcome).ends_with("and the server takes no more than 1000"), "{outcome:?}");
        assert_eq!(seen.commands(), ["EHLO", "QUIT"]);
        for offer in ["SIZE 10000", "SIZE 0", "SIZE"] {
            let (outcome, seen) = send(vec![offer], &long);
            assert_eq!(outcome, accepted(), "{offer}");
            let size = seen.messages[0].len();
            assert_eq!(seen.lines[1], format!("MAIL FROM:<news@shop.example> SIZE={size}"));
        }
    }

    #[test]
    fn the_size_is_that_without_doubled_dots() {
        let (_, seen) = send(vec!["SIZE"], &message_of("ann@example.com", ".\n..\n."));
        let mail = &seen.messages[0];
        assert!(mail.ends_with("\r\n\r\n..\r\n...\r\n..\r\n"), "{mail}");
        assert!(seen.lines[1].ends_with(&format!("SIZE={}", mail.len() - 3)), "{:?}", seen.lines);
    }

    #[test]
    fn a_name_that_is_not_ascii_goes_to_a_server_that_knows_such() {
        let joerg = message_of("j\u{f6}rg@b\u{fc}cher.example", "Hello");
        let (outcome, seen) = send(vec![], &joerg);
        assert_eq!(kind(&outcome), "rejected");
        assert!(
            reason(&outcome).contains("the recipient's address is not ASCII before its @"),
            "{outcome:?}"
        );
        assert!(!seen.commands().contains(&"MAIL"));

        let (outcome, seen) = send(vec!["SMTPUTF8", "8BITMIME"], &joerg);
        assert_eq!(outcome, accepted());
        assert_eq!(seen.lines[1], "MAIL FROM:<news@shop.example> SMTPUTF8 BODY=8BITMIME");
        assert_eq!(seen.lines[2], "RCPT TO:<j\u{f6}rg@xn--bcher-kva.example>");
        assert!(seen.messages[0].contains("\r\nTo: j\u{f6}rg@xn--bcher-kva.example\r\n"));

        let mut from = message();
        let body = r#"{"from": "j\u00f6rg@shop.example", "subject": "Hi", "text": "x"}"#;
        from.body = Some(RawValue::from_string(body.into()).unwrap());
        assert_eq!(kind(&send(vec![], &from).0), "unavailable");
    }

    #[test]
    fn a_domain_that_is_not_ascii_goes_to_any() {
        let (outcome, seen) = send(vec![], &message_of("ann@b\u{fc}cher.example", "Gr\u{fc}\u{df}e"));
        assert_eq!(outcome, accepted());
        assert_eq!(
            seen.lines[1..3],
            ["MAIL FROM:<news@shop.example>", "RCPT TO:<ann@xn--bcher-kva.example>"]
        );
        assert!(seen.messages[0].is_ascii(), "{}", seen.messages[0]);
    }

    #[test]
    fn an_address_that_would_be_two_commands_is_rejected_with_nothing_sent() {
        for recipient in ["ann@example.com\r\nDATA", "ann@example.com> SIZE=1", "a\0@example.com", "ann"] {
            let server = server::Server::start(in_order(), vec![]);
            let smtp = open(&settings(server.port), PATIENCE);
            let outcome = smtp.send(&message_of(recipient, "x"), soon());
            assert_eq!(kind(&outcome), "rejected", "{recipient:?}");
            drop(smtp);
            assert_eq!(server.finish().connections, 0);
        }
    }
}

mod the_table {
    use super::*;

    fn of(step: Step, code: u16, text: &str) -> &'static str {
        match outcome(step, &Reply { code, lines: vec![text.into()] }) {
            None => "go on",
            Some(outcome) => kind(&outcome),
        }
    }

    #[test]
    fn has_every_code_at_every_step() {
        for code in 100..=599 {
            for step in [Step::Greeting, Step::StartTls] {
                assert_eq!(
                    of(step, code, ""),
                    if code == 220 { "go on" } else { "unreached" },
                    "{step} {code}"
                );
            }
            for step in [Step::Hello, Step::Reset] {
                assert_eq!(
                    of(step, code, ""),
                    if code == 250 { "go on" } else { "unreached" },
                    "{step} {code}"
                );
            }
            let auth = match code {
                235 => "go on",
                421 => "unreached",
                400..=499 => "hold",
                500..=599 => "unavailable",
                _ => "unreached",
            };
            assert_eq!(of(Step::Auth, code, ""), auth, "AUTH {code}");
            let mail = match code {
                250 => "go on",
                421 => "unreached",
                452 | 500..=599 => "unavailable",
                400..=499 => "deferred",
                _ => "unreached",
            };
            assert_eq!(of(Step::Mail, code, ""), mail, "MAIL {code}");
            let rcpt = match code {
                250..=252 => "go on",
                450 | 451 => "deferred for minutes",
                530 | 534 | 535 | 538 => "unavailable",
                500..=599 => "rejected",
                _ => "deferred",
            };
            assert_eq!(of(Step::Rcpt, code, ""), rcpt, "RCPT {code}");
            let data = match code {
                354 => "go on",
                530 | 534 | 535 | 538 => "unavailable",
                500..=599 => "rejected",
                _ => "deferred",
            };
            assert_eq!(of(Step::Data, code, ""), data, "DATA {code}");
            let dot = match code {
                250 => "accepted",
                400..=499 => "deferred",
                500..=599 => "rejected",
                _ => "unknown",
            };
            assert_eq!(of(Step::Dot, code, ""), dot, "dot {code}");
        }
    }

    #[test]
    fn a_sender_over_quota_needs_a_person_and_a_message_too_long_is_rejected() {
        assert_eq!(of(Step::Mail, 552, "5.2.2 over quota"), "unavailable");
        assert_eq!(of(Step::Mail, 552, "5.3.4 too long"), "rejected");
        assert_eq!(of(Step::Mail, 552, "5.2.3 too long"), "rejected");
        assert_eq!(of(Step::Mail, 452, "4.3.1 out of disk"), "unavailable");
    }
}

mod refused_settings {
    use super::*;

    #[track_caller]
    fn assert_refused(settings: &Settings, says: &str) {
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert!(Smtp::open(settings, PATIENCE, 1).is_err());
    }

    #[test]
    fn say_what_is_wrong_and_the_way_out() {
        let good = settings(25);
        good.check().unwrap();
        let with = |change: fn(&mut Settings)| {
            let mut settings = good.clone();
            change(&mut settings);
            settings
        };
        for (change, says) in [
            ((|s| s.host = String::new()) as fn(&mut Settings), "`host` must be a name"),
            (|s| s.host = "smtp://mail.example.com".into(), "`host` must be a name"),
            (|s| s.host = "mail.example.com:25".into(), "that is the key `port`"),
            (|s| s.port = Some(0), "`port` must be 1 to 65535"),
            (|s| s.ca_file = Some("/ca.pem".into()), "`ca_file` is for TLS"),
            (
                |s| (s.tls, s.ca_file) = (Tls::Implicit, Some("ca.pem".into())),
                "`ca_file` must be an absolute path",
            ),
            (|s| s.user = Some("app".into()), "`user` and `password` go together"),
            (|s| s.password = Some("x".into()), "`user` and `password` go together"),
            (|s| (s.user, s.password) = (Some("a".into()), Some(String::new())), "must not be empty"),
            (
                |s| {
                    s.host = "mail.example.com".into();
                    (s.user, s.password) = (Some("app".into()), Some("s3cret".into()));
                },
                "set `tls` to \"starttls\" or \"implicit\"",
            ),
            (|s| s.hello = Some("two words".into()), "`hello` must be this host's name"),
            (|s| s.answer_timeout = Duration::from_secs(601), "`answer_timeout` must be 1ms to 10m"),
            (|s| s.text = None, "`text` or `html` is missing"),
            (|s| s.from = "Shop".into(), "`from`: `Shop` is no address"),
            (|s| s.reply_to = Some("Shop <shop>".into()), "`reply_to`: `shop` is no address"),
            (|s| s.list_unsubscribe_post = Some(false), "`list_unsubscribe` works, which is missing"),
        ] {
            assert_refused(&with(change), says);
        }
        for (name, says) in [
            ("To", "headers: To is not yours to set"),
            ("Content-Type", "headers: Content-Type is not yours to set"),
            ("bcc", "headers: bcc is not yours to set"),
            ("List-Unsubscribe", "has a key of its own: `list_unsubscribe`"),
            ("reply-to", "has a key of its own: `reply_to`"),
            ("X Y", "is not the name of a header"),
            ("X:Y", "is not the name of a header"),
            ("X\r\nTo", "is not the name of a header"),
            ("", "is not the name of a header"),
        ] {
            let headers = BTreeMap::from([(name.to_owned(), "x".to_owned())]);
            assert_refused(&Settings { headers, ..good.clone() }, says);
        }
        let twice = ["X-A", "x-a"].map(|name| (name.to_owned(), String::new()));
        assert_refused(&Settings { headers: BTreeMap::from(twice), ..good.clone() }, "x-a is there twice");
    }

    #[test]
    fn a_password_may_go_to_this_host_in_the_clear() {
        for host in ["localhost", "127.0.0.1", "::1"] {
            let (user, password) = (Some("app".to_owned()), Some("s3cret".to_owned()));
            Settings { host: host.into(), user, password, ..settings(25) }.check().unwrap();
        }
    }

    #[test]
    fn a_template_is_no_address_yet() {
        let from = "{{ task.payload.shop }} <{{ task.payload.from }}>".to_owned();
        Settings { from, ..settings(25) }.check().unwrap();
    }

    #[test]
    fn a_ca_file_without_a_certificate_is_refused() {
        let file = NamedTempFile::new().unwrap();
        let ca_file = Some(file.path().to_owned());
        let error = Smtp::open(&Settings { tls: Tls::Starttls, ca_file, ..settings(25) }, PATIENCE, 1);
        assert!(error.err().unwrap().to_string().contains("no certificate in it"));
    }

    #[test]
    fn the_answer_counts_among_what_a_send_may_take() {
        let settings = Settings { answer_timeout: Duration::from_secs(60), ..settings(25) };
        assert_eq!(settings.longest(Duration::from_secs(10)), Duration::from_secs(70));
    }

    #[test]
    fn templates_have_the_names_of_the_rendered_texts() {
        let mut settings = Settings { html: Some("<p>".into()), reply_to: Some("r".into()), ..settings(25) };
        settings.headers.insert("X-Campaign".into(), "{{ task.name }}".into());
        settings.list_unsubscribe = Some("<https://x>".into());
        let names: Vec<String> = settings.texts().into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            ["from", "subject", "reply_to", "text", "html", "list_unsubscribe", "header.X-Campaign"]
        );
    }
}
