//! `retry`: one more attempt, with a new key, for failed targets of a task: for every one, or for those that are chosen.

use std::io::Write;

use anyhow::Result;

use super::ask::Ask;
use super::choose::Choice;
use super::no_such_task;
use super::output::{changed, plain, targets};
use crate::cli::RetryArgs;
use crate::exit::Exit;
use crate::store::{Act, Desk};
use crate::target::TargetStatus;
use crate::who;

/// Opens those that are failed, and names those of the chosen that are not (exit 1).
pub fn run(args: &RetryArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let person = Ask::person(args.yes, "retry")?;
    let id = args.id;
    let Some(task) = store.task(id)? else { return Err(no_such_task(id)) };
    let (who, name) = (who::person(), plain(&task.name));
    let act = Act { who: &who, what: "retry", why: args.reason.as_deref() };
    let done = "to be sent once more, with a new key";
    let mut agree = |number: Option<u64>| {
        let number = number.map_or("the targets on standard input".into(), targets);
        person.agrees(&format!("One more attempt for {number} of task {id} ({name}) that failed?"))
    };
    let Some(choice) = Choice::of(&args.which)? else {
        let (_, counts) = store.tasks(Some(id), true)?.pop().ok_or_else(|| no_such_task(id))?;
        let mut requeued = 0;
        if counts.failed > 0 {
            agree(Some(counts.failed))?;
            requeued = store.requeue(id, None, &act)?;
        }
        changed(id, requeued, done, args.json, out)?;
        return Ok(Exit::Done);
    };
    let failed = TargetStatus::Failed;
    let requeued = choice
        .act(store, id, failed, &mut agree, &mut |store, these| store.requeue(id, Some(these), &act))?;
    changed(id, requeued.changed, done, args.json, out)?;
    requeued.named(id, failed)?;
    Ok(Exit::Done)
}
