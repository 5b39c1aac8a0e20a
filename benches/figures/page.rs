//! How long a report on a large task takes, and how much memory, on the server and on a file of SQLite.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mysql::prelude::Queryable;

use crate::memory::{mebibytes, peak};
use crate::report::figure;
use crate::site::{SPOOL, Site, fill};

const ROWS: u64 = 1_000_000;

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let rows = rows.unwrap_or(ROWS);
    let mut site = Site::new(url, SPOOL)?;
    let task = site.task("spool", 0)?;
    let table = site.target_table();
    fill(&mut site.db, &table, task, 0, rows, "sent")?;
    // Some failed, each for a reason of its own, some unknown; a thousand settled in a second.
    site.db.query_drop(format!(
        "UPDATE {table} SET send_at = TIMESTAMPADD(MICROSECOND, id * 1000, '2026-01-01'), \
         settled_at = TIMESTAMPADD(MICROSECOND, id * 1000 + id % 1999 * 1000, '2026-01-01'), attempts = 1 + (id % 20 = 0), \
         last_error = IF(id % 20 < 2, CONCAT('550 <', recipient, '>: user unknown'), NULL), \
         status = CASE id % 20 WHEN 0 THEN 'failed' WHEN 1 THEN 'unknown' ELSE 'sent' END WHERE task_id = {task}"
    ))?;
    look(&site, "MySQL", rows, |site, page| site.command(&["report", &task.to_string(), "--html", page]))?;

    let file = site.path("tasks.db");
    let database = format!("sqlite://{}", file.display());
    site.finish(site.command(&["--database-url", &database, "migrate"]))?;
    let sqlite = rusqlite::Connection::open(&file)?;
    let prefix = &site.prefix;
    sqlite.execute_batch(&format!(
        "INSERT INTO {prefix}task (id, name, channel, status) VALUES (1, 'figures', 'spool', 'pending');
         WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < {rows})
         INSERT INTO {prefix}task_target (task_id, recipient, status, attempts, send_at, settled_at, last_error)
         SELECT 1, 'user-' || n, CASE n % 20 WHEN 0 THEN 'failed' WHEN 1 THEN 'unknown' ELSE 'sent' END, 1 + (n % 20 = 0),
         1767225600000 + n, 1767225600000 + n + n % 1999, CASE WHEN n % 20 < 2 THEN '550 <user-' || n || '>: user unknown' END FROM n"
    ))?;
    drop(sqlite);
    look(&site, "SQLite", rows, |site, page| {
        site.command(&["--database-url", &database, "report", "1", "--html", page])
    })
}

fn look(site: &Site, database: &str, rows: u64, report: impl Fn(&Site, &str) -> Command) -> Result<()> {
    let page = site.path("page.html");
    let path = page.to_str().context("the directory's name is not UTF-8")?;
    let began = Instant::now();
    let peak = peak(site, report(site, path))?;
    let took = began.elapsed();
    let written = std::fs::metadata(&page)?.len();
    ensure!(written > 0, "the page is empty");
    let what = format!("{database}, {rows} targets");
    figure("report", &what, seconds(took), "<= 10 s", &site.server);
    figure("report", &what, mebibytes(peak), "<= 64 MiB", &site.server);
    figure("report", "the page", format!("{:>10.1} KiB", written as f64 / 1024.0), "small", &site.server);
    Ok(())
}

fn seconds(took: Duration) -> String {
    format!("{:>10.1} s", took.as_secs_f64())
}
