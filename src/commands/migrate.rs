//! `migrate`: brings the tables to this version, says whether they are, or prints the statements for somebody else to run.

use std::io::Write;
use std::time::Duration;

use anyhow::{Error, Result};
use serde_json::json;

use super::installation;
use crate::cli::MigrateArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::store::Database;
use crate::store::migrations::{VERSION, script};

/// How long live leases are waited for: most runs end within their minute.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn run(args: &MigrateArgs, config: &Config, database: &Database, out: &mut dyn Write) -> Result<Exit> {
    if args.print {
        let sqlite = matches!(database, Database::Sqlite(_));
        let from = args.from.map_or_else(|| Ok(database.store()?.schema()?.version), Ok::<_, Error>)?;
        for statement in script(sqlite, &config.table_prefix, from) {
            writeln!(out, "{statement};")?;
        }
        return Ok(Exit::Done);
    }
    let mut store = database.store()?;
    if args.check {
        if args.json {
            let from = store.schema()?.version;
            writeln!(out, "{}", json!({ "from": from, "to": VERSION, "applied": [] }))?;
        }
        installation(&mut *store)?;
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
