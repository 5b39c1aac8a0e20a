//! `resolve`: a person's word on targets of which nobody knows whether they were delivered.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::{Result, bail};

use super::ask::Ask;
use super::no_such_task;
use super::output::{changed, plain, targets};
use crate::cli::{ResolveArgs, ResolveAs};
use crate::exit::Exit;
use crate::store::{Act, Store, Verdict};
use crate::target::{TargetId, TargetStatus};
use crate::who;

/// Settles those that are unknown, and names those of the ids asked for that are not (exit 1).
pub fn run(args: &ResolveArgs, store: &mut dyn Store, out: &mut dyn Write) -> Result<Exit> {
    let person = Ask::person(args.yes, "resolve")?;
    let id = args.id;
    let Some(task) = store.task(id)? else { return Err(no_such_task(id)) };
    // What a dead run left in `sending` becomes unknown, and is settled with the others.
    store.recover(Some(id))?;

    let mut unknown: BTreeSet<TargetId> = BTreeSet::new();
    let asked: BTreeSet<TargetId> = args.target.iter().copied().collect();
    let mut number = 0;
    store.targets(id, &[TargetStatus::Unknown.word()], &mut |row| {
        number += 1;
        if asked.contains(&row.id) {
            unknown.insert(row.id);
        }
        Ok(())
    })?;
    if !args.all {
        number = unknown.len() as u64;
    }

    let (verdict, done) = match args.verdict {
        ResolveAs::Sent => (Verdict::Sent, "settled as sent"),
        ResolveAs::Failed => (Verdict::Failed, "settled as failed"),
        ResolveAs::Retry => (Verdict::Retry, "to be sent again"),
    };
    let mut settled = 0;
    if number > 0 {
        person.agrees(&format!("{} of task {id} ({}): {done}?", targets(number), plain(&task.name)))?;
        let these: Vec<TargetId> = unknown.iter().copied().collect();
        let these = (!args.all).then_some(these.as_slice());
        let act = Act { who: &who::person(), what: "resolve", why: args.reason.as_deref() };
        settled = store.resolve(id, these, verdict, &act)?;
    }
    changed(id, settled, done, args.json, out)?;

    let others: Vec<String> = asked.difference(&unknown).map(TargetId::to_string).collect();
    if !others.is_empty() {
        bail!(
            "not unknown, or not of task {id}, and left as they are: {}; `batch-send targets {id}` shows them",
            others.join(", ")
        );
    }
    Ok(Exit::Done)
}
