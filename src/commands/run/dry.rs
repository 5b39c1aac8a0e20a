//! `run --dry-run`: what would be sent, and to whom, rendered, one message a line. Claims nothing and writes nothing.

use std::io::Write;

use anyhow::{Result, anyhow};
use uuid::Uuid;

use crate::cli::RunArgs;
use crate::config::{Channel, Config};
use crate::exit::Exit;
use crate::store::Database;
use crate::target::Target;
use crate::task::Task;

/// Targets that are shown of each task, unless `--limit` says otherwise.
const SHOWN: usize = 10;

pub fn dry_run(config: &Config, database: &Database, args: &RunArgs, out: &mut dyn Write) -> Result<Exit> {
    let mut store = database.store()?;
    let installation = super::super::installation(&mut *store)?;
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
            None => store.peek(id, most)?,
        };
        return show(targets, installation, &task, channel, out);
    }
    let known: Vec<&str> = config.channels.keys().map(String::as_str).collect();
    let mut shown = Vec::new();
    let mut exit = Exit::Done;
    while let Some(task) = store.due(&known, &shown)? {
        shown.push(task.id);
        if let Some(channel) = config.channels.get(&task.channel)
            && show(store.peek(task.id, most)?, installation, &task, channel, out)? != Exit::Done
        {
            exit = Exit::Trouble;
        }
    }
    Ok(exit)
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
