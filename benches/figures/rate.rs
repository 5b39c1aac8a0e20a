//! Whether a channel's rate is kept and used: three processes share it for two minutes, each with a state directory of its own as
//! on three hosts, and every window of ten seconds is looked at from the endpoint's side.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::endpoint;
use crate::report::{figure, line};
use crate::site::Site;

const RATE: u64 = 100;
const RUN: Duration = Duration::from_secs(120);
const WINDOW: Duration = Duration::from_secs(10);
const HOSTS: usize = 3;
const TASKS: u64 = 12;

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let arrived = Arc::clone(&arrivals);
    let endpoint =
        endpoint::start(move || arrived.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now()))?;
    let mut site = Site::new(url, &endpoint::channel("paced", &endpoint, &format!("rate = \"{RATE}/s\"")))?;
    // More than the rate lets through.
    let each = rows.unwrap_or(RATE * (RUN.as_secs() + 10)) / TASKS + 1;
    for _ in 0..TASKS {
        site.task("paced", each)?;
    }
    let budget = format!("{}s", RUN.as_secs());
    let hosts: Vec<Child> = (0..HOSTS).map(|host| start(&site, host, &budget)).collect::<Result<_>>()?;
    for mut host in hosts {
        let status = host.wait()?;
        ensure!(status.success(), "batch-send ended with {status}");
    }
    let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone();
    arrivals.sort();
    let (least, most) = windows(&arrivals).context("it did not last for a window")?;
    let per_cent = |count: usize| 100.0 * count as f64 / (RATE * WINDOW.as_secs()) as f64;
    line("rate", "messages", arrivals.len());
    let wanted = "95-100 % of the rate";
    figure("rate", "emptiest ten seconds", format!("{:>9.1} %", per_cent(least)), wanted, &site.server);
    figure("rate", "fullest ten seconds", format!("{:>9.1} %", per_cent(most)), wanted, &site.server);
    Ok(())
}

fn start(site: &Site, host: usize, budget: &str) -> Result<Child> {
    let config = fs::read_to_string(site.path("config.toml"))?;
    let path = site.path(&format!("host-{host}.toml"));
    fs::write(&path, config.replace("/state\"", &format!("/state-{host}\"")))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_batch-send"));
    command.arg("--config").arg(path).args(["run", "--budget", budget]).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("start batch-send")
}

/// The fewest and the most arrivals in any window between the first and the last of them, each begun by an arrival.
fn windows(arrivals: &[Instant]) -> Option<(usize, usize)> {
    let last = *arrivals.last()?;
    let counts =
        arrivals.iter().enumerate().take_while(|(_, at)| **at + WINDOW <= last).map(|(first, at)| {
            let end = *at + WINDOW;
            arrivals[first..].partition_point(|at| *at < end)
        });
    let (mut least, mut most) = (usize::MAX, 0);
    for count in counts {
        (least, most) = (least.min(count), most.max(count));
    }
    (most > 0).then_some((least, most))
}
