//! `metrics_file`: what this host's runs did, in the text format that node_exporter reads from a file. A run is over within a
//! minute, its counters are not: they are kept in `state_dir`, and each run adds to them what it did, under a lock, so that
//! runs beside each other lose nothing. Both files are replaced whole. Whatever fails here is said once and changes nothing.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Error, Result, bail};
use fs2::FileExt;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::delivery::{Ended, Served};
use crate::moment::{Moment, wall};
use crate::owner;
use crate::patience;
use crate::replace::{Mode, replace};
use crate::store::Backlog;

/// For so long another run's turn at the files is waited for, and the disk that `metrics_file` is on.
const PATIENCE: Duration = Duration::from_secs(2);

/// The metrics of one run, on top of those of all before it.
pub struct Metrics {
    file: PathBuf,
    /// The counters of all runs.
    kept: PathBuf,
    /// Held for a moment only: lanes add to it while messages are in flight.
    state: Mutex<State>,
    /// Held while they are written; whether that was for the last time.
    ended: Mutex<bool>,
    /// It was told that they cannot be written.
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Done by this run, and not in the file yet.
    fresh: Counters,
    backlog: Option<Vec<Backlog>>,
}

/// What only ever grows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Counters {
    channels: BTreeMap<String, Channel>,
    runs: u64,
    lease_losses: u64,
    database_retries: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Channel {
    attempts: u64,
    sent: u64,
    failed: u64,
    unknown: u64,
    retry: u64,
    returned: u64,
    refused: u64,
}

impl Channel {
    fn of(served: &Served) -> Self {
        Self {
            attempts: served.begun,
            sent: served.sent,
            failed: served.failed,
            unknown: served.unknown,
            retry: served.retry,
            returned: served.returned,
            refused: served.refused,
        }
    }

    fn each(&mut self) -> [&mut u64; 7] {
        let Self { attempts, sent, failed, unknown, retry, returned, refused } = self;
        [attempts, sent, failed, unknown, retry, returned, refused]
    }

    fn add(&mut self, mut other: Self) {
        for (one, other) in self.each().into_iter().zip(other.each()) {
            *one = one.saturating_add(*other);
        }
    }

    fn less(mut self, mut other: Self) -> Self {
        for (one, other) in self.each().into_iter().zip(other.each()) {
            *one = one.saturating_sub(*other);
        }
        self
    }

    fn outcomes(&self) -> [(&'static str, u64); 6] {
        [
            ("sent", self.sent),
            ("failed", self.failed),
            ("unknown", self.unknown),
            ("retry", self.retry),
            ("returned", self.returned),
            ("refused", self.refused),
        ]
    }
}

impl Counters {
    fn add(&mut self, other: &Self) {
        for (name, channel) in &other.channels {
            self.channels.entry(name.clone()).or_default().add(*channel);
        }
        self.runs += other.runs;
        self.lease_losses += other.lease_losses;
        self.database_retries += other.database_retries;
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub exit: u8,
    pub took: Duration,
    /// How often the database had to be asked again.
    pub database_retries: u64,
}

/// What is kept between runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    counters: Counters,
    last: Option<Last>,
    /// Seconds since 1970.
    last_success: Option<f64>,
    waits: BTreeMap<String, Waits>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Last {
    /// Seconds since 1970.
    at: f64,
    seconds: f64,
    exit: u8,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Waits {
    targets: u64,
    oldest: f64,
    unknown: u64,
}

/// What one turn at a task has added so far.
pub struct Turn<'a> {
    metrics: &'a Metrics,
    channel: &'a str,
    seen: Channel,
}

impl Turn<'_> {
    /// `served`: all of the turn until now.
    pub fn seen(&mut self, served: &Served) {
        let now = Channel::of(served);
        let new = now.less(self.seen);
        self.seen = now;
        self.metrics.state().fresh.channels.entry(self.channel.to_owned()).or_default().add(new);
    }

    pub fn end(mut self, served: &Served) {
        self.seen(served);
        if served.ended == Some(Ended::Lost) {
            self.metrics.state().fresh.lease_losses += 1;
        }
    }
}

impl Metrics {
    /// `name` tells this installation from others whose state is in the same directory. Each channel is there from the
    /// beginning, with zeros: what appears with its first failure has not risen for whoever looks at it.
    pub fn new<'a>(
        file: &Path,
        state_dir: &Path,
        name: &str,
        channels: impl Iterator<Item = &'a str>,
    ) -> Self {
        let channels = channels.map(|channel| (channel.to_owned(), Channel::default())).collect();
        let fresh = Counters { channels, runs: 1, ..Counters::default() };
        Self {
            file: file.to_owned(),
            kept: state_dir.join(format!("metrics-{name}.json")),
            state: Mutex::new(State { fresh, backlog: None }),
            ended: Mutex::new(false),
            failed: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn turn<'a>(&'a self, channel: &'a str) -> Turn<'a> {
        Turn { metrics: self, channel, seen: Channel::default() }
    }

    /// What waits now, as far as the database could say.
    pub fn waits(&self, backlog: Vec<Backlog>) {
        self.state().backlog = Some(backlog);
    }

    /// Writes what has been done until now, if nobody has written the end.
    pub fn write(&self) {
        self.write_or_tell(None);
    }

    /// Writes all of it.
    pub fn end(&self, end: End) {
        self.state().fresh.database_retries += end.database_retries;
        self.write_or_tell(Some(end));
    }

    fn write_or_tell(&self, end: Option<End>) {
        // To the end: what a slower thread has seen earlier must not be written over it.
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return;
        }
        *ended = end.is_some();
        let mut state = std::mem::take(&mut *self.state());
        if let Err(error) = self.add(&mut state, end)
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            log::warn!("the metrics cannot be written: {error:#}; the run goes on without them");
        }
        self.state().fresh.add(&state.fresh);
    }

    /// Takes from `state` what is counted now, whether or not it can be shown.
    fn add(&self, state: &mut State, end: Option<End>) -> Result<()> {
        let _turn = turn_at(&self.kept.with_extension("lock"))?;
        let mut kept = read(&self.kept)?;
        kept.counters.add(&state.fresh);
        if let Some(backlog) = &state.backlog {
            let waits = |backlog: &Backlog| Waits {
                targets: backlog.targets,
                oldest: backlog.oldest.as_secs_f64(),
                unknown: backlog.unknown,
            };
            kept.waits = kept.counters.channels.keys().map(|name| (name.clone(), Waits::default())).collect();
            kept.waits.extend(backlog.iter().map(|one| (one.channel.clone(), waits(one))));
        }
        if let Some(End { exit, took, .. }) = end {
            let at = wall().timestamp_millis() as f64 / 1000.0;
            kept.last = Some(Last { at, seconds: took.as_secs_f64(), exit });
            if exit == 0 {
                kept.last_success = Some(at);
            }
        }
        write(&self.kept, &serde_json::to_string(&kept)?, 0o600)?;
        // They are counted, even if nobody gets to see it.
        state.fresh = Counters::default();
        let (file, text) = (self.file.clone(), text(&kept));
        // Perhaps on a file system that has gone away: the run must end.
        patience::within(PATIENCE, "metrics", move || write(&file, &text, 0o644))
            .map_err(Error::new)
            .flatten()
            .context("metrics_file")
    }
}

/// Held until dropped.
fn turn_at(path: &Path) -> Result<File> {
    let about = || format!("lock {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32).mode(0o600);
    plain_file(path)?;
    let file = owner::open(&options, path).map_err(|error| closed(error, path, "lock"))?;
    let until = Moment::now() + PATIENCE;
    loop {
        match file.try_lock_exclusive() {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if until.passed() {
                    bail!("another run has held {} for {} s", path.display(), PATIENCE.as_secs());
                }
                std::thread::sleep(Duration::from_millis(fastrand::u64(1..10)));
            }
            Err(error) => return Err(error).with_context(about),
        }
    }
}

/// What earlier runs left. What cannot be understood (a disk was full, the power went) begins anew: whoever reads counters
/// knows that they may.
fn read(path: &Path) -> Result<Kept> {
    plain_file(path)?;
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Kept::default()),
        Err(error) => return Err(closed(error, path, "read")),
    };
    Ok(serde_json::from_slice(&text).unwrap_or_else(|error| {
        log::warn!("{} cannot be understood ({error}): the counters begin anew", path.display());
        Kept::default()
    }))
}

/// A pipe would be waited at for ever.
fn plain_file(path: &Path) -> Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        bail!("{} is no file: remove it", path.display());
    }
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    // Runs beside each other wait for this, and what a failure of the power takes is a few counts.
    replace(path, text.as_bytes(), Mode::Always(mode), false)
        .with_context(|| format!("write {}", path.display()))
}

/// Why a file cannot be used.
fn closed(error: io::Error, path: &Path, what: &str) -> Error {
    match owner::of_another(path, &error) {
        Some(sentence) => Error::msg(sentence),
        None => Error::new(error).context(format!("{what} {}", path.display())),
    }
}

// ---- the text ---------------------------------------------------------------------------------------------------

fn text(kept: &Kept) -> String {
    let Kept { counters, last, last_success, waits } = kept;
    let mut text = Text(String::new());
    text.family(
        "targets_total",
        "counter",
        "What became of targets in the runs of this host: sent, failed, unknown, retry (later again), returned (the channel was not reached or \
         wants to be left alone), refused (never begun: no message could be made, or suppressed).",
    );
    for (name, channel) in &counters.channels {
        for (outcome, number) in channel.outcomes() {
            text.sample("targets_total", &[("channel", name), ("outcome", outcome)], number);
        }
    }
    text.family("attempts_total", "counter", "Messages that were begun.");
    for (name, channel) in &counters.channels {
        text.sample("attempts_total", &[("channel", name)], channel.attempts);
    }
    text.single(
        "runs_total",
        "counter",
        "Runs on this host that found no other at work.",
        Some(counters.runs),
    );
    text.single(
        "lease_losses_total",
        "counter",
        "Tasks that another run took while one of this host was at them.",
        Some(counters.lease_losses),
    );
    text.single(
        "database_retries_total",
        "counter",
        "Pieces of work that MySQL or MariaDB had to be asked for again.",
        Some(counters.database_retries),
    );
    if !waits.is_empty() {
        text.family(
            "backlog_targets",
            "gauge",
            "Targets that could be sent now, of all hosts, within the hours of their channel. Counted up to 1000 of a task and estimated above; of the first 1000 due tasks.",
        );
        for (name, waits) in waits {
            text.sample("backlog_targets", &[("channel", name)], waits.targets);
        }
        text.family(
            "backlog_oldest_age_seconds",
            "gauge",
            "How long the oldest of them could have been sent: since its task was made or scheduled, or its retry was due.",
        );
        for (name, waits) in waits {
            text.sample("backlog_oldest_age_seconds", &[("channel", name)], waits.oldest);
        }
        text.family(
            "unknown_targets",
            "gauge",
            "Targets that may have been sent and wait for a person. Of a task that is not finished no more than 1001 are counted.",
        );
        for (name, waits) in waits {
            text.sample("unknown_targets", &[("channel", name)], waits.unknown);
        }
    }
    text.single(
        "last_run_timestamp_seconds",
        "gauge",
        "When a run of this host last ended, whatever came of it.",
        last.map(|last| last.at),
    );
    text.single(
        "last_run_duration_seconds",
        "gauge",
        "How long that run took.",
        last.map(|last| last.seconds),
    );
    text.single("last_run_exit_code", "gauge", "Its exit code.", last.map(|last| last.exit));
    text.single(
        "last_success_timestamp_seconds",
        "gauge",
        "When a run of this host last ended with exit code 0.",
        *last_success,
    );
    text.0
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP batch_send_{name} {help}\n# TYPE batch_send_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        // Names of channels need no escapes: letters, digits, `_`, `-` and `.`; those of rows are any.
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "batch_send_{name}{labels} {value}");
    }

    /// One value without labels; none when it is not known.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.family(name, kind, help);
            self.sample(name, &[], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(dir: &Path) -> Metrics {
        Metrics::new(&dir.join("m.prom"), dir, "x", ["web"].into_iter())
    }

    fn sent(metrics: &Metrics, sent: u64) {
        let served = Served { begun: sent, sent, ..Served::default() };
        metrics.turn("web").end(&served);
    }

    fn end() -> End {
        End { exit: 0, took: Duration::from_millis(1500), database_retries: 1 }
    }

    #[test]
    fn runs_beside_each_other_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at_work = std::sync::atomic::AtomicU32::new(8);
        std::thread::scope(|scope| {
            // Whoever reads meanwhile finds a whole file.
            scope.spawn(|| {
                while at_work.load(Ordering::Relaxed) > 0 {
                    if let Ok(text) = fs::read_to_string(dir.path().join("m.prom")) {
                        assert!(text.ends_with('\n') && text.contains("\nbatch_send_runs_total "), "{text}");
                    }
                }
            });
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let metrics = metrics(dir.path());
                        let mut turn = metrics.turn("web");
                        turn.seen(&Served { begun: 2, sent: 1, ..Served::default() });
                        metrics.write();
                        turn.end(&Served { begun: 3, sent: 3, ..Served::default() });
                        metrics.end(end());
                    }
                    at_work.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        let text = fs::read_to_string(dir.path().join("m.prom")).unwrap();
        for line in [
            "batch_send_targets_total{channel=\"web\",outcome=\"sent\"} 480",
            "batch_send_attempts_total{channel=\"web\"} 480",
            "batch_send_runs_total 160",
            "batch_send_database_retries_total 160",
            "batch_send_last_run_duration_seconds 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn what_cannot_be_understood_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("metrics-x.json"), "{\"counters\": {\"chan").unwrap();
        let metrics = metrics(dir.path());
        sent(&metrics, 5);
        metrics.end(end());
        let text = fs::read_to_string(dir.path().join("m.prom")).unwrap();
        assert!(text.contains("outcome=\"sent\"} 5\n"), "{text}");
    }

    #[test]
    fn what_could_not_be_shown_is_shown_later() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("missing/m.prom");
        for _ in 0..2 {
            let metrics = Metrics::new(&file, dir.path(), "x", ["web"].into_iter());
            sent(&metrics, 5);
            metrics.write();
            metrics.end(end());
            assert!(metrics.failed.load(Ordering::Relaxed));
        }
        fs::create_dir(dir.path().join("missing")).unwrap();
        let metrics = Metrics::new(&file, dir.path(), "x", ["web"].into_iter());
        metrics.end(end());
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("outcome=\"sent\"} 10\n") && text.contains("runs_total 3\n"), "{text}");
    }

    #[test]
    fn what_is_seen_after_the_end_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let metrics = metrics(dir.path());
        metrics.end(end());
        sent(&metrics, 5);
        metrics.write();
        let text = fs::read_to_string(dir.path().join("m.prom")).unwrap();
        assert!(text.contains("outcome=\"sent\"} 0\n"), "{text}");
    }

    #[test]
    fn a_channel_may_have_any_name_in_a_row() {
        let mut text = Text(String::new());
        text.sample("x", &[("channel", "a\"b\\c\nd")], 1);
        assert_eq!(text.0, "batch_send_x{channel=\"a\\\"b\\\\c\\nd\"} 1\n");
    }
}
