//! The store on SQLite: one host, one file on a local disk. The same promises as on MySQL, in SQLite's words: every write
//! is one BEGIN IMMEDIATE transaction, so that nothing changes between a look and the write that follows it, and
//! RETURNING takes the place of reading back. Its clock is the host's. What an operator asks is in sqlite/desk.rs.

mod desk;

use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

use anyhow::{Context, bail};
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Params, Row, Transaction, TransactionBehavior,
    params,
};

use super::late::{Meaning, duplicate, forgets, meaning};
use super::*;
use crate::target::TargetStatus;
use crate::task::Holder;
use crate::trouble::Trouble;

/// For how long we try to get the file's write lock from other processes.
const BUSY_MOST: Duration = Duration::from_secs(10);

/// Retries promoted in one call.
const PROMOTED_MOST: i64 = 5_000;

/// How long a finished task is still looked at for targets that were committed after its end.
const REOPENED_WITHIN: Duration = Duration::from_secs(3_600);

// ---- the one connection of this process -------------------------------------------------------------------------

/// The connection through which all stores of this process write. Opened when the first store is taken.
pub struct Writer {
    path: PathBuf,
    prefix: String,
    connection: Option<Connection>,
}

impl Writer {
    /// Errors: a URL that is not `sqlite:///absolute/path`.
    pub fn new(url: &str, prefix: &str) -> Result<Self> {
        let path = url.strip_prefix("sqlite://").filter(|path| path.starts_with('/')).ok_or_else(|| {
            Trouble::usage("database_url: write sqlite:// and an absolute path, as in sqlite:///var/lib/batch-send/tasks.db")
        })?;
        if path.contains(['?', '#']) {
            return Err(Trouble::usage("database_url: a sqlite URL takes no parameters").into());
        }
        if !prefix.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            return Err(
                Trouble::usage("table_prefix: on SQLite it starts with a letter or an underscore").into()
            );
        }
        Ok(Self { path: decode(path)?.into(), prefix: prefix.to_owned(), connection: None })
    }

    pub fn identity(&self) -> String {
        let real =
            self.path.canonicalize().unwrap_or_else(|_| match (self.path.parent(), self.path.file_name()) {
                (Some(folder), Some(name)) => {
                    folder.canonicalize().map_or_else(|_| self.path.clone(), |folder| folder.join(name))
                }
                _ => self.path.clone(),
            });
        format!("sqlite:{} {}", real.display(), self.prefix)
    }

    /// Opens the file unless it is open. Only `migrate` may `create` it: elsewhere a mistyped path must not
    /// leave an empty database behind. Whether it is open now.
    fn open(&mut self, create: bool) -> Result<bool> {
        if self.connection.is_some() {
            return Ok(true);
        }
        let path = self.path.display();
        if let Some(folder) = self.path.parent().filter(|folder| !folder.is_dir()) {
            return Err(Trouble::usage(format!(
                "no directory {} for the database {path}: create it, or correct database_url",
                folder.display()
            ))
            .into());
        }
        if !create && !self.path.exists() {
            return Ok(false);
        }
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
        let connection = Connection::open_with_flags(&self.path, flags)
            .map_err(|error| Trouble::usage(format!("cannot open the database {path}: {error}")))?;
        // The built-in wait is unfair to the point of starvation; ours is `patiently`.
        connection.busy_timeout(Duration::ZERO)?;
        connection.set_prepared_statement_cache_capacity(100);
        let unusable = |error: rusqlite::Error| match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => {
                anyhow::Error::new(Trouble::usage(format!("{path} is not an SQLite database")))
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                let text = format!(
                    "cannot write {path}: this user must own the file and its directory, or may write both"
                );
                anyhow::Error::new(error).context(Trouble::usage(text))
            }
            _ => error.into(),
        };
        let mode: String = patiently(&self.path, || {
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
        })
        .map_err(|error| match error.downcast::<rusqlite::Error>() {
            Ok(error) => unusable(error),
            Err(error) => error,
        })?;
        if mode != "wal" || connection.is_readonly("main")? {
            let text =
                format!("cannot write {path} in WAL mode: it needs a local disk that this user may write to");
            return Err(Trouble::usage(text).into());
        }
        connection.pragma_update(None, "synchronous", "FULL")?;
        self.connection = Some(connection);
        Ok(true)
    }

    /// One write transaction: what `work` did is committed, or nothing of it.
    fn write<T>(&mut self, work: impl FnOnce(&Tx<'_>) -> Result<T>) -> Result<T> {
        self.transaction(TransactionBehavior::Immediate, work)
    }

    /// One snapshot to read from; it never waits for a writer.
    fn read<T>(&mut self, work: impl FnOnce(&Tx<'_>) -> Result<T>) -> Result<T> {
        self.transaction(TransactionBehavior::Deferred, work)
    }

    fn transaction<T>(
        &mut self,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Tx<'_>) -> Result<T>,
    ) -> Result<T> {
        self.open(false)?;
        let path = self.path.display();
        let Some(connection) = &self.connection else {
            return Err(Trouble::usage(format!("no database {path}: `batch-send migrate` creates it")).into());
        };
        let sql = patiently(&self.path, || {
            let sql = Transaction::new_unchecked(connection, behavior)?;
            // A deferred transaction gets its snapshot, or is told that the file is busy, with its first read.
            sql.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
            Ok(sql)
        })?;
        let now =
            sql.query_row("SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER)", [], |row| row.get(0))?;
        let tx = Tx { sql, p: &self.prefix, now };
        let work = || {
            let done = work(&tx)?;
            tx.sql.execute_batch("COMMIT")?;
            Ok(done)
        };
        work().map_err(|error: anyhow::Error| {
            let missing = error
                .downcast_ref::<rusqlite::Error>()
                .is_some_and(|error| error.to_string().contains("no such table"));
            if missing {
                error.context(Trouble::usage(format!(
                    "the tables are missing in {path}: `batch-send migrate` makes them"
                )))
            } else {
                error
            }
        })
    }
}

/// `%2F` and the like: what `${NAME}` in a URL is turned into.
fn decode(path: &str) -> Result<String> {
    let mut parts = path.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
            .ok_or_else(|| Trouble::usage("database_url: a % in the path is written %25"))?;
        bytes.push(byte);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Ok(String::from_utf8(bytes).map_err(|_| Trouble::usage("database_url: the path is not UTF-8"))?)
}

/// Again after a short random wait while other processes hold the file.
fn patiently<T>(path: &Path, mut attempt: impl FnMut() -> rusqlite::Result<T>) -> Result<T> {
    let until = Moment::now() + BUSY_MOST;
    loop {
        match attempt() {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                if until.passed() {
                    let text = format!("{} was busy for {} s", path.display(), BUSY_MOST.as_secs());
                    return Err(anyhow::Error::new(error).context(Trouble::try_later(text)));
                }
                std::thread::sleep(Duration::from_micros(fastrand::u64(500..4_000)));
            }
            done => return Ok(done?),
        }
    }
}

/// One transaction. Dropped before its COMMIT, it leaves no trace.
struct Tx<'a> {
    sql: Transaction<'a>,
    /// The prefix of the tables.
    p: &'a str,
    /// The one time of this transaction, in milliseconds.
    now: i64,
}

impl Tx<'_> {
    /// How many rows a statement changed.
    fn change(&self, sql: &str, params: impl Params) -> Result<u64> {
        Ok(self.sql.prepare_cached(sql)?.execute(params)? as u64)
    }

    fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        Ok(self.sql.prepare_cached(sql)?.query_row(params, read).optional()?)
    }

    fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.sql.prepare_cached(sql)?;
        let rows = statement.query_map(params, read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    fn exists(&self, sql: &str, params: impl Params) -> Result<bool> {
        Ok(self.sql.prepare_cached(sql)?.exists(params)?)
    }

    fn after(&self, time: Duration) -> i64 {
        self.now.saturating_add(ms(time))
    }

    fn before(&self, time: Duration) -> i64 {
        self.now.saturating_sub(ms(time))
    }

    fn audit(&self, act: &Act<'_>, task: TaskId, target: Option<TargetId>) -> Result<()> {
        let p = self.p;
        self.change(
            &format!("INSERT INTO {p}audit (at, who, what, task_id, target_id, why) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"),
            params![
                self.now,
                fit(act.who, NAME_MOST),
                act.what,
                task.cast_signed(),
                target.map(u64::cast_signed),
                act.why.map(|why| fit(why, REASON_MOST)),
            ],
        )?;
        Ok(())
    }
}

/// Milliseconds, ten years at most: sums with them never overflow.
fn ms(time: Duration) -> i64 {
    const MOST: i64 = 10 * 366 * 86_400_000;
    i64::try_from(time.as_millis()).map_or(MOST, |ms| ms.min(MOST))
}

/// A text column as it is, valid or not: one broken text must not keep a batch from being read.
fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    Ok(row.get_ref(column)?.as_bytes_or_null()?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// A small unsigned number in a column that takes any.
fn small<T: TryFrom<i64>>(row: &Row<'_>, column: usize, most: T) -> rusqlite::Result<T> {
    Ok(T::try_from(row.get::<_, i64>(column)?.max(0)).unwrap_or(most))
}

/// What `read_task` reads, and the counts that close froze. A WHERE follows.
fn select_tasks(p: &str) -> String {
    format!(
        "SELECT id, name, channel, payload, status, status_reason, priority, scheduled_at, expires_at, created_at, started_at, \
         finished_at, lock_owner, lock_at, lock_until, \
         (SELECT next_at / 1000 FROM {p}pace WHERE channel = {p}task.channel), \
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
    fn recover(&mut self, only: Option<TaskId>) -> Result<Recovered> {
        self.writer().write(|tx| recover(tx, only)).context("recover")
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
                        Ok(Stray { paused: unserved(tx, &task)?, task: task.id, channel: task.channel })
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
        let until = (asked + terms.lease) - terms.margin;
        let lease = |token, halt, unknown_run| {
            Leasing::Ours(Lease { task, token, halt, until, terms: terms.clone(), unknown_run })
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
                        Ok(lease(None, row.get(0)?, small(row, 1, u16::MAX)?))
                    })?;
                    return taken.context("the task is gone");
                }
                let token = Uuid::new_v4();
                let sql = format!(
                    "UPDATE {p}task SET lock_token = ?3, lock_owner = ?4, lock_at = ?2, lock_until = ?5, served_at = ?2, \
                     started_at = COALESCE(started_at, ?2) \
                     WHERE id = ?1 AND status = 'pending' AND (lock_until IS NULL OR lock_until < ?2) \
                     RETURNING halt_at, unknown_run"
                );
                let owner = fit(&terms.owner, NAME_MOST);
                let end = tx.after(terms.lease);
                let taken = tx.one(&sql, params![task.cast_signed(), tx.now, token.to_string(), owner, end], |row| {
                    Ok(lease(Some(token), row.get(0)?, small(row, 1, u16::MAX)?))
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
        let done = self.writer().write(|tx| {
            let settled = settle(tx, &answers)?;
            let attempts =
                ready.iter().map(|ready| begin(tx, &lease.terms, ready)).collect::<Result<Vec<_>>>()?;
            Ok((settled, attempts))
        });
        match done {
            Ok((settled, attempts)) => {
                let mut begun = Begun { settled, ..Begun::default() };
                for (Ready { claimed, message, .. }, attempt) in ready.into_iter().zip(attempts) {
                    let Claimed { target, token, .. } = claimed;
                    match attempt {
                        Some(attempt) => begun.in_flight.push(InFlight {
                            id: target.id,
                            token,
                            attempt,
                            in_doubt: target.in_doubt,
                            until,
                            message,
                        }),
                        None => begun.fenced.push(target.id),
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
        let error = match writer.write(|tx| settle(tx, &answers)) {
            Ok(settled) => return Ok(settled),
            Err(error) => error.context("settle"),
        };
        if Trouble::kind_of(&error).is_some() || answers.len() < 2 {
            return Err(Unwritten { answers, why: error });
        }
        // One row that the database refuses must not keep the others from being written.
        let (mut settled, mut unwritten) = (Settled::default(), Vec::new());
        for answer in answers {
            match writer.write(|tx| settle(tx, std::slice::from_ref(&answer))) {
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

    fn hold(&mut self, channel: &str, hold: &Hold) -> Result<Duration> {
        self.writer()
            .write(|tx| {
                let p = tx.p;
                let sql = format!("SELECT next_at / 1000, holds FROM {p}pace WHERE channel = ?1");
                let before = tx.one(&sql, [channel], |row| Ok((row.get::<_, i64>(0)?, small(row, 1, u16::MAX)?)))?;
                let (next, holds) = before.unwrap_or((0, 0));
                let held = next > tx.now;
                // The last hold ended long ago: this one is the first of a new row of them.
                let holds = if next < tx.before(hold.most) { 0 } else { holds };
                let end = match hold.asked {
                    Some(asked) => tx.after(asked).max(next),
                    // Other lanes meet the same silence: together they are one hold.
                    None if held => next,
                    None => tx.after(hold.first.saturating_mul(1 << u32::from(holds).min(31)).min(hold.most)),
                };
                let holds = if held { holds } else { holds.saturating_add(1) };
                tx.change(
                    &format!(
                        "INSERT INTO {p}pace (channel, next_at, holds) VALUES (?1, ?2 * 1000, ?3) \
                         ON CONFLICT (channel) DO UPDATE SET next_at = excluded.next_at, holds = excluded.holds"
                    ),
                    params![channel, end, holds],
                )?;
                Ok(Duration::from_millis((end - tx.now).max(0).cast_unsigned()))
            })
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
                     unknown_run = CASE WHEN halt_at IS ?3 THEN ?4 ELSE unknown_run END \
                     WHERE id = ?1 AND lock_token = ?2 RETURNING status, COALESCE(started_at, created_at)"
                );
                let id = lease.task.cast_signed();
                let ours = tx.one(&sql, params![id, token.to_string(), lease.halt, lease.unknown_run], |row| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
                })?;
                let Some((status, started)) = ours else {
                    return Ok(Closed::Lost);
                };
                finish_cancelled(tx, Some(lease.task))?;
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

/// Cancelled tasks with nothing in flight are over.
fn finish_cancelled(tx: &Tx<'_>, only: Option<TaskId>) -> Result<()> {
    let sql = format!(
        "UPDATE {p}task AS t SET finished_at = ?1 WHERE status = 'cancelled' AND finished_at IS NULL AND (?2 IS NULL OR id = ?2) \
         AND NOT EXISTS (SELECT 1 FROM {p}task_target WHERE task_id = t.id AND status = 'processing') \
         AND NOT EXISTS (SELECT 1 FROM {p}task_target WHERE task_id = t.id AND status = 'sending')",
        p = tx.p
    );
    tx.change(&sql, params![tx.now, only.map(u64::cast_signed)])?;
    Ok(())
}

fn recover(tx: &Tx<'_>, only: Option<TaskId>) -> Result<Recovered> {
    let p = tx.p;
    let mut recovered = Recovered::default();
    // Not long ago finished counts too: a claim may have been committed after its task was cancelled.
    let sql = format!(
        "SELECT id, status FROM {p}task \
         WHERE CASE WHEN ?1 IS NULL THEN finished_at IS NULL OR finished_at > ?2 ELSE id = ?1 END ORDER BY id"
    );
    let since = tx.before(REOPENED_WITHIN);
    let tasks = tx.all(&sql, params![only.map(u64::cast_signed), since], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
    })?;
    for (id, status) in tasks {
        let task = id.cast_unsigned();
        let ended = "task_id = ?1 AND (claim_until IS NULL OR claim_until < ?2) AND status";
        recovered.pending += tx.change(
            &format!("UPDATE {p}task_target SET status = 'pending', claim_until = NULL WHERE {ended} = 'processing'"),
            [id, tx.now],
        )?;
        recovered.pending += tx.change(
            &format!(
                "UPDATE {p}task_target SET status = 'pending', claim_until = NULL WHERE {ended} = 'sending' AND dedupe_until > ?2"
            ),
            [id, tx.now],
        )?;
        let unknown = tx.change(
            &format!(
                "UPDATE {p}task_target SET status = 'unknown', claim_until = NULL, settled_at = ?2, \
                 last_error = 'its run never said how the sending ended' WHERE {ended} = 'sending'"
            ),
            [id, tx.now],
        )?;
        if unknown > 0 {
            tx.change(
                &format!("UPDATE {p}task SET unknown_run = min(unknown_run + 1, 65535) WHERE id = ?1"),
                [id],
            )?;
            thaw(tx, task)?;
            recovered.unknown += unknown;
            recovered.doubtful.push(task);
        }
        if status == "finished" && is_open(tx, task)? && reopen(tx, task)? {
            recovered.reopened.push(task);
        }
    }
    let sql = format!(
        "SELECT id, expires_at FROM {p}task WHERE status = 'pending' AND expires_at <= ?1 AND (?2 IS NULL OR id = ?2) ORDER BY id"
    );
    for (task, expired) in tx.all(&sql, params![tx.now, only.map(u64::cast_signed)], |row| {
        Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, Option<i64>>(1)?))
    })? {
        let reason = match time(expired) {
            Some(at) => format!("it expired at {}", crate::task::show_time(&at)),
            None => "it expired".into(),
        };
        if pause(tx, task, &reason)? {
            recovered.paused.push((task, reason));
        }
    }
    finish_cancelled(tx, only)?;
    Ok(recovered)
}

/// The first `most` due tasks whose channel fulfils the condition.
fn due(tx: &Tx<'_>, channel: &str, channels: &str, left_alone: &str, most: usize) -> Result<Vec<Task>> {
    let p = tx.p;
    let sql = format!(
        "{} WHERE status = 'pending' AND (scheduled_at IS NULL OR scheduled_at <= ?1) \
         AND (expires_at IS NULL OR expires_at > ?1) AND (lock_until IS NULL OR lock_until < ?1) AND {channel} \
         AND id NOT IN (SELECT value FROM json_each(?3)) \
         AND NOT EXISTS (SELECT 1 FROM {p}pace WHERE channel = {p}task.channel AND next_at > ?1 * 1000) \
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

/// Remembers that nobody here can serve a task, or pauses it when that was long ago. Whether it is paused now.
fn unserved(tx: &Tx<'_>, task: &Task) -> Result<bool> {
    let p = tx.p;
    // Served, or paused and resumed, since: that sight does not count any more.
    let sql = format!(
        "SELECT max(a.at) FROM {p}audit AS a JOIN {p}task AS t ON t.id = a.task_id WHERE a.task_id = ?1 AND a.what = 'unserved' \
         AND a.at > COALESCE(t.served_at, 0) AND a.at > COALESCE(t.halt_at, 0)"
    );
    match tx.one(&sql, [task.id.cast_signed()], |row| row.get::<_, Option<i64>>(0))?.flatten() {
        Some(first) if first < tx.before(PATIENCE) => pause(
            tx,
            task.id,
            &format!("channel \"{}\" is not configured on any host that runs", task.channel),
        ),
        Some(_) => Ok(false),
        None => {
            let why = format!("channel \"{}\" is not configured here", task.channel);
            tx.audit(&Act { who: "batch-send", what: "unserved", why: Some(&why) }, task.id, None)?;
            Ok(false)
        }
    }
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
    let works = status == "pending" || (lease.forced() && status == "paused");
    Ok(if works && halt == lease.halt && !expired { Standing::Ours } else { Standing::Halted })
}

/// Begins one target, if it is still ours. Its attempt, counted.
fn begin(tx: &Tx<'_>, terms: &Terms, ready: &Ready) -> Result<Option<u16>> {
    let p = tx.p;
    let Claimed { target, token, .. } = &ready.claimed;
    let (id, token) = (target.id.cast_signed(), token.to_string());
    let claim_until = tx.after(terms.send.saturating_add(terms.margin));
    // A target in doubt goes out again only as a repetition that the provider recognises: with the key, the same
    // to the byte, and ended before the key is forgotten. The window counts from the first begin in doubt.
    let sql = format!(
        "UPDATE {p}task_target SET status = 'sending', attempts = min(attempts + 1, 65535), send_at = ?3, claim_until = ?4, \
         dedupe_until = COALESCE(dedupe_until, ?5), message_hash = CASE WHEN ?5 IS NULL THEN message_hash ELSE ?6 END \
         WHERE id = ?1 AND cron_token = ?2 AND status = 'processing' AND claim_until > ?3 \
         AND (dedupe_until IS NULL OR (?5 IS NOT NULL AND dedupe_until > ?4 AND message_hash = ?6)) RETURNING attempts"
    );
    let dedupe_until = terms.dedupe.map(|window| tx.after(window));
    let hash = ready.hash.as_ref().map(|hash| &hash[..]);
    let begun = tx.one(&sql, params![id, token, tx.now, claim_until, dedupe_until, hash], |row| {
        small(row, 0, u16::MAX)
    })?;
    if begun.is_none() {
        tx.change(
            &format!(
                "UPDATE {p}task_target SET status = 'unknown', claim_until = NULL, settled_at = ?3, \
                 last_error = 'an earlier attempt may have arrived, and the provider would not recognise another' \
                 WHERE id = ?1 AND cron_token = ?2 AND status = 'processing' AND claim_until > ?3 AND dedupe_until IS NOT NULL"
            ),
            params![id, token, tx.now],
        )?;
    }
    Ok(begun)
}

fn settle(tx: &Tx<'_>, answers: &[Answer]) -> Result<Settled> {
    let mut settled = Settled::default();
    for answer in answers {
        settle_one(tx, answer, &mut settled)?;
    }
    Ok(settled)
}

fn settle_one(tx: &Tx<'_>, answer: &Answer, settled: &mut Settled) -> Result<()> {
    let p = tx.p;
    let (id, token) = (answer.id.cast_signed(), answer.token.to_string());
    let sql = format!(
        "SELECT status, cron_token, dedupe_until IS NOT NULL FROM {p}task_target WHERE id = ?1 AND task_id = ?2"
    );
    let found = tx.one(&sql, [id, answer.task.cast_signed()], |row| {
        Ok((row.get::<_, String>(0)?, text(row, 1)?, row.get::<_, bool>(2)?))
    })?;
    let Some((word, bears, keyed)) = found else {
        settled.fenced.push(answer.id);
        return Ok(());
    };
    let settlement = match meaning(answer, bears.as_deref(), &word, keyed) {
        Meaning::Write(settlement) => settlement,
        Meaning::Said => {
            settled.written += 1;
            return Ok(());
        }
        Meaning::Fenced => {
            settled.fenced.push(answer.id);
            return Ok(());
        }
        Meaning::Duplicate => {
            settled.duplicates.push(answer.id);
            return audit_duplicate(tx, answer);
        }
    };
    let (to, receipt, reason, retry_at) = match &*settlement {
        Settlement::Sent { receipt } => (TargetStatus::Sent, receipt.as_deref(), None, None),
        Settlement::Failed { reason } => (TargetStatus::Failed, None, Some(reason), None),
        Settlement::Unknown { reason } => (TargetStatus::Unknown, None, Some(reason), None),
        Settlement::Returned { reason } => (TargetStatus::Pending, None, Some(reason), None),
        Settlement::Retry { reason, after, .. } => {
            (TargetStatus::Retry, None, Some(reason), Some(tx.after(*after)))
        }
    };
    let over = matches!(to, TargetStatus::Sent | TargetStatus::Failed | TargetStatus::Unknown);
    let changed = tx.change(
        &format!(
            "UPDATE {p}task_target SET status = ?4, claim_until = NULL, retry_at = ?5, settled_at = ?6, receipt = ?7, \
             last_error = ?8, attempts = max(attempts - ?9, 0), \
             dedupe_until = CASE WHEN ?10 THEN NULL ELSE dedupe_until END, \
             message_hash = CASE WHEN ?10 THEN NULL ELSE message_hash END \
             WHERE id = ?1 AND cron_token = ?2 AND status = ?3"
        ),
        params![
            id,
            token,
            word,
            to.word(),
            retry_at,
            over.then_some(tx.now),
            receipt.map(|text| fit(text, RECEIPT_MOST)),
            reason.map(|text| fit(text, REASON_MOST)),
            i64::from(to == TargetStatus::Pending),
            forgets(answer, &settlement),
        ],
    )?;
    if changed == 0 {
        bail!("target {} changed inside a write transaction", answer.id);
    }
    settled.written += 1;
    if word != "sending" {
        settled.late += 1;
        thaw(tx, answer.task)?;
    }
    Ok(())
}

/// Audits, once, an acceptance that finds another token on its row.
fn audit_duplicate(tx: &Tx<'_>, answer: &Answer) -> Result<()> {
    let why = duplicate(answer);
    let sql = format!(
        "SELECT 1 FROM {p}audit WHERE task_id = ?1 AND target_id = ?2 AND what = 'duplicate' AND why = ?3",
        p = tx.p
    );
    if !tx.exists(&sql, params![answer.task.cast_signed(), answer.id.cast_signed(), why])? {
        let act = Act { who: "batch-send", what: "duplicate", why: Some(&why) };
        tx.audit(&act, answer.task, Some(answer.id))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trouble::Kind;

    fn open(path: &Path) -> Result<Box<dyn Store>> {
        Database::open(&format!("sqlite://{}", path.display()), "batch_", ClaimForm::Auto)?.store()
    }

    fn kind<T>(done: Result<T>) -> Option<Kind> {
        Trouble::kind_of(&done.err().expect("an error"))
    }

    #[test]
    fn only_an_absolute_path_without_parameters_is_a_url() {
        for url in [
            "sqlite:tasks.db",
            "sqlite://tasks.db",
            "sqlite::memory:",
            "sqlite:///a?mode=ro",
            "sqlite:///a%2",
            "sqlite:///%ff",
        ] {
            assert_eq!(kind(Writer::new(url, "batch_")), Some(Kind::Usage), "{url}");
        }
        assert_eq!(kind(Writer::new("sqlite:///a", "1_")), Some(Kind::Usage));
        let writer = Writer::new("sqlite:///no/such%20folder/100%25.db", "b_").unwrap();
        assert_eq!(writer.path, Path::new("/no/such folder/100%.db"));
        assert_eq!(writer.identity(), "sqlite:/no/such folder/100%.db b_");
    }

    #[test]
    fn only_migrate_makes_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.db");
        let mut store = open(&path).unwrap();
        assert_eq!(store.schema().unwrap(), Schema { version: 0, installation: None });
        assert_eq!(kind(store.recover(None)), Some(Kind::Usage));
        assert!(!path.exists(), "a mistyped path leaves nothing behind");
        store.migrate(Duration::ZERO).unwrap();
        assert_eq!(open(&path).unwrap().schema().unwrap().version, migrations::VERSION);
        let missing = open(&folder.path().join("no/tasks.db"));
        assert!(missing.as_ref().err().expect("an error").to_string().contains("no directory"));
        assert_eq!(kind(missing), Some(Kind::Usage));
    }

    #[test]
    fn an_empty_file_is_not_migrated_and_another_file_is_no_database() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.db");
        std::fs::write(&path, "").unwrap();
        let mut store = open(&path).unwrap();
        assert_eq!(store.schema().unwrap().version, 0);
        assert_eq!(kind(store.tasks(None, true)), Some(Kind::Usage));
        std::fs::write(&path, "recipient,name\n".repeat(200)).unwrap();
        assert_eq!(kind(open(&path)), Some(Kind::Usage));
    }

    #[test]
    fn one_file_is_one_installation_under_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("tasks.db"), folder.path().join("link.db"));
        let identity = |path: &Path, prefix| {
            Writer::new(&format!("sqlite://{}", path.display()), prefix).unwrap().identity()
        };
        let before = identity(&path, "b_");
        open(&path).unwrap().migrate(Duration::ZERO).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!([identity(&path, "b_"), identity(&link, "b_")], [before.clone(), before.clone()]);
        assert_ne!(identity(&path, "c_"), before);
    }

    #[test]
    fn a_commit_lasts_and_a_busy_file_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.db");
        let mut store = open(&path).unwrap();
        store.migrate(Duration::ZERO).unwrap();
        let other = Connection::open(&path).unwrap();
        let pragma = |name: &str| {
            let mut writer = Writer::new(&format!("sqlite://{}", path.display()), "batch_").unwrap();
            writer.open(false).unwrap();
            writer
                .connection
                .unwrap()
                .pragma_query_value(None, name, |row| {
                    row.get::<_, String>(0).or_else(|_| row.get::<_, i64>(0).map(|number| number.to_string()))
                })
                .unwrap()
        };
        assert_eq!(
            [pragma("journal_mode"), pragma("synchronous"), pragma("busy_timeout")],
            ["wal", "2", "0"]
        );
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| open(&path).unwrap().recover(None).map(drop));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!waiting.is_finished(), "it waits for the writer");
            assert!(store.tasks(None, true).unwrap().is_empty(), "a look does not wait");
            other.execute_batch("COMMIT").unwrap();
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_row_that_the_database_refuses_does_not_keep_the_others_from_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.db");
        let mut store = open(&path).unwrap();
        store.migrate(Duration::ZERO).unwrap();
        let other = Connection::open(&path).unwrap();
        let token = Uuid::new_v4();
        other
            .execute_batch(&format!(
                "INSERT INTO batch_task (name, channel, status) VALUES ('n', 'c', 'pending');
                 INSERT INTO batch_task_target (task_id, recipient, status, cron_token)
                 VALUES (1, 'a', 'sending', '{token}'), (1, 'b', 'sending', '{token}'), (1, 'c', 'sending', '{token}');
                 CREATE TRIGGER odd BEFORE UPDATE ON batch_task_target WHEN NEW.recipient = 'b'
                 BEGIN SELECT RAISE(ABORT, 'not b'); END"
            ))
            .unwrap();
        let answer = |id| {
            let settlement = Settlement::Sent { receipt: None };
            Answer { task: 1, id, token, in_doubt: false, settlement }
        };
        let unwritten = store.settle(vec![answer(1), answer(2), answer(3)]).unwrap_err();
        assert_eq!(unwritten.answers.iter().map(|answer| answer.id).collect::<Vec<_>>(), [2]);
        assert!(format!("{:#}", unwritten.why).contains("not b"));
        let (_, counts) = store.tasks(Some(1), true).unwrap().pop().unwrap();
        assert_eq!((counts.sent, counts.sending), (2, 1));
    }
}
