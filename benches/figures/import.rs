//! How fast `task create --targets` brings a large file into the database.

use anyhow::{Context, Result, ensure};
use mysql::prelude::Queryable;

use crate::report::{figure, line, per_second, rate};
use crate::site::{SPOOL, Site};

const ROWS: u64 = 1_000_000;

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let rows = rows.unwrap_or(ROWS);
    let mut site = Site::new(url, SPOOL)?;
    let csv = site.csv(rows)?;
    let csv = csv.to_str().context("the file's name is not UTF-8")?;
    let create = ["task", "create", "--draft", "--name", "figures", "--channel", "spool", "--targets", csv];
    let took = site.finish(site.command(&create))?;
    let found: Option<u64> = site.db.query_first(format!("SELECT COUNT(*) FROM {}", site.target_table()))?;
    ensure!(found == Some(rows), "{found:?} of {rows} lines are in the database");
    line("import", &format!("{rows} lines"), format!("{:>10.1} s", took.as_secs_f64()));
    figure("import", "create --targets", per_second("lines", rate(rows, took)), ">= 50000/s", &site.server);
    Ok(())
}
