//! `man`: the manual pages, made from the definition of the commands, and what a definition does not say: exit codes,
//! variables and files. Asks for neither a configuration nor a database.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::cli::{Cli, ManArgs};
use crate::exit::Exit;
use crate::trouble::Trouble;

const EXITS: [(Exit, &str); 5] = [
    (Exit::Done, "It did its duty; nothing due, and another run at work on this host, included."),
    (Exit::Trouble, "It could not do its duty."),
    (Exit::Usage, "The command line, the configuration or the set-up is wrong."),
    (
        Exit::ForAPerson,
        "It did its duty and left something for a person: targets became unknown, a task was paused; status --fail-if: \
         something of it is true.",
    ),
    (
        Exit::TryLater,
        "Try again later: the database is away, or another run holds the task that was asked for.",
    ),
];

const VARIABLES: [(&str, &str); 5] = [
    ("BATCH_SEND_CONFIG", "The configuration file. --config goes before it."),
    (
        "BATCH_SEND_DATABASE_URL",
        "The database, before what the configuration says. --database-url goes before it.",
    ),
    ("BATCH_SEND_LOG_FORMAT", "The form of the lines on stderr. --log-format goes before it."),
    (
        "BATCH_SEND_BUDGET",
        "For how long a run begins new targets, before what the configuration says. --budget goes before it.",
    ),
    ("NAME", "What ${NAME} in the configuration stands for, whatever the name."),
];

const FILES: [(&str, &str); 3] = [
    ("/etc/batch-send/config.toml", "The configuration, unless another is named. README.md lists its keys."),
    (
        "/var/lib/batch-send",
        "Unless state_dir of the configuration names another: the lock file of this host's runs, journals of answers \
         that no database has taken yet, and the counters of metrics_file. It belongs to the user that cron runs batch-send as; \
         what root makes in it by hand is given to that user. On a disk that is there after a reboot.",
    ),
    (
        "/etc/batch-send/environment",
        "Of the Debian package: lines of NAME=value, for ${NAME} in the configuration when systemd starts a run. A crontab has its own.",
    ),
];

pub fn run(args: &ManArgs) -> Result<Exit> {
    let dir = &args.dir;
    fs::create_dir_all(dir).map_err(|error| {
        Trouble::usage(format!("cannot make the directory {}: {error}; name another", dir.display()))
    })?;
    let mut whole = Cli::command();
    whole.build();
    let pages = write(&whole, None, dir);
    pages.with_context(|| format!("write manual pages in {}", dir.display()))?;
    Ok(Exit::Done)
}

/// The page of a command, and those of its subcommands.
fn write(command: &clap::Command, parent: Option<&str>, dir: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let page = Man::new(command.clone()).source(concat!("batch-send ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    let mut synopsis = Vec::new();
    page.render_synopsis_section(&mut synopsis)?;
    text.extend(with_values(command, String::from_utf8(synopsis)?).into_bytes());
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    match parent {
        None => {
            let exits = EXITS.map(|(exit, means)| (bold(exit.number().to_string()), means));
            list(&mut rest, "EXIT STATUS", exits);
            list(&mut rest, "ENVIRONMENT", VARIABLES.map(|(name, means)| (bold(name), means)));
            list(&mut rest, "FILES", FILES.map(|(path, means)| (italic(path), means)));
            see_also(&mut rest, &[("crontab", "5"), ("systemd.timer", "5")]);
        }
        Some("batch-send") => see_also(&mut rest, &[("batch-send", "1")]),
        Some(parent) => see_also(&mut rest, &[("batch-send", "1"), (parent, "1")]),
    }
    rest.to_writer(&mut text)?;
    fs::write(dir.join(format!("{name}.1")), text)?;
    command.get_subcommands().try_for_each(|inner| write(inner, Some(name), dir))
}

/// A synopsis, in which each option that takes a value shows it.
fn with_values(command: &clap::Command, mut synopsis: String) -> String {
    for option in command.get_opts() {
        if let (Some(long), Some([name, ..])) = (option.get_long(), option.get_value_names()) {
            let bold = format!("\\fB\\-\\-{}\\fR", long.replace('-', "\\-"));
            synopsis = synopsis.replace(&format!("{bold}]"), &format!("{bold} \\fI<{name}>\\fR]"));
        }
    }
    synopsis
}

fn list<const N: usize>(page: &mut Roff, heading: &str, entries: [(Inline, &str); N]) {
    page.control("SH", [heading]);
    for (term, means) in entries {
        page.control("TP", []).text([term]).text([roman(means)]);
    }
}

fn see_also(page: &mut Roff, pages: &[(&str, &str)]) {
    page.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (name, section) in pages {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(*name), roman(format!("({section})"))]);
    }
    page.text(line);
}
