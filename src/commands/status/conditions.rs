//! `--fail-if`: what a monitor asks after, and a sentence for each that is true.

use anyhow::Result;
use chrono::TimeDelta;

use super::state::{Times, span};
use super::{Seen, Survey, tasks};
use crate::cli::Condition;
use crate::exit::Exit;
use crate::task::{TaskId, TaskStatus, show_time};

/// Says on stderr what is true: as errors, so that --quiet does not hide why the exit is 3.
pub fn answer(conditions: &[Condition], survey: &Survey) -> Result<Exit> {
    let mut exit = Exit::Done;
    for sentence in conditions.iter().filter_map(|condition| condition.sentence(survey)) {
        log::error!("{sentence}");
        exit = Exit::ForAPerson;
    }
    Ok(exit)
}

impl Condition {
    /// What is true of it, if anything.
    fn sentence(&self, survey: &Survey) -> Option<String> {
        let those = |holds: &dyn Fn(&Seen) -> bool| {
            let ids: Vec<TaskId> =
                survey.tasks.iter().filter(|seen| holds(seen)).map(|seen| seen.task.id).collect();
            (!ids.is_empty()).then_some(ids)
        };
        // Of one alone there is more to say.
        let one = |ids: &[TaskId]| match ids {
            [id] => survey.tasks.iter().find(|seen| seen.task.id == *id),
            _ => None,
        };
        let counted = |word: &str, count: &dyn Fn(&Seen) -> u64| {
            let ids = those(&|seen| count(seen) > 0)?;
            let sum: u64 = survey.tasks.iter().map(count).sum();
            let about = if survey.tasks.iter().any(|seen| seen.counts.estimated) { "about " } else { "" };
            Some(format!("{word}: {about}{}, of {}", crate::commands::output::targets(sum), tasks(&ids)))
        };
        match self {
            Self::Unknown => counted("unknown", &|seen| seen.counts.unknown),
            Self::Failed => counted("failed", &|seen| match seen.task.status {
                // For good: nothing can be done about it.
                TaskStatus::Cancelled => 0,
                _ => seen.counts.failed,
            }),
            Self::Paused => {
                let ids = those(&|seen| seen.task.status == TaskStatus::Paused)?;
                let why = one(&ids).and_then(|seen| seen.task.status_reason.as_deref());
                let why =
                    why.map_or(String::new(), |why| format!(" ({})", crate::commands::output::plain(why)));
                Some(format!("paused: {}{why}", tasks(&ids)))
            }
            Self::Stalled => {
                let ids = those(&|seen| seen.standing.stall.is_some())?;
                let why = one(&ids).and_then(|seen| seen.standing.stall.as_ref());
                let why = why.map_or(String::new(), |stall| format!(" ({})", stall.text(Times::Whole)));
                Some(format!("stalled: {}{why}", tasks(&ids)))
            }
            Self::Backlog(most) => {
                let most_delta = TimeDelta::from_std(*most).unwrap_or(TimeDelta::MAX);
                let late =
                    |seen: &Seen| seen.standing.due_since.filter(|since| survey.now - *since > most_delta);
                let ids = those(&|seen| late(seen).is_some())?;
                let oldest = survey.tasks.iter().filter_map(late).min()?;
                Some(format!(
                    "backlog: due for longer than {} and not sent, of {}, the oldest since {}",
                    span(*most),
                    tasks(&ids),
                    show_time(&oldest)
                ))
            }
        }
    }
}
