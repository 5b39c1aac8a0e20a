//! batch-send: a table of contents. Parse, start the logger, run the command, turn the result into an exit code.

mod cli;
mod commands;
mod config;
mod exit;
mod message;
mod moment;
mod sender;
mod settlement;
mod store;
mod target;
mod task;
mod trouble;

fn main() {}
