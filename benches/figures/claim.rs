//! That a claim does not become slower with what is sent already: the times of the binary's own claims, told by the server's slow
//! log, on a table of which one row in a hundred is left, and on one that has no others.

use anyhow::{Context, Result, ensure};
use mysql::Conn;
use mysql::prelude::Queryable;

use crate::report::{figure, line, percentile};
use crate::site::{SPOOL, Site, connect, fill, recipient};

const ROWS: u64 = 5_000_000;
/// One in so many is left.
const LEFT: u64 = 100;
const ROUNDS: usize = 3;

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let rows = rows.unwrap_or(ROWS);
    let left = (rows / LEFT).max(1);
    let mut log = SlowLog::new(url)?;
    let mut large = Table::new(url, rows - left, left)?;
    let mut small = Table::new(url, 0, left)?;
    for round in 0..ROUNDS {
        for table in [&mut large, &mut small] {
            if round > 0 {
                table.reopen()?;
            }
            table.claims(&mut log)?;
        }
    }
    let p99 = [&large, &small].map(|table| {
        let (median, p99) = (percentile(&table.millis, 0.5), percentile(&table.millis, 0.99));
        let rows = table.sent + table.left;
        let times = format!("p50 {median:.2} ms, p99 {p99:.2} ms of {} claims", table.millis.len());
        line("claim", &format!("{rows} rows, {left} left"), times);
        p99
    });
    figure("claim", "p99, large / small", format!("{:>10.2}", p99[0] / p99[1]), "<= 2", &large.site.server);
    Ok(())
}

/// A table and the times of the claims on it.
struct Table {
    site: Site,
    task: u64,
    sent: u64,
    left: u64,
    millis: Vec<f64>,
}

impl Table {
    /// In the order in which a task is sent: what is left are the last rows.
    fn new(url: &str, sent: u64, left: u64) -> Result<Self> {
        let mut site = Site::new(url, SPOOL)?;
        let task = site.task("spool", 0)?;
        let table = site.target_table();
        fill(&mut site.db, &table, task, 0, sent, "sent")?;
        fill(&mut site.db, &table, task, sent, left, "pending")?;
        Ok(Self { site, task, sent, left, millis: Vec::new() })
    }

    /// Sends what is left.
    fn claims(&mut self, log: &mut SlowLog) -> Result<()> {
        let since = log.start()?;
        let run = self.site.run_all(self.sent + self.left);
        log.stop()?;
        run?;
        let claims = log.claims(&since, &self.site.prefix)?;
        ensure!(!claims.is_empty(), "the slow log has no claim");
        self.millis.extend(claims);
        Ok(())
    }

    /// The same rows are left again.
    fn reopen(&mut self) -> Result<()> {
        let Self { site, task, .. } = self;
        site.db.query_drop(format!(
            "UPDATE {} SET status = 'pending', attempts = 0, send_at = NULL, settled_at = NULL, receipt = NULL \
             WHERE task_id = {task} AND recipient >= '{}'",
            site.target_table(),
            recipient(self.sent)
        ))?;
        site.db.query_drop(format!("UPDATE {}task SET status = 'pending' WHERE id = {task}", site.prefix))?;
        Ok(())
    }
}

/// The server's slow log, for a while with every statement, in its table; as it was when dropped.
struct SlowLog {
    db: Conn,
    was: (u8, String, f64),
    /// Nobody's entries but ours are in the table.
    ours: bool,
}

impl SlowLog {
    fn new(url: &str) -> Result<Self> {
        let mut db = connect(url)?;
        let was = db
            .query_first("SELECT @@GLOBAL.slow_query_log, @@GLOBAL.log_output, @@GLOBAL.long_query_time")?
            .context("the server does not say how its slow log is set")?;
        let entry: Option<u8> =
            db.query_first("SELECT 1 FROM mysql.slow_log LIMIT 1").context("read the slow log")?;
        Ok(Self { db, was, ours: entry.is_none() })
    }

    /// From now on, which is told. A connection has the limit that held when it was made: not ours.
    fn start(&mut self) -> Result<String> {
        self.db.query_drop(
            "SET GLOBAL log_output = 'TABLE', GLOBAL long_query_time = 0, GLOBAL slow_query_log = 1",
        )?;
        self.db.query_first("SELECT CAST(NOW(6) AS CHAR)")?.context("no time")
    }

    fn stop(&mut self) -> Result<()> {
        let (on, output, limit) = &self.was;
        let back = format!(
            "SET GLOBAL slow_query_log = {on}, GLOBAL log_output = '{output}', GLOBAL long_query_time = {limit}"
        );
        Ok(self.db.query_drop(back)?)
    }

    /// Milliseconds of each claim since then on the tables with this prefix: all statements of its transaction.
    fn claims(&mut self, since: &str, prefix: &str) -> Result<Vec<f64>> {
        // A table of log entries is in the order in which they ended, and one lane speaks to these tables.
        let statements: Vec<(f64, String)> = self.db.exec(
            "SELECT FLOOR(TIME_TO_SEC(query_time)) * 1e3 + MICROSECOND(query_time) / 1e3, LEFT(sql_text, 400) \
             FROM mysql.slow_log WHERE start_time >= ? AND thread_id IN \
             (SELECT thread_id FROM mysql.slow_log WHERE start_time >= ? AND sql_text LIKE CONCAT('%', ?, 'task_target%'))",
            (since, since, prefix),
        )?;
        let mut claims = Vec::new();
        let (mut millis, mut is_claim) = (0.0, false);
        for (took, text) in statements {
            let text = text.trim_start();
            if text.starts_with("START TRANSACTION") || text.starts_with("BEGIN") {
                (millis, is_claim) = (0.0, false);
            }
            millis += took;
            is_claim |= text.starts_with("UPDATE") && text.contains("SET status = 'processing'");
            if text.starts_with("COMMIT") && is_claim {
                claims.push(millis);
                (millis, is_claim) = (0.0, false);
            }
        }
        Ok(claims)
    }
}

impl Drop for SlowLog {
    fn drop(&mut self) {
        let mut back = self.stop();
        if self.ours {
            back = back.and(self.db.query_drop("TRUNCATE TABLE mysql.slow_log").map_err(Into::into));
        }
        if let Err(error) = back {
            eprintln!("the slow log is not as it was: {error:#}");
        }
    }
}
