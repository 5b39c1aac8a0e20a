//! Whose the files are that we make. What root makes by hand in a directory that belongs to another user (cron's) is given to
//! that user, who would find it closed otherwise, at the very moment it is made. Whoever makes a file in `state_dir` or
//! `lock_dir`, a log, metrics, spool or SQLite file makes it here. Directories are not given away: mkdir hands nothing back by
//! which one could be certain of giving away that one. Nor is anything that is there already.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::who;

const WORLD_WRITABLE: u32 = 0o002;

/// Makes a file that is not there yet. No link is followed: O_EXCL.
pub fn make(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.clone().create_new(true).open(path)?;
    if let Some((uid, gid)) = giving_to(path)? {
        fchown(&file, Some(uid), Some(gid))?;
    }
    Ok(file)
}

/// Opens a file, or makes it. Without O_CREAT first: in a sticky directory the kernel refuses to O_CREAT a file of another user, even
/// to root. Links are followed, unless `options` forbid it, but for root where that other user could have laid them: it would write to
/// files that are root's alone.
pub fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let opened = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => make(options, path),
        opened => opened,
    };
    let file = match opened {
        // Another process has made it just now, or a link leads nowhere.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if giving_to(path)?.is_some() {
                options
                    .open(path)
                    .map_err(|error| if error.kind() == ErrorKind::NotFound { laid() } else { error })
            } else {
                options.clone().create(true).open(path)
            }
        }
        opened => opened,
    }?;
    if giving_to(path)?.is_some() {
        // Nothing is written yet, and what was opened is what counts: the name may lead elsewhere by now.
        let (there, ours) = (fs::symlink_metadata(path)?, file.metadata()?);
        if (there.dev(), there.ino()) != (ours.dev(), ours.ino()) {
            return Err(laid());
        }
    }
    Ok(file)
}

/// Whom root gives what it makes there: the owner and the group of the directory.
fn giving_to(path: &Path) -> io::Result<Option<(u32, u32)>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = fs::metadata(folder)?;
    let theirs = folder.uid() != 0 && folder.mode() & WORLD_WRITABLE == 0;
    Ok(theirs.then_some((folder.uid(), folder.gid())))
}

fn laid() -> io::Error {
    io::Error::other(
        "a symbolic link, which root does not follow in another user's directory: name the file itself",
    )
}

/// Why a file that is there cannot be opened, if that is because another user left it, and the way out.
pub fn of_another(path: &Path, error: &io::Error) -> Option<String> {
    (error.kind() == ErrorKind::PermissionDenied).then(|| left_by_another(path)).flatten()
}

/// A file that another user owns: whose it is, and the way to give it to this one.
pub fn left_by_another(path: &Path) -> Option<String> {
    let real: PathBuf = path.canonicalize().ok()?;
    let uid = fs::metadata(&real).ok()?.uid();
    let file = real.display();
    (uid != geteuid().as_raw()).then(|| {
        format!(
            "{file} belongs to {}: as root, give it to this user with `chown {} {file}`",
            who::name(uid),
            who::user()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    const SOMEBODY: u32 = 4711;

    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.write(true);
        options
    }

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    #[allow(clippy::print_stderr)]
    fn what_root_makes_belongs_to_whom_the_directory_belongs() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can give a file away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (theirs, open_to_all) = (dir.path().join("theirs"), dir.path().join("all"));
        for folder in [&theirs, &open_to_all] {
            fs::create_dir(folder).unwrap();
            chown(folder, Some(SOMEBODY), None).unwrap();
        }
        fs::set_permissions(&open_to_all, fs::Permissions::from_mode(0o1777)).unwrap();
        for (path, expected) in
            [(theirs.join("a"), SOMEBODY), (open_to_all.join("a"), 0), (dir.path().join("a"), 0)]
        {
            open(&options(), &path).unwrap();
            assert_eq!(owner(&path), expected, "{}", path.display());
        }
        // What is there stays whose it is.
        chown(theirs.join("a"), Some(0), None).unwrap();
        open(&options(), &theirs.join("a")).unwrap();
        assert_eq!(owner(&theirs.join("a")), 0);
        // Links are followed where root has laid them.
        for (folder, follows) in [(&theirs, false), (&dir.path().to_owned(), true)] {
            symlink(dir.path().join("a"), folder.join("link")).unwrap();
            symlink(dir.path().join("else"), folder.join("nowhere")).unwrap();
            for name in ["link", "nowhere"] {
                let opened = open(&options(), &folder.join(name));
                assert_eq!(opened.is_ok(), follows, "{name}: {opened:?}");
            }
            assert_eq!(dir.path().join("else").exists(), follows);
        }
    }
}
