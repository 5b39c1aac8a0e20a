//! How long `status` takes where a hundred tasks of a hundred thousand targets are half sent.

use anyhow::Result;
use mysql::prelude::Queryable;

use crate::report::{figure, line, median};
use crate::site::{SPOOL, Site, fill};

const TARGETS: u64 = 10_000_000;
const TASKS: u64 = 100;
const LOOKS: usize = 5;

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let each = rows.unwrap_or(TARGETS) / TASKS;
    let mut site = Site::new(url, SPOOL)?;
    let table = site.target_table();
    let first = site.task("spool", 0)?;
    fill(&mut site.db, &table, first, 0, each * 6 / 10, "sent")?;
    fill(&mut site.db, &table, first, each * 6 / 10, each - each * 6 / 10, "pending")?;
    // Out of another table: copied out of its own, each would be laid down on the disk once more.
    let columns = "recipient, params, status, attempts, send_at, settled_at, receipt";
    let one = format!("{}one", site.prefix);
    site.db.query_drop(format!("CREATE TABLE {one} AS SELECT {columns} FROM {table}"))?;
    for _ in 1..TASKS {
        let task = site.task("spool", 0)?;
        let copy = format!("INSERT INTO {table} (task_id, {columns}) SELECT {task}, {columns} FROM {one}");
        site.db.query_drop(copy)?;
    }
    let of_one = first.to_string();
    for (what, args, looks, wanted) in [
        ("status", vec!["status"], LOOKS, "<= 1 s"),
        ("status N", vec!["status", &of_one], LOOKS, "<= 1 s"),
        ("status --exact", vec!["status", "--exact"], 1, "half a second a million"),
    ] {
        let mut seconds = Vec::new();
        for _ in 0..looks {
            let took = site.finish(site.command(&args))?.as_secs_f64();
            line("status", what, format!("{took:>10.2} s"));
            seconds.push(took);
        }
        figure("status", what, format!("{:>10.2} s", median(&seconds)), wanted, &site.server);
    }
    Ok(())
}
