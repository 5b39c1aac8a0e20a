//! What a minute costs in which nothing is due, though twenty tasks are unfinished.

use anyhow::Result;
use mysql::Conn;
use mysql::prelude::Queryable;

use crate::report::{figure, line, median};
use crate::site::{SPOOL, Site, fill};

/// Why each is not due: what its row says, and the status of its targets.
const TASKS: [(&str, &str, &str); 5] = [
    ("paused", "status = 'paused'", "pending"),
    ("draft", "status = 'draft'", "pending"),
    ("scheduled", "scheduled_at = NOW(3) + INTERVAL 1 HOUR", "pending"),
    ("waiting", "started_at = NOW(3)", "retry"),
    (
        "leased",
        "lock_token = UUID(), lock_owner = 'another', lock_at = NOW(3), lock_until = NOW(3) + INTERVAL 1 HOUR",
        "pending",
    ),
];

/// Of each.
const TASKS_EACH: usize = 4;
const TARGETS_EACH: u64 = 100;
const RUNS: usize = 20;

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let targets = rows.unwrap_or(TARGETS_EACH);
    let mut site = Site::new(url, SPOOL)?;
    for (name, row, status) in TASKS {
        for _ in 0..TASKS_EACH {
            unfinished(&mut site, name, row, status, targets)?;
        }
    }
    let (mut millis, mut statements) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let ours = counted(&mut site.db)?;
        let before = counted(&mut site.db)?;
        let took = site.run_all(0)?;
        let after = counted(&mut site.db)?;
        millis.push(took.as_secs_f64() * 1000.0);
        // Less our own: the count of `sent`, and the look at the counters, as between the first two.
        statements.push((after - before - 1 - (before - ours)) as f64);
    }
    let range = |values: &[f64]| {
        let (least, most) =
            values.iter().fold((f64::MAX, 0f64), |(least, most), &value| (least.min(value), most.max(value)));
        format!("{least:.1} to {most:.1} in {RUNS} runs")
    };
    line("idle", "milliseconds", range(&millis));
    line("idle", "statements", range(&statements));
    figure("idle", "run, wall time", format!("{:>10.1} ms", median(&millis)), "<= 30 ms", &site.server);
    figure("idle", "run, statements", format!("{:>10.0}", median(&statements)), "<= 10", &site.server);
    Ok(())
}

/// A task that is not due.
fn unfinished(site: &mut Site, name: &str, row: &str, status: &str, targets: u64) -> Result<()> {
    let task = format!("{}task", site.prefix);
    site.db.query_drop(format!(
        "INSERT INTO {task} (name, channel, status) VALUES ('{name}', 'spool', 'pending')"
    ))?;
    let id = site.db.last_insert_id();
    let table = site.target_table();
    fill(&mut site.db, &table, id, 0, targets, status)?;
    if status == "retry" {
        site.db.query_drop(format!(
            "UPDATE {table} SET attempts = 1, retry_at = NOW(3) + INTERVAL 1 HOUR WHERE task_id = {id}"
        ))?;
    }
    site.db.query_drop(format!("UPDATE {task} SET {row} WHERE id = {id}"))?;
    Ok(())
}

/// Statements that the server has carried out for anybody, each of a text counted. Not `Questions`: that counts the goodbye of
/// a connection too, sooner or later.
fn counted(db: &mut Conn) -> Result<u64> {
    let counters: Vec<(String, u64)> = db.query(r"SHOW GLOBAL STATUS LIKE 'Com\_%'")?;
    Ok(counters.into_iter().map(|(_, count)| count).sum())
}
