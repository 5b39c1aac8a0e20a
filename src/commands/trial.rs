//! `task try`: the message of one target, sent to somebody else to look at, outside of the task: no row is touched, and its key is
//! its own, so that no provider takes the real message for a repeat of it.

use std::io::Write;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use uuid::Uuid;

use super::import::unfit_recipient;
use super::output::plain;
use super::{installation, no_such_channel, no_such_target, no_such_task};
use crate::cli::TryArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::moment::Moment;
use crate::sender::{self, Outcome};
use crate::store::Desk;
use crate::target::{Target, TargetId};
use crate::task::TaskId;
use crate::trouble::Trouble;

pub fn run(args: &TryArgs, config: &Config, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let to = args.to.trim();
    if let Some(why) = unfit_recipient(to) {
        bail!(Trouble::usage(format!("--to: {why}")));
    }
    let id = args.id;
    let task = store.task(id)?.ok_or_else(|| no_such_task(id))?;
    let channel = config.channels.get(&task.channel).ok_or_else(|| anyhow!(no_such_channel(&task)))?;
    let target = target(args.target, id, store)?;
    let renderer = channel.renderer(installation(store)?, &task);
    let message = renderer
        .render_as(&target, Uuid::new_v4(), to)
        .with_context(|| format!("task {id}, target {}", target.id))?;
    let sender = channel.sender(1)?;
    if let Some(instead) = &channel.redirect_to {
        log::warn!(
            "channel {}: it goes to {}, not to {} (`redirect_to`)",
            channel.name,
            plain(instead),
            plain(to)
        );
    }
    let outcome = sender::send(&*sender, &message, Moment::now() + channel.longest());
    let (word, said) = match &outcome {
        Outcome::Accepted { receipt } => ("accepted", receipt.as_deref()),
        Outcome::Deferred { reason, .. } => ("deferred", Some(reason.as_str())),
        Outcome::Rejected { reason } => ("rejected", Some(reason.as_str())),
        Outcome::Unknown { reason } => ("unknown", Some(reason.as_str())),
        Outcome::Unavailable { reason } => ("unavailable", Some(reason.as_str())),
    };
    let accepted = matches!(outcome, Outcome::Accepted { .. });
    if args.json {
        let key = if accepted { "receipt" } else { "reason" };
        writeln!(out, "{}", json!({ "outcome": word, key: said }))?;
    } else {
        let before = if accepted { ", receipt " } else { ": " };
        let said = said.map_or(String::new(), |said| format!("{before}{}", plain(said)));
        writeln!(out, "{word}{said}")?;
    }
    let name = &channel.name;
    match outcome {
        Outcome::Accepted { .. } => Ok(Exit::Done),
        Outcome::Deferred { .. } => bail!("channel {name} did not take the message now; later it may"),
        Outcome::Rejected { .. } => {
            bail!("channel {name} did not take the message, and would not take it later")
        }
        Outcome::Unknown { .. } => bail!("channel {name} gave no clear answer: the message may have arrived"),
        Outcome::Unavailable { .. } => {
            bail!(
                "channel {name} did not take the message: the channel is at fault, and would pause the task"
            )
        }
    }
}

/// The one asked for; else the first that a run would send; else the first there is.
fn target(asked: Option<TargetId>, task: TaskId, store: &mut dyn Desk) -> Result<Target> {
    if let Some(id) = asked {
        return store.target(task, id)?.ok_or_else(|| no_such_target(task, id));
    }
    if let Some(target) = store.peek(task, 1)?.pop() {
        return Ok(target);
    }
    let mut first = None;
    let looked = store.targets(task, &[], &mut |row| {
        first = Some(row.id);
        bail!("one is enough")
    });
    let Some(id) = first else {
        looked?;
        bail!(Trouble::usage(format!(
            "task {task} has no target yet: `batch-send task add {task} FILE` gives it some"
        )));
    };
    store.target(task, id)?.ok_or_else(|| no_such_target(task, id))
}
