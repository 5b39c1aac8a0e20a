//! Prints the product's figures beside what they are compared with. It judges nothing and is no test: a figure says something
//! about the machine it was taken on, at a quiet time.
//!
//!     cargo bench --bench figures -- URL [file] [http] [smtp] [memory] [import] [purge] [idle] [claim] [rate] [status] [report] [told] [--rows N]
//!
//! URL is a database of a MySQL or MariaDB server (spoken to without TLS); the tables get names of their own and are dropped at
//! the end. Without a section, all are taken; `smtp` needs postfix's test programs. `--rows` is how many targets a section
//! uses in place of its own number. `idle` reads counters of the whole server, and `claim` its slow log (which takes an
//! administrator): nobody else may use it then. Interrupted, it leaves the tables (`figures_*`), and the slow log switched on.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what it is for")]
#![allow(clippy::disallowed_methods, reason = "the seams in clippy.toml are the product's")]

mod claim;
mod endpoint;
mod file;
mod http;
mod idle;
mod import;
mod limit;
mod memory;
mod page;
mod purge;
mod rate;
mod report;
mod site;
mod smtp;
mod status;
mod told;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

/// Takes its figures, with so many targets in place of its own number.
type Section = fn(url: &str, rows: Option<u64>) -> Result<()>;

const SECTIONS: &[(&str, Section)] = &[
    ("file", file::measure),
    ("http", http::measure),
    ("smtp", smtp::measure),
    ("memory", memory::measure),
    ("import", import::measure),
    ("purge", purge::measure),
    ("idle", idle::measure),
    ("claim", claim::measure),
    ("rate", rate::measure),
    ("status", status::measure),
    ("report", page::measure),
    ("told", told::measure),
];

struct Arguments {
    url: String,
    rows: Option<u64>,
    sections: Vec<(&'static str, Section)>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error:#}\nusage: cargo bench --bench figures -- URL [{}] [--rows N]", names("] ["));
            return ExitCode::from(2);
        }
    };
    let mut code = ExitCode::SUCCESS;
    for (name, measure) in arguments.sections {
        if let Err(error) = measure(&arguments.url, arguments.rows) {
            eprintln!("{name}: {error:#}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

impl Arguments {
    fn read(given: impl Iterator<Item = String>) -> Result<Self> {
        // Cargo says `--bench` to every bench.
        let mut given = given.filter(|argument| argument != "--bench");
        let url = given.next().context("the URL of a database is missing")?;
        let mut rows = None;
        let mut sections = Vec::new();
        while let Some(argument) = given.next() {
            if argument == "--rows" {
                rows = Some(
                    given
                        .next()
                        .context("--rows takes a number")?
                        .parse()
                        .context("--rows takes a number")?,
                );
                continue;
            }
            match SECTIONS.iter().find(|(name, _)| *name == argument) {
                Some(section) => sections.push(*section),
                None => bail!("there is no section {argument}: {}", names(", ")),
            }
        }
        if sections.is_empty() {
            sections = SECTIONS.to_vec();
        }
        Ok(Self { url, rows, sections })
    }
}

fn names(between: &str) -> String {
    SECTIONS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(between)
}
