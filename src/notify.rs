//! `[notify]`: a program of the operator's that is told what became of a task, one event a call, as one JSON object on its
//! stdin. Called when nothing is in flight any more. It may fail or hang: that is said, and changes nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::moment::{self, Moment};
use crate::patience;
use crate::sender::{Outcome, Secrets, Sender, exec};
use crate::task::{Counts, Task, TaskId, show_time};
use crate::who;

/// A program that takes longer is killed, with its process group.
const TIMEOUT: Duration = Duration::from_secs(10);

/// For all events of a run. Past it no further program is started.
const ALL: Duration = Duration::from_secs(30);

/// What became of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    Finished,
    Paused,
    /// Paused, since its time was over.
    Expired,
    /// Targets of it became unknown.
    Unknown,
}

impl Happened {
    fn word(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Paused => "paused",
            Self::Expired => "expired",
            Self::Unknown => "unknown",
        }
    }
}

/// One event of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub happened: Happened,
    pub task: TaskId,
}

pub struct Notify {
    exec: Arc<exec::Exec>,
    secrets: Secrets,
    run: Uuid,
}

impl Notify {
    pub fn check(command: &[String]) -> Result<()> {
        settings(command).check()
    }

    /// `secrets`: what must not show, though the program may say it.
    pub fn open(command: &[String], secrets: &[String], run: Uuid) -> Result<Self> {
        Ok(Self {
            exec: Arc::new(exec::Exec::open(&settings(command), TIMEOUT)?),
            secrets: Secrets::new(secrets.iter().map(String::as_str)),
            run,
        })
    }

    /// Whether the program is there, and is this user's to run. It is not started.
    pub fn probe(&self) -> Result<String, String> {
        let hidden = |mut text: String| {
            self.secrets.hide(&mut text);
            text
        };
        self.exec.probe().map(hidden).map_err(hidden)
    }

    /// Tells of each event, in turn. `look` asks the database how the task stands now.
    pub fn tell(&self, events: &[Event], look: &mut dyn FnMut(TaskId) -> Option<(Task, Counts)>) {
        let until = Moment::now() + ALL;
        for (told, event) in events.iter().enumerate() {
            let _about = crate::logger::about(event.task, None);
            let line = format!("{}\n", self.event(event, look(event.task)));
            if until.passed() {
                let left = events.len() - told;
                log::warn!("[notify] has no time left: {left} of {} events were not told", events.len());
                return;
            }
            let exec = Arc::clone(&self.exec);
            // A program on a file system that has gone away is not even started within its time.
            let told = patience::within(2 * TIMEOUT, "notify", move || exec.hand(line.as_bytes(), until));
            let why = told.map_or_else(|error| Some(error.to_string()), failure);
            if let Some(mut why) = why {
                self.secrets.hide(&mut why);
                log::warn!(
                    "[notify] failed at {} of task {task}: {why}; mend the program or `command`; this is not told again, \
                     `batch-send status {task}` shows how the task stands",
                    event.happened.word(),
                    task = event.task
                );
            }
        }
    }

    fn event(&self, event: &Event, found: Option<(Task, Counts)>) -> Value {
        let (task, counts) = match &found {
            Some((task, counts)) => (
                json!({
                    "id": task.id,
                    "name": task.name,
                    "channel": task.channel,
                    "status": task.status.word(),
                    "status_reason": task.status_reason,
                }),
                json!({
                    "pending": counts.pending,
                    "processing": counts.processing,
                    "sending": counts.sending,
                    "retry": counts.retry,
                    "sent": counts.sent,
                    "failed": counts.failed,
                    "unknown": counts.unknown,
                    "total": counts.total(),
                    "estimated": counts.estimated,
                }),
            ),
            // The database is away.
            None => (
                json!({"id": event.task, "name": null, "channel": null, "status": null, "status_reason": null}),
                Value::Null,
            ),
        };
        json!({
            "event": event.happened.word(),
            "task": task,
            "counts": counts,
            "run": self.run.to_string(),
            "host": who::host(),
            "time": show_time(&moment::wall()),
        })
    }
}

fn settings(command: &[String]) -> exec::Settings {
    exec::Settings { command: command.to_vec(), exit_codes: exec::ExitCodes::default() }
}

fn failure(outcome: Outcome) -> Option<String> {
    match outcome {
        Outcome::Accepted { .. } => None,
        Outcome::Deferred { reason, .. }
        | Outcome::Rejected { reason }
        | Outcome::Unknown { reason }
        | Outcome::Unavailable { reason } => Some(reason),
    }
}
