//! The store on MySQL and MariaDB: what a run asks (`Relay`). Of it, begin and settle are in mysql/settle.rs, what is repaired first
//! in mysql/recover.rs, a channel's slots and holds in mysql/pace.rs, who is left alone in mysql/suppression.rs. What an operator
//! asks is in mysql/desk.rs, what `status` shows in mysql/survey.rs, how ended tasks are removed in mysql/purge.rs, how the server is
//! spoken to in mysql/connection.rs, what it says of itself in
//! mysql/check.rs, what metrics show in mysql/backlog.rs.
//!
//! A transaction travels as one text of several statements wherever that is possible: one round trip, and a
//! process that is stopped in the middle holds no lock. Ids, tokens and numbers stand in the text; words of others are quoted by
//! the driver under a sql_mode that we set ourselves. Rows are locked in the order task, then targets by id. Statements
//! that find targets by status or time name their index: without it, servers were seen to walk a whole table.

mod backlog;
mod check;
mod connection;
mod desk;
mod grants;
mod pace;
mod purge;
mod recover;
mod settle;
mod snapshot;
mod sql;
mod suppression;
mod survey;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::rc::Rc;

use anyhow::{Context, anyhow};

pub use self::check::examine;
pub use self::connection::Settings;
use self::connection::{BEGIN, Cells, Connection, Fault};
use self::settle::strip;
use self::sql::*;
use super::late::{Meaning, duplicate, forgets, meaning};
use super::*;
use crate::task::Holder;
use crate::trouble::Trouble;

pub struct MySql {
    connection: Connection,
    tables: Rc<Tables>,
    /// Hash of database and prefix: what a named lock is called by, which is the server's and not a database's.
    lock_name: String,
    skip_locked: bool,
}

/// The tables' names, quoted.
struct Tables {
    prefix: String,
    task: String,
    target: String,
    pace: String,
    installation: String,
    migration: String,
    audit: String,
    suppression: String,
}

impl Tables {
    fn new(prefix: &str) -> Self {
        let name = |of: &str| format!("`{prefix}{of}`");
        Self {
            prefix: prefix.to_owned(),
            task: name("task"),
            target: name("task_target"),
            pace: name("pace"),
            installation: name("installation"),
            migration: name("migration"),
            audit: name("audit"),
            suppression: name("suppression"),
        }
    }
}

impl MySql {
    /// Connects. Errors: unreachable ([`crate::trouble::Kind::TryLater`]); access denied, no such database
    /// ([`crate::trouble::Kind::Usage`]).
    pub fn connect(settings: &Settings) -> Result<Self> {
        let connection = Connection::open(settings)?;
        let place = [settings.database.as_str(), &settings.prefix].join("\0");
        let server = connection.server;
        Ok(Self {
            connection,
            tables: Rc::new(Tables::new(&settings.prefix)),
            lock_name: format!("batch-send:{}", Uuid::new_v5(&Uuid::NAMESPACE_OID, place.as_bytes())),
            skip_locked: match settings.claim {
                ClaimForm::Auto => server.skip_locked && !server.galera,
                ClaimForm::SkipLocked => true,
                ClaimForm::Update => false,
            },
        })
    }

    /// One statement that reads.
    fn read(&mut self, what: &'static str, text: &str) -> Result<Vec<Cells>> {
        self.connection.attempt(what, |connection, _| Ok(last(connection.run(text)?).rows))
    }

    /// One statement that may be repeated without harm. Rows changed.
    fn write(&mut self, what: &'static str, text: &str) -> Result<u64> {
        self.connection.attempt(what, |connection, _| Ok(last(connection.run(text)?).changed))
    }
}

// ---- what a run asks ---------------------------------------------------------------------------------------------

impl Relay for MySql {
    fn now(&mut self) -> Result<DateTime<Utc>> {
        let row = self.read("read the clock", &format!("SELECT {}", ms("NOW(3)")))?.pop();
        let now = row.map_or(Ok(None), |mut row| row.maybe())?;
        time(now).context("the database does not know the time")
    }

    fn recover(&mut self, only: Option<TaskId>) -> Result<Recovered> {
        self.repair(only)
    }

    fn strays(&mut self, channels: &[&str]) -> Result<Vec<Stray>> {
        self.look_for_strays(channels)
    }

    fn due(&mut self, channels: &[&str], left_alone: &[TaskId]) -> Result<Option<Task>> {
        if channels.is_empty() {
            return Ok(None);
        }
        let text = due_tasks(&self.tables, channels, left_alone);
        let candidates = ids(self.read("look for a due task", &text)?)?;
        // The first is mostly due. Where thousands wait for their retries, larger steps cost fewer round trips.
        let (first, rest) = candidates.split_at(candidates.len().min(PROBED));
        for step in std::iter::once(first).chain(rest.chunks(PROBED_MOST)).filter(|step| !step.is_empty()) {
            let due = self.with_work(step)?;
            if let Some(id) = step.iter().find(|id| due.contains(id))
                && let Some(task) = self.task(*id)?
            {
                return Ok(Some(task));
            }
        }
        Ok(None)
    }

    fn lease(&mut self, task: TaskId, terms: &Terms, beside: bool) -> Result<Leasing> {
        let token = (!beside).then(Uuid::new_v4);
        let Tables { task: tasks, pace, migration, .. } = &*self.tables;
        let version = format!("(SELECT MAX(version) FROM {migration})");
        let not_held = format!(
            "NOT EXISTS (SELECT 1 FROM {pace} p WHERE p.channel = t.channel AND p.held_until > NOW(6)) \
             AND {version} = {}",
            migrations::VERSION
        );
        let take = match token {
            Some(token) => format!(
                "UPDATE {tasks} t SET lock_token = '{token}', lock_owner = {}, lock_at = NOW(3), lock_until = {}, \
                 started_at = COALESCE(started_at, NOW(3)) \
                 WHERE id = {task} AND status = 'pending' AND ({DUE} OR lock_token = '{token}') AND {not_held}",
                fitted(&terms.owner, NAME_MOST),
                after(terms.lease),
            ),
            None => format!(
                "UPDATE {tasks} t SET started_at = NOW(3) WHERE id = {task} AND started_at IS NULL \
                 AND status IN ('pending', 'paused') AND (expires_at IS NULL OR expires_at > NOW(3)) AND {not_held}"
            ),
        };
        let text = format!(
            "{BEGIN}{take}; SELECT {version}, lock_token, lock_owner, unknown_run, {}, {} FROM {} \
             WHERE t.id = {task} FOR UPDATE; COMMIT",
            ms("halt_at"),
            task_columns(),
            tasks_with_pace(&self.tables, ""),
        );
        let mut asked = Moment::now();
        let row = self.connection.attempt("take a lease", |connection, lost| {
            if !lost {
                asked = Moment::now();
            }
            let mut replies = connection.run(&text)?;
            replies.pop();
            Ok(last(replies).rows.pop())
        })?;
        let Some(mut row) = row else {
            return Ok(Leasing::Closed(format!("there is no task {task}")));
        };
        check_version(row.maybe()?.unwrap_or(0))?;
        let (holder, owner) = (row.text(), row.text());
        let (unknown_run, halt) = (row.number()?, row.maybe()?);
        let found = read_task(&mut row)?;
        let ours = token.is_some_and(|token| holder.as_deref() == Some(token.to_string().as_str()));
        if !ours {
            if let Some(why) = refusal(&found, beside) {
                return Ok(Leasing::Closed(why));
            }
            if !beside {
                return Ok(Leasing::Held {
                    owner: owner.unwrap_or_else(|| "another run".into()),
                    token: holder.unwrap_or_default(),
                });
            }
        }
        let passes_pause = beside && found.status == TaskStatus::Paused;
        Ok(Leasing::Ours(Lease::new(task, token, halt, asked, terms, unknown_run, passes_pause)))
    }

    fn renew(&mut self, lease: &mut Lease) -> Result<Standing> {
        let tasks = &self.tables.task;
        let (task, halt) = (lease.task, moment(lease.halt));
        // Paused and resumed in between is a halt, too: the count of unknowns that we hold is no longer the task's.
        let take = lease.token.map_or_else(String::new, |token| {
            format!(
                "UPDATE {tasks} SET lock_until = {}, unknown_run = {} WHERE id = {task} AND lock_token = '{token}' \
                 AND status = 'pending' AND halt_at <=> {halt} AND (expires_at IS NULL OR expires_at > NOW(3))",
                after(lease.terms.lease),
                lease.unknown_run
            )
        });
        let look = format!(
            "SELECT lock_token, status IN ('pending', {}) AND halt_at <=> {halt} \
             AND (expires_at IS NULL OR expires_at > NOW(3)) FROM {tasks} WHERE id = {task} FOR UPDATE",
            if lease.passes_pause { "'paused'" } else { "'pending'" },
        );
        let asked = Moment::now();
        let standing = self.connection.attempt("renew a lease", |connection, _| {
            if lease.token.is_some() && last(connection.run(&take)?).changed == 1 {
                return Ok(Standing::Ours);
            }
            let Some(mut row) = last(connection.run(&look)?).rows.pop() else {
                return Ok(Standing::Halted);
            };
            let (holder, stands) = (row.text(), row.flag()?);
            let ours = lease.token.is_none_or(|token| holder.as_deref() == Some(token.to_string().as_str()));
            Ok(match (ours, stands) {
                (false, _) => Standing::Lost,
                (true, false) => Standing::Halted,
                (true, true) => Standing::Ours,
            })
        })?;
        if standing == Standing::Ours {
            lease.until = asked + lease.terms.lease - lease.terms.margin;
        }
        Ok(standing)
    }

    fn promote(&mut self, lease: &Lease) -> Result<u64> {
        let mut promoted = 0;
        let target = self.tables.target.clone();
        for _ in 0..10 {
            let text = due_retries(&target, lease.task);
            let mut ids = ids(self.read("look for due retries", &text)?)?;
            if ids.is_empty() {
                break;
            }
            ids.sort_unstable();
            let text = format!(
                "UPDATE {target} SET status = 'pending', retry_at = NULL \
                 WHERE id IN ({}) AND status = 'retry' AND retry_at <= NOW(3)",
                list(&ids)
            );
            promoted += self.write("promote due retries", &text)?;
            if ids.len() < CHUNK {
                break;
            }
        }
        Ok(promoted)
    }

    fn claim(&mut self, lease: &Lease, most: usize) -> Result<Vec<Claimed>> {
        let token = Uuid::new_v4();
        let target = &self.tables.target;
        let stamp = format!(
            "status = 'processing', cron_token = '{token}', claim_until = {}",
            after(lease.terms.lease)
        );
        // Always inside a transaction, so that it is answered where it was written. It locks nothing: the rows are ours, and
        // locks on the others met in this index were seen to deadlock with their begin.
        let ours = claimed_with(target, lease.task, token);
        let skip_locked = self.skip_locked;
        let mut asked = Moment::now();
        let rows = self.connection.attempt("claim targets", |connection, lost| {
            if lost {
                // Nobody said whether the claim before this one was committed. The token is its own: it shows.
                let mut replies = connection.run(&format!("{BEGIN}{ours}; COMMIT"))?;
                replies.pop();
                let rows = last(replies).rows;
                if !rows.is_empty() {
                    return Ok(rows);
                }
            } else {
                asked = Moment::now();
            }
            if !skip_locked {
                let update = stamp_pending(target, lease.task, &stamp, most);
                let mut replies = connection.run(&format!("{BEGIN}{update}; {ours}; COMMIT"))?;
                replies.pop();
                return Ok(last(replies).rows);
            }
            let found = connection.run(&format!("{BEGIN}{}", lock_pending(target, lease.task, most)))?;
            let ids = list(ids(last(found).rows)?);
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let mut replies = connection.run(&format!(
                "UPDATE {target} SET {stamp} WHERE id IN ({ids}) AND status = 'pending'; \
                 SELECT {TARGET_COLUMNS} FROM {target} \
                 WHERE id IN ({ids}) AND status = 'processing' AND cron_token = '{token}' ORDER BY id; COMMIT"
            ))?;
            replies.pop();
            Ok(last(replies).rows)
        })?;
        let until = asked + lease.terms.lease - lease.terms.margin;
        rows.into_iter().map(|mut row| Ok(Claimed { target: read_target(&mut row)?, token, until })).collect()
    }

    fn refuse(&mut self, _lease: &Lease, mut refused: Vec<(Claimed, String)>) -> Result<u64> {
        refused.sort_by_key(|(claimed, _)| (claimed.token, claimed.target.in_doubt, claimed.target.id));
        let mut changed = 0;
        for group in
            refused.chunk_by(|(a, _), (b, _)| a.token == b.token && a.target.in_doubt == b.target.in_doubt)
        {
            for group in group.chunks(CHUNK) {
                let (first, _) = &group[0];
                let target = &self.tables.target;
                let status = if first.target.in_doubt { "unknown" } else { "failed" };
                let which = format!(
                    "WHERE id IN ({}) AND cron_token = '{}'",
                    list(group.iter().map(|(claimed, _)| claimed.target.id)),
                    first.token
                );
                let reasons: Vec<_> = group
                    .iter()
                    .map(|(claimed, reason)| (claimed.target.id, fitted(reason, REASON_MOST)))
                    .collect();
                let text = format!(
                    "UPDATE {target} SET status = '{status}', settled_at = NOW(3), last_error = {} \
                     {which} AND status = 'processing'",
                    by_id(&reasons)
                );
                let count =
                    format!("SELECT COUNT(*) FROM {target} {which} AND status = '{status}' FOR UPDATE");
                changed += self.connection.attempt("refuse targets", |connection, lost| {
                    let changed = last(connection.run(&text)?).changed;
                    if !lost {
                        return Ok(changed);
                    }
                    let counted = last(connection.run(&count)?).rows.pop();
                    Ok(counted.map_or(Ok(0), |mut row| row.number())?)
                })?;
            }
        }
        Ok(changed)
    }

    fn begin(&mut self, lease: &Lease, ready: Vec<Ready>, answers: Vec<Answer>) -> Result<Begun, Unwritten> {
        let mut doubtful = false;
        let why = match self.write_begin(lease, &ready, &answers, &mut doubtful) {
            Ok(written) => return Ok(written.into_begun(ready, lease)),
            Err(Fault::Data(_)) if !answers.is_empty() => {
                // One of the answers does not fit; nothing was begun. Settled by themselves they always fit.
                let settled = self.settle(answers)?;
                return self.begin(lease, ready, Vec::new()).map(|mut begun| {
                    begun.settled = settled;
                    begun
                });
            }
            Err(fault) => {
                doubtful |= matches!(fault, Fault::Lost(_));
                fault.into_error().context("cannot begin targets")
            }
        };
        let mut unwritten = answers;
        if doubtful {
            unwritten.extend(ready.into_iter().map(|ready| Answer {
                task: lease.task,
                id: ready.claimed.target.id,
                token: ready.claimed.token,
                in_doubt: ready.claimed.target.in_doubt,
                settlement: Settlement::Returned {
                    reason: "not sent: the database did not say whether it had begun".into(),
                },
            }));
        }
        Err(Unwritten { answers: unwritten, why })
    }

    fn settle(&mut self, mut answers: Vec<Answer>) -> Result<Settled, Unwritten> {
        let why = match self.write_settle(&answers) {
            Ok(settled) => return Ok(settled),
            Err(Fault::Data(why)) => match answers.as_mut_slice() {
                [] => why,
                [answer] => {
                    let texts = strip(&mut answer.settlement);
                    log::error!("target {}: written without its texts ({texts}): {why:#}", answer.id);
                    match self.write_settle(&answers) {
                        Ok(settled) => return Ok(settled),
                        Err(fault) => fault.into_error(),
                    }
                }
                // Row by row, so that the others do not suffer.
                _ => {
                    let mut settled = Settled::default();
                    let mut rest = answers.into_iter();
                    while let Some(answer) = rest.next() {
                        match self.settle(vec![answer]) {
                            Ok(one) => settled.add(one),
                            Err(mut unwritten) => {
                                unwritten.answers.extend(rest);
                                return Err(unwritten);
                            }
                        }
                    }
                    return Ok(settled);
                }
            },
            Err(fault) => fault.into_error(),
        };
        Err(Unwritten { answers, why: why.context("cannot settle targets") })
    }

    fn release(&mut self, mut rest: Vec<Claimed>) -> Result<u64> {
        rest.sort_by_key(|claimed| (claimed.token, claimed.target.id));
        let mut changed = 0;
        for group in rest.chunk_by(|a, b| a.token == b.token).flat_map(|group| group.chunks(CHUNK)) {
            let text = format!(
                "UPDATE {} SET status = 'pending' WHERE id IN ({}) AND cron_token = '{}' AND status = 'processing'",
                self.tables.target,
                list(group.iter().map(|claimed| claimed.target.id)),
                group[0].token
            );
            changed += self.write("release targets", &text)?;
        }
        Ok(changed)
    }

    fn reserve(&mut self, channel: &str, span: Duration, horizon: Duration) -> Result<Slot> {
        self.reserve_slot(channel, span, horizon)
    }

    fn hold(&mut self, channel: &str, hold: &Hold) -> Result<Duration> {
        self.hold_channel(channel, hold)
    }

    fn pause(&mut self, lease: &Lease, reason: &str) -> Result<bool> {
        let task = &self.tables.task;
        let reason = fitted(reason, REASON_MOST);
        let ours = lease.token.map_or_else(String::new, |token| format!("AND lock_token = '{token}'"));
        let text = format!(
            "UPDATE {task} SET status = 'paused', status_reason = {reason}, {HALT}, unknown_run = {} \
             WHERE id = {} AND status = 'pending' {ours}",
            lease.unknown_run, lease.task
        );
        let look = format!(
            "SELECT 1 FROM {task} WHERE id = {} AND status = 'paused' AND status_reason = {reason} {ours} FOR UPDATE",
            lease.task
        );
        self.connection.attempt("pause a task", |connection, lost| {
            Ok(last(connection.run(&text)?).changed == 1
                || (lost && !last(connection.run(&look)?).rows.is_empty()))
        })
    }

    fn close(&mut self, lease: Lease) -> Result<Closed> {
        let Some(token) = lease.token else {
            return Ok(Closed::Open);
        };
        let id = lease.task;
        let Tables { task, target, .. } = &*self.tables;
        let look = format!(
            "{BEGIN}SELECT lock_token, status, halt_at <=> {}, COALESCE(started_at, created_at) <= NOW(3) - INTERVAL {} SECOND \
             FROM {task} WHERE id = {id} FOR UPDATE",
            moment(lease.halt),
            PATIENCE.as_secs()
        );
        let has = probes(
            target,
            id,
            &["pending", "processing", "sending", "retry", "", "sent", "failed", "unknown"],
        );
        self.connection.attempt("close a task", |connection, lost| {
            let Some(mut row) = last(connection.run(&look)?).rows.pop() else {
                return Ok(Closed::Lost);
            };
            let (holder, status, same_halt, long_ago) = (row.text(), row.word(), row.flag()?, row.flag()?);
            if holder != Some(token.to_string()) {
                // Given back by a try whose answer was lost, or really another's.
                return Ok(match (lost && holder.is_none(), status.as_str()) {
                    (true, "finished") => Closed::Finished,
                    (true, _) => Closed::Open,
                    (false, _) => Closed::Lost,
                });
            }
            let found: HashSet<String> =
                last(connection.run(&has)?).rows.into_iter().map(|mut row| row.word()).collect();
            let any = |statuses: &[&str]| statuses.iter().any(|status| found.contains(*status));
            let mut set = "lock_token = NULL, lock_owner = NULL, lock_at = NULL, lock_until = NULL".to_owned();
            if !lease.turn_unused {
                set += ", served_at = NOW(3)";
            }
            if same_halt {
                set += &format!(", unknown_run = {}", lease.unknown_run);
            }
            let closed = if status != "pending" {
                // What it leaves in doubt is for recover to find, and to tell.
                if status == "cancelled" && !any(&["pending", "processing", "sending", "retry"]) {
                    set += ", finished_at = COALESCE(finished_at, NOW(3))";
                }
                Closed::Open
            } else if any(&["pending", "processing", "sending", "retry"]) {
                Closed::Open
            } else if any(&[""]) {
                Closed::Paused(
                    "some targets have a status that does not exist: set it to 'pending', then resume the task".into(),
                )
            } else if found.is_empty() && long_ago {
                Closed::Paused("it has no targets".into())
            } else if found.is_empty() {
                Closed::Open
            } else {
                set += ", status = 'finished', status_reason = NULL, finished_at = NOW(3)";
                if estimate(connection, target, id)? <= COUNTED_BY_CLOSE {
                    let mut counts = HashMap::new();
                    let text = format!(
                        "SELECT status, COUNT(*) FROM {target} FORCE INDEX (k_task_status) WHERE task_id = {id} GROUP BY status"
                    );
                    for mut row in last(connection.run(&text)?).rows {
                        counts.insert(row.word(), row.number::<u64>()?);
                    }
                    for status in ["sent", "failed", "unknown"] {
                        set += &format!(", {status}_count = {}", counts.get(status).copied().unwrap_or(0));
                    }
                }
                Closed::Finished
            };
            if let Closed::Paused(reason) = &closed {
                set += &format!(
                    ", status = 'paused', status_reason = {}, {HALT}",
                    fitted(reason, REASON_MOST)
                );
            }
            connection.run(&format!("UPDATE {task} SET {set} WHERE id = {id}; COMMIT"))?;
            Ok(closed)
        })
    }

    fn backlog(&mut self) -> Result<Vec<Backlog>> {
        self.read_backlog()
    }
}

/// Above so many targets close leaves the counts to be counted when asked: it holds the task's row meanwhile.
const COUNTED_BY_CLOSE: u64 = 10_000_000;

/// To be worked on now, as far as the row of the task (`t`) shows.
const DUE: &str = "(t.scheduled_at IS NULL OR t.scheduled_at <= NOW(3)) AND (t.expires_at IS NULL OR t.expires_at > NOW(3)) \
     AND (t.lock_token IS NULL OR t.lock_until IS NULL OR t.lock_until < NOW(3))";

const NOT_HELD: &str = "(p.held_until IS NULL OR p.held_until <= NOW(6))";

const CLAIM_ENDED: &str = "(claim_until IS NULL OR claim_until < NOW(3))";

/// The moment of a pause or cancel: always later than the last, so that it is seen to move.
const HALT: &str = "halt_at = GREATEST(NOW(3), COALESCE(halt_at + INTERVAL 1000 MICROSECOND, NOW(3)))";

/// What a finished task becomes when one of its targets is open again.
const REOPENED: &str =
    "status = 'pending', finished_at = NULL, sent_count = NULL, failed_count = NULL, unknown_count = NULL";

const UNFROZEN: &str = "sent_count = NULL, failed_count = NULL, unknown_count = NULL";

fn check_version(found: u32) -> Result<()> {
    let ours = migrations::VERSION;
    if found == ours {
        return Ok(());
    }
    let way_out = if found > ours { "use a newer batch-send" } else { "run `batch-send migrate`" };
    Err(Trouble::usage(format!(
        "the tables are at version {found} and this batch-send needs version {ours}: {way_out}"
    ))
    .into())
}

fn ids(rows: Vec<Cells>) -> Result<Vec<u64>> {
    rows.into_iter().map(|mut row| row.number()).collect()
}

/// Tasks that are due as far as their own rows show.
fn due_tasks(tables: &Tables, channels: &[&str], left_alone: &[TaskId]) -> String {
    let others = match left_alone {
        [] => String::new(),
        tasks => format!("AND t.id NOT IN ({})", list(tasks)),
    };
    format!(
        "SELECT t.id FROM {} WHERE t.status = 'pending' AND {DUE} AND {NOT_HELD} AND t.channel IN ({}) {others} \
         ORDER BY t.priority DESC, t.served_at, t.id",
        tasks_with_pace(tables, "FORCE INDEX (k_status)"),
        list(channels.iter().map(|name| quote(name))),
    )
}

fn due_retries(target: &str, task: TaskId) -> String {
    format!(
        "SELECT id FROM {target} FORCE INDEX (k_task_retry) WHERE task_id = {task} AND retry_at <= NOW(3) \
         AND status = 'retry' ORDER BY retry_at LIMIT {CHUNK}"
    )
}

/// What a claim takes.
fn pending(task: TaskId, most: usize) -> String {
    format!("WHERE task_id = {task} AND status = 'pending' ORDER BY id LIMIT {most}")
}

fn lock_pending(target: &str, task: TaskId, most: usize) -> String {
    let pending = pending(task, most);
    format!("SELECT id FROM {target} FORCE INDEX (k_task_status) {pending} FOR UPDATE SKIP LOCKED")
}

fn stamp_pending(target: &str, task: TaskId, stamp: &str, most: usize) -> String {
    format!("UPDATE {target} FORCE INDEX (k_task_status) SET {stamp} {}", pending(task, most))
}

fn claimed_with(target: &str, task: TaskId, token: Uuid) -> String {
    format!(
        "SELECT {TARGET_COLUMNS} FROM {target} FORCE INDEX (k_task_status) \
         WHERE task_id = {task} AND status = 'processing' AND cron_token = '{token}' ORDER BY id"
    )
}

/// Whether each of these has something to do, or to wait for.
fn looks_for_work(target: &str, candidates: &[TaskId]) -> String {
    let looks: Vec<String> = candidates
        .iter()
        .flat_map(|id| {
            let look = |what: &str, index: &str, condition: &str| {
                format!(
                    "(SELECT {id}, '{what}' FROM {target} FORCE INDEX ({index}) \
                     WHERE task_id = {id} AND {condition} LIMIT 1)"
                )
            };
            [
                look("work", "k_task_status", "status = 'pending'"),
                look("work", "k_task_retry", "retry_at <= NOW(3)"),
                look("wait", "k_task_status", "status = 'processing'"),
                look("wait", "k_task_status", "status = 'sending'"),
                look("wait", "k_task_status", "status = 'retry'"),
            ]
        })
        .collect();
    looks.join(" UNION ALL ")
}

/// One row with the status for each of `statuses` in which the task has a target. Each look reads one entry of the index.
fn probes(target: &str, task: TaskId, statuses: &[&str]) -> String {
    let looks: Vec<String> = statuses
        .iter()
        .map(|status| {
            format!(
                "(SELECT '{status}' FROM {target} FORCE INDEX (k_task_status) \
                 WHERE task_id = {task} AND status = '{status}' LIMIT 1)"
            )
        })
        .collect();
    looks.join(" UNION ALL ")
}

/// How many targets a task has, by the optimizer's estimate.
fn estimate(connection: &mut Connection, target: &str, task: TaskId) -> Result<u64, Fault> {
    let text =
        format!("{EXPLAIN} SELECT id FROM {target} FORCE INDEX (k_task_status) WHERE task_id = {task}");
    explained_rows(connection, &text)
}

fn explained_rows(connection: &mut Connection, explain: &str) -> Result<u64, Fault> {
    let row = last(connection.run(explain)?).rows.pop();
    Ok(row.and_then(|mut row| row.named("rows")).and_then(|rows| rows.parse().ok()).unwrap_or(0))
}

impl MySql {
    /// Of candidates, those with something to do: a pending target, a due retry, or nothing left but to close.
    fn with_work(&mut self, candidates: &[TaskId]) -> Result<HashSet<TaskId>> {
        let text = looks_for_work(&self.tables.target, candidates);
        let (mut work, mut wait) = (HashSet::new(), HashSet::new());
        for mut row in self.read("look for work", &text)? {
            let (id, what): (TaskId, _) = (row.number()?, row.word());
            if what == "work" {
                work.insert(id)
            } else {
                wait.insert(id)
            };
        }
        Ok(candidates.iter().copied().filter(|id| work.contains(id) || !wait.contains(id)).collect())
    }
}
