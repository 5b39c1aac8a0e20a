//! How near a run comes to the database's own limit when sending costs next to nothing: the file channel.

use std::fs;

use anyhow::Result;

use crate::limit;
use crate::report::{figure, line, median, per_second, rate};
use crate::site::Site;

const ROWS: u64 = 100_000;
const LOOP_ROWS: u64 = 20_000;
const ROUNDS: usize = 3;

const CHANNELS: &str = r#"
[channel.plain]
kind = "file"
path = "{dir}/plain.jsonl"
concurrency = 64

[channel.ahead]
kind = "file"
path = "{dir}/ahead.jsonl"
concurrency = 64
ahead = 128
"#;

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let rows = rows.unwrap_or(ROWS);
    let loop_rows = rows.min(LOOP_ROWS);
    let mut site = Site::new(url, CHANNELS)?;
    let (mut plain, mut ahead, mut by_row) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let run = run(&mut site, "plain", rows)?;
        let limit = rate(rows, limit::limit(&mut site, rows)?);
        line("file", "limit", per_second("targets", limit));
        let run_ahead = self::run(&mut site, "ahead", rows)?;
        let simple = rate(loop_rows, limit::simple_loop(&mut site, loop_rows)?);
        line("file", "loop", per_second("targets", simple));
        plain.push(run / limit);
        ahead.push(run_ahead / limit);
        by_row.push(run / simple);
    }
    let server = &site.server;
    figure("file", "run / limit", format!("{:>10.2}", median(&plain)), ">= 0.65", server);
    figure("file", "run, ahead 128 / limit", format!("{:>10.2}", median(&ahead)), ">= 0.75", server);
    figure("file", "run / loop", format!("{:>10.2}", median(&by_row)), ">= 4", server);
    Ok(())
}

/// Targets per second of one whole run.
fn run(site: &mut Site, channel: &str, rows: u64) -> Result<f64> {
    site.clear()?;
    site.task(channel, rows)?;
    let rate = rate(rows, site.run_all(rows)?);
    line("file", &format!("run, channel {channel}"), per_second("targets", rate));
    fs::remove_file(site.path(&format!("{channel}.jsonl")))?;
    Ok(rate)
}
