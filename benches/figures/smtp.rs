//! How near a run comes to postfix's own smtp-source, which has no database, when both hand mail to its smtp-sink on this machine.
//! Both programs must be in PATH.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mysql::prelude::Queryable;

use crate::report::{figure, line, median, per_second, rate};
use crate::site::Site;

const ROWS: u64 = 20_000;
const ROUNDS: usize = 3;

const SESSIONS: u64 = 16;

/// Of one message, about.
const LENGTH: usize = 1_000;

/// Of it, the text; the rest is its head.
const TEXT: usize = 650;

pub fn measure(url: &str, rows: Option<u64>) -> Result<()> {
    let rows = rows.unwrap_or(ROWS);
    let sink = Sink::start()?;
    let channels = channel("plain", sink.port, "") + &channel("ahead", sink.port, "ahead = 128");
    let mut site = Site::new(url, &channels)?;
    let (mut plain, mut ahead) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let run = run(&mut site, "plain", rows)?;
        let source = rate(rows, source(sink.port, rows)?);
        line("smtp", "smtp-source", per_second("messages", source));
        let run_ahead = self::run(&mut site, "ahead", rows)?;
        plain.push(run / source);
        ahead.push(run_ahead / source);
    }
    let server = &site.server;
    figure("smtp", "run / smtp-source", format!("{:>10.2}", median(&plain)), ">= 0.5", server);
    figure("smtp", "run, ahead 128 / smtp-source", format!("{:>10.2}", median(&ahead)), ">= 0.5", server);
    Ok(())
}

fn channel(name: &str, port: u16, more: &str) -> String {
    let text = "Dear {{ target.params.name }}, it is spring, and so on. ".repeat(TEXT / 40);
    format!(
        "\n[channel.{name}]\n{more}\nkind = \"smtp\"\nhost = \"127.0.0.1\"\nport = {port}\ntls = \"none\"\nconcurrency = {SESSIONS}\n\
         from = \"Shop <news@shop.example>\"\nsubject = \"Hello {{{{ target.params.name }}}}\"\ntext = \"{text}\"\n"
    )
}

/// Messages per second of one whole run.
fn run(site: &mut Site, channel: &str, rows: u64) -> Result<f64> {
    site.clear()?;
    site.task(channel, rows)?;
    let table = site.target_table();
    site.db.query_drop(format!("UPDATE {table} SET recipient = CONCAT(recipient, '@example.com')"))?;
    let rate = rate(rows, site.run_all(rows)?);
    line("smtp", &format!("run, channel {channel}"), per_second("messages", rate));
    Ok(rate)
}

/// How long smtp-source takes for as many messages in as many sessions, which it keeps like a run.
fn source(port: u16, rows: u64) -> Result<Duration> {
    let began = Instant::now();
    let status = Command::new("smtp-source")
        .args(["-d", "-s", &SESSIONS.to_string(), "-m", &rows.to_string(), "-l", &LENGTH.to_string()])
        .args(["-f", "news@shop.example", "-t", "user-000000001@example.com"])
        .arg(format!("127.0.0.1:{port}"))
        .status()
        .context("start smtp-source, which comes with postfix")?;
    ensure!(status.success(), "smtp-source ended with {status}");
    Ok(began.elapsed())
}

struct Sink {
    child: Child,
    port: u16,
}

impl Sink {
    fn start() -> Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new("smtp-sink");
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        command.args([&format!("127.0.0.1:{port}"), "100"]);
        let child =
            command.stdout(Stdio::null()).spawn().context("start smtp-sink, which comes with postfix")?;
        let mut sink = Self { child, port };
        let began = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            ensure!(
                sink.child.try_wait()?.is_none() && began.elapsed().as_secs() < 20,
                "smtp-sink does not listen"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(sink)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
