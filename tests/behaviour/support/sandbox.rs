//! One story's world: a directory, a fresh database, a configuration, and the binary called as cron or a person would.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::database::{Database, Engine};
use super::process::{Finished, Process, bare, wait_until};
use super::terminal::Terminal;

pub const BINARY: &str = env!("CARGO_BIN_EXE_batch-send");

pub struct Sandbox {
    // Declared first: dropped before its directory.
    pub database: Database,
    dir: TempDir,
    calls: AtomicU32,
}

impl Sandbox {
    /// A fresh database with our tables, and a configuration without channels.
    pub fn new(engine: Engine) -> Self {
        let it = Self::empty(engine);
        it.call("migrate").done().exits(0);
        it
    }

    /// A fresh database without tables.
    pub fn empty(engine: Engine) -> Self {
        let dir = TempDir::new().unwrap();
        let database = Database::new(engine, dir.path());
        Self::of(database, dir)
    }

    /// On a server of the story's own.
    pub fn on_server(url: &str) -> Self {
        let it = Self::of(Database::on_server(url), TempDir::new().unwrap());
        it.call("migrate").done().exits(0);
        it
    }

    fn of(database: Database, dir: TempDir) -> Self {
        let it = Self { database, dir, calls: AtomicU32::new(0) };
        it.configure("", "");
        it
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the configuration: keys of `[run]`, and the channels.
    pub fn configure(&self, run: &str, channels: &str) {
        let url = self.database.url.clone();
        self.configure_as(&url, run, channels);
    }

    /// The same with another URL, as for another user of the database.
    pub fn configure_as(&self, url: &str, run: &str, channels: &str) {
        let state = self.path("state");
        self.write(
            "config.toml",
            &format!(
                "database_url = \"{url}\"\nstate_dir = \"{}\"\n\n[run]\n{run}\n\n{channels}\n",
                state.display()
            ),
        );
    }

    /// Puts keys at the top of the configuration as it is.
    pub fn configure_top(&self, keys: &str) {
        let config = fs::read_to_string(self.path("config.toml")).unwrap();
        self.write("config.toml", &format!("{keys}\n{config}"));
    }

    /// A table at the end of the configuration as it is.
    pub fn configure_end(&self, table: &str) {
        let config = fs::read_to_string(self.path("config.toml")).unwrap();
        self.write("config.toml", &format!("{config}\n{table}\n"));
    }

    /// A program in `sh`.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.write(name, &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// The binary with these arguments, separated by spaces.
    pub fn call(&self, args: &str) -> Call<'_> {
        let mut command = bare(BINARY);
        // Nothing may depend on it.
        command.current_dir("/");
        command.env("BATCH_SEND_CONFIG", self.path("config.toml")).args(args.split_whitespace());
        Call { sandbox: self, command, shown: format!("batch-send {args}"), stdin: None }
    }

    /// The same on another host: the database is shared, lock and journals are not.
    pub fn call_on_host(&self, host: usize, args: &str) -> Call<'_> {
        let config = fs::read_to_string(self.path("config.toml")).unwrap();
        let state = self.path("state").display().to_string();
        let name = format!("host-{host}.toml");
        self.write(&name, &config.replace(&state, &format!("{state}-{host}")));
        self.call(args).env("BATCH_SEND_CONFIG", &self.path(&name).display().to_string())
    }

    /// Stops it with SIGSTOP, never inside a transaction: that holds up others, as it must, until it goes on.
    pub fn stop(&self, process: &Process) {
        wait_until("the process to be stopped outside a transaction", 20, || {
            process.stop();
            let outside = self.database.writable();
            if !outside {
                process.go_on();
            }
            outside
        });
    }

    /// A healthy minute.
    #[track_caller]
    pub fn run(&self) {
        self.call("run").done().quietly();
    }
}

/// A call of the binary, before it is made.
pub struct Call<'a> {
    sandbox: &'a Sandbox,
    command: Command,
    shown: String,
    stdin: Option<String>,
}

impl Call<'_> {
    /// An argument that may hold spaces.
    pub fn arg(mut self, arg: &str) -> Self {
        self.command.arg(arg);
        self.shown += &format!(" {arg:?}");
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// As another user of this host, which only root can do. The binary goes along: that user need not see where it was built.
    pub fn by(mut self, uid: u32) -> Self {
        let binary = self.sandbox.path("batch-send");
        if !binary.exists() {
            // By a process of its own: a file that this one has open for writing goes along with the forks of other stories, and
            // cannot be started meanwhile.
            assert!(Command::new("cp").arg(BINARY).arg(&binary).status().unwrap().success());
        }
        let mut command = bare(binary.to_str().unwrap());
        command.current_dir("/").args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.uid(uid).gid(uid);
        self.command = command;
        self
    }

    pub fn stdin(mut self, text: &str) -> Self {
        self.stdin = Some(text.to_owned());
        self
    }

    pub fn start(mut self) -> Process {
        let number = self.sandbox.calls.fetch_add(1, Ordering::Relaxed);
        let path = self.sandbox.path(&format!("call-{number}"));
        if let Some(text) = self.stdin {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            std::io::Seek::rewind(&mut file).unwrap();
            self.command.stdin(Stdio::from(file));
        }
        Process::start(self.command, path, self.shown)
    }

    /// In front of a terminal.
    pub fn on_terminal(self, columns: u16, rows: u16) -> Terminal {
        Terminal::start(self.command, columns, rows)
    }

    #[track_caller]
    pub fn done(self) -> Finished {
        self.start().wait()
    }
}
