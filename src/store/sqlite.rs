//! The store on SQLite: one host, one file on a local disk. The same promises as on MySQL, in SQLite's words: every write is
//! one BEGIN IMMEDIATE transaction, so that nothing changes between a look and the write that follows it, and RETURNING takes
//! the place of reading back. Its clock is the host's. What an operator asks is in sqlite/desk.rs, what `status` shows in
//! sqlite/survey.rs, how ended tasks are removed in sqlite/purge.rs, begin and settle in sqlite/settle.rs, what a run repairs
//! first in sqlite/recover.rs, a channel's slots and holds in sqlite/pace.rs, who is left alone in sqlite/suppression.rs, the
//! connection in sqlite/writer.rs, what metrics show in sqlite/backlog.rs, what the file says of itself in sqlite/check.rs.

mod backlog;
mod check;
mod desk;
mod pace;
mod purge;
mod recover;
mod settle;
mod suppression;
mod survey;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::MutexGuard;

use anyhow::Context;
use rusqlite::{Row, params};

use self::settle::Start;
pub use self::writer::Writer;
use self::writer::{Tx, small, text};
use super::late::{Meaning, duplicate, forgets, meaning};
use super::*;
use crate::target::TargetStatus;
use crate::task::Holder;
use crate::trouble::Trouble;

/// Retries promoted in one call.
const PROMOTED_MOST: i64 = 5_000;

/// What `read_task` reads, and the counts that close froze. A WHERE follows.
fn select_tasks(p: &str) -> String {
    format!(
        "SELECT id, name, channel, payload, status, status_reason, priority, scheduled_at, expires_at, created_at, started_at, \
         finished_at, lock_owner, lock_at, lock_until, \
         (SELECT held_until / 1000 FROM {p}pace WHERE channel = {p}task.channel), \
         sent_count, failed_count, unknown_count FROM {p}task"
    )
}

/// A row of `select_tasks`.
fn read_task(row: &Row<'_>, now: i64) -> rusqlite::Result<Task> {
    let at = |column: usize| row.get::<_, Option<i64>>(column).map(time);
    let word = text(row, 4)?.unwrap_or_default();
    let scheduled: Option<i64> = row.get(7)?;
    let expires: Option<i64> = row.get(8)?;
    let live = row.get::<_, Option<i64>>(14)?.is_some_and(|until| until >= now);
    let lease = match (at(13)?, at(14)?) {
        (Some(since), Some(until)) if live => {
            Some(Holder { owner: text(row, 12)?.unwrap_or_default(), since, until })
        }
        _ => None,
    };
    Ok(Task {
        id: row.get::<_, i64>(0)?.cast_unsigned(),
        name: text(row, 1)?.unwrap_or_default(),
        channel: text(row, 2)?.unwrap_or_default(),
        payload: text(row, 3)?,
        status: TaskStatus::from_word(&word).ok_or(rusqlite::Error::InvalidQuery)?,
        status_reason: text(row, 5)?,
        priority: row.get::<_, i64>(6)?.clamp(i16::MIN.into(), i16::MAX.into()) as i16,
        scheduled_at: time(scheduled),
        expires_at: time(expires),
        created_at: at(9)?.unwrap_or_default(),
        started_at: at(10)?,
        finished_at: at(11)?,
        lease,
        early: scheduled.is_some_and(|at| at > now),
        expired: expires.is_some_and(|at| at <= now),
        held_until: time(row.get::<_, Option<i64>>(15)?.filter(|until| *until > now)),
    })
}

const TARGET: &str = "id, recipient, params, attempts, round, dedupe_until";

/// A row of `TARGET`.
fn read_target(row: &Row<'_>) -> rusqlite::Result<Target> {
    Ok(Target {
        id: row.get::<_, i64>(0)?.cast_unsigned(),
        recipient: text(row, 1)?.unwrap_or_default(),
        params: text(row, 2)?,
        attempts: small(row, 3, u16::MAX)?,
        round: small(row, 4, u8::MAX)?,
        in_doubt: row.get::<_, Option<i64>>(5)?.is_some(),
    })
}

/// A list for `json_each`: one cached statement for lists of any length.
fn list<T: Serialize>(items: &[T]) -> Result<String> {
    Ok(serde_json::to_string(items)?)
}

// ---- the store ---------------------------------------------------------------------------------------------------

/// One store of this process. They all write through the same connection, one transaction after the other.
pub struct Sqlite {
    writer: Arc<Mutex<Writer>>,
}

impl Sqlite {
    /// Errors: a directory that is not there, a file that is no database or may not be written.
    pub fn new(writer: Arc<Mutex<Writer>>) -> Result<Self> {
        let store = Self { writer };
        store.writer().open(false)?;
        Ok(store)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A panic in a transaction rolled it back: the connection is as good as before.
        self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Relay for Sqlite {
    fn now(&mut self) -> Result<DateTime<Utc>> {
        self.writer().read(|tx| time(Some(tx.now)).context("the clock has no time")).context("read the clock")
    }

    fn recover(&mut self, only: Option<TaskId>) -> Result<Recovered> {
        self.writer().write(|tx| recover::recover(tx, only)).context("recover")
    }

    fn strays(&mut self, channels: &[&str]) -> Result<Vec<Stray>> {
        let mut writer = self.writer();
        let channels = list(channels)?;
        let found = writer.read(|tx| {
            due(tx, "channel NOT IN (SELECT value FROM json_each(?2))", &channels, "[]", usize::MAX)
        })?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        writer
            .write(|tx| {
                found
                    .into_iter()
                    .map(|task| {
                        Ok(Stray {
                            paused: recover::unserved(tx, &task)?,
                            task: task.id,
                            channel: task.channel,
                        })
                    })
                    .collect()
            })
            .context("look for tasks whose channel is not configured")
    }

    fn due(&mut self, channels: &[&str], left_alone: &[TaskId]) -> Result<Option<Task>> {
        let (channels, left_alone) = (list(channels)?, list(left_alone)?);
        self.writer()
            .read(|tx| due(tx, "channel IN (SELECT value FROM json_each(?2))", &channels, &left_alone, 1))
            .context("look for a due task")
            .map(|mut found| found.pop())
    }

    fn lease(&mut self, task: TaskId, terms: &Terms, beside: bool) -> Result<Leasing> {
        let asked = Moment::now();
        let lease = |token, halt, unknown_run, passes_pause| {
            Leasing::Ours(Lease::new(task, token, halt, asked, terms, unknown_run, passes_pause))
        };
        self.writer()
            .write(|tx| {
                let p = tx.p;
                desk::speaks_our_version(tx)?;
                let Some(found) = read_one_task(tx, task)? else {
                    return Ok(Leasing::Closed(format!("there is no task {task}")));
                };
                if let Some(why) = refusal(&found, beside) {
                    return Ok(Leasing::Closed(why));
                }
                if beside {
                    let sql = format!(
                        "UPDATE {p}task SET started_at = COALESCE(started_at, ?2) WHERE id = ?1 RETURNING halt_at, unknown_run"
                    );
                    let taken = tx.one(&sql, params![task.cast_signed(), tx.now], |row| {
                        Ok(lease(None, row.get(0)?, small(row, 1, u16::MAX)?, found.status == TaskStatus::Paused))
                    })?;
                    return taken.context("the task is gone");
                }
                let token = Uuid::new_v4();
                let sql = format!(
                    "UPDATE {p}task SET lock_token = ?3, lock_owner = ?4, lock_at = ?2, lock_until = ?5, \
                     started_at = COALESCE(started_at, ?2) \
                     WHERE id = ?1 AND status = 'pending' AND (lock_until IS NULL OR lock_until < ?2) \
                     RETURNING halt_at, unknown_run"
                );
                let owner = fit(&terms.owner, NAME_MOST);
                let end = tx.after(terms.lease);
                let taken = tx.one(&sql, params![task.cast_signed(), tx.now, token.to_string(), owner, end], |row| {
                    Ok(lease(Some(token), row.get(0)?, small(row, 1, u16::MAX)?, false))
                })?;
                if let Some(lease) = taken {
                    return Ok(lease);
                }
                let sql = format!("SELECT lock_owner, lock_token FROM {p}task WHERE id = ?1");
                let held = tx.one(&sql, [task.cast_signed()], |row| {
                    let (owner, token) = (text(row, 0)?, text(row, 1)?);
                    Ok(Leasing::Held { owner: owner.unwrap_or_default(), token: token.unwrap_or_default() })
                })?;
                held.context("the task is gone")
            })
            .with_context(|| format!("lease task {task}"))
    }

    fn renew(&mut self, lease: &mut Lease) -> Result<Standing> {
        let asked = Moment::now();
        let standing = self
            .writer()
            .write(|tx| {
                let p = tx.p;
                let standing = stand(tx, lease)?;
                if let (Standing::Ours, Some(token)) = (standing, lease.token) {
                    tx.change(
                        &format!("UPDATE {p}task SET lock_until = ?3, unknown_run = ?4 WHERE id = ?1 AND lock_token = ?2"),
                        params![
                            lease.task.cast_signed(),
                            token.to_string(),
                            tx.after(lease.terms.lease),
                            lease.unknown_run
                        ],
                    )?;
                }
                Ok(standing)
            })
            .with_context(|| format!("renew the lease of task {}", lease.task))?;
        if standing == Standing::Ours {
            lease.until = (asked + lease.terms.lease) - lease.terms.margin;
        }
        Ok(standing)
    }

    fn promote(&mut self, lease: &Lease) -> Result<u64> {
        self.writer()
            .write(|tx| {
                let p = tx.p;
                let sql = format!(
                    "UPDATE {p}task_target SET status = 'pending', retry_at = NULL WHERE status = 'retry' AND id IN \
                     (SELECT id FROM {p}task_target INDEXED BY {p}task_target_k_task_retry \
                      WHERE task_id = ?1 AND retry_at <= ?2 ORDER BY retry_at LIMIT ?3)"
                );
                tx.change(&sql, params![lease.task.cast_signed(), tx.now, PROMOTED_MOST])
            })
            .with_context(|| format!("promote retries of task {}", lease.task))
    }

    fn claim(&mut self, lease: &Lease, most: usize) -> Result<Vec<Claimed>> {
        let until = (Moment::now() + lease.terms.lease) - lease.terms.margin;
        let token = Uuid::new_v4();
        let mut claimed = self
            .writer()
            .write(|tx| {
                let p = tx.p;
                let sql = format!(
                    "UPDATE {p}task_target SET status = 'processing', cron_token = ?2, claim_until = ?3 \
                     WHERE status = 'pending' AND id IN \
                     (SELECT id FROM {p}task_target INDEXED BY {p}task_target_k_task_status \
                      WHERE task_id = ?1 AND status = 'pending' ORDER BY id LIMIT ?4) RETURNING {TARGET}"
                );
                let most = i64::try_from(most).unwrap_or(i64::MAX);
                let end = tx.after(lease.terms.lease);
                tx.all(&sql, params![lease.task.cast_signed(), token.to_string(), end, most], |row| {
                    Ok(Claimed { target: read_target(row)?, token, until })
                })
            })
            .with_context(|| format!("claim targets of task {}", lease.task))?;
        // RETURNING promises no order.
        claimed.sort_unstable_by_key(|claimed| claimed.target.id);
        Ok(claimed)
    }

    fn refuse(&mut self, lease: &Lease, refused: Vec<(Claimed, String)>) -> Result<u64> {
        self.writer()
            .write(|tx| {
                let p = tx.p;
                let sql = format!(
                    "UPDATE {p}task_target SET status = CASE WHEN dedupe_until IS NULL THEN 'failed' ELSE 'unknown' END, \
                     last_error = ?4, settled_at = ?3, claim_until = NULL \
                     WHERE id = ?1 AND cron_token = ?2 AND status = 'processing'"
                );
                let mut changed = 0;
                for (Claimed { target, token, .. }, reason) in &refused {
                    let reason = fit(reason, REASON_MOST);
                    changed += tx.change(&sql, params![target.id.cast_signed(), token.to_string(), tx.now, reason])?;
                }
                Ok(changed)
            })
            .with_context(|| format!("refuse targets of task {}", lease.task))
    }

    fn begin(&mut self, lease: &Lease, ready: Vec<Ready>, answers: Vec<Answer>) -> Result<Begun, Unwritten> {
        let until = Moment::now() + lease.terms.send;
        let patience = if answers.is_empty() { writer::BUSY_MOST } else { writer::WITH_ANSWERS };
        let done = self.writer().write_within(patience, |tx| {
            let settled = settle::settle(tx, &answers)?;
            let starts = ready
                .iter()
                .map(|ready| settle::begin(tx, &lease.terms, ready))
                .collect::<Result<Vec<_>>>()?;
            Ok((settled, starts))
        });
        match done {
            Ok((settled, starts)) => {
                let mut begun = Begun { settled, ..Begun::default() };
                for (Ready { claimed, message, .. }, start) in ready.into_iter().zip(starts) {
                    let Claimed { target, token, .. } = claimed;
                    match start {
                        Start::Begun(attempt) => begun.in_flight.push(InFlight {
                            id: target.id,
                            token,
                            attempt,
                            in_doubt: target.in_doubt,
                            until,
                            message,
                        }),
                        Start::Suppressed if !target.in_doubt => begun.suppressed.push(target.id),
                        Start::Suppressed | Start::Unknown => begun.unknown.push(target.id),
                        Start::Fenced => begun.fenced.push(target.id),
                    }
                }
                Ok(begun)
            }
            Err(error) => {
                let reason = "not sent: its begin could not be written";
                let back = ready.into_iter().map(|Ready { claimed, .. }| Answer {
                    task: lease.task,
                    id: claimed.target.id,
                    token: claimed.token,
                    in_doubt: claimed.target.in_doubt,
                    settlement: Settlement::Returned { reason: reason.into() },
                });
                let why = error.context(format!("begin targets of task {}", lease.task));
                Err(Unwritten { answers: answers.into_iter().chain(back).collect(), why })
            }
        }
    }

    fn settle(&mut self, answers: Vec<Answer>) -> Result<Settled, Unwritten> {
        let mut writer = self.writer();
        let error = match writer.write_within(writer::WITH_ANSWERS, |tx| settle::settle(tx, &answers)) {
            Ok(settled) => return Ok(settled),
            Err(error) => error.context("settle"),
        };
        if Trouble::kind_of(&error).is_some() || answers.len() < 2 {
            return Err(Unwritten { answers, why: error });
        }
        // One row that the database refuses must not keep the others from being written.
        let (mut settled, mut unwritten) = (Settled::default(), Vec::new());
        for answer in answers {
            match writer.write(|tx| settle::settle(tx, std::slice::from_ref(&answer))) {
                Ok(one) => settled.add(one),
                Err(_) => unwritten.push(answer),
            }
        }
        if unwritten.is_empty() { Ok(settled) } else { Err(Unwritten { answers: unwritten, why: error }) }
    }

    fn release(&mut self, rest: Vec<Claimed>) -> Result<u64> {
        self.writer()
            .write(|tx| {
                let p = tx.p;
                let sql = format!(
                    "UPDATE {p}task_target SET status = 'pending', claim_until = NULL \
                     WHERE id = ?1 AND cron_token = ?2 AND status = 'processing'"
                );
                let mut changed = 0;
                for Claimed { target, token, .. } in &rest {
                    changed += tx.change(&sql, params![target.id.cast_signed(), token.to_string()])?;
                }
                Ok(changed)
            })
            .context("release targets")
    }

    fn reserve(&mut self, channel: &str, span: Duration, horizon: Duration) -> Result<Slot> {
        self.writer()
            .write(|tx| pace::reserve(tx, channel, span, horizon))
            .with_context(|| format!("reserve a slot of channel {channel}"))
    }

    fn hold(&mut self, channel: &str, hold: &Hold) -> Result<Duration> {
        self.writer()
            .write(|tx| pace::hold(tx, channel, hold))
            .with_context(|| format!("hold channel {channel}"))
    }

    fn pause(&mut self, lease: &Lease, reason: &str) -> Result<bool> {
        self.writer()
            .write(|tx| {
                let p = tx.p;
                let sql = format!(
                    "UPDATE {p}task SET status = 'paused', status_reason = ?3, halt_at = ?4, unknown_run = ?5 \
                     WHERE id = ?1 AND status = 'pending' AND (?2 IS NULL OR lock_token = ?2)"
                );
                let token = lease.token.map(|token| token.to_string());
                let reason = fit(reason, REASON_MOST);
                let changed =
                    tx.change(&sql, params![lease.task.cast_signed(), token, reason, halt(tx, lease.task)?, lease.unknown_run])?;
                Ok(changed > 0)
            })
            .with_context(|| format!("pause task {}", lease.task))
    }

    fn close(&mut self, lease: Lease) -> Result<Closed> {
        let Some(token) = lease.token else {
            return Ok(Closed::Open);
        };
        self.writer()
            .write(|tx| {
                let p = tx.p;
                let sql = format!(
                    "UPDATE {p}task SET lock_token = NULL, lock_owner = NULL, lock_at = NULL, lock_until = NULL, \
                     served_at = CASE WHEN ?5 THEN served_at ELSE ?6 END, \
                     unknown_run = CASE WHEN halt_at IS ?3 THEN ?4 ELSE unknown_run END \
                     WHERE id = ?1 AND lock_token = ?2 RETURNING status, COALESCE(started_at, created_at)"
                );
                let id = lease.task.cast_signed();
                let Lease { halt, unknown_run, turn_unused, .. } = lease;
                let given_back = params![id, token.to_string(), halt, unknown_run, turn_unused, tx.now];
                let ours = tx.one(&sql, given_back, |row| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
                })?;
                let Some((status, started)) = ours else {
                    return Ok(Closed::Lost);
                };
                // What it leaves in doubt is for recover to find, and to tell.
                if status == "cancelled" && !is_open(tx, lease.task)? {
                    recover::finish_cancelled(tx, Some(lease.task))?;
                }
                if status != "pending" || is_open(tx, lease.task)? {
                    return Ok(Closed::Open);
                }
                if !tx.exists(&format!("SELECT 1 FROM {p}task_target WHERE task_id = ?1"), [id])? {
                    if started > tx.before(PATIENCE) {
                        return Ok(Closed::Open);
                    }
                    let reason = "it has no targets";
                    pause(tx, lease.task, reason)?;
                    return Ok(Closed::Paused(reason.into()));
                }
                let count = |status| format!("(SELECT count(*) FROM {p}task_target WHERE task_id = ?1 AND status = '{status}')");
                tx.change(
                    &format!(
                        "UPDATE {p}task SET status = 'finished', status_reason = NULL, finished_at = ?2, sent_count = {}, \
                         failed_count = {}, unknown_count = {} WHERE id = ?1 AND status = 'pending'",
                        count("sent"),
                        count("failed"),
                        count("unknown"),
                    ),
                    params![id, tx.now],
                )?;
                Ok(Closed::Finished)
            })
            .with_context(|| format!("close task {}", lease.task))
    }

    fn backlog(&mut self) -> Result<Vec<Backlog>> {
        self.writer().read(backlog::backlog).context("read the backlog")
    }
}

// ---- steps inside a transaction ----------------------------------------------------------------------------------

fn read_one_task(tx: &Tx<'_>, task: TaskId) -> Result<Option<Task>> {
    let sql = format!("{} WHERE id = ?1", select_tasks(tx.p));
    tx.one(&sql, [task.cast_signed()], |row| read_task(row, tx.now))
}

/// Whether anything of a task is still to do.
fn is_open(tx: &Tx<'_>, task: TaskId) -> Result<bool> {
    any_of(tx, task, &["pending", "retry", "processing", "sending"])
}

fn any_of(tx: &Tx<'_>, task: TaskId, statuses: &[&str]) -> Result<bool> {
    let sql = format!("SELECT 1 FROM {p}task_target WHERE task_id = ?1 AND status = ?2", p = tx.p);
    for status in statuses {
        if tx.exists(&sql, params![task.cast_signed(), status])? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The `halt_at` of a pause or cancel that happens now: always later than the last, so that it is seen to move.
fn halt(tx: &Tx<'_>, task: TaskId) -> Result<i64> {
    let sql = format!("SELECT halt_at FROM {p}task WHERE id = ?1", p = tx.p);
    let last = tx.one(&sql, [task.cast_signed()], |row| row.get::<_, Option<i64>>(0))?.flatten();
    Ok(tx.now.max(last.unwrap_or(0).saturating_add(1)))
}

/// Pauses a pending task, nobody asked.
fn pause(tx: &Tx<'_>, task: TaskId, reason: &str) -> Result<bool> {
    let sql = format!(
        "UPDATE {p}task SET status = 'paused', status_reason = ?2, halt_at = ?3 WHERE id = ?1 AND status = 'pending'",
        p = tx.p
    );
    Ok(tx.change(&sql, params![task.cast_signed(), fit(reason, REASON_MOST), halt(tx, task)?])? > 0)
}

/// Somebody makes a target open: a finished task is pending again. Whoever calls it has refused a cancelled one.
fn reopen(tx: &Tx<'_>, task: TaskId) -> Result<bool> {
    let sql = format!(
        "UPDATE {p}task SET status = 'pending', finished_at = NULL, sent_count = NULL, failed_count = NULL, unknown_count = NULL \
         WHERE id = ?1 AND status = 'finished'",
        p = tx.p
    );
    Ok(tx.change(&sql, [task.cast_signed()])? > 0)
}

/// What close froze is not true any more.
fn thaw(tx: &Tx<'_>, task: TaskId) -> Result<()> {
    let sql = format!(
        "UPDATE {p}task SET sent_count = NULL, failed_count = NULL, unknown_count = NULL WHERE id = ?1 AND sent_count IS NOT NULL",
        p = tx.p
    );
    tx.change(&sql, [task.cast_signed()])?;
    Ok(())
}

/// The first `most` due tasks whose channel fulfils the condition.
fn due(tx: &Tx<'_>, channel: &str, channels: &str, left_alone: &str, most: usize) -> Result<Vec<Task>> {
    let p = tx.p;
    let sql = format!(
        "{} WHERE status = 'pending' AND (scheduled_at IS NULL OR scheduled_at <= ?1) \
         AND (expires_at IS NULL OR expires_at > ?1) AND (lock_until IS NULL OR lock_until < ?1) AND {channel} \
         AND id NOT IN (SELECT value FROM json_each(?3)) \
         AND NOT EXISTS (SELECT 1 FROM {p}pace WHERE channel = {p}task.channel AND held_until > ?1 * 1000) \
         ORDER BY priority DESC, served_at, id",
        select_tasks(p)
    );
    let retry = format!(
        "SELECT 1 FROM {p}task_target INDEXED BY {p}task_target_k_task_retry WHERE task_id = ?1 AND retry_at <= ?2"
    );
    let mut found = Vec::new();
    let mut statement = tx.sql.prepare_cached(&sql)?;
    let mut rows = statement.query(params![tx.now, channels, left_alone])?;
    while let Some(row) = rows.next()? {
        let task = read_task(row, tx.now)?;
        if any_of(tx, task.id, &["pending"])?
            || tx.exists(&retry, [task.id.cast_signed(), tx.now])?
            || !is_open(tx, task.id)?
        {
            found.push(task);
            if found.len() == most {
                break;
            }
        }
    }
    Ok(found)
}

fn stand(tx: &Tx<'_>, lease: &Lease) -> Result<Standing> {
    let sql = format!(
        "SELECT lock_token, status, halt_at, COALESCE(expires_at <= ?2, 0) FROM {p}task WHERE id = ?1",
        p = tx.p
    );
    let found = tx.one(&sql, [lease.task.cast_signed(), tx.now], |row| {
        Ok((text(row, 0)?, row.get::<_, String>(1)?, row.get::<_, Option<i64>>(2)?, row.get::<_, bool>(3)?))
    })?;
    let Some((token, status, halt, expired)) = found else {
        return Ok(Standing::Halted);
    };
    if lease.token.is_some_and(|ours| token.is_none_or(|token| token != ours.to_string())) {
        return Ok(Standing::Lost);
    }
    let works = status == "pending" || (lease.passes_pause && status == "paused");
    Ok(if works && halt == lease.halt && !expired { Standing::Ours } else { Standing::Halted })
}
