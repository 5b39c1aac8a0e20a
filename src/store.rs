//! The seam to the database: what a run asks (`Relay`), what an operator asks (`Desk`), and the receipts by which
//! one step hands over to the next. The statements are in store/mysql.rs and store/sqlite.rs; what both must
//! do is store/conformance.rs. Nothing here knows of channels.
//!
//! ```text
//!             claim              begin             settle
//! pending -----------> processing -----> sending ---------> sent | failed | unknown | retry
//!   ^  ^                |    |              |                                           |
//!   |  '---- release ---'    '- refuse -> failed                                        |
//!   |                                       '--- settle Returned: back, not counted     |
//!   '------------------------------ promote, when retry_at has come --------------------'
//! ```
//!
//! "Never twice" rests on `begin` alone: a compare-and-set `processing -> sending` by id and token, committed before
//! the first byte leaves, and no way back from `sending` that is not an answer, a proof that nothing was accepted,
//! or a person. Every statement that moves a target names its id, its token and the status it must be in, and looks
//! at the number of rows changed. Leases save wasted work; nothing here relies on them.

mod backlog;
pub mod facts;
mod late;
pub mod migrations;
mod mysql;
mod sqlite;

#[cfg(test)]
mod conformance;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::backlog::Backlog;
use self::backlog::{Backlogs, COUNTED, TASKS};
use self::facts::Facts;
use crate::course::Courses;
use crate::message::Message;
use crate::moment::Moment;
use crate::suppression::{SUPPRESSED, Suppression};
use crate::target::{NewTarget, Target, TargetFacts, TargetId, TargetRow};
use crate::task::{Counts, NewTask, Task, TaskId, TaskStatus, When, show_time};

/// Longest texts, in characters, that the columns take. Texts are cut to them before they are written.
pub const RECIPIENT_MOST: usize = 255;
pub const NAME_MOST: usize = 191;
pub const CHANNEL_MOST: usize = 64;
pub const RECEIPT_MOST: usize = 191;
pub const REASON_MOST: usize = 500;

/// What `fenced` answers and audits say of a late "not accepted".
pub const ANSWERED_LATE: &str = "not accepted; answered late";

/// The channel of a suppression that is for all of them. No channel can be called so.
pub const EVERY_CHANNEL: &str = "*";

/// Why a task is cancelled that was finished and is being purged. What is open in it came after its end, and is not removed.
pub const PURGING: &str = "it is being purged";

/// What the audit calls a purge: these rows stay when all else of the task is gone.
pub const PURGE: &str = "purge";

/// Targets, or rows of the audit, that one step of a purge removes.
const PURGED_MOST: usize = 2_000;

/// For how long a task without any target, or whose channel nobody knows, is waited for before it pauses.
pub const PATIENCE: Duration = Duration::from_secs(600);

// ---- what a run and a lease are made of -------------------------------------------------------------------------

/// The times that a lease is granted under, and to whom.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Host and pid, for people.
    pub owner: String,
    /// The channel's name: who is suppressed for it gets nothing.
    pub channel: String,
    /// How long a lease, and a claim before its begin, lasts unless renewed.
    pub lease: Duration,
    /// From begin to the end of its send, the wait for an idle sender included. `begin` writes
    /// `claim_until = now + send + margin`.
    pub send: Duration,
    /// By how much our own deadlines come before the database's.
    pub margin: Duration,
    /// The provider remembers an idempotency key for so long.
    pub dedupe: Option<Duration>,
}

/// The right to work on a task. Renewed each second, given back by `close`.
#[must_use]
#[derive(Debug)]
pub struct Lease {
    task: TaskId,
    /// None: a forced run beside the holder, if any.
    token: Option<Uuid>,
    /// `halt_at` (ms since the epoch) when the lease was taken: if it moves, somebody paused or cancelled.
    halt: Option<i64>,
    /// Our own deadline, counted from before the request was sent, less the margin.
    until: Moment,
    terms: Terms,
    /// Unknowns and crashes since the last sent. Written back with each renewal and by close.
    unknown_run: u16,
    /// A forced run passes the pause that stood when it began, and no later one.
    passes_pause: bool,
    /// Nothing could be begun in it: the task is not the last served for it.
    turn_unused: bool,
}

impl Lease {
    /// Taken just now; the question was `asked` then.
    fn new(
        task: TaskId,
        token: Option<Uuid>,
        halt: Option<i64>,
        asked: Moment,
        terms: &Terms,
        unknown_run: u16,
        passes_pause: bool,
    ) -> Self {
        let until = asked + terms.lease - terms.margin;
        Self { task, token, halt, until, terms: terms.clone(), unknown_run, passes_pause, turn_unused: false }
    }

    pub fn task(&self) -> TaskId {
        self.task
    }

    /// Past this moment nothing may be begun.
    pub fn until(&self) -> Moment {
        self.until
    }

    /// Unknowns and crashes in a row, across runs.
    pub fn unknown_run(&self) -> u16 {
        self.unknown_run
    }

    /// Nothing could be begun, since the channel's pace went to others: it stays where it was in the order of turns.
    pub fn pass_turn(&mut self) {
        self.turn_unused = true;
    }

    /// Counts one answer: an Unknown lengthens the run of them, a Sent ends it.
    pub fn count(&mut self, settlement: &Settlement) {
        match settlement {
            Settlement::Sent { .. } => self.unknown_run = 0,
            Settlement::Unknown { .. } => self.unknown_run = self.unknown_run.saturating_add(1),
            Settlement::Failed { .. } | Settlement::Retry { .. } | Settlement::Returned { .. } => {}
        }
    }
}

/// A target stamped with our token, nothing sent.
#[must_use]
#[derive(Debug)]
pub struct Claimed {
    target: Target,
    token: Uuid,
    /// Past this moment it must not be begun.
    until: Moment,
}

impl Claimed {
    pub fn target(&self) -> &Target {
        &self.target
    }

    pub fn until(&self) -> Moment {
        self.until
    }

    /// With its message: ready to begin. `hash` is given on a channel whose provider deduplicates.
    pub fn ready(self, message: Message, hash: Option<[u8; 16]>) -> Ready {
        Ready { claimed: self, message, hash }
    }
}

/// A claimed target and what will be sent to it.
#[must_use]
#[derive(Debug)]
pub struct Ready {
    claimed: Claimed,
    message: Message,
    hash: Option<[u8; 16]>,
}

impl Ready {
    /// Back to a claim, to be released.
    pub fn unsent(self) -> Claimed {
        self.claimed
    }
}

/// Begun: the attempt is counted, `sending` is on disk, and the message may leave.
#[must_use]
#[derive(Debug)]
pub struct InFlight {
    id: TargetId,
    token: Uuid,
    attempt: u16,
    in_doubt: bool,
    /// Past this moment the first byte must not leave.
    until: Moment,
    message: Message,
}

impl InFlight {
    pub fn id(&self) -> TargetId {
        self.id
    }

    pub fn attempt(&self) -> u16 {
        self.attempt
    }

    pub fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    pub fn until(&self) -> Moment {
        self.until
    }

    pub fn message(&self) -> &Message {
        &self.message
    }

    pub fn answer(self, task: TaskId, settlement: Settlement) -> Answer {
        Answer { task, id: self.id, token: self.token, in_doubt: self.in_doubt, settlement }
    }
}

/// What we conclude from an outcome, and write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settlement {
    Sent {
        receipt: Option<String>,
    },
    Failed {
        reason: String,
    },
    /// Again, not before `after` from now. `in_doubt`: this attempt, or one before it, may have been accepted.
    Retry {
        reason: String,
        after: Duration,
        in_doubt: bool,
    },
    Unknown {
        reason: String,
    },
    /// Certainly not accepted, and no fault of the target: back to `pending`, the attempt given back.
    Returned {
        reason: String,
    },
}

/// A settlement on its way to its row. The journal's line, too, when it could not be written.
#[must_use]
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    task: TaskId,
    id: TargetId,
    token: Uuid,
    in_doubt: bool,
    settlement: Settlement,
}

// ---- what the store answers -------------------------------------------------------------------------------------

#[must_use]
#[derive(Debug)]
pub enum Leasing {
    Ours(Lease),
    /// Another run holds it.
    Held {
        owner: String,
        token: String,
    },
    /// It is not to be worked on: paused, cancelled, expired, not yet scheduled, or gone. The words say which.
    Closed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Ours,
    /// The lease ended and another run took it.
    Lost,
    /// The task was paused, cancelled or expired, or is gone.
    Halted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Every target is sent, failed or unknown: the task is finished.
    Finished,
    /// The lease is given back; something is left to do, now or later.
    Open,
    /// It was not ours any more.
    Lost,
    /// Nothing can be done here without a person; the task is paused with this reason.
    Paused(String),
}

/// What `recover` repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Back to pending: never begun, or begun with a key that the provider still remembers.
    pub pending: u64,
    /// Now unknown: begun by a run that died.
    pub unknown: u64,
    /// The tasks of those unknowns.
    pub doubtful: Vec<TaskId>,
    /// Paused here, since they expired, with the reason.
    pub expired: Vec<(TaskId, String)>,
    /// Finished tasks in which an open target turned up: pending again.
    pub reopened: Vec<TaskId>,
}

/// A due task whose channel this host does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    pub task: TaskId,
    pub channel: String,
    /// It waited for [`PATIENCE`] and is paused now.
    pub paused: bool,
}

/// What came of a settle.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Rows that say what the answers said.
    pub written: u64,
    /// Of those: answers that came after a recover had given them up.
    pub late: u64,
    /// Answers that changed nothing, since the row is in other hands or was settled by a person.
    pub fenced: Vec<TargetId>,
    /// Accepted, and the row is gone or bears another token: another attempt was made, or may be. Audited.
    pub duplicates: Vec<TargetId>,
}

impl Settled {
    pub fn add(&mut self, other: Self) {
        self.written += other.written;
        self.late += other.late;
        self.fenced.extend(other.fenced);
        self.duplicates.extend(other.duplicates);
    }
}

/// What came of a begin.
#[derive(Debug, Default)]
pub struct Begun {
    /// Those still ours: these may be sent, and only these.
    pub in_flight: Vec<InFlight>,
    /// Not begun: another run has them.
    pub fenced: Vec<TargetId>,
    /// Not begun, and unknown now: an earlier attempt may have arrived, and the provider would not recognise another, or the
    /// recipient is suppressed.
    pub unknown: Vec<TargetId>,
    /// Not begun, and failed now, since their recipients are suppressed. No attempt is counted.
    pub suppressed: Vec<TargetId>,
    pub settled: Settled,
}

/// Answers that could not be written, given back whole: to the journal, then again. After a failed begin, the targets that
/// may have been begun are among them, as returned: nothing of them was sent.
#[derive(Debug)]
pub struct Unwritten {
    pub answers: Vec<Answer>,
    pub why: anyhow::Error,
}

/// How long a channel is left alone.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// What the channel asked for. Absent: `first`, doubled for each hold in a row, up to `most`.
    pub asked: Option<Duration>,
    pub first: Duration,
    pub most: Duration,
}

/// A place in the pace of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Taken; it begins so long after the answer, and not before.
    In(Duration),
    /// Not taken: the next one is further away than the horizon.
    Later(Duration),
}

/// The schema as found, and whose database this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// 0: not migrated yet.
    pub version: u32,
    /// Made by the first migrate.
    pub installation: Option<Uuid>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    pub from: u32,
    pub to: u32,
    /// Names of the migrations applied, in order.
    pub applied: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    pub new: u64,
    /// Already there, or twice in these rows; the first stays.
    pub repeated: u64,
}

/// An act of a person, for `batch_audit`.
#[derive(Clone, Debug)]
pub struct Act<'a> {
    /// user@host
    pub who: &'a str,
    /// The verb.
    pub what: &'a str,
    pub why: Option<&'a str>,
}

/// What is told of one task, beside its row, its counts and its course.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// None: of so many targets ([`ATTEMPTS_MOST`]) they are summed up only when that is asked for.
    pub attempts: Option<Attempts>,
    /// The commonest reasons that targets bear which are not sent, with how many bear them, the commonest first: of each status the
    /// latest [`REASONS_MOST`], of those that are pending again the first.
    pub reasons: Vec<(String, u64)>,
    /// The first unknown targets.
    pub unknown: Vec<TargetRow>,
    /// The latest lines of `batch_audit`, the latest first.
    pub audit: Vec<Audited>,
    /// How many lines it has.
    pub audits: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    pub all: u64,
    /// Targets that needed more than one.
    pub repeated: u64,
}

/// A line of `batch_audit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    pub at: DateTime<Utc>,
    pub who: String,
    pub what: String,
    pub target: Option<TargetId>,
    pub why: Option<String>,
}

/// How many of each [`Details`] names.
pub const DETAILED: usize = 5;

/// Rows that `details` looks at, unless it is to be exact.
pub const ATTEMPTS_MOST: u64 = 200_000;
pub const REASONS_MOST: u64 = 10_000;
/// A task at one moment: what its targets of that moment are compared with.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// By the database's clock.
    pub at: DateTime<Utc>,
    pub task: Task,
    pub frozen: Option<Frozen>,
    /// How many targets it has, by a count of their own.
    pub targets: u64,
}

/// The counts that close wrote down for a finished task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frozen {
    pub sent: u64,
    pub failed: u64,
    pub unknown: u64,
}

/// What `turn` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turned {
    /// From this status to the new one.
    From(TaskStatus),
    /// It is in a status that this verb does not start from; nothing was changed.
    Refused(TaskStatus),
    NoSuchTask,
}

/// A change of `expires_at` that comes with `resume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    Keep,
    Never,
    Until(When),
}

// ---- the two traits ----------------------------------------------------------------------------------------------

/// What a run asks, in the order of the story.
pub trait Relay {
    /// The database's clock.
    fn now(&mut self) -> Result<DateTime<Utc>>;

    /// Repairs what dead runs left, of every unfinished task or of `only`, whatever its status and without a lease:
    /// `processing` whose claim ended goes back to pending; `sending` whose claim ended becomes unknown (to pending only while
    /// `dedupe_until` lasts), and its task's `unknown_run` grows by one. Reads the rows alone, never today's configuration.
    /// Also: pauses pending tasks that expired, sets `finished_at` of cancelled tasks with nothing in flight, and reopens tasks
    /// finished within the last hour in which an open target turned up (an application's late commit).
    fn recover(&mut self, only: Option<TaskId>) -> Result<Recovered>;

    /// Due tasks whose channel is not among `channels`: named in the log, and paused when nobody
    /// has served them for [`PATIENCE`] after they were first seen.
    fn strays(&mut self, channels: &[&str]) -> Result<Vec<Stray>>;

    /// The next task to work on, by priority, then the least recently served: pending, scheduled, not expired, lease free,
    /// channel among `channels` and not held, not in `left_alone`, and with a pending target, a due retry, or nothing open.
    fn due(&mut self, channels: &[&str], left_alone: &[TaskId]) -> Result<Option<Task>>;

    /// Takes the lease by compare-and-set; with `beside` takes none and goes beside whoever holds it. A schema that is
    /// not at our version is an error.
    fn lease(&mut self, task: TaskId, terms: &Terms, beside: bool) -> Result<Leasing>;

    /// Moves the end of the lease on and says how we stand. Also writes `unknown_run`.
    fn renew(&mut self, lease: &mut Lease) -> Result<Standing>;

    /// Due retries back to pending, at most some thousands a call. How many.
    fn promote(&mut self, lease: &Lease) -> Result<u64>;

    /// Stamps up to `most` pending targets with one fresh token. Committed when it returns.
    fn claim(&mut self, lease: &Lease, most: usize) -> Result<Vec<Claimed>>;

    /// Ends targets whose message cannot be made, with the reason: failed, or unknown when in doubt. How many.
    fn refuse(&mut self, lease: &Lease, refused: Vec<(Claimed, String)>) -> Result<u64>;

    /// One commit: settles `answers` and begins `ready`, but for those whose recipient is suppressed when it is written: these
    /// end here. What it returns as in flight may be sent; nothing else.
    fn begin(&mut self, lease: &Lease, ready: Vec<Ready>, answers: Vec<Answer>) -> Result<Begun, Unwritten>;

    /// Writes what the channel said. Needs no lease: an answer counts whoever holds the task. Cannot fail on data:
    /// texts are cut and cleaned, and a group that still fails is written row by row.
    fn settle(&mut self, answers: Vec<Answer>) -> Result<Settled, Unwritten>;

    /// Gives back what was claimed and not begun. How many.
    fn release(&mut self, rest: Vec<Claimed>) -> Result<u64>;

    /// Takes the channel's next slot, `span` before the one after it, if it comes within `horizon`. By the database's clock, so
    /// that all hosts share one pace. No slot is given to two; one whose answer was lost is nobody's.
    fn reserve(&mut self, channel: &str, span: Duration, horizon: Duration) -> Result<Slot>;

    /// Leaves a channel alone: its tasks are not due, and its slots do not begin, until the hold is over. For how long.
    fn hold(&mut self, channel: &str, hold: &Hold) -> Result<Duration>;

    /// Pauses the task while the lease is ours (beside a holder: while it is pending). Whether it did.
    fn pause(&mut self, lease: &Lease, reason: &str) -> Result<bool>;

    /// Gives the lease back, and finishes the task when nothing of it is open. A forced run never finishes one.
    fn close(&mut self, lease: Lease) -> Result<Closed>;

    /// What waits and what is in doubt, of every channel of which there is any: for metrics, and cheap however many targets
    /// there are.
    fn backlog(&mut self) -> Result<Vec<Backlog>>;
}

/// What an operator asks. Needs no lease; acts of a person are audited.
pub trait Desk {
    fn schema(&mut self) -> Result<Schema>;

    /// Brings the schema to our version. Safe when two do it at once; waits for live leases, at most `patience`; refuses a
    /// newer database.
    fn migrate(&mut self, patience: Duration) -> Result<Migrated>;

    /// Drops every table of this prefix: for the demo's own.
    fn drop_tables(&mut self) -> Result<()>;

    /// A new task, in draft.
    fn create(&mut self, task: &NewTask<'_>) -> Result<TaskId>;

    /// Adds targets; repeats are merged, the first stays. A finished task becomes pending again. Errors: no such task, or
    /// a cancelled one ([`crate::trouble::Kind::Usage`]).
    fn add(&mut self, task: TaskId, rows: &[NewTarget]) -> Result<Added>;

    /// One compare-and-set for start, pause, resume and cancel: `from` any of these, `to` that. `reason` goes to `status_reason`
    /// (NULL without one); pause and cancel move `halt_at`; resume sets `unknown_run` to 0; cancel sets `finished_at` when nothing
    /// is in flight.
    fn turn(
        &mut self,
        task: TaskId,
        from: &[TaskStatus],
        to: TaskStatus,
        reason: Option<&str>,
        expiry: Expiry,
        act: &Act<'_>,
    ) -> Result<Turned>;

    /// One task, as it is now.
    fn task(&mut self, id: TaskId) -> Result<Option<Task>>;

    /// Tasks with their counts, newest first. Unless `exact`, finished ones answer from what close froze (`only` one: if nothing of
    /// it is open again), and of a large table about a million targets are counted, the smallest tasks first; the other tasks are
    /// estimated.
    fn tasks(&mut self, only: Option<TaskId>, exact: bool) -> Result<Vec<(Task, Counts)>>;

    /// How tasks move that are pending, or whose lease was never given back.
    fn courses(&mut self, only: Option<TaskId>) -> Result<Courses>;

    /// What else is told of one task. Unless `exact`, of a large one not everything is looked at.
    fn details(&mut self, task: TaskId, exact: bool) -> Result<Details>;

    /// The first `most` targets of a task that are not settled, as a run would meet them, without those that are suppressed. Claims
    /// nothing.
    fn peek(&mut self, task: TaskId, most: usize) -> Result<Vec<Target>>;

    /// One target of a task, whatever its status. Changes nothing.
    fn target(&mut self, task: TaskId, id: TargetId) -> Result<Option<Target>>;

    /// Those of these targets that the task has, in the order of id. For some hundreds at once: all are in memory.
    fn named(&mut self, task: TaskId, names: Names<'_>) -> Result<Vec<TargetRow>>;

    /// Every target of a task whose status is among `statuses` (empty: all), in the order of id, in flat memory. An error of `each`
    /// ends it and is returned.
    fn targets(
        &mut self,
        task: TaskId,
        statuses: &[&str],
        each: &mut dyn FnMut(TargetRow) -> Result<()>,
    ) -> Result<()>;

    /// A task and what a report needs of each of its targets, all as they were at one moment, whatever runs do meanwhile. Those
    /// of one status come in the order of id; in flat memory. None: there is no such task. An error of `each` ends it and is
    /// returned; `each` must not ask the store. Lost after the first target, the database is not asked again
    /// ([`crate::trouble::Kind::TryLater`]).
    fn snapshot(
        &mut self,
        task: TaskId,
        each: &mut dyn FnMut(TargetFacts) -> Result<()>,
    ) -> Result<Option<Snapshot>>;

    /// Settles unknown targets (all, or these) by a person's word: `Sent`, `Failed` or `Pending`. Recovers first. How many were
    /// unknown and are settled now. Errors: no such task; pending in a cancelled one.
    fn resolve(
        &mut self,
        task: TaskId,
        targets: Option<&[TargetId]>,
        to: Verdict,
        act: &Act<'_>,
    ) -> Result<u64>;

    /// One more attempt, with a new key, for failed targets (all, or these). How many were failed and are pending now. Errors: no
    /// such task; a cancelled one.
    fn requeue(&mut self, task: TaskId, targets: Option<&[TargetId]>, act: &Act<'_>) -> Result<Requeued>;

    /// Tasks that ended at least `age` ago, in the order of id: finished, or cancelled with nothing in flight.
    fn ended(&mut self, age: Duration) -> Result<Vec<Task>>;

    /// Ends such a task for good, so that it can be purged: cancelled, which no run works on, nobody adds to and nobody opens
    /// again, with [`PURGING`] for its reason where it was finished. Audited once, however often it is gone on with. Says why
    /// it must stay, if so; then nothing is changed.
    ///
    /// It comes before the first target goes, since a task that has lost some of them has forgotten who got its message: whoever is
    /// added to it once more would get it twice.
    fn condemn(
        &mut self,
        task: TaskId,
        age: Duration,
        with_unknown: bool,
        act: &Act<'_>,
    ) -> Result<Option<Stays>>;

    /// Removes the next of its targets behind `after`, some thousands at most, in one short transaction that begins with the task's
    /// row: unless that still says what `condemn` made it say, nothing is removed. What came to it meanwhile stays, and the task with
    /// it. With the last of its targets the rest of its audit goes, but for what tells of the purge, and then the task.
    fn purge(&mut self, task: TaskId, age: Duration, with_unknown: bool, after: TargetId) -> Result<Purged>;

    /// From now on these get nothing. Repeats are merged, the first stays. Errors: a recipient or a channel that is too long
    /// ([`crate::trouble::Kind::Usage`]).
    fn suppress(&mut self, rows: &[Suppression], act: &Act<'_>) -> Result<Added>;

    /// Takes away the suppression for this channel; None: the one for every channel, and no other. How many there were.
    fn unsuppress(&mut self, recipient: &str, channel: Option<&str>, act: &Act<'_>) -> Result<u64>;

    /// Every suppression in the order of recipients, in flat memory. An error of `each` ends it and is returned.
    fn suppressions(&mut self, each: &mut dyn FnMut(Suppression) -> Result<()>) -> Result<()>;
}

/// A person's word on an unknown target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Sent,
    Failed,
    /// Certainly not delivered: to be sent again, under the same key.
    Retry,
}

/// What came of a requeue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requeued {
    pub changed: u64,
    /// Of those: failed since their recipients were suppressed. Whoever still is fails again.
    pub suppressed: u64,
}

/// How a person says which targets.
#[derive(Clone, Copy, Debug)]
pub enum Names<'a> {
    Ids(&'a [TargetId]),
    /// As they stand in the rows; blanks at their end do not count.
    Recipients(&'a [String]),
}

/// Why a task is not purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// It is at work again, or has been until lately, or is gone.
    NotEnded,
    /// A run has some of its targets, or somebody added to it after its end.
    Open,
    Unknown,
    /// There is no such task any more: another purge was at it.
    Gone,
}

/// What one step of a purge did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purged {
    /// So many targets are gone, and there may be more behind this one.
    Some(u64, TargetId),
    /// The last of them are gone, and the task.
    Whole,
    Stays(Stays),
}

pub trait Store: Relay + Desk {}
impl<T: Relay + Desk> Store for T {}

// ---- opening -----------------------------------------------------------------------------------------------------

/// Which form of claim the MySQL adapter uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimForm {
    /// Skip-locked where the server has it and is no Galera node.
    #[default]
    Auto,
    SkipLocked,
    Update,
}

/// A database, from which stores are taken: on MySQL each has a connection of its own, on SQLite they share one writer.
pub enum Database {
    MySql(mysql::Settings),
    Sqlite(Arc<Mutex<sqlite::Writer>>),
}

impl Database {
    /// `url`: `mysql://user:password@host/name?ssl_mode=..&ssl_ca=..&socket=..` or `sqlite:///absolute/path`. `prefix` is the
    /// tables'. Connects to nothing yet. Errors are about the URL.
    pub fn open(url: &str, prefix: &str, claim: ClaimForm) -> Result<Self> {
        if url.starts_with("sqlite:") {
            return Ok(Self::Sqlite(Arc::new(Mutex::new(sqlite::Writer::new(url, prefix)?))));
        }
        Ok(Self::MySql(mysql::Settings::new(url, prefix, claim)?))
    }

    /// One store. Errors: database unreachable ([`crate::trouble::Kind::TryLater`]); access denied or unknown database
    /// ([`crate::trouble::Kind::Usage`]).
    pub fn store(&self) -> Result<Box<dyn Store>> {
        Ok(match self {
            Self::MySql(settings) => Box::new(mysql::MySql::connect(settings)?),
            Self::Sqlite(writer) => Box::new(sqlite::Sqlite::new(Arc::clone(writer))?),
        })
    }

    /// What the database says of itself, for `check`. Writes nothing. Errors: as of [`Self::store`].
    pub fn examine(&self) -> Result<Facts> {
        Ok(match self {
            Self::MySql(settings) => Facts::Server(Box::new(mysql::examine(settings)?)),
            Self::Sqlite(writer) => {
                let writer = writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                Facts::File(Box::new(writer.examine()?))
            }
        })
    }

    /// How often the server had to be asked again, over all stores of this process.
    pub fn retries(&self) -> u64 {
        match self {
            Self::MySql(settings) => settings.retries.load(Ordering::Relaxed),
            Self::Sqlite(_) => 0,
        }
    }

    /// What tells this installation's database and tables from others, without secrets: for the name of the lock file.
    pub fn identity(&self) -> String {
        match self {
            Self::MySql(settings) => settings.identity(),
            Self::Sqlite(writer) => writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).identity(),
        }
    }
}

/// Why a task is not to be worked on, if so, and the way out. `beside`: a forced run passes a pause and the schedule.
fn refusal(task: &Task, beside: bool) -> Option<String> {
    let Task { id, channel, .. } = task;
    match task.status {
        TaskStatus::Draft => {
            Some(format!("task {id} is a draft: `batch-send task start {id}` lets it be sent"))
        }
        TaskStatus::Finished => Some(format!("task {id} is finished")),
        TaskStatus::Cancelled => Some(format!("task {id} is cancelled, for good")),
        TaskStatus::Paused if !beside => {
            let reason = task.status_reason.as_deref().map_or(String::new(), |reason| format!(" ({reason})"));
            Some(format!(
                "task {id} is paused{reason}: `batch-send task resume {id}` lets it go on, --force runs it all the same"
            ))
        }
        _ if task.expired => Some(format!(
            "task {id} has expired: `batch-send task resume {id} --until TIME` gives it a new end"
        )),
        _ if task.early && !beside => {
            let at = task.scheduled_at.map_or(String::new(), |at| format!(" for {}", show_time(&at)));
            Some(format!("task {id} is scheduled{at}: --force runs it now"))
        }
        _ => task.held_until.map(|until| {
            format!("task {id} waits: channel {channel} is left alone until {}", show_time(&until))
        }),
    }
}

/// Why a task whose time is over is paused.
fn expired(at: Option<DateTime<Utc>>) -> String {
    at.map_or("it expired".into(), |at| format!("it expired at {}", show_time(&at)))
}

/// Valid text without NUL, cut by characters: what every column takes.
fn fit(text: &str, most: usize) -> String {
    text.chars().filter(|c| *c != '\0').take(most).collect()
}

/// What the audit says of an act on suppressions, whose row has no target to name: whom it was about, and why.
fn about(whom: &str, channel: Option<&str>, act: &Act<'_>) -> String {
    let channel = channel.map_or(String::new(), |channel| format!(" (channel {channel})"));
    let why = act.why.map_or(String::new(), |why| format!(": {why}"));
    format!("{whom}{channel}{why}")
}

/// Whom a call of `suppress` was about.
fn about_all(rows: &[Suppression], new: u64, act: &Act<'_>) -> String {
    match rows {
        [one] => about(one.recipient.trim(), one.channel.as_deref(), act),
        _ => about(&format!("{new} recipients"), None, act),
    }
}

/// A time read as text or a number; `None` for the zero date of a careless application.
fn time(ms: Option<i64>) -> Option<DateTime<Utc>> {
    ms.filter(|ms| *ms != 0).and_then(DateTime::from_timestamp_millis)
}
