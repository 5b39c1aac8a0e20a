//! Rules against answers, as a configuration has them; and every rule that is refused.

use serde::Deserialize;

use super::*;

fn tables(written: &str) -> Vec<toml::Table> {
    #[derive(Deserialize)]
    struct Channel {
        answers: Vec<toml::Table>,
    }
    toml::from_str::<Channel>(written).unwrap().answers
}

fn rules(written: &str) -> Rules {
    read(&tables(&format!("answers = [{written}]"))).unwrap()
}

fn no_secrets() -> Secrets {
    Secrets::new([].into_iter())
}

fn answer(status: u16, body: &str) -> Answer {
    Answer { body: body.into(), ..Answer::of(status) }
}

/// The outcome's word, how long it asks to wait, and whether the channel is held.
fn judged(rules: &Rules, answer: &Answer) -> String {
    match rules.judge(answer, &no_secrets()) {
        Outcome::Accepted { .. } => "accepted".into(),
        Outcome::Deferred { after, toll, .. } => {
            let after = after.map_or("unsaid".into(), |after| format!("{after:?}"));
            format!("deferred {after} {toll:?}")
        }
        Outcome::Rejected { .. } => "rejected".into(),
        Outcome::Unknown { .. } => "unknown".into(),
        Outcome::Unavailable { .. } => "unavailable".into(),
    }
}

#[track_caller]
fn assert_judged(rules: &Rules, cases: &[(u16, &str, &str)]) {
    for (status, body, expected) in cases {
        assert_eq!(judged(rules, &answer(*status, body)), *expected, "{status} {body}");
    }
}

#[test]
fn the_first_that_fits_decides() {
    let rules = rules(
        r#"{ status = 200, json = { "/code" = "OK" }, outcome = "accepted" },
           { status = 200, json = { "/code" = "busy" }, outcome = "deferred" },
           { status = "200-299", json = { "/code" = "busy" }, outcome = "rejected" },
           { status = "400-499", outcome = "unavailable" },
           { status = 202, outcome = "unknown" }"#,
    );
    assert_judged(
        &rules,
        &[
            (200, r#"{"code": "OK"}"#, "accepted"),
            (200, r#"{"code": "busy"}"#, "deferred unsaid Attempt"),
            (201, r#"{"code": "busy"}"#, "rejected"),
            (202, r#"{"code": "busy"}"#, "rejected"),
            (202, r#"{"code": "OK"}"#, "unknown"),
            (404, "", "unavailable"),
        ],
    );
}

#[test]
fn where_none_is_about_the_status_the_table_decides() {
    let rules = rules(r#"{ status = 200, json = { "/code" = "OK" }, outcome = "accepted" }"#);
    assert_judged(
        &rules,
        &[(201, "", "accepted"), (400, "no", "rejected"), (401, "", "unavailable"), (500, "", "unknown")],
    );
}

#[test]
fn a_code_that_no_rule_lists_is_unknown_whatever_the_table_says() {
    let rules = rules(
        r#"{ status = 200, json = { "/code" = "OK" }, outcome = "accepted" },
           { status = 400, json = { "/code" = "spam" }, outcome = "rejected" }"#,
    );
    assert_judged(
        &rules,
        &[
            (200, r#"{"code": "BUSINESS_LIMIT"}"#, "unknown"),
            (200, "{}", "unknown"),
            (200, "[]", "unknown"),
            (400, r#"{"code": "OK"}"#, "unknown"),
        ],
    );
    let Outcome::Unknown { reason } = rules.judge(&answer(200, r#"{"code": "X"}"#), &no_secrets()) else {
        panic!("it is unknown")
    };
    assert_eq!(reason, r#"an answer that no rule knows: HTTP 200: {"code": "X"}"#);
}

#[test]
fn a_body_that_cannot_be_read_is_unknown_where_a_rule_asks_for_it() {
    let rules = rules(
        r#"{ status = 200, json = { "/code" = "OK" }, outcome = "accepted" },
           { status = 400, json = { "/code" = "spam" }, outcome = "rejected" }"#,
    );
    for status in [200, 400] {
        for body in ["", "<html>", r#"{"code": "OK""#, r#"{"code": "OK"} x"#] {
            assert_eq!(judged(&rules, &answer(status, body)), "unknown", "{status} {body}");
        }
        for end in [End::Cut, End::TooLong] {
            for code in ["OK", "spam"] {
                // What came of it may look whole.
                let cut = Answer { end, ..answer(status, &format!(r#"{{"code": "{code}"}}"#)) };
                assert_eq!(judged(&rules, &cut), "unknown", "{status} {end:?} {code}");
            }
        }
    }
    let Outcome::Unknown { reason } = rules.judge(&answer(200, "<html>"), &no_secrets()) else {
        panic!("it is unknown")
    };
    assert_eq!(reason, "an answer that is no JSON: HTTP 200: <html>");
}

#[test]
fn behind_rules_that_could_not_be_asked_only_certainty_decides() {
    let perhaps = rules(
        r#"{ status = 200, json = { "/code" = "OK" }, outcome = "accepted" },
           { status = 200, outcome = "rejected" },
           { status = 500, json = { "/code" = "queued" }, outcome = "unknown" },
           { status = 500, outcome = "rejected" }"#,
    );
    let never = rules(
        r#"{ status = 400, json = { "/code" = "slow" }, outcome = "deferred" },
           { status = 400, outcome = "rejected" },
           { status = 200, json = { "/error" = "slow" }, outcome = "deferred" },
           { status = 200, outcome = "accepted" }"#,
    );
    assert_judged(&perhaps, &[(200, "<html>", "unknown"), (500, "<html>", "unknown")]);
    assert_judged(&perhaps, &[(200, "{}", "rejected"), (500, "{}", "rejected")]);
    assert_judged(&never, &[(400, "<html>", "rejected"), (200, "done", "unknown")]);
    let cut = |status| Answer { end: End::Cut, ..answer(status, "{}") };
    assert_eq!(judged(&never, &cut(400)), "rejected");
    assert_eq!(judged(&never, &cut(200)), "unknown", "accepted by an answer that did not come whole");
}

#[test]
fn acceptance_by_the_status_alone_needs_the_whole_answer() {
    let rules = rules(r#"{ status = 409, outcome = "accepted" }"#);
    assert_judged(&rules, &[(409, "it is here already", "accepted")]);
    for end in [End::Cut, End::TooLong] {
        assert_eq!(judged(&rules, &Answer { end, ..answer(409, "it") }), "unknown");
    }
}

#[test]
fn values_are_compared_as_what_they_are() {
    let fits = |expected: &str, found: &str| {
        let rules =
            rules(&format!(r#"{{ status = 200, json = {{ "/v" = {expected} }}, outcome = "rejected" }}"#));
        judged(&rules, &answer(200, &format!(r#"{{"v": {found}}}"#))) == "rejected"
    };
    for (expected, found) in [
        ("0", "0"),
        ("0", "0.0"),
        ("0", "-0.0"),
        ("0", "0e5"),
        ("100", "1e2"),
        ("-1", "-1"),
        ("1.5", "1.50"),
        ("2.0", "2"),
        ("9223372036854775807", "9223372036854775807"),
        ("'OK'", r#""OK""#),
        ("'ü'", r#""\u00fc""#),
        ("''", r#""""#),
        ("true", "true"),
    ] {
        assert!(fits(expected, found), "{expected} is {found}");
    }
    for (expected, found) in [
        ("0", r#""0""#),
        ("'0'", "0"),
        ("0", "false"),
        ("0", "null"),
        ("0", "[0]"),
        ("1", "1.5"),
        ("1", "1.0000001"),
        ("9007199254740993", "9007199254740992.0"),
        ("9223372036854775807", "9223372036854775808"),
        ("'OK'", r#""ok""#),
        ("'OK'", r#""OK ""#),
        ("true", r#""true""#),
        ("true", "1"),
        ("false", "null"),
    ] {
        assert!(!fits(expected, found), "{expected} is not {found}");
    }
}

#[test]
fn every_condition_must_hold_and_absence_is_one() {
    let rules = rules(
        r#"{ status = 200, json = { "/a" = 1, "/b/0" = ["x", 7] }, outcome = "accepted" },
           { status = 200, json = { "/a" = 2 }, absent = "/error", outcome = "accepted" },
           { status = 200, absent = ["/a", "/b"], outcome = "rejected" }"#,
    );
    assert_judged(
        &rules,
        &[
            (200, r#"{"a": 1, "b": ["x"]}"#, "accepted"),
            (200, r#"{"a": 1, "b": [7]}"#, "accepted"),
            (200, r#"{"a": 1, "b": ["y"]}"#, "unknown"),
            (200, r#"{"a": 1}"#, "unknown"),
            (200, r#"{"a": 2}"#, "accepted"),
            (200, r#"{"a": 2, "error": null}"#, "accepted"),
            (200, r#"{"a": 2, "error": ""}"#, "unknown"),
            (200, r#"{"c": 1}"#, "rejected"),
            (200, r#"{"b": 1}"#, "unknown"),
            (200, "3", "rejected"),
        ],
    );
}

#[test]
fn a_deferral_waits_as_it_says_or_as_the_answer_does() {
    let rules = rules(
        r#"{ status = 420, outcome = "deferred", after = "2h" },
           { status = 430, outcome = "deferred", hold = true },
           { status = 440, outcome = "deferred", after = "/retry_in", hold = true },
           { status = 450, outcome = "deferred", after = "/retry_in", hold = false }"#,
    );
    let asks = |answer| Answer { retry_after: Some(Duration::from_secs(7)), asks_to_wait: true, ..answer };
    assert_eq!(judged(&rules, &asks(answer(420, ""))), "deferred 7200s Attempt");
    assert_eq!(judged(&rules, &asks(answer(430, ""))), "deferred 7s Hold");
    assert_eq!(judged(&rules, &answer(430, "")), "deferred unsaid Hold");
    for (found, wait) in [
        ("30", "30s"),
        ("1.5", "1.5s"),
        ("0", "1s"),
        ("0.2", "1s"),
        ("86401", "86400s"),
        ("1e300", "86400s"),
        (r#""30""#, "30s"),
        (r#"" 2.5 ""#, "2.5s"),
        (r#""99999999999999999999999""#, "86400s"),
        ("-1", "unsaid"),
        (r#""-1""#, "unsaid"),
        (r#""1e3""#, "unsaid"),
        (r#""inf""#, "unsaid"),
        (r#""soon""#, "unsaid"),
        (r#""""#, "unsaid"),
        ("null", "unsaid"),
        ("[30]", "unsaid"),
    ] {
        let body = format!(r#"{{"retry_in": {found}}}"#);
        assert_eq!(judged(&rules, &answer(440, &body)), format!("deferred {wait} Hold"), "{found}");
        assert_eq!(judged(&rules, &answer(450, &body)), format!("deferred {wait} Attempt"), "{found}");
    }
    for unread in [answer(440, "<html>"), Answer { end: End::Cut, ..answer(440, r#"{"retry_in": 30}"#) }] {
        assert_eq!(judged(&rules, &unread), "deferred unsaid Hold");
        assert_eq!(judged(&rules, &asks(unread)), "deferred 7s Hold");
    }
}

#[test]
fn the_body_is_kept_only_for_rules_that_look_into_it() {
    assert!(!Rules::default().ask_for_the_body());
    assert!(!rules(r#"{ status = 420, outcome = "deferred", after = "2h" }"#).ask_for_the_body());
    for asks in [
        r#"{ status = 420, outcome = "deferred", after = "/retry_in" }"#,
        r#"{ status = 200, json = { "/a" = 1 }, outcome = "accepted" }"#,
        r#"{ status = 200, absent = "/a", outcome = "accepted" }"#,
    ] {
        assert!(rules(asks).ask_for_the_body(), "{asks}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_one_sentence() {
    let good = r#"status = 200, outcome = "accepted""#;
    for (written, said) in [
        ("{}".into(), "rule 1: it is empty: give it a status and an outcome, or take it out"),
        (
            r#"{ outcome = "accepted" }"#.into(),
            "rule 1: `status` is missing: an integer, or a range such as \"200-299\"",
        ),
        (
            "{ status = 200 }".into(),
            "rule 1: `outcome` is missing: one of accepted, deferred, rejected, unknown, unavailable",
        ),
        (
            r#"{ status = 200, outcome = "acepted" }"#.into(),
            "rule 1: `outcome` \"acepted\" is unknown: did you mean `accepted`?",
        ),
        (
            "{ status = 200, outcome = 1 }".into(),
            "rule 1: `outcome` must be one of accepted, deferred, rejected, unknown, unavailable",
        ),
        (format!("{{ {good}, jsn = {{}} }}"), "rule 1: unknown key `jsn`: did you mean `json`?"),
        (
            format!("{{ {good}, json = {{}} }}"),
            "rule 1: `json` must be a table such as { \"/code\" = \"OK\" }",
        ),
        (
            format!("{{ {good}, json = \"/code\" }}"),
            "rule 1: `json` must be a table such as { \"/code\" = \"OK\" }",
        ),
        (
            format!("{{ {good}, json = {{ code = 1 }} }}"),
            "rule 1: `json`: \"code\" is not a JSON pointer: it must begin with /, as in \"/code\"",
        ),
        (
            format!("{{ {good}, json = {{ \"/code\" = [] }} }}"),
            "rule 1: `json`: /code must be a string, a number, true or false, or a list of them",
        ),
        (
            format!("{{ {good}, json = {{ \"/code\" = [1, [2]] }} }}"),
            "rule 1: `json`: /code must be a string, a number, true or false, or a list of them",
        ),
        (
            format!("{{ {good}, json = {{ \"/code\" = nan }} }}"),
            "rule 1: `json`: /code must be a string, a number, true or false, or a list of them",
        ),
        (
            format!("{{ {good}, absent = true }}"),
            "rule 1: `absent` must be a JSON pointer such as \"/error\", or a list of them",
        ),
        (
            format!("{{ {good}, absent = [] }}"),
            "rule 1: `absent` must be a JSON pointer such as \"/error\", or a list of them",
        ),
        (
            format!("{{ {good}, absent = [\"/a~\"] }}"),
            "rule 1: `absent`: \"/a~\" is not a JSON pointer: ~ is written ~0 there, and a / in a name ~1",
        ),
        (
            format!("{{ {good}, json = {{ \"/a\" = 1 }}, absent = \"/a\" }}"),
            "rule 1: /a cannot both be something and be absent",
        ),
        (
            format!("{{ {good}, after = \"30s\" }}"),
            "rule 1: `after` is for the outcome deferred alone: take it out",
        ),
        (
            format!("{{ {good}, hold = false }}"),
            "rule 1: `hold` is for the outcome deferred alone: take it out",
        ),
        (
            r#"{ status = 200, outcome = "deferred", after = 30 }"#.into(),
            "rule 1: `after` must be a duration such as \"30s\", or a JSON pointer to a number of seconds, as in \"/retry_in\"",
        ),
        (
            r#"{ status = 200, outcome = "deferred", after = "soon" }"#.into(),
            "rule 1: `after`: \"soon\" is no duration: write an integer and ms, s, m, h or d, as in 50s, or a JSON pointer to a \
             number of seconds, as in \"/retry_in\"",
        ),
        (
            r#"{ status = 200, outcome = "deferred", after = "2d" }"#.into(),
            "rule 1: `after` must be 1s to 24h",
        ),
        (
            r#"{ status = 200, outcome = "deferred", after = "10ms" }"#.into(),
            "rule 1: `after` must be 1s to 24h",
        ),
        (
            r#"{ status = 200, outcome = "deferred", hold = "yes" }"#.into(),
            "rule 1: `hold` must be true or false",
        ),
        (
            format!("{{ {good} }}, {{}}"),
            "rule 2: it is empty: give it a status and an outcome, or take it out",
        ),
    ] {
        let error = read(&tables(&format!("answers = [{written}]"))).expect_err(&written);
        assert_eq!(error.to_string(), format!("answers: {said}"), "{written}");
    }
    for status in ["99", "1000", "-1", "20.5", "'2xx'", "''", "'200-'", "'99-200'", "'200-1000'", "[200]"] {
        let error = read(&tables(&format!("answers = [{{ status = {status}, outcome = 'accepted' }}]")));
        let said = error.expect_err(status).to_string();
        assert_eq!(
            said,
            "answers: rule 1: `status` must be an integer from 100 to 999, or a range of them such as \"200-299\"",
            "{status}"
        );
    }
    let backwards = tables("answers = [{ status = '299-200', outcome = 'accepted' }]");
    let said = read(&backwards).unwrap_err().to_string();
    assert_eq!(said, "answers: rule 1: `status` \"299-200\" begins after its end");
}

#[test]
fn a_rule_that_can_never_decide_is_refused() {
    let read = |earlier: &str, later: &str| {
        let of = |rule: &str| format!("{{ {rule}, outcome = 'unknown' }}");
        read(&tables(&format!("answers = [{}, {}]", of(earlier), of(later))))
    };
    for (earlier, later) in [
        ("status = 200", "status = 200"),
        ("status = '200-299'", "status = 200"),
        ("status = '200-299'", "status = '200-250', json = { '/a' = 1 }"),
        ("status = 200, json = { '/a' = 1 }", "status = '200-200', json = { '/b' = 2, '/a' = 1.0 }"),
        ("status = 200, json = { '/a' = [1, 2, 3] }", "status = 200, json = { '/a' = [3, 1] }"),
        ("status = 200, json = { '/a' = [1] }", "status = 200, json = { '/a' = 1 }"),
        ("status = 200, absent = '/a'", "status = 200, absent = ['/b', '/a']"),
    ] {
        let said = read(earlier, later).expect_err(later).to_string();
        assert_eq!(
            said,
            "answers: rule 2 can never decide, since rule 1 takes every answer that it is about: put it before that one, or take it out"
        );
    }
    for (earlier, later) in [
        ("status = 200", "status = 201"),
        ("status = 200", "status = '200-299'"),
        ("status = 200, json = { '/a' = 1 }", "status = 200"),
        ("status = 200, json = { '/a' = 1 }", "status = 200, json = { '/a' = 2 }"),
        ("status = 200, json = { '/a' = 1 }", "status = 200, json = { '/a' = [1, 2] }"),
        ("status = 200, json = { '/a' = 1 }", "status = 200, json = { '/a' = '1' }"),
        ("status = 200, json = { '/a' = 1, '/b' = 2 }", "status = 200, json = { '/a' = 1 }"),
        ("status = 200, absent = '/a'", "status = 200, json = { '/a' = 1 }"),
    ] {
        assert!(read(earlier, later).is_ok(), "{earlier}; {later}");
    }
}

#[test]
fn the_rules_of_readme_mean_what_it_says() {
    let readme = include_str!("../../../../README.md");
    let (_, behind) = readme.split_once("```toml\nanswers = [").unwrap();
    let rules = read(&tables(&format!("answers = [{}", behind.split_once("```").unwrap().0))).unwrap();
    assert_judged(
        &rules,
        &[
            (200, r#"{"code": "OK"}"#, "accepted"),
            (200, r#"{"code": "limit"}"#, "deferred 600s Attempt"),
            (200, r#"{"code": 42}"#, "deferred 600s Attempt"),
            (200, r#"{"code": "busy", "retry_in": 60}"#, "deferred 60s Hold"),
            (200, r#"{"code": "42"}"#, "unknown"),
            (422, r#"{"code": "OK"}"#, "unknown"),
            (422, "{}", "unavailable"),
            (500, "{}", "unknown"),
        ],
    );
}

/// The rules that the example of a configuration has for a provider, and what the provider's codes mean by them.
#[track_caller]
fn assert_codes(provider: &str, body: impl Fn(&str) -> String, cases: &[(u16, &str, &[&str])]) {
    let example = include_str!("../../../../batch-send.example.toml");
    let all = example.lines().map(|line| match line.strip_prefix('#') {
        Some(commented_out) if !commented_out.starts_with(' ') => commented_out,
        _ => line,
    });
    let example: toml::Table = all.collect::<Vec<_>>().join("\n").parse().unwrap();
    let answers = example["channel"][provider]["answers"].clone();
    let rules = read(&answers.try_into::<Vec<toml::Table>>().unwrap()).unwrap();
    for (status, expected, codes) in cases {
        for code in *codes {
            assert_eq!(judged(&rules, &answer(*status, &body(code))), *expected, "{status} {code}");
        }
    }
}

#[test]
fn aliyun_says_what_became_of_a_message_in_its_code() {
    let body = |code: &str| {
        format!(r#"{{"RequestId": "F655A8D5", "Message": "m", "BizId": "1^0", "Code": "{code}"}}"#)
    };
    assert_codes(
        "aliyun",
        body,
        &[
            (200, "accepted", &["OK"]),
            (200, "deferred 3600s Attempt", &["isv.BUSINESS_LIMIT_CONTROL"]),
            (400, "deferred 10s Hold", &["Throttling.User"]),
            (200, "rejected", &["isv.MOBILE_NUMBER_ILLEGAL", "isv.TEMPLATE_MISSING_PARAMETERS"]),
            (200, "rejected", &["isv.PARAM_LENGTH_LIMIT", "isv.BLACK_KEY_CONTROL_LIMIT"]),
            (
                200,
                "unavailable",
                &["isv.AMOUNT_NOT_ENOUGH", "isv.DAY_LIMIT_CONTROL", "isp.RAM_PERMISSION_DENY"],
            ),
            (200, "unavailable", &["isv.SMS_SIGNATURE_ILLEGAL", "isv.SMS_TEMPLATE_ILLEGAL"]),
            (400, "unavailable", &["SignatureDoesNotMatch"]),
            (200, "unknown", &["isp.SYSTEM_ERROR", "isp.GATEWAY_ERROR", "ok", ""]),
            (500, "unknown", &["OK", "InternalError"]),
        ],
    );
}

#[test]
fn tencent_says_it_for_the_number_or_for_the_whole_call() {
    let number = |code: &str| {
        format!(
            r#"{{"Response": {{"SendStatusSet": [{{"SerialNo": "5000:1", "Code": "{code}"}}], "RequestId": "r"}}}}"#
        )
    };
    assert_codes(
        "tencent",
        number,
        &[
            (200, "accepted", &["Ok"]),
            (200, "deferred 30s Attempt", &["LimitExceeded.PhoneNumberThirtySecondLimit"]),
            (200, "deferred 3600s Attempt", &["LimitExceeded.PhoneNumberOneHourLimit"]),
            (200, "deferred 86400s Attempt", &["LimitExceeded.PhoneNumberDailyLimit"]),
            (200, "deferred 3600s Hold", &["FailedOperation.MarketingSendTimeConstraint"]),
            (
                200,
                "rejected",
                &["FailedOperation.PhoneNumberInBlacklist", "FailedOperation.ContainSensitiveWord"],
            ),
            (200, "rejected", &["InvalidParameterValue.IncorrectPhoneNumber"]),
            (200, "unavailable", &["FailedOperation.InsufficientBalanceInSmsPackage"]),
            (200, "unavailable", &["FailedOperation.TemplateIncorrectOrUnapproved"]),
            (200, "unknown", &["InternalError.Timeout", "InternalError.OtherError", "OK"]),
        ],
    );
    let whole = |code: &str| {
        format!(r#"{{"Response": {{"Error": {{"Code": "{code}", "Message": "m"}}, "RequestId": "r"}}}}"#)
    };
    assert_codes(
        "tencent",
        whole,
        &[
            (200, "deferred 5s Hold", &["RequestLimitExceeded"]),
            (
                200,
                "unavailable",
                &["AuthFailure.SignatureExpire", "UnauthorizedOperation.RequestIpNotInWhitelist"],
            ),
            (200, "unknown", &["InternalError", "Ok"]),
        ],
    );
}
