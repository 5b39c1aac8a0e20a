//! The database as an application sees it: plain SQL on a connection of its own. Nothing of the product is used here,
//! so that what the rows say is said by the rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mysql::prelude::Queryable;

use super::process::wait_until;

/// How long a write on SQLite waits for others.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    MySql,
}

pub struct Database {
    pub engine: Engine,
    /// As the configuration says it.
    pub url: String,
    connection: Mutex<Connection>,
    /// Dropped in the end.
    name: Option<String>,
}

enum Connection {
    Sqlite(rusqlite::Connection),
    MySql(Box<mysql::Conn>),
}

/// A target as its row says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: u64,
    pub recipient: String,
    pub status: String,
    pub attempts: u32,
    /// An earlier attempt may have arrived.
    pub in_doubt: bool,
    pub error: String,
    pub receipt: String,
}

impl Database {
    /// A fresh one: a file in `dir`, or a database of its own on the server.
    pub fn new(engine: Engine, dir: &Path) -> Self {
        match engine {
            Engine::Sqlite => {
                let path = dir.join("tasks.db");
                Self::sqlite(&path)
            }
            Engine::MySql => {
                let url = std::env::var("BATCH_SEND_TEST_MYSQL")
                    .expect("BATCH_SEND_TEST_MYSQL names no server; tests/run starts one");
                Self::on_server(&url)
            }
        }
    }

    fn sqlite(path: &PathBuf) -> Self {
        Self {
            engine: Engine::Sqlite,
            url: format!("sqlite://{}", path.display()),
            connection: Mutex::new(Connection::Sqlite(open_sqlite(path))),
            name: None,
        }
    }

    /// A fresh database on the server that `url` names.
    pub fn on_server(url: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let opts = mysql::Opts::from_url(url).unwrap();
        let name = format!("bs_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut connection =
            mysql::Conn::new(mysql::OptsBuilder::from_opts(opts).prefer_socket(false)).unwrap();
        connection.query_drop(format!("CREATE DATABASE {name}")).unwrap();
        connection.query_drop(format!("USE {name}")).unwrap();
        let base = url.split('?').next().unwrap().rsplit_once('/').unwrap().0;
        Self {
            engine: Engine::MySql,
            url: format!("{base}/{name}"),
            connection: Mutex::new(Connection::MySql(Box::new(connection))),
            name: Some(name),
        }
    }

    /// Another session on the same database.
    pub fn another(&self) -> Self {
        let connection = match self.engine {
            Engine::Sqlite => Connection::Sqlite(open_sqlite(self.url.trim_start_matches("sqlite://"))),
            Engine::MySql => Connection::MySql(Box::new(open_mysql(&self.url))),
        };
        Self { engine: self.engine, url: self.url.clone(), connection: Mutex::new(connection), name: None }
    }

    /// A session of another user of the server.
    pub fn another_as(&self, url: &str) -> Self {
        let connection = Mutex::new(Connection::MySql(Box::new(open_mysql(url))));
        Self { engine: self.engine, url: url.to_owned(), connection, name: None }
    }

    /// Its name on the server.
    pub fn name(&self) -> &str {
        self.url.rsplit_once('/').unwrap().1
    }

    /// Connects anew: the server was away.
    pub fn reconnect(&self) {
        *self.connection.lock().unwrap() = Connection::MySql(Box::new(open_mysql(&self.url)));
    }

    /// Whether nobody is in the middle of a transaction, and keeps out others.
    pub fn writable(&self) -> bool {
        if self.engine == Engine::MySql {
            let free = |table| self.try_rows(&format!("SELECT id FROM {table} FOR UPDATE NOWAIT")).is_ok();
            return free("batch_task") && free("batch_task_target");
        }
        match &mut *self.connection.lock().unwrap() {
            Connection::MySql(_) => unreachable!(),
            Connection::Sqlite(sqlite) => {
                sqlite.busy_timeout(Duration::from_millis(50)).unwrap();
                let free = sqlite.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok();
                sqlite.busy_timeout(PATIENCE).unwrap();
                free
            }
        }
    }

    /// One statement, or several on SQLite.
    #[track_caller]
    pub fn execute(&self, sql: &str) {
        self.try_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub fn try_execute(&self, sql: &str) -> Result<(), String> {
        match &mut *self.connection.lock().unwrap() {
            Connection::Sqlite(sqlite) => sqlite.execute_batch(sql).map_err(|error| error.to_string()),
            Connection::MySql(mysql) => mysql.query_drop(sql).map_err(|error| error.to_string()),
        }
    }

    /// Every row, every value as text; NULL is None.
    #[track_caller]
    pub fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.try_rows(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub fn try_rows(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
        match &mut *self.connection.lock().unwrap() {
            Connection::Sqlite(sqlite) => sqlite_rows(sqlite, sql).map_err(|error| error.to_string()),
            Connection::MySql(mysql) => {
                let rows: Vec<mysql::Row> = mysql.query(sql).map_err(|error| error.to_string())?;
                Ok(rows.into_iter().map(|row| row.unwrap().into_iter().map(mysql_text).collect()).collect())
            }
        }
    }

    /// The one value that `sql` asks for; NULL is "".
    #[track_caller]
    pub fn text(&self, sql: &str) -> String {
        let rows = self.rows(sql);
        let value = rows.first().unwrap_or_else(|| panic!("no row: {sql}"))[0].clone();
        value.unwrap_or_default()
    }

    #[track_caller]
    pub fn number(&self, sql: &str) -> u64 {
        let text = self.text(sql);
        text.parse().unwrap_or_else(|_| panic!("\"{text}\" is no number: {sql}"))
    }

    /// SQL for a time so many seconds from now (or before it), by the database's clock.
    pub fn moment(&self, seconds: i64) -> String {
        match self.engine {
            Engine::Sqlite => format!("(CAST(unixepoch('subsec') * 1000 AS INTEGER) + {})", seconds * 1000),
            Engine::MySql => format!("(NOW(3) + INTERVAL {seconds} SECOND)"),
        }
    }

    /// The same for `batch_pace`, whose times are microseconds.
    pub fn pace_moment(&self, seconds: i64) -> String {
        match self.engine {
            Engine::Sqlite => format!("{} * 1000", self.moment(seconds)),
            Engine::MySql => format!("(NOW(6) + INTERVAL {seconds} SECOND)"),
        }
    }

    // ---- as an application would ----------------------------------------------------------------------------------

    /// A task with targets, pending: draft first, its targets, then ready.
    pub fn task<S: AsRef<str>>(&self, channel: &str, recipients: impl IntoIterator<Item = S>) -> u64 {
        let task = self.draft(channel);
        self.add(task, recipients);
        self.execute(&format!("UPDATE batch_task SET status = 'pending' WHERE id = {task}"));
        task
    }

    pub fn draft(&self, channel: &str) -> u64 {
        self.execute(&format!("INSERT INTO batch_task (name, channel) VALUES ('a task', '{channel}')"));
        match &mut *self.connection.lock().unwrap() {
            Connection::Sqlite(sqlite) => sqlite.last_insert_rowid() as u64,
            Connection::MySql(mysql) => mysql.last_insert_id(),
        }
    }

    pub fn add<S: AsRef<str>>(&self, task: u64, recipients: impl IntoIterator<Item = S>) {
        let values: Vec<_> =
            recipients.into_iter().map(|name| format!("({task}, {})", quote(name.as_ref()))).collect();
        for some in values.chunks(5_000) {
            let values = some.join(", ");
            self.execute(&format!("INSERT INTO batch_task_target (task_id, recipient) VALUES {values}"));
        }
    }

    // ---- what the rows say ----------------------------------------------------------------------------------------

    pub fn targets(&self, task: u64) -> Vec<Row> {
        let sql = format!(
            "SELECT id, recipient, status, attempts, last_error, receipt, dedupe_until IS NOT NULL FROM batch_task_target WHERE task_id = {task} ORDER BY id"
        );
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        self.rows(&sql)
            .iter()
            .map(|row| Row {
                id: text(&row[0]).parse().unwrap(),
                recipient: text(&row[1]),
                status: text(&row[2]),
                attempts: text(&row[3]).parse().unwrap(),
                error: text(&row[4]),
                receipt: text(&row[5]),
                in_doubt: text(&row[6]) == "1",
            })
            .collect()
    }

    #[track_caller]
    pub fn target(&self, task: u64, recipient: &str) -> Row {
        let found = self.targets(task).into_iter().find(|row| row.recipient == recipient);
        found.unwrap_or_else(|| panic!("no target {recipient}"))
    }

    /// How many targets of the task are in each status.
    pub fn counts(&self, task: u64) -> BTreeMap<String, u64> {
        let sql =
            format!("SELECT status, COUNT(*) FROM batch_task_target WHERE task_id = {task} GROUP BY status");
        let pair =
            |row: Vec<Option<String>>| (row[0].clone().unwrap(), row[1].clone().unwrap().parse().unwrap());
        self.rows(&sql).into_iter().map(pair).collect()
    }

    /// How many targets of the task are in one of these statuses ("sent", or "sent,unknown").
    pub fn count(&self, task: u64, statuses: &str) -> u64 {
        let counts = self.counts(task);
        statuses.split(',').map(|status| counts.get(status).copied().unwrap_or(0)).sum()
    }

    /// Status of the task, and why.
    pub fn standing(&self, task: u64) -> (String, String) {
        let rows = self.rows(&format!("SELECT status, status_reason FROM batch_task WHERE id = {task}"));
        (rows[0][0].clone().unwrap(), rows[0][1].clone().unwrap_or_default())
    }

    pub fn status(&self, task: u64) -> String {
        self.standing(task).0
    }

    /// Ends every other session on this database but `kept`, with what it was about to do.
    pub fn cut_others(&self, kept: &Self) {
        if self.engine == Engine::Sqlite {
            return;
        }
        let kept = kept.text("SELECT CONNECTION_ID()");
        let sessions = format!(
            "SELECT id FROM information_schema.processlist WHERE db = '{}' AND id NOT IN (CONNECTION_ID(), {kept})",
            self.name()
        );
        wait_until("the sessions to end", 20, || {
            let left = self.rows(&sessions);
            for row in &left {
                // Gone meanwhile: as well.
                let _ = self.try_execute(&format!("KILL CONNECTION {}", row[0].as_deref().unwrap()));
            }
            left.is_empty()
        });
    }

    /// For the rows it is later than every lease and claim of the task; nobody had to wait for it.
    pub fn claims_end(&self, task: u64) {
        let past = self.moment(-1);
        self.execute(&format!(
            "UPDATE batch_task SET lock_until = {past} WHERE id = {task} AND lock_until IS NOT NULL"
        ));
        self.execute(&format!(
            "UPDATE batch_task_target SET claim_until = {past} WHERE task_id = {task} AND claim_until IS NOT NULL"
        ));
    }

    /// Whether every lease and claim that a dead run left has ended.
    pub fn nothing_held(&self) -> bool {
        let now = self.moment(0);
        self.number(&format!(
            "SELECT (SELECT COUNT(*) FROM batch_task WHERE lock_until > {now}) + (SELECT COUNT(*) FROM batch_task_target
             WHERE status IN ('processing', 'sending') AND claim_until > {now})"
        )) == 0
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // A session of its own: ours may hold a transaction, or be dead together with its server.
            if let Ok(opts) = mysql::Opts::from_url(&self.url)
                && let Ok(mut connection) = mysql::Conn::new(
                    mysql::OptsBuilder::from_opts(opts)
                        .prefer_socket(false)
                        .tcp_connect_timeout(Some(Duration::from_secs(2)))
                        .read_timeout(Some(Duration::from_secs(10))),
                )
            {
                if let Ok(Connection::MySql(mysql)) = self.connection.get_mut() {
                    let _ = mysql.query_drop("ROLLBACK");
                }
                let _ = connection.query_drop(format!("DROP DATABASE {name}"));
            }
        }
    }
}

/// A text literal in both dialects: in MySQL a backslash would escape.
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn open_sqlite(path: impl AsRef<Path>) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    connection
}

fn open_mysql(url: &str) -> mysql::Conn {
    let opts = mysql::Opts::from_url(url).unwrap();
    mysql::Conn::new(mysql::OptsBuilder::from_opts(opts).prefer_socket(false)).unwrap()
}

fn sqlite_rows(sqlite: &rusqlite::Connection, sql: &str) -> rusqlite::Result<Vec<Vec<Option<String>>>> {
    use rusqlite::types::ValueRef;
    let mut statement = sqlite.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let text = |column| {
            Ok(match row.get_ref(column)? {
                ValueRef::Null => None,
                ValueRef::Integer(number) => Some(number.to_string()),
                ValueRef::Real(number) => Some(number.to_string()),
                ValueRef::Text(text) | ValueRef::Blob(text) => {
                    Some(String::from_utf8_lossy(text).into_owned())
                }
            })
        };
        all.push((0..columns).map(text).collect::<rusqlite::Result<_>>()?);
    }
    Ok(all)
}

fn mysql_text(value: mysql::Value) -> Option<String> {
    match value {
        mysql::Value::NULL => None,
        mysql::Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        other => Some(other.as_sql(true)),
    }
}
