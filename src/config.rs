//! Flags, environment and file become one validated `Config`. Every default and limit of the configuration is here,
//! and this is the only file that reads the environment. What a channel needs beyond the common keys is declared in
//! its sender's file. Each refusal is one sentence: the file, the table, the key, and the way out; never a value
//! that may be a secret.
//!
//! A setting is taken from its flag, else from `BATCH_SEND_*` (empty counts as unset), else from the file.
//!
//! `${NAME}` in `url`, `headers`, `command`, `path` and in the file's `database_url` (percent-encoded there) is the
//! environment variable NAME. `$${` stands for `${` itself; a `$` before anything else is just that. A `--database-url`
//! and `$BATCH_SEND_DATABASE_URL` are taken as they are. A channel whose variable is not set is wrong only once it is to send
//! ([`Channel::sender`]): a person who looks at `status` need not have cron's secrets. All else about a channel is wrong at
//! once, for every command.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result};
use clap::ValueEnum;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde::Deserializer;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::cli::{Global, LogFormat, duration};
use crate::message::Template;
use crate::sender::{Kind, Sender, exec, file, http};
use crate::settlement::{Backoff, Policy};
use crate::store::ClaimForm;
use crate::trouble::Trouble;
use crate::who;

const FILE: &str = "/etc/batch-send/config.toml";
const STATE_DIR: &str = "/var/lib/batch-send";
const TABLE_PREFIX: &str = "batch_";

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

const BUDGET: RangeInclusive<Duration> = SECOND..=DAY;

/// Sends in flight at once, of all lanes of a run: more sockets and threads than that are a mistake.
const IN_FLIGHT_MOST: usize = 1024;

/// Keys and kinds that have their name already.
const LATER_KEYS: [&str; 8] =
    ["answers", "idempotency_header", "idempotent_for", "rate", "redirect_to", "sign", "time_zone", "window"];
const LATER_KINDS: [&str; 2] = ["smtp", "wechat"];
const KINDS: [&str; 3] = ["exec", "file", "http"];

/// Keys of channels in which `${NAME}` is the environment's.
const EXPANDED: [&str; 4] = ["command", "headers", "path", "url"];

pub struct Config {
    pub database_url: String,
    pub table_prefix: String,
    pub lock_dir: PathBuf,
    pub state_dir: PathBuf,
    pub run: Run,
    pub channels: BTreeMap<String, Channel>,
}

/// `[run]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// For how long a run begins new targets (1 s - 24 h).
    pub budget: Duration,
    /// How long a lease lasts unless renewed (3 s - 24 h).
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
    kind: Kind,
    /// Where this channel is written, for the errors of `sender`.
    place: String,
    /// A `${NAME}` that the environment does not have, and its key.
    unset: Option<Unset>,
}

struct Unset {
    name: String,
    key: String,
}

/// The environment, or what a test says it is.
type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

#[allow(clippy::disallowed_methods)]
fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The form of the log, known before the configuration is: for the logger, which must stand by then.
pub fn log_format(global: &Global) -> Result<LogFormat> {
    log_format_of(global, &environment)
}

fn log_format_of(global: &Global, env: Environment) -> Result<LogFormat> {
    if let Some(format) = global.log_format {
        return Ok(format);
    }
    let Some(text) = text_of(env, "BATCH_SEND_LOG_FORMAT")? else { return Ok(LogFormat::Text) };
    LogFormat::from_str(&text, false)
        .map_err(|_| usage(format!("BATCH_SEND_LOG_FORMAT must be text or json, not `{text}`")))
}

impl Config {
    /// `budget` is the flag of `run`. Errors are [`crate::trouble::Kind::Usage`].
    pub fn load(global: &Global, budget: Option<Duration>) -> Result<Self> {
        Self::load_in(global, budget, &environment)
    }

    fn load_in(global: &Global, budget: Option<Duration>, env: Environment) -> Result<Self> {
        let given = match &global.database_url {
            Some(url) => Some(url.clone()),
            None => text_of(env, "BATCH_SEND_DATABASE_URL")?,
        };
        let (path, text) = find(global, env, given.is_some())?;
        let mut top = Section::parse(&path, &text)?;

        let from_file = top.string("database_url")?;
        let table_prefix = top.string("table_prefix")?.unwrap_or_else(|| TABLE_PREFIX.into());
        if !(1..=32).contains(&table_prefix.len()) || !table_prefix.chars().all(word) {
            let key = top.key("table_prefix");
            return Err(top
                .refuse(format!("{key} must be 1-32 letters, digits or underscores, not `{table_prefix}`")));
        }
        let state_dir = top.directory("state_dir")?.unwrap_or_else(|| STATE_DIR.into());
        let lock_dir = top.directory("lock_dir")?.unwrap_or_else(|| state_dir.clone());
        let run = match top.section("run")? {
            Some(section) => section,
            None => top.empty("run"),
        };
        let channels = top.section("channel")?;
        top.finish(&[])?;

        let mut run = Run::read(run)?;
        if let Some(budget) = budget {
            within("--budget", budget, &BUDGET)?;
            run.budget = budget;
        } else if let Some(text) = text_of(env, "BATCH_SEND_BUDGET")? {
            let budget = duration(&text).map_err(|error| usage(format!("BATCH_SEND_BUDGET: {error}")))?;
            within("BATCH_SEND_BUDGET", budget, &BUDGET)?;
            run.budget = budget;
        }
        let channels = match channels {
            Some(section) => Channel::read_all(section, run.lanes, env)?,
            None => BTreeMap::new(),
        };

        // Last: whoever writes a first configuration hears of its other mistakes all the same.
        let database_url = match (given, from_file) {
            (Some(url), _) => url,
            (None, Some(url)) => database_url(&path, &url, env)?,
            (None, None) => {
                return Err(usage(format!(
                    "{}: `database_url` is missing: put it there, as in \"mysql://app@db.internal/shop\" or \
                     \"sqlite:///var/lib/batch-send/tasks.db\", or give --database-url or BATCH_SEND_DATABASE_URL",
                    path.display()
                )));
            }
        };
        Ok(Self { database_url, table_prefix, lock_dir, state_dir, run, channels })
    }

    /// Makes `state_dir` and `lock_dir` (0700) where they are missing, and sees that this user can write there.
    pub fn make_dirs(&self) -> Result<()> {
        for (key, dir) in [("state_dir", &self.state_dir), ("lock_dir", &self.lock_dir)] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .and_then(|()| {
                    let ways = Access::WRITE_OK | Access::EXEC_OK;
                    Ok(accessat(CWD, dir, ways, AtFlags::EACCESS)?)
                })
                .map_err(|error| {
                    usage(format!(
                        "cannot write in {} as user {}: {error}; give that directory to this user, or set \
                         `{key}` in the configuration to another",
                        dir.display(),
                        who::user()
                    ))
                })?;
        }
        Ok(())
    }
}

impl Run {
    fn read(mut section: Section) -> Result<Self> {
        let run = Self {
            budget: section.duration("budget", 50 * SECOND, BUDGET)?,
            lease: section.duration("lease", 30 * SECOND, 3 * SECOND..=DAY)?,
            turn: section.duration("turn", 10 * SECOND, MS..=DAY)?,
            lanes: section.integer("lanes", 4, 1..=64)?,
            batch_size: section.integer("batch_size", 500, 1..=5000)?,
            claim: section.claim()?,
        };
        section.finish(&[])?;
        Ok(run)
    }
}

impl Channel {
    /// The sender of this channel, for so many lanes. Errors are [`crate::trouble::Kind::Usage`]: a `${NAME}` that is not set, a setting that the
    /// kind refuses.
    pub fn sender(&self, lanes: usize) -> Result<Box<dyn Sender>> {
        if let Some(Unset { name, key }) = &self.unset {
            return Err(usage(format!(
                "{}: the environment has no `{name}`, which `{key}` asks for: set it where batch-send is started (in \
                 the crontab), or write `$${{{name}}}` if the text itself is meant",
                self.place
            )));
        }
        self.kind
            .open(self.timeout, self.concurrency * lanes)
            .map_err(|error| usage(format!("{}: {error:#}", self.place)))
    }

    fn read_all(mut all: Section, lanes: usize, env: Environment) -> Result<BTreeMap<String, Self>> {
        let names: Vec<String> = all.table.keys().cloned().collect();
        let mut channels = BTreeMap::new();
        for name in names {
            let good = |c: char| word(c) || c == '-' || c == '.';
            if !(1..=64).contains(&name.len()) || !name.chars().all(good) {
                return Err(all.refuse(format!(
                    "`{name}` is no name for a channel: it takes 1-64 ASCII letters, digits, `_`, `-` and `.`"
                )));
            }
            if let Some(section) = all.inner(&name)? {
                channels.insert(name.clone(), Self::read(name, section, lanes, env)?);
            }
        }
        Ok(channels)
    }

    fn read(name: String, mut section: Section, lanes: usize, env: Environment) -> Result<Self> {
        let kind = section.string("kind")?.ok_or_else(|| {
            section.refuse(format!("{} is missing: one of {}", section.key("kind"), KINDS.join(", ")))
        })?;
        let timeout = section.duration("timeout", 10 * SECOND, MS..=10 * MINUTE)?;
        let concurrency = section.integer("concurrency", 8, 1..=256)?;
        let ahead = section.integer("ahead", 0, 0..=10_000)?;
        let policy = Policy {
            max_attempts: section.integer("max_attempts", 5, 1..=100)?,
            backoff: section.backoff()?,
            stop_after_unknown: section.integer("stop_after_unknown", 5, 1..=u16::MAX)?,
            idempotent_for: None,
        };
        let body = section.string("body")?;
        if lanes * concurrency > IN_FLIGHT_MOST {
            return Err(section.refuse(format!(
                "{lanes} `lanes` of [run] times {concurrency} {} are more than {IN_FLIGHT_MOST} sends at once: \
                 lower one of them",
                section.key("concurrency")
            )));
        }

        let (kind, unset) = match kind.as_str() {
            "http" => {
                let (settings, unset) = section.own::<http::Settings>(env)?;
                if settings.ca_file.as_deref().is_some_and(Path::is_relative) {
                    return Err(
                        section.refuse(format!("{} must be an absolute path", section.key("ca_file")))
                    );
                }
                if body.is_none() {
                    return Err(section.refuse(format!(
                        "{} is missing: a channel of kind http needs one, as in '{{\"to\": {{{{ target.recipient }}}}}}'",
                        section.key("body")
                    )));
                }
                (Kind::Http(settings), unset)
            }
            "exec" => {
                let (settings, unset) = section.own::<exec::Settings>(env)?;
                section.checked(settings.check(), &unset)?;
                (Kind::Exec(settings), unset)
            }
            "file" => {
                let (settings, unset) = section.own::<file::Settings>(env)?;
                section.checked(settings.check(), &unset)?;
                (Kind::File(settings), unset)
            }
            later if LATER_KINDS.contains(&later) => {
                return Err(section.refuse(format!(
                    "{} = \"{later}\" comes later: this version has {}",
                    section.key("kind"),
                    KINDS.join(", ")
                )));
            }
            other => {
                return Err(section.refuse(format!(
                    "{} is unknown: \"{other}\"{}",
                    section.key("kind"),
                    neighbour(other, &KINDS)
                )));
            }
        };
        let body = body
            .map(|body| Template::parse(&body, true))
            .transpose()
            .map_err(|error| section.refuse(format!("{} cannot be read: {error:#}", section.key("body"))))?;
        let place = format!("{}: [{}]", section.file.display(), section.name);
        Ok(Self { name, timeout, concurrency, ahead, policy, body, kind, place, unset })
    }
}

/// The file and its text. Only the default file may be missing, and only when the database is `given` without it.
fn find(global: &Global, env: Environment, given: bool) -> Result<(PathBuf, String)> {
    let named = global.config.clone().map(|path| (path, "--config")).or_else(|| {
        let path = env("BATCH_SEND_CONFIG").filter(|path| !path.is_empty())?;
        Some((path.into(), "BATCH_SEND_CONFIG"))
    });
    let (path, by) = match named {
        Some((path, by)) => (path, Some(by)),
        None => (FILE.into(), None),
    };
    match fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(error) if by.is_none() && error.kind() == ErrorKind::NotFound => {
            if given {
                return Ok((path, String::new()));
            }
            Err(usage(format!(
                "there is no {FILE}: write it (`database_url` is all that it must have), name another file with \
                 --config or BATCH_SEND_CONFIG, or give --database-url or BATCH_SEND_DATABASE_URL"
            )))
        }
        Err(error) => {
            let by = by.map_or_else(String::new, |by| format!(", named by {by}"));
            Err(usage(format!("cannot read the configuration {}{by}: {error}", path.display())))
        }
    }
}

fn database_url(path: &Path, url: &str, env: Environment) -> Result<String> {
    let (url, unset) = expand(url, env, percent_encoded)
        .map_err(|error| usage(format!("{}: `database_url`: {error}", path.display())))?;
    match unset {
        None => Ok(url),
        Some(name) => Err(usage(format!(
            "{}: the environment has no `{name}`, which `database_url` asks for: set it where batch-send is started",
            path.display()
        ))),
    }
}

fn usage(sentence: String) -> Error {
    Error::new(Trouble::usage(sentence))
}

fn word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A variable of our own. Empty counts as unset: a crontab cannot unset.
fn text_of(env: Environment, name: &str) -> Result<Option<String>> {
    match env(name).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(Err(_)) => Err(usage(format!("{name} is not UTF-8"))),
    }
}

/// Puts the environment's values for `${NAME}`; a name that is not set stays as it is, and the first of them is told.
fn expand(
    text: &str,
    env: Environment,
    encode: fn(&str) -> String,
) -> Result<(String, Option<String>), String> {
    let (mut whole, mut unset, mut rest) = (String::new(), None, text);
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            whole.push_str(before);
            whole.push_str("${");
            rest = &from[2..];
            continue;
        }
        whole.push_str(before);
        let name = from[2..]
            .split_once('}')
            .map(|(name, _)| name)
            .filter(|name| name.chars().all(word) && name.starts_with(|c: char| !c.is_ascii_digit()));
        let Some(name) = name else {
            return Err(
                "`${` must be followed by the name of an environment variable and `}`; `$${` stands for \
                        the text itself"
                    .into(),
            );
        };
        let (variable, after) = from.split_at(name.len() + 3);
        match env(name).map(OsString::into_string) {
            Some(Ok(value)) => whole.push_str(&encode(&value)),
            Some(Err(_)) => return Err(format!("the environment's `{name}` is not UTF-8")),
            None => {
                whole.push_str(variable);
                unset.get_or_insert_with(|| name.to_owned());
            }
        }
        rest = after;
    }
    whole.push_str(rest);
    Ok((whole, unset))
}

/// All but RFC 3986's unreserved characters, so that a password cannot end the part of the URL that it stands in.
fn percent_encoded(value: &str) -> String {
    value.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

/// Ends a sentence about an unknown word: with the nearest one known, or with all when none is near.
fn neighbour(word: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|known| (strsim::normalized_damerau_levenshtein(&word.to_lowercase(), known), known))
        .filter(|(likeness, _)| *likeness > 0.5)
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    match near {
        Some((_, near)) => format!(": did you mean `{near}`?"),
        None => format!("; known here: {}", known.join(", ")),
    }
}

fn within(what: &str, value: Duration, range: &RangeInclusive<Duration>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(usage(out_of(what, value, range)))
}

fn out_of(what: &str, value: Duration, range: &RangeInclusive<Duration>) -> String {
    format!("{what} must be {} to {}, not {}", shown(*range.start()), shown(*range.end()), shown(value))
}

/// In the greatest unit that is exact, as it is written in the file.
fn shown(time: Duration) -> String {
    let ms = time.as_millis();
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s")];
    let exact = units.iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(unit.as_millis()));
    exact.map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit.as_millis()))
}

// ---- reading the file --------------------------------------------------------------------------------------------

/// One table of the file. Keys are taken out of it; what is left at the end is not known here.
struct Section<'a> {
    file: &'a Path,
    /// As in the brackets; empty at the top of the file.
    name: String,
    table: Table,
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    fn parse(file: &'a Path, text: &str) -> Result<Self> {
        let table = text.parse::<Table>().map_err(|error| {
            // Without the line itself, which toml would show: it may hold a secret.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            usage(format!("{}: line {line} is no TOML: {}", file.display(), error.message()))
        })?;
        Ok(Self { file, name: String::new(), table, known: Vec::new() })
    }

    fn empty(&self, name: &str) -> Self {
        Self { file: self.file, name: name.into(), table: Table::new(), known: Vec::new() }
    }

    fn refuse(&self, sentence: impl Display) -> Error {
        usage(format!("{}: {sentence}", self.file.display()))
    }

    /// A key and where it stands.
    fn key(&self, key: &str) -> String {
        if self.name.is_empty() { format!("`{key}`") } else { format!("`{key}` in [{}]", self.name) }
    }

    fn wrong_type(&self, key: &str, expected: &str, value: &Value) -> Error {
        // The type, never the value.
        self.refuse(format!("{} must be {expected}, not of type {}", self.key(key), value.type_str()))
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    fn string(&mut self, key: &'static str) -> Result<Option<String>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(key, "a string", &other)),
        }
    }

    fn directory(&mut self, key: &'static str) -> Result<Option<PathBuf>> {
        let Some(path) = self.string(key)?.map(PathBuf::from) else { return Ok(None) };
        if path.is_relative() {
            let path = path.display();
            return Err(self.refuse(format!("{} must be an absolute path, not `{path}`", self.key(key))));
        }
        Ok(Some(path))
    }

    fn duration(
        &mut self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Result<Duration> {
        let time = match self.take(key) {
            None => return Ok(default),
            Some(Value::String(text)) => {
                duration(&text).map_err(|error| self.refuse(format!("{}: {error}", self.key(key))))?
            }
            Some(other) => return Err(self.wrong_type(key, "a duration such as \"50s\"", &other)),
        };
        if !range.contains(&time) {
            return Err(self.refuse(out_of(&self.key(key), time, &range)));
        }
        Ok(time)
    }

    fn integer<T>(&mut self, key: &'static str, default: T, range: RangeInclusive<T>) -> Result<T>
    where
        T: TryFrom<i64> + PartialOrd + Display,
    {
        let number = match self.take(key) {
            None => return Ok(default),
            Some(Value::Integer(number)) => number,
            Some(other) => return Err(self.wrong_type(key, "an integer", &other)),
        };
        T::try_from(number).ok().filter(|number| range.contains(number)).ok_or_else(|| {
            self.refuse(format!(
                "{} must be {} to {}, not {number}",
                self.key(key),
                range.start(),
                range.end()
            ))
        })
    }

    fn claim(&mut self) -> Result<ClaimForm> {
        let Some(form) = self.string("claim")? else { return Ok(ClaimForm::default()) };
        Value::String(form.clone()).try_into().map_err(|_| {
            let key = self.key("claim");
            self.refuse(format!("{key} must be auto, skip-locked or update, not `{form}`"))
        })
    }

    fn backoff(&mut self) -> Result<Backoff> {
        let mut section = match self.section("backoff")? {
            Some(section) => section,
            None => self.empty("backoff"),
        };
        let first = section.duration("first", 30 * SECOND, Duration::ZERO..=30 * DAY)?;
        let most = section.duration("most", HOUR, Duration::ZERO..=30 * DAY)?;
        section.finish(&[])?;
        if first > most {
            return Err(section.refuse(format!(
                "{} ({}) must not be longer than `most` ({})",
                section.key("first"),
                shown(first),
                shown(most)
            )));
        }
        Ok(Backoff { first, most })
    }

    /// A table inside this one.
    fn section(&mut self, key: &'static str) -> Result<Option<Section<'a>>> {
        self.known.push(key);
        self.inner(key)
    }

    /// The same, where the key is the operator's own word: the name of a channel.
    fn inner(&mut self, key: &str) -> Result<Option<Section<'a>>> {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        match self.table.remove(key) {
            None => Ok(None),
            Some(Value::Table(table)) => Ok(Some(Self { file: self.file, name, table, known: Vec::new() })),
            Some(other) => Err(self.wrong_type(key, "a table", &other)),
        }
    }

    /// Refuses what was not asked for, nor is in `also`.
    fn finish(&self, also: &[&'static str]) -> Result<()> {
        let Some((key, value)) = self.table.iter().find(|(key, _)| !also.contains(&key.as_str())) else {
            return Ok(());
        };
        if LATER_KEYS.contains(&key.as_str()) {
            return Err(self.refuse(format!(
                "{} comes later: this version cannot keep what it promises, take it out",
                self.key(key)
            )));
        }
        if value.as_table().is_some_and(|table| table.contains_key("kind"))
            && self.name.starts_with("channel.")
        {
            let name = self.name.trim_start_matches("channel.");
            return Err(self.refuse(format!(
                "[{}.{key}] is a table inside [{}]: write the name of a channel with a dot in quotes, as in \
                 [channel.\"{name}.{key}\"]",
                self.name, self.name
            )));
        }
        let known: Vec<&str> = self.known.iter().chain(also).copied().collect();
        Err(self.refuse(format!("unknown key {}{}", self.key(key), neighbour(key, &known))))
    }

    /// The keys of a kind's own `Settings`, with the environment's values in them.
    fn own<T: DeserializeOwned>(&mut self, env: Environment) -> Result<(T, Option<Unset>)> {
        self.finish(fields::<T>())?;
        let mut table = std::mem::take(&mut self.table);
        let mut unset = None;
        for (key, value) in table.iter_mut().filter(|(key, _)| EXPANDED.contains(&key.as_str())) {
            let missing =
                expand_all(value, env).map_err(|error| self.refuse(format!("{}: {error}", self.key(key))))?;
            unset = unset.or(missing.map(|name| Unset { name, key: key.clone() }));
        }
        let settings = T::deserialize(table.clone()).map_err(|error| {
            let mut sentence = error.to_string().trim().to_owned();
            // serde shows the string that it found instead of something else; that may be a secret.
            hide(&Value::Table(table), &mut sentence);
            match sentence.trim_end_matches('`').rsplit_once("\nin `") {
                Some((what, key)) => self.refuse(format!("{}: {what}", self.key(key))),
                None => self.refuse(format!("[{}]: {sentence}", self.name)),
            }
        })?;
        Ok((settings, unset))
    }

    /// What a kind says of its settings, once they are complete.
    fn checked(&self, check: Result<()>, unset: &Option<Unset>) -> Result<()> {
        match check {
            Err(error) if unset.is_none() => Err(self.refuse(format!("[{}]: {error:#}", self.name))),
            _ => Ok(()),
        }
    }
}

fn expand_all(value: &mut Value, env: Environment) -> Result<Option<String>, String> {
    let mut first = None;
    match value {
        Value::String(text) => {
            let (whole, unset) = expand(text, env, str::to_owned)?;
            *text = whole;
            first = unset;
        }
        Value::Array(values) => {
            for value in values {
                let unset = expand_all(value, env)?;
                first = first.or(unset);
            }
        }
        Value::Table(table) => {
            for (_, value) in table.iter_mut() {
                let unset = expand_all(value, env)?;
                first = first.or(unset);
            }
        }
        _ => {}
    }
    Ok(first)
}

fn hide(value: &Value, sentence: &mut String) {
    match value {
        Value::String(text) => *sentence = sentence.replace(&format!("string {text:?}"), "a string"),
        Value::Array(values) => values.iter().for_each(|value| hide(value, sentence)),
        Value::Table(table) => table.values().for_each(|value| hide(value, sentence)),
        _ => {}
    }
}

/// The names of a struct's fields, as its `Deserialize` asks for them.
fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Ask<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Ask<'_> {
        type Error = serde::de::value::Error;

        fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("only asked for the names of its fields"))
        }

        fn deserialize_struct<V: serde::de::Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    // It always ends in our own error; by then the names are known.
    let _ = T::deserialize(Ask(&mut names));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trouble;
    use tempfile::TempDir;

    const EXAMPLE: &str = include_str!("../batch-send.example.toml");
    const DATABASE: &str = "database_url = \"sqlite:///t.db\"\n";

    fn global() -> Global {
        Global { config: None, database_url: None, verbose: 0, quiet: false, log_format: None }
    }

    /// A configuration file, and the environment that it is read in.
    struct Set {
        dir: TempDir,
        global: Global,
        budget: Option<Duration>,
        env: BTreeMap<String, OsString>,
    }

    impl Set {
        fn new(text: &str) -> Self {
            let dir = TempDir::new().unwrap();
            let file = dir.path().join("c.toml");
            fs::write(&file, text).unwrap();
            Self {
                dir,
                global: Global { config: Some(file), ..global() },
                budget: None,
                env: BTreeMap::new(),
            }
        }

        fn with(mut self, name: &str, value: &str) -> Self {
            self.env.insert(name.into(), value.into());
            self
        }

        fn load(&self) -> Result<Config> {
            Config::load_in(&self.global, self.budget, &|name| self.env.get(name).cloned())
        }

        fn log_format(&self) -> Result<LogFormat> {
            log_format_of(&self.global, &|name| self.env.get(name).cloned())
        }

        /// What it is refused with: of the kind usage, one line, its file named as F.
        fn refused(&self) -> String {
            let error = self.load().err().expect("must be refused");
            assert_eq!(trouble::Trouble::kind_of(&error), Some(trouble::Kind::Usage));
            let text =
                format!("{error:#}").replace(&self.dir.path().join("c.toml").display().to_string(), "F");
            assert!(!text.contains('\n'), "{text}");
            text
        }
    }

    fn loaded(text: &str) -> Config {
        Set::new(text).load().unwrap_or_else(|error| panic!("{error:#}\n{text}"))
    }

    fn refused(text: &str) -> String {
        Set::new(&format!("{DATABASE}{text}")).refused()
    }

    const HTTP: &str = "[channel.welcome]\nkind = \"http\"\nurl = \"https://h/\"\nbody = \"1\"\n";

    #[test]
    fn the_example_says_what_holds_without_it() {
        let example = loaded(EXAMPLE);
        let bare = loaded(&format!(
            "{DATABASE}[channel.welcome]\nkind = \"http\"\nurl = \"https://h/\"\nbody = \"1\"\n\
             [channel.local]\nkind = \"exec\"\ncommand = [\"/usr/local/bin/send\"]\n\
             [channel.spool]\nkind = \"file\"\npath = \"/var/spool/batch-send.jsonl\"\n"
        ));
        assert_eq!(example.run, bare.run);
        assert_eq!(example.table_prefix, bare.table_prefix);
        assert_eq!((&example.state_dir, &example.lock_dir), (&bare.state_dir, &bare.lock_dir));
        for (one, other) in example.channels.values().zip(bare.channels.values()) {
            assert_eq!(one.name, other.name);
            assert_eq!(
                (one.timeout, one.concurrency, one.ahead, &one.policy),
                (other.timeout, other.concurrency, other.ahead, &other.policy)
            );
            match (&one.kind, &other.kind) {
                (Kind::Http(one), Kind::Http(other)) => assert_eq!(one.method, other.method),
                (Kind::Exec(one), Kind::Exec(other)) => assert_eq!(one, other),
                (Kind::File(one), Kind::File(other)) => assert_eq!(one, other),
                _ => panic!("{}: another kind", one.name),
            }
        }
        assert_eq!(example.channels.len(), 3);
    }

    #[test]
    fn the_example_has_every_key_and_those_commented_out_are_right_too() {
        let all: String = EXAMPLE
            .lines()
            .map(|line| line.strip_prefix('#').filter(|key| key.starts_with(word)).unwrap_or(line))
            .flat_map(|line| [line, "\n"])
            .collect();
        let config = Set::new(&all).with("API_TOKEN", "t").load().unwrap();
        assert_eq!(config.lock_dir, Path::new("/run/batch-send"));

        // What a file may have is what is asked of it; an empty one in each place tells.
        let table: Table = all.parse().unwrap();
        let keys = |place: &Value| place.as_table().unwrap().keys().cloned().collect::<Vec<_>>();
        let channel = &table["channel"];
        let mut own = keys(&channel["welcome"]);
        own.extend(keys(&channel["local"]));
        own.extend(keys(&channel["spool"]));
        let common = refused("[channel.c]\nkind = \"file\"\nxxxxx = 1\n");
        let listed = |text: &str| {
            let (_, list) = text.split_once("known here: ").unwrap();
            list.split(", ").map(str::to_owned).collect::<Vec<_>>()
        };
        let known = [listed(&common), listed(&refused("[channel.c]\nkind = \"exec\"\nxxxxx = 1\n"))].concat();
        let http = listed(&refused("[channel.c]\nkind = \"http\"\nbody = \"\"\nxxxxx = 1\n"));
        for key in known.iter().chain(&http) {
            assert!(own.contains(key), "`{key}` is not in the example");
        }
        for key in listed(&refused("[run]\nxxxxx = 1\n")) {
            assert!(keys(&table["run"]).contains(&key), "`{key}` is not in the example");
        }
        for key in listed(&refused("xxxxx = 1\n")) {
            assert!(table.contains_key(&key), "`{key}` is not in the example");
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_nearest_neighbour() {
        let table = [
            (
                "[channel.welcome]\nkind = \"http\"\nconcurency = 3\n",
                "F: unknown key `concurency` in [channel.welcome]: did you mean `concurrency`?",
            ),
            (
                "[channel.welcome]\nkind = \"http\"\nULR = \"https://h/\"\nbody = \"1\"\n",
                "F: unknown key `ULR` in [channel.welcome]: did you mean `url`?",
            ),
            ("[run]\nbatchsize = 3\n", "F: unknown key `batchsize` in [run]: did you mean `batch_size`?"),
            ("table_prefx = \"b_\"\n", "F: unknown key `table_prefx`: did you mean `table_prefix`?"),
            ("[chanel.x]\nkind = \"http\"\n", "F: unknown key `chanel`: did you mean `channel`?"),
            (
                "[channel.c]\nkind = \"file\"\npath = \"/p\"\nbackoff = { frist = \"1s\" }\n",
                "F: unknown key `frist` in [channel.c.backoff]: did you mean `first`?",
            ),
            (
                "[run]\nzzz = 1\n",
                "F: unknown key `zzz` in [run]; known here: budget, lease, turn, lanes, batch_size, claim",
            ),
            (
                "[channel.c]\nkind = \"htp\"\n",
                "F: `kind` in [channel.c] is unknown: \"htp\": did you mean `http`?",
            ),
            (
                "[channel.a.b]\nkind = \"file\"\n[channel.a]\nkind = \"file\"\n",
                "F: [channel.a.b] is a table inside [channel.a]: write the name of a channel with a dot in quotes, as in [channel.\"a.b\"]",
            ),
        ];
        for (text, sentence) in table {
            assert_eq!(refused(text), sentence);
        }
    }

    #[test]
    fn each_mistake_is_one_sentence_with_file_table_and_key() {
        let channel = |line: &str| format!("{HTTP}{line}\n");
        let run = |line: &str| format!("[run]\n{line}\n");
        let exec = |line: &str| format!("[channel.x]\nkind = \"exec\"\n{line}\n");
        let file = |line: &str| format!("[channel.x]\nkind = \"file\"\n{line}\n");
        let table = [
            (channel("timeout = \"11m\""), "`timeout` in [channel.welcome] must be 1ms to 10m, not 11m"),
            (channel("timeout = \"0s\""), "`timeout` in [channel.welcome] must be 1ms to 10m, not 0ms"),
            (
                channel("timeout = 10"),
                "`timeout` in [channel.welcome] must be a duration such as \"50s\", not of type integer",
            ),
            (
                channel("timeout = \"10\""),
                "`timeout` in [channel.welcome]: \"10\" is no duration: write an integer and ms, s, m, h or d, as in 50s",
            ),
            (channel("concurrency = 257"), "`concurrency` in [channel.welcome] must be 1 to 256, not 257"),
            (
                channel("concurrency = \"8\""),
                "`concurrency` in [channel.welcome] must be an integer, not of type string",
            ),
            (channel("ahead = -1"), "`ahead` in [channel.welcome] must be 0 to 10000, not -1"),
            (channel("max_attempts = 0"), "`max_attempts` in [channel.welcome] must be 1 to 100, not 0"),
            (channel("max_attempts = 101"), "`max_attempts` in [channel.welcome] must be 1 to 100, not 101"),
            (
                channel("stop_after_unknown = 0"),
                "`stop_after_unknown` in [channel.welcome] must be 1 to 65535, not 0",
            ),
            (
                channel("backoff = { first = \"2h\" }"),
                "`first` in [channel.welcome.backoff] (2h) must not be longer than `most` (1h)",
            ),
            (
                channel("backoff = \"30s\""),
                "`backoff` in [channel.welcome] must be a table, not of type string",
            ),
            (
                channel("rate = \"100/s\""),
                "`rate` in [channel.welcome] comes later: this version cannot keep what it promises, take it out",
            ),
            (
                channel("idempotent_for = \"24h\""),
                "`idempotent_for` in [channel.welcome] comes later: this version cannot keep what it promises, take it out",
            ),
            (channel("ca_file = \"ca.pem\""), "`ca_file` in [channel.welcome] must be an absolute path"),
            (
                "[channel.c]\nkind = \"http\"\nurl = \"https://h/\"\n".into(),
                "`body` in [channel.c] is missing: a channel of kind http needs one, as in '{\"to\": {{ target.recipient }}}'",
            ),
            ("[channel.c]\nkind = \"http\"\nbody = \"1\"\n".into(), "[channel.c]: missing field `url`"),
            (
                "[channel.c]\nurl = \"https://h/\"\n".into(),
                "`kind` in [channel.c] is missing: one of exec, file, http",
            ),
            (
                "[channel.c]\nkind = \"smtp\"\n".into(),
                "`kind` in [channel.c] = \"smtp\" comes later: this version has exec, file, http",
            ),
            (
                "[channel.\"a b\"]\nkind = \"file\"\n".into(),
                "`a b` is no name for a channel: it takes 1-64 ASCII letters, digits, `_`, `-` and `.`",
            ),
            ("channel = 1\n".into(), "`channel` must be a table, not of type integer"),
            (
                exec("command = []"),
                "[channel.x]: `command` is empty: name a program, as in [\"/usr/local/bin/send\"]",
            ),
            (
                exec("command = [\"send\"]"),
                "[channel.x]: the program of `command` must be an absolute path, not `send`: cron's PATH is not yours",
            ),
            (
                exec("command = \"/bin/send secret\""),
                "`command` in [channel.x]: invalid type: a string, expected a sequence",
            ),
            (
                exec("command = [\"/s\"]\nexit_codes = { rejected = [75] }"),
                "`exit_codes` in [channel.x]: exit code 75 is both deferred and rejected: each code has one meaning, and a class that is not given keeps its default",
            ),
            (
                exec("command = [\"/s\"]\nexit_codes = { rejected = [\"9-3\"] }"),
                "`exit_codes` in [channel.x]: `9-3` is no range of exit codes: write it as in \"65-69\"",
            ),
            (
                file("path = \"spool\""),
                "[channel.x]: `path` must be absolute, not `spool`: cron's working directory is not yours",
            ),
            (run("budget = \"500ms\""), "`budget` in [run] must be 1s to 1d, not 500ms"),
            (run("lease = \"2s\""), "`lease` in [run] must be 3s to 1d, not 2s"),
            (run("lanes = 65"), "`lanes` in [run] must be 1 to 64, not 65"),
            (run("batch_size = 5001"), "`batch_size` in [run] must be 1 to 5000, not 5001"),
            (
                run("claim = \"skip_locked\""),
                "`claim` in [run] must be auto, skip-locked or update, not `skip_locked`",
            ),
            (
                format!("[run]\nlanes = 5\n{HTTP}concurrency = 205\n"),
                "5 `lanes` of [run] times 205 `concurrency` in [channel.welcome] are more than 1024 sends at once: lower one of them",
            ),
            (
                "table_prefix = \"\"\n".into(),
                "`table_prefix` must be 1-32 letters, digits or underscores, not ``",
            ),
            (
                "table_prefix = \"a-b\"\n".into(),
                "`table_prefix` must be 1-32 letters, digits or underscores, not `a-b`",
            ),
            ("state_dir = \"var\"\n".into(), "`state_dir` must be an absolute path, not `var`"),
            ("table_prefix = 1\n".into(), "`table_prefix` must be a string, not of type integer"),
        ];
        for (text, sentence) in table {
            assert_eq!(refused(&text), format!("F: {sentence}"));
        }
        let template = refused(
            "[channel.w]\nkind = \"http\"\nurl = \"https://h/\"\nbody = '''\n{\n\"a\": {{ key }\n}'''\n",
        );
        assert!(template.starts_with("F: `body` in [channel.w] cannot be read: "), "{template}");
        assert!(template.contains("in line 2 of the body"), "{template}");
    }

    #[test]
    fn limits_themselves_are_allowed() {
        let config = loaded(&format!(
            "{DATABASE}[run]\nbudget = \"24h\"\nlease = \"3s\"\nlanes = 64\nbatch_size = 5000\nclaim = \"update\"\n\
             {HTTP}timeout = \"10m\"\nconcurrency = 16\nahead = 10000\nmax_attempts = 100\n\
             backoff = {{ first = \"0s\", most = \"0s\" }}\n"
        ));
        assert_eq!(config.run.claim, ClaimForm::Update);
        assert_eq!((config.run.lanes, config.channels["welcome"].concurrency), (64, 16));
        let long = "c".repeat(64);
        assert!(
            loaded(&format!("{DATABASE}[channel.{long}]\nkind = \"file\"\npath = \"/p\"\n"))
                .channels
                .contains_key(&long)
        );
        assert!(
            refused(&format!("[channel.{long}c]\nkind = \"file\"\npath = \"/p\"\n")).contains("is no name")
        );
    }

    #[test]
    fn a_flag_goes_before_the_environment_and_that_before_the_file() {
        let mut set = Set::new(&format!("{DATABASE}[run]\nbudget = \"10s\"\n"));
        let seen = |set: &Set| {
            let config = set.load().unwrap();
            (config.database_url, config.run.budget, set.log_format().unwrap())
        };
        assert_eq!(seen(&set), ("sqlite:///t.db".into(), 10 * SECOND, LogFormat::Text));
        set = set
            .with("BATCH_SEND_DATABASE_URL", "mysql://e:$${X}@h/d")
            .with("BATCH_SEND_BUDGET", "20s")
            .with("BATCH_SEND_LOG_FORMAT", "json");
        assert_eq!(seen(&set), ("mysql://e:$${X}@h/d".into(), 20 * SECOND, LogFormat::Json));
        set.global.database_url = Some("mysql://f/d".into());
        set.global.log_format = Some(LogFormat::Text);
        set.budget = Some(30 * SECOND);
        assert_eq!(seen(&set), ("mysql://f/d".into(), 30 * SECOND, LogFormat::Text));

        set.budget = Some(25 * HOUR);
        assert_eq!(set.refused(), "--budget must be 1s to 1d, not 25h");
        set.budget = None;
        assert_eq!(set.with("BATCH_SEND_BUDGET", "1").refused().split(':').next(), Some("BATCH_SEND_BUDGET"));
        let set = Set::new(DATABASE).with("BATCH_SEND_LOG_FORMAT", "xml");
        let error = set.log_format().unwrap_err().to_string();
        assert_eq!(error, "BATCH_SEND_LOG_FORMAT must be text or json, not `xml`");
        let set = Set::new(DATABASE).with("BATCH_SEND_DATABASE_URL", "").with("BATCH_SEND_BUDGET", "");
        assert_eq!(seen(&set), ("sqlite:///t.db".into(), 50 * SECOND, LogFormat::Text));
    }

    #[test]
    fn a_named_file_must_be_there_and_the_database_must_be_named_somewhere() {
        let mut set = Set::new("");
        assert_eq!(
            set.refused(),
            "F: `database_url` is missing: put it there, as in \"mysql://app@db.internal/shop\" or \
             \"sqlite:///var/lib/batch-send/tasks.db\", or give --database-url or BATCH_SEND_DATABASE_URL"
        );
        set.global.database_url = Some("sqlite:///t.db".into());
        assert!(set.load().unwrap().channels.is_empty());

        set.global.config = Some("/no/such.toml".into());
        let missing = "cannot read the configuration /no/such.toml, named by --config: No such file";
        assert!(set.refused().starts_with(missing), "{}", set.refused());
        set.global.config = None;
        let set = set.with("BATCH_SEND_CONFIG", "/no/such.toml");
        assert!(set.refused().contains("/no/such.toml, named by BATCH_SEND_CONFIG"), "{}", set.refused());

        let set = Set::new(DATABASE);
        let file = set.global.config.clone().unwrap();
        let by_env = Set { global: global(), ..set }.with("BATCH_SEND_CONFIG", file.to_str().unwrap());
        assert_eq!(by_env.load().unwrap().database_url, "sqlite:///t.db");
    }

    #[test]
    fn broken_toml_is_refused_with_its_line_and_without_its_text() {
        let text = refused("[channel.c]\nkind = \"http\"\nheaders = { A = \"secret } \n");
        assert!(text.starts_with("F: line 4 is no TOML: "), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn no_refusal_shows_a_secret() {
        for line in [
            "headers = \"secret\"",
            "headers = { A = [\"secret\"] }",
            "receipt = [\"secret\"]",
            "url = [\"secret\"]",
        ] {
            let text = refused(&format!(
                "[channel.c]\nkind = \"http\"\nbody = \"1\"\n{}{line}\n",
                if line.starts_with("url") { "" } else { "url = \"https://h/\"\n" }
            ));
            assert!(text.contains("in [channel.c]: invalid type"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn variables_are_the_environments_and_one_that_is_not_set_stops_only_who_sends() {
        let text = format!(
            "{DATABASE}{HTTP}headers = {{ Authorization = \"Bearer ${{TOKEN}}\", Price = \"$5 $$ $${{TOKEN}}\" }}\n\
             [channel.run]\nkind = \"exec\"\ncommand = [\"${{BIN}}/send\", \"--to=${{BIN}}\"]\n\
             [channel.spool]\nkind = \"file\"\npath = \"${{DIR}}/spool\"\n"
        );
        let set = Set::new(&text).with("TOKEN", "t${X}").with("BIN", "/opt");
        let config = set.load().unwrap();
        let Kind::Http(http) = &config.channels["welcome"].kind else { panic!("another kind") };
        assert_eq!(http.headers["Authorization"], "Bearer t${X}");
        assert_eq!(http.headers["Price"], "$5 $$ ${TOKEN}");
        let Kind::Exec(exec) = &config.channels["run"].kind else { panic!("another kind") };
        assert_eq!(exec.command, ["/opt/send", "--to=/opt"]);
        assert!(config.channels["welcome"].sender(1).is_ok() && config.channels["run"].sender(1).is_ok());

        let error = config.channels["spool"].sender(1).err().unwrap();
        assert_eq!(trouble::Trouble::kind_of(&error), Some(trouble::Kind::Usage));
        let text = error.to_string();
        let expected = "c.toml: [channel.spool]: the environment has no `DIR`, which `path` asks for: set it where \
                        batch-send is started (in the crontab), or write `$${DIR}` if the text itself is meant";
        assert!(text.ends_with(expected), "{text}");

        for wrong in ["${", "${}", "${A-B}", "${1}", "x ${ A }"] {
            let text = refused(&format!("[channel.c]\nkind = \"file\"\npath = \"{wrong}\"\n"));
            assert!(text.starts_with("F: `path` in [channel.c]: `${` must be followed by"), "{text}");
        }
    }

    #[test]
    fn in_the_database_url_a_variable_is_percent_encoded() {
        let text = "database_url = \"mysql://app:${PW}@h/d?x=$1\"\n";
        let config = Set::new(text).with("PW", "p@:/?#%ä ~").load().unwrap();
        assert_eq!(config.database_url, "mysql://app:p%40%3A%2F%3F%23%25%C3%A4%20~@h/d?x=$1");
        assert_eq!(
            Set::new(text).refused(),
            "F: the environment has no `PW`, which `database_url` asks for: set it where batch-send is started"
        );
        let mut set = Set::new(text);
        set.global.database_url = Some("mysql://h/d".into());
        assert!(set.load().is_ok(), "the file's is not used, and not asked of the environment");
    }

    #[test]
    fn directories_are_made_for_their_owner_alone_or_named_with_the_user() {
        use std::os::unix::fs::PermissionsExt;
        let dir = TempDir::new().unwrap();
        let state = dir.path().join("a/state");
        let config = loaded(&format!("{DATABASE}state_dir = \"{}\"\n", state.display()));
        assert_eq!(config.lock_dir, state);
        config.make_dirs().unwrap();
        config.make_dirs().unwrap();
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);

        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let lock = file.join("lock");
        let config = loaded(&format!(
            "{DATABASE}state_dir = \"{}\"\nlock_dir = \"{}\"\n",
            state.display(),
            lock.display()
        ));
        let error = config.make_dirs().unwrap_err();
        assert_eq!(trouble::Trouble::kind_of(&error), Some(trouble::Kind::Usage));
        let start = format!("cannot write in {} as user {}: ", lock.display(), who::user());
        assert!(error.to_string().starts_with(&start), "{error}");
        assert!(error.to_string().contains("`lock_dir`"), "{error}");
    }
}
