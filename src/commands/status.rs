//! `status` and `task list`: tasks as they stand now, with what needs a person and the command that settles it. It only reads:
//! what a dead run left is shown as what the next run will make of it. How a task stands is decided in status/state.rs; how it
//! is shown is in list.rs (all, a line each), full.rs (one) and shape.rs (JSON); watch.rs looks again and again, and
//! conditions.rs answers a monitor.

mod conditions;
mod full;
mod grid;
mod list;
mod shape;
mod state;
mod watch;

use std::io::Write;

use anyhow::Result;
use chrono::{DateTime, Utc};

pub use self::state::span;
use self::state::{Circumstances, Standing, State, Times};
use super::no_such_task;
use super::output::targets;
use super::screen::Screen;
use crate::cli::StatusArgs;
use crate::config::Config;
use crate::course::Gate;
use crate::exit::Exit;
use crate::store::Desk;
use crate::task::{Counts, Task, TaskId, TaskStatus};

/// What a pending task waits for, in words, as far as its row and this host's configuration say; None: nothing.
pub fn waits_for(task: &Task, config: &Config, now: DateTime<Utc>) -> Option<String> {
    let state = Standing::of(task, &Counts::default(), None, &here(task, config, now, None)).state;
    matches!(state, State::Waiting(_) | State::Expired).then(|| state.text(Times::Whole))
}

/// What is to be known of this host to judge a task.
fn here<'a>(task: &Task, config: &'a Config, now: DateTime<Utc>, at_work: Option<i16>) -> Circumstances<'a> {
    let channel = config.channels.get(&task.channel);
    Circumstances {
        now,
        at_work,
        known: channel.is_some(),
        window: channel.and_then(|channel| channel.window.as_ref()),
        budget: config.run.budget,
    }
}

pub fn run(
    args: &StatusArgs,
    config: &Config,
    store: &mut dyn Desk,
    screen: &Screen,
    out: &mut dyn Write,
) -> Result<Exit> {
    if args.watch {
        return watch::run(args, config, store, screen, out);
    }
    let survey = Survey::read(args, config, store)?;
    match args.id {
        _ if args.json => shape::json(&survey, args.id, out)?,
        Some(id) => write(out, &full::lines(&survey, &store.details(id, args.exact)?, screen))?,
        None => write(out, &list::lines(&survey, screen))?,
    }
    conditions::answer(&args.fail_if, &survey)
}

fn write(out: &mut dyn Write, lines: &[String]) -> Result<()> {
    Ok(lines.iter().try_for_each(|line| writeln!(out, "{line}"))?)
}

/// All tasks that are asked for, newest first, at one time of the database's clock.
struct Survey {
    now: DateTime<Utc>,
    tasks: Vec<Seen>,
}

struct Seen {
    task: Task,
    counts: Counts,
    standing: Standing,
    gate: Gate,
}

impl Survey {
    /// Errors: no such task.
    fn read(args: &StatusArgs, config: &Config, store: &mut dyn Desk) -> Result<Self> {
        let tasks = store.tasks(args.id, args.exact)?;
        if let (Some(id), true) = (args.id, tasks.is_empty()) {
            return Err(no_such_task(id));
        }
        let courses = store.courses(args.id)?;
        let see = |(task, counts): (Task, Counts)| {
            let here = here(&task, config, courses.now, courses.at_work);
            let course = courses.of.get(&task.id);
            let standing = Standing::of(&task, &counts, course, &here);
            Seen { standing, gate: course.map_or(Gate::default(), |course| course.gate), task, counts }
        };
        Ok(Self { now: courses.now, tasks: tasks.into_iter().map(see).collect() })
    }

    /// Off a terminal times are whole.
    fn times(&self, screen: &Screen) -> Times {
        if screen.size.is_some() { Times::Short(self.now) } else { Times::Whole }
    }
}

impl Seen {
    /// Those that wait for a person, and the command that settles them.
    fn doubt(&self) -> Option<String> {
        let (id, unknown) = (self.task.id, self.counts.unknown);
        (unknown > 0).then(|| {
            format!(
                "{} unknown: `batch-send targets {id} --status unknown` lists them, `batch-send resolve {id} --all --as VERDICT` (sent, failed or retry) settles them",
                targets(unknown)
            )
        })
    }

    /// Those that failed, for good unless somebody asks for more.
    fn failures(&self) -> u64 {
        if self.task.status == TaskStatus::Cancelled { 0 } else { self.counts.failed }
    }

    /// What else there is to be known of it, and what leads on.
    fn notes(&self) -> Vec<String> {
        let (id, counts) = (self.task.id, &self.counts);
        let mut notes = Vec::new();
        if counts.overdue > 0 {
            notes.push(format!(
                "{} sending, of a run that died: unknown at the next run",
                targets(counts.overdue)
            ));
        }
        if self.task.status == TaskStatus::Finished && counts.left() > 0 {
            notes.push(format!(
                "{} left, since an application added to it after its end: within an hour of it the next run sends them, \
                 later `batch-send run --task-id {id}`",
                targets(counts.left())
            ));
        }
        if counts.invalid > 0 {
            let number = targets(counts.invalid);
            notes
                .push(format!("{number} whose status is no word of this version: to be mended in the table"));
        }
        if matches!(self.standing.state, State::Stalled(_)) {
            notes.push("no run takes it: `batch-send run -v` sends it, or says why not".into());
        }
        if self.stranger() {
            notes.push(format!(
                "channel {} is not in this host's configuration: another host's may have it, or one of the two is misspelt",
                self.task.channel
            ));
        }
        notes
    }

    /// Nobody on this host can send it.
    fn stranger(&self) -> bool {
        let open = matches!(self.task.status, TaskStatus::Draft | TaskStatus::Pending | TaskStatus::Paused);
        open && !self.standing.known && !matches!(self.standing.state, State::Running(_))
    }
}

/// What is to be known of the channels that are held, each once: they pause nothing and make no run fail, and yet nothing leaves.
fn held(seen: &[Seen], times: Times) -> Vec<String> {
    let mut channels: Vec<&str> = Vec::new();
    let mut notes = Vec::new();
    for Seen { task, gate, .. } in seen {
        let Some(until) = task.held_until.filter(|_| task.status == TaskStatus::Pending) else { continue };
        if !channels.contains(&task.channel.as_str()) {
            channels.push(&task.channel);
            let times_in_a_row =
                if gate.holds > 1 { format!(", {} times in a row", gate.holds) } else { String::new() };
            notes.push(format!(
                "channel {} is held until {}{times_in_a_row}: it cannot be reached, or asked to be left alone; nothing is lost",
                task.channel,
                times.at(&until)
            ));
        }
    }
    notes
}

/// A number, and whether it is only about so many.
fn number(number: u64, counts: &Counts) -> String {
    if counts.estimated { format!("~{number}") } else { number.to_string() }
}

/// The number of a task, and those of others: "task 7", "tasks 7, 9 and 12".
fn tasks(ids: &[TaskId]) -> String {
    const NAMED: usize = 10;
    let named: Vec<String> = ids.iter().take(NAMED).map(TaskId::to_string).collect();
    match (named.as_slice(), ids.len().saturating_sub(NAMED)) {
        ([one], _) => format!("task {one}"),
        ([rest @ .., last], 0) => format!("tasks {} and {last}", rest.join(", ")),
        (all, more) => format!("tasks {} and {more} more", all.join(", ")),
    }
}
