//! Channel kind `exec`: a program is started for each message, without a shell. It gets the message as one JSON line
//! on stdin, and its exit code is the answer:
//!
//! | seen | outcome |
//! |---|---|
//! | past the deadline before the start | not sent |
//! | cannot be started: missing, not executable | Unavailable |
//! | cannot be started now: no process, memory or descriptor left, or the file is being written | Deferred, not counted |
//! | exit 0 | Accepted; the first line of stdout is the receipt |
//! | exit 75 | Deferred |
//! | exit 65-69 | Rejected |
//! | exit 77, 78 | Unavailable |
//! | any other exit, death by a signal, no exit within `timeout` | Unknown |
//!
//! `exit_codes` says otherwise, class by class. The last line of stderr is the reason. The program has a process
//! group of its own: at `timeout` the whole group is killed, and what a terminal sends to ours does not reach it. It may
//! leave stdin unread. What it leaves running in the background is left alone, and is not waited for.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use crate::message::Message;
use crate::moment::Moment;
use crate::sender::{Outcome, Sender, Toll};

/// Of each of stdout and stderr so much is kept; the rest is read and dropped.
const CAPTURE: usize = 64 * 1024;

/// Longest wait between two looks at whether the program has ended: the end of a program whose output a child of its own keeps
/// open is seen in no other way.
const TICK: Duration = Duration::from_millis(20);

/// A killed program is gone at once, but for one that hangs in the kernel: that one is not waited for.
const REAP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Settings {
    /// The program, absolute, and its arguments.
    pub command: Vec<String>,
    #[serde(default)]
    pub exit_codes: ExitCodes,
}

impl Settings {
    pub fn check(&self) -> Result<()> {
        let Some(program) = self.command.first() else {
            bail!("`command` is empty: name a program, as in [\"/usr/local/bin/send\"]");
        };
        if !program.starts_with('/') {
            bail!(
                "the program of `command` must be an absolute path, not `{program}`: cron's PATH is not yours"
            );
        }
        Ok(())
    }
}

/// What each exit code means.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Classes")]
pub struct ExitCodes([Class; 256]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Accepted,
    Deferred,
    Rejected,
    Unavailable,
    Unknown,
}

/// `exit_codes` as written. A class that is absent keeps its default.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Classes {
    accepted: Vec<Codes>,
    deferred: Vec<Codes>,
    rejected: Vec<Codes>,
    unavailable: Vec<Codes>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "each must be an exit code (0-255) or a range such as \"65-69\"")]
enum Codes {
    One(u8),
    Range(String),
}

impl Default for Classes {
    fn default() -> Self {
        let range = |text: &str| vec![Codes::Range(text.to_owned())];
        Self {
            accepted: vec![Codes::One(0)],
            deferred: vec![Codes::One(75)],
            rejected: range("65-69"),
            unavailable: range("77-78"),
        }
    }
}

impl Default for ExitCodes {
    fn default() -> Self {
        let mut classes = [Class::Unknown; 256];
        classes[0] = Class::Accepted;
        classes[65..=69].fill(Class::Rejected);
        classes[75] = Class::Deferred;
        classes[77..=78].fill(Class::Unavailable);
        Self(classes)
    }
}

impl TryFrom<Classes> for ExitCodes {
    type Error = String;

    fn try_from(written: Classes) -> Result<Self, String> {
        let mut classes = [Class::Unknown; 256];
        for (class, codes) in [
            (Class::Accepted, written.accepted),
            (Class::Deferred, written.deferred),
            (Class::Rejected, written.rejected),
            (Class::Unavailable, written.unavailable),
        ] {
            for codes in codes {
                let (first, last) = codes.ends()?;
                for code in first..=last {
                    let known = &mut classes[usize::from(code)];
                    if *known != Class::Unknown && *known != class {
                        return Err(format!(
                            "exit code {code} is both {} and {}: each code has one meaning, and a class that is \
                             not given keeps its default",
                            known.word(),
                            class.word()
                        ));
                    }
                    *known = class;
                }
            }
        }
        Ok(Self(classes))
    }
}

impl Class {
    fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Deferred => "deferred",
            Self::Rejected => "rejected",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
        }
    }
}

impl Codes {
    fn ends(self) -> Result<(u8, u8), String> {
        match self {
            Self::One(code) => Ok((code, code)),
            Self::Range(text) => text
                .split_once('-')
                .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)))
                .filter(|(first, last)| first <= last)
                .ok_or_else(|| format!("`{text}` is no range of exit codes: write it as in \"65-69\"")),
        }
    }
}

pub struct Exec {
    command: Vec<String>,
    exit_codes: ExitCodes,
    timeout: Duration,
}

impl Exec {
    pub fn open(settings: &Settings, timeout: Duration) -> Result<Self> {
        settings.check()?;
        let Settings { command, exit_codes } = settings.clone();
        Ok(Self { command, exit_codes, timeout })
    }

    fn start(&self) -> io::Result<Child> {
        // The standard library opens the pipes close-on-exec, and gives the child its default SIGPIPE back.
        Command::new(&self.command[0])
            .args(&self.command[1..])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }

    fn not_started(&self, error: &io::Error) -> Outcome {
        let reason = format!("cannot start {}: {error}", self.command[0]);
        // These pass by themselves, and are no fault of the program.
        let passing = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY];
        if passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) {
            Outcome::unreached(reason)
        } else {
            Outcome::Unavailable { reason }
        }
    }

    fn answer(&self, status: ExitStatus, heard: &Heard) -> Outcome {
        let Some(code) = status.code() else {
            let signal = status.signal().unwrap_or_default();
            return Outcome::Unknown { reason: heard.reason(&format!("killed by signal {signal}")) };
        };
        let class = u8::try_from(code).map_or(Class::Unknown, |code| self.exit_codes.0[usize::from(code)]);
        let reason = heard.reason(&format!("exit {code}"));
        match class {
            Class::Accepted => Outcome::Accepted { receipt: heard.receipt() },
            Class::Deferred => Outcome::Deferred { reason, after: None, toll: Toll::Attempt },
            Class::Rejected => Outcome::Rejected { reason },
            Class::Unavailable => Outcome::Unavailable { reason },
            Class::Unknown => Outcome::Unknown { reason },
        }
    }
}

impl Sender for Exec {
    fn send(&self, message: &Message, until: Moment) -> Outcome {
        match message.line() {
            Ok(line) => self.hand(&line, until),
            Err(error) => Outcome::Rejected { reason: format!("{error:#}") },
        }
    }

    /// Whether the program is there, and is this user's to run. Not started: it would take that for a message.
    fn probe(&self) -> Result<String, String> {
        let program = &self.command[0];
        let found = std::fs::metadata(program).map_err(|error| format!("{program}: {error}"))?;
        if !found.is_file() {
            return Err(format!("{program} is no file"));
        }
        accessat(CWD, program, Access::EXEC_OK, AtFlags::EACCESS)
            .map_err(|error| format!("{program} cannot be run by this user: {}", io::Error::from(error)))?;
        Ok(format!("{program} can be run"))
    }
}

impl Exec {
    /// Starts the program with this on its stdin; its exit is the answer. Past `until` it is not started.
    pub fn hand(&self, line: &[u8], until: Moment) -> Outcome {
        let end = Moment::now() + self.timeout;
        if until.passed() {
            return Outcome::too_late();
        }
        let mut child = match self.start() {
            Ok(child) => child,
            Err(error) => return self.not_started(&error),
        };
        let mut talk = Talk::new(&mut child, line);
        match talk.until_exit(&mut child, end) {
            Ok(Some(status)) => self.answer(status, &talk.heard),
            Ok(None) => {
                kill(&mut child);
                talk.drain();
                let why = format!("no exit within {:?}: killed", self.timeout);
                Outcome::Unknown { reason: talk.heard.reason(&why) }
            }
            Err(error) => {
                kill(&mut child);
                Outcome::Unknown { reason: format!("cannot follow {}: {error}", self.command[0]) }
            }
        }
    }
}

/// Kills the program and its process group. It has not been waited for yet, so that its number is still its own.
fn kill(child: &mut Child) {
    // No such group: everything in it has ended by itself.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let end = Moment::now() + REAP;
    while matches!(child.try_wait(), Ok(None)) && !end.passed() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The three pipes of a running program. All are read and written as far as they are ready, in one thread.
struct Talk<'a> {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// What stdin has not taken yet.
    unsaid: &'a [u8],
    heard: Heard,
}

impl<'a> Talk<'a> {
    fn new(child: &mut Child, line: &'a [u8]) -> Self {
        Self {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            unsaid: line,
            heard: Heard::default(),
        }
    }

    /// Says and hears until the program exits; `None`: it did not before `end`.
    fn until_exit(&mut self, child: &mut Child, end: Moment) -> io::Result<Option<ExitStatus>> {
        for pipe in [
            self.stdin.as_ref().map(AsFd::as_fd),
            self.stdout.as_ref().map(AsFd::as_fd),
            self.stderr.as_ref().map(AsFd::as_fd),
        ]
        .into_iter()
        .flatten()
        {
            rustix::fs::fcntl_setfl(pipe, OFlags::NONBLOCK)?;
        }
        let mut tick = Duration::from_millis(1);
        loop {
            // Both outputs closed: it is about to exit, most likely, and is looked at soon.
            let wait = if self.stdout.is_none() && self.stderr.is_none() { tick } else { TICK };
            tick = (tick * 2).min(TICK);
            self.wait(wait.min(end.left()))?;
            self.say();
            self.hear();
            if let Some(status) = child.try_wait()? {
                // What it wrote before its end is in the pipes by now, even if somebody else holds them open.
                self.drain();
                return Ok(Some(status));
            }
            if end.passed() {
                return Ok(None);
            }
        }
    }

    /// Waits until a pipe is ready, or for `most`.
    fn wait(&self, most: Duration) -> io::Result<()> {
        let mut ready = Vec::with_capacity(3);
        ready.extend(self.stdin.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        ready.extend(self.stdout.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        ready.extend(self.stderr.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        match poll(&mut ready, Some(&most)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn say(&mut self) {
        while let Some(pipe) = &mut self.stdin {
            match pipe.write(self.unsaid) {
                Ok(written) if written < self.unsaid.len() => self.unsaid = &self.unsaid[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // All is said, or it does not want to hear it, which is no error.
                Ok(_) | Err(_) => self.stdin = None,
            }
        }
    }

    fn hear(&mut self) {
        listen(&mut self.stdout, |bytes| self.heard.stdout(bytes));
        listen(&mut self.stderr, |bytes| self.heard.stderr(bytes));
    }

    /// Hears what is left in the pipes, without waiting: at most what a pipe can hold, since a child of the program may go on
    /// writing.
    fn drain(&mut self) {
        for _ in 0..8 {
            self.hear();
        }
    }
}

/// Reads what is there, up to a bound, so that one talkative pipe does not keep us from the other or from the clock.
fn listen(pipe: &mut Option<impl Read>, mut hear: impl FnMut(&[u8])) {
    let mut buffer = [0; 8192];
    for _ in 0..16 {
        let Some(open) = pipe else { return };
        match open.read(&mut buffer) {
            Ok(0) => *pipe = None,
            Ok(length) => hear(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => *pipe = None,
        }
    }
}

/// What the program said: the beginning of stdout, the end of stderr.
#[derive(Default)]
struct Heard {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Heard {
    fn stdout(&mut self, bytes: &[u8]) {
        let room = CAPTURE - self.stdout.len();
        self.stdout.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn stderr(&mut self, bytes: &[u8]) {
        self.stderr.extend_from_slice(bytes);
        if self.stderr.len() > 2 * CAPTURE {
            self.stderr.drain(..self.stderr.len() - CAPTURE);
        }
    }

    fn receipt(&self) -> Option<String> {
        let first = self.stdout.split(|byte| *byte == b'\n').next()?;
        Some(plain(first)).filter(|receipt| !receipt.is_empty())
    }

    /// `what`, and the last line of stderr that says something.
    fn reason(&self, what: &str) -> String {
        let last = self.stderr.rsplit(|byte| *byte == b'\n').map(plain).find(|line| !line.is_empty());
        match last {
            Some(line) => format!("{what}: {line}"),
            None => what.to_owned(),
        }
    }
}

/// Text without control characters, which would act on the terminal of whoever reads it.
fn plain(bytes: &[u8]) -> String {
    let text: String =
        String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{TargetPart, TaskPart};
    use serde_json::value::RawValue;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use tempfile::TempDir;
    use uuid::Uuid;

    fn json(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.into()).unwrap()
    }

    fn message(params: &str) -> Message {
        Message {
            key: Uuid::nil(),
            attempt: 1,
            task: Arc::new(TaskPart { id: 7, name: "Spring".into(), payload: json("{}") }),
            target: TargetPart { id: 9, recipient: "ann".into(), params: json(params) },
            body: None,
        }
    }

    fn settings(text: &str) -> Result<Settings, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    fn shell(script: &str, timeout: Duration) -> Exec {
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        Exec::open(&Settings { command, exit_codes: ExitCodes::default() }, timeout).unwrap()
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_probe_looks_at_the_program_and_does_not_start_it() {
        let dir = TempDir::new().unwrap();
        let (program, trace) = (dir.path().join("send"), dir.path().join("started"));
        let probe = || {
            let command = vec![program.display().to_string()];
            Exec::open(&Settings { command, exit_codes: ExitCodes::default() }, LONG).unwrap().probe()
        };
        assert!(probe().unwrap_err().contains("No such file"));
        fs::write(&program, format!("#!/bin/sh\ntouch {}\n", trace.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(probe().unwrap_err().contains("cannot be run by this user"));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(probe().unwrap().ends_with("can be run"));
        assert!(!trace.exists());
    }

    fn later() -> Moment {
        Moment::now() + LONG
    }

    fn sent(script: &str) -> Outcome {
        shell(script, LONG).send(&message("{}"), later())
    }

    fn unknown(reason: &str) -> Outcome {
        Outcome::Unknown { reason: reason.into() }
    }

    fn accepted(receipt: Option<&str>) -> Outcome {
        Outcome::Accepted { receipt: receipt.map(str::to_owned) }
    }

    #[test]
    fn the_exit_code_is_the_answer_and_the_outputs_say_more() {
        let reason = || "exit 1".to_owned();
        let table = [
            ("exit 0", accepted(None)),
            ("echo ' id-1 '; echo more", accepted(Some("id-1"))),
            ("echo; echo id-1", accepted(None)),
            ("printf id-2", accepted(Some("id-2"))),
            ("printf 'a\\033[31mb\\n'", accepted(Some("a [31mb"))),
            ("exit 1", Outcome::Unknown { reason: reason() }),
            ("exit 64", unknown("exit 64")),
            ("exit 76", unknown("exit 76")),
            ("echo one >&2; echo ' two ' >&2; echo >&2; exit 70", unknown("exit 70: two")),
            (
                "echo full >&2; exit 75",
                Outcome::Deferred { reason: "exit 75: full".into(), after: None, toll: Toll::Attempt },
            ),
            ("exit 65", Outcome::Rejected { reason: "exit 65".into() }),
            ("echo no such user >&2; exit 69", Outcome::Rejected { reason: "exit 69: no such user".into() }),
            ("exit 77", Outcome::Unavailable { reason: "exit 77".into() }),
            ("exit 78", Outcome::Unavailable { reason: "exit 78".into() }),
            ("kill -9 $$", unknown("killed by signal 9")),
            ("echo id; kill -15 $$", unknown("killed by signal 15")),
        ];
        for (script, outcome) in table {
            assert_eq!(sent(script), outcome, "{script}");
        }
    }

    #[test]
    fn the_program_reads_the_message_as_one_line() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("stdin");
        let long = format!("{{\"text\":\"{}\"}}", "x".repeat(300_000));
        let exec = shell(&format!("cat > {}", file.display()), LONG);
        assert_eq!(exec.send(&message(&long), later()), accepted(None));
        let line = String::from_utf8(fs::read(file).unwrap()).unwrap();
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["target"]["params"]["text"].as_str().unwrap().len(), 300_000);
        assert_eq!(value["key"], Uuid::nil().to_string());
    }

    #[test]
    fn stdin_may_be_closed_or_left_unread() {
        let long = message(&format!("\"{}\"", "x".repeat(1_000_000)));
        for script in ["exec <&-; echo id", "echo id", "sleep 0.1; echo id"] {
            assert_eq!(shell(script, LONG).send(&long, later()), accepted(Some("id")), "{script}");
        }
    }

    #[test]
    fn a_talkative_program_is_heard_to_the_end_and_not_kept_whole() {
        let script =
            "echo id; yes out | head -c 3000000; yes err | head -c 3000000 >&2; echo last >&2; exit 75";
        let Outcome::Deferred { reason, .. } = sent(script) else { panic!("another outcome") };
        assert_eq!(reason, "exit 75: last");
        let both = "yes err | head -c 3000000 >&2 & yes out | head -c 3000000; wait";
        assert_eq!(sent(both), accepted(Some("out")));

        let mut heard = Heard::default();
        for _ in 0..100 {
            heard.stdout(&[b'o'; 8192]);
            heard.stderr(&[b'e'; 8192]);
        }
        assert!(heard.stdout.len() <= CAPTURE && heard.stderr.len() <= 2 * CAPTURE + 8192);
    }

    /// Waits until `seen`; false after a long time.
    fn wait_for(seen: impl Fn() -> bool) -> bool {
        let end = later();
        while !seen() {
            if end.passed() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn runs(pid: &str) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
    }

    #[test]
    fn at_the_timeout_the_whole_group_is_killed() {
        let dir = TempDir::new().unwrap();
        let pids = dir.path().join("pids");
        let script = format!(
            "echo waiting for the server >&2; sleep 60 & echo $! > {pids}; echo $$ >> {pids}; wait",
            pids = pids.display()
        );
        let before = Moment::now();
        let outcome = shell(&script, Duration::from_millis(500)).send(&message("{}"), later());
        assert_eq!(outcome, unknown("no exit within 500ms: killed: waiting for the server"));
        assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
        let pids = fs::read_to_string(pids).unwrap();
        assert_eq!(pids.lines().count(), 2);
        for pid in pids.lines() {
            assert!(wait_for(|| !runs(pid)), "{pid} still runs");
        }
    }

    #[test]
    fn a_child_of_the_program_that_keeps_its_output_open_is_not_waited_for() {
        let dir = TempDir::new().unwrap();
        let pid = dir.path().join("pid");
        let before = Moment::now();
        let script = format!("echo id; (sleep 60; echo never) & echo $! > {}", pid.display());
        assert_eq!(sent(&script), accepted(Some("id")));
        assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
        // What a program leaves running on purpose goes on.
        let pid = fs::read_to_string(pid).unwrap();
        assert!(runs(pid.trim()));
        kill_process_group(group_of(pid.trim()), Signal::KILL).unwrap();
    }

    fn group_of(pid: &str) -> Pid {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let group = stat.rsplit(')').next().unwrap().split_whitespace().nth(2).unwrap().parse().unwrap();
        Pid::from_raw(group).unwrap()
    }

    #[test]
    fn a_program_that_closes_its_outputs_is_still_waited_for() {
        assert_eq!(sent("exec >&- 2>&-; sleep 0.2; exit 65"), Outcome::Rejected { reason: "exit 65".into() });
    }

    #[test]
    fn what_cannot_be_started_is_unavailable_and_named() {
        let dir = TempDir::new().unwrap();
        let text = dir.path().join("text");
        fs::write(&text, "no program").unwrap();
        let missing = dir.path().join("missing");
        for program in [&text, &missing, &dir.path().to_path_buf()] {
            let command = vec![program.display().to_string()];
            let exec = Exec::open(&Settings { command, exit_codes: ExitCodes::default() }, LONG).unwrap();
            let Outcome::Unavailable { reason } = exec.send(&message("{}"), later()) else {
                panic!("another outcome")
            };
            assert!(reason.starts_with(&format!("cannot start {}: ", program.display())), "{reason}");
        }
        let busy = shell("", LONG).not_started(&io::Error::from_raw_os_error(Errno::AGAIN.raw_os_error()));
        assert!(matches!(busy, Outcome::Deferred { toll: Toll::Unreached, .. }), "{busy:?}");
    }

    #[test]
    fn past_the_deadline_nothing_is_started() {
        let dir = TempDir::new().unwrap();
        let mark = dir.path().join("mark");
        let exec = shell(&format!("touch {}", mark.display()), LONG);
        assert_eq!(exec.send(&message("{}"), Moment::now()), Outcome::too_late());
        assert!(!mark.exists());
        assert_eq!(exec.send(&message("{}"), later()), accepted(None));
        assert!(mark.exists());
    }

    #[test]
    fn the_program_has_a_group_of_its_own_a_default_sigpipe_and_no_descriptor_of_ours() {
        let dir = TempDir::new().unwrap();
        let _open = fs::File::open(dir.path()).unwrap();
        let seen = dir.path().join("seen");
        let script = format!(
            "{{ cat /proc/$$/stat; grep -E 'Sig(Ign|Blk)' /proc/self/status; ls -l /proc/$$/fd; }} > {}",
            seen.display()
        );
        assert_eq!(sent(&script), accepted(None));
        let seen = fs::read_to_string(seen).unwrap();
        let mut stat = seen.lines().next().unwrap().split_whitespace();
        let pid = stat.next().unwrap();
        assert_eq!(stat.nth(3), Some(pid), "{seen}");
        for word in ["SigIgn", "SigBlk"] {
            let line = seen.lines().find(|line| line.starts_with(word)).unwrap();
            let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
            assert_eq!(mask & (1 << 12), 0, "SIGPIPE is in {line}");
        }
        let inherited = dir.path().display().to_string();
        assert!(!seen.lines().any(|line| line.ends_with(&inherited)), "{seen}");
    }

    #[test]
    fn many_at_once_keep_their_answers_apart() {
        let exec = shell("sed 's/.*\"recipient\":\"\\([^\"]*\\)\".*/\\1/'", LONG);
        std::thread::scope(|scope| {
            for number in 0..64 {
                let exec = &exec;
                scope.spawn(move || {
                    let mut message = message("{}");
                    message.target.recipient = format!("r{number}");
                    assert_eq!(exec.send(&message, later()), accepted(Some(&format!("r{number}"))));
                });
            }
        });
    }

    #[test]
    fn exit_codes_can_be_given_anew_class_by_class() {
        let own = settings("command = [\"/s\"]\nexit_codes = { deferred = [1, \"100-102\"], rejected = [] }")
            .unwrap();
        let class = |code: usize| own.exit_codes.0[code];
        assert_eq!([class(0), class(1), class(101)], [Class::Accepted, Class::Deferred, Class::Deferred]);
        assert_eq!([class(65), class(75), class(77)], [Class::Unknown, Class::Unknown, Class::Unavailable]);
        assert_eq!(
            settings("command = [\"/s\"]").unwrap().exit_codes,
            Classes::default().try_into().unwrap()
        );
        for wrong in [
            "{ deferred = [66] }",
            "{ accepted = [\"0-75\"] }",
            "{ accepted = [256] }",
            "{ accepted = [-1] }",
            "{ accepted = [\"1-256\"] }",
            "{ accepted = [\"3-1\"] }",
            "{ accepted = [\"x\"] }",
            "{ acepted = [0] }",
        ] {
            let text = format!("command = [\"/s\"]\nexit_codes = {wrong}");
            assert!(settings(&text).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_program_is_absolute() {
        for command in [vec![], vec!["sh".to_owned()], vec!["./sh".to_owned()]] {
            let settings = Settings { command, exit_codes: ExitCodes::default() };
            assert!(Exec::open(&settings, LONG).is_err());
        }
    }
}
