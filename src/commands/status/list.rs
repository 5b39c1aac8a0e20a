//! All tasks, a line each, and what needs a person below them.

use super::grid::{Cell, Column, Grid};
use super::state::{self, State, Times, Unit, Wait};
use super::{Seen, Survey, held, number, tasks};
use crate::commands::output::{plain, targets};
use crate::commands::screen::{Screen, Tint};
use crate::commands::table::width;
use crate::task::{TaskId, show_time};

/// A state is not cut to less.
const STATE_LEAST: usize = 19;

pub fn lines(survey: &Survey, screen: &Screen) -> Vec<String> {
    if survey.tasks.is_empty() {
        return vec!["no tasks".into()];
    }
    let mut lines = grid(&survey.tasks, survey.times(screen)).lines(screen);
    lines.extend(notes(survey, screen));
    lines
}

/// The lines below the table, first of all those that wait for a person.
pub fn notes(survey: &Survey, screen: &Screen) -> Vec<String> {
    let of = |seen: &Seen, notes: Vec<String>| {
        let id = seen.task.id;
        notes.into_iter().map(move |note| format!("task {id}: {note}")).collect::<Vec<_>>()
    };
    let doubts = survey.tasks.iter().flat_map(|seen| of(seen, seen.doubt().into_iter().collect()));
    let others = survey.tasks.iter().flat_map(|seen| of(seen, seen.notes()));
    // One line for all: tasks that ended long ago keep theirs.
    let failed: Vec<TaskId> =
        survey.tasks.iter().filter(|seen| seen.failures() > 0).map(|seen| seen.task.id).collect();
    let number = survey.tasks.iter().map(Seen::failures).sum();
    let failures = failures(&failed, number).map(|note| format!("{}: {note}", tasks(&failed)));
    let notes = doubts.chain(others).chain(failures).chain(held(&survey.tasks, survey.times(screen)));
    notes.map(|note| plain(&note).into_owned()).collect()
}

/// What leads on from so many targets that failed in these tasks.
pub fn failures(of: &[TaskId], failed: u64) -> Option<String> {
    let id = if let [one] = of { one.to_string() } else { "N".into() };
    (failed > 0).then(|| {
        format!(
            "{} failed: `batch-send targets {id} --status failed` says why, `batch-send retry {id}` gives each one more attempt",
            targets(failed)
        )
    })
}

/// The table. Columns in which nothing stands are left out but for those that are always there.
pub fn grid(tasks: &[Seen], times: Times) -> Grid {
    let none = |count: fn(&Seen) -> u64| tasks.iter().all(|seen| count(seen) == 0);
    let spare_if = |column: Column, none: bool| if none { column.spare(9) } else { column };
    let moves = tasks.iter().any(|seen| seen.standing.rate.is_some());
    let ends = tasks.iter().any(|seen| seen.standing.finishes_in.is_some());
    let due = tasks.iter().any(|seen| seen.standing.due_since.is_some());
    // Of a state its first words say most, its time among them; of a pause, why.
    // One cell more is for the dots.
    let state = |seen: &Seen| width(state::head(&plain(&seen.standing.state.text(times)))) + 1;
    let state = tasks.iter().map(state).fold(STATE_LEAST, usize::max);
    let mut columns = vec![
        Column::number("id"),
        Column::text("name").least(9),
        Column::text("channel").least(7).spare(7),
        Column::text("state").least(state).kept(),
        Column::number("sent"),
        spare_if(Column::number("failed"), none(|seen| seen.counts.failed)),
        spare_if(Column::number("unknown"), none(|seen| seen.counts.unknown)),
        Column::number("left"),
        Column::number("total").spare(8),
    ];
    let now = match times {
        Times::Short(now) => Some(now),
        Times::Whole => None,
    };
    if moves {
        columns.push(Column::number("rate").spare(5));
    }
    if ends {
        columns.push(Column::number("ends in").spare(4));
    }
    if due {
        columns.push(match now {
            Some(_) => Column::number("due").spare(6),
            None => Column::text("due since"),
        });
    }
    let slowest = tasks.iter().filter_map(|seen| seen.standing.rate).filter(|rate| *rate > 0.0);
    let unit = Unit::of(slowest.fold(f64::INFINITY, f64::min));
    let mut grid = Grid::new(columns);
    for seen in tasks {
        let Seen { task, counts, standing, .. } = seen;
        let count =
            |tint, count| Cell::new(if count == 0 { Tint::Faint } else { tint }, number(count, counts));
        let tint = tint(&standing.state);
        let mut cells = vec![
            Cell::new(Tint::Plain, task.id.to_string()),
            Cell::new(if tint == Tint::Faint { tint } else { Tint::Plain }, &task.name),
            Cell::new(Tint::Faint, &task.channel),
            Cell::new(tint, standing.state.text(times)),
            count(Tint::Plain, counts.sent),
            count(Tint::Waits, counts.failed),
            count(Tint::Bad, counts.unknown),
            count(Tint::Plain, counts.left()),
            count(Tint::Plain, counts.total()),
        ];
        let text = |text: Option<String>| Cell::new(Tint::Plain, text.unwrap_or_default());
        if moves {
            cells.push(text(standing.rate.map(|rate| unit.rate(rate))));
        }
        if ends {
            let about = if counts.estimated { "~" } else { "" };
            cells.push(text(standing.finishes_in.map(|time| format!("{about}{}", state::span(time)))));
        }
        if due {
            let since = standing.due_since;
            cells.push(text(since.map(|since| match now {
                Some(now) => state::ago(since, now),
                None => show_time(&since),
            })));
        }
        grid.row(cells);
    }
    grid
}

pub fn tint(state: &State) -> Tint {
    match state {
        State::Running(_) => Tint::Good,
        State::Stalled(_) => Tint::Bad,
        State::Waiting(Wait::Hold(..)) | State::Paused(_) | State::Expired => Tint::Waits,
        State::Waiting(_) | State::Pending => Tint::Plain,
        State::Draft | State::Finished(_) | State::Cancelled => Tint::Faint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_long_ago_takes_one_line_however_many_tasks() {
        assert_eq!(failures(&[], 0), None);
        assert!(failures(&[7], 1).unwrap().starts_with("1 target failed: `batch-send targets 7 "));
        assert!(failures(&[7, 3], 5).unwrap().ends_with("`batch-send retry N` gives each one more attempt"));
    }
}
