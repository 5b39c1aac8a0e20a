//! `retry`: one more attempt, with a new key, for failed targets of a task: for every one, or for those that are chosen.

use std::io::Write;

use anyhow::Result;
use serde_json::json;

use super::ask::Ask;
use super::choose::Choice;
use super::no_such_task;
use super::output::{plain, targets};
use crate::cli::RetryArgs;
use crate::exit::Exit;
use crate::store::{Act, Desk, Requeued};
use crate::target::TargetStatus;
use crate::task::TaskId;
use crate::who;

/// Opens those that are failed, and names those of the chosen that are not (exit 1).
pub fn run(args: &RetryArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let person = Ask::person(args.yes, "retry")?;
    let id = args.id;
    let Some(task) = store.task(id)? else { return Err(no_such_task(id)) };
    let (who, name) = (who::person(), plain(&task.name));
    let act = Act { who: &who, what: "retry", why: args.reason.as_deref() };
    let mut agree = |number: Option<u64>| {
        let number = number.map_or("the targets on standard input".into(), targets);
        person.agrees(&format!("One more attempt for {number} of task {id} ({name}) that failed?"))
    };
    let Some(choice) = Choice::of(&args.which)? else {
        let (_, counts) = store.tasks(Some(id), true)?.pop().ok_or_else(|| no_such_task(id))?;
        let mut requeued = Requeued::default();
        if counts.failed > 0 {
            agree(Some(counts.failed))?;
            requeued = store.requeue(id, None, &act)?;
        }
        say(id, requeued, args.json, out)?;
        return Ok(Exit::Done);
    };
    let (failed, mut suppressed) = (TargetStatus::Failed, 0);
    let done = choice.act(store, id, failed, &mut agree, &mut |store, these| {
        let requeued = store.requeue(id, Some(these), &act)?;
        suppressed += requeued.suppressed;
        Ok(requeued.changed)
    })?;
    say(id, Requeued { changed: done.changed, suppressed }, args.json, out)?;
    done.named(id, failed)?;
    Ok(Exit::Done)
}

fn say(
    id: TaskId,
    Requeued { changed, suppressed }: Requeued,
    json: bool,
    out: &mut dyn Write,
) -> Result<()> {
    if json {
        writeln!(out, "{}", json!({ "id": id, "changed": changed, "suppressed": suppressed }))?;
        return Ok(());
    }
    writeln!(out, "{} to be sent once more, with a new key", targets(changed))?;
    if suppressed > 0 {
        writeln!(
            out,
            "{suppressed} of them had failed as suppressed: whoever is still on the list (`batch-send suppress list`) fails again"
        )?;
    }
    Ok(())
}
