//! A process under test: started, stopped, continued, killed, and waited for with a bound. What it printed is kept
//! in files and shown when it did not do what the story expects.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than any run of a story takes; a run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something can be seen, and says what did not come.
#[track_caller]
pub fn wait_until(what: &str, seconds: u64, mut seen: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !seen() {
        assert!(Instant::now() < end, "waited {seconds} s in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub struct Process {
    child: Child,
    shown: String,
    stdout: PathBuf,
    stderr: PathBuf,
    reaped: bool,
}

impl Process {
    /// Starts `command`; what it prints goes to files whose names begin with `path`.
    pub fn start(mut command: Command, path: PathBuf, shown: String) -> Self {
        let (stdout, stderr) = (path.with_extension("out"), path.with_extension("err"));
        let child = command
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        Self { child, shown, stdout, stderr, reaped: false }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        // It may have ended by itself; that is for `wait` to tell.
        let _ = kill_process(pid, signal);
    }

    /// SIGSTOP, and stopped (or ended by itself) when this returns.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        wait_until("the process to be stopped", 10, || matches!(self.state(), Some('T' | 'Z') | None));
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        self.reaped = true;
    }

    fn state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it wrote on stderr so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap()).into_owned()
    }

    #[track_caller]
    pub fn wait(mut self) -> Finished {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= end {
                let stderr = self.stderr();
                panic!("`{}` hangs; its stderr so far:\n{stderr}", self.shown);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.reaped = true;
        let read = |path: &PathBuf| String::from_utf8(fs::read(path).unwrap()).expect("output is UTF-8");
        Finished { shown: self.shown.clone(), status, stdout: read(&self.stdout), stderr: read(&self.stderr) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
            if std::thread::panicking() {
                eprintln!("`{}`, killed now, had printed:\n{}", self.shown, self.stderr());
            }
        }
    }
}

/// How a process ended, and what it printed.
pub struct Finished {
    shown: String,
    status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// A healthy minute: exit 0 and not one byte.
    #[track_caller]
    pub fn quietly(self) {
        assert!(self.code() == Some(0) && self.stdout.is_empty() && self.stderr.is_empty(), "{self}");
    }

    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "{self}");
        self
    }

    /// The trouble told on stderr holds each of `words`; nothing is on stdout.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "no \"{word}\" in: {self}");
        }
        self
    }

    /// Its stdout as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self}"))
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "`{}`: {}", self.shown, self.status)?;
        writeln!(f, "-- stdout\n{}-- stderr\n{}--", self.stdout, self.stderr)
    }
}

/// Detached from the terminal, with an environment that says nothing: no HOME, no LANG, no settings of ours.
pub fn bare(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").stdin(Stdio::null());
    command
}
