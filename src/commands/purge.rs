//! `purge`: tasks that ended long ago are removed, with their targets: a step of some thousands at a time, with as long a rest after
//! each as it took, so that runs beside it have the database at least half of the time. Quiet when all went well, as cron likes it.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::ask::Ask;
use super::output::{bar, hint, plain, targets};
use super::screen::Screen;
use super::table::{Column, Table};
use crate::cli::PurgeArgs;
use crate::exit::Exit;
use crate::moment::Moment;
use crate::store::{Act, Desk, PURGE, PURGING, Purged, Stays};
use crate::task::{Counts, Task, TaskId, TaskStatus, show_time};
use crate::who;

/// The longest rest: what took longer had to wait itself.
const REST_MOST: Duration = Duration::from_millis(500);

/// Tasks that stay are named, so many of them at most.
const NAMED_MOST: usize = 20;

/// A task that has ended, and why it stays, if so.
struct Ended {
    task: Task,
    counts: Counts,
    stays: Option<String>,
}

pub fn run(args: &PurgeArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let person = if args.dry_run { None } else { Some(Ask::person(args.yes, "purge")?) };
    let mut ended = Vec::new();
    for task in store.ended(args.finished_before)? {
        if let Some((task, counts)) = store.tasks(Some(task.id), false)?.pop() {
            let stays = stays(&task, &counts, args.with_unknown);
            ended.push(Ended { task, counts, stays });
        }
    }
    let Some(person) = person else {
        if args.json {
            shown(&ended, out)?;
        } else {
            table(&ended, out)?;
        }
        return Ok(Exit::Done);
    };
    let going: Vec<&Ended> = ended.iter().filter(|one| one.stays.is_none()).collect();
    let number: u64 = going.iter().map(|one| one.counts.total()).sum();
    if let (Some(first), Some(last)) = (going.first(), going.last()) {
        let which = if going.len() == 1 {
            format!("task {} ({})", first.task.id, plain(&first.task.name))
        } else {
            format!("{} tasks (the first is {}, the last {})", going.len(), first.task.id, last.task.id)
        };
        person.agrees(&format!("Remove {which} with {} for good?", targets(number)))?;
    }
    let bar = bar(Some(number));
    let mut gone = |number| {
        bar.inc(number);
        let speed = bar.position() as f64 / bar.elapsed().as_secs_f64();
        bar.set_message(format!("{}, {speed:.0}/s", targets(bar.position())));
    };
    let who = who::person();
    let mut left = Vec::new();
    for one in &mut ended {
        if one.stays.is_none() {
            let about = about(&one.task, &one.counts);
            let act = Act { who: &who, what: PURGE, why: Some(&about) };
            one.stays = remove(store, &one.task, args, &act, &mut gone)
                .with_context(|| format!("purge task {}", one.task.id))?;
        }
        match &one.stays {
            None => log::info!("purged task={}: {about}", one.task.id, about = about(&one.task, &one.counts)),
            Some(why) => left.push(format!("task {} stays: {why}", one.task.id)),
        }
    }
    bar.finish_and_clear();
    if args.json {
        shown(&ended, out)?;
    }
    let gone = ended.len() - left.len();
    if left.is_empty() {
        hint(&format!("{gone} task{} removed", if gone == 1 { "" } else { "s" }));
        return Ok(Exit::Done);
    }
    for why in left.iter().take(NAMED_MOST) {
        log::warn!("{why}");
    }
    if left.len() > NAMED_MOST {
        log::warn!("and {} more stay: `batch-send purge --dry-run` shows all", left.len() - NAMED_MOST);
    }
    Ok(Exit::ForAPerson)
}

/// Why a task stays, as far as its counts show; the store looks again.
fn stays(task: &Task, counts: &Counts, with_unknown: bool) -> Option<String> {
    let half_purged = task.status_reason.as_deref() == Some(PURGING);
    let waits = counts.pending + counts.retry;
    let on_its_way = counts.processing + counts.sending + counts.invalid;
    if on_its_way > 0 || (waits > 0 && (task.status == TaskStatus::Finished || half_purged)) {
        return because(task.id, Stays::Open, half_purged);
    }
    let unknown = counts.unknown > 0 && !with_unknown;
    if unknown { because(task.id, Stays::Unknown, half_purged) } else { None }
}

/// `half_purged`: some of its targets are gone, or may be.
fn because(id: TaskId, stays: Stays, half_purged: bool) -> Option<String> {
    Some(match stays {
        Stays::NotEnded if half_purged => format!(
            "it was opened again while it was being purged, and has forgotten who got its message: \
             `batch-send task pause {id}`, and see whom it would send to"
        ),
        Stays::NotEnded => "it was opened again meanwhile".into(),
        // Another purge was quicker.
        Stays::Gone => return None,
        Stays::Open if half_purged => format!(
            "somebody added targets to it while it was being purged; they are not sent: \
             `batch-send targets {id}` shows them, put those who want it into another task"
        ),
        Stays::Open => format!(
            "it has targets that are neither sent nor failed: `batch-send status {id}` shows how many, and what to do"
        ),
        Stays::Unknown => format!(
            "it has unknown targets: settle them with `batch-send resolve {id} --all --as VERDICT` (sent, failed or retry), or remove them, \
             too, with --with-unknown"
        ),
    })
}

/// Removes one task, step by step. Why it stays, if so.
fn remove(
    store: &mut dyn Desk,
    task: &Task,
    args: &PurgeArgs,
    act: &Act<'_>,
    gone: &mut dyn FnMut(u64),
) -> Result<Option<String>> {
    let (id, half_purged) = (task.id, task.status_reason.as_deref() == Some(PURGING));
    match store.condemn(id, args.finished_before, args.with_unknown, act)? {
        None => {}
        Some(stays) => return Ok(because(id, stays, half_purged)),
    }
    let mut after = 0;
    loop {
        let began = Moment::now();
        match store.purge(id, args.finished_before, args.with_unknown, after)? {
            Purged::Whole => return Ok(None),
            Purged::Stays(stays) => return Ok(because(id, stays, true)),
            Purged::Some(number, last) => {
                gone(number);
                after = last;
            }
        }
        std::thread::sleep(began.elapsed().min(REST_MOST));
    }
}

/// What the audit keeps of it.
fn about(task: &Task, counts: &Counts) -> String {
    let Task { name, channel, status, finished_at, .. } = task;
    let end = finished_at.as_ref().map(show_time).unwrap_or_default();
    let Counts { sent, failed, unknown, .. } = counts;
    let about = if counts.estimated { "about " } else { "" };
    format!(
        "{} at {end}, {about}{sent} sent, {failed} failed, {unknown} unknown; channel {channel}: {name}",
        status.word()
    )
}

const COLUMNS: &[Column] = &[
    Column::Number("id"),
    Column::Text("name"),
    Column::Text("status"),
    Column::Text("ended"),
    Column::Number("targets"),
    Column::Text("purge"),
];

fn table(ended: &[Ended], out: &mut dyn Write) -> Result<()> {
    if ended.is_empty() {
        writeln!(out, "no task ended so long ago: nothing would go")?;
        return Ok(());
    }
    let mut table = Table::new(out, COLUMNS, &Screen::of_stdout());
    for Ended { task, counts, stays } in ended {
        let total = counts.total();
        let total = if counts.estimated { format!("~{total}") } else { total.to_string() };
        let fate = stays.as_ref().map_or("goes".into(), |why| format!("stays: {why}"));
        table.row(&[
            &task.id.to_string(),
            &task.name,
            task.status.word(),
            &task.finished_at.as_ref().map(show_time).unwrap_or_default(),
            &total,
            &fate,
        ])?;
    }
    table.end()?;
    let going = ended.iter().filter(|one| one.stays.is_none());
    let (number, of) = going.fold((0, 0), |(n, of), one| (n + 1, of + one.counts.total()));
    let tasks = if number == 1 { "1 task".into() } else { format!("{number} tasks") };
    writeln!(out, "{tasks} would go, with {}", targets(of))?;
    Ok(())
}

/// The public form of what goes, or would go, and of what stays.
fn shown(ended: &[Ended], out: &mut dyn Write) -> Result<()> {
    let of =
        |one: &&Ended| json!({ "id": one.task.id, "name": one.task.name, "targets": one.counts.total() });
    let gone: Vec<_> = ended.iter().filter(|one| one.stays.is_none()).collect();
    let left = ended.iter().filter_map(|one| {
        let why = one.stays.as_ref()?;
        Some(json!({ "id": one.task.id, "name": one.task.name, "targets": one.counts.total(), "why": why }))
    });
    let line = json!({
        "purged": gone.iter().map(of).collect::<Vec<_>>(),
        "left": left.collect::<Vec<_>>(),
    });
    writeln!(out, "{line}")?;
    Ok(())
}
