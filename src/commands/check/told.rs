//! Whom a run tells what it does: the log file, the metrics file, the program of `[notify]`, the service that is pinged. None
//! of them stops a run, so that what would not work is a warning; but a setting that each run refuses is an error. Nothing is
//! made, started or asked.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use uuid::Uuid;

use super::{Finding, What};
use crate::config::Told;
use crate::who;

pub(super) fn look(told: &Told) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(file) = &told.log_file {
        findings.push(judge(What::LogFile, log_file(file), "", || {
            "make its directory, give it to this user, or set `log_file` to another: runs go on, and what they do is not kept".into()
        }));
    }
    if let Some(file) = &told.metrics_file {
        findings.push(judge(What::MetricsFile, metrics_file(file), "", || {
            "make that directory, let this user write in it, or set `metrics_file` to another: runs go on, and nobody is shown \
             what they count"
                .into()
        }));
    }
    match told.notify(Uuid::nil()) {
        Ok(None) => {}
        Ok(Some(notify)) => findings.push(judge(What::Notify, notify.probe(), "", || {
            "correct `command` in [notify], or make it executable for this user: until then nobody is told".into()
        })),
        Err(error) => findings.push(Finding::failed(What::Notify, &error)),
    }
    findings
}

/// A connection to the service, which may take seconds. None: nothing is pinged.
pub(super) fn ping(told: &Told) -> Option<Finding> {
    Some(match told.ping(Uuid::nil()) {
        Ok(ping) => judge(What::Ping, ping?.probe(), "the service that `ping_url` names: ", || {
            "correct `ping_url`, or see to the network and the service: it takes each run for one that did not come".into()
        }),
        Err(error) => Finding::failed(What::Ping, &error),
    })
}

fn judge(what: What, seen: Result<String, String>, of: &str, way_out: impl FnOnce() -> String) -> Finding {
    match seen {
        Ok(seen) => Finding::ok(what, format!("{of}{seen}")),
        Err(why) => Finding::warning(what, format!("{of}{why}"), way_out()),
    }
}

/// Whether a run could append to it, or make it.
fn log_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(format!("{shown} is a directory")),
        Ok(_) => may(path, Access::WRITE_OK, path).map(|()| format!("{shown} can be appended to")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            may_make(path).map(|()| format!("{shown} will be made by the first run"))
        }
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

/// Whether a run could put a new one in its place.
fn metrics_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    may_make(path)?;
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(format!("{shown} is a directory")),
        Ok(_) => Ok(format!("{shown} can be replaced")),
        Err(_) => Ok(format!("{shown} will be made by the first run")),
    }
}

fn may_make(path: &Path) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    may(folder, Access::WRITE_OK | Access::EXEC_OK, path)
}

fn may(what: &Path, access: Access, of: &Path) -> Result<(), String> {
    accessat(CWD, what, access, AtFlags::EACCESS).map_err(|error| {
        let (user, error) = (who::user(), io::Error::from(error));
        format!("user {user} cannot write {}: {}: {error}", of.display(), what.display())
    })
}
