//! All tasks, a line each, and what needs a person below them.

use super::grid::{Cell, Column, Grid};
use super::state::{self, State, Times, Wait};
use super::{Seen, Survey, held, number};
use crate::commands::output::plain;
use crate::commands::screen::{Screen, Tint};
use crate::task::show_time;

/// Names and states are cut to so many characters even off a terminal; `status N` shows them whole.
const CELL_MOST: usize = 64;

pub fn lines(survey: &Survey, screen: &Screen) -> Vec<String> {
    if survey.tasks.is_empty() {
        return vec!["no tasks".into()];
    }
    let mut lines = grid(&survey.tasks, survey.times(screen)).lines(screen);
    lines.extend(notes(survey, screen));
    lines
}

/// The lines below the table.
pub fn notes(survey: &Survey, screen: &Screen) -> Vec<String> {
    let of = |seen: &Seen| {
        let id = seen.task.id;
        seen.notes().into_iter().map(move |note| format!("task {id}: {note}")).collect::<Vec<_>>()
    };
    let notes = survey.tasks.iter().flat_map(of);
    notes.chain(held(&survey.tasks, survey.times(screen))).map(|note| plain(&note).into_owned()).collect()
}

/// The table. Columns in which nothing stands are left out but for those that are always there.
pub fn grid(tasks: &[Seen], times: Times) -> Grid {
    let none = |count: fn(&Seen) -> u64| tasks.iter().all(|seen| count(seen) == 0);
    let spare_if = |column: Column, none: bool| if none { column.spare(9) } else { column };
    let moves = tasks.iter().any(|seen| seen.standing.rate.is_some());
    let ends = tasks.iter().any(|seen| seen.standing.finishes_in.is_some());
    let due = tasks.iter().any(|seen| seen.standing.due_since.is_some());
    let mut columns = vec![
        Column::number("id"),
        Column::text("name").least(9),
        Column::text("channel").least(7).spare(7),
        Column::text("state").least(19),
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
            Some(_) => Column::number("due for").spare(6),
            None => Column::text("due since"),
        });
    }
    let mut grid = Grid::new(columns);
    for seen in tasks {
        let Seen { task, counts, standing, .. } = seen;
        let count =
            |tint, count| Cell::new(if count == 0 { Tint::Faint } else { tint }, number(count, counts));
        let tint = tint(&standing.state);
        let mut cells = vec![
            Cell::new(Tint::Plain, task.id.to_string()),
            Cell::new(if tint == Tint::Faint { tint } else { Tint::Plain }, short(&task.name)),
            Cell::new(Tint::Faint, &task.channel),
            Cell::new(tint, short(&standing.state.text(times))),
            count(Tint::Plain, counts.sent),
            count(Tint::Waits, counts.failed),
            count(Tint::Bad, counts.unknown),
            count(Tint::Plain, counts.left()),
            count(Tint::Plain, counts.total()),
        ];
        let text = |text: Option<String>| Cell::new(Tint::Plain, text.unwrap_or_default());
        if moves {
            cells.push(text(standing.rate.map(state::rate)));
        }
        if ends {
            let about = if counts.estimated { "~" } else { "" };
            cells.push(text(standing.finishes_in.map(|time| format!("{about}{}", state::span(time)))));
        }
        if due {
            let since = standing.due_since;
            cells.push(text(since.map(|since| match now {
                Some(now) => state::span((now - since).to_std().unwrap_or_default()),
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

fn short(text: &str) -> String {
    match text.char_indices().nth(CELL_MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
