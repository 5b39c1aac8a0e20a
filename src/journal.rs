//! Answers that could not be written to the database, on this host's disk: one file a run, locked while it lives. Any later
//! run replays the files whose lock it can take, and removes them. Not a log: a run that never lost its database leaves nothing.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use fs2::FileExt;
use rustix::fs::OFlags;
use uuid::Uuid;

use crate::owner;
use crate::store::{Answer, Settled, Unwritten};
use crate::trouble::Trouble;

/// Answers settled at once in a replay.
const GROUP: usize = 500;

/// This run's own file. Made before the first claim: a disk that takes no journal must be known before anything leaves.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    /// A write failed, perhaps in the middle of a line.
    torn: bool,
    /// Answers in the file that the database does not have yet.
    owed: u64,
}

impl Journal {
    pub fn create(dir: &Path, installation: Uuid) -> Result<Self> {
        let path = dir.join(format!("{}{}.jsonl", prefix(installation), Uuid::new_v4()));
        // Locked before it has the name that others look for: they would take it for a dead run's, and remove it.
        let unlocked = path.with_extension("new");
        let make = || {
            let mut options = OpenOptions::new();
            options.append(true).custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32).mode(0o600);
            let file = owner::make(&options, &unlocked)?;
            file.try_lock_exclusive()?;
            std::fs::rename(&unlocked, &path)?;
            File::open(dir)?.sync_all()?;
            Ok::<_, std::io::Error>(file)
        };
        let file = make().with_context(|| {
            format!(
                "make the journal {}: give state_dir to this user, and room; without a journal nothing is begun",
                path.display()
            )
        })?;
        Ok(Self { path, inner: Mutex::new(Inner { file, torn: false, owed: 0 }) })
    }

    /// Appends, and returns when it is on disk.
    pub fn append(&self, answers: &[Answer]) -> Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = String::from(if inner.torn { "\n" } else { "" });
        for answer in answers {
            lines += &serde_json::to_string(answer)?;
            lines.push('\n');
        }
        let written = inner.file.write_all(lines.as_bytes()).and_then(|()| inner.file.sync_data());
        inner.torn = written.is_err();
        written.with_context(|| format!("write the journal {}", self.path.display()))?;
        inner.owed += answers.len() as u64;
        Ok(())
    }

    /// So many of the appended answers are in the database now.
    pub fn written(&self, answers: usize) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.owed = inner.owed.saturating_sub(answers as u64);
    }

    /// Ends it: the file goes, unless the database still lacks something. How many answers a later run must write.
    pub fn finish(self) -> Result<u64> {
        let owed = self.owed();
        if owed == 0 {
            std::fs::remove_file(&self.path)
                .with_context(|| format!("remove the journal {}", self.path.display()))?;
        }
        Ok(owed)
    }

    fn owed(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).owed
    }
}

impl Drop for Journal {
    /// A run that ends early leaves no empty file behind.
    fn drop(&mut self) {
        if self.owed() == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What came of a replay.
#[derive(Debug, Default)]
pub struct Replayed {
    pub settled: Settled,
    /// Lines that say nothing any more: their targets will be unknown.
    pub unreadable: u64,
}

/// Settles what dead runs of this installation left in `dir`, file by file; a file goes when all of it is in the database. A file
/// whose run is alive is left to it.
pub fn replay(
    dir: &Path,
    installation: Uuid,
    settle: &mut dyn FnMut(Vec<Answer>) -> Result<Settled, Unwritten>,
) -> Result<Replayed> {
    let mut replayed = Replayed::default();
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(replayed),
        Err(error) => return Err(refused(error, format!("read state_dir {}", dir.display()), dir)),
    };
    for entry in entries {
        let entry = entry.with_context(|| format!("read state_dir {}", dir.display()))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&prefix(installation))
            && name.ends_with(".jsonl")
            && let Some(file) = lock_of_the_dead(&entry.path())?
        {
            replay_file(&entry.path(), &file, settle, &mut replayed)?;
        }
    }
    Ok(replayed)
}

/// What dead runs left in a directory, of whatever installation. Nothing of it is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Answers that a later run will write.
    pub answers: u64,
    /// Files with lines that say nothing any more, put aside for a person.
    pub unreadable: u64,
}

pub fn left(dir: &Path) -> Result<Left> {
    let mut left = Left::default();
    let entries = match std::fs::read_dir(dir) {
        // The first run makes it.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(left),
        Err(error) => return Err(refused(error, format!("read state_dir {}", dir.display()), dir)),
        Ok(entries) => entries,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("journal-") {
            continue;
        }
        if name.ends_with(".unreadable") {
            left.unreadable += 1;
        } else if name.ends_with(".jsonl")
            && let Some(file) = lock_of_the_dead(&path)?
        {
            left.answers +=
                BufReader::new(file).lines().map_while(Result::ok).filter(|line| !line.is_empty()).count()
                    as u64;
        }
    }
    Ok(left)
}

fn prefix(installation: Uuid) -> String {
    format!("journal-{installation}-")
}

/// The file with its lock, unless its run is alive or another run has just replayed it.
fn lock_of_the_dead(path: &Path) -> Result<Option<File>> {
    let about = || format!("open the journal {}", path.display());
    let options = OpenOptions::new()
        .read(true)
        .append(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32)
        .open(path);
    let file = match options {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(error, about(), path)),
    };
    match file.try_lock_exclusive() {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error).with_context(about),
    }
    let ours = file.metadata().with_context(about)?;
    Ok(std::fs::metadata(path).is_ok_and(|there| there.ino() == ours.ino()).then_some(file))
}

/// Mostly somebody who ran it as another user left it behind: whose it is, and how it comes to be this user's.
fn refused(error: std::io::Error, about: String, path: &Path) -> anyhow::Error {
    match owner::of_another(path, &error) {
        Some(sentence) => Trouble::usage(format!("{about}: {sentence}; its answers wait until then")).into(),
        None => anyhow::Error::new(error).context(about),
    }
}

fn replay_file(
    path: &Path,
    file: &File,
    settle: &mut dyn FnMut(Vec<Answer>) -> Result<Settled, Unwritten>,
    replayed: &mut Replayed,
) -> Result<()> {
    let about = || format!("replay the journal {}", path.display());
    let mut unreadable = 0;
    let mut lines = BufReader::new(file).split(b'\n').peekable();
    while lines.peek().is_some() {
        let mut group = Vec::with_capacity(GROUP);
        for line in lines.by_ref().take(GROUP) {
            let line = line.with_context(about)?;
            match serde_json::from_slice::<Answer>(&line) {
                Ok(answer) => group.push(answer),
                Err(_) if line.is_empty() => {}
                Err(_) => unreadable += 1,
            }
        }
        replayed.settled.add(settle(group).map_err(|unwritten| unwritten.why.context(about()))?);
    }
    if unreadable == 0 {
        std::fs::remove_file(path).with_context(about)?;
    } else {
        // A power failure or a full disk cut a line short. What it said is lost, so that its target becomes unknown.
        let aside = path.with_extension("unreadable");
        std::fs::rename(path, &aside).with_context(about)?;
        log::warn!("{unreadable} lines of a journal could not be read; it is kept as {}", aside.display());
        replayed.unreadable += unreadable;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: u64) -> Answer {
        let line = format!(
            r#"{{"task":1,"id":{id},"token":"{}","in_doubt":false,"settlement":{{"sent":{{"receipt":"r \"{id}\""}}}}}}"#,
            Uuid::nil()
        );
        serde_json::from_str(&line).unwrap()
    }

    /// Replays and says which targets' answers came, and how it ended.
    fn replayed(dir: &Path, installation: Uuid) -> (Vec<u64>, Result<Replayed>) {
        let mut ids = Vec::new();
        let ended = replay(dir, installation, &mut |answers| {
            let id = |answer: &Answer| serde_json::to_value(answer).unwrap()["id"].as_u64().unwrap();
            ids.extend(answers.iter().map(id));
            Ok(Settled { written: answers.len() as u64, ..Settled::default() })
        });
        (ids, ended)
    }

    /// Replays what a dead run left. A program that another test starts right now has the file open, too, until it is started.
    fn replayed_in_the_end(dir: &Path, installation: Uuid) -> (Vec<u64>, Result<Replayed>) {
        for _ in 0..1000 {
            let done = replayed(dir, installation);
            if !done.0.is_empty() || done.1.is_err() {
                return done;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("the journal of a dead run stayed locked");
    }

    #[test]
    fn a_dead_runs_answers_are_replayed_once_and_a_live_runs_are_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let ours = Uuid::new_v4();
        let journal = Journal::create(dir.path(), ours).unwrap();
        let many: Vec<Answer> = (0..1201).map(answer).collect();
        journal.append(&many).unwrap();
        assert!(replayed(dir.path(), ours).0.is_empty(), "its run is alive");
        drop(journal);
        assert!(replayed(dir.path(), Uuid::new_v4()).0.is_empty(), "another installation's");
        let (ids, ended) = replayed_in_the_end(dir.path(), ours);
        assert_eq!(ids, (0..1201).collect::<Vec<_>>());
        assert_eq!(ended.unwrap().settled.written, 1201);
        assert!(replayed(dir.path(), ours).0.is_empty(), "removed");
    }

    #[test]
    fn a_journal_is_never_taken_from_a_run_that_has_just_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    replayed(dir.path(), Uuid::nil()).1.unwrap();
                }
            });
            let made: Vec<_> = (0..500).map(|_| Journal::create(dir.path(), Uuid::nil()).unwrap()).collect();
            let kept = made.iter().filter(|journal| journal.path.exists()).count();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(kept, 500);
        });
    }

    #[test]
    fn what_was_written_after_all_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::create(dir.path(), Uuid::nil()).unwrap();
        journal.append(&[answer(1), answer(2)]).unwrap();
        journal.written(2);
        assert_eq!(journal.finish().unwrap(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_database_that_still_cannot_take_them_keeps_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::create(dir.path(), Uuid::nil()).unwrap();
        journal.append(&[answer(1)]).unwrap();
        assert_eq!(journal.finish().unwrap(), 1);
        let mut refuse = |answers| Err(Unwritten { answers, why: anyhow::anyhow!("gone away") });
        let refused = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            replay(dir.path(), Uuid::nil(), &mut refuse).err()
        });
        assert!(format!("{:#}", refused.expect("still locked")).contains("gone away"));
        assert_eq!(replayed_in_the_end(dir.path(), Uuid::nil()).0, [1]);
    }

    #[test]
    fn a_line_cut_short_is_told_and_the_others_are_replayed() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::create(dir.path(), Uuid::nil()).unwrap();
        journal.append(&[answer(1), answer(2)]).unwrap();
        let path = journal.path.clone();
        drop(journal);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        let (ids, ended) = replayed_in_the_end(dir.path(), Uuid::nil());
        assert_eq!((ids, ended.unwrap().unreadable), (vec![1], 1));
        assert!(!path.exists() && path.with_extension("unreadable").exists());
    }
}
