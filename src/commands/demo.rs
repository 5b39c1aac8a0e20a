//! The whole story in half a minute: a task, a cron run, a second host, a forced run beside them, a kill in mid-flight, and the
//! next minutes that repair it. Every step is this same binary, started as cron or a person would; the verdict comes from the
//! endpoint's ledger, not from the database.

mod endpoint;

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process};
use uuid::Uuid;

use self::endpoint::Endpoint;
use super::output;
use crate::cli::{DemoArgs, Global};
use crate::exit::Exit;
use crate::moment::Moment;
use crate::store::{ClaimForm, Database, Store};
use crate::target::TargetRow;
use crate::task::{TaskId, TaskStatus};

/// How long the endpoint takes to answer: long enough that a kill finds something in flight.
const LATENCY: Duration = Duration::from_millis(20);

/// A demo that is not over by then has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(args: &DemoArgs, global: &Global) -> Result<Exit> {
    output::to_stdout(|out| {
        let stage = Stage::set(args.targets, global.database_url.as_deref())?;
        let exit = stage.play(out);
        if exit.is_err() {
            writeln!(out, "\nThe demo's files stay in {}.", stage.dir.display())?;
        }
        exit
    })
}

struct Stage {
    dir: PathBuf,
    endpoint: Endpoint,
    database_url: String,
    prefix: String,
    /// The database is somebody's server: our tables must go again.
    on_server: bool,
    targets: u32,
}

/// What the rows say at the end.
struct Rows {
    sent: u64,
    unknown: Vec<TargetRow>,
    /// Neither sent nor unknown.
    other: u64,
    /// Marked sent, and the ledger does not have it once.
    wrong: u64,
}

impl Stage {
    fn set(targets: u32, server: Option<&str>) -> Result<Self> {
        let name = Uuid::new_v4().simple().to_string();
        let dir = std::env::temp_dir().join(format!("batch-send-demo-{}", &name[..8]));
        // For this user alone: the configuration may hold a password.
        let mut private = DirBuilder::new();
        private
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("make the demo's directory {}", dir.display()))?;
        let stage = Self {
            endpoint: Endpoint::start(LATENCY)?,
            database_url: server
                .map_or_else(|| format!("sqlite://{}/tasks.db", dir.display()), str::to_owned),
            prefix: server.map_or_else(|| "batch_".to_owned(), |_| format!("demo_{}_", &name[..8])),
            on_server: server.is_some(),
            targets,
            dir,
        };
        for host in ["host-a", "host-b"] {
            fs::write(stage.config(host), stage.configuration(host))?;
        }
        let recipients: String = (1..=targets).map(|n| format!("user{n}@example.com,User {n}\n")).collect();
        fs::write(stage.dir.join("targets.csv"), format!("recipient,name\n{recipients}"))?;
        Ok(stage)
    }

    fn config(&self, host: &str) -> PathBuf {
        self.dir.join(format!("{host}.toml"))
    }

    /// Short times, so that the "minutes" of the demo are seconds.
    fn configuration(&self, host: &str) -> String {
        let state = self.dir.join(host);
        format!(
            r#"database_url = {url}
table_prefix = "{prefix}"
state_dir = {state}

[run]
budget = "20s"
lease = "3s"

[channel.demo]
kind = "http"
url = "{endpoint}"
body = '{{"to": {{{{ target.recipient }}}}, "text": {{{{ "Hello " ~ target.params.name }}}}, "key": {{{{ key }}}}}}'
receipt = "/id"
timeout = "2s"
concurrency = 8
"#,
            // Taken as it is: in a file `${` would begin the name of a variable.
            url = quoted(&self.database_url.replace("${", "$${")),
            prefix = self.prefix,
            state = quoted(&state.to_string_lossy()),
            endpoint = self.endpoint.url,
        )
    }

    fn play(&self, out: &mut dyn Write) -> Result<Exit> {
        let began = Moment::now();
        writeln!(out, "An endpoint listens on {} and keeps a ledger of what it takes.\n", self.endpoint.url)?;
        self.step(out, &["migrate"])?;
        let targets = self.dir.join("targets.csv");
        let create = [
            "task",
            "create",
            "--name",
            "Demo",
            "--channel",
            "demo",
            "--targets",
            &targets.to_string_lossy(),
        ];
        let id = self.step(out, &create)?;
        let task: TaskId = id.trim().parse().context("the id that `task create` printed")?;

        writeln!(
            out,
            "\nCron starts a run on host A, and a second host and a person with --force come beside it."
        )?;
        let bar = self.bar();
        let store = self.database()?;
        let mut store = store.store()?;
        let mut cron = self.start("host-a", &["run"])?;
        self.wait(
            &bar,
            "the cron run to begin",
            began,
            || matches!(store.task(task), Ok(Some(task)) if task.lease.is_some()),
        )?;
        let mut forced = self.start("host-a", &["run", "--task-id", &task.to_string(), "--force"])?;
        let mut second = self.start("host-b", &["run"])?;
        self.wait(&bar, "deliveries", began, || self.endpoint.delivered() * 3 >= self.targets as usize)?;
        stop_in_mid_flight(&cron, &mut *store, task)?;
        cron.kill().context("kill the cron run")?;
        cron.wait()?;
        let at_kill = self.endpoint.delivered();
        bar.suspend(|| {
            writeln!(out, "After {at_kill} deliveries the cron run is killed with SIGKILL, in mid-flight.")
        })?;

        let mut minutes = 0;
        while store.task(task)?.is_none_or(|task| task.status != TaskStatus::Finished) {
            self.wait(&bar, "the end of a run", began, || {
                matches!(forced.try_wait(), Ok(Some(_))) && matches!(second.try_wait(), Ok(Some(_)))
            })?;
            std::thread::sleep(Duration::from_millis(500));
            minutes += 1;
            second = self.start("host-b", &["run"])?;
            self.wait(&bar, "the end of a run", began, || matches!(second.try_wait(), Ok(Some(_))))?;
        }
        bar.finish_and_clear();
        writeln!(out, "{minutes} later minutes of cron finished the task.\n")?;

        let ledger = self.endpoint.ledger();
        let mut rows = Rows { sent: 0, unknown: Vec::new(), other: 0, wrong: 0 };
        store.targets(task, &[], &mut |row| {
            match row.status.as_str() {
                "sent" => {
                    rows.sent += 1;
                    rows.wrong += u64::from(ledger.get(&row.recipient) != Some(&1));
                }
                "unknown" => rows.unknown.push(row),
                _ => rows.other += 1,
            }
            Ok(())
        })?;
        self.verdict(out, task, &ledger, &rows, began)
    }

    fn verdict(
        &self,
        out: &mut dyn Write,
        task: TaskId,
        ledger: &HashMap<String, u32>,
        rows: &Rows,
        began: Moment,
    ) -> Result<Exit> {
        let duplicates = ledger.values().filter(|taken| **taken > 1).count();
        writeln!(out, "What the endpoint's ledger says, after {:.1} s:", began.elapsed().as_secs_f64())?;
        writeln!(out, "  delivered   {:>6} of {}", ledger.len(), self.targets)?;
        writeln!(out, "  duplicates  {duplicates:>6}")?;
        writeln!(out, "What the rows say:")?;
        writeln!(out, "  sent        {:>6}", rows.sent)?;
        writeln!(out, "  unknown     {:>6}", rows.unknown.len())?;
        let named = rows.sent + rows.unknown.len() as u64 == u64::from(self.targets) && rows.other == 0;
        let delivered_and_named = rows.sent as usize
            + rows.unknown.iter().filter(|row| ledger.contains_key(&row.recipient)).count()
            == ledger.len();
        let agrees = duplicates == 0 && rows.wrong == 0 && named && delivered_and_named;

        if !rows.unknown.is_empty() {
            writeln!(
                out,
                "\nThe killed run had these in flight. It cannot be known from here whether they arrived, so that"
            )?;
            writeln!(out, "they are not sent again until a person has looked (the ledger, in this case):")?;
            for row in &rows.unknown {
                let (seen, verdict) = if ledger.contains_key(&row.recipient) {
                    ("arrived", "sent")
                } else {
                    ("did not arrive", "retry")
                };
                let (id, target) = (task.to_string(), row.id.to_string());
                let settle = ["resolve", &id, "--target", &target, "--as", verdict, "--yes"];
                if self.on_server {
                    write!(out, "  {} {seen}: ", row.recipient)?;
                    self.step(out, &settle)?;
                } else {
                    let (program, config) = (std::env::current_exe()?, self.config("host-a"));
                    let (program, config, settle) = (program.display(), config.display(), settle.join(" "));
                    writeln!(out, "  {} {seen}: {program} --config {config} {settle}", row.recipient)?;
                }
            }
        }
        if self.on_server {
            self.database()?.store()?.drop_tables().context("drop the demo's tables")?;
            writeln!(out, "\nThe demo's tables ({}*) are dropped again.", self.prefix)?;
        }
        if !agrees {
            writeln!(
                out,
                "\nThe ledger and the rows disagree: this is a bug. The files stay in {}.",
                self.dir.display()
            )?;
            return Ok(Exit::Trouble);
        }
        if rows.unknown.is_empty() || self.on_server {
            fs::remove_dir_all(&self.dir).with_context(|| format!("remove {}", self.dir.display()))?;
        } else {
            writeln!(out, "\nThe demo's files stay in {} for these commands.", self.dir.display())?;
        }
        writeln!(out, "\nNever twice, never lost, never silent.")?;
        Ok(Exit::Done)
    }

    fn database(&self) -> Result<Database> {
        Database::open(&self.database_url, &self.prefix, ClaimForm::Auto)
    }

    /// Shows a command, runs it, and shows and returns what it printed.
    fn step(&self, out: &mut dyn Write, args: &[&str]) -> Result<String> {
        writeln!(out, "$ batch-send --config {} {}", self.config("host-a").display(), args.join(" "))?;
        let done =
            self.command("host-a", args)?.output().with_context(|| format!("run batch-send {}", args[0]))?;
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        write!(out, "{printed}")?;
        ensure!(
            done.status.success(),
            "batch-send {}: {}",
            args[0],
            String::from_utf8_lossy(&done.stderr).trim()
        );
        Ok(printed)
    }

    /// A run in the background. What it says is not shown: the ledger speaks at the end.
    fn start(&self, host: &str, args: &[&str]) -> Result<Child> {
        let mut command = self.command(host, args)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().with_context(|| format!("start batch-send {}", args[0]))
    }

    fn command(&self, host: &str, args: &[&str]) -> Result<Command> {
        let program = std::env::current_exe().context("find this program's own file")?;
        let mut command = Command::new(program);
        command.arg("--config").arg(self.config(host)).args(args).env_clear();
        Ok(command)
    }

    fn wait(
        &self,
        bar: &ProgressBar,
        what: &str,
        began: Moment,
        mut over: impl FnMut() -> bool,
    ) -> Result<()> {
        while !over() {
            if began.elapsed() > PATIENCE {
                bail!("the demo waited in vain for {what}");
            }
            bar.set_position(self.endpoint.delivered() as u64);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn bar(&self) -> ProgressBar {
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} delivered, {per_sec}, {eta} left");
        ProgressBar::new(self.targets.into())
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }
}

/// Stops the run (SIGSTOP) at a moment when messages of its own are in flight: others' are answered meanwhile, its own stay
/// `sending`. A run that is between two of them is let go on for a moment.
fn stop_in_mid_flight(run: &Child, store: &mut dyn Store, task: TaskId) -> Result<()> {
    let pid = Pid::from_child(run);
    let mut sending = || {
        let mut ids = Vec::new();
        store.targets(task, &["sending"], &mut |row| {
            ids.push(row.id);
            Ok(())
        })?;
        Ok::<_, anyhow::Error>(ids)
    };
    for _ in 0..20 {
        kill_process(pid, Signal::STOP).context("stop the cron run")?;
        std::thread::sleep(LATENCY * 4);
        let before = sending()?;
        std::thread::sleep(LATENCY * 4);
        if sending()?.iter().any(|id| before.contains(id)) {
            break;
        }
        kill_process(pid, Signal::CONT).context("let the cron run go on")?;
        std::thread::sleep(LATENCY / 2);
    }
    Ok(())
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
