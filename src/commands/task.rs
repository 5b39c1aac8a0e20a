//! `task`: a task is created, given targets, and moved along by a person. What moves its targets is a run.

use std::borrow::Cow;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

use super::ask::Ask;
use super::import::{Source, unfit};
use super::output::{hint, plain, targets};
use super::screen::Screen;
use super::{no_such_task, status, trial};
use crate::cli::{
    AddArgs, CancelArgs, CreateArgs, JsonArgs, PauseArgs, ResumeArgs, StatusArgs, TaskCommand, Until,
};
use crate::config::Config;
use crate::exit::Exit;
use crate::store::{Act, Added, Desk, Expiry, NAME_MOST, Store, Turned};
use crate::task::{NewTask, TaskId, TaskStatus, When, show_time};
use crate::trouble::Trouble;
use crate::who;

pub fn run(
    command: &TaskCommand,
    config: &Config,
    store: &mut dyn Store,
    screen: &Screen,
    out: &mut dyn Write,
) -> Result<Exit> {
    let (id, status, json) = match command {
        TaskCommand::Create(args) => return create(args, config, store, out),
        TaskCommand::Add(args) => return add(args, store, out),
        TaskCommand::List(JsonArgs { json }) => {
            let args = StatusArgs { json: *json, ..StatusArgs::default() };
            return status::run(&args, config, store, screen, out);
        }
        TaskCommand::Start(args) => (args.id, START.turn(args.id, store, None, Expiry::Keep)?, args.json),
        TaskCommand::Pause(args) => (args.id, pause(args, store)?, args.json),
        TaskCommand::Resume(args) => (args.id, resume(args, store)?, args.json),
        TaskCommand::Cancel(args) => (args.id, cancel(args, store)?, args.json),
        TaskCommand::Try(args) => return trial::run(args, config, store, out),
    };
    if json {
        writeln!(out, "{}", json!({ "id": id, "status": status.word() }))?;
    } else {
        writeln!(out, "task {id} is {}", status.word())?;
    }
    Ok(Exit::Done)
}

fn create(args: &CreateArgs, config: &Config, store: &mut dyn Store, out: &mut dyn Write) -> Result<Exit> {
    let payload = args.payload.as_deref().map(payload).transpose()?;
    check(args, config)?;
    if let Some(expires) = args.expires {
        let starts = args.at.map(|at| ("--at", at));
        outlives("--expires", expires, starts, store.now()?)?;
    }
    let source = args.targets.as_deref().map(|file| Source::open("--targets", file)).transpose()?;
    let task = NewTask {
        name: &args.name,
        channel: &args.channel,
        payload: payload.as_deref(),
        priority: args.priority,
        scheduled: args.at,
        expires: args.expires,
    };
    let mut added = Added::default();
    let mut status = TaskStatus::Draft;
    let id = match (source, args.targets.as_deref()) {
        (Some(source), Some(file)) => {
            let id;
            (id, added) = create_with(&task, source, file, store)?;
            if !args.draft {
                status = START.turn(id, store, None, Expiry::Keep)?;
            }
            id
        }
        _ => store.create(&task)?,
    };

    let line = if args.json { shown(id, status, added).to_string() } else { id.to_string() };
    // Whoever cannot be told the id must not create the task once more.
    let told = writeln!(out, "{line}").and_then(|()| out.flush());
    told.with_context(|| {
        format!("task {id} was made and is {}, but its id cannot be written", status.word())
    })?;
    if added.repeated > 0 {
        hint(&format!("{} of the file were repeats and are merged", targets(added.repeated)));
    }
    if status == TaskStatus::Draft {
        let add =
            if args.targets.is_none() { format!("batch-send task add {id} FILE\n  ") } else { "".into() };
        hint(&format!("task {id} is in draft; next:\n  {add}batch-send task start {id}"));
    }
    Ok(Exit::Done)
}

/// What clap cannot know.
fn check(args: &CreateArgs, config: &Config) -> Result<()> {
    if args.name.trim().is_empty() {
        bail!(Trouble::usage("--name is empty"));
    }
    if args.name.chars().count() > NAME_MOST {
        bail!(Trouble::usage(format!("--name is longer than {NAME_MOST} characters")));
    }
    if !config.channels.contains_key(&args.channel) {
        let channel = plain(&args.channel);
        let known: Vec<&str> = config.channels.keys().map(String::as_str).collect();
        bail!(Trouble::usage(match known.as_slice() {
            [] => format!(
                "the configuration has no channel: add [channel.{channel}], beginning with its `kind`"
            ),
            _ => format!("no channel `{channel}` in the configuration, only: {}", known.join(", ")),
        }));
    }
    Ok(())
}

/// That a task's end comes after now, by the clock of the database, which decides, and after its start.
fn outlives(option: &str, end: When, start: Option<(&str, When)>, now: DateTime<Utc>) -> Result<()> {
    // What is too far away for the calendar is for the store to refuse.
    let at = |when| match when {
        When::At(at) => Some(at),
        When::In(wait) => now.checked_add_signed(TimeDelta::from_std(wait).ok()?),
    };
    let Some(ends) = at(end) else { return Ok(()) };
    if let Some((name, start)) = start
        && at(start).is_some_and(|starts| ends <= starts)
    {
        bail!(Trouble::usage(format!("{option} is not after {name}: nothing would be sent")));
    }
    if ends <= now {
        bail!(Trouble::usage(format!(
            "{option} {} is past, by the clock of the database, where it is {}: nothing would be sent; name a later time",
            show_time(&ends),
            show_time(&now)
        )));
    }
    Ok(())
}

/// A task, once its first targets are there: a file of which nothing can be used leaves none behind.
fn create_with(
    task: &NewTask<'_>,
    source: Source,
    file: &Path,
    store: &mut dyn Desk,
) -> Result<(TaskId, Added)> {
    let mut made = None;
    let imported = source.import(&mut |rows| {
        let id = match made {
            Some(id) => id,
            None => *made.insert(store.create(task)?),
        };
        store.add(id, rows)
    });
    let Some(id) = made else {
        let name = plain(&file.to_string_lossy()).into_owned();
        let nothing = imported?.flaw.unwrap_or_else(|| format!("no target in {name}"));
        bail!(Trouble::usage(format!("--targets: {nothing}; no task was made")));
    };
    let imported = imported.with_context(|| incomplete(id, file))?;
    let Some(flaw) = imported.flaw else { return Ok((id, imported.added)) };
    let before = targets(imported.added.new + imported.added.repeated);
    bail!(Trouble::usage(format!(
        "{flaw}; task {id} stays in draft with the {before} before it: `batch-send task cancel {id}` is rid of it, \
         `batch-send task start {id}` sends it once it is whole: mend the line and complete it with `{}`",
        add_command(id, file)
    )))
}

fn incomplete(id: TaskId, file: &Path) -> String {
    format!("task {id} is incomplete until `{}` succeeds", add_command(id, file))
}

/// JSON, or @FILE with JSON in it.
fn payload(text: &str) -> Result<Cow<'_, str>> {
    let (name, json) = match text.strip_prefix('@') {
        None => (Cow::Borrowed("--payload"), Cow::Borrowed(text)),
        Some(file) => {
            let read = fs::read_to_string(file)
                .with_context(|| Trouble::usage(format!("read the payload from {}", plain(file))))?;
            (plain(file), Cow::Owned(read.trim_start_matches('\u{feff}').to_owned()))
        }
    };
    let value = serde_json::from_str(&json)
        .map_err(|error| Trouble::usage(format!("{name} is not JSON: {}", plain(&error.to_string()))))?;
    match unfit(&value) {
        Some(why) => bail!(Trouble::usage(format!("{name} is {why}"))),
        None => Ok(json),
    }
}

fn add(args: &AddArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let id = args.id;
    let status = store.task(id)?.ok_or_else(|| no_such_task(id))?.status;
    if status == TaskStatus::Cancelled {
        bail!(refused(id, status));
    }
    let was_finished = status == TaskStatus::Finished;
    let source = Source::open("the file", &args.targets)?;
    let added = import(id, source, &args.targets, store)?;
    let status = store.task(id)?.ok_or_else(|| no_such_task(id))?.status;
    if args.json {
        writeln!(out, "{}", shown(id, status, added))?;
    } else {
        writeln!(out, "{} added, {} repeated", targets(added.new), added.repeated)?;
    }
    match status {
        TaskStatus::Draft => hint(&format!("task {id} is in draft; next:\n  batch-send task start {id}")),
        TaskStatus::Pending if was_finished => {
            hint(&format!("task {id} was finished and is pending again: the next run sends what was added"));
        }
        _ => {}
    }
    Ok(Exit::Done)
}

/// The public form of what `create` and `add` did.
fn shown(id: TaskId, status: TaskStatus, added: Added) -> serde_json::Value {
    json!({ "id": id, "status": status.word(), "new": added.new, "repeated": added.repeated })
}

/// Reads `source` into the task. What came before a bad line is in, and the sentence ends with the command that completes it.
fn import(id: TaskId, source: Source, file: &Path, store: &mut dyn Desk) -> Result<Added> {
    let again = add_command(id, file);
    let imported = source.import(&mut |rows| store.add(id, rows)).with_context(|| incomplete(id, file))?;
    let Some(flaw) = imported.flaw else { return Ok(imported.added) };
    let before = targets(imported.added.new + imported.added.repeated);
    bail!(Trouble::usage(format!(
        "{flaw}; task {id} keeps the {before} before it: mend the line and complete it with `{again}`"
    )))
}

fn add_command(id: TaskId, file: &Path) -> String {
    format!("batch-send task add {id} {}", shell_word(&file.to_string_lossy()))
}

/// As a shell reads it back.
fn shell_word(text: &str) -> String {
    let safe = |c: char| c.is_alphanumeric() || "-_./+:,@%".contains(c);
    if !text.is_empty() && text.chars().all(safe) {
        return text.to_owned();
    }
    format!("'{}'", plain(&text.replace('\'', "'\\''")))
}

/// A verb that moves a task from one status to another.
struct Verb {
    what: &'static str,
    from: &'static [TaskStatus],
    to: TaskStatus,
}

const START: Verb = Verb { what: "start", from: &[TaskStatus::Draft], to: TaskStatus::Pending };
/// Also from a pause that stands: a forced run that passes it stops at this one.
const PAUSE: Verb =
    Verb { what: "pause", from: &[TaskStatus::Pending, TaskStatus::Paused], to: TaskStatus::Paused };
const RESUME: Verb = Verb { what: "resume", from: &[TaskStatus::Paused], to: TaskStatus::Pending };
const CANCEL: Verb = Verb {
    what: "cancel",
    from: &[TaskStatus::Draft, TaskStatus::Pending, TaskStatus::Paused],
    to: TaskStatus::Cancelled,
};

impl Verb {
    /// Where it stands already there is nothing to do.
    fn turn(
        &self,
        id: TaskId,
        store: &mut dyn Desk,
        reason: Option<&str>,
        expiry: Expiry,
    ) -> Result<TaskStatus> {
        let act = Act { who: &who::person(), what: self.what, why: reason };
        match store.turn(id, self.from, self.to, reason, expiry, &act)? {
            Turned::From(_) => Ok(self.to),
            Turned::Refused(status) if status == self.to => Ok(status),
            Turned::Refused(status) => Err(refused(id, status)),
            Turned::NoSuchTask => Err(no_such_task(id)),
        }
    }
}

/// The status, and the verb that fits.
fn refused(id: TaskId, status: TaskStatus) -> anyhow::Error {
    let way = match status {
        TaskStatus::Draft => format!("use `batch-send task start {id}`"),
        TaskStatus::Pending => format!("use `batch-send task pause {id}`"),
        TaskStatus::Paused => format!("use `batch-send task resume {id}`"),
        TaskStatus::Finished => {
            format!("nothing is left of it; `batch-send task add {id} FILE` gives it more targets")
        }
        TaskStatus::Cancelled => "that is for good; `batch-send task create` makes another".into(),
    };
    Trouble::usage(format!("task {id} is {}: {way}", status.word())).into()
}

fn pause(args: &PauseArgs, store: &mut dyn Desk) -> Result<TaskStatus> {
    let stands = store.task(args.id)?.filter(|task| task.status == TaskStatus::Paused);
    let reason = args.reason.clone().or_else(|| stands?.status_reason);
    let reason = reason.unwrap_or_else(|| format!("by {}", who::person()));
    PAUSE.turn(args.id, store, Some(&reason), Expiry::Keep)
}

fn resume(args: &ResumeArgs, store: &mut dyn Store) -> Result<TaskStatus> {
    let id = args.id;
    if let Some(Until::Time(when)) = args.until {
        outlives("--until", when, None, store.now()?)?;
    }
    let expiry = match args.until {
        None => Expiry::Keep,
        Some(Until::Never) => Expiry::Never,
        Some(Until::Time(when)) => Expiry::Until(when),
    };
    let task = store.task(id)?.ok_or_else(|| no_such_task(id))?;
    match (task.status, args.until, task.expires_at) {
        (TaskStatus::Paused, None, Some(end)) if task.expired => bail!(Trouble::usage(format!(
            "task {id} expired at {}, and the next run would pause it again: give it a new end with `batch-send task resume {id} --until TIME|never`",
            show_time(&end)
        ))),
        (TaskStatus::Pending, Some(_), _) => bail!(Trouble::usage(format!(
            "task {id} is pending, and its end is changed while it is paused: use `batch-send task pause {id}` first"
        ))),
        _ => RESUME.turn(id, store, None, expiry),
    }
}

fn cancel(args: &CancelArgs, store: &mut dyn Desk) -> Result<TaskStatus> {
    let person = Ask::person(args.yes, "cancel")?;
    let id = args.id;
    let task = store.task(id)?.ok_or_else(|| no_such_task(id))?;
    if CANCEL.from.contains(&task.status) {
        let question =
            format!("End task {id} ({}) for good? What was not sent stays unsent.", plain(&task.name));
        person.agrees(&question)?;
    }
    CANCEL.turn(id, store, None, Expiry::Keep)
}
