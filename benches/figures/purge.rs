//! How fast `purge` removes a large task, and for how long at most another session waits for a row of another one meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mysql::prelude::Queryable;

use crate::report::{figure, line, per_second, rate};
use crate::site::{Site, connect, fill};

const ROWS: u64 = 1_000_000;

const LOOK: Duration = Duration::from_millis(5);

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let rows = rows.unwrap_or(ROWS);
    let mut site = Site::new(url, "[channel.spool]\nkind = \"file\"\npath = \"{dir}/spool.jsonl\"\n")?;
    let (old, table) = (site.task("spool", 0)?, site.target_table());
    fill(&mut site.db, &table, old, 0, rows, "sent")?;
    let tasks = format!("{}task", site.prefix);
    site.db.query_drop(format!(
        "UPDATE {tasks} SET status = 'finished', finished_at = NOW(3) - INTERVAL 2 HOUR WHERE id = {old}"
    ))?;
    let other = site.task("spool", 1)?;

    let mut beside = connect(url)?;
    let mut longest = Duration::ZERO;
    let purge = site.command(&["purge", "--finished-before", "1h", "--yes"]);
    let took = site.watch(purge, |child| {
        // What a run does: an update by the primary key, with its commit.
        while alive(child) {
            let began = Instant::now();
            beside
                .query_drop(format!("UPDATE {table} SET attempts = attempts + 1 WHERE task_id = {other}"))?;
            longest = longest.max(began.elapsed());
            std::thread::sleep(LOOK);
        }
        Ok(())
    })?;
    let left: Option<u64> = site.db.query_first(format!("SELECT COUNT(*) FROM {table}"))?;
    ensure!(left == Some(1), "{left:?} rows are left");
    let left: u64 = site.db.query_first(format!("SELECT COUNT(*) FROM {tasks}"))?.context("no count")?;
    ensure!(left == 1, "{left} tasks are left");
    line("purge", &format!("{rows} targets"), format!("{:>10.1} s", took.as_secs_f64()));
    line("purge", "longest update beside it", format!("{:>10.0} ms", longest.as_secs_f64() * 1000.0));
    figure("purge", "--finished-before", per_second("targets", rate(rows, took)), ">= 10000/s", &site.server);
    Ok(())
}

/// It is a zombie until it is waited for.
fn alive(child: &std::process::Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}
