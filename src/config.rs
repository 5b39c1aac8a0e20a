//! Flags, environment and file become one validated `Config`. Every default and limit of the configuration is here. How a table
//! of the file is read is config/section.rs, what the environment says config/environment.rs, what of the file others must not
//! see config/exposed.rs, how a run tells what it does config/told.rs. What a channel needs beyond the common keys is declared
//! in its sender's file. Each refusal is one sentence: the file, the table, the key, and the way out; never a value that may be
//! a secret.
//!
//! A setting is taken from its flag, else from `BATCH_SEND_*` (empty counts as unset), else from the file.
//!
//! `${NAME}` in the keys of `EXPANDED` and in the file's `database_url` (percent-encoded there) is the environment variable NAME.
//! `$${` stands for `${` itself; a `$` before anything else is just that. A `--database-url`
//! and `$BATCH_SEND_DATABASE_URL` are taken as they are. A channel whose variable is not set is wrong only once it is to send
//! ([`Channel::sender`]): a person who looks at `status` need not have cron's secrets. All else about a channel is wrong at
//! once, for every command.

mod environment;
mod exposed;
mod section;
mod told;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result};
use clap::ValueEnum;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use uuid::Uuid;

use self::environment::{Environment, environment, expand, text_of};
pub use self::exposed::Exposed;
use self::section::{Section, out_of};
pub use self::told::Told;
use crate::cli::{Global, LogFormat, duration};
use crate::message::{Renderer, Template};
use crate::pace::Pace;
use crate::sender::{Discreet, Exchange, Kind, Sender, exec, file, http, percent_encoded, smtp, wechat};
use crate::settlement::Policy;
use crate::store::ClaimForm;
use crate::task::Task;
use crate::trouble::{Trouble, neighbour};
use crate::who;
use crate::window::Window;

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

const KINDS: [&str; 5] = ["exec", "file", "http", "smtp", "wechat"];

/// Keys of channels in which `${NAME}` is the environment's.
const EXPANDED: [&str; 10] =
    ["appid", "command", "headers", "host", "password", "path", "secret", "sign_key", "url", "user"];

pub struct Config {
    /// The file it was read from; None: there is none, and flags or environment said enough.
    pub file: Option<PathBuf>,
    /// What the file holds that others should not read.
    pub secrets: Vec<String>,
    pub database_url: String,
    pub table_prefix: String,
    pub lock_dir: PathBuf,
    pub state_dir: PathBuf,
    pub told: Told,
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
    /// How fast it may be sent to, over all hosts and runs.
    pub pace: Option<Pace>,
    /// The hours in which anything may leave.
    pub window: Option<Window>,
    pub template: Option<Template>,
    /// Everything goes to this recipient instead: for staging.
    pub redirect_to: Option<String>,
    kind: Kind,
    /// Where this channel is written, for the errors of `sender`.
    place: String,
    /// A `${NAME}` that the environment does not have, and its key.
    unset: Option<Unset>,
    /// What the environment gave for each `${NAME}`: it must not show.
    secrets: Vec<String>,
}

struct Unset {
    name: String,
    key: String,
}

impl Unset {
    fn refused(&self, place: &str) -> Error {
        let Self { name, key } = self;
        usage(format!(
            "{place}: the environment has no `{name}`, which `{key}` asks for: set it where batch-send is started (in \
             the crontab), or write `$${{{name}}}` if the text itself is meant"
        ))
    }
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
        .map_err(|_| usage(format!("BATCH_SEND_LOG_FORMAT must be text, json or journal, not `{text}`")))
}

/// Whether a terminal may be written to in colours: not with `NO_COLOR`, and not where it cannot show them.
pub fn colours() -> bool {
    colours_in(&environment)
}

fn colours_in(env: Environment) -> bool {
    let set = |name: &str| env(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|kind| kind != "dumb")
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
        let state_dir = top.absolute("state_dir")?.unwrap_or_else(|| STATE_DIR.into());
        let lock_dir = top.absolute("lock_dir")?.unwrap_or_else(|| state_dir.clone());
        let told = Told::read(&mut top, env)?;
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
        let file = (!text.is_empty()).then(|| path.clone());
        let secrets = exposed::secrets(&text);
        Ok(Self { file, secrets, database_url, table_prefix, lock_dir, state_dir, told, run, channels })
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
    /// Renders this channel's messages of one task.
    pub fn renderer<'a>(&'a self, installation: Uuid, task: &'a Task) -> Renderer<'a> {
        Renderer::new(installation, task, self.template.as_ref(), self.redirect_to.as_deref())
    }

    /// How long one send may take, from its begin to its answer: what claims, runs and locks must outlast.
    pub fn longest(&self) -> Duration {
        self.kind.longest(self.timeout)
    }

    /// Kind, for people.
    pub fn kind(&self) -> &'static str {
        self.kind.word()
    }

    /// The sender of this channel, for so many lanes. Errors are [`crate::trouble::Kind::Usage`]: a `${NAME}` that is not set,
    /// a setting that the kind refuses.
    pub fn sender(&self, lanes: usize) -> Result<Box<dyn Sender>> {
        if let Some(unset) = &self.unset {
            return Err(unset.refused(&self.place));
        }
        let exchange = Exchange {
            timeout: self.timeout,
            concurrency: self.concurrency * lanes,
            keyed: self.policy.idempotent_for.is_some(),
        };
        let sender =
            self.kind.open(&exchange).map_err(|error| usage(format!("{}: {error:#}", self.place)))?;
        Ok(Box::new(Discreet::new(sender, &self.secrets)))
    }

    fn read_all(mut all: Section, lanes: usize, env: Environment) -> Result<BTreeMap<String, Self>> {
        let names: Vec<String> = all.table.keys().cloned().collect();
        let mut channels = BTreeMap::new();
        for name in names {
            if !is_channel_name(&name) {
                return Err(
                    all.refuse(format!("`{name}` is no name for a channel: it takes {CHANNEL_NAMES}"))
                );
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
        let mut policy = Policy {
            max_attempts: section.integer("max_attempts", 5, 1..=100)?,
            backoff: section.backoff()?,
            stop_after_unknown: section.integer("stop_after_unknown", 5, 1..=u16::MAX)?,
            idempotent_for: section.optional_duration("idempotent_for", MS..=30 * DAY)?,
        };
        let pace = section.pace()?;
        let window = section.window()?;
        let redirect_to = section.string("redirect_to")?;
        let body = section.string("body")?;
        if lanes * concurrency > IN_FLIGHT_MOST {
            return Err(section.refuse(format!(
                "{lanes} `lanes` of [run] times {concurrency} {} are more than {IN_FLIGHT_MOST} sends at once: \
                 lower one of them",
                section.key("concurrency")
            )));
        }

        let given = RefCell::new(Vec::new());
        let env: Environment = &|name| {
            let value = env(name);
            given.borrow_mut().extend(value.as_ref().map(|value| value.to_string_lossy().into_owned()));
            value
        };
        let (kind, unset) = match kind.as_str() {
            "http" => {
                let (settings, unset) = section.own::<http::Settings>(env)?;
                section.checked(settings.check(), &unset)?;
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
            "smtp" => {
                let (settings, unset) = section.own::<smtp::Settings>(env)?;
                section.checked(settings.check(), &unset)?;
                if body.is_some() {
                    return Err(section.refuse(format!(
                        "{} is not for a mail: its templates are `subject`, `text`, `html` and the like; take it out",
                        section.key("body")
                    )));
                }
                (Kind::Smtp(settings), unset)
            }
            "wechat" => {
                let (settings, unset) = section.own::<wechat::Settings>(env)?;
                section.checked(settings.check(body.as_deref()), &unset)?;
                (Kind::Wechat(settings), unset)
            }
            other => {
                return Err(section.refuse(format!(
                    "{} is unknown: \"{other}\"{}",
                    section.key("kind"),
                    neighbour(other, &KINDS)
                )));
            }
        };
        policy.idempotent_for = section.idempotent_for(&policy, &kind, timeout)?;
        let with_attempt = policy.idempotent_for.is_none();
        let template = match &kind {
            Kind::Smtp(settings) => {
                let texts = settings.texts();
                let texts: Vec<_> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
                let template = Template::texts(&texts, with_attempt)
                    .map_err(|error| section.refuse(format!("[{}]: {error:#}", section.name)))?;
                Some(template)
            }
            _ => body.map(|body| Template::json(&body, with_attempt)).transpose().map_err(|error| {
                section.refuse(format!("{} cannot be read: {error:#}", section.key("body")))
            })?,
        };
        if redirect_to.as_deref().is_some_and(|recipient| recipient.trim().is_empty()) {
            return Err(section.refuse(format!(
                "{} is empty: name the one recipient of everything, or take it out",
                section.key("redirect_to")
            )));
        }
        // Only http has its recipient from nowhere else.
        let elsewhere =
            matches!(kind, Kind::Http(_)) && template.as_ref().is_some_and(|body| !body.names_recipient());
        if redirect_to.is_some() && elsewhere {
            return Err(section.refuse(format!(
                "{} stands in for `target.recipient`, which {} does not have: messages would go to the real recipients",
                section.key("redirect_to"),
                section.key("body")
            )));
        }
        let place = format!("{}: [{}]", section.file.display(), section.name);
        let secrets = given.into_inner();
        Ok(Self {
            name,
            timeout,
            concurrency,
            ahead,
            policy,
            pace,
            window,
            template,
            redirect_to,
            kind,
            place,
            unset,
            secrets,
        })
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
            let way_out = match error.kind() {
                ErrorKind::NotFound => "; write it, or name another".into(),
                ErrorKind::PermissionDenied => match who::may_not(&path) {
                    Some(whose) => format!("; {whose}: call batch-send as a user who may read it"),
                    None => format!(
                        "; user {} may not look into its directory: call batch-send as a user who may",
                        who::user()
                    ),
                },
                _ => String::new(),
            };
            Err(usage(format!("cannot read the configuration {}{by}: {error}{way_out}", path.display())))
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

/// What [`is_channel_name`] asks for.
pub const CHANNEL_NAMES: &str = "1-64 ASCII letters, digits, `_`, `-` and `.`";

/// Whether a channel can be called so.
pub fn is_channel_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.chars().all(|c| word(c) || c == '-' || c == '.')
}

fn within(what: &str, value: Duration, range: &RangeInclusive<Duration>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(usage(out_of(what, value, range)))
}

#[cfg(test)]
mod tests;
