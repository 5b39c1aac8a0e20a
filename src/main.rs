//! batch-send: a table of contents. Parse, start the logger, run the command, turn the result into an exit code.

mod cli;
mod commands;
mod config;
mod course;
mod delivery;
mod exit;
mod journal;
mod lock;
mod logger;
mod mask;
mod message;
mod metrics;
mod moment;
mod notify;
mod owner;
mod pace;
mod patience;
mod ping;
mod replace;
mod sender;
mod settlement;
mod stop;
mod store;
mod suppression;
mod target;
mod task;
mod trouble;
mod who;
mod window;

use std::process::ExitCode;

use clap::Parser;
use uuid::Uuid;

use crate::cli::{Cli, LogFormat};
use crate::exit::Exit;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(misplaced) = cli.check_placement() {
        misplaced.exit();
    }
    let format = config::log_format(&cli.global);
    let run = cli.is_run().then(Uuid::new_v4);
    logger::start(cli.global.verbose, cli.global.quiet, *format.as_ref().unwrap_or(&LogFormat::Text), run);
    let ended = format.and_then(|_| commands::run(&cli));
    ended
        .unwrap_or_else(|error| {
            log::error!("{error:#}");
            Exit::of(&error)
        })
        .into()
}
