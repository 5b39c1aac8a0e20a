//! Channel kind `file`: one JSON line per message, appended to a file and on disk before it counts as accepted.
//! For a spool that another program reads, and for trying things out.
//!
//! | seen | outcome |
//! |---|---|
//! | past the deadline before the write | not sent |
//! | cannot be opened, or is no regular file | Unavailable |
//! | another process keeps it locked for `timeout` | Deferred, not counted |
//! | nothing of the line is in the file: disk full, quota | Unavailable |
//! | a part of the line was written, and cut off again | Unavailable |
//! | a part of the line was written, and stays | Unknown; the next line begins on a line of its own |
//! | written, fdatasync failed | Unknown |
//! | written, fdatasync done | Accepted |
//!
//! Senders that come together share the cost: one of them, the leader, writes the lines of all with one write and one
//! fdatasync while the next group gathers. Several processes may append to the same file: a flock is held for the
//! length of the write. A file that was moved away (rotated) is left to whoever moved it; a new one is made at `path`.

use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use serde::Deserialize;

use crate::message::Message;
use crate::moment::Moment;
use crate::owner;
use crate::sender::{Outcome, Sender};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Settings {
    /// Absolute; made (0600) when missing, its directory is not.
    pub path: PathBuf,
}

impl Settings {
    pub fn check(&self) -> Result<()> {
        let path = self.path.display();
        if !self.path.is_absolute() {
            bail!("`path` must be absolute, not `{path}`: cron's working directory is not yours");
        }
        if self.path.to_string_lossy().ends_with('/') {
            bail!("`path` must name a file, not the directory `{path}`");
        }
        Ok(())
    }
}

pub struct File {
    path: PathBuf,
    timeout: Duration,
    queue: Mutex<Queue>,
    /// The leader's alone; a lock that nobody waits for.
    spool: Mutex<Option<Spool>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Somebody leads: writes a group, or is about to.
    led: bool,
}

/// A sender that waits for its group.
struct Waiting {
    line: Vec<u8>,
    until: Moment,
    told: SyncSender<Told>,
}

enum Told {
    /// Write the next group; your own line is in it.
    Lead,
    Done(Outcome),
}

/// The open file, and which one it is.
struct Spool {
    file: fs::File,
    id: (u64, u64),
}

impl File {
    pub fn open(settings: &Settings, timeout: Duration) -> Result<Self> {
        settings.check()?;
        let path = settings.path.clone();
        Ok(Self { path, timeout, queue: Mutex::default(), spool: Mutex::default() })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one group and tells each of it.
    fn lead(&self) {
        let _handover = Handover(self);
        self.gather();
        let group = std::mem::take(&mut self.queue().waiting);
        let mut spool = self.spool.lock().unwrap_or_else(PoisonError::into_inner);
        for (waiting, outcome) in group.iter().zip(self.append(&mut spool, &group)) {
            // It waits for this word, and its channel has room for it.
            let _ = waiting.told.send(Told::Done(outcome));
        }
    }

    /// Lets those whom the last group woke bring their next lines: without it groups of one and of all the
    /// rest would take turns.
    fn gather(&self) {
        let mut before = 0;
        loop {
            let now = self.queue().waiting.len();
            if now == before {
                return;
            }
            before = now;
            std::thread::yield_now();
        }
    }

    fn append(&self, spool: &mut Option<Spool>, group: &[Waiting]) -> Vec<Outcome> {
        let all = |outcome: Outcome| vec![outcome; group.len()];
        let unavailable = |what: &str, error: &io::Error| Outcome::Unavailable {
            reason: format!("cannot {what} {}: {error}", self.path.display()),
        };
        let file = match self.current(spool) {
            Ok(file) => file,
            Err(error) => return all(unavailable("open", &error)),
        };
        let held = match hold(file, Moment::now() + self.timeout) {
            Ok(Some(held)) => held,
            Ok(None) => {
                let path = self.path.display();
                return all(Outcome::unreached(format!("another process keeps {path} locked")));
            }
            Err(error) => return all(unavailable("lock", &error)),
        };
        let end = match End::of(file) {
            Ok(end) => end,
            Err(error) => return all(unavailable("read", &error)),
        };

        let mut bytes = Vec::new();
        if end.torn {
            bytes.push(b'\n');
        }
        // Where each line ends in `bytes`; `None`: its time has passed.
        let ends: Vec<Option<usize>> = group
            .iter()
            .map(|waiting| {
                (!waiting.until.passed()).then(|| {
                    bytes.extend_from_slice(&waiting.line);
                    bytes.len()
                })
            })
            .collect();
        if ends.iter().all(Option::is_none) {
            return all(Outcome::too_late());
        }

        let (written, failed) = write(file, &bytes);
        let whole = ends.iter().flatten().copied().filter(|end| *end <= written).max().unwrap_or(0);
        let cut = written > whole && cut_back(file, end.length, written, whole);
        drop(held);
        let synced = if whole > 0 { file.sync_data() } else { Ok(()) };

        let reason = |what: &str, error: Option<&io::Error>| {
            let error = error.map_or_else(String::new, |error| format!(": {error}"));
            format!("{what} {}{error}", self.path.display())
        };
        let mut start = 0;
        let outcomes = ends
            .iter()
            .map(|end| {
                let Some(end) = *end else { return Outcome::too_late() };
                let begun = start < written;
                start = end;
                if end <= written {
                    match &synced {
                        Ok(()) => Outcome::Accepted { receipt: None },
                        Err(error) => Outcome::Unknown {
                            reason: reason("written, but perhaps not on disk, to", Some(error)),
                        },
                    }
                } else if begun && !cut {
                    Outcome::Unknown { reason: reason("written in part to", failed.as_ref()) }
                } else {
                    Outcome::Unavailable { reason: reason("cannot write to", failed.as_ref()) }
                }
            })
            .collect();
        if synced.is_err() {
            // After a failed fdatasync the kernel may call lost pages clean: nothing more through this descriptor.
            *spool = None;
        }
        outcomes
    }

    /// The file that is at `path` now.
    fn current<'a>(&self, spool: &'a mut Option<Spool>) -> io::Result<&'a fs::File> {
        let now = match fs::metadata(&self.path) {
            Ok(found) => Some((found.dev(), found.ino())),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let opened = match spool.take() {
            Some(open) if Some(open.id) == now => open,
            _ => open(&self.path)?,
        };
        Ok(&spool.insert(opened).file)
    }
}

impl Sender for File {
    fn send(&self, message: &Message, until: Moment) -> Outcome {
        let line = match message.line() {
            Ok(line) => line,
            Err(error) => return Outcome::Rejected { reason: format!("{error:#}") },
        };
        let (told, hear) = sync_channel(2);
        let leads = {
            let mut queue = self.queue();
            queue.waiting.push(Waiting { line, until, told });
            !std::mem::replace(&mut queue.led, true)
        };
        // A leader that ended without a word dropped our end of the channel: the line may be in the file.
        let lost = || Outcome::Unknown { reason: "the write of its group ended in a panic".into() };
        if !leads {
            match hear.recv() {
                Ok(Told::Done(outcome)) => return outcome,
                Ok(Told::Lead) => {}
                Err(_) => return lost(),
            }
        }
        self.lead();
        match hear.try_recv() {
            Ok(Told::Done(outcome)) => outcome,
            Ok(Told::Lead) | Err(_) => lost(),
        }
    }

    /// Whether this user could append, or make the file. Nothing is made, and nothing opened.
    fn probe(&self) -> Result<String, String> {
        let path = self.path.display();
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let may = |what: &Path, access| {
            accessat(CWD, what, access, AtFlags::EACCESS)
                .map_err(|error| format!("{}: {}", what.display(), io::Error::from(error)))
        };
        match fs::metadata(&self.path) {
            Ok(found) if !found.is_file() => Err(format!("{path} is no regular file")),
            Ok(_) => may(&self.path, Access::READ_OK | Access::WRITE_OK)
                .map(|()| format!("{path} can be appended to")),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                may(folder, Access::WRITE_OK | Access::EXEC_OK)
                    .map(|()| format!("{path} will be made by the first message"))
            }
            Err(error) => Err(format!("{path}: {error}")),
        }
    }
}

/// The leader's last duty, also in a panic: somebody who waits leads next.
struct Handover<'a>(&'a File);

impl Drop for Handover<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.led = queue.waiting.first().is_some_and(|next| next.told.send(Told::Lead).is_ok());
    }
}

/// Opens or makes the file, and makes its name last.
fn open(path: &Path) -> io::Result<Spool> {
    let mut options = OpenOptions::new();
    // O_NONBLOCK means nothing for a regular file; a named pipe without a reader would hang here without it.
    options.read(true).append(true).mode(0o600).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = owner::open(&options, path)
        .map_err(|error| owner::of_another(path, &error).map_or(error, io::Error::other))?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    match fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all() {
        // File systems that have no such thing say so.
        Err(error) if error.kind() == ErrorKind::InvalidInput => {}
        synced => synced?,
    }
    Ok(Spool { file, id: (found.dev(), found.ino()) })
}

/// The flock, until it is dropped. Its holders only write, so that it is free again in no time; a process stopped at
/// that very moment is waited for until `end`.
struct Held<'a>(&'a fs::File);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

fn hold(file: &fs::File, end: Moment) -> io::Result<Option<Held<'_>>> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(Held(file))),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if end.passed() => return Ok(None),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// Where the next byte goes.
struct End {
    length: u64,
    /// The last line has no line break: a power cut, or a write that failed half-way.
    torn: bool,
}

impl End {
    fn of(file: &fs::File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut last = [b'\n'];
        if length > 0 {
            file.read_exact_at(&mut last, length - 1)?;
        }
        Ok(Self { length, torn: last != [b'\n'] })
    }
}

/// Writes as much as can be: how many bytes, and why no more.
fn write(mut file: impl Write, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Some(ErrorKind::WriteZero.into())),
            Ok(some) => written += some,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

/// Takes the last, broken line off the file; whole lines stay, since a reader may have them already, as it cannot
/// have a line without its end. Only if what we wrote is the end of the file. Whether it did.
fn cut_back(file: &fs::File, length: u64, written: usize, whole: usize) -> bool {
    let ours = |bytes: usize| length + bytes as u64;
    let last = file.metadata().is_ok_and(|now| now.len() == ours(written));
    last && file.set_len(ours(whole)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{TargetPart, TaskPart};
    use crate::sender::Toll;
    use serde_json::value::RawValue;
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use tempfile::TempDir;
    use uuid::Uuid;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn message(id: u64) -> Message {
        let json = |text: &str| RawValue::from_string(text.into()).unwrap();
        Message {
            key: Uuid::nil(),
            attempt: 1,
            task: Arc::new(TaskPart { id: 7, name: "Spring".into(), payload: json("{}") }),
            target: TargetPart { id, recipient: "ann".into(), params: json("{}") },
            body: None,
        }
    }

    fn later() -> Moment {
        Moment::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_probe_makes_nothing() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("spool.jsonl");
        assert!(sender(&path).probe().unwrap().ends_with("will be made by the first message"));
        assert!(!path.exists());
        fs::write(&path, "").unwrap();
        assert!(sender(&path).probe().unwrap().ends_with("can be appended to"));
        assert!(sender(&dir.path().join("no/spool.jsonl")).probe().unwrap_err().contains("No such file"));
        assert!(sender(dir.path()).probe().unwrap_err().contains("no regular file"));
    }

    fn sender(path: &Path) -> File {
        File::open(&Settings { path: path.into() }, TIMEOUT).unwrap()
    }

    const ACCEPTED: Outcome = Outcome::Accepted { receipt: None };

    /// The ids of the targets whose whole lines are in the file, in order; every line must be one.
    fn ids(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        let id = |line: &str| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            value["target"]["id"].as_u64().unwrap()
        };
        text.lines().map(id).collect()
    }

    #[test]
    fn a_message_is_a_line_in_a_file_that_is_its_owners_alone() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("spool");
        let file = sender(&path);
        assert!(!path.exists(), "nothing is made before something is sent");
        for id in [1, 2] {
            assert_eq!(file.send(&message(id), later()), ACCEPTED);
        }
        assert_eq!(ids(&path), [1, 2]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let line = String::from_utf8(message(1).line().unwrap()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().next(), line.lines().next());
    }

    #[test]
    fn past_the_deadline_nothing_is_written() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("spool");
        let file = sender(&path);
        assert_eq!(file.send(&message(1), Moment::now()), Outcome::too_late());
        assert_eq!(ids(&path), [0; 0]);
        assert_eq!(file.send(&message(2), later()), ACCEPTED);
        assert_eq!(ids(&path), [2]);
    }

    #[test]
    fn in_one_group_each_line_has_its_own_deadline() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("spool");
        let waiting =
            |id, until| Waiting { line: message(id).line().unwrap(), until, told: sync_channel(2).0 };
        let group = [waiting(1, later()), waiting(2, Moment::now()), waiting(3, later())];
        let outcomes = sender(&path).append(&mut None, &group);
        assert_eq!(outcomes, [ACCEPTED, Outcome::too_late(), ACCEPTED]);
        assert_eq!(ids(&path), [1, 3]);
    }

    #[test]
    fn many_senders_of_two_processes_lose_and_break_nothing() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("spool");
        // Two senders lock each other out as two processes do: each has its own open file.
        let senders = [sender(&path), sender(&path)];
        std::thread::scope(|scope| {
            for thread in 0..32 {
                let (file, path) = (&senders[thread as usize % 2], &path);
                scope.spawn(move || {
                    for nth in 0..20 {
                        let id = thread * 100 + nth;
                        assert_eq!(file.send(&message(id), later()), ACCEPTED);
                        // Accepted means that it is there, whatever the others are writing.
                        let text = fs::read_to_string(path).unwrap();
                        assert!(text.contains(&format!("\"target\":{{\"id\":{id},")));
                    }
                });
            }
        });
        let ids = ids(&path);
        assert_eq!(ids.len(), 640);
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 640);
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_anew() {
        let dir = TempDir::new().unwrap();
        let (path, old) = (dir.path().join("spool"), dir.path().join("spool.1"));
        let file = sender(&path);
        assert_eq!(file.send(&message(1), later()), ACCEPTED);
        fs::rename(&path, &old).unwrap();
        assert_eq!(file.send(&message(2), later()), ACCEPTED);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(file.send(&message(3), later()), ACCEPTED);
        assert_eq!((ids(&old), ids(&path)), (vec![1], vec![3]));
    }

    #[test]
    fn what_cannot_be_opened_is_unavailable_and_named() {
        let dir = TempDir::new().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        for path in [dir.path().join("missing/spool"), dir.path().to_path_buf(), pipe] {
            let Outcome::Unavailable { reason } = sender(&path).send(&message(1), later()) else {
                panic!("another outcome")
            };
            assert!(reason.starts_with(&format!("cannot open {}: ", path.display())), "{reason}");
        }
    }

    #[test]
    fn a_channel_that_came_back_is_used_again() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("later/spool");
        let file = sender(&path);
        assert!(matches!(file.send(&message(1), later()), Outcome::Unavailable { .. }));
        fs::create_dir(path.parent().unwrap()).unwrap();
        assert_eq!(file.send(&message(1), later()), ACCEPTED);
    }

    #[test]
    fn a_file_that_somebody_keeps_locked_is_not_reached() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("spool");
        let holder = fs::File::create(&path).unwrap();
        holder.lock().unwrap();
        let file = File::open(&Settings { path: path.clone() }, Duration::from_millis(50)).unwrap();
        let outcome = file.send(&message(1), later());
        assert!(matches!(outcome, Outcome::Deferred { toll: Toll::Unreached, .. }), "{outcome:?}");
        holder.unlock().unwrap();
        assert_eq!(file.send(&message(2), later()), ACCEPTED);
        assert_eq!(ids(&path), [2]);
    }

    #[test]
    fn after_a_torn_line_the_next_one_is_whole() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("spool");
        fs::write(&path, "{\"key\":").unwrap();
        let file = sender(&path);
        for id in [1, 2] {
            assert_eq!(file.send(&message(id), later()), ACCEPTED);
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, "{\"key\":"));
    }

    /// A disk that takes so many bytes, in small bites, with an interruption before each.
    struct Disk(usize, bool);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(ErrorKind::Interrupted.into());
            }
            if self.0 == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            let some = bytes.len().min(3).min(self.0);
            self.0 -= some;
            Ok(some)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_short_write_is_gone_on_with_and_counted() {
        let (written, failed) = write(Disk(100, false), &[b'x'; 10]);
        assert!(written == 10 && failed.is_none());
        let (written, failed) = write(Disk(7, false), &[b'x'; 10]);
        assert_eq!((written, failed.unwrap().kind()), (7, ErrorKind::StorageFull));
    }

    #[test]
    fn only_the_broken_end_is_cut_and_only_if_it_is_ours() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("spool");
        let file = open(&path).unwrap().file;
        assert!(write(&file, b"old\nline\nbro").1.is_none());
        assert!(cut_back(&file, 4, 8, 5));
        assert_eq!(fs::read(&path).unwrap(), b"old\nline\n");

        assert!(write(&file, b"bro").1.is_none());
        assert!(write(&file, b"somebody else's\n").1.is_none());
        assert!(!cut_back(&file, 4, 8, 5));
        assert_eq!(fs::read(&path).unwrap(), b"old\nline\nbrosomebody else's\n");
    }

    #[test]
    fn a_leader_that_ends_in_a_panic_leaves_nobody_waiting() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("spool");
        let file = sender(&path);
        let (told, hear) = sync_channel(2);
        file.queue().led = true;
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| file.send(&message(1), later()));
            while file.queue().waiting.is_empty() {
                std::thread::yield_now();
            }
            let group = [Waiting { line: Vec::new(), until: later(), told }];
            let leader = scope.spawn(|| {
                let _handover = Handover(&file);
                let _group = group;
                panic!("in the middle of a write");
            });
            assert!(leader.join().is_err());
            assert!(hear.recv().is_err(), "its own group hears of it");
            assert_eq!(follower.join().unwrap(), ACCEPTED, "the next in line leads");
        });
        assert!(!file.queue().led);
    }

    #[test]
    fn the_path_is_absolute_and_a_file() {
        for path in ["spool", "./spool", "/var/spool/", ""] {
            assert!(File::open(&Settings { path: path.into() }, TIMEOUT).is_err(), "{path}");
        }
    }
}
