//! Flags, environment and file become one validated `Config`. Every default and limit of the configuration is here,
//! and this is the only file that reads the environment. What a channel needs beyond the common keys is declared in
//! its sender's file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::LogFormat;
use crate::message::Template;
use crate::sender::{exec, file, http};
use crate::settlement::Policy;
use crate::store::ClaimForm;

pub struct Config {
    pub database_url: String,
    pub table_prefix: String,
    pub lock_dir: PathBuf,
    pub state_dir: PathBuf,
    pub run: Run,
    pub channels: BTreeMap<String, Channel>,
    pub log_format: LogFormat,
}

/// `[run]`.
#[derive(Clone, Debug)]
pub struct Run {
    /// For how long a run begins new targets (1 s - 24 h).
    pub budget: Duration,
    /// How long a lease lasts unless renewed (3 s or more).
    pub lease: Duration,
    /// How long a task keeps a lane when others wait.
    pub turn: Duration,
    /// Tasks served at once (1-64).
    pub lanes: usize,
    /// Largest claim (1-5000).
    pub batch_size: usize,
    pub claim: ClaimForm,
}

/// `[channel.NAME]`: the keys that every kind has, and the kind's own.
pub struct Channel {
    pub name: String,
    /// Of the whole exchange (at most 10 minutes).
    pub timeout: Duration,
    /// Sends in flight at once, per task (1-256).
    pub concurrency: usize,
    /// How many targets more than idle senders may be begun. Faster on a fast channel, and a crash leaves as many more unknown.
    pub ahead: usize,
    pub policy: Policy,
    pub body: Option<Template>,
    pub kind: Kind,
}

pub enum Kind {
    Http(http::Settings),
    Exec(exec::Settings),
    File(file::Settings),
}
