//! `check`: looks at everything a run relies on, and says of each thing whether it is well, one line a finding, with the way
//! out. It sends nothing and writes nothing. What is looked at, in this order: the configuration, this host (check/host.rs),
//! whom a run tells (check/told.rs), the database (check/server.rs, check/file.rs), the channels (check/channels.rs). Whatever
//! fails is a finding, and the rest is looked at all the same.

mod channels;
mod file;
mod host;
mod server;
mod told;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};

use anyhow::{Error, Result};
use serde::Serialize;

use super::output::plain;
use crate::cli::{CheckArgs, Global};
use crate::config::{self, Channel, Config, Exposed};
use crate::exit::Exit;
use crate::store::Database;
use crate::store::facts::Facts;
use crate::store::migrations::VERSION;
use crate::trouble::{Kind, Trouble, neighbour};

/// Everything that is looked at, by the word that README explains.
macro_rules! whats {
    ($($what:ident $word:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum What { $($what,)* }

        impl What {
            #[cfg(test)]
            pub const ALL: &[Self] = &[$(Self::$what,)*];

            pub fn word(self) -> &'static str {
                match self { $(Self::$what => $word,)* }
            }
        }
    };
}

whats! {
    Configuration "configuration",
    ConfigFile "config-file",
    User "user",
    StateDir "state-dir",
    LockDir "lock-dir",
    LockFile "lock-file",
    Journal "journal",
    LogFile "log-file",
    MetricsFile "metrics-file",
    Notify "notify",
    Ping "ping",
    Database "database",
    Unseen "unseen",
    Server "server",
    Proxy "proxy",
    Cluster "cluster",
    ReadOnly "read-only",
    Durability "durability",
    BinaryLog "binary-log",
    Packet "packet",
    Session "session",
    Clock "clock",
    History "history",
    Rights "rights",
    Power "power",
    Schema "schema",
    Tables "tables",
    Indexes "indexes",
    Plans "plans",
    Triggers "triggers",
    ForeignKeys "foreign-keys",
    File "file",
    Integrity "integrity",
    Unserved "unserved",
    Channel "channel",
    Redirect "redirect",
    Window "window",
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    Warning,
    Error,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    what: What,
    /// Which of several: a channel, a table.
    about: Option<String>,
    state: State,
    detail: String,
    way_out: Option<String>,
}

impl Finding {
    fn ok(what: What, detail: impl Into<String>) -> Self {
        Self { what, about: None, state: State::Ok, detail: detail.into(), way_out: None }
    }

    fn warning(what: What, detail: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { state: State::Warning, way_out: Some(way_out.into()), ..Self::ok(what, detail) }
    }

    fn error(what: What, detail: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { state: State::Error, way_out: Some(way_out.into()), ..Self::ok(what, detail) }
    }

    /// An error whose text names the way out itself.
    fn failed(what: What, error: &Error) -> Self {
        Self { state: State::Error, ..Self::ok(what, format!("{error:#}")) }
    }

    fn about(self, about: &str) -> Self {
        Self { about: Some(about.to_owned()), ..self }
    }
}

pub fn run(args: &CheckArgs, global: &Global, out: &mut dyn Write) -> Result<Exit> {
    let findings = match Config::load(global, None) {
        Ok(config) => look(args, &config)?,
        // Without it nobody knows where to look.
        Err(error) => vec![Finding::failed(What::Configuration, &error)],
    };
    if args.json {
        json(&findings, out)?;
    } else {
        lines(&findings, io::stdout().is_terminal() && config::colours(), out)?;
    }
    Ok(if worst(&findings) == State::Error { Exit::Usage } else { Exit::Done })
}

fn look(args: &CheckArgs, config: &Config) -> Result<Vec<Finding>> {
    let channels = asked(args, config)?;
    let mut findings = configuration(config);
    let database = Database::open(&config.database_url, &config.table_prefix, config.run.claim);
    findings.extend(host::look(config, database.as_ref().ok()));
    findings.extend(told::look(&config.told));
    // The slowest last, together: channels are asked while the database is.
    let (facts, probed, pinged) = std::thread::scope(|scope| {
        let probing = scope.spawn(|| channels::probe(&channels, config.run.lanes));
        let pinging = scope.spawn(|| told::ping(&config.told));
        let facts = database.as_ref().map(Database::examine);
        (facts, probing.join().unwrap_or_default(), pinging.join().unwrap_or_default())
    });
    findings.extend(pinged);
    let now = match &facts {
        Ok(Ok(facts)) => {
            findings.extend(match facts {
                Facts::Server(facts) => server::judge(facts, &config.table_prefix),
                Facts::File(facts) => file::judge(facts),
            });
            findings.extend(unserved(facts.channels(), config));
            facts.now()
        }
        Ok(Err(error)) => {
            findings.push(database_away(error));
            None
        }
        Err(error) => {
            findings.push(database_away(error));
            None
        }
    };
    findings.extend(channels::judge(&channels, probed, now));
    Ok(findings)
}

/// Why nothing of the database can be looked at. To a run that it cannot be reached is for the next minute; whoever checks is
/// told what to see to.
fn database_away(error: &Error) -> Finding {
    let failed = Finding::failed(What::Database, error);
    if Trouble::kind_of(error) != Some(Kind::TryLater) {
        return failed;
    }
    let way_out = "correct host and port in `database_url`, or see that the server runs and lets this host in; runs try again each minute";
    Finding { way_out: Some(way_out.into()), ..failed }
}

/// The channels that are to be asked.
fn asked<'a>(args: &CheckArgs, config: &'a Config) -> Result<Vec<&'a Channel>> {
    if args.no_channels {
        return Ok(Vec::new());
    }
    let Some(name) = &args.channel else { return Ok(config.channels.values().collect()) };
    let channel = config.channels.get(name).ok_or_else(|| {
        let known: Vec<&str> = config.channels.keys().map(String::as_str).collect();
        Trouble::usage(format!("there is no channel {name} in the configuration{}", neighbour(name, &known)))
    })?;
    Ok(vec![channel])
}

fn configuration(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let number = config.channels.len();
    // Named from here, it may be anywhere.
    let file = config.file.as_ref().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
    let from = file.as_ref().map_or("no file".into(), |file| file.display().to_string());
    let text = format!("{from}, {number} channel{}", if number == 1 { "" } else { "s" });
    findings.push(if number == 0 {
        let way_out = "add a [channel.NAME], as batch-send.example.toml shows";
        Finding::warning(What::Configuration, format!("{text}: nothing can be sent from this host"), way_out)
    } else {
        Finding::ok(What::Configuration, format!("{text}; their settings and templates can be read"))
    });
    let Some(file) = &file else { return findings };
    let path = file.display();
    findings.push(match Exposed::of(file) {
        Err(error) => Finding::failed(What::ConfigFile, &Error::new(error)),
        Ok(Exposed { writable: true, .. }) => Finding::error(
            What::ConfigFile,
            format!(
                "everybody on this host may change {path}, and with it what is run and sent as this user"
            ),
            format!("chmod o-w {path}"),
        ),
        Ok(Exposed { readable: true, .. }) if !config.secrets.is_empty() => Finding::warning(
            What::ConfigFile,
            format!(
                "everybody on this host may read {path}, and it holds secrets: {}",
                config.secrets.join(", ")
            ),
            format!("chmod o-r {path}, or take them from the environment with ${{NAME}}"),
        ),
        Ok(Exposed { readable, .. }) => Finding::ok(
            What::ConfigFile,
            match (readable, config.secrets.is_empty()) {
                (_, true) => "it holds no secret in plain text",
                (_, false) => "it holds secrets, and not everybody may read it",
            },
        ),
    });
    findings
}

/// Tasks of channels that this host does not have.
fn unserved(channels: &BTreeMap<String, u64>, config: &Config) -> Vec<Finding> {
    let strange: Vec<String> = channels
        .iter()
        .filter(|(name, _)| !config.channels.contains_key(*name))
        .map(|(name, tasks)| format!("{name} ({tasks} task{})", if *tasks == 1 { "" } else { "s" }))
        .collect();
    if strange.is_empty() {
        return Vec::new();
    }
    vec![Finding::warning(
        What::Unserved,
        format!("unfinished tasks use channels that this host does not have: {}", strange.join(", ")),
        "add these channels here, unless another host serves them: ten minutes after they are due such tasks pause",
    )]
}

fn worst(findings: &[Finding]) -> State {
    findings.iter().map(|finding| finding.state).max().unwrap_or(State::Ok)
}

/// Whether these are tables that this binary works with. `some`: where no version is written though some tables are there,
/// those that are not, by the names that follow the prefix.
fn schema(found: u32, some: Option<&[String]>) -> Finding {
    let nothing_else = "run `batch-send migrate`: it makes what is missing, and leaves what is there";
    match (found, some) {
        (VERSION, _) => Finding::ok(What::Schema, format!("version {VERSION}, as this batch-send knows it")),
        // What is made anew would be another installation, and every key another one.
        (0, Some(missing)) if missing.iter().any(|table| table.ends_with("installation")) => Finding::error(
            What::Schema,
            format!("some of the tables are not there: {}", missing.join(", ")),
            "restore them from a backup: the key of each message is made of what is in the table of the installation",
        ),
        (0, Some([])) => Finding::error(
            What::Schema,
            "the tables are there, but none of their migrations is written down as applied",
            nothing_else,
        ),
        (0, Some(missing)) => Finding::error(
            What::Schema,
            format!("some of the tables are not there: {}; the others are", missing.join(", ")),
            nothing_else,
        ),
        (0, None) => Finding::error(What::Schema, "the tables are not there", "run `batch-send migrate`"),
        (found, _) => another_version(found),
    }
}

fn another_version(found: u32) -> Finding {
    match found {
        older if older < VERSION => Finding::error(
            What::Schema,
            format!(
                "the tables are at version {older}, and this batch-send needs {VERSION}: it sends nothing"
            ),
            "run `batch-send migrate`",
        ),
        newer => Finding::error(
            What::Schema,
            format!(
                "the tables are at version {newer}, and this batch-send knows {VERSION}: it sends nothing"
            ),
            "install a newer batch-send",
        ),
    }
}

fn unseen(what: &[String]) -> Vec<Finding> {
    let finding = |what: &String| {
        Finding::warning(
            What::Unseen,
            what.clone(),
            "what it would have shown is not known; ask as a user who may",
        )
    };
    what.iter().map(finding).collect()
}

// ---- how it is shown ---------------------------------------------------------------------------------------------

#[derive(Serialize)]
struct Shown<'a> {
    what: &'a str,
    about: Option<&'a str>,
    state: State,
    detail: &'a str,
    way_out: Option<&'a str>,
}

#[derive(Serialize)]
struct All<'a> {
    state: State,
    findings: Vec<Shown<'a>>,
}

fn json(findings: &[Finding], out: &mut dyn Write) -> Result<()> {
    let all = All {
        state: worst(findings),
        findings: findings
            .iter()
            .map(|finding| Shown {
                what: finding.what.word(),
                about: finding.about.as_deref(),
                state: finding.state,
                detail: &finding.detail,
                way_out: finding.way_out.as_deref(),
            })
            .collect(),
    };
    Ok(writeln!(out, "{}", serde_json::to_string(&all)?)?)
}

fn lines(findings: &[Finding], colours: bool, out: &mut dyn Write) -> Result<()> {
    let name = |finding: &Finding| match &finding.about {
        Some(about) => format!("{} {}", finding.what.word(), plain(about)),
        None => finding.what.word().to_owned(),
    };
    let widest = findings.iter().map(|finding| name(finding).chars().count()).max().unwrap_or(0);
    for finding in findings {
        let (word, colour) = match finding.state {
            State::Ok => ("ok", 32),
            State::Warning => ("warning", 33),
            State::Error => ("error", 31),
        };
        // Padded before it is coloured: a colour takes no cell.
        let mut state = format!("{word:<7}");
        if colours {
            state = format!("\u{1b}[{colour}m{state}\u{1b}[0m");
        }
        let way_out = finding.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
        let text = format!("{}{way_out}", finding.detail);
        writeln!(out, "{state}  {:<widest$}  {}", name(finding), plain(&text))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of the first column of README's table of findings.
    fn explained() -> Vec<String> {
        let readme = include_str!("../../README.md");
        let (_, table) =
            readme.split_once("| finding | looks at |").expect("README has the table of findings");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        rows.map(|row| row.split('`').nth(1).unwrap_or_else(|| panic!("no word in {row}")).to_owned())
            .collect()
    }

    #[test]
    fn readme_explains_each_finding_and_no_other() {
        let words: Vec<&str> = What::ALL.iter().map(|what| what.word()).collect();
        assert_eq!(explained(), words, "README's table of findings, in the order in which they are shown");
    }

    #[test]
    fn lines_stand_below_each_other_and_cannot_steer_a_terminal() {
        let findings = [
            Finding::ok(What::Clock, "the same"),
            Finding::warning(What::Channel, "a\nb \u{1b}[2J", "wait").about("we\u{202e}b"),
            Finding::error(What::Database, "gone", "start it"),
        ];
        let mut out = Vec::new();
        lines(&findings, false, &mut out).unwrap();
        let expected = "ok       clock                the same\n\
                        warning  channel we\\u{202e}b  a\\nb \\u{1b}[2J; wait\n\
                        error    database             gone; start it\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        lines(&findings[2..], true, &mut out).unwrap();
        assert_eq!(out, b"\x1b[31merror  \x1b[0m  database  gone; start it\n");
    }

    #[test]
    fn the_shape_of_the_json_is_stable() {
        let findings = [
            Finding::ok(What::Clock, "the same"),
            Finding::error(What::Channel, "gone", "start it").about("web"),
        ];
        let mut out = Vec::new();
        json(&findings, &mut out).unwrap();
        let expected = r#"{"state":"error","findings":[{"what":"clock","about":null,"state":"ok","detail":"the same","way_out":null},{"what":"channel","about":"web","state":"error","detail":"gone","way_out":"start it"}]}"#;
        assert_eq!(String::from_utf8(out).unwrap().trim_end(), expected);
    }

    #[test]
    fn a_schema_that_is_not_ours_is_an_error_with_its_way_out() {
        assert_eq!(schema(VERSION, None).state, State::Ok);
        for (version, way_out) in [(0, "migrate"), (VERSION - 1, "migrate"), (VERSION + 1, "newer")] {
            let finding = schema(version, None);
            assert_eq!(finding.state, State::Error);
            assert!(finding.way_out.unwrap().contains(way_out));
        }
        for (missing, detail, way_out) in [
            (&["b_migration"][..], "b_migration; the others are", "migrate"),
            (&[], "are there", "migrate"),
            (&["b_installation"], "b_installation", "backup"),
        ] {
            let missing: Vec<_> = missing.iter().map(|name| (*name).to_owned()).collect();
            let finding = schema(0, Some(&missing));
            assert!(
                finding.detail.contains(detail) && finding.way_out.unwrap().contains(way_out),
                "{missing:?}"
            );
        }
    }
}
