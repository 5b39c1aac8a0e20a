//! The public form of what `status` says: JSON whose keys are never removed. docs/status.md describes it.

use std::io::Write;

use anyhow::Result;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::state::{State, Wait};
use super::{Seen, Survey};
use crate::task::{Counts, Holder, TaskId, show_time};

/// One line: the task that was asked for, or all.
pub fn json(survey: &Survey, only: Option<TaskId>, out: &mut dyn Write) -> Result<()> {
    let mut tasks = survey.tasks.iter().map(Shown::of);
    let text = match (only, tasks.len()) {
        (Some(_), 1..) => serde_json::to_string(&tasks.next())?,
        _ => serde_json::to_string(&All { tasks: tasks.collect() })?,
    };
    Ok(writeln!(out, "{text}")?)
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
    state: &'static str,
    waiting_for: Option<&'static str>,
    waiting_until: Option<String>,
    channel_known: bool,
    due_since: Option<String>,
    /// In a second.
    rate: Option<f64>,
    /// Seconds.
    finishes_in: Option<u64>,
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
    fn of(seen: &'a Seen) -> Self {
        let Seen { task, counts, standing, .. } = seen;
        let time = |time: &Option<DateTime<Utc>>| time.as_ref().map(show_time);
        let waits = match &standing.state {
            State::Waiting(wait) => Some(wait),
            _ => None,
        };
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
            counts: ShownCounts::of(counts),
            state: standing.state.word(),
            waiting_for: waits.map(Wait::word),
            waiting_until: time(&waits.and_then(Wait::until)),
            channel_known: standing.known,
            due_since: time(&standing.due_since),
            rate: standing.rate.map(|rate| (rate * 1000.0).round() / 1000.0),
            finishes_in: standing.finishes_in.map(|time| time.as_secs()),
        }
    }
}

impl ShownCounts {
    fn of(counts: &Counts) -> Self {
        Self {
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
        }
    }
}
