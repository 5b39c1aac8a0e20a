//! Pings of a service that watches cron jobs, by the conventions of healthchecks.io: URL/start once the lock is held, URL after
//! a success, URL/<exit code> with the last lines of the log after anything else; `rid` pairs them. The run never waits for the
//! service while anything is left to do, at its end a few seconds at most, and never fails by it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::Result;
use ureq::http::header::CONTENT_TYPE;
use ureq::http::{HeaderValue, Method, Request, Uri};
use uuid::Uuid;

use crate::moment::Moment;
use crate::sender::http::exchange::{self, Bounds, Client};
use crate::sender::{Outcome, Secrets};

/// For all that is still to be said at the end of a run.
const END: Duration = Duration::from_secs(5);

/// A ping that failed at once is tried again after this time.
const AGAIN: Duration = Duration::from_millis(500);

/// Bytes of the log that go along.
const BODY: usize = 10_000;

pub struct Ping {
    asked: Arc<Asked>,
    /// Closed when the ping of the start has been answered or given up.
    started: Option<Receiver<()>>,
}

/// Whom to ask, and how.
struct Asked {
    client: Client,
    /// Without its query.
    url: String,
    /// With the `rid`.
    query: String,
    secrets: Secrets,
}

impl Ping {
    /// Whether this is a URL to ping. Errors never show it.
    pub fn check(url: &str) -> Result<()> {
        exchange::url("it", url).map(drop)
    }

    /// `run`: the name of this run, by which the service pairs its start and its end.
    pub fn open(url: &str, run: Uuid) -> Result<Self> {
        Self::check(url)?;
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let before = if query.is_empty() { String::new() } else { format!("{query}&") };
        let asked = Asked {
            client: Client::open(None, END, 1, url.len() + 64)?,
            url: base.trim_end_matches('/').to_owned(),
            query: format!("{before}rid={run}"),
            secrets: Secrets::new([url].into_iter().chain(base.split('/').skip(3)).chain(query.split('&'))),
        };
        Ok(Self { asked: Arc::new(asked), started: None })
    }

    /// Connects, and asks nothing: any request would be a ping.
    pub fn probe(&self) -> Result<String, String> {
        let uri: Uri = self.asked.url.parse().map_err(|_| "the URL is none".to_owned())?;
        let host = uri.host().unwrap_or_default().to_owned();
        let mut request = Request::new("");
        *request.uri_mut() = uri;
        self.asked.client.connect(request, &self.asked.secrets)?;
        Ok(format!("{host} takes connections"))
    }

    /// Says that the run has begun, and waits for nothing.
    pub fn start(&mut self) {
        let (done, started): (Sender<()>, _) = channel();
        let asked = Arc::clone(&self.asked);
        let says = move || {
            let _done = done;
            asked.ask("/start", "", Moment::now() + END);
        };
        match std::thread::Builder::new().name("ping".into()).spawn(says) {
            Ok(_) => self.started = Some(started),
            Err(error) => log::info!("no ping of the start: {error}"),
        }
    }

    /// Says how the run ended. `log`: its last lines, for a person who is woken.
    pub fn end(&self, exit: u8, log: &str) {
        let end = Moment::now() + END;
        if let Some(started) = &self.started {
            // A start that came after the end would be taken for a run that hangs.
            use std::sync::mpsc::RecvTimeoutError::Timeout;
            if started.recv_timeout(end.left()) == Err(Timeout) {
                log::info!("no ping of the end: that of the start has no answer yet");
                return;
            }
        }
        match exit {
            0 => self.asked.ask("", "", end),
            exit => self.asked.ask(&format!("/{exit}"), last_of(log), end),
        }
    }
}

/// The end of a text, from the beginning of a line where there is one.
fn last_of(log: &str) -> &str {
    let mut from = log.len().saturating_sub(BODY);
    while !log.is_char_boundary(from) {
        from += 1;
    }
    let last = &log[from..];
    if from == 0 { last } else { last.split_once('\n').map_or(last, |(_, whole)| whole) }
}

impl Asked {
    /// Until it is answered, or `end`; what is wrong is logged and nothing else.
    fn ask(&self, what: &str, body: &str, end: Moment) {
        let mut why = self.once(what, body, end);
        if why.is_some() && end.left() > AGAIN {
            std::thread::sleep(AGAIN);
            why = self.once(what, body, end);
        }
        if let Some(why) = why {
            // Not on stderr: a service that is away must not become a mail a minute.
            log::info!("the ping of the {} failed: {why}", if what == "/start" { "start" } else { "end" });
        }
    }

    /// Why it failed, if so.
    fn once(&self, what: &str, body: &str, end: Moment) -> Option<String> {
        let Ok(uri) = format!("{}{what}?{}", self.url, self.query).parse::<Uri>() else {
            return Some("the URL is none".into());
        };
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let bounds = Bounds { timeout: end.left(), until: end, keep: 0 };
        match self.client.exchange(request, bounds, &self.secrets) {
            Ok(answer) if (200..300).contains(&answer.status) => None,
            Ok(answer) => Some(format!("HTTP {}", answer.status)),
            Err(Outcome::Accepted { .. }) => None,
            Err(
                Outcome::Deferred { reason, .. }
                | Outcome::Rejected { reason }
                | Outcome::Unknown { reason }
                | Outcome::Unavailable { reason },
            ) => Some(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_cut_at_a_line_and_never_in_a_character() {
        assert_eq!(last_of("a\nb\n"), "a\nb\n");
        let long = "ü".repeat(300) + "\n";
        let log = long.repeat(30);
        let last = last_of(&log);
        assert!(
            last.len() <= BODY && last.len() > BODY - long.len() && last.starts_with('ü'),
            "{}",
            last.len()
        );
        assert_eq!(last.len() % long.len(), 0);
        let unbroken = "ü".repeat(20_000);
        assert_eq!(last_of(&unbroken).len(), BODY);
    }

    #[test]
    fn a_query_stays_and_the_name_of_the_run_is_added() {
        let run = Uuid::nil();
        for (url, base, query) in [
            ("https://hc.example/key/shop?create=1", "https://hc.example/key/shop", "create=1&rid="),
            ("https://hc.example/uuid/", "https://hc.example/uuid", "rid="),
        ] {
            let ping = Ping::open(url, run).unwrap();
            assert_eq!((ping.asked.url.as_str(), ping.asked.query.clone()), (base, format!("{query}{run}")));
        }
        let error = Ping::check("hc.example/s3cret").unwrap_err().to_string();
        assert!(error.contains("http://") && !error.contains("s3cret"), "{error}");
    }
}
