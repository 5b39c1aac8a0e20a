//! That memory does not grow with the targets: the most that a run and an import ever hold.

use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::endpoint;
use crate::report::{figure, line};
use crate::site::Site;

const ROWS: u64 = 1_000_000;
/// So many times fewer in the small run.
const SMALL: u64 = 100;
/// One for each lane.
const TASKS: u64 = 4;
/// Of the large run: memory that grows would have grown.
const BUDGET: &str = "30s";

const LOOK: Duration = Duration::from_millis(5);
const WANTED: &str = "<= 40 MiB";

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let rows = rows.unwrap_or(ROWS);
    let mut site = Site::new(url, &endpoint::channel("api", &endpoint::start(|| {})?, ""))?;
    for rows in [(rows / SMALL).max(TASKS), rows] {
        for _ in 0..TASKS {
            site.task("api", rows / TASKS)?;
        }
        let began = Instant::now();
        let peak = peak(&site, site.command(&["run", "--budget", BUDGET]))?;
        let (took, sent) = (began.elapsed().as_secs_f64(), site.sent()?);
        ensure!(sent > 0, "the run sent nothing");
        line("memory", "run", format!("{sent:>10} of {rows} targets sent in {took:.1} s"));
        figure("memory", &format!("run, {rows} targets"), mebibytes(peak), WANTED, &site.server);
        site.clear()?;
    }
    let csv = site.csv(rows)?;
    let csv = csv.to_str().context("the file's name is not UTF-8")?;
    let create = ["task", "create", "--draft", "--name", "figures", "--channel", "api", "--targets", csv];
    let peak = peak(&site, site.command(&create))?;
    figure("memory", &format!("create, {rows} lines"), mebibytes(peak), WANTED, &site.server);
    Ok(())
}

pub fn mebibytes(kibibytes: u64) -> String {
    format!("{:>10.1} MiB", kibibytes as f64 / 1024.0)
}

/// The most resident memory of a process, in KiB. Not what `wait4` tells: that begins with what this process had when it forked.
pub fn peak(site: &Site, command: Command) -> Result<u64> {
    let mut peak = 0;
    site.watch(command, |child| {
        while let Some(now) = high_water(child)? {
            peak = now;
            std::thread::sleep(LOOK);
        }
        Ok(())
    })?;
    ensure!(peak > 0, "the process ended before it was looked at");
    Ok(peak)
}

/// As far as it has come; `None` when the process has ended.
fn high_water(child: &Child) -> Result<Option<u64>> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).context("look at the process")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map(|line| line.trim().trim_end_matches(" kB").parse().context("VmHWM")).transpose()
}
