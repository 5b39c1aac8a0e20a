//! The one connection through which this process writes, and its transactions: how the file is opened, how its lock is waited for,
//! how a row's values are read. What the statements say is not its business.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Params, Row, Transaction, TransactionBehavior,
    params,
};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::*;
use crate::owner;
use crate::who;

/// For how long we try to get the file's write lock from other processes.
pub(super) const BUSY_MOST: Duration = Duration::from_secs(10);

/// The same, with answers in hand: they are in memory alone until they are in the journal, and that is asked for next.
pub(super) const WITH_ANSWERS: Duration = Duration::from_secs(2);

/// The connection through which all stores of this process write. Opened when the first store is taken.
pub struct Writer {
    pub(super) path: PathBuf,
    prefix: String,
    pub(super) connection: Option<Connection>,
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

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn expect_folder(&self) -> Result<()> {
        match self.path.parent().filter(|folder| !folder.is_dir()) {
            None => Ok(()),
            Some(folder) => Err(Trouble::usage(format!(
                "no directory {} for the database {}: create it, or correct database_url",
                folder.display(),
                self.path.display()
            ))
            .into()),
        }
    }

    /// A connection that cannot write, on a file that is there.
    pub(super) fn read_only(&self) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(&self.path, flags).map_err(|error| unusable(&self.path, error))?;
        connection.busy_timeout(BUSY_MOST)?;
        Ok(connection)
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
    pub(super) fn open(&mut self, create: bool) -> Result<bool> {
        if self.connection.is_some() {
            return Ok(true);
        }
        self.expect_folder()?;
        let path = self.path.display();
        if !create && !self.path.exists() {
            return Ok(false);
        }
        if create {
            // Ours, so that root's belongs to the directory's owner; SQLite gives -wal and -shm to the same one. Where a file is, or
            // it cannot be made, SQLite has its say.
            let _ = owner::make(OpenOptions::new().append(true).mode(0o644), &self.path);
        }
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
        let connection =
            Connection::open_with_flags(&self.path, flags).map_err(|error| unusable(&self.path, error))?;
        // The built-in wait is unfair to the point of starvation; ours is `patiently`.
        connection.busy_timeout(Duration::ZERO)?;
        connection.set_prepared_statement_cache_capacity(100);
        let mode: String = patiently(&self.path, BUSY_MOST, || {
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
        })
        .map_err(|error| match error.downcast::<rusqlite::Error>() {
            Ok(error) => unusable(&self.path, error),
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
    pub(super) fn write<T>(&mut self, work: impl FnOnce(&Tx<'_>) -> Result<T>) -> Result<T> {
        self.write_within(BUSY_MOST, work)
    }

    /// The same; other processes are waited for no longer than that.
    pub(super) fn write_within<T>(
        &mut self,
        patience: Duration,
        work: impl FnOnce(&Tx<'_>) -> Result<T>,
    ) -> Result<T> {
        self.transaction(TransactionBehavior::Immediate, patience, work)
    }

    /// One snapshot to read from; it never waits for a writer.
    pub(super) fn read<T>(&mut self, work: impl FnOnce(&Tx<'_>) -> Result<T>) -> Result<T> {
        self.transaction(TransactionBehavior::Deferred, BUSY_MOST, work)
    }

    fn transaction<T>(
        &mut self,
        behavior: TransactionBehavior,
        patience: Duration,
        work: impl FnOnce(&Tx<'_>) -> Result<T>,
    ) -> Result<T> {
        self.open(false)?;
        let path = self.path.display();
        let Some(connection) = &self.connection else {
            return Err(Trouble::usage(format!("no database {path}: `batch-send migrate` creates it")).into());
        };
        let sql = patiently(&self.path, patience, || {
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
            let said = error.downcast_ref::<rusqlite::Error>().map(ToString::to_string).unwrap_or_default();
            if said.contains("no such table") {
                error.context(Trouble::usage(format!(
                    "the tables are missing in {path}: `batch-send migrate` makes them"
                )))
            } else if said.contains("no such index") {
                error.context(Trouble::usage(format!(
                    "an index of the tables is missing in {path}: `batch-send check` names it, `batch-send migrate --print --from 0` shows how it is made"
                )))
            } else {
                error
            }
        })
    }
}

/// That the file is another user's, if this one may not write it. Looks without opening: closing it would give up SQLite's locks.
fn left_by_another(path: &Path) -> Option<String> {
    accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS).err()?;
    owner::left_by_another(path).map(|sentence| format!("the database {sentence}"))
}

/// Why a file cannot be used, and the way out.
pub(super) fn unusable(path: &Path, error: rusqlite::Error) -> anyhow::Error {
    if let Some(sentence) = left_by_another(path) {
        return Trouble::usage(sentence).into();
    }
    let path = path.display();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Trouble::usage(format!(
            "{path} is not an SQLite database: correct `database_url`, or move that file away and `batch-send migrate`"
        ))
        .into(),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            let text = format!(
                "cannot write {path} as user {}: it must own the file and its directory, or may write both",
                who::user()
            );
            anyhow::Error::new(error).context(Trouble::usage(text))
        }
        _ => error.into(),
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
fn patiently<T>(
    path: &Path,
    patience: Duration,
    mut attempt: impl FnMut() -> rusqlite::Result<T>,
) -> Result<T> {
    let until = Moment::now() + patience;
    loop {
        match attempt() {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                if until.passed() {
                    let text = format!(
                        "another process wrote to {} for {} s: try again once it is done",
                        path.display(),
                        patience.as_secs()
                    );
                    return Err(anyhow::Error::new(error).context(Trouble::try_later(text)));
                }
                std::thread::sleep(Duration::from_micros(fastrand::u64(500..4_000)));
            }
            done => return Ok(done?),
        }
    }
}

/// One transaction. Dropped before its COMMIT, it leaves no trace.
pub(super) struct Tx<'a> {
    pub sql: Transaction<'a>,
    /// The prefix of the tables.
    pub p: &'a str,
    /// The one time of this transaction, in milliseconds.
    pub now: i64,
}

impl Tx<'_> {
    /// How many rows a statement changed.
    pub fn change(&self, sql: &str, params: impl Params) -> Result<u64> {
        Ok(self.sql.prepare_cached(sql)?.execute(params)? as u64)
    }

    pub fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        Ok(self.sql.prepare_cached(sql)?.query_row(params, read).optional()?)
    }

    pub fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.sql.prepare_cached(sql)?;
        let rows = statement.query_map(params, read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    pub fn exists(&self, sql: &str, params: impl Params) -> Result<bool> {
        Ok(self.sql.prepare_cached(sql)?.exists(params)?)
    }

    pub fn after(&self, time: Duration) -> i64 {
        self.now.saturating_add(ms(time))
    }

    pub fn before(&self, time: Duration) -> i64 {
        self.now.saturating_sub(ms(time))
    }

    pub fn audit(&self, act: &Act<'_>, task: Option<TaskId>, target: Option<TargetId>) -> Result<()> {
        let p = self.p;
        self.change(
            &format!("INSERT INTO {p}audit (at, who, what, task_id, target_id, why) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"),
            params![
                self.now,
                fit(act.who, NAME_MOST),
                act.what,
                task.map(u64::cast_signed),
                target.map(u64::cast_signed),
                act.why.map(|why| fit(why, REASON_MOST)),
            ],
        )?;
        Ok(())
    }
}

/// Milliseconds, ten years at most: sums with them never overflow.
pub(super) fn ms(time: Duration) -> i64 {
    const MOST: i64 = 10 * 366 * 86_400_000;
    i64::try_from(time.as_millis()).map_or(MOST, |ms| ms.min(MOST))
}

/// The same in microseconds.
pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX).min(ms(Duration::MAX) * 1000)
}

/// A text column as it is, valid or not: one broken text must not keep a batch from being read.
pub(super) fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    Ok(row.get_ref(column)?.as_bytes_or_null()?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// A small unsigned number in a column that takes any.
pub(super) fn small<T: TryFrom<i64>>(row: &Row<'_>, column: usize, most: T) -> rusqlite::Result<T> {
    Ok(T::try_from(row.get::<_, i64>(column)?.max(0)).unwrap_or(most))
}
