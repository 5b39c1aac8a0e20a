//! `retry`: one more attempt, with a new key, for every failed target of a task.

use std::io::Write;

use anyhow::Result;

use super::ask::Ask;
use super::no_such_task;
use super::output::{changed, plain, targets};
use crate::cli::RetryArgs;
use crate::exit::Exit;
use crate::store::{Act, Desk};
use crate::who;

pub fn run(args: &RetryArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let person = Ask::person(args.yes, "retry")?;
    let id = args.id;
    let tasks = store.tasks(Some(id), true)?;
    let Some((task, counts)) = tasks.first() else { return Err(no_such_task(id)) };
    let mut requeued = 0;
    if counts.failed > 0 {
        let (number, name) = (targets(counts.failed), plain(&task.name));
        person.agrees(&format!("One more attempt for {number} of task {id} ({name}) that failed?"))?;
        let act = Act { who: &who::person(), what: "retry", why: args.reason.as_deref() };
        requeued = store.requeue(id, &act)?;
    }
    changed(id, requeued, "to be sent once more, with a new key", args.json, out)?;
    Ok(Exit::Done)
}
