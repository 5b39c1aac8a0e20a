//! `status` and `task list`: tasks as they stand now, with what needs a person and the command that settles it. It only
//! reads: what a dead run left is shown as what the next run will make of it.

use std::io::Write;

use anyhow::Result;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::no_such_task;
use super::output::{plain, targets};
use super::table::{Column, Table};
use crate::cli::StatusArgs;
use crate::exit::Exit;
use crate::store::Desk;
use crate::task::{Counts, Holder, Task, TaskId, TaskStatus, show_time};

pub fn run(args: &StatusArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let tasks = store.tasks(args.id, args.exact)?;
    match (args.id, tasks.first()) {
        (Some(id), None) => return Err(no_such_task(id)),
        (Some(_), Some((task, counts))) if args.json => json(&Shown::of(task, counts), out)?,
        (Some(_), Some((task, counts))) => in_full(task, counts, out)?,
        (None, _) if args.json => {
            json(&All { tasks: tasks.iter().map(|(task, counts)| Shown::of(task, counts)).collect() }, out)?
        }
        (None, None) => writeln!(out, "no tasks")?,
        (None, Some(_)) => table(&tasks, out)?,
    }
    Ok(Exit::Done)
}

fn json(shown: &impl Serialize, out: &mut dyn Write) -> Result<()> {
    Ok(writeln!(out, "{}", serde_json::to_string(shown)?)?)
}

const COLUMNS: &[Column] = &[
    Column::Number("id"),
    Column::Text("name"),
    Column::Text("channel"),
    Column::Text("state"),
    Column::Number("sent"),
    Column::Number("failed"),
    Column::Number("unknown"),
    Column::Number("left"),
    Column::Number("total"),
];

/// Names and states are cut to so many characters in the table; `status N` shows them whole.
const CELL_MOST: usize = 48;

fn table(tasks: &[(Task, Counts)], out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(out, COLUMNS);
    for (task, counts) in tasks {
        let number = |number| number_of(number, counts);
        table.row(&[
            &task.id.to_string(),
            &cut(&task.name),
            &task.channel,
            &cut(&state(task)),
            &number(counts.sent),
            &number(counts.failed),
            &number(counts.unknown),
            &number(left(counts)),
            &number(counts.total()),
        ])?;
    }
    table.end()?;
    for (task, counts) in tasks {
        for note in notes(task, counts) {
            writeln!(out, "task {}: {note}", task.id)?;
        }
    }
    Ok(())
}

fn in_full(task: &Task, counts: &Counts, out: &mut dyn Write) -> Result<()> {
    let mut line = |name: &str, value: &str| writeln!(out, "{name:<11} {}", plain(value));
    line("id", &task.id.to_string())?;
    line("name", &task.name)?;
    line("channel", &task.channel)?;
    line("state", &state(task))?;
    line("priority", &task.priority.to_string())?;
    let times = [
        ("scheduled", task.scheduled_at),
        ("expires", task.expires_at),
        ("created", Some(task.created_at)),
        ("started", task.started_at),
        ("finished", task.finished_at),
    ];
    for (name, time) in times {
        if let Some(time) = time {
            line(name, &show_time(&time))?;
        }
    }
    if let Some(Holder { owner, since, until }) = &task.lease {
        line("held by", &format!("{owner}, since {}, until {}", show_time(since), show_time(until)))?;
    }
    let numbers = [
        ("pending", counts.pending),
        ("processing", counts.processing),
        ("sending", counts.sending),
        ("retry", counts.retry),
        ("sent", counts.sent),
        ("failed", counts.failed),
        ("unknown", counts.unknown),
        ("total", counts.total()),
    ];
    for (name, number) in numbers {
        line(name, &number_of(number, counts))?;
    }
    let id = task.id;
    match task.status {
        TaskStatus::Draft => writeln!(out, "nothing of it is sent before `batch-send task start {id}`")?,
        TaskStatus::Paused if task.expired => {
            writeln!(out, "it goes on with `batch-send task resume {id} --until TIME|never`")?;
        }
        TaskStatus::Paused => writeln!(out, "it goes on with `batch-send task resume {id}`")?,
        TaskStatus::Pending | TaskStatus::Finished | TaskStatus::Cancelled => {}
    }
    for note in notes(task, counts) {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

/// What is to be known of a task, in a few words.
fn state(task: &Task) -> String {
    match (task.status, &task.status_reason, &task.lease) {
        (TaskStatus::Paused, Some(reason), _) => format!("paused: {reason}"),
        (TaskStatus::Pending, _, Some(holder)) => format!("running ({})", holder.owner),
        (TaskStatus::Pending, ..) if task.expired => "expired: the next run pauses it".into(),
        (TaskStatus::Pending, ..) => match (task.scheduled_at.filter(|_| task.early), task.held_until) {
            (Some(time), _) => format!("waiting until {}", show_time(&time)),
            (None, Some(time)) => format!("channel held until {}", show_time(&time)),
            (None, None) => task.status.word().into(),
        },
        _ => task.status.word().into(),
    }
}

/// What needs a person, and the command that settles it.
fn notes(task: &Task, counts: &Counts) -> Vec<String> {
    let (id, mut notes) = (task.id, Vec::new());
    if counts.unknown > 0 {
        notes.push(format!(
            "{} unknown: `batch-send targets {id} --status unknown` lists them, `batch-send resolve {id} --all --as VERDICT` (sent, failed or retry) settles them",
            targets(counts.unknown)
        ));
    }
    if counts.overdue > 0 {
        notes.push(format!(
            "{} sending, of a run that died: unknown at the next run",
            targets(counts.overdue)
        ));
    }
    if task.status == TaskStatus::Finished && left(counts) > 0 {
        notes.push(format!(
            "{} left, since an application added to it after its end: `batch-send run --task-id {id}` sends them",
            targets(left(counts))
        ));
    }
    if counts.failed > 0 && task.status != TaskStatus::Cancelled {
        notes.push(format!(
            "{} failed: `batch-send retry {id}` gives each one more attempt",
            targets(counts.failed)
        ));
    }
    if counts.invalid > 0 {
        let number = targets(counts.invalid);
        notes.push(format!("{number} whose status is no word of this version: to be mended in the table"));
    }
    notes
}

fn left(counts: &Counts) -> u64 {
    counts.pending + counts.processing + counts.sending + counts.retry + counts.invalid
}

fn number_of(number: u64, counts: &Counts) -> String {
    if counts.estimated { format!("~{number}") } else { number.to_string() }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(CELL_MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[derive(Serialize)]
struct All<'a> {
    tasks: Vec<Shown<'a>>,
}

/// The public form of a task.
#[derive(Serialize)]
struct Shown<'a> {
    id: TaskId,
    name: &'a str,
    channel: &'a str,
    status: &'static str,
    status_reason: Option<&'a str>,
    priority: i16,
    scheduled_at: Option<String>,
    expires_at: Option<String>,
    created_at: String,
    started_at: Option<String>,
    finished_at: Option<String>,
    lease: Option<&'a Holder>,
    counts: ShownCounts,
}

/// The last three are there when they say something.
#[derive(Serialize)]
struct ShownCounts {
    pending: u64,
    processing: u64,
    sending: u64,
    retry: u64,
    sent: u64,
    failed: u64,
    unknown: u64,
    total: u64,
    #[serde(skip_serializing_if = "is_zero")]
    overdue: u64,
    #[serde(skip_serializing_if = "is_zero")]
    invalid: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    estimated: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl<'a> Shown<'a> {
    fn of(task: &'a Task, counts: &Counts) -> Self {
        let time = |time: &Option<DateTime<Utc>>| time.as_ref().map(show_time);
        Self {
            id: task.id,
            name: &task.name,
            channel: &task.channel,
            status: task.status.word(),
            status_reason: task.status_reason.as_deref(),
            priority: task.priority,
            scheduled_at: time(&task.scheduled_at),
            expires_at: time(&task.expires_at),
            created_at: show_time(&task.created_at),
            started_at: time(&task.started_at),
            finished_at: time(&task.finished_at),
            lease: task.lease.as_ref(),
            counts: ShownCounts {
                pending: counts.pending,
                processing: counts.processing,
                sending: counts.sending,
                retry: counts.retry,
                sent: counts.sent,
                failed: counts.failed,
                unknown: counts.unknown,
                total: counts.total(),
                overdue: counts.overdue,
                invalid: counts.invalid,
                estimated: counts.estimated,
            },
        }
    }
}
