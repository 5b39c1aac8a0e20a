//! `run --dry-run`: what would be sent, and to whom, rendered, one message a line. Claims nothing and writes nothing.

use std::io::Write;

use anyhow::{Result, anyhow};
use uuid::Uuid;

use crate::cli::RunArgs;
use crate::config::{Channel, Config};
use crate::exit::Exit;
use crate::store::{Database, Store};
use crate::target::Target;
use crate::task::{Task, TaskId};

/// Targets that are shown of each task, unless `--limit` says otherwise.
const SHOWN: usize = 10;

pub fn dry_run(config: &Config, database: &Database, args: &RunArgs, out: &mut dyn Write) -> Result<Exit> {
    let mut store = database.store()?;
    let installation = super::super::installation(&mut *store)?;
    let mut more = Vec::new();
    let most = args.limit.map_or(SHOWN, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    if let Some(id) = args.task_id {
        let task = store.task(id)?.ok_or_else(|| super::super::no_such_task(id))?;
        let Some(channel) = config.channels.get(&task.channel) else {
            return Err(anyhow!(super::super::no_such_channel(&task)));
        };
        let targets = match args.target {
            Some(target) => {
                vec![store.target(id, target)?.ok_or_else(|| super::super::no_such_target(id, target))?]
            }
            None => peek(&mut *store, id, most, &mut more)?,
        };
        let exit = show(targets, installation, &task, channel, out)?;
        say_of(&more, args.limit);
        return Ok(exit);
    }
    let known: Vec<&str> = config.channels.keys().map(String::as_str).collect();
    let mut shown = Vec::new();
    let mut exit = Exit::Done;
    while let Some(task) = store.due(&known, &shown)? {
        shown.push(task.id);
        if let Some(channel) = config.channels.get(&task.channel)
            && show(peek(&mut *store, task.id, most, &mut more)?, installation, &task, channel, out)?
                != Exit::Done
        {
            exit = Exit::Trouble;
        }
    }
    say_of(&more, args.limit);
    Ok(exit)
}

/// The first targets of a task that would be sent. One that has more is put to those in `more`.
fn peek(store: &mut dyn Store, task: TaskId, most: usize, more: &mut Vec<TaskId>) -> Result<Vec<Target>> {
    let mut targets = store.peek(task, most.saturating_add(1))?;
    if targets.len() > most {
        targets.truncate(most);
        more.push(task);
    }
    Ok(targets)
}

/// That not all was shown, unless somebody said how much to show. On stderr: stdout is messages alone.
fn say_of(more: &[TaskId], limit: Option<u64>) {
    let tasks = match more {
        [] => return,
        [task] => format!("task {task}"),
        [first, others @ ..] => format!("task {first} and {} more", others.len()),
    };
    if limit.is_none() {
        log::warn!("only the first {SHOWN} targets of {tasks} are shown: `--limit N` says how many of each");
    }
}

fn show(
    targets: Vec<Target>,
    installation: Uuid,
    task: &Task,
    channel: &Channel,
    out: &mut dyn Write,
) -> Result<Exit> {
    let renderer = channel.renderer(installation, task);
    let mut exit = Exit::Done;
    for target in targets {
        match renderer.render(&target) {
            Ok(message) => out.write_all(&message.line()?)?,
            Err(error) => {
                log::error!("task {}, target {}: {error:#}", task.id, target.id);
                exit = Exit::Trouble;
            }
        }
    }
    Ok(exit)
}
