//! From the subcommand to its file: opens the configuration and the database, and hands them over. What the operator types is
//! in commands/, one file each.

mod ask;
mod check;
mod choose;
mod completions;
mod demo;
mod import;
mod man;
mod migrate;
mod output;
mod purge;
mod report;
mod resolve;
mod retry;
mod run;
mod screen;
mod status;
mod suppress;
mod table;
mod targets;
mod task;
mod trial;

#[cfg(test)]
mod tests;

use anyhow::{Error, Result};
use uuid::Uuid;

use self::screen::Screen;
use crate::cli::{Cli, Command};
use crate::config::Config;
use crate::exit::Exit;
use crate::store::{Database, Desk, Store, migrations};
use crate::target::TargetId;
use crate::task::{Task, TaskId};
use crate::trouble::Trouble;

pub fn run(cli: &Cli) -> Result<Exit> {
    match &cli.command {
        Some(Command::Check(args)) => {
            return output::to_stdout(|out| check::run(args, &cli.global, out));
        }
        Some(Command::Demo(args)) => return demo::run(args, &cli.global),
        Some(Command::Completions(args)) => return output::to_stdout(|out| completions::run(args, out)),
        Some(Command::Man(args)) => return man::run(args),
        _ => {}
    }
    let run_args = match &cli.command {
        Some(Command::Run(args)) => args,
        _ => &cli.run,
    };
    let config = Config::load(&cli.global, run_args.budget)?;
    let database = Database::open(&config.database_url, &config.table_prefix, config.run.claim)?;
    if let Some(Command::Migrate(args)) = &cli.command {
        return output::to_stdout(|out| migrate::run(args, &config, &database, out));
    }
    let opened = || -> Result<Box<dyn Store>> {
        let mut store = database.store()?;
        installation(&mut *store)?;
        Ok(store)
    };
    output::to_stdout(|out| match &cli.command {
        None | Some(Command::Run(_)) => run::run(&config, &database, run_args, out),
        Some(Command::Task(command)) => {
            task::run(command, &config, &mut *opened()?, &Screen::of_stdout(), out)
        }
        Some(Command::Status(args)) => status::run(args, &config, &mut *opened()?, &Screen::of_stdout(), out),
        Some(Command::Targets(args)) => targets::run(args, &mut *opened()?, out),
        Some(Command::Report(args)) => report::run(args, &config, &mut *opened()?, out),
        Some(Command::Resolve(args)) => resolve::run(args, &mut *opened()?, out),
        Some(Command::Retry(args)) => retry::run(args, &mut *opened()?, out),
        Some(Command::Purge(args)) => purge::run(args, &mut *opened()?, out),
        Some(Command::Suppress(command)) => suppress::run(command, &config, &mut *opened()?, out),
        Some(
            Command::Migrate(_)
            | Command::Check(_)
            | Command::Demo(_)
            | Command::Completions(_)
            | Command::Man(_),
        ) => {
            unreachable!("handled above")
        }
    })
}

/// Whose database this is, when its tables are at our version; else the sentence that says what to do.
fn installation(store: &mut dyn Desk) -> Result<Uuid> {
    let schema = store.schema()?;
    let (found, ours) = (schema.version, migrations::VERSION);
    let sentence = match schema.installation {
        Some(installation) if found == ours => return Ok(installation),
        _ if found == 0 => "the tables are not there yet: run `batch-send migrate`".to_owned(),
        _ if found > ours => {
            format!(
                "the tables are at version {found}, this batch-send knows {ours}: install a newer batch-send"
            )
        }
        _ => format!(
            "the tables are at version {found}, this batch-send needs {ours}: run `batch-send migrate`"
        ),
    };
    Err(Error::new(Trouble::usage(sentence)))
}

fn no_such_channel(task: &Task) -> String {
    let Task { id, channel, .. } = task;
    format!(
        "task {id} uses channel {channel}, which this host's configuration does not have: add [channel.{channel}]"
    )
}

fn no_such_task(id: TaskId) -> Error {
    Error::new(Trouble::usage(format!("there is no task {id}: `batch-send task list` shows those there are")))
}

fn no_such_target(task: TaskId, id: TargetId) -> Error {
    Error::new(Trouble::usage(format!(
        "task {task} has no target {id}: `batch-send targets {task}` shows those it has"
    )))
}
