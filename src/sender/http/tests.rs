//! Every row of the table of outcomes, against servers that misbehave on cue.

pub mod server;

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

use serde_json::value::RawValue;
use tempfile::NamedTempFile;
use ureq::http::header::{DATE, RETRY_AFTER};
use uuid::Uuid;

use super::exchange::{Answer, End, INPUT_BUFFER};
use super::transport::Step;
use super::*;
use crate::message::{TargetPart, TaskPart};
use crate::sender::Toll;
use crate::sender::testing::{Identity, full_house};
use server::{PATIENCE, Peer, Seen, Server, answer};

/// For servers that never answer.
const SHORT: Duration = Duration::from_millis(300);

const BODY: &str = r#"{"to": "ann@example.com", "text": "Grüße"}"#;

fn settings(url: String) -> Settings {
    Settings {
        url,
        method: post(),
        headers: BTreeMap::new(),
        receipt: None,
        ca_file: None,
        answers: Vec::new(),
        idempotency_header: None,
        sign: None,
        sign_key: None,
    }
}

fn message() -> Message {
    let raw = |text: &str| RawValue::from_string(text.into()).unwrap();
    Message {
        key: Uuid::nil(),
        attempt: 1,
        task: Arc::new(TaskPart { id: 1, name: "Spring".into(), payload: raw("{}") }),
        target: TargetPart { id: 2, recipient: "ann@example.com".into(), params: raw("{}") },
        body: Some(raw(BODY)),
    }
}

fn soon() -> Moment {
    Moment::now() + PATIENCE
}

fn open(settings: &Settings, timeout: Duration, concurrency: usize) -> Result<Http> {
    Http::open(settings, &Exchange { timeout, concurrency, keyed: false })
}

fn send(settings: &Settings, timeout: Duration) -> Outcome {
    open(settings, timeout, 1).unwrap().send(&message(), soon())
}

/// One message to a server with this script: its outcome, and what the server saw in the end.
fn outcome_of(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> (Outcome, Seen) {
    outcome_within(PATIENCE, script)
}

fn outcome_within(timeout: Duration, script: impl Fn(&mut Peer) + Send + Sync + 'static) -> (Outcome, Seen) {
    let server = Server::plain(script);
    let outcome = send(&settings(server.url()), timeout);
    (outcome, server.finish())
}

/// One message to a server that answers with this text and closes.
fn outcome_of_answer(text: impl Into<String>) -> Outcome {
    let text = text.into();
    let script = move |peer: &mut Peer| {
        peer.read();
        peer.say(&text);
    };
    outcome_of(script).0
}

#[track_caller]
fn assert_unreached(outcome: &Outcome, reason: &str) {
    match outcome {
        Outcome::Deferred { reason: why, after: None, toll: Toll::Unreached } if why.starts_with(reason) => {}
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_unknown(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Unknown { .. }), "{outcome:?}");
}

#[track_caller]
fn assert_unavailable(outcome: &Outcome, reason: &str) {
    match outcome {
        Outcome::Unavailable { reason: why } if why.starts_with(reason) => {}
        other => panic!("{other:?}"),
    }
}

fn accepted(receipt: Option<&str>) -> Outcome {
    Outcome::Accepted { receipt: receipt.map(str::to_owned) }
}

mod before_the_first_byte {
    use super::*;

    #[test]
    fn a_refused_connection_costs_nothing() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let outcome = send(&settings(format!("http://127.0.0.1:{port}/")), PATIENCE);
        assert_unreached(&outcome, "no connection: ");
    }

    #[test]
    fn a_name_that_nobody_has_costs_nothing() {
        let outcome = send(&settings("http://nobody.invalid/".into()), Duration::from_secs(2));
        assert_unreached(&outcome, "the host's name is not found: ");
    }

    #[test]
    fn a_host_that_lets_nobody_in_costs_nothing() {
        let (listener, _queue) = full_house();
        let address = listener.local_addr().unwrap();
        let outcome = send(&settings(format!("http://{address}/")), SHORT);
        assert_unreached(&outcome, "no connection: nothing within 300ms");
    }

    #[test]
    fn tls_to_a_plain_port_costs_nothing() {
        let server = Server::plain(|peer| {
            peer.read_nothing();
            peer.say("HTTP/1.1 400 Bad Request\r\n\r\n");
        });
        assert_unreached(&send(&settings(server.tls_url()), PATIENCE), "no TLS: ");
        assert!(server.finish().requests.is_empty());
    }

    #[test]
    fn a_reset_in_the_tls_handshake_costs_nothing() {
        let server = Server::plain(Peer::read_nothing);
        assert_unreached(&send(&settings(server.tls_url()), PATIENCE), "no TLS: ");
    }

    #[test]
    fn a_tls_handshake_that_hangs_costs_nothing() {
        let server = Server::plain(Peer::hang);
        let outcome = send(&settings(server.tls_url()), SHORT);
        assert_unreached(&outcome, "no TLS: nothing within 300ms");
    }

    #[test]
    fn a_tls_alert_costs_nothing() {
        let server = Server::plain(|peer| {
            peer.read_nothing();
            // handshake_failure: no version or cipher in common.
            peer.say("\x15\x03\x03\x00\x02\x02\x28");
            peer.hang();
        });
        assert_unreached(&send(&settings(server.tls_url()), PATIENCE), "no TLS: ");
        assert!(server.finish().requests.is_empty());
    }

    #[test]
    fn a_request_that_cannot_be_made_needs_a_person() {
        let secrets = Secrets::new([].into_iter());
        let error = ureq::Error::BadUri("https://user:pa55word@h".into());
        let outcome = exchange::unanswered(&error, Step::LookUp, PATIENCE, &secrets);
        let reason = "no such request can be made: the URL is none".into();
        assert_eq!(outcome, Outcome::Unavailable { reason });
    }

    #[test]
    fn a_certificate_that_nobody_vouches_for_needs_a_person() {
        let server = Server::tls(&Identity::of("127.0.0.1"), |peer| drop(peer.read()));
        let outcome = send(&settings(server.tls_url()), PATIENCE);
        assert_unavailable(&outcome, "the host's certificate is refused: ");
        assert!(server.finish().requests.is_empty());
    }

    #[test]
    fn a_certificate_of_another_host_needs_a_person() {
        let identity = Identity::of("elsewhere.example");
        let server = Server::tls(&identity, |peer| drop(peer.read()));
        let file = ca_file(&identity);
        let known = Settings { ca_file: Some(file.path().into()), ..settings(server.tls_url()) };
        assert_unavailable(&send(&known, PATIENCE), "the host's certificate is refused: ");
        assert!(server.finish().requests.is_empty());
    }

    #[test]
    fn past_its_time_nothing_is_even_tried() {
        let server = Server::plain(|peer| drop(peer.read()));
        let http = open(&settings(server.url()), PATIENCE, 1).unwrap();
        assert_eq!(http.send(&message(), Moment::now()), Outcome::too_late());
        drop(http);
        assert_eq!(server.finish().connections, 0);
    }

    #[test]
    fn a_probe_goes_as_far_as_tls_and_asks_nothing() {
        let server = Server::plain(|peer| drop(peer.read()));
        let seen = open(&settings(server.url()), PATIENCE, 1).unwrap().probe().unwrap();
        assert!(seen.starts_with("127.0.0.1 takes connections, without TLS"), "{seen}");
        let plain = server.finish();
        assert_eq!((plain.connections, plain.requests.len()), (1, 0));

        let identity = Identity::of("127.0.0.1");
        let server = Server::tls(&identity, |peer| drop(peer.read()));
        let file = ca_file(&identity);
        let stranger = settings(server.tls_url());
        let known = Settings { ca_file: Some(file.path().into()), ..stranger.clone() };
        let refused = open(&stranger, PATIENCE, 1).unwrap().probe().unwrap_err();
        assert!(refused.starts_with("the host's certificate is refused: "), "{refused}");
        let seen = open(&known, PATIENCE, 1).unwrap().probe().unwrap();
        assert!(seen.starts_with("127.0.0.1 takes connections, with TLS"), "{seen}");
        let tls = server.finish();
        assert_eq!((tls.connections, tls.requests.len()), (2, 0));
    }

    #[test]
    fn a_probe_of_a_host_that_is_not_there_says_so_in_time() {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let refused = open(&settings(format!("http://127.0.0.1:{nobody}/")), PATIENCE, 1).unwrap().probe();
        assert!(refused.as_ref().is_err_and(|why| why.starts_with("no connection: ")), "{refused:?}");
        let (listener, _crowd) = full_house();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let silent = open(&settings(url), SHORT, 1).unwrap().probe();
        assert!(silent.as_ref().is_err_and(|why| why.starts_with("no connection: ")), "{silent:?}");
    }

    /// As by a run that was stopped after `send` had looked at the time.
    fn asked_too_late(http: &Http) -> (Result<Answer, ureq::Error>, transport::Seen) {
        transport::watch(Moment::now(), || {
            http.client.ask(http.request(Uuid::nil(), BODY, 0).unwrap(), http.bounds(soon()))
        })
    }

    #[test]
    fn a_run_that_was_stopped_after_connecting_sends_nothing() {
        let server = Server::plain(|peer| while peer.read().is_some() {});
        let http = open(&settings(server.url()), PATIENCE, 1).unwrap();
        let (answer, seen) = asked_too_late(&http);
        let outcome = exchange::unanswered(&answer.err().unwrap(), seen.step, PATIENCE, &http.form.secrets);
        assert_eq!(outcome, Outcome::too_late());
        drop(http);
        let seen = server.finish();
        assert_eq!((seen.connections, seen.requests.len()), (1, 0));
    }

    #[test]
    fn a_run_that_was_stopped_with_a_connection_at_hand_sends_nothing() {
        let server = Server::plain(always_ok);
        let http = open(&settings(server.url()), PATIENCE, 1).unwrap();
        assert_eq!(http.send(&message(), soon()), accepted(None));
        let (_, seen) = asked_too_late(&http);
        assert_eq!(seen.step, Step::TooLate);
        drop(http);
        assert_eq!(server.finish().requests.len(), 1);
    }
}

mod after_the_first_byte {
    use super::*;

    #[test]
    fn a_reset_before_reading_is_unknown() {
        assert_unknown(&outcome_of(Peer::read_nothing).0);
    }

    #[test]
    fn a_reset_after_reading_is_unknown() {
        assert_unknown(&outcome_of(Peer::read_but_the_last_byte).0);
    }

    #[test]
    fn a_close_after_reading_is_unknown() {
        let (outcome, seen) = outcome_of(|peer| drop(peer.read()));
        assert_unknown(&outcome);
        assert_eq!(seen.connections, 1, "it must not be sent again");
    }

    #[test]
    fn a_reset_within_the_status_line_is_unknown() {
        let (outcome, _) = outcome_of(|peer| {
            peer.read_but_the_last_byte();
            peer.say("HTTP/1.1 20");
        });
        assert_unknown(&outcome);
    }

    #[test]
    fn a_close_within_the_head_is_unknown() {
        assert_unknown(&outcome_of_answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"));
    }

    #[test]
    fn garbage_is_unknown() {
        assert_unknown(&outcome_of_answer("SSH-2.0-OpenSSH_9.6\r\n\r\n"));
    }

    #[test]
    fn a_head_that_is_too_long_is_unknown() {
        let cookie = "x".repeat(INPUT_BUFFER);
        assert_unknown(&outcome_of_answer(format!("HTTP/1.1 200 OK\r\nSet-Cookie: {cookie}\r\n\r\n")));
    }

    #[test]
    fn silence_is_unknown_when_the_time_is_over() {
        let before = Moment::now();
        let (outcome, _) = outcome_within(SHORT, |peer| {
            peer.read();
            peer.hang();
        });
        assert_eq!(outcome, Outcome::Unknown { reason: "no complete answer: nothing within 300ms".into() });
        assert!(before.elapsed() >= SHORT);
    }

    #[test]
    fn a_body_that_trickles_is_cut_when_the_time_is_over() {
        let (outcome, _) = outcome_within(SHORT, |peer| {
            peer.read();
            peer.say("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{");
            peer.hang();
        });
        assert_eq!(outcome, Outcome::Unknown { reason: "HTTP 200, the answer cut short: {".into() });
    }

    #[test]
    fn a_host_that_stops_reading_is_unknown_when_the_time_is_over() {
        let over = Arc::new(Barrier::new(2));
        let held = over.clone();
        let server = Server::plain(move |_| {
            held.wait();
        });
        let mut long = message();
        let text = format!("\"{}\"", "x".repeat(16 << 20));
        long.body = Some(RawValue::from_string(text).unwrap());
        let http = open(&settings(server.url()), SHORT, 1).unwrap();
        let before = Moment::now();
        assert_unknown(&http.send(&long, soon()));
        assert!(before.elapsed() < PATIENCE / 2);
        over.wait();
    }

    #[test]
    fn a_reset_in_the_middle_of_the_request_is_unknown() {
        let server = Server::plain(Peer::read_nothing);
        let mut long = message();
        let text = format!("\"{}\"", "x".repeat(16 << 20));
        long.body = Some(RawValue::from_string(text).unwrap());
        assert_unknown(&open(&settings(server.url()), PATIENCE, 1).unwrap().send(&long, soon()));
        assert!(server.finish().requests.is_empty());
    }

    #[test]
    fn only_interim_answers_are_unknown() {
        assert_unknown(&outcome_of_answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"));
        assert_unknown(&outcome_of_answer("HTTP/1.1 101 Switching Protocols\r\n\r\n"));
    }

    #[test]
    fn an_interim_answer_does_not_hide_the_final_one() {
        let text = format!("HTTP/1.1 103 Early Hints\r\n\r\n{}", answer("202 Accepted", ""));
        assert_eq!(outcome_of_answer(text), accepted(None));
    }

    #[test]
    fn a_reset_on_a_connection_used_before_is_unknown_and_not_repeated() {
        let server = Server::plain(|peer| {
            peer.read();
            peer.say(&answer("200 OK", ""));
            peer.read_but_the_last_byte();
        });
        let http = open(&settings(server.url()), PATIENCE, 1).unwrap();
        assert_eq!(http.send(&message(), soon()), accepted(None));
        assert_unknown(&http.send(&message(), soon()));
        drop(http);
        let seen = server.finish();
        assert_eq!((seen.connections, seen.requests.len()), (1, 2));
    }
}

mod an_accepted_message {
    use super::*;

    #[test]
    fn needs_the_whole_body_by_its_length() {
        assert_unknown(&outcome_of_answer("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"id\""));
    }

    #[test]
    fn needs_the_whole_body_by_its_chunks() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"\r\n";
        assert_unknown(&outcome_of_answer(chunked));
        assert_eq!(outcome_of_answer(format!("{chunked}4\r\n: 1}}\r\n0\r\n\r\n")), accepted(None));
    }

    #[test]
    fn needs_an_orderly_end_where_nothing_else_ends_the_body() {
        let until_closed = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"id\": 1}";
        assert_eq!(outcome_of_answer(until_closed), accepted(None));
        let (outcome, _) = outcome_of(|peer| {
            peer.read_but_the_last_byte();
            peer.say(until_closed);
        });
        assert_unknown(&outcome);
    }

    #[test]
    fn is_unknown_after_a_reset_in_the_body() {
        let (outcome, _) = outcome_of(|peer| {
            peer.read_but_the_last_byte();
            peer.say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{");
        });
        assert_unknown(&outcome);
    }

    #[test]
    fn may_answer_with_256_kib_and_no_more() {
        assert_eq!(outcome_of_answer(answer("200 OK", &"x".repeat(LONGEST_BODY))), accepted(None));
        match outcome_of_answer(answer("200 OK", &"x".repeat(LONGEST_BODY + 1))) {
            Outcome::Unknown { reason } => {
                assert!(reason.starts_with("HTTP 200, the answer longer than 256 KiB: xxx"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }

    fn receipt_at(pointer: &str, body: &'static str) -> Outcome {
        let server = Server::plain(move |peer| {
            peer.read();
            peer.say(&answer("201 Created", body));
        });
        send(&Settings { receipt: Some(pointer.into()), ..settings(server.url()) }, PATIENCE)
    }

    #[test]
    fn has_the_receipt_that_the_pointer_finds() {
        assert_eq!(receipt_at("/id", r#"{"id": "m-1"}"#), accepted(Some("m-1")));
        assert_eq!(receipt_at("/data/0/id", r#"{"data": [{"id": 18446744073709551615}]}"#), {
            accepted(Some("18446744073709551615"))
        });
    }

    #[test]
    fn may_lack_a_receipt() {
        for body in [r#"{"no": "id"}"#, r#"{"id": null}"#, r#"{"id": ""}"#, r#"{"id": {}}"#, "queued", ""] {
            assert_eq!(receipt_at("/id", body), accepted(None), "{body}");
        }
    }

    #[test]
    fn finds_its_receipt_at_the_end_of_a_long_body() {
        let body = format!(r#"{{"echo": "{}", "id": 7}}"#, "x".repeat(200_000)).leak();
        assert_eq!(receipt_at("/id", body), accepted(Some("7")));
    }
}

mod the_table {
    use super::*;

    fn kind(answer: &Answer) -> &'static str {
        match Rules::default().judge(answer, &Secrets::new([].into_iter())) {
            Outcome::Accepted { .. } => "accepted",
            Outcome::Deferred { toll: Toll::Attempt, after: None, .. } => "deferred",
            Outcome::Deferred { toll: Toll::Hold, .. } => "hold",
            Outcome::Deferred { .. } => "not of the table",
            Outcome::Rejected { .. } => "rejected",
            Outcome::Unknown { .. } => "unknown",
            Outcome::Unavailable { .. } => "unavailable",
        }
    }

    #[test]
    fn has_every_status() {
        for status in 100..=999 {
            let expected = match status {
                200..=299 => "accepted",
                400 | 404 | 410 | 413 | 414 | 415 | 422 | 451 => "rejected",
                401 | 402 | 403 | 407 | 501 | 505 => "unavailable",
                421 | 425 => "deferred",
                429 => "hold",
                _ => "unknown",
            };
            assert_eq!(kind(&Answer::of(status)), expected, "{status}");
            // A body that did not come whole takes the word of an acceptance, and of nothing else.
            for end in [End::Cut, End::TooLong] {
                let expected = if expected == "accepted" { "unknown" } else { expected };
                assert_eq!(kind(&Answer { end, ..Answer::of(status) }), expected, "{status} {end:?}");
            }
        }
    }

    #[test]
    fn lets_a_503_wait_only_when_it_asks_for_it() {
        assert_eq!(kind(&Answer::of(503)), "unknown");
        assert_eq!(kind(&Answer { asks_to_wait: true, ..Answer::of(503) }), "hold");
        assert_eq!(kind(&Answer { asks_to_wait: true, ..Answer::of(500) }), "unknown");
    }

    fn retry_after(value: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, value.parse().unwrap());
        if let Some(date) = date {
            headers.insert(DATE, date.parse().unwrap());
        }
        exchange::retry_after(&headers)
    }

    #[test]
    fn understands_retry_after_in_seconds() {
        let day = 24 * 60 * 60;
        let cases = [
            ("30", Some(30)),
            (" 30 ", Some(30)),
            ("0", Some(1)),
            ("86400", Some(day)),
            ("86401", Some(day)),
            ("99999999999999999999999", Some(day)),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ];
        for (value, seconds) in cases {
            assert_eq!(retry_after(value, None), seconds.map(Duration::from_secs), "{value:?}");
        }
    }

    #[test]
    fn understands_retry_after_as_a_date_against_the_answers_own() {
        let now = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        let cases = [
            ("Sun, 06 Nov 1994 08:50:37 GMT", now, Some(60)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", now, Some(60)),
            ("Sun Nov  6 08:50:37 1994", now, Some(60)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some("Sun Nov  6 08:50:07 1994"), Some(30)),
            ("Mon, 06 Nov 2034 08:49:37 GMT", now, Some(24 * 60 * 60)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", now, None),
            ("Sun, 06 Nov 1994 08:48:37 GMT", now, None),
            ("Sun, 06 Nov 1994 08:50:37 GMT", None, None),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some("yesterday"), None),
            ("Mon, 06 Nov 1994 08:50:37 GMT", now, None),
        ];
        for (value, date, seconds) in cases {
            assert_eq!(retry_after(value, date), seconds.map(Duration::from_secs), "{value:?} {date:?}");
        }
    }
}

mod an_answer {
    use super::*;

    #[test]
    fn gives_its_status_and_the_beginning_of_its_body_as_the_reason() {
        let body = "{\"error\":\r\n\t\"no such\u{7}  number\"}";
        let outcome = outcome_of_answer(answer("422 Unprocessable Content", body));
        let reason = r#"HTTP 422: {"error": "no such number"}"#.into();
        assert_eq!(outcome, Outcome::Rejected { reason });

        let outcome = outcome_of_answer(answer("410 Gone", ""));
        assert_eq!(outcome, Outcome::Rejected { reason: "HTTP 410".into() });

        let outcome = outcome_of_answer(answer("500 Internal Server Error", &"ü".repeat(10_000)));
        assert_eq!(outcome, Outcome::Unknown { reason: format!("HTTP 500: {}", "ü".repeat(2048)) });
    }

    #[test]
    fn never_shows_what_is_secret_though_the_server_repeats_it() {
        let server = Server::plain(|peer| {
            let request = peer.read().unwrap();
            peer.say(&answer("401 Unauthorized", &request));
        });
        let headers = [("Authorization", "Bearer s3cr3t-t0k3n"), ("X-Key", "hunter2hunter2")];
        let headers = headers.map(|(name, value)| (name.into(), value.into())).into();
        let outcome = send(&Settings { headers, ..settings(server.url()) }, PATIENCE);
        assert_unavailable(&outcome, "HTTP 401: POST /v1/messages HTTP/1.1 ");
        let shown = format!("{outcome:?}");
        assert!(shown.contains("authorization: [hidden]"), "{shown}");
        assert!(!shown.contains("s3cr3t") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn never_shows_the_key_that_signs() {
        let key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let script = move |peer: &mut Peer| {
            peer.read();
            peer.say(&answer(
                "401 Unauthorized",
                &format!("{key} or MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw is wrong"),
            ));
        };
        let server = Server::plain(script);
        let settings = Settings {
            sign: Some("standard-webhooks".into()),
            sign_key: Some(SignKey::Several(vec![key.into()])),
            ..settings(server.url())
        };
        assert_unavailable(&send(&settings, PATIENCE), "HTTP 401: [hidden] or [hidden] is wrong");
    }

    /// Rules of the channel's own come before the table.
    #[test]
    fn is_read_by_the_rules_of_the_channel() {
        let rule = r#"{ status = 200, json = { "/code" = "busy" }, outcome = "deferred", after = "/wait" }"#;
        let written = format!(
            r#"answers = [{{ status = 200, json = {{ "/code" = "OK" }}, outcome = "accepted" }}, {rule}]"#
        );
        let of = |body: &'static str| {
            let server = Server::plain(move |peer| {
                peer.read();
                peer.say(&answer("200 OK", body));
            });
            let table = format!("url = '{}'\nreceipt = '/id'\n{written}", server.url());
            send(&toml::from_str(&table).unwrap(), PATIENCE)
        };
        assert_eq!(of(r#"{"code": "OK", "id": 7}"#), accepted(Some("7")));
        assert_eq!(
            of(r#"{"code": "busy", "wait": 30}"#),
            Outcome::Deferred {
                reason: r#"HTTP 200: {"code": "busy", "wait": 30}"#.into(),
                after: Some(Duration::from_secs(30)),
                toll: Toll::Attempt,
            }
        );
        assert_unknown(&of(r#"{"code": "lost", "id": 7}"#));
        // What decides may stand anywhere in a long body.
        let long = format!(r#"{{"echo": "{}", "code": "OK"}}"#, "x".repeat(200_000)).leak();
        assert_eq!(of(long), accepted(None));
    }

    #[test]
    fn of_429_holds_the_channel_in_both_forms() {
        let outcome = outcome_of_answer("HTTP/1.1 429 Slow\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n");
        let held = |seconds| Outcome::Deferred {
            reason: "HTTP 429".into(),
            after: Some(Duration::from_secs(seconds)),
            toll: Toll::Hold,
        };
        assert_eq!(outcome, held(30));
        let outcome = outcome_of_answer(
            "HTTP/1.1 429 Slow\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
             Retry-After: Sun, 06 Nov 1994 08:51:37 GMT\r\nContent-Length: 0\r\n\r\n",
        );
        assert_eq!(outcome, held(120));
    }

    #[test]
    fn that_fails_after_the_work_is_unknown() {
        assert_unknown(&outcome_of_answer(answer("500 Internal Server Error", "queued, then failed")));
    }

    #[test]
    fn that_points_elsewhere_is_not_followed() {
        for status in ["302 Found", "307 Temporary Redirect", "303 See Other"] {
            let (outcome, seen) = outcome_of(move |peer| {
                while peer.read().is_some() {
                    peer.say(&format!("HTTP/1.1 {status}\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"));
                }
            });
            assert_unknown(&outcome);
            assert_eq!((seen.connections, seen.requests.len()), (1, 1), "{status}");
        }
    }
}

fn always_ok(peer: &mut Peer) {
    while peer.read().is_some() {
        peer.say(&answer("200 OK", "{}"));
    }
}

fn ca_file(identity: &Identity) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(identity.pem.as_bytes()).unwrap();
    file
}

mod a_request {
    use super::*;

    #[test]
    fn arrives_byte_for_byte() {
        let server = Server::plain(always_ok);
        let headers = [("X-Odd", "a  b\t\"c\";=,"), ("Authorization", "Bearer t0k3n")];
        let headers = headers.map(|(name, value)| (name.into(), value.into())).into();
        let url = format!("{}?a=1&b=%20", server.url());
        let settings = Settings { headers, method: "PUT".into(), ..settings(url) };
        assert_eq!(send(&settings, PATIENCE), accepted(None));
        let port = server.port;
        let requests = server.finish().requests;
        let (head, body) = requests[0].split_once("\r\n\r\n").unwrap();
        assert_eq!(body, BODY);
        let mut lines: Vec<_> = head.split("\r\n").collect();
        assert_eq!(lines.remove(0), "PUT /v1/messages?a=1&b=%20 HTTP/1.1");
        lines.sort();
        let version = env!("CARGO_PKG_VERSION");
        let expected = [
            "accept: */*".to_owned(),
            "authorization: Bearer t0k3n".to_owned(),
            format!("content-length: {}", BODY.len()),
            "content-type: application/json".to_owned(),
            format!("host: 127.0.0.1:{port}"),
            format!("user-agent: batch-send/{version}"),
            "x-odd: a  b\t\"c\";=,".to_owned(),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn may_have_a_content_type_of_its_own_and_any_method() {
        for method in ["GET", "DELETE", "SEND"] {
            let server = Server::plain(always_ok);
            let headers = [("content-type".into(), "application/vnd.x+json".into())].into();
            let settings = Settings { headers, method: method.into(), ..settings(server.url()) };
            assert_eq!(send(&settings, PATIENCE), accepted(None));
            let request = &server.finish().requests[0];
            assert!(request.starts_with(method) && request.ends_with(BODY), "{request}");
            assert_eq!(request.matches("content-type: ").count(), 1);
            assert!(request.contains("content-type: application/vnd.x+json\r\n"), "{request}");
        }
    }

    #[test]
    fn goes_through_tls_to_a_host_of_the_ca_file() {
        let identity = Identity::of("127.0.0.1");
        let server = Server::tls(&identity, always_ok);
        let file = ca_file(&identity);
        let settings = Settings { ca_file: Some(file.path().into()), ..settings(server.tls_url()) };
        let http = open(&settings, PATIENCE, 1).unwrap();
        for _ in 0..2 {
            assert_eq!(http.send(&message(), soon()), accepted(None));
        }
        drop(http);
        let seen = server.finish();
        assert_eq!((seen.connections, seen.requests.len()), (1, 2));
        assert!(seen.requests[1].ends_with(BODY));
    }

    #[test]
    fn uses_the_connection_of_the_one_before() {
        let server = Server::plain(always_ok);
        let http = open(&settings(server.url()), PATIENCE, 1).unwrap();
        for _ in 0..2 {
            assert_eq!(http.send(&message(), soon()), accepted(None));
        }
        drop(http);
        let seen = server.finish();
        assert_eq!((seen.connections, seen.requests.len()), (1, 2));
    }

    fn headers_of(settings: &Settings, keyed: bool, server: Server) -> BTreeMap<String, String> {
        let exchange = Exchange { timeout: PATIENCE, concurrency: 1, keyed };
        let http = Http::open(settings, &exchange).unwrap();
        let message = Message { key: Uuid::from_u128(0x1234_5678_9abc), ..message() };
        assert_eq!(http.send(&message, soon()), accepted(None));
        drop(http);
        let request = server.finish().requests.remove(0);
        let head = request.split_once("\r\n\r\n").unwrap().0;
        head.lines()
            .skip(1)
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    const KEY: &str = "00000000-0000-0000-0000-123456789abc";

    #[test]
    fn bears_its_key_where_the_channel_deduplicates_or_names_the_header() {
        let named = |name: Option<&str>| {
            let server = Server::plain(always_ok);
            let settings = Settings { idempotency_header: name.map(str::to_owned), ..settings(server.url()) };
            (settings, server)
        };
        for (name, keyed, header) in [
            (None, true, Some("idempotency-key")),
            (Some("X-Message-Id"), true, Some("x-message-id")),
            (Some("X-Message-Id"), false, Some("x-message-id")),
            (Some("Idempotency-Key"), false, Some("idempotency-key")),
            (None, false, None),
        ] {
            let (settings, server) = named(name);
            let headers = headers_of(&settings, keyed, server);
            let bearing: Vec<&str> =
                headers.iter().filter(|(_, value)| *value == KEY).map(|(name, _)| name.as_str()).collect();
            assert_eq!(bearing, Vec::from_iter(header), "{name:?} {keyed}");
        }
    }

    #[test]
    fn is_signed_with_its_key_and_the_time_of_the_attempt() {
        let sign_key = Some(SignKey::One("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()));
        let server = Server::plain(always_ok);
        let settings = Settings {
            sign: Some("standard-webhooks".into()),
            sign_key: sign_key.clone(),
            ..settings(server.url())
        };
        let before = seconds_since_1970();
        let headers = headers_of(&settings, false, server);
        let seconds: u64 = headers["webhook-timestamp"].parse().unwrap();
        assert!((before..=seconds_since_1970()).contains(&seconds), "{seconds}");
        let signer = Signer::read(settings.sign.as_deref(), sign_key.as_ref()).unwrap().unwrap();
        let mut expected = HeaderMap::new();
        signer.sign(KEY, seconds, BODY, &mut expected).unwrap();
        for name in sign::HEADERS {
            assert_eq!(headers[name], expected[name].to_str().unwrap(), "{name}");
        }
    }

    /// For a channel that spends a part of its time on another request.
    #[test]
    fn may_have_less_time_than_the_channel_on_the_same_connection() {
        let identity = Identity::of("127.0.0.1");
        let server = Server::tls(&identity, |peer| {
            for _ in 0..2 {
                peer.read();
                peer.say(&answer("200 OK", "{}"));
            }
            peer.read();
            peer.hang();
        });
        let file = ca_file(&identity);
        let settings = Settings { ca_file: Some(file.path().into()), ..settings(server.tls_url()) };
        let http = open(&settings, PATIENCE, 1).unwrap();
        let ask = |timeout| {
            let bounds = Bounds { timeout, ..http.bounds(soon()) };
            http.client
                .exchange(http.request(Uuid::nil(), BODY, 0).unwrap(), bounds, &http.form.secrets)
                .map(|answer| answer.status)
        };
        assert_eq!((ask(PATIENCE), ask(PATIENCE / 2)), (Ok(200), Ok(200)));
        let before = Moment::now();
        assert_unknown(&ask(SHORT).unwrap_err());
        assert!(before.elapsed() < PATIENCE / 2);
        drop(http);
        let seen = server.finish();
        assert_eq!((seen.connections, seen.requests.len()), (1, 3));
    }

    #[test]
    fn goes_out_from_many_threads_at_once_that_need_the_same_name() {
        let server = Server::plain(always_ok);
        let url = format!("http://localhost:{}/", server.port);
        let http = open(&settings(url), PATIENCE, 8).unwrap();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(http.send(&message(), soon()), accepted(None)));
            }
        });
        drop(http);
        assert_eq!(server.finish().requests.len(), 8);
    }

    #[test]
    fn does_not_use_a_connection_that_the_host_has_closed() {
        let server = Server::plain(|peer| {
            peer.read();
            peer.say(&answer("200 OK", "{}"));
        });
        let http = open(&settings(server.url()), PATIENCE, 1).unwrap();
        for n in 1..=3 {
            assert_eq!(http.send(&message(), soon()), accepted(None));
            server.wait_until_ended(n);
        }
        drop(http);
        assert_eq!(server.finish().requests.len(), 3);
    }

    #[test]
    fn takes_no_proxy_from_the_environment() {
        // Environments are of processes: the test above once more, in one that names a proxy for everything.
        let proxy = Server::plain(|peer| drop(peer.read()));
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "sender::http::tests::a_request::uses_the_connection_of_the_one_before"]);
        for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            child.env(name, format!("http://127.0.0.1:{}", proxy.port));
        }
        let ran = child.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        assert_eq!(proxy.finish().connections, 0);
    }
}

mod settings_that_cannot_be {
    use super::*;

    #[track_caller]
    fn refusal(settings: &Settings) -> String {
        let error = open(settings, PATIENCE, 1).err().expect("it must be refused");
        assert_eq!(Trouble::kind_of(&error), Some(crate::trouble::Kind::Usage));
        format!("{error:#}")
    }

    fn good() -> Settings {
        settings("https://user:pa55word@api.example.com:8443/send".into())
    }

    #[test]
    fn good_ones_can() {
        for url in ["http://h", "https://[::1]/", "http://[::1]:80/", "http://u:p@h:1/a?b", "http://u:p@h/"] {
            assert!(open(&settings(url.into()), PATIENCE, 1).is_ok(), "{url}");
        }
        let read: Settings = toml::from_str("url = 'https://h/'").unwrap();
        assert_eq!(read.method, "POST");
        assert!(open(&read, PATIENCE, 1).is_ok());
    }

    #[test]
    fn name_the_url_and_never_show_it() {
        for url in [
            "",
            "/send",
            "api.example.com",
            "ftp://user:pa55word@h/",
            "http://",
            "http://user:pa55word@/",
            "http://user:pa55word@h:99999/",
            "http://user:pa55word@h:0/",
            "http://user:pa55word@h:/",
            "http://user:pa55word@h o/",
            &format!("http://h/{}", "x".repeat(LONGEST_LINE)),
        ] {
            let said = refusal(&settings(url.into()));
            assert!(said.starts_with("url ") && !said.contains("pa55word"), "{url}: {said}");
        }
    }

    #[test]
    fn name_the_method() {
        for method in ["", "PO ST", "POST\r\n", "post", "CONNECT"] {
            let said = refusal(&Settings { method: method.into(), ..good() });
            assert!(said.starts_with("method ") && said.lines().count() == 1, "{said}");
        }
    }

    #[test]
    fn name_the_header_and_never_show_its_value() {
        let long = "pa55word".repeat(1000);
        for (name, value) in [
            ("X Y", "pa55word"),
            ("", "pa55word"),
            ("X-Key", "pa55word\r\nX: y"),
            ("X-Key", "pa55word\0"),
            ("X-Key", &long),
            ("Content-Length", "7"),
            ("Expect", "100-continue"),
        ] {
            let headers = [(name.to_owned(), value.to_owned())].into();
            let said = refusal(&Settings { headers, ..good() });
            assert!(said.starts_with("headers: ") && said.contains(name), "{said}");
            assert!(!said.contains("pa55word"), "{said}");
        }
        let twice = ["x-key", "X-Key"].map(|name| (name.to_owned(), "pa55word".to_owned())).into();
        assert!(refusal(&Settings { headers: twice, ..good() }).starts_with("headers: "));
    }

    #[test]
    fn the_longest_header_and_url_do_go_out() {
        let server = Server::plain(always_ok);
        let url = format!("http://{}@127.0.0.1:{}/", "u".repeat(LONGEST_LINE - 40), server.port);
        let headers = [("x".into(), "v".repeat(LONGEST_LINE - 1))].into();
        assert_eq!(send(&Settings { headers, ..settings(url) }, PATIENCE), accepted(None));
        assert_eq!(server.finish().requests.len(), 1);
    }

    #[test]
    fn name_the_receipt() {
        let said = refusal(&Settings { receipt: Some("id".into()), ..good() });
        assert!(said.starts_with("receipt "), "{said}");
    }

    #[test]
    fn name_the_rule_among_the_answers() {
        let answers = vec![toml::Table::new()];
        assert!(refusal(&Settings { answers, ..good() }).starts_with("answers: rule 1: "));
    }

    #[test]
    fn name_the_header_of_the_key() {
        for name in ["", "X Y", "Content-Length", "content-type", "Host"] {
            let said = refusal(&Settings { idempotency_header: Some(name.into()), ..good() });
            assert!(said.starts_with("idempotency_header") && said.contains(name), "{said}");
        }
        // The same for every message, it would make the provider drop all but the first.
        let with = |header: &str, idempotency_header: Option<&str>| Settings {
            headers: [(header.to_owned(), "pa55word".to_owned())].into(),
            idempotency_header: idempotency_header.map(str::to_owned),
            ..good()
        };
        for (header, name) in [("idempotency-key", None), ("X-Id", Some("x-id"))] {
            let said = refusal(&with(header, name));
            assert!(said.starts_with(&format!("headers: {header} would be the same")), "{said}");
        }
        assert!(with("Idempotency-Key", Some("X-Id")).check().is_ok());
    }

    #[test]
    fn name_what_signs() {
        let signed = Settings {
            sign: Some("standard-webhooks".into()),
            sign_key: Some(SignKey::One("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into())),
            ..good()
        };
        assert!(signed.check().is_ok());
        let said = refusal(&Settings { sign_key: None, ..signed.clone() });
        assert!(said.starts_with("sign needs sign_key"), "{said}");
        for name in ["Webhook-Id", "webhook-timestamp", "Webhook-Signature"] {
            let headers: BTreeMap<_, _> = [(name.to_owned(), "pa55word".to_owned())].into();
            let said = refusal(&Settings { headers: headers.clone(), ..signed.clone() });
            assert_eq!(said, format!("headers: {name} is written by sign; leave it out"));
            assert!(Settings { headers, ..good() }.check().is_ok(), "{name} without sign");
            let idempotency_header = Some(name.to_owned());
            let said = refusal(&Settings { idempotency_header, ..signed.clone() });
            assert!(said.starts_with(&format!("idempotency_header: {name} ")), "{said}");
        }
    }

    #[test]
    fn name_the_ca_file() {
        let mut file = NamedTempFile::new().unwrap();
        let with = |path: &Path| Settings { ca_file: Some(path.into()), ..good() };
        assert!(refusal(&with(Path::new("/nowhere/ca.pem"))).starts_with("ca_file /nowhere/ca.pem: "));
        assert!(refusal(&with(file.path())).contains("no certificate in it"));
        writeln!(file, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----").unwrap();
        assert!(refusal(&with(file.path())).contains("cannot be used"));
    }
}

/// The figure behind the sizes of the buffers: `cargo test --bin batch-send peak -- --ignored --nocapture`. The senders run in a
/// process of their own, this test once more, so that the servers are no part of it.
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, clippy::disallowed_methods)]
fn peak_memory_of_256_senders() {
    let (url, ca_file_of_it) = ("BATCH_SEND_TEST_URL", "BATCH_SEND_TEST_CA");
    if let (Ok(url), Ok(file)) = (std::env::var(url), std::env::var(ca_file_of_it)) {
        let settings = Settings { ca_file: Some(file.into()), ..settings(url) };
        let http = open(&settings, PATIENCE, 256).unwrap();
        let messages = || (0..20).for_each(|_| assert_eq!(http.send(&message(), soon()), accepted(None)));
        thread::scope(|scope| {
            (0..256).for_each(|_| {
                scope.spawn(messages);
            })
        });
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        println!("{} {}", settings.url, status.lines().find(|line| line.starts_with("VmHWM")).unwrap());
        return;
    }
    let identity = Identity::of("127.0.0.1");
    let file = ca_file(&identity);
    let (plain, secure) = (Server::plain(always_ok), Server::tls(&identity, always_ok));
    for server in [plain.url(), secure.tls_url()] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "sender::http::tests::peak_memory_of_256_senders",
            "--ignored",
            "--nocapture",
        ]);
        let ran = child.env(url, server).env(ca_file_of_it, file.path()).status().unwrap();
        assert!(ran.success());
    }
}
