//! Where the stories of the suite play: a fresh database, the stores that open it, raw SQL for what no method would do
//! (move a time into the past, be a careless application), and short forms of the steps.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::super::*;
use crate::message::{TargetPart, TaskPart};

/// A fresh database, and the way to open stores on it.
pub(super) struct Stage {
    url: String,
    prefix: String,
    claim: ClaimForm,
    raw: Raw,
}

enum Raw {
    Sqlite(
        Mutex<rusqlite::Connection>,
        #[expect(dead_code, reason = "removed when dropped")] tempfile::TempDir,
    ),
    MySql(Mutex<::mysql::Conn>),
}

/// A target as the database has it. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub status: String,
    pub token: Option<String>,
    pub attempts: u16,
    pub round: u8,
    pub claim_until: Option<i64>,
    pub retry_at: Option<i64>,
    pub dedupe_until: Option<i64>,
    pub settled_at: Option<i64>,
    pub receipt: Option<String>,
    pub last_error: Option<String>,
    pub hashed: bool,
}

impl Stage {
    pub fn sqlite() -> Self {
        // In memory where there is such a place: it is not the disk that is tested, and thousands of commits are waited for.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = folder.path().join("tasks.db");
        let url = format!("sqlite://{}", path.display());
        let prefix = "batch_".to_owned();
        Database::open(&url, &prefix, ClaimForm::Auto)
            .unwrap()
            .store()
            .unwrap()
            .migrate(Duration::ZERO)
            .unwrap();
        let raw = rusqlite::Connection::open(&path).unwrap();
        Self { url, prefix, claim: ClaimForm::Auto, raw: Raw::Sqlite(Mutex::new(raw), folder) }
    }

    /// In the database of `BATCH_SEND_TEST_MYSQL`, under a prefix of its own; MariaDB or MySQL.
    pub fn mysql(claim: ClaimForm) -> Self {
        #[allow(clippy::disallowed_methods, reason = "which server to test on is said by the environment alone")]
        let url = std::env::var("BATCH_SEND_TEST_MYSQL")
            .expect("BATCH_SEND_TEST_MYSQL is not set: the URL of a MySQL or MariaDB database in which tables may be made and dropped");
        let prefix = format!("t{:08x}_", fastrand::u32(..));
        Database::open(&url, &prefix, claim).unwrap().store().unwrap().migrate(Duration::ZERO).unwrap();
        let (plain, parameters) = url.split_once('?').unwrap_or((&url, ""));
        let socket = parameters.split('&').find_map(|parameter| parameter.strip_prefix("socket="));
        let options = ::mysql::OptsBuilder::from_opts(::mysql::Opts::from_url(plain).unwrap())
            .socket(socket)
            .prefer_socket(socket.is_some())
            .init(vec!["SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'"]);
        let raw = Raw::MySql(Mutex::new(::mysql::Conn::new(options).unwrap()));
        Self { url, prefix, claim, raw }
    }

    pub fn on_sqlite(&self) -> bool {
        matches!(self.raw, Raw::Sqlite(..))
    }

    /// A database handle of its own, as another process has it.
    pub fn database(&self) -> Database {
        Database::open(&self.url, &self.prefix, self.claim).unwrap()
    }

    /// A store that shares nothing with the others but the database.
    pub fn store(&self) -> Box<dyn Store> {
        self.database().store().unwrap()
    }

    /// Raw SQL; `{p}` is the prefix of the tables.
    pub fn sql(&self, sql: &str) {
        let sql = sql.replace("{p}", &self.prefix);
        match &self.raw {
            Raw::Sqlite(raw, _) => patient(|| raw.lock().unwrap().execute_batch(&sql)),
            Raw::MySql(raw) => {
                ::mysql::prelude::Queryable::query_drop(&mut *raw.lock().unwrap(), sql).unwrap()
            }
        }
    }

    /// What one raw SELECT finds: columns as text, NULL as "NULL".
    pub fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        let sql = sql.replace("{p}", &self.prefix);
        match &self.raw {
            Raw::Sqlite(raw, _) => patient(|| {
                let raw = raw.lock().unwrap();
                let mut statement = raw.prepare(&sql)?;
                let columns = statement.column_count();
                let rows = statement.query_map([], |row| {
                    (0..columns)
                        .map(|column| Ok(word(row.get_ref(column)?)))
                        .collect::<rusqlite::Result<Vec<_>>>()
                })?;
                rows.collect()
            }),
            Raw::MySql(raw) => {
                let rows: Vec<::mysql::Row> =
                    ::mysql::prelude::Queryable::query(&mut *raw.lock().unwrap(), sql).unwrap();
                let text = |value| match value {
                    ::mysql::Value::NULL => "NULL".to_owned(),
                    ::mysql::Value::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                    other => other.as_sql(true),
                };
                rows.into_iter().map(|row| row.unwrap().into_iter().map(text).collect()).collect()
            }
        }
    }

    /// The one value of a raw SELECT.
    pub fn value(&self, sql: &str) -> String {
        self.rows(sql)[0][0].clone()
    }

    /// SQL for the time so many seconds ago (negative: to come).
    pub fn ago(&self, seconds: i64) -> String {
        match self.raw {
            Raw::Sqlite(..) => format!("(CAST(unixepoch('subsec') * 1000 AS INTEGER) - {seconds} * 1000)"),
            Raw::MySql(_) => format!("TIMESTAMPADD(SECOND, -({seconds}), NOW(3))"),
        }
    }

    /// The same for a column in microseconds.
    pub fn micros_ago(&self, seconds: i64) -> String {
        match self.raw {
            Raw::Sqlite(..) => format!("{} * 1000", self.ago(seconds)),
            Raw::MySql(_) => format!("TIMESTAMPADD(SECOND, -({seconds}), NOW(6))"),
        }
    }

    /// Moves a time of all targets, or of one, so many seconds into the past.
    pub fn age(&self, column: &str, target: Option<TargetId>, seconds: i64) {
        let only = target.map_or(String::new(), |id| format!(" AND id = {id}"));
        let ago = self.ago(seconds);
        self.sql(&format!("UPDATE {{p}}task_target SET {column} = {ago} WHERE {column} IS NOT NULL{only}"));
    }

    /// All claims have ended: the runs that had them died, or were stopped for too long.
    pub fn end_claims(&self) {
        self.age("claim_until", None, 1);
    }

    /// All retries have come.
    pub fn end_waits(&self) {
        self.age("retry_at", None, 1);
    }

    /// All leases have ended.
    pub fn end_leases(&self) {
        self.sql(&format!("UPDATE {{p}}task SET lock_until = {} WHERE lock_until IS NOT NULL", self.ago(1)));
    }

    /// A channel's hold ended so many seconds ago (negative: will end).
    pub fn hold_ended(&self, channel: &str, seconds: i64) {
        let at = self.micros_ago(seconds);
        self.sql(&format!(
            "UPDATE {{p}}pace SET next_at = {at}, held_until = {at} WHERE channel = '{channel}'"
        ));
    }

    /// The next slot of a channel begins in so many seconds, and nothing is held.
    pub fn next_slot(&self, channel: &str, seconds: i64) {
        let at = self.micros_ago(-seconds);
        self.sql(&format!("DELETE FROM {{p}}pace WHERE channel = '{channel}'"));
        self.sql(&format!("INSERT INTO {{p}}pace (channel, next_at) VALUES ('{channel}', {at})"));
    }

    /// When that is, in microseconds.
    pub fn next_at(&self, channel: &str) -> i64 {
        let at = match self.raw {
            Raw::Sqlite(..) => "next_at",
            Raw::MySql(_) => "CAST(UNIX_TIMESTAMP(next_at) * 1000000 AS SIGNED)",
        };
        self.value(&format!("SELECT {at} FROM {{p}}pace WHERE channel = '{channel}'")).parse().unwrap()
    }

    /// The tables as they were before the second migration, where there are none.
    pub fn make_version_1(&self, installation: Uuid) {
        let first = &migrations::MIGRATIONS[0];
        let sql = if self.on_sqlite() { first.sqlite } else { first.mysql };
        self.sql(&migrations::own_table(self.on_sqlite(), &self.prefix));
        for statement in migrations::statements(sql, &self.prefix) {
            self.sql(&statement);
        }
        self.sql(&format!("INSERT INTO {{p}}installation (id, server) VALUES ('{installation}', 'db')"));
        self.sql(&format!(
            "INSERT INTO {{p}}migration (version, name, checksum) VALUES (1, '{}', '{}')",
            first.name,
            migrations::checksum(sql)
        ));
    }

    /// The tables say that they are of this version.
    pub fn schema_is_at(&self, version: u32) {
        self.sql("DELETE FROM {p}migration");
        self.sql(&format!(
            "INSERT INTO {{p}}migration (version, name, checksum) VALUES ({version}, 'another', 'another')"
        ));
    }

    /// SQL for a time column in milliseconds.
    pub fn ms(&self, column: &str) -> String {
        match self.raw {
            Raw::Sqlite(..) => column.to_owned(),
            Raw::MySql(_) => format!("CAST(UNIX_TIMESTAMP({column}) * 1000 AS SIGNED)"),
        }
    }

    pub fn now(&self) -> i64 {
        let now = self.ms(&self.ago(0));
        self.value(&format!("SELECT {now}")).parse().unwrap()
    }

    pub fn row(&self, target: TargetId) -> Row {
        let times: Vec<String> =
            ["claim_until", "retry_at", "dedupe_until", "settled_at"].map(|time| self.ms(time)).into();
        let sql = format!(
            "SELECT status, cron_token, attempts, round, receipt, last_error, message_hash IS NOT NULL, {} \
             FROM {{p}}task_target WHERE id = {target}",
            times.join(", ")
        );
        let row = self.rows(&sql).pop().expect("no such target");
        let text = |column: usize| Some(row[column].clone()).filter(|text| text != "NULL");
        let time = |column: usize| text(column).map(|text| text.parse().unwrap());
        Row {
            status: row[0].clone(),
            token: text(1),
            attempts: row[2].parse().unwrap(),
            round: row[3].parse().unwrap(),
            receipt: text(4),
            last_error: text(5),
            hashed: row[6] == "1",
            claim_until: time(7),
            retry_at: time(8),
            dedupe_until: time(9),
            settled_at: time(10),
        }
    }

    pub fn status(&self, target: TargetId) -> String {
        self.row(target).status
    }

    /// How many audit rows say this.
    pub fn audits(&self, what: &str) -> u64 {
        self.value(&format!("SELECT count(*) FROM {{p}}audit WHERE what = '{what}'")).parse().unwrap()
    }

    /// A draft with targets `r1`, `r2` and so on. Its id, and theirs.
    pub fn draft(&self, targets: usize) -> (TaskId, Vec<TargetId>) {
        let mut store = self.store();
        let new = NewTask {
            name: "a task",
            channel: CHANNEL,
            payload: None,
            priority: 0,
            scheduled: None,
            expires: None,
        };
        let task = store.create(&new).unwrap();
        let rows: Vec<NewTarget> = (1..=targets).map(|n| recipient(&format!("r{n}"))).collect();
        if !rows.is_empty() {
            assert_eq!(store.add(task, &rows).unwrap(), Added { new: targets as u64, repeated: 0 });
        }
        let ids = self.rows(&format!("SELECT id FROM {{p}}task_target WHERE task_id = {task} ORDER BY id"));
        (task, ids.into_iter().map(|row| row[0].parse().unwrap()).collect())
    }

    /// The same, started.
    pub fn task(&self, targets: usize) -> (TaskId, Vec<TargetId>) {
        let (task, ids) = self.draft(targets);
        start(&mut *self.store(), task);
        (task, ids)
    }

    /// A task with one target, leased, claimed and begun by one store.
    pub fn sending(&self) -> Sending {
        self.sending_under(&terms())
    }

    pub fn sending_under(&self, terms: &Terms) -> Sending {
        let (task, ids) = self.task(1);
        let mut store = self.store();
        let lease = ours(&mut *store, task, terms);
        let flight = begin(&mut *store, &lease, 1).pop().unwrap();
        Sending { task, id: ids[0], store, lease, flight }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Raw::MySql(raw) = &self.raw {
            let mut raw = raw.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            for table in ["task", "task_target", "pace", "installation", "audit", "suppression", "migration"]
            {
                let sql = format!("DROP TABLE IF EXISTS {}{table}", self.prefix);
                let _ = ::mysql::prelude::Queryable::query_drop(&mut *raw, sql);
            }
        }
    }
}

fn patient<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> T {
    loop {
        match attempt() {
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {
                std::thread::yield_now();
            }
            done => return done.unwrap(),
        }
    }
}

fn word(value: rusqlite::types::ValueRef<'_>) -> String {
    use rusqlite::types::ValueRef as V;
    match value {
        V::Null => "NULL".into(),
        V::Integer(number) => number.to_string(),
        V::Real(number) => number.to_string(),
        V::Text(bytes) | V::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// What `Stage::sending` leaves in our hands.
pub(super) struct Sending {
    pub task: TaskId,
    pub id: TargetId,
    pub store: Box<dyn Store>,
    pub lease: Lease,
    pub flight: InFlight,
}

// ---- short forms -------------------------------------------------------------------------------------------------

pub(super) const CHANNEL: &str = "letters";

pub(super) const ACT: Act<'static> = Act { who: "ann@desk", what: "test", why: Some("she knows") };

pub(super) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn terms() -> Terms {
    Terms {
        owner: "host 1".into(),
        lease: secs(30),
        send: secs(10),
        margin: secs(2),
        dedupe: None,
        channel: CHANNEL.into(),
    }
}

/// On a channel whose provider remembers keys for a day.
pub(super) fn keyed() -> Terms {
    Terms { dedupe: Some(secs(86_400)), ..terms() }
}

pub(super) fn recipient(name: &str) -> NewTarget {
    NewTarget { recipient: name.into(), params: None }
}

pub(super) fn start(store: &mut dyn Store, task: TaskId) {
    let turned = turn(store, task, &[TaskStatus::Draft], TaskStatus::Pending);
    assert_eq!(turned, Turned::From(TaskStatus::Draft));
}

pub(super) fn turn(store: &mut dyn Store, task: TaskId, from: &[TaskStatus], to: TaskStatus) -> Turned {
    store.turn(task, from, to, None, Expiry::Keep, &ACT).unwrap()
}

pub(super) fn pause(store: &mut dyn Store, task: TaskId) {
    assert_eq!(
        turn(store, task, &[TaskStatus::Pending], TaskStatus::Paused),
        Turned::From(TaskStatus::Pending)
    );
}

pub(super) fn resume(store: &mut dyn Store, task: TaskId) {
    assert_eq!(
        turn(store, task, &[TaskStatus::Paused], TaskStatus::Pending),
        Turned::From(TaskStatus::Paused)
    );
}

pub(super) fn cancel(store: &mut dyn Store, task: TaskId) {
    let from = [TaskStatus::Draft, TaskStatus::Pending, TaskStatus::Paused];
    assert!(matches!(turn(store, task, &from, TaskStatus::Cancelled), Turned::From(_)));
}

pub(super) fn task_status(store: &mut dyn Store, task: TaskId) -> TaskStatus {
    store.task(task).unwrap().unwrap().status
}

pub(super) fn ours(store: &mut dyn Store, task: TaskId, terms: &Terms) -> Lease {
    match store.lease(task, terms, false).unwrap() {
        Leasing::Ours(lease) => lease,
        other => panic!("not leased: {other:?}"),
    }
}

/// A forced lease, beside whoever holds the task.
pub(super) fn beside(store: &mut dyn Store, task: TaskId) -> Lease {
    match store.lease(task, &terms(), true).unwrap() {
        Leasing::Ours(lease) => lease,
        other => panic!("not leased: {other:?}"),
    }
}

pub(super) fn closed(leasing: Leasing) -> String {
    match leasing {
        Leasing::Closed(why) => why,
        other => panic!("not closed: {other:?}"),
    }
}

/// Claimed, with a message: ready to begin. On a keyed channel with its hash.
pub(super) fn ready(claimed: Claimed, lease: &Lease) -> Ready {
    let hash = lease.terms.dedupe.map(|_| [7; 16]);
    let message = message(claimed.target(), lease.task());
    claimed.ready(message, hash)
}

fn message(target: &Target, task: TaskId) -> Message {
    let json = || RawValue::from_string("{}".into()).unwrap();
    Message {
        key: Uuid::from_u128(u128::from(target.id) << 8 | u128::from(target.round)),
        attempt: target.attempts + 1,
        task: Arc::new(TaskPart { id: task, name: "a task".into(), payload: json() }),
        target: TargetPart { id: target.id, recipient: target.recipient.clone(), params: json() },
        body: None,
    }
}

/// Claims and begins up to `most`.
pub(super) fn begin(store: &mut dyn Store, lease: &Lease, most: usize) -> Vec<InFlight> {
    let claimed = store.claim(lease, most).unwrap();
    begin_these(store, lease, claimed).in_flight
}

pub(super) fn begin_these(store: &mut dyn Store, lease: &Lease, claimed: Vec<Claimed>) -> Begun {
    let ready = claimed.into_iter().map(|claimed| ready(claimed, lease)).collect();
    store.begin(lease, ready, Vec::new()).map_err(|unwritten| unwritten.why).unwrap()
}

pub(super) fn settle(store: &mut dyn Store, answers: Vec<Answer>) -> Settled {
    store.settle(answers).map_err(|unwritten| unwritten.why).unwrap()
}

pub(super) fn close(store: &mut dyn Store, lease: Lease) -> Closed {
    store.close(lease).unwrap()
}

/// The same answer once more, as a journal replays it.
pub(super) fn again(answer: &Answer) -> Answer {
    serde_json::from_str(&serde_json::to_string(answer).unwrap()).unwrap()
}

pub(super) fn ids(claimed: &[Claimed]) -> Vec<TargetId> {
    claimed.iter().map(|claimed| claimed.target().id).collect()
}

pub(super) fn sent() -> Settlement {
    Settlement::Sent { receipt: Some("receipt".into()) }
}

pub(super) fn failed() -> Settlement {
    Settlement::Failed { reason: "no such address".into() }
}

pub(super) fn unknown() -> Settlement {
    Settlement::Unknown { reason: "no answer".into() }
}

pub(super) fn returned() -> Settlement {
    Settlement::Returned { reason: "not reached".into() }
}

pub(super) fn retry(in_doubt: bool) -> Settlement {
    Settlement::Retry { reason: "too many".into(), after: secs(60), in_doubt }
}
