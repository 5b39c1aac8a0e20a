//! What a database says of itself when `check` asks: facts, as plain as they come. What they mean is judged in commands/check/,
//! without a database. Nothing is written to find them out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;

pub enum Facts {
    Server(Box<ServerFacts>),
    File(Box<FileFacts>),
}

impl Facts {
    /// The database's clock.
    pub fn now(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Server(facts) => facts.now,
            Self::File(facts) => facts.now,
        }
    }

    /// The channels of tasks that are not ended, and how many tasks each has.
    pub fn channels(&self) -> &BTreeMap<String, u64> {
        match self {
            Self::Server(facts) => &facts.channels,
            Self::File(facts) => &facts.channels,
        }
    }
}

/// Of a server that speaks MySQL's protocol.
#[derive(Clone, Debug, Default)]
pub struct ServerFacts {
    /// Where `database_url` says it is.
    pub place: String,
    pub database: String,
    pub claim: ClaimForm,
    /// In the server's own words.
    pub version: String,
    pub flavour: Flavour,
    pub number: (u32, u32, u32),
    /// By name, in a session of ours.
    pub variables: BTreeMap<String, String>,
    /// Host name and port as the server knows them.
    pub server: String,
    /// Who answered on two connections made one after the other.
    pub answered: Vec<String>,
    /// The number of the session is not the one that was said when it began: somebody stands in between.
    pub relayed: bool,
    pub now: Option<DateTime<Utc>>,
    /// Milliseconds by which this host's clock is ahead of the database's, the way there and back not counted.
    pub ahead: i64,
    /// Changes that are kept for somebody who still looks at an old state. None: this user may not ask.
    pub history: Option<u64>,
    pub user: String,
    /// None: the server does not tell.
    pub grants: Option<Vec<Grant>>,
    /// 0: not migrated yet. None: it cannot be read.
    pub schema: Option<u32>,
    /// The server that the tables were made on.
    pub made_on: Option<String>,
    /// By full name.
    pub tables: BTreeMap<String, TableFacts>,
    pub plans: Vec<Plan>,
    pub channels: BTreeMap<String, u64>,
    /// What could not be looked at, and why.
    pub unseen: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavour {
    #[default]
    MySql,
    Percona,
    MariaDb,
    Aurora,
    TiDb,
}

#[derive(Clone, Debug, Default)]
pub struct TableFacts {
    pub engine: String,
    /// Character set and collation of each column that has them.
    pub columns: BTreeMap<String, Option<(String, String)>>,
    /// Columns of each index, as in `task_id, status`, and whether it is unique.
    pub indexes: BTreeMap<String, (String, bool)>,
    pub triggers: Vec<String>,
    /// Foreign keys from it or to it.
    pub foreign_keys: Vec<String>,
}

/// What a user may do, as far as it touches our tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// In capitals; `ALL PRIVILEGES` is all of them.
    pub privileges: Vec<String>,
    pub on: On,
    /// It may be given on to others.
    pub grantable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum On {
    Everything,
    Database,
    /// By full name.
    Table(String),
}

/// How the server would find the rows of one of our statements.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the statement is for.
    pub about: &'static str,
    /// The table that must not be walked through, as the statement calls it.
    pub table: String,
    /// Each of these does.
    pub indexes: &'static [&'static str],
    pub steps: Result<Vec<PlanStep>, String>,
}

#[derive(Clone, Debug, Default)]
pub struct PlanStep {
    pub table: String,
    /// `ALL` and `index` walk through everything.
    pub access: String,
    pub index: String,
    /// As the server estimates them.
    pub rows: u64,
    pub extra: String,
}

/// Of an SQLite database.
#[derive(Clone, Debug, Default)]
pub struct FileFacts {
    pub path: PathBuf,
    /// Not made yet.
    pub missing: bool,
    pub bytes: u64,
    pub journal_mode: String,
    pub now: Option<DateTime<Utc>>,
    pub schema: Option<u32>,
    /// What SQLite finds wrong with the file. None: too large to look.
    pub damage: Option<Vec<String>>,
    /// Where no version is written, though some of our tables are there: those that are not.
    pub missing_tables: Option<Vec<String>>,
    pub missing_indexes: Vec<String>,
    pub triggers: Vec<String>,
    pub channels: BTreeMap<String, u64>,
    pub unseen: Vec<String>,
}
