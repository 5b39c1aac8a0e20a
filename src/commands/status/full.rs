//! One task in full: its row, its counts, how it moves, what its targets met, and what was done to it.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::grid::{Cell, Column, Grid};
use super::list::{failures, tint};
use super::state::{self, State, Times, Unit};
use super::{Seen, Survey, held, number};
use crate::commands::output::{plain, targets};
use crate::commands::screen::{Screen, Tint};
use crate::store::{ATTEMPTS_MOST, Attempts, Details, REASONS_MOST};
use crate::task::{Counts, Holder, TaskId, TaskStatus, show_time};

/// What the names of the lines take.
const NAMES: usize = 11;

pub fn lines(survey: &Survey, details: &Details, screen: &Screen) -> Vec<String> {
    let Some(seen) = survey.tasks.first() else { return Vec::new() };
    let mut lines = row(seen, survey, details, screen);
    lines.extend(reasons(&seen.counts, details, screen));
    lines.extend(unknown(seen.task.id, &seen.counts, details, screen, survey.times(screen)));
    lines.extend(audit(details, screen, survey.times(screen)));
    let failures = failures(&[seen.task.id], seen.failures());
    let notes = seen
        .doubt()
        .into_iter()
        .chain(seen.notes())
        .chain(failures)
        .chain(held(&survey.tasks, survey.times(screen)));
    lines.extend(notes.map(|note| plain(&note).into_owned()));
    // Last: what the reason and the notes ask for comes before it.
    let id = seen.task.id;
    match seen.task.status {
        TaskStatus::Draft => lines.push(format!("nothing of it is sent before `batch-send task start {id}`")),
        TaskStatus::Paused if seen.task.expired => {
            lines.push(format!("then it goes on with `batch-send task resume {id} --until TIME|never`"));
        }
        TaskStatus::Paused => {
            lines.push(format!("once its reason is mended, it goes on with `batch-send task resume {id}`"));
        }
        TaskStatus::Pending | TaskStatus::Finished | TaskStatus::Cancelled => {}
    }
    lines
}

/// Names and values.
fn row(seen: &Seen, survey: &Survey, details: &Details, screen: &Screen) -> Vec<String> {
    let Seen { task, counts, standing, .. } = seen;
    let mut lines = Vec::new();
    let mut line = |tint: Tint, name: &str, value: &str| {
        let value = screen.paint(tint, &plain(value));
        lines.push(format!("{} {value}", screen.paint(Tint::Faint, &format!("{name:<NAMES$}"))));
    };
    // A time, and on a terminal how far away it is.
    let away = |time: DateTime<Utc>| match survey.times(screen) {
        Times::Whole => String::new(),
        Times::Short(now) if time > now => {
            format!(" (in {})", state::span((time - now).to_std().unwrap_or_default()))
        }
        Times::Short(now) => format!(" ({})", state::ago(time, now)),
    };
    line(Tint::Plain, "id", &task.id.to_string());
    line(Tint::Heading, "name", &task.name);
    line(Tint::Plain, "channel", &task.channel);
    line(tint(&standing.state), "state", &standing.state.text(Times::Whole));
    line(Tint::Plain, "priority", &task.priority.to_string());
    let times = [
        ("scheduled", task.scheduled_at),
        ("expires", task.expires_at),
        ("created", Some(task.created_at)),
        ("started", task.started_at),
        ("finished", task.finished_at),
        ("due since", standing.due_since),
    ];
    for (name, time) in times {
        if let Some(time) = time {
            line(Tint::Plain, name, &(show_time(&time) + &away(time)));
        }
    }
    if let Some(Holder { owner, since, until }) = &task.lease {
        line(
            Tint::Plain,
            "held by",
            &format!("{owner}, since {}, until {}", show_time(since), show_time(until)),
        );
    }
    if let Some(stall) = standing.stall.as_ref().filter(|_| !matches!(standing.state, State::Stalled(_))) {
        line(Tint::Bad, "stalled", &stall.text(Times::Whole));
    }
    if let Some(rate) = standing.rate {
        let end = standing.finishes_in.map(|time: Duration| format!(", finished in {}", state::span(time)));
        line(Tint::Plain, "rate", &(Unit::of(rate).rate(rate) + &end.unwrap_or_default()));
    }
    let mut numbers = vec![
        ("pending", counts.pending, Tint::Plain),
        ("processing", counts.processing, Tint::Plain),
        ("sending", counts.sending, Tint::Plain),
        ("retry", counts.retry, Tint::Plain),
        ("sent", counts.sent, Tint::Plain),
        ("failed", counts.failed, Tint::Waits),
        ("unknown", counts.unknown, Tint::Bad),
    ];
    if counts.invalid > 0 {
        numbers.push(("no status", counts.invalid, Tint::Bad));
    }
    numbers.push(("total", counts.total(), Tint::Heading));
    for (name, count, tint) in numbers {
        line(if count == 0 { Tint::Faint } else { tint }, name, &number(count, counts));
    }
    let attempts = match details.attempts {
        Some(Attempts { all, repeated: 0 }) => all.to_string(),
        Some(Attempts { all, repeated }) => format!("{all}, {} needed more than one", targets(repeated)),
        None => format!("of more than {ATTEMPTS_MOST} targets they are summed up with --exact"),
    };
    line(Tint::Plain, "attempts", &attempts);
    lines
}

/// A table below its heading.
fn section(heading: &str, grid: &Grid, screen: &Screen) -> Vec<String> {
    let mut lines = vec![screen.paint(Tint::Heading, heading)];
    lines.extend(grid.lines(screen));
    lines
}

fn reasons(counts: &Counts, details: &Details, screen: &Screen) -> Vec<String> {
    if details.reasons.is_empty() {
        return Vec::new();
    }
    // Indented by an empty column.
    let mut grid = Grid::new([Column::text(""), Column::number(""), Column::text("").least(20)]);
    for (reason, number) in &details.reasons {
        grid.row([
            Cell::new(Tint::Plain, ""),
            Cell::new(Tint::Plain, number.to_string()),
            Cell::new(Tint::Plain, reason),
        ]);
    }
    let some = [counts.failed, counts.unknown, counts.retry].into_iter().any(|count| count > REASONS_MOST);
    let heading = if some {
        format!("commonest errors, of the latest {REASONS_MOST} of each status")
    } else {
        "commonest errors".into()
    };
    section(&heading, &grid, screen)
}

fn unknown(id: TaskId, counts: &Counts, details: &Details, screen: &Screen, times: Times) -> Vec<String> {
    if details.unknown.is_empty() {
        return Vec::new();
    }
    let mut grid = Grid::new([
        Column::text(""),
        Column::number(""),
        Column::text("").least(12),
        Column::text(""),
        Column::text("").least(16),
    ]);
    for row in &details.unknown {
        let at = row.send_at.or(row.settled_at).map(|at| times.at(&at));
        grid.row([
            Cell::new(Tint::Plain, ""),
            Cell::new(Tint::Plain, row.id.to_string()),
            Cell::new(Tint::Plain, &row.recipient),
            Cell::new(Tint::Plain, at.unwrap_or_default()),
            Cell::new(Tint::Plain, row.last_error.as_deref().unwrap_or_default()),
        ]);
    }
    let mut lines = section("unknown targets", &grid, screen);
    let more = counts.unknown.saturating_sub(details.unknown.len() as u64);
    if more > 0 {
        lines
            .push(format!("  and {} more: `batch-send targets {id} --status unknown`", number(more, counts)));
    }
    lines
}

fn audit(details: &Details, screen: &Screen, times: Times) -> Vec<String> {
    if details.audit.is_empty() {
        return Vec::new();
    }
    let mut grid = Grid::new([
        Column::text(""),
        Column::text(""),
        Column::text("").least(10),
        Column::text(""),
        Column::text(""),
        Column::text("").least(16),
    ]);
    for line in &details.audit {
        let target = line.target.map(|target| format!("target {target}"));
        grid.row([
            Cell::new(Tint::Plain, ""),
            Cell::new(Tint::Plain, times.at(&line.at)),
            Cell::new(Tint::Plain, &line.who),
            Cell::new(Tint::Plain, &line.what),
            Cell::new(Tint::Plain, target.unwrap_or_default()),
            Cell::new(Tint::Plain, line.why.as_deref().unwrap_or_default()),
        ]);
    }
    let mut lines = section("audit, the latest first", &grid, screen);
    let more = details.audits.saturating_sub(details.audit.len() as u64);
    if more > 0 {
        lines.push(format!("  and {more} more in batch_audit"));
    }
    lines
}
