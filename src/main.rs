//! batch-send: a table of contents. Parse, start the logger, run the command, turn the result into an exit code.

mod cli;
mod config;
mod delivery;
mod exit;
mod journal;
mod lock;
mod message;
mod moment;
mod sender;
mod settlement;
mod stop;
mod store;
mod target;
mod task;
mod trouble;

fn main() {}
