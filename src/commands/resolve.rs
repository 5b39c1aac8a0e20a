//! `resolve`: a person's word on targets of which nobody knows whether they were delivered.

use std::io::Write;

use anyhow::Result;

use super::ask::Ask;
use super::choose::Choice;
use super::no_such_task;
use super::output::{changed, plain, targets};
use crate::cli::{ResolveArgs, ResolveAs};
use crate::exit::Exit;
use crate::store::{Act, Store, Verdict};
use crate::target::TargetStatus;
use crate::who;

/// Settles those that are unknown, and names those of the chosen that are not (exit 1).
pub fn run(args: &ResolveArgs, store: &mut dyn Store, out: &mut dyn Write) -> Result<Exit> {
    let person = Ask::person(args.yes, "resolve")?;
    let id = args.id;
    let Some(task) = store.task(id)? else { return Err(no_such_task(id)) };
    let choice = Choice::of(&args.which)?;
    // What a dead run left in `sending` becomes unknown, and is settled with the others.
    store.recover(Some(id))?;

    let (verdict, done) = match args.verdict {
        ResolveAs::Sent => (Verdict::Sent, "settled as sent"),
        ResolveAs::Failed => (Verdict::Failed, "settled as failed"),
        ResolveAs::Retry => (Verdict::Retry, "to be sent again"),
    };
    let (who, name) = (who::person(), plain(&task.name));
    // The account names the verdict, too.
    let why = match &args.reason {
        Some(reason) => format!("{done}: {reason}"),
        None => done.to_owned(),
    };
    let act = Act { who: &who, what: "resolve", why: Some(&why) };
    let mut agree = |number: Option<u64>| {
        let number = number.map_or("The targets on standard input".into(), targets);
        person.agrees(&format!("{number} of task {id} ({name}): {done}?"))
    };
    let Some(choice) = choice else {
        let (_, counts) = store.tasks(Some(id), true)?.pop().ok_or_else(|| no_such_task(id))?;
        let mut settled = 0;
        if counts.unknown > 0 {
            agree(Some(counts.unknown))?;
            settled = store.resolve(id, None, verdict, &act)?;
        }
        changed(id, settled, done, args.json, out)?;
        return Ok(Exit::Done);
    };
    let unknown = TargetStatus::Unknown;
    let settled = choice.act(store, id, unknown, &mut agree, &mut |store, these| {
        store.resolve(id, Some(these), verdict, &act)
    })?;
    changed(id, settled.changed, done, args.json, out)?;
    settled.named(id, unknown)?;
    Ok(Exit::Done)
}
