//! `--watch`: the same again and again, drawn over what stood there, until ctrl-C. What does not fit on the terminal is counted.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::state::State;
use super::{Survey, full, list};
use crate::cli::StatusArgs;
use crate::commands::screen::{Screen, Size, Tint};
use crate::commands::table::{cut, width};
use crate::config::Config;
use crate::exit::Exit;
use crate::moment::Moment;
use crate::store::Desk;
use crate::task::show_time;
use crate::trouble::Trouble;

/// From the end of a look to the next one, and how soon a signal or another size of the terminal is heeded.
const PERIOD: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(50);

const HOME: &str = "\x1b[H";
const CLEAR: &str = "\x1b[2J";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

pub fn run(
    args: &StatusArgs,
    config: &Config,
    store: &mut dyn Desk,
    screen: &Screen,
    out: &mut dyn Write,
) -> Result<Exit> {
    if screen.size.is_none() {
        bail!(Trouble::usage(
            "--watch draws on a terminal, and stdout is none: leave it out, and call `status` again instead"
        ));
    }
    let stop = stop_on_signals()?;
    write!(out, "{CLEAR}")?;
    while !stop.load(Ordering::Relaxed) {
        let survey = Survey::read(args, config, store)?;
        let details = args.id.map(|id| store.details(id, args.exact)).transpose()?;
        let mut drawn = None;
        let next = Moment::now() + PERIOD;
        while !next.passed() && !stop.load(Ordering::Relaxed) {
            let screen = Screen::of_stdout();
            if let Some(size) = screen.size.filter(|_| drawn != Some(screen)) {
                let lines = match &details {
                    Some(details) => full::lines(&survey, details, &screen),
                    None => fitted(&survey, &screen, size),
                };
                draw(out, &survey, &lines, &screen, size)?;
                drawn = Some(screen);
            }
            std::thread::sleep(TICK.min(next.left()));
        }
    }
    writeln!(out)?;
    Ok(Exit::Done)
}

/// The first signal ends it between two looks, a second one at once: the database may not answer.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The order matters: the first signal must find the flag still down.
        signal_hook::flag::register_conditional_shutdown(signal, 0, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("watch for signals")?;
    }
    Ok(stop)
}

/// The table with as many tasks as there is room for: those that have ended are left out first.
fn fitted(survey: &Survey, screen: &Screen, size: Size) -> Vec<String> {
    let all = list::lines(survey, screen);
    let notes = list::notes(survey, screen);
    let room = size.rows.saturating_sub(2);
    if all.len() <= room {
        return all;
    }
    let (heading, rows) = all.split_at(1);
    let ended = |state: &State| matches!(state, State::Finished(_) | State::Cancelled);
    let of = |has_ended: bool| {
        let tasks = survey.tasks.iter().zip(rows);
        tasks.filter(move |(seen, _)| ended(&seen.standing.state) == has_ended).map(|(_, row)| row)
    };
    // A third of the room, at most, is for what needs a person.
    let below = notes.len().min(room / 3);
    let above = room.saturating_sub(heading.len() + below + 1);
    let mut lines = heading.to_vec();
    lines.extend(of(false).chain(of(true)).take(above).cloned());
    let (tasks, sentences) = (survey.tasks.len().saturating_sub(above), notes.len() - below);
    lines.extend(notes.into_iter().take(below));
    let left_out: Vec<String> = [(tasks, "tasks"), (sentences, "notes")]
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{number} more {what}"))
        .collect();
    if !left_out.is_empty() {
        lines.push(format!("and {}: `batch-send status`", left_out.join(" and ")));
    }
    lines
}

/// Over what stood there. No line is wider than the terminal, and there are no more than it has rows: else it would scroll.
fn draw(out: &mut dyn Write, survey: &Survey, lines: &[String], screen: &Screen, size: Size) -> Result<()> {
    let Size { columns, rows } = size;
    let heading = format!("batch-send status, {}, ctrl-C ends it", show_time(&survey.now));
    let heading = screen.paint(Tint::Faint, &cut(&heading, columns));
    write!(out, "{HOME}{heading}{CLEAR_LINE}")?;
    let room = rows.saturating_sub(2);
    let fits = if lines.len() <= room { lines.len() } else { room.saturating_sub(1) };
    let more = format!("and {} more lines: without --watch", lines.len() - fits);
    for line in lines[..fits].iter().chain((fits < lines.len()).then_some(&more)) {
        write!(out, "\r\n{}{CLEAR_LINE}", cut_painted(line, columns))?;
    }
    write!(out, "\r\n{CLEAR_BELOW}")?;
    Ok(out.flush()?)
}

/// [`cut`] for a line with colours in it, which take no room.
fn cut_painted(line: &str, most: usize) -> String {
    let mut pieces = line.split('\x1b');
    let mut shown = cut(pieces.next().unwrap_or_default(), most);
    let mut left = most - width(&shown);
    for piece in pieces {
        let (colour, text) = piece.split_once('m').unwrap_or((piece, ""));
        let text = cut(text, left);
        left -= width(&text);
        shown += &format!("\x1b{colour}m{text}");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_take_no_room_when_a_line_is_cut() {
        let line = "ab \x1b[2mcdef\x1b[0m  gh";
        assert_eq!(cut_painted(line, 20), line);
        assert_eq!(cut_painted(line, 7), "ab \x1b[2mcdef\x1b[0m");
        assert_eq!(cut_painted(line, 5), "ab \x1b[2mc…\x1b[0m");
        assert_eq!(cut_painted("abcdef", 3), "ab…");
    }
}
