//! Pieces of statements, and rows read back: how a text, a time or a list stands in SQL, and which columns make a task or a
//! target. Whole statements are where they are run.

use std::fmt::Display;

use super::connection::{Cells, Reply};
use super::*;

/// Ids in an `IN (..)`; larger lists are cut.
pub(super) const CHUNK: usize = 500;

/// Said whole: MySQL 9 answers a bare EXPLAIN with a tree, in which nothing has a name.
pub(super) const EXPLAIN: &str = "EXPLAIN FORMAT=TRADITIONAL";

/// Tasks probed by one statement of `due`.
pub(super) const PROBED: usize = 20;
pub(super) const PROBED_MOST: usize = 100;

/// A name for what the product itself writes to the audit.
pub(super) const OURSELVES: &str = "batch-send";

/// Everything but sent, failed and unknown, the empty value of a careless application included.
pub(super) const OPEN: &str = "('', 'pending', 'processing', 'sending', 'retry')";

pub(super) const DIED: &str = "the run that sent it died before the answer was written";

pub(super) fn quote(text: &str) -> String {
    ::mysql::Value::from(text).as_sql(false)
}

pub(super) fn quote_or_null(text: Option<&str>) -> String {
    text.map_or_else(|| "NULL".into(), quote)
}

/// A text cut to its column, quoted.
pub(super) fn fitted(text: &str, most: usize) -> String {
    quote(&fit(text, most))
}

pub(super) fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

/// So long from now, in whole milliseconds. At most a year: TIMESTAMP ends in 2038, and a settle cannot fail on data.
pub(super) fn after(time: Duration) -> String {
    let ms = time.as_millis().min(366 * 86_400_000);
    format!("TIMESTAMPADD(MICROSECOND, {ms}000, NOW(3))")
}

/// A time of a row as milliseconds; 0 for a zero date.
pub(super) fn ms(column: &str) -> String {
    format!("CAST(UNIX_TIMESTAMP({column}) * 1000 AS SIGNED)")
}

/// The moment of so many milliseconds, to compare a column with.
pub(super) fn moment(ms: Option<i64>) -> String {
    ms.map_or_else(|| "NULL".into(), |ms| format!("FROM_UNIXTIME({}.{:03})", ms / 1000, ms % 1000))
}

/// One value for all ids, or the choice by id.
pub(super) fn by_id(values: &[(TargetId, String)]) -> String {
    match values {
        [(_, first), rest @ ..] if rest.iter().all(|(_, value)| value == first) => first.clone(),
        _ => {
            let choices: String =
                values.iter().map(|(id, value)| format!(" WHEN {id} THEN {value}")).collect();
            format!("CASE id{choices} END")
        }
    }
}

pub(super) fn last(mut replies: Vec<Reply>) -> Reply {
    replies.pop().unwrap_or(Reply { rows: Vec::new(), changed: 0, id: 0 })
}

/// The columns that [`read_task`] reads, of `t` and the pace `p` of its channel.
pub(super) fn task_columns() -> String {
    format!(
        "t.id, t.name, t.channel, t.payload, t.status, t.status_reason, t.priority, {}, {}, {}, {}, {}, \
         t.lock_token IS NOT NULL AND t.lock_until >= NOW(3), t.lock_owner, {}, {}, \
         t.scheduled_at > NOW(3), t.expires_at <= NOW(3), IF(p.held_until > NOW(6), {}, NULL)",
        ms("t.scheduled_at"),
        ms("t.expires_at"),
        ms("t.created_at"),
        ms("t.started_at"),
        ms("t.finished_at"),
        ms("t.lock_at"),
        ms("t.lock_until"),
        ms("p.held_until"),
    )
}

/// The tables of [`task_columns`].
pub(super) fn tasks_with_pace(tables: &Tables, hint: &str) -> String {
    format!("{} t {hint} LEFT JOIN {} p ON p.channel = t.channel", tables.task, tables.pace)
}

pub(super) fn read_task(row: &mut Cells) -> Result<Task> {
    let mut task = Task {
        id: row.number()?,
        name: row.word(),
        channel: row.word(),
        payload: row.text(),
        // The empty value of a careless application is shown as what no run touches.
        status: TaskStatus::from_word(&row.word()).unwrap_or(TaskStatus::Draft),
        status_reason: row.text(),
        priority: row.number()?,
        scheduled_at: time(row.maybe()?),
        expires_at: time(row.maybe()?),
        created_at: time(row.maybe()?).unwrap_or_default(),
        started_at: time(row.maybe()?),
        finished_at: time(row.maybe()?),
        lease: None,
        early: false,
        expired: false,
        held_until: None,
    };
    let held = row.flag()?;
    let owner = row.word();
    let (since, until) = (time(row.maybe()?), time(row.maybe()?));
    task.lease =
        held.then(|| Holder { owner, since: since.unwrap_or_default(), until: until.unwrap_or_default() });
    task.early = row.flag()?;
    task.expired = row.flag()?;
    task.held_until = time(row.maybe()?);
    Ok(task)
}

pub(super) const TARGET_COLUMNS: &str = "id, recipient, params, attempts, round, dedupe_until IS NOT NULL";

pub(super) fn read_target(row: &mut Cells) -> Result<Target> {
    Ok(Target {
        id: row.number()?,
        recipient: row.word(),
        params: row.text(),
        attempts: row.number()?,
        round: row.number()?,
        in_doubt: row.flag()?,
    })
}
