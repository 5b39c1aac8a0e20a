//! The lock of the cron run on this host: one flock, so that a minute that finds the last one still at work leaves
//! quietly. It saves wasted work; "never twice" does not rest on it. The file is never unlinked (whoever opened it before
//! would lock a file that nobody else sees), and its text is for people.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result};
use fs2::FileExt;
use rustix::fs::OFlags;

use crate::moment::Moment;
use crate::owner;
use crate::trouble::Trouble;

/// Held until dropped, or until the process ends in whatever way.
#[must_use]
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

#[must_use]
#[derive(Debug)]
pub enum Locking {
    Ours(RunLock),
    Busy(Option<Holder>),
}

/// What the file says of who holds it.
#[derive(Debug, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    pub since: Moment,
    /// The end that it allowed itself. A holder past it is stuck.
    pub end: Moment,
}

impl RunLock {
    /// Tries once. `end`: when this run must be over.
    pub fn acquire(path: &Path, end: Moment) -> Result<Locking> {
        loop {
            let mut file = open(path)?;
            match file.try_lock_exclusive() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Locking::Busy(Holder::read(file)));
                }
                Err(error) => return Err(error).with_context(|| format!("lock {}", path.display())),
            }
            // A cleaner of old files may have unlinked it between open and lock: then this lock excludes nobody.
            let ours = file.metadata().with_context(|| format!("look at lock file {}", path.display()))?;
            match std::fs::metadata(path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {}
                _ => continue,
            }
            let text = format!("{} {} {}\n", std::process::id(), Moment::now().seconds(), end.seconds());
            file.set_len(0)
                .and_then(|()| file.seek(SeekFrom::Start(0)))
                .and_then(|_| file.write_all(text.as_bytes()))
                .with_context(|| format!("write lock file {}", path.display()))?;
            return Ok(Locking::Ours(Self { _file: file }));
        }
    }
}

impl Holder {
    /// `None`: it has not written it yet.
    fn read(mut file: File) -> Option<Self> {
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        let mut numbers = text.split_whitespace();
        Some(Self {
            pid: numbers.next()?.parse().ok()?,
            since: Moment::at_seconds(numbers.next()?.parse().ok()?),
            end: Moment::at_seconds(numbers.next()?.parse().ok()?),
        })
    }
}

/// Whether a run of this user could take it: it is not there yet, or can be opened. Makes and locks nothing.
pub fn probe(path: &Path) -> Result<(), String> {
    match options().open(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(refusal(path, &error)),
        _ => Ok(()),
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32)
        .mode(0o600);
    options
}

fn open(path: &Path) -> Result<File> {
    owner::open(&options(), path).map_err(|error| Trouble::usage(refusal(path, &error)).into())
}

/// Why the file cannot be opened, and the way out.
fn refusal(path: &Path, error: &io::Error) -> String {
    let file = path.display();
    if path.is_symlink() {
        return format!(
            "lock file {file} is a symbolic link, which is not followed: remove it, or set another lock_dir"
        );
    }
    match owner::of_another(path, error) {
        Some(sentence) => format!("lock file {sentence}"),
        None => format!(
            "lock file {file} cannot be opened or made ({error}): give this user the file and its directory, or set another lock_dir"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Moment {
        Moment::now() + Duration::from_secs(60)
    }

    #[test]
    fn the_second_is_told_who_holds_it_and_gets_it_after() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.lock");
        let Locking::Ours(first) = RunLock::acquire(&path, soon()).unwrap() else { panic!("not ours") };
        let Locking::Busy(Some(holder)) = RunLock::acquire(&path, soon()).unwrap() else {
            panic!("not busy")
        };
        assert_eq!(holder.pid, std::process::id());
        assert!(!holder.end.passed() && holder.since <= Moment::now());
        drop(first);
        // A program that another test starts right now has the file open, too, until it is started.
        let patience = soon();
        while !matches!(RunLock::acquire(&path, soon()).unwrap(), Locking::Ours(_)) {
            assert!(!patience.passed(), "still locked");
        }
        assert!(path.exists(), "the file stays");
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.lock");
        std::fs::write(dir.path().join("victim"), "precious").unwrap();
        std::os::unix::fs::symlink(dir.path().join("victim"), &path).unwrap();
        let error = RunLock::acquire(&path, soon()).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error:#}");
        assert_eq!(std::fs::read_to_string(dir.path().join("victim")).unwrap(), "precious");
    }

    #[test]
    fn an_unlinked_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.lock");
        let Locking::Ours(_first) = RunLock::acquire(&path, soon()).unwrap() else { panic!("not ours") };
        std::fs::remove_file(&path).unwrap();
        // Nothing can be done for the first; the second and third must exclude each other.
        let Locking::Ours(_second) = RunLock::acquire(&path, soon()).unwrap() else { panic!("not ours") };
        assert!(matches!(RunLock::acquire(&path, soon()).unwrap(), Locking::Busy(_)));
    }
}
