//! The API as it answers, in the good and in the bad: each errcode of the tables, and the life of an access token.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::*;
use crate::message::{TargetPart, TaskPart};
use crate::sender::Toll;
use crate::sender::http::tests::server::{PATIENCE, Peer, Seen, Server, answer};

/// For what is never answered.
const SHORT: Duration = Duration::from_millis(300);

const SECRET: &str = "5ecre7/of the account";
const BODY: &str = r#"{"template_id": "T1", "data": {"thing1": {"value": "Grüße"}}}"#;

/// A request, as the API sees it.
enum Asked<'a> {
    /// For a token: the how manieth, and its body.
    Token(usize, &'a Value),
    /// With a message: the token in its URL.
    Message(&'a str),
}
use Asked::{Message as AMessage, Token as AToken};

/// What the API does then.
enum Reply {
    Json(Value),
    /// A body under a status.
    Http(&'static str, String),
    /// Just this, and the end of the connection.
    Text(String),
    Hang,
}
use Reply::{Hang, Http, Json, Text};

/// An API in which nothing is wrong: `token-1`, then `token-2`.
fn good(asked: &Asked) -> Reply {
    match asked {
        AToken(nth, _) => token(&format!("token-{nth}")),
        AMessage(..) => Json(json!({"errcode": 0, "errmsg": "ok", "msgid": 200_228_332})),
    }
}

fn token(text: &str) -> Reply {
    Json(json!({"access_token": text, "expires_in": 7200}))
}

fn error(errcode: i64) -> Reply {
    let errmsg = "invalid credential, access_token is invalid or not latest rid: 630ecbee-28894bea-0ee8d49c";
    Json(json!({"errcode": errcode, "errmsg": errmsg}))
}

fn api(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Server {
    let tokens = AtomicUsize::new(0);
    Server::plain(move |peer: &mut Peer| {
        while let Some(request) = peer.read() {
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            let body: Value = serde_json::from_str(body).unwrap();
            let path = head.split(' ').nth(1).unwrap();
            let reply = if path == "/cgi-bin/stable_token" {
                script(&AToken(tokens.fetch_add(1, Ordering::SeqCst) + 1, &body))
            } else {
                script(&AMessage(path.split_once("?access_token=").unwrap().1))
            };
            match reply {
                Json(body) => peer.say(&answer("200 OK", &body.to_string())),
                Http(status, body) => peer.say(&answer(status, &body)),
                Text(text) => return peer.say(&text),
                Hang => return peer.hang(),
            }
        }
    })
}

fn settings(server: &Server, form: Form) -> Settings {
    Settings {
        api: format!("http://127.0.0.1:{}", server.port),
        appid: "wx0123456789abcdef".into(),
        secret: SECRET.into(),
        message: form,
        ca_file: None,
    }
}

fn open(settings: &Settings, timeout: Duration) -> Wechat {
    Wechat::open(settings, &Exchange { timeout, concurrency: 16, keyed: true }).unwrap()
}

fn message() -> Message {
    let raw = |text: &str| RawValue::from_string(text.into()).unwrap();
    Message {
        key: Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        attempt: 1,
        task: Arc::new(TaskPart { id: 1, name: "Spring".into(), payload: raw("{}") }),
        target: TargetPart { id: 2, recipient: "o-ann".into(), params: raw("{}") },
        body: Some(raw(BODY)),
    }
}

fn with_body(body: &str) -> Message {
    Message { body: Some(RawValue::from_string(body.into()).unwrap()), ..message() }
}

fn soon() -> Moment {
    Moment::now() + PATIENCE
}

/// The sender of a channel, and the API that it speaks to.
struct Scene {
    wechat: Wechat,
    server: Server,
}

impl Scene {
    fn new(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::of(Form::Template, PATIENCE, script)
    }

    fn of(form: Form, timeout: Duration, script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let server = api(script);
        Self { wechat: open(&settings(&server, form), timeout), server }
    }

    fn send(&self) -> Outcome {
        self.wechat.send(&message(), soon())
    }

    /// What the API was asked in all: bodies of requests for a token, and of messages with the path they went to.
    fn finish(self) -> (Vec<Value>, Vec<(String, Value)>) {
        drop(self.wechat);
        let Seen { requests, .. } = self.server.finish();
        let (mut tokens, mut messages) = (Vec::new(), Vec::new());
        for request in requests {
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            let (path, body) = (head.split(' ').nth(1).unwrap(), serde_json::from_str(body).unwrap());
            match path {
                "/cgi-bin/stable_token" => tokens.push(body),
                _ => messages.push((path.to_owned(), body)),
            }
        }
        (tokens, messages)
    }

    /// How many times a token was asked for, and a message came.
    fn counts(self) -> (usize, usize) {
        let (tokens, messages) = self.finish();
        (tokens.len(), messages.len())
    }
}

/// The outcome's word, as the tables say it.
fn word(outcome: &Outcome) -> &'static str {
    let minute = Some(MINUTE);
    match outcome {
        Outcome::Accepted { .. } => "accepted",
        Outcome::Deferred { after: None, toll: Toll::Attempt, .. } => "deferred",
        Outcome::Deferred { after, toll: Toll::Attempt, .. } if *after == minute => "deferred a minute",
        Outcome::Deferred { after: None, toll: Toll::Hold, .. } => "hold",
        Outcome::Deferred { after, toll: Toll::Hold, .. } if *after == minute => "hold a minute",
        Outcome::Deferred { after: None, toll: Toll::Unreached, .. } => "unreached",
        Outcome::Deferred { after: None, toll: Toll::Nothing, .. } => "too late",
        Outcome::Deferred { .. } => "not of the tables",
        Outcome::Rejected { .. } => "rejected",
        Outcome::Unknown { .. } => "unknown",
        Outcome::Unavailable { .. } => "unavailable",
    }
}

fn reason(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Accepted { .. } => "",
        Outcome::Deferred { reason, .. }
        | Outcome::Rejected { reason }
        | Outcome::Unknown { reason }
        | Outcome::Unavailable { reason } => reason,
    }
}

#[track_caller]
fn assert_is(outcome: &Outcome, expected: &str, beginning: &str) {
    assert!(word(outcome) == expected && reason(outcome).starts_with(beginning), "{outcome:?}");
}

fn accepted(receipt: Option<&str>) -> Outcome {
    Outcome::Accepted { receipt: receipt.map(str::to_owned) }
}

mod a_message {
    use super::*;

    #[test]
    fn of_an_official_account_bears_its_recipient_and_its_key() {
        let it = Scene::new(good);
        assert_eq!(it.send(), accepted(Some("200228332")));
        let again = Message { attempt: 2, ..message() };
        assert_eq!(it.wechat.send(&again, soon()), accepted(Some("200228332")));
        let (tokens, messages) = it.finish();
        let asked = json!({
            "grant_type": "client_credential", "appid": "wx0123456789abcdef", "secret": SECRET, "force_refresh": false
        });
        assert_eq!(tokens, [asked]);
        let sent = json!({
            "touser": "o-ann", "client_msg_id": "0123456789abcdef0123456789abcdef",
            "template_id": "T1", "data": {"thing1": {"value": "Grüße"}}
        });
        let path = "/cgi-bin/message/template/send?access_token=token-1".to_owned();
        assert_eq!(messages, [(path.clone(), sent.clone()), (path, sent)]);
    }

    #[test]
    fn of_a_mini_program_has_no_key() {
        let it = Scene::of(Form::Subscribe, PATIENCE, |asked| match asked {
            AMessage(..) => Json(json!({"errcode": 0, "errmsg": "ok"})),
            other => good(other),
        });
        assert_eq!(it.send(), accepted(None));
        let sent = json!({"touser": "o-ann", "template_id": "T1", "data": {"thing1": {"value": "Grüße"}}});
        let path = "/cgi-bin/message/subscribe/send?access_token=token-1".to_owned();
        assert_eq!(it.finish().1, [(path, sent)]);
    }

    #[test]
    fn is_written_without_escapes_that_people_would_be_shown() {
        let server = api(good);
        let it = Scene { wechat: open(&settings(&server, Form::Subscribe), PATIENCE), server };
        let body = r#"{"n": 18446744073709551615, "data": {"a": {"value": "O\u0027Neil \u003c\u4f60\u597d\u003e \"\n"}}}"#;
        assert_eq!(word(&it.wechat.send(&with_body(body), soon())), "accepted");
        drop(it.wechat);
        let requests = it.server.finish().requests;
        let expected =
            r#"{"touser":"o-ann","n":18446744073709551615,"data":{"a":{"value":"O'Neil <你好> \"\n"}}}"#;
        assert!(requests[1].ends_with(&format!("\r\n\r\n{expected}")), "{}", requests[1]);
    }

    #[test]
    fn that_has_a_recipient_or_a_key_of_its_own_is_not_sent() {
        let it = Scene::new(good);
        for (body, why) in [
            (r#"{"touser": "o-bob"}"#, "the body has \"touser\""),
            (r#"{"tous\u0065r": "o-bob"}"#, "the body has \"touser\""),
            (r#"{"client_msg_id": 1}"#, "the body has \"client_msg_id\""),
            (r#"[{"template_id": 1}]"#, "the body is no JSON object"),
            ("1", "the body is no JSON object"),
        ] {
            assert_is(&it.wechat.send(&with_body(body), soon()), "rejected", why);
        }
        assert_eq!(it.counts(), (0, 0));
    }

    #[test]
    fn past_its_time_does_not_even_ask_for_a_token() {
        let it = Scene::new(good);
        assert_eq!(it.wechat.send(&message(), Moment::now()), Outcome::too_late());
        assert_eq!(it.counts(), (0, 0));
    }

    #[test]
    fn whose_time_is_over_once_it_has_its_token_does_not_leave() {
        let until = Moment::now() + SHORT;
        let it = Scene::new(move |asked| {
            while matches!(asked, AToken(..)) && !until.passed() {
                thread::yield_now();
            }
            good(asked)
        });
        assert_eq!(it.wechat.send(&message(), until), Outcome::too_late());
        assert_eq!(it.counts(), (1, 0));
    }
}

mod an_answer {
    use super::*;

    /// The outcome of a message that is answered like this, once its token was given.
    fn outcome_of(reply: impl Fn() -> Reply + Send + Sync + 'static) -> Outcome {
        let it = Scene::new(move |asked| match asked {
            AMessage(..) => reply(),
            other => good(other),
        });
        let outcome = it.send();
        let (_, messages) = it.counts();
        // Where a token is refused, once more; never where it may have been accepted.
        assert!(messages == 1 || messages == 2 && word(&outcome) == "unavailable", "{messages}: {outcome:?}");
        outcome
    }

    #[test]
    fn means_what_the_table_says() {
        let table: [(&str, &[i64]); 7] = [
            ("accepted", &[0, 45065]),
            ("rejected", &[40003, 43004, 43101, 45015, 50002, 47003, 45168, 87014]),
            (
                "unavailable",
                &[
                    40037, 43107, 48001, 48004, 40164, 61004, 40013, 41030, 45009, 45067, 40001, 40014,
                    42001, 42007,
                ],
            ),
            ("hold a minute", &[45011, 45047]),
            ("deferred", &[43108]),
            ("deferred a minute", &[45066]),
            ("unknown", &[-1, 1, 40002, 47001, 99999, i64::MAX]),
        ];
        for (expected, errcodes) in table {
            for errcode in errcodes {
                let outcome = outcome_of(move || Json(json!({"errcode": errcode, "errmsg": "rid: 1-2"})));
                assert_eq!(word(&outcome), expected, "{errcode}");
                if expected != "accepted" {
                    let said = format!(r#"HTTP 200: {{"errcode":{errcode},"errmsg":"rid: 1-2"}}"#);
                    assert!(reason(&outcome).contains(&said), "{outcome:?}");
                }
            }
        }
    }

    #[test]
    fn without_an_errcode_is_good() {
        assert_eq!(outcome_of(|| Json(json!({"msgid": 7}))), accepted(Some("7")));
    }

    #[test]
    fn of_the_daily_quota_says_when_there_is_more() {
        let outcome = outcome_of(|| error(45009));
        assert_is(
            &outcome,
            "unavailable",
            "no more messages until the next day in Shanghai, resume it then: ",
        );
    }

    #[test]
    fn has_the_receipt_exactly_if_it_has_one() {
        for (body, receipt) in [
            (r#"{"errcode": 0, "msgid": 3519512346231685123}"#, Some("3519512346231685123")),
            (r#"{"errcode": 0, "msgid": 18446744073709551615}"#, Some("18446744073709551615")),
            (r#"{"errcode": 0, "msgid": "m-1"}"#, Some("m-1")),
            (
                r#"{"errcode": 45065, "errmsg": "clientmsgid exist", "msg_id": 3147483730}"#,
                Some("3147483730"),
            ),
            (r#"{"errcode": 0, "errmsg": "ok"}"#, None),
            (r#"{"errcode": 0, "msgid": null}"#, None),
        ] {
            assert_eq!(outcome_of(|| Http("200 OK", body.into())), accepted(receipt), "{body}");
        }
    }

    #[test]
    fn that_is_not_whole_or_none_of_the_api_is_unknown() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"errcode\":0,\"errmsg\":\"ok\"}".to_owned(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"err".to_owned(),
            "HTTP/1.1 200 OK\r\n".to_owned(),
            String::new(),
            answer("200 OK", ""),
            answer("200 OK", "{\"errcode\":0"),
            answer("200 OK", "<html>Log in to this network</html>"),
            answer("200 OK", "[]"),
            answer("200 OK", "\"ok\""),
            answer("200 OK", "{\"errcode\":\"0\"}"),
            answer("200 OK", "{\"errcode\":null}"),
            answer("200 OK", "{\"errcode\":40003.5}"),
            answer("204 No Content", ""),
            answer("302 Found", ""),
            answer("500 Internal Server Error", "{\"errcode\":0}"),
            answer("502 Bad Gateway", ""),
            // Whose word is it? It is not repeated.
            answer("500 Internal Server Error", "{\"errcode\":40001}"),
        ] {
            let reply = text.clone();
            assert_eq!(word(&outcome_of(move || Text(reply.clone()))), "unknown", "{text}");
        }
    }

    #[test]
    fn of_another_status_means_what_that_means() {
        for (status, expected) in [
            ("400 Bad Request", "rejected"),
            ("404 Not Found", "rejected"),
            ("403 Forbidden", "unavailable"),
            ("429 Too Many Requests", "hold"),
        ] {
            let outcome = outcome_of(move || Http(status, "{\"errcode\":0}".into()));
            assert_eq!(word(&outcome), expected, "{status}");
        }
    }

    #[test]
    fn that_does_not_come_is_unknown() {
        let it = Scene::of(Form::Template, SHORT, |asked| match asked {
            AMessage(..) => Hang,
            other => good(other),
        });
        assert_is(&it.send(), "unknown", "no complete answer: nothing within ");
        assert_eq!(it.counts(), (1, 1));
    }
}

mod a_token {
    use super::*;

    #[test]
    fn is_asked_for_anew_shortly_before_it_ends() {
        for (expires_in, times) in [(60, 2), (0, 2), (7200, 1)] {
            let it = Scene::new(move |asked| match asked {
                AToken(..) => Json(json!({"access_token": "token-1", "expires_in": expires_in})),
                other => good(other),
            });
            for _ in 0..2 {
                assert_eq!(word(&it.send()), "accepted");
            }
            assert_eq!(it.counts(), (times, 2), "{expires_in}");
        }
    }

    #[test]
    fn that_is_refused_is_asked_for_anew_and_the_message_repeated() {
        for errcode in TOKEN_REFUSED {
            let it = Scene::new(move |asked| match asked {
                AMessage("token-1") => error(errcode),
                other => good(other),
            });
            for _ in 0..2 {
                assert_eq!(word(&it.send()), "accepted", "{errcode}");
            }
            let (tokens, messages) = it.finish();
            assert!(
                tokens.len() == 2 && tokens.iter().all(|body| body["force_refresh"] == false),
                "{tokens:?}"
            );
            let sent_with: Vec<_> =
                messages.iter().map(|(path, _)| path.rsplit_once('=').unwrap().1).collect();
            assert_eq!(sent_with, ["token-1", "token-2", "token-2"]);
            assert_eq!(messages[0].1, messages[1].1);
        }
    }

    #[test]
    fn that_is_refused_twice_needs_a_person() {
        let it = Scene::new(|asked| match asked {
            AMessage(..) => error(40001),
            other => good(other),
        });
        assert_is(&it.send(), "unavailable", "HTTP 200: {\"errcode\":40001,");
        assert_eq!(it.wechat.tokens.holds(), None, "nobody goes on with it");
        assert_eq!(it.counts(), (2, 2));
    }

    #[test]
    fn that_is_given_out_again_though_refused_is_forced_once() {
        let it = Scene::new(|asked| match asked {
            AToken(_, body) if body["force_refresh"] == true => token("forced"),
            AToken(..) => token("same"),
            AMessage("same") => error(42001),
            other => good(other),
        });
        for _ in 0..2 {
            assert_eq!(word(&it.send()), "accepted");
        }
        let (tokens, messages) = it.finish();
        let forced: Vec<_> = tokens.iter().map(|body| body["force_refresh"] == true).collect();
        assert_eq!((forced, messages.len()), (vec![false, false, true], 3));
    }

    #[test]
    fn is_not_forced_twice_in_a_run() {
        // Even by force the API gives out what it refuses: so it does within 30 s of the last time.
        let it = Scene::new(|asked| match asked {
            AToken(..) => token("same"),
            _ => error(42001),
        });
        let outcome = it.send();
        assert!(
            reason(&outcome).contains("the one before was refused: HTTP 200: {\"errcode\":42001,"),
            "{outcome:?}"
        );
        for outcome in [outcome, it.send(), it.send()] {
            assert_is(
                &outcome,
                "unavailable",
                "the API gives out an access token that it refuses with a message",
            );
        }
        let (tokens, _) = it.finish();
        assert_eq!(tokens.iter().filter(|body| body["force_refresh"] == true).count(), 1);
    }

    #[test]
    fn is_asked_for_once_by_twelve_messages_that_need_it_at_once() {
        let it = Scene::new(|asked| {
            if matches!(asked, AToken(..)) {
                // Long enough for all to come.
                thread::sleep(SHORT);
            }
            good(asked)
        });
        at_once(12, || assert_eq!(word(&it.send()), "accepted"));
        assert_eq!(it.counts(), (1, 12));
    }

    #[test]
    fn that_twelve_messages_were_refused_with_is_asked_for_anew_once() {
        let all = Arc::new(Barrier::new(12));
        let it = Scene::new(move |asked| match asked {
            AMessage("token-1") => {
                all.wait();
                error(40001)
            }
            other => good(other),
        });
        at_once(12, || assert_eq!(word(&it.send()), "accepted"));
        assert_eq!(it.counts(), (2, 24));
    }

    #[test]
    fn that_is_refused_late_does_not_cost_the_others_their_newer_one() {
        let it = Scene::new(good);
        let span = Span { until: soon(), end: soon() };
        let old = it.wechat.tokens.get(&it.wechat.client, span, None).unwrap();
        it.wechat.tokens.forget(&old);
        let new = it.wechat.tokens.get(&it.wechat.client, span, Some(&old)).unwrap();
        assert_eq!((old.query.as_str(), new.query.as_str()), ("token-1", "token-2"));
        it.wechat.tokens.forget(&old);
        assert_eq!(it.wechat.tokens.get(&it.wechat.client, span, Some(&old)).unwrap().query, "token-2");
        assert_eq!(it.counts(), (2, 0));
    }

    #[test]
    fn that_a_thread_asked_for_and_died_is_asked_for_by_the_next() {
        let it = Scene::new(good);
        let dying = it.wechat.tokens.is_asked_for();
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(word(&it.send()), "accepted"));
            drop(dying);
        });
        assert_eq!(it.counts(), (1, 1));
    }

    #[test]
    fn that_does_not_come_in_time_lets_nothing_leave() {
        let it = Scene::of(Form::Template, SHORT, |_| Hang);
        let before = Moment::now();
        at_once(4, || assert_is(&it.send(), "unreached", "no access token: "));
        assert!(before.elapsed() < PATIENCE / 2);
        let (_, messages) = it.counts();
        assert_eq!(messages, 0);
    }

    #[test]
    fn is_waited_for_no_longer_than_the_message_may_wait() {
        let it = Scene::new(|_| Hang);
        let asking = it.wechat.tokens.is_asked_for();
        let until = Moment::now() + SHORT;
        assert_eq!(it.wechat.send(&message(), until), Outcome::too_late());
        assert!(until.elapsed() < PATIENCE / 2);
        drop(asking);
        assert_eq!(it.counts(), (0, 0));
    }

    #[test]
    fn takes_its_time_from_that_of_its_message() {
        let it = Scene::of(Form::Template, 4 * SHORT, |asked| match asked {
            AToken(..) => {
                thread::sleep(SHORT);
                good(asked)
            }
            AMessage(..) => Hang,
        });
        let outcome = it.send();
        assert_is(&outcome, "unknown", "no complete answer: nothing within ");
        let left = reason(&outcome).rsplit_once(' ').unwrap().1.trim_end_matches("ms");
        assert!(left.parse::<u128>().unwrap() <= 3 * SHORT.as_millis(), "{outcome:?}");
    }

    #[test]
    fn that_leaves_its_message_too_little_time_is_there_for_the_next_attempt() {
        let it = Scene::of(Form::Subscribe, 4 * SHORT, |asked| {
            if matches!(asked, AToken(..)) {
                thread::sleep(2 * SHORT + SHORT / 2);
            }
            good(asked)
        });
        assert_is(&it.send(), "too late", "not sent: its access token took too long");
        assert_eq!(word(&it.send()), "accepted");
        assert_eq!(it.counts(), (1, 1));
    }

    #[test]
    fn stands_in_the_url_whatever_its_characters() {
        let it = Scene::new(|asked| match asked {
            AToken(..) => token("a+b/c=&d#e?f g%é"),
            other => good(other),
        });
        assert_eq!(word(&it.send()), "accepted");
        let path = "/cgi-bin/message/template/send?access_token=a%2Bb%2Fc%3D%26d%23e%3Ff%20g%25%C3%A9";
        assert_eq!(it.finish().1[0].0, path);
    }

    #[test]
    fn may_have_512_bytes_and_many_more() {
        let it = Scene::new(|asked| match asked {
            AToken(..) => token(&"t".repeat(token::LONGEST)),
            other => good(other),
        });
        assert_eq!(word(&it.send()), "accepted");
        assert_eq!(it.counts(), (1, 1));
    }
}

/// What the message becomes when no token comes: nothing of it has left.
mod no_token {
    use super::*;

    fn outcome_of(reply: impl Fn() -> Reply + Send + Sync + 'static) -> Outcome {
        let it = Scene::new(move |asked| match asked {
            AToken(..) => reply(),
            other => good(other),
        });
        let outcome = it.send();
        assert_eq!(it.counts(), (1, 0));
        assert!(reason(&outcome).starts_with("no access token: "), "{outcome:?}");
        outcome
    }

    #[test]
    fn means_what_the_table_says() {
        let table: [(&str, &[i64]); 4] = [
            (
                "unavailable",
                &[
                    40001, 40002, 40013, 40125, 40164, 40243, 41002, 41004, 43002, 48001, 48004, 50004,
                    50007, 61004, 61024, 89501, 89503, 89506, 89507,
                ],
            ),
            ("hold", &[45009]),
            ("hold a minute", &[45011]),
            ("unreached", &[-1, 1, 42001, 99999]),
        ];
        for (expected, errcodes) in table {
            for errcode in errcodes.iter().copied() {
                let outcome = outcome_of(move || error(errcode));
                assert_eq!(word(&outcome), expected, "{errcode}");
                assert!(reason(&outcome).contains(&format!("\"errcode\":{errcode},")), "{outcome:?}");
            }
        }
    }

    #[test]
    fn in_an_answer_that_is_none_of_the_api_is_like_no_answer() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"access_token\":\"half-of-a-tok".to_owned(),
            String::new(),
            "SSH-2.0-OpenSSH_9.6\r\n\r\n".to_owned(),
            answer("200 OK", "<html>Log in to this network</html>"),
            answer("200 OK", "{}"),
            answer("200 OK", "[]"),
            answer("200 OK", r#"{"access_token": "token-1"}"#),
            answer("200 OK", r#"{"access_token": "token-1", "expires_in": "7200"}"#),
            answer("200 OK", r#"{"access_token": "", "expires_in": 7200}"#),
            answer("200 OK", r#"{"access_token": 1, "expires_in": 7200}"#),
            answer("200 OK", &format!(r#"{{"access_token": "{}", "expires_in": 7200}}"#, "t".repeat(2049))),
            answer("204 No Content", ""),
            answer("302 Found", ""),
            answer("421 Misdirected Request", ""),
            answer("502 Bad Gateway", r#"{"access_token": "token-1", "expires_in": 7200}"#),
        ] {
            let reply = text.clone();
            let outcome = outcome_of(move || Text(reply.clone()));
            assert_eq!(word(&outcome), "unreached", "{text}");
            assert!(!reason(&outcome).contains("tok\"") && !reason(&outcome).contains("half"), "{outcome:?}");
        }
    }

    #[test]
    fn under_another_status_means_what_that_means() {
        for (status, expected) in [
            ("403 Forbidden", "unavailable"),
            ("404 Not Found", "unavailable"),
            ("429 Too Many Requests", "hold"),
        ] {
            assert_eq!(word(&outcome_of(move || Http(status, String::new()))), expected, "{status}");
        }
    }

    #[test]
    fn from_a_host_that_is_not_there_costs_nothing() {
        let server = api(good);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let nowhere =
            Settings { api: format!("http://127.0.0.1:{port}"), ..settings(&server, Form::Template) };
        let outcome = open(&nowhere, PATIENCE).send(&message(), soon());
        assert_is(&outcome, "unreached", "no access token: no connection: ");
        server.finish();
    }

    #[test]
    fn for_the_message_that_was_refused_with_its_old_one_is_no_reason_to_doubt() {
        let it = Scene::new(|asked| match asked {
            AToken(2, _) => error(40125),
            AMessage(..) => error(42001),
            other => good(other),
        });
        let outcome = it.send();
        assert_is(&outcome, "unavailable", "no access token: HTTP 200: {\"errcode\":40125,");
        assert!(
            reason(&outcome).contains("the one before was refused: HTTP 200: {\"errcode\":42001,"),
            "{outcome:?}"
        );
        assert_eq!(it.counts(), (2, 1));
    }
}

mod nothing_secret_shows {
    use super::*;

    /// With characters that a URL and JSON each write in their own way.
    const TOKEN: &str = "72_T0k3n/with+\"all\"=";

    /// The beginning of each of them, in any form.
    #[track_caller]
    fn assert_hidden(outcome: &Outcome) {
        let shown = format!("{outcome:?}");
        assert!(!shown.contains("T0k3n") && !shown.contains("5ecre7"), "{shown}");
    }

    /// Both, as a peer might repeat them in a text, and as they are written in JSON.
    const REPEATED: &str = r#"
        72_T0k3n/with+"all"= 72_T0k3n%2Fwith%2B%22all%22%3D 72_T0k3n%2fwith%2b%22all%22%3d
        5ecre7/of the account 5ecre7%2Fof%20the%20account 5ecre7%2fof%20the%20account"#;
    const IN_JSON: &str = r#"
        72_T0k3n/with+\"all\"= 72_T0k3n\/with+\"all\"= 5ecre7/of the account 5ecre7\/of the account"#;

    #[test]
    fn in_what_is_said_of_a_message() {
        for status in ["200 OK", "400 Bad Request", "401 Unauthorized", "429 Slow", "500 Oh"] {
            for body in [
                format!("{REPEATED} {IN_JSON}"),
                format!(r#"{{"errcode": 40003, "errmsg": "{IN_JSON}"}}"#).replace('\n', ""),
                json!({"errcode": 40003, "errmsg": REPEATED}).to_string(),
                json!({"errcode": 40001, "errmsg": REPEATED}).to_string(),
                json!({"errcode": 45009, "errmsg": REPEATED}).to_string(),
                json!({"errcode": 0, "msgid": TOKEN, "secret": SECRET}).to_string(),
            ] {
                let it = Scene::new(move |asked| match asked {
                    AToken(..) => token(TOKEN),
                    AMessage(..) => Http(status, body.clone()),
                });
                assert_hidden(&it.send());
                it.counts();
            }
        }
    }

    #[test]
    fn in_what_is_said_of_a_token() {
        let with_token = json!({"errcode": 40125, "errmsg": REPEATED, "access_token": TOKEN}).to_string();
        let cut = r#"{"access_token":"72_T0k3n/wi"#;
        for text in [
            answer("200 OK", &with_token),
            answer("200 OK", &json!({"access_token": TOKEN, "expires_in": "x"}).to_string()),
            answer("200 OK", &json!({"errcode": 40125, "errmsg": format!("invalid {SECRET}")}).to_string()),
            answer("200 OK", cut),
            answer("500 Oh", &with_token),
            answer("403 Forbidden", &with_token),
            format!("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{cut}"),
        ] {
            let it = Scene::new(move |asked| match asked {
                AToken(..) => Text(text.clone()),
                other => good(other),
            });
            assert_hidden(&it.send());
            it.counts();
        }
    }

    #[test]
    fn of_the_token_before() {
        let it = Scene::new(|asked| match asked {
            AToken(1, _) => token(TOKEN),
            AToken(..) => token("another"),
            AMessage(..) => Json(json!({"errcode": 40001, "errmsg": REPEATED})),
        });
        assert_hidden(&it.send());
        it.counts();
    }

    #[test]
    fn in_an_answer_that_breaks_off_in_the_middle_of_it() {
        let it = Scene::new(move |asked| match asked {
            AToken(..) => token(TOKEN),
            AMessage(..) => Text(
                "HTTP/1.1 502 Bad\r\nContent-Length: 100\r\n\r\nno route to /send?access_token=72_T0k3n"
                    .into(),
            ),
        });
        assert_hidden(&it.send());
        it.counts();
    }
}

mod settings_that_cannot_be {
    use super::*;

    fn good() -> Settings {
        Settings {
            api: "https://api.weixin.qq.com".into(),
            appid: "wx1".into(),
            secret: "s".into(),
            message: Form::Template,
            ca_file: None,
        }
    }

    fn refusal(settings: &Settings, body: Option<&str>) -> String {
        let said = settings.check(body).expect_err("it must be refused").to_string();
        assert_eq!(said.lines().count(), 1);
        said
    }

    #[test]
    fn good_ones_can() {
        let read: Settings = toml::from_str("appid = 'wx1'\nsecret = 's'\nmessage = 'subscribe'").unwrap();
        assert_eq!((read.api.as_str(), read.message), ("https://api.weixin.qq.com", Form::Subscribe));
        read.check(Some("{}")).unwrap();
        for api in
            ["https://proxy.example.com/wx/", "http://127.0.0.1:8080", "http://localhost", "http://[::1]:1/"]
        {
            Settings { api: api.into(), ..good() }.check(Some("{}")).unwrap();
        }
        // As words, not as keys.
        good().check(Some(r#"{"a": "touser", "b": {{ target.params["touser"] }}}"#)).unwrap();
    }

    #[test]
    fn name_their_key() {
        for api in [
            "",
            "api.weixin.qq.com",
            "http://api.weixin.qq.com",
            "http://127.example.com",
            "ftp://h/",
            "https://h/?a=b",
            "https://h/#a",
            "https://pa55word@h/",
        ] {
            let said = refusal(&Settings { api: api.into(), ..good() }, Some("{}"));
            assert!(said.contains("api") && !said.contains("pa55word"), "{api}: {said}");
        }
        let said = refusal(&Settings { appid: String::new(), ..good() }, Some("{}"));
        assert!(said.starts_with("`appid` is empty: "), "{said}");
        let said = refusal(&Settings { secret: String::new(), ..good() }, Some("{}"));
        assert!(said.starts_with("`secret` is empty: "), "{said}");
        let said = refusal(&Settings { ca_file: Some("ca.pem".into()), ..good() }, Some("{}"));
        assert_eq!(said, "`ca_file` must be an absolute path");
        assert!(refusal(&good(), None).starts_with("`body` is missing: "));
        for body in [r#"{"touser": {{ target.recipient }}}"#, "{\"client_msg_id\"\n: 1}"] {
            let said = refusal(&good(), Some(body));
            assert!(said.ends_with("is put into each message by itself, take it out"), "{said}");
        }
    }
}

/// So many threads that begin at once.
fn at_once(threads: usize, work: impl Fn() + Sync) {
    let begin = Barrier::new(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                begin.wait();
                work();
            });
        }
    });
}

#[test]
fn a_probe_asks_for_the_token_that_there_is_and_sends_nothing() {
    let scene = Scene::new(good);
    assert!(scene.wechat.probe().unwrap().contains("access token"));
    let (tokens, messages) = scene.finish();
    assert_eq!((tokens.len(), messages.len()), (1, 0));
    assert_eq!(tokens[0]["force_refresh"], false);

    let scene =
        Scene::new(|_| Json(json!({"errcode": 40125, "errmsg": format!("invalid appsecret {SECRET}")})));
    let why = scene.wechat.probe().unwrap_err();
    assert!(why.contains("40125") && !why.contains(SECRET), "{why}");
    assert_eq!(scene.counts(), (1, 0));
}
