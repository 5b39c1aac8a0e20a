//! Every subcommand and flag with its help. No behaviour, but what makes a value: durations and times.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::target::TargetId;
use crate::task::{TaskId, When};
use crate::trouble::neighbour;

/// Sends bulk messages from a database: never twice, never lost, never silent.
///
/// Without a subcommand it means `run`: what cron starts every minute.
#[derive(Debug, Parser)]
#[command(name = "batch-send", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,

    #[command(flatten)]
    pub run: RunArgs,

    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Cli {
    pub fn is_run(&self) -> bool {
        matches!(self.command, None | Some(Command::Run(_)))
    }

    /// Flags of `run` stand after it, or alone; before another subcommand they would silently mean nothing.
    pub fn check_placement(&self) -> Result<(), clap::Error> {
        if self.command.is_none() || self.run == RunArgs::default() {
            return Ok(());
        }
        Err(Self::command().error(
            clap::error::ErrorKind::ArgumentConflict,
            "flags of `run` stand after `run`, or alone without a subcommand",
        ))
    }
}

#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Configuration file [else $BATCH_SEND_CONFIG, else /etc/batch-send/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Database, over the configuration's and $BATCH_SEND_DATABASE_URL
    #[arg(long, global = true, value_name = "URL")]
    pub database_url: Option<String>,

    /// Say more on stderr: -v what happens, -vv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Say less on stderr: errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Form of the lines on stderr [else $BATCH_SEND_LOG_FORMAT, else text]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
    /// With the priority that systemd's journal reads in front of each line
    Journal,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Send what is due, then leave: what cron starts every minute
    Run(RunArgs),
    /// Create tasks and move them along
    #[command(subcommand)]
    Task(TaskCommand),
    /// Show tasks and how many of their targets are in each status
    Status(StatusArgs),
    /// List the targets of a task
    Targets(TargetsArgs),
    /// What became of a task, as one page: progress, pace, reasons, latency, and whom it left unknown
    Report(ReportArgs),
    /// Settle unknown targets, by a person's word
    Resolve(ResolveArgs),
    /// One more attempt, with a new key, for failed targets of a task
    Retry(RetryArgs),
    /// The list of those who get nothing
    #[command(subcommand)]
    Suppress(SuppressCommand),
    /// Remove tasks that ended long ago, with their targets
    Purge(PurgeArgs),
    /// Bring the tables to this version
    Migrate(MigrateArgs),
    /// Look at everything that runs rely on: configuration, host, database, channels
    ///
    /// One line a finding: ok, warning or error, with the way out. It sends nothing and writes nothing. Exit 2 when there is an
    /// error.
    Check(CheckArgs),
    /// The whole story on an embedded database, with rivals and a kill
    Demo(DemoArgs),
    /// Print what a shell needs to complete these commands
    Completions(CompletionsArgs),
    /// Write the manual pages: one of the whole, and one of each subcommand
    Man(ManArgs),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct RunArgs {
    /// Run this one task now, beside cron
    #[arg(long, value_name = "N")]
    pub task_id: Option<TaskId>,

    /// Go beside whoever holds the task; passes its schedule and the pause that stands now, never a claim, an expiry or a draft
    #[arg(long, requires = "task_id")]
    pub force: bool,

    /// Begin at most so many targets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// For how long this run begins new targets [else $BATCH_SEND_BUDGET, else `budget` of the configuration]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub budget: Option<Duration>,

    /// Append what happens to this file, too [else `log_file` of the configuration]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Print what would be sent, and to whom; claims nothing, writes nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Print the message of this one target of the task, whatever its status
    #[arg(long, value_name = "ID", requires_all = ["dry_run", "task_id"], conflicts_with = "limit")]
    pub target: Option<TargetId>,
}

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// Create a task and print its id
    Create(CreateArgs),
    /// Add targets to a task; repeats are merged
    Add(AddArgs),
    /// List the tasks
    List(JsonArgs),
    /// Let a draft be sent
    Start(TaskArgs),
    /// Stop sending; what is on its way is waited for
    Pause(PauseArgs),
    /// Let a paused task go on
    Resume(ResumeArgs),
    /// End a task for good; what was not sent stays unsent
    Cancel(CancelArgs),
    /// Send the message of one target to yourself, now, whatever the task's status
    ///
    /// It has a key of its own, and no row is touched. Neither the list of those who get nothing nor the channel's pace and hours
    /// are asked. Exit 0: the channel accepted it.
    Try(TryArgs),
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// For people
    #[arg(long)]
    pub name: String,

    /// A [channel.NAME] of the configuration
    #[arg(long, value_name = "CH")]
    pub channel: String,

    /// JSON that templates see as task.payload; @FILE reads it from there
    #[arg(long, value_name = "JSON|@FILE")]
    pub payload: Option<String>,

    /// Not before: RFC 3339 with an offset, or +2h
    #[arg(long, value_name = "TIME", value_parser = when)]
    pub at: Option<When>,

    /// Not after: a start missed by hours must not go out at night; RFC 3339 with an offset, or +2h
    #[arg(long, value_name = "TIME", value_parser = when)]
    pub expires: Option<When>,

    /// Higher first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i16,

    /// CSV with a header (recipient; other columns become target.params), or JSON lines of recipient and params; - reads stdin
    #[arg(long, value_name = "FILE|-")]
    pub targets: Option<PathBuf>,

    /// Leave it in draft, to be started later
    #[arg(long)]
    pub draft: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AddArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    /// CSV with a header, or JSON lines; - reads stdin
    #[arg(value_name = "FILE|-")]
    pub targets: PathBuf,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TaskArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PauseArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    /// Why, for people
    #[arg(long)]
    pub reason: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    /// A new end for a task that expired: RFC 3339 with an offset, +2h, or never
    #[arg(long, value_name = "TIME|never", value_parser = until)]
    pub until: Option<Until>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CancelArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TryArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    /// Who gets it, in place of the target's own recipient; `redirect_to` of the channel goes before it
    #[arg(long, value_name = "RECIPIENT")]
    pub to: String,

    /// The message of this target [else of the first that is not settled, else of the first]
    #[arg(long, value_name = "ID")]
    pub target: Option<TargetId>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Default, Args)]
pub struct StatusArgs {
    /// This task alone
    #[arg(value_name = "TASK")]
    pub id: Option<TaskId>,

    /// Count every row, also of open tasks above a million targets
    #[arg(long)]
    pub exact: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Look again and again, until ctrl-C; needs a terminal
    #[arg(long, conflicts_with_all = ["json", "fail_if"])]
    pub watch: bool,

    /// Exit 3, naming what is true of these: unknown, failed, paused, stalled, backlog=TIME
    #[arg(long, value_name = "WORD,...", value_delimiter = ',', value_parser = condition)]
    pub fail_if: Vec<Condition>,
}

/// What a monitor asks after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Unknown,
    Failed,
    Paused,
    Stalled,
    /// Something is due, and not sent, for longer than that.
    Backlog(Duration),
}

#[derive(Debug, Args)]
pub struct TargetsArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    /// Only these statuses, separated by commas
    #[arg(long, value_name = "STATUS,...", value_delimiter = ',')]
    pub status: Vec<String>,

    /// What became of these recipients, exactly as they are in the rows; one that the task has not is named, with exit 1
    #[arg(long, value_name = "X", num_args = 1.., conflicts_with = "status")]
    pub recipient: Vec<String>,

    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    /// Write a page of HTML, complete in itself, to this file; - is stdout. It names the recipients of unknown targets
    #[arg(long, value_name = "FILE|-", required = true)]
    pub html: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Csv,
    Jsonl,
}

/// Which targets of the task: at most one of these. Those that are not in the right status stay as they are, and are named with
/// exit 1.
#[derive(Debug, Args)]
#[group(skip)]
pub struct WhichArgs {
    /// These, by their ids; those that the verb is not for stay as they are, and are named with exit 1
    #[arg(long, value_name = "ID", num_args = 1.., value_delimiter = ',')]
    pub target: Vec<TargetId>,

    /// Those of these recipients, exactly as they are in the rows
    #[arg(long, value_name = "X", num_args = 1..)]
    pub recipient: Vec<String>,

    /// Those of a file: CSV with a header, or JSON lines, with `id` or else `recipient`; whatever else is there is passed over, so
    /// that what `targets` prints can be given back. A bad line ends it before anything is changed; from - (stdin), where it stands
    #[arg(long, value_name = "FILE|-")]
    pub file: Option<PathBuf>,

    /// Every one that the verb is for
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["target", "recipient", "file", "all"])))]
pub struct ResolveArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    #[command(flatten)]
    pub which: WhichArgs,

    /// What is known of them now; `retry` sends them again
    #[arg(long = "as", value_enum)]
    pub verdict: ResolveAs,

    /// How it is known, for the audit
    #[arg(long)]
    pub reason: Option<String>,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResolveAs {
    Sent,
    Failed,
    Retry,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").args(["target", "recipient", "file", "all"])))]
pub struct RetryArgs {
    #[arg(value_name = "TASK")]
    pub id: TaskId,

    #[command(flatten)]
    pub which: WhichArgs,

    /// Why, for the audit
    #[arg(long)]
    pub reason: Option<String>,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum SuppressCommand {
    /// From now on these get nothing; blanks around them, upper and lower case do not matter
    Add(SuppressAddArgs),
    /// Take these off the list; what they missed meanwhile is `failed`, and `retry` sends it
    Remove(SuppressRemoveArgs),
    /// Show the list; what it prints, `import` takes
    List(SuppressListArgs),
    /// Add those of a file; repeats are merged
    Import(SuppressImportArgs),
}

#[derive(Debug, Args)]
pub struct SuppressAddArgs {
    /// As in the rows of the targets: an address, a number, an id
    #[arg(value_name = "RECIPIENT", required = true)]
    pub recipients: Vec<String>,

    /// From this channel alone [else from every one]; one that this host's configuration does not know is taken, and named
    #[arg(long, value_name = "CH")]
    pub channel: Option<String>,

    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SuppressRemoveArgs {
    /// Who
    #[arg(value_name = "RECIPIENT", required = true)]
    pub recipients: Vec<String>,

    /// The entry for this channel [else the one for every channel]
    #[arg(long, value_name = "CH")]
    pub channel: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SuppressListArgs {
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct SuppressImportArgs {
    /// CSV with a header, or JSON lines: recipient, and perhaps channel (* is every one) and reason; whatever else is there
    /// is passed over; - reads stdin
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,

    /// For those of whom the file names no channel: this one alone [else every one]
    #[arg(long, value_name = "CH")]
    pub channel: Option<String>,

    /// Why, for people, where the file gives no reason
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PurgeArgs {
    /// Those that finished, or were cancelled with nothing in flight any more, so long ago; at least 1h
    #[arg(long, value_name = "TIME", value_parser = age)]
    pub finished_before: Duration,

    /// Those with unknown targets, too; else they stay, and are named with exit 3
    #[arg(long)]
    pub with_unknown: bool,

    /// Say which tasks, and how many targets; remove nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Change nothing; exit 0 when the tables are at this version, else 2
    #[arg(long, conflicts_with = "print")]
    pub check: bool,

    /// Print the statements that the database lacks, for somebody else to run
    #[arg(long)]
    pub print: bool,

    /// Print those from this version on, without asking the database; 0: it has no tables yet
    #[arg(long, value_name = "VERSION", requires = "print")]
    pub from: Option<u32>,

    /// Print JSON
    #[arg(long, conflicts_with = "print")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Of the channels, this one alone
    #[arg(long, value_name = "CH", conflicts_with = "no_channels")]
    pub channel: Option<String>,

    /// Connect to no channel
    #[arg(long)]
    pub no_channels: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How many targets
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub targets: u32,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// For bash this goes to /usr/share/bash-completion/completions/batch-send, for zsh to a directory of its fpath as
    /// _batch-send, for fish to ~/.config/fish/completions/batch-send.fish
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Where to; made when missing
    pub dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Never,
    Time(When),
}

/// An integer and `ms`, `s`, `m`, `h` or `d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is no duration: write an integer and ms, s, m, h or d, as in 50s");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).map(Duration::from_millis).ok_or_else(wrong)
}

/// How long ago a task has ended that may be purged. Within the first hour a run may reopen it.
fn age(text: &str) -> Result<Duration, String> {
    let age = duration(text)?;
    if (Duration::from_secs(3_600)..=Duration::from_secs(3650 * 86_400)).contains(&age) {
        return Ok(age);
    }
    Err(format!("\"{text}\" is not between 1h and 3650d"))
}

fn when(text: &str) -> Result<When, String> {
    let parsed = match text.strip_prefix('+') {
        Some(wait) => duration(wait).ok().map(When::In),
        None => DateTime::parse_from_rfc3339(text).ok().map(|time| When::At(time.with_timezone(&Utc))),
    };
    // A TIMESTAMP column ends in January 2038.
    let most = DateTime::from_timestamp(i64::from(i32::MAX), 0);
    match parsed {
        Some(When::At(time)) if Some(time) > most || time.timestamp() <= 0 => {
            Err(format!("\"{text}\" is outside 1970 to 2038, which is all that a TIMESTAMP column holds"))
        }
        Some(When::In(wait)) if wait > Duration::from_secs(3650 * 86_400) => {
            Err(format!("\"{text}\" is more than ten years away"))
        }
        Some(when) => Ok(when),
        None => Err(format!(
            "\"{text}\" is no time: write RFC 3339 with an offset, as in 2030-01-31T09:00:00+08:00, or +2h"
        )),
    }
}

fn condition(text: &str) -> Result<Condition, String> {
    const WORDS: [&str; 5] = ["unknown", "failed", "paused", "stalled", "backlog"];
    let (word, time) = text.split_once('=').map_or((text, None), |(word, time)| (word, Some(time)));
    match (word, time) {
        ("unknown", None) => Ok(Condition::Unknown),
        ("failed", None) => Ok(Condition::Failed),
        ("paused", None) => Ok(Condition::Paused),
        ("stalled", None) => Ok(Condition::Stalled),
        ("backlog", Some(time)) => duration(time).map(Condition::Backlog),
        ("backlog", None) => Err("`backlog` takes a time, as in backlog=10m".into()),
        (word, Some(_)) if WORDS.contains(&word) => {
            Err(format!("`{word}` takes no time: only backlog=10m does"))
        }
        _ => Err(format!("\"{word}\" is nothing to fail for{}", neighbour(word, &WORDS))),
    }
}

fn until(text: &str) -> Result<Until, String> {
    if text == "never" { Ok(Until::Never) } else { when(text).map(Until::Time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound_and_every_flag_has_help() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        let mut all = vec![command];
        while let Some(command) = all.pop() {
            for arg in command.get_arguments() {
                let positional = arg.is_positional() && arg.get_id() == "id";
                let listed = arg.get_id() == "format";
                assert!(
                    positional || listed || arg.get_help().is_some(),
                    "{}: {}",
                    command.get_name(),
                    arg.get_id()
                );
            }
            all.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("50s"), Ok(Duration::from_secs(50)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in
            ["", "50", "s", "-1s", "1.5s", "1 s", "1w", "99999999999999999999s", "18446744073709551615d"]
        {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_to_fail_for_is_a_word_and_a_backlog_has_a_time() {
        assert_eq!(condition("unknown"), Ok(Condition::Unknown));
        assert_eq!(condition("backlog=10m"), Ok(Condition::Backlog(Duration::from_secs(600))));
        let wrong = |text| condition(text).unwrap_err();
        assert!(wrong("unknwon").ends_with("did you mean `unknown`?"));
        assert!(wrong("backlogs=10m").ends_with("did you mean `backlog`?"));
        assert!(wrong("finished").contains("known here: unknown, failed, paused, stalled, backlog"));
        assert!(wrong("backlog").contains("backlog=10m") && wrong("backlog=10").contains("no duration"));
        assert!(wrong("failed=10m").contains("takes no time") && wrong("").contains("known here"));
    }

    #[test]
    fn times_have_an_offset_or_are_relative() {
        assert_eq!(when("+2h"), Ok(When::In(Duration::from_secs(7200))));
        let at = DateTime::parse_from_rfc3339("2030-01-31T01:00:00Z").unwrap().with_timezone(&Utc);
        assert_eq!(when("2030-01-31T09:00:00+08:00"), Ok(When::At(at)));
        for wrong in ["2030-01-31", "2030-01-31T09:00:00", "tomorrow", "2099-12-31T00:00:00Z", "+", "2h"] {
            assert!(when(wrong).is_err(), "{wrong}");
        }
    }
}
