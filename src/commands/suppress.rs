//! `suppress`: the list of those who get nothing. Who heeds it is the store, when it begins a target.

use std::collections::BTreeSet;
use std::io::{self, Write};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::json;

use super::import::{Source, unfit_recipient};
use super::output::{plain, recipients};
use super::screen::Screen;
use super::table::{Column, Table};
use crate::cli::{
    Format, SuppressAddArgs, SuppressCommand, SuppressImportArgs, SuppressListArgs, SuppressRemoveArgs,
};
use crate::config::{CHANNEL_NAMES, Config, is_channel_name};
use crate::exit::Exit;
use crate::store::{Act, Added, Desk, EVERY_CHANNEL};
use crate::suppression::Suppression;
use crate::task::show_time;
use crate::trouble::Trouble;
use crate::who;

pub fn run(
    command: &SuppressCommand,
    config: &Config,
    store: &mut dyn Desk,
    out: &mut dyn Write,
) -> Result<Exit> {
    match command {
        SuppressCommand::Add(args) => add(args, config, store, out),
        SuppressCommand::Remove(args) => remove(args, store, out),
        SuppressCommand::List(args) => list(args, store, out),
        SuppressCommand::Import(args) => import(args, config, store, out),
    }
}

/// What was typed is what is on the list then: there is nothing to say of it.
fn add(args: &SuppressAddArgs, config: &Config, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let channel = channel(args.channel.as_deref())?;
    let row = |recipient: &String| {
        Ok(Suppression {
            recipient: checked(recipient)?.to_owned(),
            channel: channel.map(str::to_owned),
            reason: args.reason.clone(),
            since: None,
        })
    };
    let rows = args.recipients.iter().map(row).collect::<Result<Vec<_>>>()?;
    Strangers::new(config).look(channel);
    let added = store.suppress(&rows, &act("suppress add", args.reason.as_deref(), &who::person()))?;
    if args.json {
        writeln!(out, "{}", shown(added))?;
    }
    Ok(Exit::Done)
}

fn remove(args: &SuppressRemoveArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let channel = channel(args.channel.as_deref())?;
    let recipients = args.recipients.iter().map(|text| checked(text)).collect::<Result<Vec<_>>>()?;
    let who = who::person();
    let act = act("suppress remove", None, &who);
    let (mut changed, mut absent) = (0, Vec::new());
    for recipient in recipients {
        let removed = store.unsuppress(recipient, channel, &act)?;
        changed += removed;
        if removed == 0 {
            absent.push(plain(recipient));
        }
    }
    if args.json {
        writeln!(out, "{}", json!({ "changed": changed }))?;
    }
    if !absent.is_empty() {
        let list = channel.map_or("for every channel".into(), |channel| format!("for channel {channel}"));
        log::warn!(
            "not on the list {list}: {}; `batch-send suppress list` shows who is, and for which channel",
            absent.join(", ")
        );
        return Ok(Exit::Trouble);
    }
    Ok(Exit::Done)
}

fn import(
    args: &SuppressImportArgs,
    config: &Config,
    store: &mut dyn Desk,
    out: &mut dyn Write,
) -> Result<Exit> {
    let given = channel(args.channel.as_deref())?;
    let source = Source::open("the file", &args.file)?;
    let mut strangers = Strangers::new(config);
    strangers.look(given);
    let who = who::person();
    let act = act("suppress import", args.reason.as_deref(), &who);
    let imported = source
        .import(&mut |lines: &[Suppression]| {
            let rows: Vec<Suppression> = lines
                .iter()
                .map(|line| {
                    let channel = line.channel.as_deref().map_or(given, specific);
                    strangers.look(channel);
                    Suppression {
                        channel: channel.map(str::to_owned),
                        reason: line.reason.clone().or_else(|| args.reason.clone()),
                        ..line.clone()
                    }
                })
                .collect();
            store.suppress(&rows, &act)
        })
        .context("the list is incomplete until the same command succeeds")?;
    let added = imported.added;
    if let Some(flaw) = imported.flaw {
        let before = recipients(added.new + added.repeated);
        bail!(Trouble::usage(format!(
            "{flaw}; the list has the {before} before it: mend the line and import the file once more"
        )));
    }
    if args.json {
        writeln!(out, "{}", shown(added))?;
    } else {
        writeln!(out, "{} added, {} repeated", recipients(added.new), added.repeated)?;
    }
    Ok(Exit::Done)
}

fn act<'a>(what: &'a str, why: Option<&'a str>, who: &'a str) -> Act<'a> {
    Act { who, what, why }
}

/// The public form of what `add` and `import` did.
fn shown(added: Added) -> serde_json::Value {
    json!({ "new": added.new, "repeated": added.repeated })
}

/// A recipient as it was typed, without blanks around it.
fn checked(text: &str) -> Result<&str> {
    let recipient = text.trim();
    match unfit_recipient(recipient) {
        Some(why) => bail!(Trouble::usage(why)),
        None => Ok(recipient),
    }
}

/// The channel of a flag; None: every one.
fn channel(given: Option<&str>) -> Result<Option<&str>> {
    match given.and_then(unfit_channel) {
        Some(why) => bail!(Trouble::usage(why)),
        None => Ok(given.and_then(specific)),
    }
}

fn specific(channel: &str) -> Option<&str> {
    Some(channel).filter(|channel| *channel != EVERY_CHANNEL)
}

/// Why no channel can be called so, nor all of them.
pub fn unfit_channel(name: &str) -> Option<String> {
    let fits = name == EVERY_CHANNEL || is_channel_name(name);
    (!fits).then(|| {
        format!(
            "`{}` is no name for a channel: it takes {CHANNEL_NAMES}; `{EVERY_CHANNEL}` is every channel",
            plain(name)
        )
    })
}

/// Channels that this host's configuration does not have. Another host's may, or tomorrow's: they are taken, and named once.
struct Strangers<'a> {
    config: &'a Config,
    named: BTreeSet<String>,
}

/// In a list with more of them than this the column is about something else, and a person has seen it by then.
const NAMED_MOST: usize = 10;

impl<'a> Strangers<'a> {
    fn new(config: &'a Config) -> Self {
        Self { config, named: BTreeSet::new() }
    }

    fn look(&mut self, channel: Option<&str>) {
        let Some(name) = channel else { return };
        if self.config.channels.contains_key(name)
            || self.named.contains(name)
            || self.named.len() >= NAMED_MOST
        {
            return;
        }
        self.named.insert(name.to_owned());
        let known: Vec<&str> = self.config.channels.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        log::warn!(
            "channel {name} is not in this host's configuration, which has: {known}; the list takes it all the same"
        );
    }
}

fn list(args: &SuppressListArgs, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    match args.format {
        Format::Table => {
            let mut table = Table::new(out, COLUMNS, &Screen::of_stdout());
            store.suppressions(&mut |row| {
                let Shown { recipient, channel, reason, since } = Shown::of(&row);
                Ok(table.row(&[
                    recipient,
                    channel,
                    reason.unwrap_or_default(),
                    &since.unwrap_or_default(),
                ])?)
            })?;
            table.end()?;
        }
        Format::Csv => {
            let mut csv = csv::Writer::from_writer(out);
            csv.write_record(KEYS).map_err(io::Error::from)?;
            store.suppressions(&mut |row| {
                let Shown { recipient, channel, reason, since } = Shown::of(&row);
                let record = [recipient, channel, reason.unwrap_or_default(), &since.unwrap_or_default()];
                Ok(csv.write_record(record).map_err(io::Error::from)?)
            })?;
            csv.flush()?;
        }
        Format::Jsonl => store
            .suppressions(&mut |row| Ok(writeln!(out, "{}", serde_json::to_string(&Shown::of(&row))?)?))?,
    }
    Ok(Exit::Done)
}

const COLUMNS: &[Column] =
    &[Column::Text("recipient"), Column::Text("channel"), Column::Text("reason"), Column::Text("since")];

/// The columns of the CSV: the keys of a JSON line.
const KEYS: [&str; 4] = ["recipient", "channel", "reason", "since"];

/// The public form of a suppression; `import` takes it back.
#[derive(Serialize)]
struct Shown<'a> {
    recipient: &'a str,
    channel: &'a str,
    reason: Option<&'a str>,
    since: Option<String>,
}

impl<'a> Shown<'a> {
    fn of(row: &'a Suppression) -> Self {
        Self {
            recipient: &row.recipient,
            channel: row.channel.as_deref().unwrap_or(EVERY_CHANNEL),
            reason: row.reason.as_deref(),
            since: row.since.as_ref().map(show_time),
        }
    }
}
