//! One run: what cron starts every minute, and what a person starts for one task. Takes the lock, repairs what dead runs left,
//! leases task after task in its lanes and hands them to delivery.rs. What it tells at its end is in run/report.rs, whom it
//! tells besides in run/told.rs, the dry run in run/dry.rs.

mod dry;
mod hours;
mod report;
mod told;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use uuid::Uuid;

use self::hours::Hours;
use self::report::Report;
use self::told::Telling;
use crate::cli::RunArgs;
use crate::config::{Channel, Config};
use crate::delivery::{self, Ended, Orders, Quota, Tally};
use crate::exit::Exit;
use crate::journal::{self, Journal};
use crate::lock::{Locking, RunLock};
use crate::logger;
use crate::moment::Moment;
use crate::sender::Sender;
use crate::stop::Stop;
use crate::store::{Closed, Database, Lease, Leasing, Relay, Store, Terms};
use crate::task::{Task, TaskId, TaskStatus};
use crate::trouble::Trouble;
use crate::who;

/// By how much our own deadlines come before the database's.
const MARGIN: Duration = Duration::from_secs(2);

/// A holder of the lock that is so much older than it may be is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// How long a lane that waits for the pace of a channel sleeps before it looks at signals and the budget again, and before it looks
/// for other work.
const TICK: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_secs(1);

/// Tasks that wait for the same slot heard of it one after the other: so near to it they are all looked at, and the least recently
/// served comes first.
const SOON: Duration = Duration::from_millis(50);

/// The sender of each channel, in the order of the configuration.
type Senders = Vec<Box<dyn Sender>>;

pub fn run(config: &Config, database: &Database, args: &RunArgs, out: &mut dyn Write) -> Result<Exit> {
    if args.dry_run {
        return dry::dry_run(config, database, args, out);
    }
    let mut telling = Telling::begin(config, database, args)?;
    let mut report = Report::default();
    let ended = telling.meanwhile(database, |telling| work(config, database, args, telling, &mut report));
    telling.end(database, report.events(), &ended);
    ended
}

fn work(
    config: &Config,
    database: &Database,
    args: &RunArgs,
    telling: &Telling<'_>,
    report: &mut Report,
) -> Result<Exit> {
    config.make_dirs()?;
    let longest = config.channels.values().map(Channel::longest).max().unwrap_or_default();
    let stop = Stop::new(config.run.budget, longest);
    stop.on_signals()?;
    // All of them, at once: a channel that cannot work is told now, not when its first task is half done.
    let senders =
        config.channels.values().map(|channel| channel.sender(config.run.lanes)).collect::<Result<_>>()?;
    match args.task_id {
        Some(task) => one_task(config, &senders, database, args, task, &stop, telling, report),
        None => every_due_task(config, &senders, database, args, &stop, longest, telling, report),
    }
}

/// The cron run.
#[allow(clippy::too_many_arguments)]
fn every_due_task(
    config: &Config,
    senders: &Senders,
    database: &Database,
    args: &RunArgs,
    stop: &Stop,
    longest: Duration,
    telling: &Telling<'_>,
    report: &mut Report,
) -> Result<Exit> {
    let path = lock_path(&config.lock_dir, database);
    let lock = match RunLock::acquire(&path, Moment::now() + config.run.budget + longest + STUCK)? {
        Locking::Ours(lock) => Arc::new(lock),
        Locking::Busy(Some(holder)) if holder.end.passed() => {
            return Err(anyhow!(
                "the run with pid {} holds {} since {} and is past its end: look at it, and kill it if it hangs",
                holder.pid,
                path.display(),
                super::status::span(holder.since.elapsed())
            ));
        }
        Locking::Busy(holder) => {
            let pid = holder.map_or("unknown".into(), |holder| holder.pid.to_string());
            log::info!("another run is at work on this host (pid {pid}): nothing to do here");
            telling.nothing();
            return Ok(Exit::Done);
        }
    };
    telling.started();
    let mut store = database.store()?;
    let installation = super::installation(&mut *store)?;
    replay(config, &mut *store, installation, report)?;
    recover(&mut *store, None, report)?;
    let known: Vec<&str> = config.channels.keys().map(String::as_str).collect();
    for stray in store.strays(&known)? {
        let (task, channel) = (stray.task, &stray.channel);
        if stray.paused {
            report.paused(task, &format!("no configuration that serves it knows channel {channel}"), "");
        } else {
            log::info!(task; "skipped: channel {channel} is not in this host's configuration");
        }
    }

    let hours = Hours::read(config, &mut *store)?;
    let mut first = Vec::new();
    let mut taken: Vec<TaskId> = Vec::new();
    while first.len() < config.run.lanes
        && let Some(task) = store.due(&hours.open(), &taken)?
    {
        taken.push(task.id);
        first.push(task);
    }
    if first.is_empty() {
        log::info!("nothing is due");
        return Ok(report.exit());
    }
    let journal = Journal::create(&config.state_dir, installation)?;
    let run = Run::new(config, senders, installation, stop, args.limit, &journal, hours, telling);
    let mut first = first.into_iter();
    let own = first.next();
    std::thread::scope(|scope| {
        let mut others = Vec::new();
        for task in first {
            let (run, mut lock) = (&run, Some(Arc::clone(&lock)));
            let lane = move || {
                let mut report = Report::default();
                match database.store() {
                    Ok(mut store) => run.lane(&mut *store, task, &mut lock, &mut report),
                    Err(error) => report.fail(error.context("open a lane's connection")),
                }
                report
            };
            match std::thread::Builder::new().spawn_scoped(scope, lane) {
                Ok(lane) => others.push(lane),
                Err(error) => report.fail(Error::new(error).context("start a lane")),
            }
        }
        if let Some(task) = own {
            run.lane(&mut *store, task, &mut Some(lock), report);
        }
        for lane in others {
            match lane.join() {
                Ok(other) => report.add(other),
                Err(_) => report.fail(anyhow!("a lane panicked; what it had in flight will be unknown")),
            }
        }
    });
    drop(run);
    finish(journal, report);
    report.end()
}

/// `--task-id`: the lease excludes, not the lock file, so that cron goes on beside it.
#[allow(clippy::too_many_arguments)]
fn one_task(
    config: &Config,
    senders: &Senders,
    database: &Database,
    args: &RunArgs,
    id: TaskId,
    stop: &Stop,
    telling: &Telling<'_>,
    report: &mut Report,
) -> Result<Exit> {
    let _about = logger::about(id, None);
    let mut store = database.store()?;
    let installation = super::installation(&mut *store)?;
    replay(config, &mut *store, installation, report)?;
    // First: it reopens a finished task that an application has added to.
    recover(&mut *store, Some(id), report)?;
    let task = store.task(id)?.ok_or_else(|| super::no_such_task(id))?;
    if task.status == TaskStatus::Finished {
        log::info!("finished: nothing of it is left to send");
        return report.end();
    }
    let journal = Journal::create(&config.state_dir, installation)?;
    let hours = Hours::read(config, &mut *store)?;
    let run = Run::new(config, senders, installation, stop, args.limit, &journal, hours, telling);
    let channel = run.channel(&task)?;
    if let Some(why) = run.hours.refusal(channel.channel) {
        report.fail(anyhow!("task {id} waits: {why}"));
    } else {
        match store.lease(id, &run.terms(channel), args.force)? {
            Leasing::Ours(lease) => {
                let (until, turn_over, last_begun) =
                    (stop.begins_until(), &mut |_: &mut dyn Relay| Ok(false), &mut || {});
                run.serve(&mut *store, &task, channel, lease, until, turn_over, last_begun, report);
            }
            Leasing::Held { owner, .. } => {
                report.fail(Error::new(Trouble::try_later(format!(
                    "task {id} is held by {owner}: wait for it, or go beside it with --force"
                ))));
            }
            Leasing::Closed(why) => report.fail(anyhow!(why)),
        }
    }
    drop(run);
    finish(journal, report);
    report.end()
}

/// Of one database and prefix: two installations on a host do not stop each other.
pub(super) fn lock_path(dir: &Path, database: &Database) -> std::path::PathBuf {
    dir.join(format!("batch-send-{}.lock", name_of(database)))
}

/// What files of one database and prefix are called by.
fn name_of(database: &Database) -> String {
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_URL, database.identity().as_bytes()).simple().to_string();
    hash[..16].to_owned()
}

fn replay(config: &Config, store: &mut dyn Store, installation: Uuid, report: &mut Report) -> Result<()> {
    let replayed = journal::replay(&config.state_dir, installation, &mut |answers| store.settle(answers))?;
    if replayed.settled.written > 0 {
        log::info!("replayed {} answers of a run that could not write them", replayed.settled.written);
    }
    report.replayed(&replayed);
    Ok(())
}

fn recover(store: &mut dyn Store, only: Option<TaskId>, report: &mut Report) -> Result<()> {
    let recovered = store.recover(only)?;
    if recovered.pending + recovered.unknown > 0 {
        log::info!(pending = recovered.pending, unknown = recovered.unknown; "recovered");
    }
    for task in recovered.doubtful {
        report.doubtful(task, "the run that sent them died before the answers were written");
    }
    for (task, reason) in recovered.expired {
        report.expired(task, &reason);
    }
    for task in recovered.reopened {
        log::info!(task; "reopened: an open target turned up after it was finished");
    }
    Ok(())
}

fn finish(journal: Journal, report: &mut Report) {
    match journal.finish() {
        Ok(0) => {}
        Ok(owed) => log::warn!("{owed} answers wait in the journal in state_dir; the next run writes them"),
        Err(error) => report.fail(error),
    }
}

/// What the lanes of a run share.
struct Run<'a> {
    config: &'a Config,
    installation: Uuid,
    host: String,
    stop: &'a Stop,
    quota: Quota,
    journal: &'a Journal,
    channels: BTreeMap<&'a str, Open<'a>>,
    hours: Hours<'a>,
    telling: &'a Telling<'a>,
    tallies: Mutex<HashMap<TaskId, Tally>>,
    /// Not to be served before this moment, or not again in this run: found empty, or not to be served here.
    left_alone: Mutex<HashMap<TaskId, Option<Moment>>>,
}

struct Open<'a> {
    channel: &'a Channel,
    sender: &'a dyn Sender,
    /// Said once in a run: everything goes to another recipient.
    redirected: Once,
}

impl<'a> Run<'a> {
    #[allow(clippy::too_many_arguments)]
    fn new(
        config: &'a Config,
        senders: &'a Senders,
        installation: Uuid,
        stop: &'a Stop,
        limit: Option<u64>,
        journal: &'a Journal,
        hours: Hours<'a>,
        telling: &'a Telling<'a>,
    ) -> Self {
        let opened = config.channels.values().zip(senders);
        let channels = opened.map(|(channel, sender)| {
            (channel.name.as_str(), Open { channel, sender: &**sender, redirected: Once::new() })
        });
        Self {
            config,
            installation,
            host: who::host(),
            stop,
            quota: Quota::new(limit),
            journal,
            channels: channels.collect(),
            hours,
            telling,
            tallies: Mutex::default(),
            left_alone: Mutex::default(),
        }
    }

    /// Serves `task`, then whatever is due next, until nothing is or the run ends.
    fn lane(&self, store: &mut dyn Store, task: Task, lock: &mut Option<Arc<RunLock>>, report: &mut Report) {
        let mut next = Some(task);
        while let Some(task) = next.take() {
            if let Err(error) = self.turn(store, &task, lock, report) {
                report.fail(error);
                self.leave_alone(task.id, None);
            }
            if self.quota.spent() || report.lost_database {
                return;
            }
            match self.next(store) {
                Ok(due) => next = due,
                Err(error) => report.fail(error.context("look for the next due task")),
            }
        }
    }

    /// The next due task, and if there is none, the next whose channel's pace comes to it within this run.
    fn next(&self, store: &mut dyn Store) -> Result<Option<Task>> {
        while !self.stop.asked() {
            let (left_alone, next) = self.left_alone();
            if let Some(task) = store.due(&self.hours.open(), &left_alone)? {
                return Ok(Some(task));
            }
            let Some(next) = next.filter(|next| *next < self.stop.begins_until()) else { break };
            // Other tasks may become due meanwhile, and this run holds the lock.
            let look = next.min(Moment::now() + LOOK);
            while !look.passed() && !self.stop.asked() {
                std::thread::sleep(TICK.min(look.left()));
            }
        }
        Ok(None)
    }

    /// One task, for as long as its turn lasts.
    fn turn(
        &self,
        store: &mut dyn Store,
        task: &Task,
        lock: &mut Option<Arc<RunLock>>,
        report: &mut Report,
    ) -> Result<()> {
        let _about = logger::about(task.id, None);
        let channel = self.channel(task)?;
        let lease = match store.lease(task.id, &self.terms(channel), false)? {
            Leasing::Ours(lease) => lease,
            Leasing::Held { owner, token } => {
                log::debug!("held by {owner} (token {token})");
                return Ok(());
            }
            Leasing::Closed(why) => {
                log::debug!("{why}");
                return Ok(());
            }
        };
        let began = Moment::now();
        let mut turn_over = |store: &mut dyn Relay| {
            if began.elapsed() < self.config.run.turn {
                return Ok(false);
            }
            let (mut besides, _) = self.left_alone();
            besides.push(task.id);
            Ok(store.due(&self.hours.open(), &besides)?.is_some_and(|other| other.priority >= task.priority))
        };
        // Once this lane begins nothing more, the next minute's run may start beside what is still in flight.
        let mut last_begun = || {
            if self.stop.asked() {
                lock.take();
            }
        };
        let until = self.stop.begins_until().min(began + self.config.run.turn);
        self.serve(store, task, channel, lease, until, &mut turn_over, &mut last_begun, report);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn serve(
        &self,
        store: &mut dyn Store,
        task: &Task,
        channel: &Open<'_>,
        mut lease: Lease,
        slots_until: Moment,
        turn_over: &mut dyn FnMut(&mut dyn Relay) -> Result<bool>,
        last_begun: &mut dyn FnMut(),
        report: &mut Report,
    ) {
        let settings = channel.channel;
        if let Some(recipient) = &settings.redirect_to {
            channel.redirected.call_once(|| {
                log::warn!(recipient = recipient.as_str(); "channel {}: everything goes to {recipient} (`redirect_to`)", settings.name);
            });
        }
        let renderer = settings.renderer(self.installation, task);
        let closes = self.hours.closes(settings);
        let mut turn = self.telling.turn(&settings.name).map(RefCell::new);
        let orders = Orders {
            channel: &settings.name,
            sender: channel.sender,
            policy: &settings.policy,
            render: &|target| renderer.render(target),
            concurrency: settings.concurrency,
            ahead: settings.ahead,
            batch: self.config.run.batch_size,
            pace: settings.pace.as_ref(),
            slots_until: closes.map_or(slots_until, |closes| slots_until.min(closes)),
            closes,
            host: &self.host,
            stop: self.stop,
            quota: &self.quota,
            journal: self.journal,
            seen: &|served| {
                if let Some(turn) = &turn {
                    turn.borrow_mut().seen(served);
                }
            },
        };
        let mut tally =
            self.tallies.lock().unwrap_or_else(PoisonError::into_inner).remove(&task.id).unwrap_or_default();
        log::info!(channel = settings.name.as_str(); "leased");
        let served = delivery::serve(store, &mut lease, &orders, &mut tally, turn_over, last_begun);
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner).insert(task.id, tally);
        if let Some(turn) = turn.take() {
            turn.into_inner().end(&served);
        }
        match served.ended {
            Some(Ended::Paced(wait)) => self.leave_alone(task.id, Some(Moment::now() + wait)),
            _ if served.begun + served.refused + served.unknown == 0 => self.leave_alone(task.id, None),
            _ => {}
        }
        report.served(task.id, served);
        close(store, lease, task.id, report);
    }

    fn channel(&self, task: &Task) -> Result<&Open<'a>> {
        self.channels
            .get(task.channel.as_str())
            .with_context(|| format!("channel {} is not configured", task.channel))
    }

    /// Until this moment, or for the rest of this run.
    fn leave_alone(&self, task: TaskId, until: Option<Moment>) {
        self.left_alone.lock().unwrap_or_else(PoisonError::into_inner).insert(task, until);
    }

    /// The tasks that are not to be served now, and when the first of them may be.
    fn left_alone(&self) -> (Vec<TaskId>, Option<Moment>) {
        let mut left_alone = self.left_alone.lock().unwrap_or_else(PoisonError::into_inner);
        left_alone.retain(|_, until| until.is_none_or(|until| until.left() > SOON));
        (left_alone.keys().copied().collect(), left_alone.values().copied().flatten().min())
    }

    fn terms(&self, open: &Open<'_>) -> Terms {
        let channel = open.channel;
        // With targets begun ahead, the last of them waits for its worker.
        let waits = channel.ahead.div_ceil(channel.concurrency) as u32;
        Terms {
            owner: who::process(),
            channel: channel.name.clone(),
            lease: self.config.run.lease,
            send: channel.longest() * (1 + waits),
            margin: MARGIN,
            dedupe: channel.policy.idempotent_for,
        }
    }
}

fn close(store: &mut dyn Store, lease: Lease, task: TaskId, report: &mut Report) {
    if report.lost_database {
        // The lease ends by itself.
        return;
    }
    match store.close(lease) {
        Ok(Closed::Finished) => report.finished(task),
        Ok(Closed::Paused(reason)) => report.paused(task, &reason, ""),
        Ok(Closed::Open | Closed::Lost) => {}
        Err(error) => report.fail(error.context(format!("close task {task}"))),
    }
}
