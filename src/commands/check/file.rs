//! What an SQLite database said of itself, judged.

use std::io;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::host::FileSystem;
use super::{Finding, What, schema, unseen};
use crate::store::facts::FileFacts;
use crate::store::migrations::VERSION;
use crate::who;

pub(super) fn judge(facts: &FileFacts) -> Vec<Finding> {
    let path = facts.path.display();
    let mut findings = Vec::new();
    if facts.missing {
        findings.push(Finding::error(
            What::Database,
            format!("there is no {path}"),
            "run `batch-send migrate`",
        ));
        return findings;
    }
    findings
        .push(Finding::ok(What::Database, format!("SQLite at {path}, {} KiB", facts.bytes.div_ceil(1024))));
    findings.extend(unseen(&facts.unseen));
    findings.extend(facts.schema.map(|found| schema(found, facts.missing_tables.as_deref())));
    match facts.missing_indexes.as_slice() {
        [] if facts.schema == Some(VERSION) => {
            findings.push(Finding::ok(What::Indexes, "as `migrate` makes them"));
        }
        [] => {}
        missing => findings.push(Finding::error(
            What::Indexes,
            format!("not there: {}", missing.join(", ")),
            "make them as `batch-send migrate --print --from 0` shows",
        )),
    }
    if !facts.triggers.is_empty() {
        findings.push(triggers(&facts.triggers));
    }
    findings.push(match (may_write(&facts.path), FileSystem::holding(&facts.path)) {
        (Err(error), _) => Finding::error(
            What::File,
            format!("user {} may not write {path} and its directory: {error}", who::user()),
            "give both to this user: SQLite keeps two more files beside it",
        ),
        (Ok(()), Ok(kind)) => place(kind, facts),
        (Ok(()), Err(error)) => Finding::failed(What::File, &error.into()),
    });
    match &facts.damage {
        None => findings.push(Finding::ok(What::Integrity, "not looked at: the file is larger than 256 MiB")),
        Some(damage) if damage.is_empty() => {
            findings.push(Finding::ok(What::Integrity, "SQLite finds nothing wrong"))
        }
        Some(damage) => findings.push(Finding::error(
            What::Integrity,
            format!("the file is damaged: {}", damage.join("; ")),
            "stop cron, keep the file, and restore a backup as docs/runbook.md says",
        )),
    }
    findings
}

/// The file, and the directory for what SQLite keeps beside it.
fn may_write(path: &Path) -> io::Result<()> {
    accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    Ok(accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

pub(super) fn triggers(names: &[String]) -> Finding {
    Finding::warning(
        What::Triggers,
        format!("there are triggers on our tables: {}", names.join(", ")),
        "see that they are quick and never fail: they run inside each claim, begin and settle, and one that fails stops them all",
    )
}

fn place(kind: FileSystem, facts: &FileFacts) -> Finding {
    let mode = &facts.journal_mode;
    match kind {
        FileSystem::Network(name) => Finding::error(
            What::File,
            format!(
                "the database is on {name}: its locks and commits cannot be relied on there, and neither can \"never twice\""
            ),
            "put it on a disk of this host, or use a MySQL or MariaDB server",
        ),
        FileSystem::Memory(name) => Finding::warning(
            What::File,
            format!("the database is on {name}: a restart loses what was sent, and to whom"),
            "put it on a disk",
        ),
        FileSystem::Layer => Finding::warning(
            What::File,
            "the database is on a container's own layer: it is gone with the container",
            "put it on a volume",
        ),
        FileSystem::Disk(name) if mode == "wal" => Finding::ok(
            What::File,
            format!("on {name}, in WAL mode; each commit of ours is on disk before it counts"),
        ),
        FileSystem::Disk(name) => Finding::warning(
            What::File,
            format!(
                "on {name}, in {mode} mode: somebody has changed it, and readers stop runs until it is changed back"
            ),
            "the next run sets WAL mode again; let nothing else set another",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn a_database_of_one_host_belongs_on_its_disk() {
        let facts = FileFacts { journal_mode: "wal".into(), ..FileFacts::default() };
        for (kind, state) in [
            (FileSystem::Disk("ext4"), State::Ok),
            (FileSystem::Network("NFS"), State::Error),
            (FileSystem::Memory("tmpfs"), State::Warning),
            (FileSystem::Layer, State::Warning),
        ] {
            assert_eq!(place(kind, &facts).state, state, "{kind}");
        }
        let changed = FileFacts { journal_mode: "delete".into(), ..FileFacts::default() };
        assert_eq!(place(FileSystem::Disk("ext4"), &changed).state, State::Warning);
    }
}
