//! `targets`: the targets of one task, one a line, in flat memory. The table is for eyes: it makes control characters
//! harmless. CSV and JSON lines are for programs: they say what is stored.

use std::io::{self, Write};

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::value::RawValue;

use super::no_such_task;
use super::table::{Column, Table};
use crate::cli::{Format, TargetsArgs};
use crate::exit::Exit;
use crate::store::Desk;
use crate::target::{TargetId, TargetRow, TargetStatus};
use crate::task::{TaskId, show_time};
use crate::trouble::Trouble;

pub fn run(args: &TargetsArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let statuses = statuses(&args.status)?;
    if store.task(args.id)?.is_none() {
        return Err(no_such_task(args.id));
    }
    match args.format {
        Format::Table => {
            let mut table = Table::new(out, COLUMNS);
            store.targets(args.id, &statuses, &mut |row| Ok(as_row(&mut table, &row)?))?;
            table.end()?;
        }
        Format::Csv => {
            let mut csv = csv::Writer::from_writer(out);
            csv.write_record(KEYS).map_err(io::Error::from)?;
            store.targets(args.id, &statuses, &mut |row| Ok(as_csv(&mut csv, &row)?))?;
            csv.flush()?;
        }
        Format::Jsonl => store.targets(args.id, &statuses, &mut |row| {
            let shown = serde_json::to_string(&Shown::of(&row)?)?;
            Ok(writeln!(out, "{shown}")?)
        })?,
    }
    Ok(Exit::Done)
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
