//! `run --dry-run`: what would be sent, and to whom, rendered, one message a line. Claims nothing and writes nothing.

use std::io::Write;

use anyhow::{Result, anyhow};
use uuid::Uuid;

use crate::cli::RunArgs;
use crate::config::{Channel, Config};
use crate::exit::Exit;
use crate::store::{Database, Store};
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
        return show(&mut *store, installation, &task, channel, most, out);
    }
    let known: Vec<&str> = config.channels.keys().map(String::as_str).collect();
    let mut shown = Vec::new();
    let mut exit = Exit::Done;
    while let Some(task) = store.due(&known, &shown)? {
        shown.push(task.id);
        if let Some(channel) = config.channels.get(&task.channel)
            && show(&mut *store, installation, &task, channel, most, out)? != Exit::Done
        {
            exit = Exit::Trouble;
        }
    }
    Ok(exit)
}

fn show(
    store: &mut dyn Store,
    installation: Uuid,
    task: &Task,
    channel: &Channel,
    most: usize,
    out: &mut dyn Write,
) -> Result<Exit> {
    let renderer = channel.renderer(installation, task);
    let mut exit = Exit::Done;
    for target in store.peek(task.id, most)? {
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
