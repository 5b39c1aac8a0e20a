//! The real binary, driven from outside: one file per promise, each story on each database.
//!
//! Nothing of the product is linked in here. A story sets the scene (rows by plain SQL, an endpoint that
//! answers on cue), calls the binary as cron or a person would, breaks what it is about, and asks the rows and the
//! endpoint's ledger what became of it.

// A test reads its environment, looks at the clock and unwraps; the product does not.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)]

#[macro_use]
mod support;

mod answers;
mod applications;
mod bad_input;
mod check;
mod choosing;
mod closing;
mod completions;
mod crash;
mod database;
mod documents;
mod fairness;
mod idempotent;
mod journal;
mod logs;
mod man;
mod metrics;
mod notify;
mod operator;
mod overlap;
mod owners;
mod pace;
mod ping;
mod plans;
mod purge;
mod quiet;
mod report;
mod retrying;
mod runbook;
mod secrets;
mod signed;
mod smtp;
mod status;
mod stopped;
mod stopping;
mod suppression;
mod texts;
mod trying;
mod uncertain;
mod way_out;
mod wechat;
mod zones;
