//! What a run has to tell at its end: one sentence on stderr for each thing that a person must know, and the exit code. What it
//! did besides goes to the log, for those who ask with -v.

use anyhow::{Error, Result};

use crate::delivery::{Ended, Served};
use crate::exit::Exit;
use crate::journal::Replayed;
use crate::notify::{Event, Happened};
use crate::store::Settled;
use crate::task::TaskId;

/// Of one lane; those of all lanes are added up.
#[derive(Default)]
pub(super) struct Report {
    for_a_person: bool,
    /// The database failed this lane; it asks it nothing more.
    pub lost_database: bool,
    failure: Option<Error>,
    /// What became of tasks, each once.
    events: Vec<Event>,
}

impl Report {
    /// The first failure is the one to tell; the others are most likely its consequences.
    pub fn fail(&mut self, error: Error) {
        match self.failure {
            None => self.failure = Some(error),
            Some(_) => log::info!("also: {error:#}"),
        }
    }

    fn happened(&mut self, happened: Happened, task: TaskId) {
        let event = Event { happened, task };
        if !self.events.contains(&event) {
            self.events.push(event);
        }
    }

    pub fn finished(&mut self, task: TaskId) {
        log::info!(task; "finished");
        self.happened(Happened::Finished, task);
    }

    /// `recipient`: whom the reason may repeat; empty: nobody.
    pub fn paused(&mut self, task: TaskId, reason: &str, recipient: &str) {
        self.for_a_person = true;
        log::warn!(task, recipient; "task {task} is paused: {reason}; `batch-send task resume {task}` lets it go on");
        self.happened(Happened::Paused, task);
    }

    pub fn expired(&mut self, task: TaskId, reason: &str) {
        self.for_a_person = true;
        log::warn!(
            task;
            "task {task} is paused: {reason}; `batch-send task resume {task} --until TIME` gives it a new end"
        );
        self.happened(Happened::Expired, task);
    }

    pub fn doubtful(&mut self, task: TaskId, reason: &str) {
        self.for_a_person = true;
        log::warn!(
            task;
            "task {task} has unknown targets ({reason}): see them with `batch-send targets {task} --status unknown`, \
             settle them with `batch-send resolve {task} --all --as VERDICT` (sent, failed or retry)"
        );
        self.happened(Happened::Unknown, task);
    }

    pub fn replayed(&mut self, replayed: &Replayed) {
        self.for_a_person |= replayed.unreadable > 0;
        self.settled(&replayed.settled);
    }

    pub fn settled(&mut self, settled: &Settled) {
        if !settled.fenced.is_empty() {
            log::info!("settled by others meanwhile: targets {:?}", settled.fenced);
        }
        if !settled.duplicates.is_empty() {
            self.for_a_person = true;
            log::warn!(
                "targets {:?} were accepted, but their rows are gone or another attempt's: they may get, or have got, the \
                 message twice; batch_audit has it",
                settled.duplicates
            );
        }
    }

    pub fn served(&mut self, task: TaskId, served: Served) {
        log::info!(
            task,
            begun = served.begun,
            sent = served.sent,
            failed = served.failed,
            retry = served.retry,
            unknown = served.unknown,
            returned = served.returned,
            refused = served.refused,
            late = served.settled.late,
            ended = served.ended.as_ref().map_or("the database failed".into(), Ended::to_string);
            "served"
        );
        self.settled(&served.settled);
        if served.unknown > 0 {
            self.doubtful(task, &format!("{} sends without a clear answer", served.unknown));
        }
        if let Some(Ended::Paused(reason)) = &served.ended {
            self.paused(task, reason, served.paused_at.as_deref().unwrap_or_default());
        }
        if let Some(error) = served.failure {
            self.lost_database = true;
            self.fail(error);
        }
    }

    pub fn add(&mut self, other: Self) {
        self.for_a_person |= other.for_a_person;
        for Event { happened, task } in other.events {
            self.happened(happened, task);
        }
        if let Some(error) = other.failure {
            self.fail(error);
        }
    }

    pub fn exit(&self) -> Exit {
        if self.for_a_person { Exit::ForAPerson } else { Exit::Done }
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }

    pub fn end(&mut self) -> Result<Exit> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(self.exit()),
        }
    }
}
