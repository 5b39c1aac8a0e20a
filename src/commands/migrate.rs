//! `migrate`: brings the tables to this version, says whether they are, or prints the statements for somebody else to run.

use std::io::Write;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;

use crate::cli::MigrateArgs;
use crate::exit::Exit;
use crate::store::Desk;
use crate::store::migrations::VERSION;
use crate::trouble::Trouble;

/// How long live leases are waited for: a run that begins nothing more has let go by then.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn run(args: &MigrateArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    if args.check {
        let version = store.schema()?.version;
        if args.json {
            writeln!(out, "{}", json!({ "from": version, "to": VERSION, "applied": [] }))?;
        }
        at_our_version(store)?;
        return Ok(Exit::Done);
    }
    let migrated = store.migrate(PATIENCE)?;
    let (from, to, applied) = (migrated.from, migrated.to, migrated.applied);
    if args.json {
        writeln!(out, "{}", json!({ "from": from, "to": to, "applied": applied }))?;
    } else if applied.is_empty() {
        writeln!(out, "the tables are at version {to}")?;
    } else {
        writeln!(out, "the tables went from version {from} to {to}: {}", applied.join(", "))?;
    }
    Ok(Exit::Done)
}

/// Every command but `migrate` begins with this. Errors: the tables are at another version.
pub fn at_our_version(store: &mut dyn Desk) -> Result<()> {
    match store.schema()?.version {
        VERSION => Ok(()),
        0 => bail!(Trouble::usage("the database has no tables of ours yet: use `batch-send migrate`")),
        older if older < VERSION => bail!(Trouble::usage(format!(
            "the tables are at version {older}, and this batch-send needs {VERSION}: use `batch-send migrate`"
        ))),
        newer => bail!(Trouble::usage(format!(
            "the tables are at version {newer}, and this batch-send knows {VERSION}: use a newer batch-send"
        ))),
    }
}
