//! Whom a run tells what it does, besides stderr: the log file, metrics, the service that watches cron jobs, the operator's
//! program. None of them can stop a run or hold one up: what they need is done before anything is begun, in a thread of its
//! own, or when nothing is in flight any more and the lock is given back.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

use super::name_of;
use crate::cli::RunArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::logger;
use crate::metrics::{End, Metrics, Turn};
use crate::moment::Moment;
use crate::notify::{Event, Notify};
use crate::ping::Ping;
use crate::store::{Backlog, Database, Store};
use crate::trouble::{Kind, Trouble};

/// How often metrics are written during a run.
const METRICS: Duration = Duration::from_secs(15);

pub(super) struct Telling<'a> {
    config: &'a Config,
    began: Moment,
    metrics: Option<Metrics>,
    /// Of the cron run alone: a person's run of one task beside it says nothing of whether cron works.
    ping: Mutex<Option<Ping>>,
    notify: Option<Notify>,
    /// Another run is at work: this one is none.
    nothing: AtomicBool,
}

impl<'a> Telling<'a> {
    /// Errors are [`Kind::Usage`]: a setting that cannot be. A log file that cannot be opened is told, and the run goes on.
    pub fn begin(config: &'a Config, database: &Database, args: &RunArgs) -> Result<Self> {
        if let Some(file) = args.log_file.as_ref().or(config.told.log_file.as_ref()) {
            keep_in(file)?;
        }
        let run = logger::run();
        let metrics = config.told.metrics_file.as_ref().map(|file| {
            let channels = config.channels.keys().map(String::as_str);
            Metrics::new(file, &config.state_dir, &name_of(database), channels)
        });
        let ping = config.told.ping(run)?.filter(|_| args.task_id.is_none());
        if ping.is_some() {
            logger::keep_tail();
        }
        Ok(Self {
            config,
            began: Moment::now(),
            metrics,
            ping: Mutex::new(ping),
            notify: config.told.notify(run)?,
            nothing: AtomicBool::new(false),
        })
    }

    /// The lock is held: from here on it is a run.
    pub fn started(&self) {
        if let Some(ping) = &mut *self.ping.lock().unwrap_or_else(PoisonError::into_inner) {
            ping.start();
        }
    }

    /// Another run is at work on this host, and tells of itself.
    pub fn nothing(&self) {
        self.nothing.store(true, Ordering::Relaxed);
    }

    /// For one turn at a task of this channel.
    pub fn turn<'t>(&'t self, channel: &'t str) -> Option<Turn<'t>> {
        self.metrics.as_ref().map(|metrics| metrics.turn(channel))
    }

    /// Does the run's work, and writes metrics beside it.
    pub fn meanwhile(&self, database: &Database, work: impl FnOnce(&Self) -> Result<Exit>) -> Result<Exit> {
        let Some(metrics) = &self.metrics else { return work(self) };
        std::thread::scope(|scope| {
            // Closed when the work is over, even by a panic.
            let (not_over, over): (Sender<()>, _) = channel();
            let writes = move || self.write_now_and_then(metrics, database, &over);
            let writer = std::thread::Builder::new().name("metrics".into()).spawn_scoped(scope, writes);
            let ended = work(self);
            drop(not_over);
            match writer.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(())) => {}
                Ok(Err(_)) => log::warn!("the thread that writes metrics panicked; the run is not harmed"),
                Err(error) => log::info!("metrics were not written meanwhile: {error}"),
            }
            ended
        })
    }

    /// Nothing is in flight any more.
    pub fn end(&mut self, database: &Database, events: &[Event], ended: &Result<Exit>) {
        if self.nothing.load(Ordering::Relaxed) {
            return;
        }
        let exit = ended.as_ref().map_or_else(Exit::of, |exit| *exit).number();
        let took = self.began.elapsed();
        let away = ended.as_ref().is_err_and(|error| Trouble::kind_of(error) == Some(Kind::TryLater));
        let mut store = None;
        if let Some(metrics) = &self.metrics {
            if !away && let Some(store) = opened(database, &mut store) {
                self.look_at_backlog(metrics, store);
            }
            metrics.end(End { exit, took, database_retries: database.retries() });
        }
        if let Some(notify) = &self.notify {
            notify.tell(events, &mut |task| {
                let store = if away { None } else { opened(database, &mut store) }?;
                let found = store.tasks(Some(task), false);
                found.map_err(|error| log::info!("not found for [notify]: {error:#}")).ok()?.pop()
            });
        }
        drop(store);
        if let Some(ping) = &*self.ping.lock().unwrap_or_else(PoisonError::into_inner) {
            let mut log = logger::tail();
            if let Err(error) = ended {
                log += &crate::mask::within(&format!("{error:#}\n"), "");
            }
            ping.end(exit, &log);
        }
    }

    fn write_now_and_then(&self, metrics: &Metrics, database: &Database, over: &Receiver<()>) {
        let mut store = None;
        while over.recv_timeout(METRICS) == Err(RecvTimeoutError::Timeout) {
            if let Some(store) = opened(database, &mut store) {
                self.look_at_backlog(metrics, store);
            }
            metrics.write();
        }
    }

    fn look_at_backlog(&self, metrics: &Metrics, store: &mut (dyn Store + 'static)) {
        let looked = store.backlog().and_then(|backlog| Ok((backlog, store.now()?)));
        match looked {
            Ok((backlog, now)) => {
                let window = |channel: &str| self.config.channels.get(channel)?.window;
                let open = |one: Backlog| match window(&one.channel) {
                    Some(window) => one.within(window.open_since(now), now),
                    None => one,
                };
                metrics.waits(backlog.into_iter().map(open).collect());
            }
            Err(error) => log::info!("the backlog is not known: {error:#}"),
        }
    }
}

fn keep_in(file: &Path) -> Result<()> {
    let shown = file.display();
    if file.is_relative() {
        // Cron's directory is not the one in which it was typed.
        let sentence = format!("--log-file must be an absolute path, not `{shown}`");
        return Err(Trouble::usage(sentence).into());
    }
    if let Err(error) = logger::keep_in(file) {
        log::warn!(
            "the log file {shown} cannot be opened: {error}; the run goes on, and what it does is not kept"
        );
    }
    Ok(())
}

/// A store of our own, opened when it is first needed.
fn opened<'a>(
    database: &Database,
    store: &'a mut Option<Box<dyn Store>>,
) -> Option<&'a mut (dyn Store + 'static)> {
    if store.is_none() {
        match database.store() {
            Ok(opened) => *store = Some(opened),
            Err(error) => log::info!("no connection to tell of the database: {error:#}"),
        }
    }
    store.as_deref_mut()
}
