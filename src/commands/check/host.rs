//! This host: who runs here, the directories of locks and journals, and what earlier runs left in them. Nothing is made.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Error;
use rustix::fs::{Access, AtFlags, CWD, accessat, statfs, statvfs};

use super::{Finding, What};
use crate::commands::run::lock_path;
use crate::config::Config;
use crate::store::Database;
use crate::{journal, lock, who};

/// Less than this, and a journal may find no room when it is needed most.
const LITTLE: u64 = 64 << 20;

pub(super) fn look(config: &Config, database: Option<&Database>) -> Vec<Finding> {
    let (state, locks) = (&config.state_dir, &config.lock_dir);
    let mut findings = vec![user(state)];
    findings.push(match directory(What::StateDir, state, "state_dir") {
        Ok(seen) => seen.of_journals(),
        Err(finding) => finding,
    });
    // By default they are one.
    if locks != state {
        findings.push(match directory(What::LockDir, locks, "lock_dir") {
            Ok(seen) => seen.of_locks(),
            Err(finding) => finding,
        });
    }
    if let Some(database) = database {
        let path = lock_path(locks, database);
        findings.push(match lock::probe(&path) {
            Ok(()) => Finding::ok(What::LockFile, path.display().to_string()),
            Err(refusal) => Finding::failed(What::LockFile, &Error::msg(refusal)),
        });
    }
    findings.push(match journal::left(state) {
        Err(error) => {
            Finding::failed(What::Journal, &error.context("cannot look at the journals in state_dir"))
        }
        Ok(left) => judge(left, state),
    });
    findings
}

fn judge(left: journal::Left, dir: &Path) -> Finding {
    let dir = dir.display();
    match left {
        journal::Left { unreadable: files @ 1.., .. } => Finding::warning(
            What::Journal,
            format!("{files} journals in {dir} have lines that cannot be read: their targets are unknown"),
            "compare `*.unreadable` with the provider's log, `batch-send resolve N --all --as VERDICT` them, then remove the files",
        ),
        journal::Left { answers: answers @ 1.., .. } => Finding::warning(
            What::Journal,
            format!("{answers} answers that the database did not take wait in {dir}"),
            "the next `batch-send run` on this host writes them; until then keep the directory",
        ),
        _ => Finding::ok(What::Journal, "no answer waits to be written"),
    }
}

fn user(state: &Path) -> Finding {
    let text = format!("{} on {}", who::user(), who::host());
    let owner = fs::metadata(state).map(|found| found.uid()).unwrap_or(0);
    if rustix::process::geteuid().is_root() && owner != 0 {
        let dir = state.display();
        return Finding::warning(
            What::User,
            format!("{text}, and {dir} is of uid {owner}: what holds for root need not hold for that user"),
            format!("check as the user that cron runs it as: {}", who::as_user(owner, "batch-send check")),
        );
    }
    Finding::ok(What::User, text)
}

/// What was seen of a directory that this user may write in.
struct Seen<'a> {
    what: What,
    key: &'static str,
    path: &'a Path,
    /// None: it will be made.
    found: Option<Metadata>,
    kind: FileSystem,
    free: u64,
}

fn directory<'a>(what: What, path: &'a Path, key: &'static str) -> Result<Seen<'a>, Finding> {
    let shown = path.display();
    let wrong = |why: String| {
        let way_out = format!("give that directory to this user, or set `{key}` to another");
        Finding::error(what, format!("cannot write in {shown} as user {}: {why}", who::user()), way_out)
    };
    let found = match fs::metadata(path) {
        Ok(found) if !found.is_dir() => return Err(wrong("it is no directory".into())),
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(wrong(error.to_string())),
    };
    // What is missing is made by the first run, in the nearest one that is there.
    let nearest: PathBuf = path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).into();
    let ways = Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, &nearest, ways, AtFlags::EACCESS)
        .map_err(|error| wrong(io::Error::from(error).to_string()))?;
    let look = || -> io::Result<(FileSystem, u64)> {
        let room = statvfs(&nearest)?;
        Ok((FileSystem::of(statfs(&nearest)?.f_type as u64), room.f_bavail.saturating_mul(room.f_frsize)))
    };
    let (kind, free) = look().map_err(|error| wrong(error.to_string()))?;
    Ok(Seen { what, key, path, found, kind, free })
}

impl Seen<'_> {
    fn of_journals(&self) -> Finding {
        let (shown, key) = (self.path.display(), self.key);
        // Where a symbolic link leads counts.
        let real = fs::canonicalize(self.path).unwrap_or_else(|_| self.path.to_owned());
        let fleeting = ["/tmp", "/var/tmp", "/dev/shm", "/run"].iter().any(|dir| real.starts_with(dir));
        match self.kind {
            FileSystem::Network(name) => Finding::warning(
                self.what,
                format!(
                    "{shown} is on {name}: neither locks nor a journal's way to the disk can be relied on there"
                ),
                format!("set `{key}` to a directory on a disk of this host"),
            ),
            FileSystem::Memory(name) => Finding::warning(
                self.what,
                format!(
                    "{shown} is on {name}: a journal would not survive a restart, and its targets would be unknown"
                ),
                format!("set `{key}` to a directory on a disk"),
            ),
            FileSystem::Layer => Finding::warning(
                self.what,
                format!("{shown} is on a container's own layer: a journal would be gone with the container"),
                format!("set `{key}` to a directory on a volume"),
            ),
            FileSystem::Disk(_) if fleeting => Finding::warning(
                self.what,
                format!("{shown} is emptied by cleaners or at a restart: a journal would not survive it"),
                format!("set `{key}` to a directory that stays, as /var/lib/batch-send"),
            ),
            FileSystem::Disk(_) => self.common(),
        }
    }

    fn of_locks(&self) -> Finding {
        match self.kind {
            FileSystem::Network(name) => Finding::warning(
                self.what,
                format!(
                    "{} is on {name}: a lock there may exclude nobody, or outlive its run",
                    self.path.display()
                ),
                format!("set `{}` to a directory of this host, as /run/batch-send", self.key),
            ),
            _ => self.common(),
        }
    }

    /// What holds of both.
    fn common(&self) -> Finding {
        let shown = self.path.display();
        let room = match self.free >> 20 {
            mib @ 0..10_240 => format!("{mib} MiB free"),
            mib => format!("{} GiB free", mib >> 10),
        };
        if self.free < LITTLE {
            let way_out = "make room: a run whose journal finds none cannot keep an answer that the database does not take";
            return Finding::warning(self.what, format!("{shown}: {room}"), way_out);
        }
        let Some(found) = &self.found else {
            return Finding::ok(
                self.what,
                format!("{shown}: will be made by the first run, {}, {room}", self.kind),
            );
        };
        let mode = found.mode() & 0o7777;
        if mode & 0o002 != 0 {
            return Finding::warning(
                self.what,
                format!(
                    "everybody may write in {shown} (mode {mode:04o}): whoever takes the lock's name stops all runs"
                ),
                format!("chmod 700 {shown}"),
            );
        }
        Finding::ok(
            self.what,
            format!("{shown}: {}, {room}, mode {mode:04o}, uid {}", self.kind, found.uid()),
        )
    }
}

/// What a directory is on, as far as locks and journals care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    Disk(&'static str),
    Memory(&'static str),
    /// Other hosts may be at the other end of it.
    Network(&'static str),
    /// The upper one of an overlay.
    Layer,
}

impl FileSystem {
    /// By the number that statfs(2) lists.
    fn of(magic: u64) -> Self {
        match magic & 0xffff_ffff {
            0x6969 => Self::Network("NFS"),
            0x517b | 0xff53_4d42 | 0xfe53_4d42 => Self::Network("SMB"),
            0x6573_5546 => Self::Network("FUSE"),
            0x0102_1997 => Self::Network("9P"),
            0x5346_414f | 0x6b41_4653 => Self::Network("AFS"),
            0x00c3_6400 => Self::Network("Ceph"),
            0x0bd0_0bd0 => Self::Network("Lustre"),
            0x7375_7245 => Self::Network("Coda"),
            0x0116_1970 => Self::Network("GFS2"),
            0x7461_636f => Self::Network("OCFS2"),
            0x4750_4653 => Self::Network("GPFS"),
            0x0102_1994 => Self::Memory("tmpfs"),
            0x8584_58f6 => Self::Memory("ramfs"),
            0x794c_7630 => Self::Layer,
            0xef53 => Self::Disk("ext4"),
            0x5846_5342 => Self::Disk("xfs"),
            0x9123_683e => Self::Disk("btrfs"),
            0x2fc1_2fc1 => Self::Disk("zfs"),
            0xf2f5_2010 => Self::Disk("f2fs"),
            _ => Self::Disk("a local disk"),
        }
    }

    /// Of the file system that holds `path`.
    pub(super) fn holding(path: &Path) -> io::Result<Self> {
        Ok(Self::of(statfs(path)?.f_type as u64))
    }
}

impl std::fmt::Display for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Disk(name) | Self::Memory(name) | Self::Network(name) => name,
            Self::Layer => "overlayfs",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn on(kind: FileSystem, free: u64) -> Seen<'static> {
        Seen {
            what: What::StateDir,
            key: "state_dir",
            path: Path::new("/var/lib/batch-send"),
            found: None,
            kind,
            free,
        }
    }

    #[test]
    fn file_systems_are_told_by_their_number() {
        for (magic, kind) in [
            (0x6969, FileSystem::Network("NFS")),
            (0xff53_4d42, FileSystem::Network("SMB")),
            (0xffff_ffff_fe53_4d42, FileSystem::Network("SMB")),
            (0x6573_5546, FileSystem::Network("FUSE")),
            (0x0102_1994, FileSystem::Memory("tmpfs")),
            (0x794c_7630, FileSystem::Layer),
            (0xef53, FileSystem::Disk("ext4")),
            (0x1234, FileSystem::Disk("a local disk")),
        ] {
            assert_eq!(FileSystem::of(magic), kind);
        }
        assert_eq!(FileSystem::holding(Path::new("/dev/shm")).unwrap(), FileSystem::Memory("tmpfs"));
    }

    #[test]
    fn a_journal_needs_a_disk_of_this_host_and_a_lock_only_this_host() {
        for (kind, journals, locks) in [
            (FileSystem::Disk("ext4"), State::Ok, State::Ok),
            (FileSystem::Memory("tmpfs"), State::Warning, State::Ok),
            (FileSystem::Network("NFS"), State::Warning, State::Warning),
            (FileSystem::Layer, State::Warning, State::Ok),
        ] {
            let seen = on(kind, GIB);
            assert_eq!((seen.of_journals().state, seen.of_locks().state), (journals, locks), "{kind}");
        }
        let emptied = Seen { path: Path::new("/tmp/state"), ..on(FileSystem::Disk("ext4"), GIB) };
        assert_eq!(emptied.of_journals().state, State::Warning);
        let full = on(FileSystem::Disk("ext4"), LITTLE - 1).of_journals();
        assert!(full.state == State::Warning && full.detail.ends_with("63 MiB free"), "{full:?}");
    }

    #[test]
    fn what_waits_in_a_journal_is_told() {
        let of = |answers, unreadable| judge(journal::Left { answers, unreadable }, Path::new("/state"));
        assert_eq!(of(0, 0).state, State::Ok);
        assert!(of(3, 0).state == State::Warning && of(3, 0).detail.starts_with("3 answers"));
        assert!(of(0, 1).state == State::Warning && of(3, 1).detail.contains("cannot be read"));
    }
}
