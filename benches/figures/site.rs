//! An installation of its own for each section: tables with a prefix of their own, a configuration in a directory of its own, and
//! the real binary. Both are gone when it is dropped.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mysql::prelude::Queryable;
use mysql::{Conn, Opts, OptsBuilder};
use tempfile::TempDir;
use uuid::Uuid;

/// Rows that one statement copies.
const COPIED: u64 = 200_000;

/// A channel of files that is as fast as the database lets it be.
pub const SPOOL: &str = r#"
[channel.spool]
kind = "file"
path = "{dir}/spool.jsonl"
concurrency = 64
"#;

pub struct Site {
    dir: TempDir,
    pub prefix: String,
    pub db: Conn,
    pub server: Server,
}

/// What a figure depends on most.
pub struct Server {
    version: String,
    flush: u8,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {}, innodb_flush_log_at_trx_commit={}", self.version, self.flush)
    }
}

impl Site {
    /// `channels`: the `[channel.NAME]` tables; `{dir}` in them is the site's directory.
    pub fn new(url: &str, channels: &str) -> Result<Self> {
        Self::with(url, "", channels)
    }

    /// With keys of the configuration beside the channels, too.
    pub fn with(url: &str, keys: &str, channels: &str) -> Result<Self> {
        // Not the system's directory for such things: that may be in memory, and the file channel waits for the disk.
        let dir = TempDir::with_prefix_in("figures-", env!("CARGO_TARGET_TMPDIR"))?;
        let mut db = connect(url)?;
        let (version, flush) = db
            .query_first("SELECT VERSION(), @@GLOBAL.innodb_flush_log_at_trx_commit")?
            .context("the server does not say its version")?;
        let prefix = format!("figures_{}_", &Uuid::new_v4().simple().to_string()[..8]);
        let site = Self { dir, prefix, db, server: Server { version, flush } };
        let configuration = format!(
            "database_url = {}\ntable_prefix = \"{}\"\nstate_dir = \"{{dir}}/state\"\n{keys}[run]\nbudget = \"1h\"\n{channels}",
            toml::Value::from(url),
            site.prefix
        );
        let dir = site.dir.path().to_str().context("the directory's name is not UTF-8")?;
        fs::write(site.path("config.toml"), configuration.replace("{dir}", dir))?;
        site.finish(site.command(&["migrate"]))?;
        Ok(site)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn target_table(&self) -> String {
        format!("{}task_target", self.prefix)
    }

    // ---- the binary ----------------------------------------------------------------------------------------------

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batch-send"));
        command.arg("--config").arg(self.path("config.toml")).args(args).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// From the start of a process to its end, which must be a good one.
    pub fn finish(&self, command: Command) -> Result<Duration> {
        self.watch(command, |_| Ok(()))
    }

    /// The same, with `meanwhile` called as soon as it has started.
    pub fn watch(
        &self,
        mut command: Command,
        meanwhile: impl FnOnce(&Child) -> Result<()>,
    ) -> Result<Duration> {
        let began = Instant::now();
        let mut child = command.spawn().context("start batch-send")?;
        let seen = meanwhile(&child);
        let status = child.wait()?;
        let took = began.elapsed();
        seen?;
        ensure!(status.success(), "batch-send ended with {status}");
        Ok(took)
    }

    /// A run from its start to its end, which must leave `sent` targets sent.
    pub fn run_all(&mut self, sent: u64) -> Result<Duration> {
        let took = self.finish(self.command(&["run"]))?;
        let found = self.sent()?;
        ensure!(found == sent, "the run sent {found} of {sent} targets");
        Ok(took)
    }

    // ---- the tables ----------------------------------------------------------------------------------------------

    pub fn sent(&mut self) -> Result<u64> {
        let count = format!("SELECT COUNT(*) FROM {} WHERE status = 'sent'", self.target_table());
        self.db.query_first(count)?.context("no count")
    }

    /// A task that is due, with so many targets.
    pub fn task(&mut self, channel: &str, targets: u64) -> Result<u64> {
        let task = format!(
            "INSERT INTO {}task (name, channel, status) VALUES ('figures', ?, 'pending')",
            self.prefix
        );
        self.db.exec_drop(task, (channel,))?;
        let id = self.db.last_insert_id();
        let table = self.target_table();
        fill(&mut self.db, &table, id, 0, targets, "pending")?;
        Ok(id)
    }

    /// No task is left.
    pub fn clear(&mut self) -> Result<()> {
        self.db.query_drop(format!("TRUNCATE TABLE {}", self.target_table()))?;
        self.db.query_drop(format!("DELETE FROM {}task", self.prefix))?;
        Ok(())
    }

    fn drop_tables(&mut self) -> Result<()> {
        let ours = "SELECT table_name FROM information_schema.tables \
                    WHERE table_schema = DATABASE() AND LEFT(table_name, CHAR_LENGTH(?)) = ?";
        let tables: Vec<String> = self.db.exec(ours, (&self.prefix, &self.prefix))?;
        if !tables.is_empty() {
            self.db.query_drop(format!("DROP TABLE {}", tables.join(", ")))?;
        }
        Ok(())
    }

    /// A file of `lines` recipients, as `task create --targets` takes it.
    pub fn csv(&self, lines: u64) -> Result<PathBuf> {
        let path = self.path("targets.csv");
        let mut file =
            std::io::BufWriter::new(OpenOptions::new().create(true).truncate(true).write(true).open(&path)?);
        writeln!(file, "recipient,name")?;
        for line in 0..lines {
            writeln!(file, "user-{line}@example.com,User {line}")?;
        }
        file.flush()?;
        Ok(path)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Err(error) = self.drop_tables() {
            eprintln!("the tables {}* stay: {error:#}", self.prefix);
        }
    }
}

/// A session like the product's.
pub fn connect(url: &str) -> Result<Conn> {
    // The parameters are the product's own.
    let plain = url.split('?').next().unwrap_or_default();
    let opts = OptsBuilder::from_opts(Opts::from_url(plain).context("the URL of the database")?)
        .prefer_socket(false)
        .init(vec!["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET time_zone = '+00:00'"]);
    Conn::new(opts).context("connect to the database")
}

/// Recipients number `first` to `first + count` of a task, all of one status. The table copies itself: many times faster than
/// rows that are sent to it.
pub fn fill(db: &mut Conn, table: &str, task: u64, first: u64, count: u64, status: &str) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let settled = if status == "sent" { "1, NOW(3), NOW(3), 'r'" } else { "0, NULL, NULL, NULL" };
    db.query_drop(format!(
        "INSERT INTO {table} (task_id, recipient, params, status, attempts, send_at, settled_at, receipt) \
         VALUES ({task}, '{}', '{{\"name\":\"User {first}\"}}', '{status}', {settled})",
        recipient(first)
    ))?;
    let mut have = 1;
    while have < count {
        let more = have.min(count - have).min(COPIED);
        db.query_drop(format!(
            "INSERT INTO {table} (task_id, recipient, params, status, attempts, send_at, settled_at, receipt) \
             SELECT task_id, CONCAT('user-', LPAD(number, 9, '0')), CONCAT('{{\"name\":\"User ', number, '\"}}'), \
             status, attempts, send_at, settled_at, receipt \
             FROM (SELECT *, CAST(SUBSTRING(recipient, 6) AS UNSIGNED) + {have} AS number FROM {table} \
             WHERE task_id = {task} AND recipient >= '{}' AND recipient < '{}') AS so_far",
            recipient(first),
            recipient(first + more)
        ))?;
        have += more;
    }
    db.query_drop(format!("ANALYZE TABLE {table}"))?;
    Ok(())
}

/// In the order of their numbers.
pub fn recipient(number: u64) -> String {
    format!("user-{number:09}")
}
