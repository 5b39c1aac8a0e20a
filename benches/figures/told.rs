//! What it costs a run to tell what it does: with a metrics file and a log file, against without.

use std::fs;

use anyhow::Result;

use crate::report::{figure, line, median, per_second, rate};
use crate::site::{SPOOL, Site};

const ROWS: u64 = 100_000;
const ROUNDS: usize = 5;

const KEYS: &str = "metrics_file = \"{dir}/batch-send.prom\"\nlog_file = \"{dir}/batch-send.log\"\n";

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let rows = rows.unwrap_or(ROWS);
    let (mut silent, mut telling) = (Site::new(url, SPOOL)?, Site::with(url, KEYS, SPOOL)?);
    let mut shares = Vec::new();
    for _ in 0..ROUNDS {
        let off = run(&mut silent, "without", rows)?;
        let on = run(&mut telling, "with metrics and log", rows)?;
        shares.push(on / off);
    }
    let server = &silent.server;
    figure("told", "with metrics and log / without", format!("{:>10.2}", median(&shares)), ">= 0.97", server);
    Ok(())
}

/// Targets per second of one whole run.
fn run(site: &mut Site, how: &str, rows: u64) -> Result<f64> {
    site.clear()?;
    site.task("spool", rows)?;
    let rate = rate(rows, site.run_all(rows)?);
    line("told", how, per_second("targets", rate));
    fs::remove_file(site.path("spool.jsonl"))?;
    Ok(rate)
}
