//! A signed request is believed by the specification's own library. The library is Python's: `BATCH_SEND_TEST_PYTHON`
//! names an interpreter that has `standardwebhooks`; tests/run makes one.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::endpoint::Request;
use crate::support::{Cue, Endpoint, Engine, Sandbox, wait_until};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDFU0qw6oQRjA=";

/// Reads key, headers and body from stdin as JSON; exit 0: believed, 1: not.
const VERIFY: &str = "
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
said = json.load(sys.stdin)
try:
    Webhook(said['key']).verify(said['body'], said['headers'])
except WebhookVerificationError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
";

fn believed(key: &str, request: &Request, body: &str) -> bool {
    let python = std::env::var("BATCH_SEND_TEST_PYTHON")
        .expect("BATCH_SEND_TEST_PYTHON names no interpreter; tests/run makes one");
    let mut child = Command::new(python)
        .args(["-c", VERIFY])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = serde_json::json!({ "key": key, "headers": request.headers, "body": body });
    child.stdin.take().unwrap().write_all(said.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    match output.status.code() {
        Some(0) => true,
        Some(1) if String::from_utf8_lossy(&output.stderr).contains("No matching signature") => false,
        _ => panic!("{}", String::from_utf8_lossy(&output.stderr)),
    }
}

#[test]
#[ignore = "needs the specification's own library: BATCH_SEND_TEST_PYTHON"]
fn the_specifications_own_library_believes_each_attempt_under_the_old_key_and_the_new_one() {
    let it = Sandbox::new(Engine::Sqlite);
    let endpoint = Endpoint::new(|request| if request.nth == 1 { Cue::Answer(421) } else { Cue::Accept });
    let keys = "backoff = { first = \"1s\", most = \"1s\" }\nsign = \"standard-webhooks\"\n\
                sign_key = [\"${NEW_KEY}\", \"${OLD_KEY}\"]";
    it.configure("", &endpoint.channel("hook", keys));
    let task = it.database.task("hook", ["Grüße, \"Ann\""]);
    it.database.execute("UPDATE batch_task_target SET params = '{\"text\": \"😀\\u2028 und mehr\"}'");
    wait_until("the second attempt", 20, || {
        it.call("run").env("OLD_KEY", OLD).env("NEW_KEY", NEW).done().quietly();
        it.database.count(task, "sent") == 1
    });
    let requests = endpoint.all();
    assert_eq!(requests.len(), 2);
    for request in &requests {
        for key in [OLD, NEW] {
            assert!(believed(key, request, &request.text), "{request:?}");
            assert!(!believed(key, request, &request.text.replace("Ann", "Bob")));
        }
        assert!(!believed("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", request, &request.text));
        assert_eq!(request.headers["webhook-id"], request.body["key"].as_str().unwrap());
    }
    let times = requests.iter().map(|request| request.headers["webhook-timestamp"].parse::<u64>().unwrap());
    assert!(times.is_sorted(), "each attempt has its own time");
}

#[test]
fn a_key_that_is_wrong_or_missing_is_told_and_not_shown() {
    let it = Sandbox::new(Engine::Sqlite);
    let endpoint = Endpoint::accepting();
    let sign = "sign = \"standard-webhooks\"\nsign_key = \"${KEY}\"";
    it.configure("", &endpoint.channel("hook", sign));
    it.database.task("hook", ["ann"]);
    let run = it.call("run").env("KEY", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").done();
    let run = run.exits(2).says(&["[channel.hook]: sign_key is no key"]);
    assert!(!run.stderr.contains("MfKQ9r8GK"), "{run}");
    it.call("run").done().exits(2).says(&["`KEY`", "`sign_key`"]);
    it.configure("", &endpoint.channel("hook", "sign = \"standard-webhooks\""));
    it.call("run").done().exits(2).says(&["[channel.hook]: sign needs sign_key"]);
    assert_eq!(endpoint.requests(), 0);
}
