//! `targets`: the targets of one task, one a line, in flat memory; or what became of some recipients. The table is for eyes: it
//! makes control characters harmless. CSV and JSON lines are for programs: they say what is stored.

use std::io::{self, Write};

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::value::RawValue;

use super::choose::typed;
use super::no_such_task;
use super::output::plain;
use super::screen::Screen;
use super::table::{Column, Table};
use crate::cli::{Format, TargetsArgs};
use crate::exit::Exit;
use crate::store::{Desk, Names};
use crate::target::{TargetId, TargetRow, TargetStatus};
use crate::task::{TaskId, show_time};
use crate::trouble::Trouble;

pub fn run(args: &TargetsArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let statuses = statuses(&args.status)?;
    if store.task(args.id)?.is_none() {
        return Err(no_such_task(args.id));
    }
    if !args.recipient.is_empty() {
        return some(args, store, out);
    }
    show(args.format, out, &mut |each| store.targets(args.id, &statuses, each))?;
    Ok(Exit::Done)
}

/// Whoever gets the rows one by one.
type Each<'a> = &'a mut dyn FnMut(TargetRow) -> Result<()>;

fn show(format: Format, out: &mut dyn Write, rows: &mut dyn FnMut(Each<'_>) -> Result<()>) -> Result<()> {
    match format {
        Format::Table => {
            let mut table = Table::new(out, COLUMNS, &Screen::of_stdout());
            rows(&mut |row| Ok(as_row(&mut table, &row)?))?;
            table.end()?;
        }
        Format::Csv => {
            let mut csv = csv::Writer::from_writer(out);
            csv.write_record(KEYS).map_err(io::Error::from)?;
            rows(&mut |row| Ok(as_csv(&mut csv, &row)?))?;
            csv.flush()?;
        }
        Format::Jsonl => rows(&mut |row| {
            let shown = serde_json::to_string(&Shown::of(&row)?)?;
            Ok(writeln!(out, "{shown}")?)
        })?,
    }
    Ok(())
}

/// What became of these recipients: support's first question. In the order in which they were asked for. Errors: the task has not
/// some of them; their names.
fn some(args: &TargetsArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let asked = args.recipient.iter().map(|name| typed(name)).collect::<Result<Vec<_>>>()?;
    let mut found = store.named(args.id, Names::Recipients(&asked))?;
    let place = |name: &str| asked.iter().position(|one| one == name.trim_end());
    found.sort_by_key(|row| place(&row.recipient));
    let mut absent: Vec<&str> = Vec::new();
    for name in &asked {
        let there = found.iter().any(|row| row.recipient.trim_end() == name);
        if !there && !absent.contains(&name.as_str()) {
            absent.push(name);
        }
    }
    match args.format {
        Format::Table => {
            for (nth, row) in found.iter().enumerate() {
                if nth > 0 {
                    writeln!(out)?;
                }
                in_full(row, out)?;
            }
        }
        format => show(format, out, &mut |each| found.drain(..).try_for_each(&mut *each))?,
    }
    if !absent.is_empty() {
        let names: Vec<_> = absent.into_iter().map(plain).collect();
        bail!(
            "task {} has no target {}: nothing of it was sent there, and nothing is going to be",
            args.id,
            names.join(", ")
        );
    }
    Ok(Exit::Done)
}

/// One target, for a person who has to answer for it.
fn in_full(row: &TargetRow, out: &mut dyn Write) -> io::Result<()> {
    let mut line = |name: &str, value: &str| writeln!(out, "{name:<10} {}", plain(value));
    line("recipient", &row.recipient)?;
    line("target", &format!("{} of task {}", row.id, row.task_id))?;
    line("status", &format!("{}: {}", row.status, meaning(row)))?;
    line("attempts", &row.attempts.to_string())?;
    let times = [("begun", row.send_at), ("settled", row.settled_at), ("again at", row.retry_at)];
    for (name, time) in times {
        if let Some(time) = time {
            line(name, &show_time(&time))?;
        }
    }
    let texts = [("receipt", &row.receipt), ("last error", &row.last_error)];
    for (name, text) in texts {
        if let Some(text) = text {
            line(name, text)?;
        }
    }
    Ok(())
}

fn meaning(row: &TargetRow) -> &'static str {
    match TargetStatus::from_word(&row.status) {
        Some(TargetStatus::Pending) if row.attempts == 0 => "nothing was sent yet",
        Some(TargetStatus::Pending) => "to be sent again",
        Some(TargetStatus::Processing) => "a run is about to send it",
        Some(TargetStatus::Sending) if row.overdue => "its run died; the next one makes it unknown",
        Some(TargetStatus::Sending) => "on its way right now",
        Some(TargetStatus::Sent) => "the channel accepted it",
        Some(TargetStatus::Failed) => "certainly not accepted",
        Some(TargetStatus::Retry) => "not settled yet, to be tried again",
        Some(TargetStatus::Unknown) => "it may have arrived, and is not sent again by itself",
        None => "no word of this version",
    }
}

fn statuses(words: &[String]) -> Result<Vec<&str>> {
    let known = || TargetStatus::ALL.map(TargetStatus::word).join(", ");
    for word in words {
        if TargetStatus::from_word(word).is_none() {
            bail!(Trouble::usage(format!("\"{word}\" is no status of a target; these are: {}", known())));
        }
    }
    Ok(words.iter().map(String::as_str).collect())
}

const COLUMNS: &[Column] = &[
    Column::Number("id"),
    Column::Text("recipient"),
    Column::Text("status"),
    Column::Number("attempts"),
    Column::Text("at"),
    Column::Text("receipt or reason"),
];

fn as_row(table: &mut Table<'_>, row: &TargetRow) -> io::Result<()> {
    let at = row.settled_at.or(row.retry_at).or(row.send_at).as_ref().map(show_time);
    let sent = row.status == TargetStatus::Sent.word();
    let detail = if sent { &row.receipt } else { &row.last_error };
    let status = if row.overdue { "sending: unknown at the next run" } else { &row.status };
    table.row(&[
        &row.id.to_string(),
        &row.recipient,
        status,
        &row.attempts.to_string(),
        &at.unwrap_or_default(),
        detail.as_deref().unwrap_or_default(),
    ])
}

/// The columns of the CSV: the keys of a JSON line.
const KEYS: [&str; 12] = [
    "id",
    "task_id",
    "recipient",
    "params",
    "status",
    "attempts",
    "round",
    "retry_at",
    "send_at",
    "settled_at",
    "receipt",
    "last_error",
];

fn as_csv(csv: &mut csv::Writer<&mut dyn Write>, row: &TargetRow) -> io::Result<()> {
    let time = |time: &Option<_>| time.as_ref().map(show_time).unwrap_or_default();
    Ok(csv.write_record([
        row.id.to_string().as_str(),
        &row.task_id.to_string(),
        &row.recipient,
        row.params.as_deref().unwrap_or_default(),
        &row.status,
        &row.attempts.to_string(),
        &row.round.to_string(),
        &time(&row.retry_at),
        &time(&row.send_at),
        &time(&row.settled_at),
        row.receipt.as_deref().unwrap_or_default(),
        row.last_error.as_deref().unwrap_or_default(),
    ])?)
}

/// The public form of a target.
#[derive(Serialize)]
struct Shown<'a> {
    id: TargetId,
    task_id: TaskId,
    recipient: &'a str,
    params: Option<Box<RawValue>>,
    status: &'a str,
    attempts: u16,
    round: u8,
    retry_at: Option<String>,
    send_at: Option<String>,
    settled_at: Option<String>,
    receipt: Option<&'a str>,
    last_error: Option<&'a str>,
}

impl<'a> Shown<'a> {
    fn of(row: &'a TargetRow) -> Result<Self> {
        Ok(Self {
            id: row.id,
            task_id: row.task_id,
            recipient: &row.recipient,
            params: row.params.as_deref().map(on_one_line).transpose()?,
            status: &row.status,
            attempts: row.attempts,
            round: row.round,
            retry_at: row.retry_at.as_ref().map(show_time),
            send_at: row.send_at.as_ref().map(show_time),
            settled_at: row.settled_at.as_ref().map(show_time),
            receipt: row.receipt.as_deref(),
            last_error: row.last_error.as_deref(),
        })
    }
}

/// Stored JSON may be spread over lines, which are white space there; what is no JSON is shown as a string.
fn on_one_line(params: &str) -> serde_json::Result<Box<RawValue>> {
    RawValue::from_string(params.replace(['\r', '\n'], " "))
        .or_else(|_| serde_json::value::to_raw_value(params))
}
