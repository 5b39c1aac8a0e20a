//! The store on MySQL and MariaDB: what a run asks (`Relay`). What an operator asks is in mysql/desk.rs, how the server is spoken to
//! in mysql/connection.rs.
//!
//! A transaction travels as one text of several statements wherever that is possible: one round trip, and a
//! process that is stopped in the middle holds no lock. Ids, tokens and numbers stand in the text; words of others are quoted by
//! the driver under a sql_mode that we set ourselves. Rows are locked in the order task, then targets by id. Statements
//! that find targets by status or time name their index: without it, servers were seen to walk a whole table.

mod connection;
mod desk;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Display;
use std::rc::Rc;

pub use connection::Settings;
use connection::{BEGIN, Cells, Connection, Fault, Reply};

use anyhow::anyhow;

use super::late::{Meaning, duplicate, forgets, meaning};
use super::*;
use crate::target::TargetStatus;
use crate::task::Holder;
use crate::trouble::Trouble;

pub struct MySql {
    connection: Connection,
    tables: Rc<Tables>,
    /// Hash of database and prefix: what a named lock is called by, which is the server's and not a database's.
    lock_name: String,
    skip_locked: bool,
}

/// The tables' names, quoted.
struct Tables {
    prefix: String,
    task: String,
    target: String,
    pace: String,
    installation: String,
    migration: String,
    audit: String,
}

impl Tables {
    fn new(prefix: &str) -> Self {
        let name = |of: &str| format!("`{prefix}{of}`");
        Self {
            prefix: prefix.to_owned(),
            task: name("task"),
            target: name("task_target"),
            pace: name("pace"),
            installation: name("installation"),
            migration: name("migration"),
            audit: name("audit"),
        }
    }
}

impl MySql {
    /// Connects. Errors: unreachable ([`crate::trouble::Kind::TryLater`]); access denied, no such database
    /// ([`crate::trouble::Kind::Usage`]).
    pub fn connect(settings: &Settings) -> Result<Self> {
        let connection = Connection::open(settings)?;
        let place = [settings.database.as_str(), &settings.prefix].join("\0");
        let server = connection.server;
        Ok(Self {
            connection,
            tables: Rc::new(Tables::new(&settings.prefix)),
            lock_name: format!("batch-send:{}", Uuid::new_v5(&Uuid::NAMESPACE_OID, place.as_bytes())),
            skip_locked: match settings.claim {
                ClaimForm::Auto => server.skip_locked && !server.galera,
                ClaimForm::SkipLocked => true,
                ClaimForm::Update => false,
            },
        })
    }

    /// One statement that reads.
    fn read(&mut self, what: &'static str, text: &str) -> Result<Vec<Cells>> {
        self.connection.attempt(what, |connection, _| Ok(last(connection.run(text)?).rows))
    }

    /// One statement that may be repeated without harm. Rows changed.
    fn write(&mut self, what: &'static str, text: &str) -> Result<u64> {
        self.connection.attempt(what, |connection, _| Ok(last(connection.run(text)?).changed))
    }
}

// ---- pieces of statements ----------------------------------------------------------------------------------------

/// Ids in an `IN (..)`; larger lists are cut.
const CHUNK: usize = 500;

/// Tasks probed by one statement of `due`.
const PROBED: usize = 20;

/// A name for what the product itself writes to the audit.
const OURSELVES: &str = "batch-send";

/// Everything but sent, failed and unknown, the empty value of a careless application included.
const OPEN: &str = "('', 'pending', 'processing', 'sending', 'retry')";

const DIED: &str = "the run that sent it died before the answer was written";

fn quote(text: &str) -> String {
    ::mysql::Value::from(text).as_sql(false)
}

fn quote_or_null(text: Option<&str>) -> String {
    text.map_or_else(|| "NULL".into(), quote)
}

/// A text cut to its column, quoted.
fn fitted(text: &str, most: usize) -> String {
    quote(&fit(text, most))
}

fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

/// So long from now, in whole milliseconds. At most a year: TIMESTAMP ends in 2038, and a settle cannot fail on data.
fn after(time: Duration) -> String {
    let ms = time.as_millis().min(366 * 86_400_000);
    format!("TIMESTAMPADD(MICROSECOND, {ms}000, NOW(3))")
}

/// A time of a row as milliseconds; 0 for a zero date.
fn ms(column: &str) -> String {
    format!("CAST(UNIX_TIMESTAMP({column}) * 1000 AS SIGNED)")
}

/// The moment of so many milliseconds, to compare a column with.
fn moment(ms: Option<i64>) -> String {
    ms.map_or_else(|| "NULL".into(), |ms| format!("FROM_UNIXTIME({}.{:03})", ms / 1000, ms % 1000))
}

/// One value for all ids, or the choice by id.
fn by_id(values: &[(TargetId, String)]) -> String {
    match values {
        [(_, first), rest @ ..] if rest.iter().all(|(_, value)| value == first) => first.clone(),
        _ => {
            let choices: String =
                values.iter().map(|(id, value)| format!(" WHEN {id} THEN {value}")).collect();
            format!("CASE id{choices} END")
        }
    }
}

fn last(mut replies: Vec<Reply>) -> Reply {
    replies.pop().unwrap_or(Reply { rows: Vec::new(), changed: 0, id: 0 })
}

/// The columns that [`read_task`] reads, of `t` and the pace `p` of its channel.
fn task_columns() -> String {
    format!(
        "t.id, t.name, t.channel, t.payload, t.status, t.status_reason, t.priority, {}, {}, {}, {}, {}, \
         t.lock_token IS NOT NULL AND t.lock_until >= NOW(3), t.lock_owner, {}, {}, \
         t.scheduled_at > NOW(3), t.expires_at <= NOW(3), IF(p.next_at > NOW(6), {}, NULL)",
        ms("t.scheduled_at"),
        ms("t.expires_at"),
        ms("t.created_at"),
        ms("t.started_at"),
        ms("t.finished_at"),
        ms("t.lock_at"),
        ms("t.lock_until"),
        ms("p.next_at"),
    )
}

/// The tables of [`task_columns`].
fn tasks_with_pace(tables: &Tables, hint: &str) -> String {
    format!("{} t {hint} LEFT JOIN {} p ON p.channel = t.channel", tables.task, tables.pace)
}

fn read_task(row: &mut Cells) -> Result<Task> {
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

const TARGET_COLUMNS: &str = "id, recipient, params, attempts, round, dedupe_until IS NOT NULL";

fn read_target(row: &mut Cells) -> Result<Target> {
    Ok(Target {
        id: row.number()?,
        recipient: row.word(),
        params: row.text(),
        attempts: row.number()?,
        round: row.number()?,
        in_doubt: row.flag()?,
    })
}

// ---- what a run asks ---------------------------------------------------------------------------------------------

impl Relay for MySql {
    fn recover(&mut self, only: Option<TaskId>) -> Result<Recovered> {
        let tables = Rc::clone(&self.tables);
        let Tables { task, target, .. } = &*tables;
        // A task cancelled or finished within the last hour is looked at again: a claim, or an application's late
        // commit, may have come right after.
        let which = match only {
            Some(id) => format!("WHERE id = {id}"),
            None => "FORCE INDEX (k_status) WHERE (status IN ('', 'draft', 'pending', 'paused', 'cancelled') AND finished_at IS NULL) \
                     OR (status IN ('finished', 'cancelled') AND finished_at > NOW(3) - INTERVAL 1 HOUR)"
                .into(),
        };
        let text =
            format!("SELECT id, status, expires_at <= NOW(3), finished_at IS NULL FROM {task} {which}");
        let (mut unfinished, mut cancelled, mut finished, mut expired) = (vec![], vec![], vec![], vec![]);
        for mut row in self.read("look for unfinished tasks", &text)? {
            let (id, status): (TaskId, _) = (row.number()?, row.word());
            let (is_expired, no_end) = (row.flag()?, row.flag()?);
            match status.as_str() {
                "finished" => finished.push(id),
                "pending" if is_expired => expired.push(id),
                "cancelled" if no_end => cancelled.push(id),
                _ => {}
            }
            if only.is_some() || status != "finished" {
                unfinished.push(id);
            }
        }

        let mut recovered = Recovered::default();
        for tasks in unfinished.chunks(CHUNK) {
            let text = format!(
                "SELECT id, task_id, status, dedupe_until > NOW(3) FROM {target} FORCE INDEX (k_task_status) \
                 WHERE task_id IN ({}) AND status IN ('processing', 'sending') AND {CLAIM_ENDED} LIMIT {CHUNK}",
                list(tasks)
            );
            loop {
                let mut dead = Dead::default();
                let rows = self.read("look for what dead runs left", &text)?;
                let found = rows.len();
                for mut row in rows {
                    let (id, of, status, remembered) =
                        (row.number()?, row.number()?, row.word(), row.flag()?);
                    match status.as_str() {
                        "processing" => dead.claimed.push(id),
                        _ if remembered => dead.remembered.push(id),
                        _ => dead.begun.entry(of).or_default().push(id),
                    }
                }
                // Found and not changed: another run recovers the same ones right now.
                if found == 0 || self.bury(dead, &mut recovered)? == 0 || found < CHUNK {
                    break;
                }
            }
        }

        for id in expired {
            let reason = format!(
                "expired before it was finished; `batch-send resume {id} --until TIME` sends the rest"
            );
            let text = format!(
                "UPDATE {task} SET status = 'paused', status_reason = {}, {HALT} \
                 WHERE id = {id} AND status = 'pending' AND expires_at <= NOW(3)",
                fitted(&reason, REASON_MOST)
            );
            if self.write("pause an expired task", &text)? > 0 {
                recovered.paused.push((id, reason));
            }
        }
        if !cancelled.is_empty() {
            let busy = self.having(&cancelled, "('processing', 'sending')")?;
            cancelled.retain(|id| !busy.contains(id));
        }
        for tasks in cancelled.chunks(CHUNK) {
            let text = format!(
                "UPDATE {task} SET finished_at = NOW(3) WHERE id IN ({}) AND status = 'cancelled' AND finished_at IS NULL",
                list(tasks)
            );
            self.write("end cancelled tasks", &text)?;
        }
        if !finished.is_empty() {
            for id in self.having(&finished, OPEN)? {
                let text = format!("UPDATE {task} SET {REOPENED} WHERE id = {id} AND status = 'finished'");
                if self.write("reopen a task", &text)? > 0 {
                    recovered.reopened.push(id);
                }
            }
        }
        Ok(recovered)
    }

    fn strays(&mut self, channels: &[&str]) -> Result<Vec<Stray>> {
        let tables = Rc::clone(&self.tables);
        let Tables { task, audit, .. } = &*tables;
        let unknown = match channels {
            [] => String::new(),
            channels => format!("AND t.channel NOT IN ({})", list(channels.iter().map(|name| quote(name)))),
        };
        let text = format!(
            "SELECT {} FROM {} WHERE t.status = 'pending' AND {DUE} AND {NOT_HELD} {unknown} ORDER BY t.id",
            task_columns(),
            tasks_with_pace(&tables, "FORCE INDEX (k_status)"),
        );
        let mut found = self.read("look for tasks that nobody serves", &text)?;
        let found: Vec<Task> = found.iter_mut().map(read_task).collect::<Result<_>>()?;
        let mut strays = Vec::new();
        for tasks in found.chunks(PROBED) {
            let due = self.with_work(tasks)?;
            strays.extend(tasks.iter().filter(|task| due.contains(&task.id)).map(|task| Stray {
                task: task.id,
                channel: task.channel.clone(),
                paused: false,
            }));
        }
        if strays.is_empty() {
            return Ok(strays);
        }
        // Served, paused or resumed since it was first seen: the wait begins again.
        let text = format!(
            "SELECT t.id, MIN(a.at) <= NOW(3) - INTERVAL {} SECOND FROM {task} t JOIN {audit} a \
             ON a.task_id = t.id AND a.what = 'unserved' AND (t.served_at IS NULL OR t.served_at <= a.at) \
             AND (t.halt_at IS NULL OR t.halt_at <= a.at) WHERE t.id IN ({}) GROUP BY t.id",
            PATIENCE.as_secs(),
            list(strays.iter().map(|stray| stray.task)),
        );
        let mut seen = HashMap::new();
        for mut row in self.read("look for tasks that nobody serves", &text)? {
            seen.insert(row.number::<TaskId>()?, row.flag()?);
        }
        for stray in &mut strays {
            let Stray { task: id, channel, .. } = stray;
            match seen.get(id) {
                None => {
                    let text = format!(
                        "INSERT INTO {audit} (who, what, task_id, why) VALUES ({}, 'unserved', {id}, {})",
                        quote(OURSELVES),
                        fitted(
                            &format!("channel {channel} is not configured where it was seen"),
                            REASON_MOST
                        )
                    );
                    self.write("remember a task that nobody serves", &text)?;
                }
                Some(false) => {}
                Some(true) => {
                    let reason = format!("channel {channel} is not configured on any host that looked");
                    let text = format!(
                        "UPDATE {task} t SET status = 'paused', status_reason = {}, {HALT} \
                         WHERE id = {id} AND status = 'pending' AND {DUE}",
                        fitted(&reason, REASON_MOST)
                    );
                    stray.paused = self.write("pause a task that nobody serves", &text)? > 0;
                }
            }
        }
        Ok(strays)
    }

    fn due(&mut self, channels: &[&str], left_alone: &[TaskId]) -> Result<Option<Task>> {
        if channels.is_empty() {
            return Ok(None);
        }
        let others = match left_alone {
            [] => String::new(),
            tasks => format!("AND t.id NOT IN ({})", list(tasks)),
        };
        let candidates = format!(
            "SELECT {} FROM {} WHERE t.status = 'pending' AND {DUE} AND {NOT_HELD} AND t.channel IN ({}) {others} \
             ORDER BY t.priority DESC, t.served_at, t.id LIMIT {PROBED}",
            task_columns(),
            tasks_with_pace(&self.tables, "FORCE INDEX (k_status)"),
            list(channels.iter().map(|name| quote(name))),
        );
        for page in 0.. {
            let text = format!("{candidates} OFFSET {}", page * PROBED);
            let mut tasks = self.read("look for a due task", &text)?;
            let tasks: Vec<Task> = tasks.iter_mut().map(read_task).collect::<Result<_>>()?;
            if tasks.is_empty() {
                break;
            }
            let due = self.with_work(&tasks)?;
            let full = tasks.len() == PROBED;
            if let Some(task) = tasks.into_iter().find(|task| due.contains(&task.id)) {
                return Ok(Some(task));
            }
            if !full {
                break;
            }
        }
        Ok(None)
    }

    fn lease(&mut self, task: TaskId, terms: &Terms, beside: bool) -> Result<Leasing> {
        let token = (!beside).then(Uuid::new_v4);
        let Tables { task: tasks, pace, migration, .. } = &*self.tables;
        let version = format!("(SELECT MAX(version) FROM {migration})");
        let not_held = format!(
            "NOT EXISTS (SELECT 1 FROM {pace} p WHERE p.channel = t.channel AND p.next_at > NOW(6)) \
             AND {version} = {}",
            migrations::VERSION
        );
        let take = match token {
            Some(token) => format!(
                "UPDATE {tasks} t SET lock_token = '{token}', lock_owner = {}, lock_at = NOW(3), lock_until = {}, \
                 served_at = NOW(3), started_at = COALESCE(started_at, NOW(3)) \
                 WHERE id = {task} AND status = 'pending' AND ({DUE} OR lock_token = '{token}') AND {not_held}",
                fitted(&terms.owner, NAME_MOST),
                after(terms.lease),
            ),
            None => format!(
                "UPDATE {tasks} t SET started_at = NOW(3) WHERE id = {task} AND started_at IS NULL \
                 AND status IN ('pending', 'paused') AND (expires_at IS NULL OR expires_at > NOW(3)) AND {not_held}"
            ),
        };
        let text = format!(
            "{BEGIN}{take}; SELECT {version}, lock_token, lock_owner, unknown_run, {}, {} FROM {} \
             WHERE t.id = {task} FOR UPDATE; COMMIT",
            ms("halt_at"),
            task_columns(),
            tasks_with_pace(&self.tables, ""),
        );
        let mut asked = Moment::now();
        let row = self.connection.attempt("take a lease", |connection, lost| {
            if !lost {
                asked = Moment::now();
            }
            let mut replies = connection.run(&text)?;
            replies.pop();
            Ok(last(replies).rows.pop())
        })?;
        let Some(mut row) = row else {
            return Ok(Leasing::Closed(format!("there is no task {task}")));
        };
        check_version(row.maybe()?.unwrap_or(0))?;
        let (holder, owner) = (row.text(), row.text());
        let (unknown_run, halt) = (row.number()?, row.maybe()?);
        let found = read_task(&mut row)?;
        let ours = token.is_some_and(|token| holder.as_deref() == Some(token.to_string().as_str()));
        if !ours {
            if let Some(why) = refusal(&found, beside) {
                return Ok(Leasing::Closed(why));
            }
            if !beside {
                return Ok(Leasing::Held {
                    owner: owner.unwrap_or_else(|| "another run".into()),
                    token: holder.unwrap_or_default(),
                });
            }
        }
        let until = asked + terms.lease - terms.margin;
        Ok(Leasing::Ours(Lease { task, token, halt, until, terms: terms.clone(), unknown_run }))
    }

    fn renew(&mut self, lease: &mut Lease) -> Result<Standing> {
        let tasks = &self.tables.task;
        let (task, halt) = (lease.task, moment(lease.halt));
        // Paused and resumed in between is a halt, too: the count of unknowns that we hold is no longer the task's.
        let take = lease.token.map_or_else(String::new, |token| {
            format!(
                "UPDATE {tasks} SET lock_until = {}, unknown_run = {} WHERE id = {task} AND lock_token = '{token}' \
                 AND status = 'pending' AND halt_at <=> {halt} AND (expires_at IS NULL OR expires_at > NOW(3))",
                after(lease.terms.lease),
                lease.unknown_run
            )
        });
        let look = format!(
            "SELECT lock_token, status IN ('pending', {}) AND halt_at <=> {halt} \
             AND (expires_at IS NULL OR expires_at > NOW(3)) FROM {tasks} WHERE id = {task} FOR UPDATE",
            if lease.forced() { "'paused'" } else { "'pending'" },
        );
        let asked = Moment::now();
        let standing = self.connection.attempt("renew a lease", |connection, _| {
            if lease.token.is_some() && last(connection.run(&take)?).changed == 1 {
                return Ok(Standing::Ours);
            }
            let Some(mut row) = last(connection.run(&look)?).rows.pop() else {
                return Ok(Standing::Halted);
            };
            let (holder, stands) = (row.text(), row.flag()?);
            let ours = lease.token.is_none_or(|token| holder.as_deref() == Some(token.to_string().as_str()));
            Ok(match (ours, stands) {
                (false, _) => Standing::Lost,
                (true, false) => Standing::Halted,
                (true, true) => Standing::Ours,
            })
        })?;
        if standing == Standing::Ours {
            lease.until = asked + lease.terms.lease - lease.terms.margin;
        }
        Ok(standing)
    }

    fn promote(&mut self, lease: &Lease) -> Result<u64> {
        let mut promoted = 0;
        let target = self.tables.target.clone();
        for _ in 0..10 {
            let text = format!(
                "SELECT id FROM {target} FORCE INDEX (k_task_retry) WHERE task_id = {} AND retry_at <= NOW(3) \
                 AND status = 'retry' ORDER BY retry_at LIMIT {CHUNK}",
                lease.task
            );
            let mut ids = ids(self.read("look for due retries", &text)?)?;
            if ids.is_empty() {
                break;
            }
            ids.sort_unstable();
            let text = format!(
                "UPDATE {target} SET status = 'pending', retry_at = NULL \
                 WHERE id IN ({}) AND status = 'retry' AND retry_at <= NOW(3)",
                list(&ids)
            );
            promoted += self.write("promote due retries", &text)?;
            if ids.len() < CHUNK {
                break;
            }
        }
        Ok(promoted)
    }

    fn claim(&mut self, lease: &Lease, most: usize) -> Result<Vec<Claimed>> {
        let token = Uuid::new_v4();
        let target = &self.tables.target;
        let stamp = format!(
            "status = 'processing', cron_token = '{token}', claim_until = {}",
            after(lease.terms.lease)
        );
        let pending =
            format!("WHERE task_id = {} AND status = 'pending' ORDER BY id LIMIT {most}", lease.task);
        // Always inside a transaction, so that it is answered where it was written. It locks nothing: the rows are ours, and
        // locks on the others met in this index were seen to deadlock with their begin.
        let ours = format!(
            "SELECT {TARGET_COLUMNS} FROM {target} FORCE INDEX (k_task_status) \
             WHERE task_id = {} AND status = 'processing' AND cron_token = '{token}' ORDER BY id",
            lease.task
        );
        let skip_locked = self.skip_locked;
        let mut asked = Moment::now();
        let rows = self.connection.attempt("claim targets", |connection, lost| {
            if lost {
                // Nobody said whether the claim before this one was committed. The token is its own: it shows.
                let mut replies = connection.run(&format!("{BEGIN}{ours}; COMMIT"))?;
                replies.pop();
                let rows = last(replies).rows;
                if !rows.is_empty() {
                    return Ok(rows);
                }
            } else {
                asked = Moment::now();
            }
            if !skip_locked {
                let mut replies = connection.run(&format!(
                    "{BEGIN}UPDATE {target} FORCE INDEX (k_task_status) SET {stamp} {pending}; {ours}; COMMIT"
                ))?;
                replies.pop();
                return Ok(last(replies).rows);
            }
            let found = connection.run(&format!(
                "{BEGIN}SELECT id FROM {target} FORCE INDEX (k_task_status) {pending} FOR UPDATE SKIP LOCKED"
            ))?;
            let ids = list(ids(last(found).rows)?);
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let mut replies = connection.run(&format!(
                "UPDATE {target} SET {stamp} WHERE id IN ({ids}) AND status = 'pending'; \
                 SELECT {TARGET_COLUMNS} FROM {target} \
                 WHERE id IN ({ids}) AND status = 'processing' AND cron_token = '{token}' ORDER BY id; COMMIT"
            ))?;
            replies.pop();
            Ok(last(replies).rows)
        })?;
        let until = asked + lease.terms.lease - lease.terms.margin;
        rows.into_iter().map(|mut row| Ok(Claimed { target: read_target(&mut row)?, token, until })).collect()
    }

    fn refuse(&mut self, _lease: &Lease, mut refused: Vec<(Claimed, String)>) -> Result<u64> {
        refused.sort_by_key(|(claimed, _)| (claimed.token, claimed.target.in_doubt, claimed.target.id));
        let mut changed = 0;
        for group in
            refused.chunk_by(|(a, _), (b, _)| a.token == b.token && a.target.in_doubt == b.target.in_doubt)
        {
            for group in group.chunks(CHUNK) {
                let (first, _) = &group[0];
                let target = &self.tables.target;
                let status = if first.target.in_doubt { "unknown" } else { "failed" };
                let which = format!(
                    "WHERE id IN ({}) AND cron_token = '{}'",
                    list(group.iter().map(|(claimed, _)| claimed.target.id)),
                    first.token
                );
                let reasons: Vec<_> = group
                    .iter()
                    .map(|(claimed, reason)| (claimed.target.id, fitted(reason, REASON_MOST)))
                    .collect();
                let text = format!(
                    "UPDATE {target} SET status = '{status}', settled_at = NOW(3), last_error = {} \
                     {which} AND status = 'processing'",
                    by_id(&reasons)
                );
                let count =
                    format!("SELECT COUNT(*) FROM {target} {which} AND status = '{status}' FOR UPDATE");
                changed += self.connection.attempt("refuse targets", |connection, lost| {
                    let changed = last(connection.run(&text)?).changed;
                    if !lost {
                        return Ok(changed);
                    }
                    let counted = last(connection.run(&count)?).rows.pop();
                    Ok(counted.map_or(Ok(0), |mut row| row.number())?)
                })?;
            }
        }
        Ok(changed)
    }

    fn begin(&mut self, lease: &Lease, ready: Vec<Ready>, answers: Vec<Answer>) -> Result<Begun, Unwritten> {
        let mut doubtful = false;
        let why = match self.write_begin(lease, &ready, &answers, &mut doubtful) {
            Ok(written) => return Ok(written.into_begun(ready, lease)),
            Err(Fault::Data(_)) if !answers.is_empty() => {
                // One of the answers does not fit; nothing was begun. Settled by themselves they always fit.
                let settled = self.settle(answers)?;
                return self.begin(lease, ready, Vec::new()).map(|mut begun| {
                    begun.settled = settled;
                    begun
                });
            }
            Err(fault) => {
                doubtful |= matches!(fault, Fault::Lost(_));
                fault.into_error().context("cannot begin targets")
            }
        };
        let mut unwritten = answers;
        if doubtful {
            unwritten.extend(ready.into_iter().map(|ready| Answer {
                task: lease.task,
                id: ready.claimed.target.id,
                token: ready.claimed.token,
                in_doubt: ready.claimed.target.in_doubt,
                settlement: Settlement::Returned {
                    reason: "not sent: the database did not say whether it had begun".into(),
                },
            }));
        }
        Err(Unwritten { answers: unwritten, why })
    }

    fn settle(&mut self, mut answers: Vec<Answer>) -> Result<Settled, Unwritten> {
        let why = match self.write_settle(&answers) {
            Ok(settled) => return Ok(settled),
            Err(Fault::Data(why)) => match answers.as_mut_slice() {
                [] => why,
                [answer] => {
                    let texts = strip(&mut answer.settlement);
                    log::error!("target {}: written without its texts ({texts}): {why:#}", answer.id);
                    match self.write_settle(&answers) {
                        Ok(settled) => return Ok(settled),
                        Err(fault) => fault.into_error(),
                    }
                }
                // Row by row, so that the others do not suffer.
                _ => {
                    let mut settled = Settled::default();
                    let mut rest = answers.into_iter();
                    while let Some(answer) = rest.next() {
                        match self.settle(vec![answer]) {
                            Ok(one) => settled.add(one),
                            Err(mut unwritten) => {
                                unwritten.answers.extend(rest);
                                return Err(unwritten);
                            }
                        }
                    }
                    return Ok(settled);
                }
            },
            Err(fault) => fault.into_error(),
        };
        Err(Unwritten { answers, why: why.context("cannot settle targets") })
    }

    fn release(&mut self, mut rest: Vec<Claimed>) -> Result<u64> {
        rest.sort_by_key(|claimed| (claimed.token, claimed.target.id));
        let mut changed = 0;
        for group in rest.chunk_by(|a, b| a.token == b.token).flat_map(|group| group.chunks(CHUNK)) {
            let text = format!(
                "UPDATE {} SET status = 'pending' WHERE id IN ({}) AND cron_token = '{}' AND status = 'processing'",
                self.tables.target,
                list(group.iter().map(|claimed| claimed.target.id)),
                group[0].token
            );
            changed += self.write("release targets", &text)?;
        }
        Ok(changed)
    }

    fn hold(&mut self, channel: &str, hold: &Hold) -> Result<Duration> {
        const YEAR: Duration = Duration::from_secs(366 * 86_400);
        let pace = &self.tables.pace;
        let name = quote(channel);
        // A hold long after the end of the one before begins a new row of them.
        let look = format!(
            "{BEGIN}INSERT INTO {pace} (channel, next_at) VALUES ({name}, NOW(6)) \
             ON DUPLICATE KEY UPDATE channel = {name}; \
             SELECT IF(next_at < NOW(6) - INTERVAL {} SECOND, 0, holds), \
             GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), next_at), 0) FROM {pace} WHERE channel = {name} FOR UPDATE",
            hold.most.min(YEAR).as_secs()
        );
        self.connection.attempt("hold a channel", |connection, _| {
            let Some(mut row) = last(connection.run(&look)?).rows.pop() else {
                return Err(Fault::Final(anyhow!("the row of channel {channel} is gone")));
            };
            let (holds, left): (u32, _) = (row.number()?, Duration::from_micros(row.number()?));
            let wait = match hold.asked {
                Some(asked) => asked.max(left),
                // Other lanes meet the same silence: together they are one hold.
                None if left > Duration::ZERO => left,
                None => hold.first.saturating_mul(1 << holds.min(31)).min(hold.most),
            }
            .min(YEAR);
            let holds = if left > Duration::ZERO { holds } else { (holds + 1).min(u32::from(u16::MAX)) };
            connection.run(&format!(
                "UPDATE {pace} SET next_at = TIMESTAMPADD(MICROSECOND, {}, NOW(6)), holds = {holds} \
                 WHERE channel = {name}; COMMIT",
                wait.as_micros(),
            ))?;
            Ok(wait)
        })
    }

    fn pause(&mut self, lease: &Lease, reason: &str) -> Result<bool> {
        let task = &self.tables.task;
        let reason = fitted(reason, REASON_MOST);
        let ours = lease.token.map_or_else(String::new, |token| format!("AND lock_token = '{token}'"));
        let text = format!(
            "UPDATE {task} SET status = 'paused', status_reason = {reason}, {HALT}, unknown_run = {} \
             WHERE id = {} AND status = 'pending' {ours}",
            lease.unknown_run, lease.task
        );
        let look = format!(
            "SELECT 1 FROM {task} WHERE id = {} AND status = 'paused' AND status_reason = {reason} {ours} FOR UPDATE",
            lease.task
        );
        self.connection.attempt("pause a task", |connection, lost| {
            Ok(last(connection.run(&text)?).changed == 1
                || (lost && !last(connection.run(&look)?).rows.is_empty()))
        })
    }

    fn close(&mut self, lease: Lease) -> Result<Closed> {
        let Some(token) = lease.token else {
            return Ok(Closed::Open);
        };
        let id = lease.task;
        let Tables { task, target, .. } = &*self.tables;
        let look = format!(
            "{BEGIN}SELECT lock_token, status, halt_at <=> {}, COALESCE(started_at, created_at) <= NOW(3) - INTERVAL {} SECOND \
             FROM {task} WHERE id = {id} FOR UPDATE",
            moment(lease.halt),
            PATIENCE.as_secs()
        );
        let has = probes(
            target,
            id,
            &["pending", "processing", "sending", "retry", "", "sent", "failed", "unknown"],
        );
        self.connection.attempt("close a task", |connection, lost| {
            let Some(mut row) = last(connection.run(&look)?).rows.pop() else {
                return Ok(Closed::Lost);
            };
            let (holder, status, same_halt, long_ago) = (row.text(), row.word(), row.flag()?, row.flag()?);
            if holder != Some(token.to_string()) {
                // Given back by a try whose answer was lost, or really another's.
                return Ok(match (lost && holder.is_none(), status.as_str()) {
                    (true, "finished") => Closed::Finished,
                    (true, _) => Closed::Open,
                    (false, _) => Closed::Lost,
                });
            }
            let found: HashSet<String> =
                last(connection.run(&has)?).rows.into_iter().map(|mut row| row.word()).collect();
            let any = |statuses: &[&str]| statuses.iter().any(|status| found.contains(*status));
            let mut set = "lock_token = NULL, lock_owner = NULL, lock_at = NULL, lock_until = NULL".to_owned();
            if same_halt {
                set += &format!(", unknown_run = {}", lease.unknown_run);
            }
            let closed = if status != "pending" {
                if status == "cancelled" && !any(&["processing", "sending"]) {
                    set += ", finished_at = COALESCE(finished_at, NOW(3))";
                }
                Closed::Open
            } else if any(&["pending", "processing", "sending", "retry"]) {
                Closed::Open
            } else if any(&[""]) {
                Closed::Paused(
                    "some targets have a status that does not exist: set it to 'pending', then resume the task".into(),
                )
            } else if found.is_empty() && long_ago {
                Closed::Paused("it has no targets".into())
            } else if found.is_empty() {
                Closed::Open
            } else {
                set += ", status = 'finished', status_reason = NULL, finished_at = NOW(3)";
                if estimate(connection, target, id)? <= COUNTED_BY_CLOSE {
                    let mut counts = HashMap::new();
                    let text = format!(
                        "SELECT status, COUNT(*) FROM {target} FORCE INDEX (k_task_status) WHERE task_id = {id} GROUP BY status"
                    );
                    for mut row in last(connection.run(&text)?).rows {
                        counts.insert(row.word(), row.number::<u64>()?);
                    }
                    for status in ["sent", "failed", "unknown"] {
                        set += &format!(", {status}_count = {}", counts.get(status).copied().unwrap_or(0));
                    }
                }
                Closed::Finished
            };
            if let Closed::Paused(reason) = &closed {
                set += &format!(
                    ", status = 'paused', status_reason = {}, {HALT}",
                    fitted(reason, REASON_MOST)
                );
            }
            connection.run(&format!("UPDATE {task} SET {set} WHERE id = {id}; COMMIT"))?;
            Ok(closed)
        })
    }
}

/// Above so many targets close leaves the counts to be counted when asked: it holds the task's row meanwhile.
const COUNTED_BY_CLOSE: u64 = 10_000_000;

/// To be worked on now, as far as the row of the task (`t`) shows.
const DUE: &str = "(t.scheduled_at IS NULL OR t.scheduled_at <= NOW(3)) AND (t.expires_at IS NULL OR t.expires_at > NOW(3)) \
     AND (t.lock_token IS NULL OR t.lock_until IS NULL OR t.lock_until < NOW(3))";

const NOT_HELD: &str = "(p.next_at IS NULL OR p.next_at <= NOW(6))";

const CLAIM_ENDED: &str = "(claim_until IS NULL OR claim_until < NOW(3))";

/// The moment of a pause or cancel: always later than the last, so that it is seen to move.
const HALT: &str = "halt_at = GREATEST(NOW(3), COALESCE(halt_at + INTERVAL 1000 MICROSECOND, NOW(3)))";

/// What a finished task becomes when one of its targets is open again.
const REOPENED: &str =
    "status = 'pending', finished_at = NULL, sent_count = NULL, failed_count = NULL, unknown_count = NULL";

const UNFROZEN: &str = "sent_count = NULL, failed_count = NULL, unknown_count = NULL";

fn check_version(found: u32) -> Result<()> {
    let ours = migrations::VERSION;
    if found == ours {
        return Ok(());
    }
    let way_out = if found > ours { "use a newer batch-send" } else { "run `batch-send migrate`" };
    Err(Trouble::usage(format!(
        "the tables are at version {found} and this batch-send needs version {ours}: {way_out}"
    ))
    .into())
}

fn ids(rows: Vec<Cells>) -> Result<Vec<u64>> {
    rows.into_iter().map(|mut row| row.number()).collect()
}

/// One row with the status for each of `statuses` in which the task has a target. Each look reads one entry of the index.
fn probes(target: &str, task: TaskId, statuses: &[&str]) -> String {
    let looks: Vec<String> = statuses
        .iter()
        .map(|status| {
            format!(
                "(SELECT '{status}' FROM {target} FORCE INDEX (k_task_status) \
                 WHERE task_id = {task} AND status = '{status}' LIMIT 1)"
            )
        })
        .collect();
    looks.join(" UNION ALL ")
}

/// How many targets a task has, by the optimizer's estimate.
fn estimate(connection: &mut Connection, target: &str, task: TaskId) -> Result<u64, Fault> {
    let text = format!("EXPLAIN SELECT id FROM {target} FORCE INDEX (k_task_status) WHERE task_id = {task}");
    explained_rows(connection, &text)
}

fn explained_rows(connection: &mut Connection, explain: &str) -> Result<u64, Fault> {
    let row = last(connection.run(explain)?).rows.pop();
    Ok(row.and_then(|row| row.named("rows")).and_then(|rows| rows.parse().ok()).unwrap_or(0))
}

/// Targets whose claim has ended, by what becomes of them.
#[derive(Default)]
struct Dead {
    claimed: Vec<TargetId>,
    /// Begun, and the provider still remembers the key.
    remembered: Vec<TargetId>,
    begun: BTreeMap<TaskId, Vec<TargetId>>,
}

impl MySql {
    /// Repairs what a dead run left. How many rows changed.
    fn bury(&mut self, dead: Dead, recovered: &mut Recovered) -> Result<u64> {
        let mut changed = 0;
        for (mut ids, condition) in [
            (dead.claimed, "status = 'processing'"),
            (dead.remembered, "status = 'sending' AND dedupe_until > NOW(3)"),
        ] {
            if ids.is_empty() {
                continue;
            }
            ids.sort_unstable();
            let text = format!(
                "UPDATE {} SET status = 'pending' WHERE id IN ({}) AND {condition} AND {CLAIM_ENDED}",
                self.tables.target,
                list(&ids)
            );
            let pending = self.write("recover targets", &text)?;
            recovered.pending += pending;
            changed += pending;
        }
        let Tables { task, target, .. } = &*self.tables;
        for (of, mut ids) in dead.begun {
            ids.sort_unstable();
            let text = format!(
                "{BEGIN}SELECT 1 FROM {task} WHERE id = {of} FOR UPDATE; \
                 UPDATE {target} SET status = 'unknown', settled_at = NOW(3), last_error = {} \
                 WHERE id IN ({}) AND status = 'sending' AND {CLAIM_ENDED} \
                 AND (dedupe_until IS NULL OR dedupe_until <= NOW(3))",
                quote(DIED),
                list(&ids)
            );
            // A crash counts once, however many it left unknown.
            let counted = recovered.doubtful.contains(&of);
            let count = if counted { "" } else { "unknown_run = LEAST(unknown_run + 1, 65535), " };
            let unknown = self.connection.attempt("recover targets", |connection, _| {
                let unknown = last(connection.run(&text)?).changed;
                if unknown > 0 {
                    connection
                        .run(&format!("UPDATE {task} SET {count}{UNFROZEN} WHERE id = {of}; COMMIT"))?;
                }
                Ok(unknown)
            })?;
            if unknown > 0 && !counted {
                recovered.doubtful.push(of);
            }
            recovered.unknown += unknown;
            changed += unknown;
        }
        Ok(changed)
    }

    /// Of `tasks`, those that have a target in one of `statuses`.
    fn having(&mut self, tasks: &[TaskId], statuses: &str) -> Result<BTreeSet<TaskId>> {
        let mut having = BTreeSet::new();
        for tasks in tasks.chunks(CHUNK) {
            let text = format!(
                "SELECT DISTINCT task_id FROM {} FORCE INDEX (k_task_status) \
                 WHERE task_id IN ({}) AND status IN {statuses}",
                self.tables.target,
                list(tasks)
            );
            having.extend(ids(self.read("look for open targets", &text)?)?);
        }
        Ok(having)
    }

    /// Of candidates, those with something to do: a pending target, a due retry, or nothing left but to close.
    fn with_work(&mut self, candidates: &[Task]) -> Result<HashSet<TaskId>> {
        let target = &self.tables.target;
        let looks: Vec<String> = candidates
            .iter()
            .flat_map(|task| {
                let id = task.id;
                let look = |what: &str, index: &str, condition: &str| {
                    format!(
                        "(SELECT {id}, '{what}' FROM {target} FORCE INDEX ({index}) \
                         WHERE task_id = {id} AND {condition} LIMIT 1)"
                    )
                };
                [
                    look("work", "k_task_status", "status = 'pending'"),
                    look("work", "k_task_retry", "retry_at <= NOW(3)"),
                    look("wait", "k_task_status", "status = 'processing'"),
                    look("wait", "k_task_status", "status = 'sending'"),
                    look("wait", "k_task_status", "status = 'retry'"),
                ]
            })
            .collect();
        let (mut work, mut wait) = (HashSet::new(), HashSet::new());
        for mut row in self.read("look for work", &looks.join(" UNION ALL "))? {
            let (id, what): (TaskId, _) = (row.number()?, row.word());
            if what == "work" {
                work.insert(id)
            } else {
                wait.insert(id)
            };
        }
        Ok(candidates
            .iter()
            .map(|task| task.id)
            .filter(|id| work.contains(id) || !wait.contains(id))
            .collect())
    }
}

// ---- begin and settle --------------------------------------------------------------------------------------------

/// What a begin wrote.
struct Written {
    settled: Settled,
    /// By token and id: a run may hold a claim that has ended and the one after it, of the same target.
    begun: HashSet<(Uuid, TargetId)>,
    /// From before the request that may have begun them.
    since: Moment,
}

impl Written {
    fn into_begun(mut self, ready: Vec<Ready>, lease: &Lease) -> Begun {
        let mut begun = Begun { settled: self.settled, ..Begun::default() };
        for Ready { claimed: Claimed { target, token, .. }, message, .. } in ready {
            if self.begun.remove(&(token, target.id)) {
                begun.in_flight.push(InFlight {
                    id: target.id,
                    token,
                    attempt: target.attempts.saturating_add(1),
                    in_doubt: target.in_doubt,
                    until: self.since + lease.terms.send,
                    message,
                });
            } else {
                begun.fenced.push(target.id);
            }
        }
        begun
    }
}

impl MySql {
    /// One text, one commit: the answers settled, the ready ones begun. `doubtful` becomes true once it cannot be told any
    /// more from this side whether something was begun.
    fn write_begin(
        &mut self,
        lease: &Lease,
        ready: &[Ready],
        answers: &[Answer],
        doubtful: &mut bool,
    ) -> Result<Written, Fault> {
        let tables = &*self.tables;
        let settling = groups(answers.iter());
        let mut sorted: Vec<&Ready> = ready.iter().collect();
        sorted.sort_by_key(|ready| {
            (ready.claimed.token, ready.claimed.target.in_doubt, ready.claimed.target.id)
        });
        let beginning: Vec<&[&Ready]> = sorted
            .chunk_by(|a, b| {
                a.claimed.token == b.claimed.token && a.claimed.target.in_doubt == b.claimed.target.in_doubt
            })
            .flat_map(|group| group.chunks(CHUNK))
            .collect();
        let mut statements: Vec<String> =
            settling.iter().map(|group| settle_statement(tables, group, "= 'sending'")).collect();
        statements.extend(beginning.iter().map(|group| begin_statement(tables, group, &lease.terms)));
        if statements.is_empty() {
            return Ok(Written { settled: Settled::default(), begun: HashSet::new(), since: Moment::now() });
        }
        let text = format!("{BEGIN}{}; COMMIT", statements.join("; "));
        let patience = if answers.is_empty() { connection::PATIENCE } else { connection::WITH_ANSWERS };
        let mut since = Moment::now();
        self.connection.persist_for(patience, |connection, lost| {
            *doubtful |= lost;
            if !lost {
                since = Moment::now();
            }
            let replies = connection.run(&text)?;
            let mut changed = replies.iter().skip(1).map(|reply| reply.changed);
            let settled = reconcile(connection, tables, &settling, &mut changed)?;
            let mut begun = HashSet::new();
            for group in &beginning {
                let changed = changed.next().unwrap_or(0);
                if changed == group.len() as u64 {
                    begun.extend(group.iter().map(|ready| (ready.claimed.token, ready.claimed.target.id)));
                } else {
                    let changed = (!lost).then_some(changed);
                    begun.extend(read_back(connection, tables, group, &lease.terms, changed)?);
                }
            }
            Ok(Written { settled, begun, since })
        })
    }

    fn write_settle(&mut self, answers: &[Answer]) -> Result<Settled, Fault> {
        let tables = &*self.tables;
        let groups = groups(answers.iter());
        let statements: Vec<String> =
            groups.iter().map(|group| settle_statement(tables, group, "= 'sending'")).collect();
        let text = match statements.as_slice() {
            [] => return Ok(Settled::default()),
            [one] => one.clone(),
            many => format!("{BEGIN}{}; COMMIT", many.join("; ")),
        };
        let skip = usize::from(statements.len() > 1);
        self.connection.persist_for(connection::WITH_ANSWERS, |connection, _| {
            let replies = connection.run(&text)?;
            let mut changed = replies.iter().skip(skip).map(|reply| reply.changed);
            reconcile(connection, tables, &groups, &mut changed)
        })
    }
}

fn begin_statement(tables: &Tables, group: &[&Ready], terms: &Terms) -> String {
    let end = after(terms.send + terms.margin);
    let first = &group[0].claimed;
    let hashes: Vec<_> = group
        .iter()
        .map(|ready| {
            let hash = ready
                .hash
                .map_or_else(|| "NULL".into(), |hash| format!("0x{}", Uuid::from_bytes(hash).simple()));
            (ready.claimed.target.id, hash)
        })
        .collect();
    // In doubt, it leaves only as the same message, and only while the provider surely remembers the key to the end of the send.
    let (also, doubt) = match terms.dedupe {
        _ if first.target.in_doubt => {
            (String::new(), format!("dedupe_until > {end} AND message_hash = {}", by_id(&hashes)))
        }
        Some(dedupe) => (
            format!(", dedupe_until = {}, message_hash = {}", after(dedupe), by_id(&hashes)),
            "dedupe_until IS NULL".into(),
        ),
        None => (String::new(), "dedupe_until IS NULL".into()),
    };
    format!(
        "UPDATE {} SET status = 'sending', attempts = attempts + 1, send_at = NOW(3), claim_until = {end}{also} \
         WHERE id IN ({}) AND cron_token = '{}' AND status = 'processing' AND claim_until > NOW(3) AND {doubt}",
        tables.target,
        list(group.iter().map(|ready| ready.claimed.target.id)),
        first.token
    )
}

/// After a begin that changed fewer than asked: which of them it began. Those that may never be sent again by themselves
/// become unknown here. `changed`: how many it began; not known after a loss, when an earlier try may have begun some.
fn read_back(
    connection: &mut Connection,
    tables: &Tables,
    group: &[&Ready],
    terms: &Terms,
    changed: Option<u64>,
) -> Result<Vec<(Uuid, TargetId)>, Fault> {
    let Tables { target, .. } = tables;
    let token = group[0].claimed.token;
    let rows = last(connection.run(&format!(
        "{BEGIN}SELECT id, status, {}, dedupe_until IS NOT NULL AND claim_until > NOW(3), dedupe_until > {} FROM {target} \
         WHERE id IN ({}) AND cron_token = '{token}' ORDER BY id FOR UPDATE",
        ms("send_at"),
        after(terms.send + terms.margin),
        list(group.iter().map(|ready| ready.claimed.target.id)),
    ))?)
    .rows;
    let mut sending: Vec<(TargetId, Option<i64>)> = Vec::new();
    let mut hopeless = Vec::new();
    for mut row in rows {
        let (id, status, began): (_, _, Option<i64>) = (row.number()?, row.word(), row.maybe()?);
        let (in_doubt, in_time) = (row.flag()?, row.flag()?);
        match status.as_str() {
            "sending" => sending.push((id, began)),
            "processing" if in_doubt => {
                let why = if in_time {
                    "an earlier attempt may have arrived, and the message has changed since"
                } else {
                    "an earlier attempt may have arrived, and the provider's memory of it ends too soon"
                };
                hopeless.push((id, quote(why)));
            }
            _ => {}
        }
    }
    if !hopeless.is_empty() {
        connection.run(&format!(
            "UPDATE {target} SET status = 'unknown', settled_at = NOW(3), last_error = {} \
             WHERE id IN ({}) AND cron_token = '{token}' AND status = 'processing'; COMMIT",
            by_id(&hopeless),
            list(hopeless.iter().map(|(id, _)| id)),
        ))?;
    }
    if let Some(changed) = changed {
        // One statement gives one time. What began earlier is in flight already, and must not leave again.
        let latest = sending.iter().map(|(_, began)| *began).max().flatten();
        sending.retain(|(_, began)| *began == latest);
        if sending.len() as u64 != changed {
            sending.clear();
        }
    }
    Ok(sending.into_iter().map(|(id, _)| (token, id)).collect())
}

/// Answers that one statement can write: of one token and kind, by id.
fn groups<'a>(answers: impl Iterator<Item = &'a Answer>) -> Vec<Vec<&'a Answer>> {
    fn kind(answer: &Answer) -> (Uuid, u8, bool) {
        let kind = match answer.settlement {
            Settlement::Sent { .. } => 0,
            Settlement::Failed { .. } => 1,
            Settlement::Retry { in_doubt: false, .. } => 2,
            Settlement::Retry { in_doubt: true, .. } => 5,
            Settlement::Unknown { .. } => 3,
            Settlement::Returned { .. } => 4,
        };
        (answer.token, kind, forgets(answer, &answer.settlement))
    }
    let mut sorted: Vec<&Answer> = answers.collect();
    sorted.sort_by_key(|answer| (kind(answer), answer.id));
    sorted
        .chunk_by(|a, b| kind(a) == kind(b))
        .flat_map(|group| group.chunks(CHUNK))
        .map(<[&Answer]>::to_vec)
        .collect()
}

/// `from`: the statuses that it may be in, as the end of a condition.
fn settle_statement(tables: &Tables, group: &[&Answer], from: &str) -> String {
    let reasons = || {
        let reasons: Vec<_> = group
            .iter()
            .map(|answer| {
                let reason = match &answer.settlement {
                    Settlement::Failed { reason }
                    | Settlement::Retry { reason, .. }
                    | Settlement::Unknown { reason }
                    | Settlement::Returned { reason } => fitted(reason, REASON_MOST),
                    Settlement::Sent { .. } => "NULL".into(),
                };
                (answer.id, reason)
            })
            .collect();
        by_id(&reasons)
    };
    let mut set = match &group[0].settlement {
        Settlement::Sent { .. } => {
            let receipts: Vec<_> = group
                .iter()
                .map(|answer| {
                    let receipt = match &answer.settlement {
                        Settlement::Sent { receipt: Some(receipt) } => fitted(receipt, RECEIPT_MOST),
                        _ => "NULL".into(),
                    };
                    (answer.id, receipt)
                })
                .collect();
            format!(
                "status = 'sent', settled_at = NOW(3), retry_at = NULL, last_error = NULL, receipt = {}",
                by_id(&receipts)
            )
        }
        Settlement::Failed { .. } => {
            format!("status = 'failed', settled_at = NOW(3), last_error = {}", reasons())
        }
        Settlement::Unknown { .. } => {
            format!("status = 'unknown', settled_at = NOW(3), last_error = {}", reasons())
        }
        Settlement::Retry { .. } => {
            let times: Vec<_> = group
                .iter()
                .map(|answer| match answer.settlement {
                    Settlement::Retry { after: wait, .. } => (answer.id, after(wait)),
                    _ => (answer.id, "NOW(3)".into()),
                })
                .collect();
            format!("status = 'retry', retry_at = {}, last_error = {}", by_id(&times), reasons())
        }
        Settlement::Returned { .. } => {
            format!(
                "status = 'pending', attempts = IF(attempts > 0, attempts - 1, 0), last_error = {}",
                reasons()
            )
        }
    };
    if forgets(group[0], &group[0].settlement) {
        set += ", dedupe_until = NULL, message_hash = NULL";
    }
    // In doubt and to be repeated, though nobody remembers its key: looked at more closely.
    let keyed = match group[0].settlement {
        Settlement::Retry { in_doubt: true, .. } => " AND dedupe_until IS NOT NULL",
        _ => "",
    };
    format!(
        "UPDATE {} SET {set} WHERE id IN ({}) AND cron_token = '{}' AND status {from}{keyed}",
        tables.target,
        list(group.iter().map(|answer| answer.id)),
        group[0].token
    )
}

/// Takes the texts off, and names them.
fn strip(settlement: &mut Settlement) -> String {
    match settlement {
        Settlement::Sent { receipt } => receipt.take().unwrap_or_default(),
        Settlement::Failed { reason }
        | Settlement::Retry { reason, .. }
        | Settlement::Unknown { reason }
        | Settlement::Returned { reason } => std::mem::take(reason),
    }
}

/// `changed`: rows that the statement of each group changed. Where they are fewer than asked, looks at the rows and
/// does what late answers and duplicates ask for.
fn reconcile(
    connection: &mut Connection,
    tables: &Tables,
    groups: &[Vec<&Answer>],
    changed: &mut impl Iterator<Item = u64>,
) -> Result<Settled, Fault> {
    let mut settled = Settled::default();
    let mut short = Vec::new();
    for group in groups {
        if changed.next() == Some(group.len() as u64) {
            settled.written += group.len() as u64;
        } else {
            short.extend(group.iter().copied());
        }
    }
    for answers in short.chunks(CHUNK) {
        settled.add(look_closer(connection, tables, answers)?);
    }
    Ok(settled)
}

/// What was found of a target, under its lock.
struct Found {
    task: TaskId,
    token: Option<String>,
    status: String,
    /// The latest attempt carried a key that the provider remembers.
    keyed: bool,
}

fn look_closer(connection: &mut Connection, tables: &Tables, answers: &[&Answer]) -> Result<Settled, Fault> {
    let Tables { task, target, audit, .. } = tables;
    let tasks: BTreeSet<TaskId> = answers.iter().map(|answer| answer.task).collect();
    let targets: BTreeSet<TargetId> = answers.iter().map(|answer| answer.id).collect();
    let rows = last(connection.run(&format!(
        "{BEGIN}SELECT id FROM {task} WHERE id IN ({}) ORDER BY id FOR UPDATE; \
         SELECT id, task_id, cron_token, status, dedupe_until IS NOT NULL FROM {target} \
         WHERE id IN ({}) ORDER BY id FOR UPDATE",
        list(&tasks),
        list(&targets)
    ))?)
    .rows;
    let mut found = HashMap::new();
    for mut row in rows {
        let id: TargetId = row.number()?;
        let (task, token, status, keyed) = (row.number()?, row.text(), row.word(), row.flag()?);
        found.insert(id, Found { task, token, status, keyed });
    }

    let mut settled = Settled::default();
    // What is written, by the end of the condition on the status that it may be in.
    let (mut accepted, mut answered, mut late) = (vec![], vec![], vec![]);
    let mut audited = Vec::new();
    let mut touched = BTreeSet::new();
    for answer in answers {
        let Some(found) = found.get(&answer.id).filter(|found| found.task == answer.task) else {
            settled.fenced.push(answer.id);
            continue;
        };
        let settlement = match meaning(answer, found.token.as_deref(), &found.status, found.keyed) {
            Meaning::Write(settlement) => settlement,
            Meaning::Said => {
                settled.written += 1;
                continue;
            }
            Meaning::Fenced => {
                settled.fenced.push(answer.id);
                continue;
            }
            Meaning::Duplicate => {
                settled.duplicates.push(answer.id);
                audited.push(duplicate_statement(audit, answer));
                continue;
            }
        };
        settled.written += 1;
        let from = match (&*settlement, found.status.as_str()) {
            (Settlement::Sent { .. }, _) => &mut accepted,
            (_, "sending") => &mut answered,
            _ => &mut late,
        };
        from.push(answer.instead(settlement.into_owned()));
        if found.status != "sending" {
            settled.late += 1;
            touched.insert(answer.task);
        }
    }
    let mut statements = Vec::new();
    if !touched.is_empty() {
        statements.push(format!("UPDATE {task} SET {UNFROZEN} WHERE id IN ({})", list(&touched)));
    }
    for (answers, from) in [(accepted, "<> 'sent'"), (answered, "= 'sending'"), (late, "= 'unknown'")] {
        statements.extend(groups(answers.iter()).iter().map(|group| settle_statement(tables, group, from)));
    }
    statements.extend(audited);
    if !statements.is_empty() {
        connection.run(&format!("{}; COMMIT", statements.join("; ")))?;
    }
    // Without anything to write the locks go when the work ends.
    Ok(settled)
}

/// Audits an acceptance that finds another token on its row; once, however often the answer comes.
fn duplicate_statement(audit: &str, answer: &Answer) -> String {
    let why = fitted(&duplicate(answer), REASON_MOST);
    format!(
        "INSERT INTO {audit} (who, what, task_id, target_id, why) \
         SELECT {}, 'duplicate', {task}, {target}, {why} FROM (SELECT 1) once WHERE NOT EXISTS \
         (SELECT 1 FROM {audit} WHERE task_id = {task} AND target_id = {target} AND what = 'duplicate' AND why = {why})",
        quote(OURSELVES),
        task = answer.task,
        target = answer.id,
    )
}

impl Answer {
    /// The same answer, with another conclusion.
    fn instead(&self, settlement: Settlement) -> Self {
        Self { task: self.task, id: self.id, token: self.token, in_doubt: self.in_doubt, settlement }
    }
}
