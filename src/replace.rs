//! A file that is replaced whole: whoever reads it meanwhile finds the old text or the new one. What is in it is its writer's affair.

use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use uuid::Uuid;

use crate::owner;

/// Who may read the new file.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// So, whatever the umask and the old file say.
    Always(u32),
    /// So, less the umask, if no file is there; else as the old one.
    AtFirst(u32),
}

/// Whole, or not at all. `on_disk`: only once a failure of the power cannot undo it, which may take long on a busy disk.
pub fn replace(path: &Path, text: &[u8], mode: Mode, on_disk: bool) -> io::Result<()> {
    let old = || fs::metadata(path).ok().map(|old| old.permissions().mode() & 0o7777);
    let (at_first, certainly) = match mode {
        Mode::Always(mode) => (mode, Some(mode)),
        Mode::AtFirst(mode) => (mode, old()),
    };
    // A dot in front, and nothing behind that a collector of files (node_exporter's) reads.
    let mut beside = OsString::from(".");
    beside.push(path.file_name().unwrap_or_default());
    beside.push(format!(".{}", Uuid::new_v4().simple()));
    let beside = path.with_file_name(beside);
    let written = owner::make(OpenOptions::new().write(true).mode(at_first), &beside).and_then(|mut file| {
        if let Some(mode) = certainly {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.write_all(text)?;
        if on_disk {
            file.sync_all()?;
        }
        fs::rename(&beside, path)
    });
    if written.is_err() {
        // The error itself is what there is to tell.
        let _ = fs::remove_file(&beside);
    }
    written
}
