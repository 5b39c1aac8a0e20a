//! How near a run comes to threads that do nothing but post the same messages to the same endpoint, without a database; and
//! what a list of rules for the answers costs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use ureq::Agent;
use uuid::Uuid;

use crate::endpoint;
use crate::report::{figure, line, median, per_second, rate};
use crate::site::{Site, recipient};

const ROWS: u64 = 30_000;
const THREADS: usize = 64;
const ROUNDS: usize = 3;

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let rows = rows.unwrap_or(ROWS);
    let endpoint = endpoint::start(|| {})?;
    let channels = endpoint::channel("plain", &endpoint, "")
        + &endpoint::channel("ahead", &endpoint, "ahead = 128")
        + &endpoint::channel("rules", &endpoint, &rules());
    let mut site = Site::new(url, &channels)?;
    let (mut plain, mut ahead, mut ruled) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let run = run(&mut site, "plain", rows)?;
        let threads = rate(rows, post(&endpoint, rows)?);
        line("http", "threads", per_second("targets", threads));
        let run_ahead = self::run(&mut site, "ahead", rows)?;
        ruled.push(self::run(&mut site, "rules", rows)? / run);
        plain.push(run / threads);
        ahead.push(run_ahead / threads);
    }
    let server = &site.server;
    figure("http", "run / threads", format!("{:>10.2}", median(&plain)), ">= 0.75", server);
    figure("http", "run, ahead 128 / threads", format!("{:>10.2}", median(&ahead)), ">= 0.88", server);
    figure(
        "http",
        "run, 20 rules / none",
        format!("{:>10.2}", median(&ruled)),
        "1, within the noise",
        server,
    );
    Ok(())
}

/// Twenty rules, the last of which fits each answer of the endpoint.
fn rules() -> String {
    let rule =
        |n| format!("{{ status = 200, json = {{ \"/code\" = \"error-{n}\" }}, outcome = \"rejected\" }}, ");
    let others: String = (1..20).map(rule).collect();
    format!("answers = [{others}{{ status = 200, json = {{ \"/id\" = \"r1\" }}, outcome = \"accepted\" }}]")
}

/// Targets per second of one whole run.
fn run(site: &mut Site, channel: &str, rows: u64) -> Result<f64> {
    site.clear()?;
    site.task(channel, rows)?;
    let rate = rate(rows, site.run_all(rows)?);
    line("http", &format!("run, channel {channel}"), per_second("targets", rate));
    Ok(rate)
}

/// How long as many threads as the channel has take for as many messages.
fn post(endpoint: &str, rows: u64) -> Result<Duration> {
    let agent: Agent = Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(10)))
        .max_idle_connections(THREADS)
        .max_idle_connections_per_host(THREADS)
        .build()
        .into();
    let next = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= rows {
                    return Ok(());
                }
                post_one(&agent, endpoint, number)?;
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    Ok(began.elapsed())
}

fn post_one(agent: &Agent, endpoint: &str, number: u64) -> Result<()> {
    let body = format!(
        r#"{{"to": "{}", "text": "Hello User {number}", "key": "{}"}}"#,
        recipient(number),
        Uuid::new_v4()
    );
    let answer =
        agent.post(endpoint).content_type("application/json").send(&body).context("post a message")?;
    let answer = answer.into_body().read_to_string()?;
    ensure!(answer.contains("id"), "the endpoint answered {answer:?}");
    Ok(())
}
