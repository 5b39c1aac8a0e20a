//! The store on MySQL and MariaDB: what an operator asks (`Desk`). Acts of a person take the task's row first, then targets in the
//! order of id, some hundreds a transaction, and are audited in the transaction that does them.

use super::connection::COMMIT;
use super::suppression::suppressed;
use super::*;
use crate::course::Courses;
use crate::trouble::Trouble;

/// Rows of one INSERT, and its length in bytes, as far as the server takes it.
const IMPORTED: usize = 2000;
const IMPORTED_BYTES: usize = 1 << 20;

/// Targets read at once, of each status.
const PAGE: usize = 1000;

/// Every word of the column, the empty one of a careless application included.
pub(super) const STATUSES: [&str; 8] =
    ["pending", "processing", "sending", "sent", "failed", "retry", "unknown", ""];

fn no_such_task(id: TaskId) -> anyhow::Error {
    Trouble::usage(format!("there is no task {id}: `batch-send task list` shows those there are")).into()
}

fn cancelled(id: TaskId, what: &str) -> anyhow::Error {
    Trouble::usage(format!("task {id} is cancelled: nothing can be {what} any more")).into()
}

pub(super) fn refuse_long<'a>(mut recipients: impl Iterator<Item = &'a str>) -> Result<()> {
    let Some(long) = recipients.find(|recipient| recipient.chars().count() > RECIPIENT_MOST) else {
        return Ok(());
    };
    let start: String = long.chars().take(40).collect();
    Err(Trouble::usage(format!("recipient {start:?}... is longer than {RECIPIENT_MOST} characters")).into())
}

/// Rows as few INSERTs, none longer than the server takes.
pub(super) fn inserts(into: &str, rows: impl Iterator<Item = String>, packet: usize) -> Vec<String> {
    let most = IMPORTED_BYTES.min(packet / 2);
    let mut inserts: Vec<String> = Vec::new();
    let mut count = 0;
    for values in rows {
        match inserts.last_mut().filter(|insert| count < IMPORTED && insert.len() + values.len() < most) {
            Some(insert) => {
                insert.push_str(", ");
                insert.push_str(&values);
                count += 1;
            }
            None => {
                inserts.push(format!("INSERT INTO {into} VALUES {values}"));
                count = 1;
            }
        }
    }
    inserts
}

/// A time that a person typed, as an expression.
pub(super) fn when(when: When) -> String {
    match when {
        When::At(time) => quote(&time.format("%Y-%m-%d %H:%M:%S%.3f").to_string()),
        When::In(wait) => format!("TIMESTAMPADD(MICROSECOND, {}000, NOW(3))", wait.as_millis()),
    }
}

impl Tables {
    /// One row for each of `targets`. Without a task: an act that is of none.
    pub(super) fn audit_statement(
        &self,
        act: &Act<'_>,
        task: Option<TaskId>,
        targets: &[Option<TargetId>],
    ) -> String {
        let id = |id: Option<u64>| id.map_or_else(|| "NULL".into(), |id| id.to_string());
        let rows = targets.iter().map(|target| {
            format!(
                "({}, {}, {}, {}, {})",
                fitted(act.who, NAME_MOST),
                fitted(act.what, 64),
                id(task),
                id(*target),
                act.why.map_or_else(|| "NULL".into(), |why| fitted(why, REASON_MOST)),
            )
        });
        format!("INSERT INTO {} (who, what, task_id, target_id, why) VALUES {}", self.audit, list(rows))
    }
}

/// The task's row, locked in a new transaction: its status.
fn lock_task(connection: &mut Connection, tables: &Tables, id: TaskId) -> Result<Option<String>, Fault> {
    let text = format!("{BEGIN}SELECT status FROM {} WHERE id = {id} FOR UPDATE", tables.task);
    Ok(last(connection.run(&text)?).rows.pop().map(|mut row| row.word()))
}

impl Desk for MySql {
    fn schema(&mut self) -> Result<Schema> {
        let Tables { migration, installation, .. } = &*self.tables;
        let text =
            format!("SELECT (SELECT MAX(version) FROM {migration}), (SELECT MAX(id) FROM {installation})");
        let row = match self.connection.persist(|connection, _| Ok(last(connection.run(&text)?).rows.pop())) {
            Ok(row) => row,
            Err(Fault::Missing(_)) => None,
            Err(fault) => return Err(fault.into_error().context("cannot read the schema version")),
        };
        let Some(mut row) = row else {
            return Ok(Schema { version: 0, installation: None });
        };
        let version = row.maybe()?.unwrap_or(0);
        let installation = row.text().and_then(|id| id.parse().ok());
        Ok(Schema { version, installation })
    }

    fn migrate(&mut self, patience: Duration) -> Result<Migrated> {
        let deadline = Moment::now() + patience;
        let (tables, lock) = (Rc::clone(&self.tables), self.lock_name.clone());
        let migrated = self.connection.attempt("migrate", |connection, _| {
            // The lock is the connection's: lost with it, everything begins again.
            loop {
                let text = format!("SELECT GET_LOCK('{lock}', {})", deadline.left().as_secs().min(3));
                if last(connection.run(&text)?).rows.pop().map_or(Ok(false), |mut row| row.flag())? {
                    break;
                }
                if deadline.passed() {
                    return Err(Fault::Final(
                        Trouble::try_later(
                            "another process migrates these tables right now: try again once it is done",
                        )
                        .into(),
                    ));
                }
            }
            let migrated = apply(connection, &tables, deadline);
            // After a loss the lock is gone, too, and a new connection would not hold it.
            if !matches!(migrated, Err(Fault::Lost(_))) {
                connection.run(&format!("SELECT RELEASE_LOCK('{lock}')"))?;
            }
            migrated
        })?;
        Ok(migrated)
    }

    fn drop_tables(&mut self) -> Result<()> {
        let Tables { task, target, pace, installation, migration, audit, suppression, .. } = &*self.tables;
        let text = format!(
            "DROP TABLE IF EXISTS {task}, {target}, {pace}, {installation}, {audit}, {suppression}, {migration}"
        );
        self.write("drop the tables", &text).map(drop)
    }

    fn create(&mut self, task: &NewTask<'_>) -> Result<TaskId> {
        let text = format!(
            "INSERT INTO {} (name, channel, payload, priority, scheduled_at, expires_at) VALUES ({}, {}, {}, {}, {}, {})",
            self.tables.task,
            fitted(task.name, NAME_MOST),
            quote(task.channel),
            quote_or_null(task.payload),
            task.priority,
            task.scheduled.map_or_else(|| "NULL".into(), when),
            task.expires.map_or_else(|| "NULL".into(), when),
        );
        let created = self.connection.persist(|connection, lost| {
            if lost {
                // Nothing about the row tells ours from another's, and two drafts are worse than a question.
                return Err(Fault::Final(
                    Trouble::try_later(
                        "the connection was lost while the task was made: `batch-send task list` shows whether it is there",
                    )
                    .into(),
                ));
            }
            Ok(last(connection.run(&text)?).id)
        });
        created.map_err(|fault| match fault {
            Fault::Data(why) => why.context(Trouble::usage("the task cannot be made: a value does not fit")),
            fault => fault.into_error().context("cannot make a task"),
        })
    }

    fn add(&mut self, task: TaskId, rows: &[NewTarget]) -> Result<Added> {
        refuse_long(rows.iter().map(|row| row.recipient.as_str()))?;
        let tables = Rc::clone(&self.tables);
        let values = rows.iter().map(|row| {
            format!("({task}, {}, {})", quote(row.recipient.trim_end()), quote_or_null(row.params.as_deref()))
        });
        let into = format!("{} (task_id, recipient, params)", tables.target);
        let inserts = inserts(&into, values, self.connection.server.packet);
        let added = self.connection.persist(|connection, _| {
            let status = lock_task(connection, &tables, task)?.ok_or_else(|| no_such_task(task))?;
            if status == "cancelled" {
                return Err(Fault::Final(cancelled(task, "added")));
            }
            let mut new = 0;
            for insert in &inserts {
                // Not INSERT IGNORE: it would cut what is too long and take what is not valid.
                new += last(connection.run(&format!("{insert} ON DUPLICATE KEY UPDATE task_id = task_id"))?)
                    .changed;
            }
            if status == "finished" && new > 0 {
                connection
                    .run(&format!("UPDATE {} SET {REOPENED} WHERE id = {task}; COMMIT", tables.task))?;
            } else {
                connection.run(COMMIT)?;
            }
            Ok(Added { new, repeated: rows.len() as u64 - new })
        });
        added.map_err(|fault| match fault {
            Fault::Data(why) => why
                .context(Trouble::usage(format!("cannot add targets to task {task}: a value does not fit"))),
            fault => fault.into_error().context(format!("cannot add targets to task {task}")),
        })
    }

    fn turn(
        &mut self,
        task: TaskId,
        from: &[TaskStatus],
        to: TaskStatus,
        reason: Option<&str>,
        expiry: Expiry,
        act: &Act<'_>,
    ) -> Result<Turned> {
        let tables = Rc::clone(&self.tables);
        let mut set = format!(
            "status = '{}', status_reason = {}",
            to.word(),
            reason.map_or_else(|| "NULL".into(), |reason| fitted(reason, REASON_MOST))
        );
        match to {
            TaskStatus::Paused | TaskStatus::Cancelled => set += &format!(", {HALT}"),
            TaskStatus::Pending => set += ", unknown_run = 0",
            TaskStatus::Draft | TaskStatus::Finished => {}
        }
        match expiry {
            Expiry::Keep => {}
            Expiry::Never => set += ", expires_at = NULL",
            Expiry::Until(time) => set += &format!(", expires_at = {}", when(time)),
        }
        let busy = probes(&tables.target, task, &["processing", "sending"]);
        let audit = tables.audit_statement(act, Some(task), &[None]);
        let mut before = None;
        let turned = self.connection.persist(|connection, lost| {
            let Some(word) = lock_task(connection, &tables, task)? else {
                return Ok(Turned::NoSuchTask);
            };
            let status = TaskStatus::from_word(&word).unwrap_or(TaskStatus::Draft);
            if let (true, Some(before), true) = (lost, before, status == to) {
                return Ok(Turned::From(before));
            }
            if !from.contains(&status) {
                return Ok(Turned::Refused(status));
            }
            before = Some(status);
            let mut set = set.clone();
            if to == TaskStatus::Cancelled && last(connection.run(&busy)?).rows.is_empty() {
                connection.run(&recover::left_in_doubt(&tables.target, task))?;
                set += ", finished_at = NOW(3)";
            }
            connection
                .run(&format!("UPDATE {} SET {set} WHERE id = {task}; {audit}; COMMIT", tables.task))?;
            Ok(Turned::From(status))
        });
        turned.map_err(|fault| match fault {
            Fault::Data(why) => {
                why.context(Trouble::usage(format!("task {task} cannot be changed: a value does not fit")))
            }
            fault => fault.into_error().context(format!("cannot change task {task}")),
        })
    }

    fn task(&mut self, id: TaskId) -> Result<Option<Task>> {
        let text =
            format!("SELECT {} FROM {} WHERE t.id = {id}", task_columns(), tasks_with_pace(&self.tables, ""));
        self.read("read a task", &text)?.pop().map(|mut row| read_task(&mut row)).transpose()
    }

    fn tasks(&mut self, only: Option<TaskId>, exact: bool) -> Result<Vec<(Task, Counts)>> {
        let which = only.map_or_else(String::new, |id| format!("WHERE t.id = {id}"));
        let text = format!(
            "SELECT {}, sent_count, failed_count, unknown_count FROM {} {which} ORDER BY t.id DESC",
            task_columns(),
            tasks_with_pace(&self.tables, "")
        );
        // One that was added to behind our back must not hide behind frozen counts.
        let thawed = exact || !self.having(&Vec::from_iter(only), OPEN)?.is_empty();
        let mut tasks = Vec::new();
        let mut open = Vec::new();
        for mut row in self.read("read the tasks", &text)? {
            let task = read_task(&mut row)?;
            let frozen = (row.maybe()?, row.maybe()?, row.maybe()?);
            let counts = match (task.status, frozen) {
                (TaskStatus::Finished, (Some(sent), Some(failed), Some(unknown))) if !thawed => {
                    Counts { sent, failed, unknown, ..Counts::default() }
                }
                _ => {
                    open.push(task.id);
                    Counts::default()
                }
            };
            tasks.push((task, counts));
        }
        let counted = self.count(&open, exact)?;
        for (task, counts) in &mut tasks {
            if let Some(counted) = counted.get(&task.id) {
                *counts = *counted;
            }
        }
        Ok(tasks)
    }

    fn courses(&mut self, only: Option<TaskId>) -> Result<Courses> {
        self.read_courses(only)
    }

    fn details(&mut self, task: TaskId, exact: bool) -> Result<Details> {
        self.read_details(task, exact)
    }

    fn peek(&mut self, task: TaskId, most: usize) -> Result<Vec<Target>> {
        let Some(Task { channel, .. }) = self.task(task)? else { return Ok(Vec::new()) };
        let suppressed = suppressed(&self.tables, &channel);
        let look = |status: &str| {
            format!(
                "(SELECT {TARGET_COLUMNS} FROM {} FORCE INDEX (k_task_status) \
                 WHERE task_id = {task} AND status = '{status}' AND {suppressed} IS NULL ORDER BY id LIMIT {most})",
                self.tables.target
            )
        };
        let text = [look("pending"), look("processing"), look("retry")].join(" UNION ALL ");
        let mut rows = self.read("look at targets", &text)?;
        let mut targets: Vec<Target> = rows.iter_mut().map(read_target).collect::<Result<_>>()?;
        targets.sort_by_key(|target| target.id);
        targets.truncate(most);
        Ok(targets)
    }

    fn target(&mut self, task: TaskId, id: TargetId) -> Result<Option<Target>> {
        let text = format!(
            "SELECT {TARGET_COLUMNS} FROM {} WHERE id = {id} AND task_id = {task}",
            self.tables.target
        );
        self.read("look at a target", &text)?.pop().map(|mut row| read_target(&mut row)).transpose()
    }

    fn named(&mut self, task: TaskId, names: Names<'_>) -> Result<Vec<TargetRow>> {
        let looks: Vec<String> = match names {
            Names::Ids(ids) => {
                let ids = ids.chunks(CHUNK).map(list);
                ids.map(|ids| format!("WHERE id IN ({ids}) AND task_id = {task}")).collect()
            }
            Names::Recipients(recipients) => {
                let names = recipients.chunks(CHUNK).map(|names| list(names.iter().map(|name| quote(name))));
                names
                    .map(|names| {
                        format!(
                            "FORCE INDEX (u_task_recipient) WHERE task_id = {task} AND recipient IN ({names})"
                        )
                    })
                    .collect()
            }
        };
        let mut found = Vec::new();
        for look in looks {
            let text = format!("SELECT {} FROM {} {look}", row_columns(), self.tables.target);
            for mut row in self.read("look up targets", &text)? {
                found.push(read_row(&mut row, task)?);
            }
        }
        found.sort_by_key(|row| row.id);
        Ok(found)
    }

    fn targets(
        &mut self,
        task: TaskId,
        statuses: &[&str],
        each: &mut dyn FnMut(TargetRow) -> Result<()>,
    ) -> Result<()> {
        // Each status comes in the order of id from the index alone; merged, so do all.
        let wanted = STATUSES.into_iter().filter(|word| statuses.is_empty() || statuses.contains(word));
        let mut streams: Vec<Stream> = wanted.map(Stream::new).collect();
        let mut last = 0;
        loop {
            for stream in &mut streams {
                if stream.page.is_empty() && !stream.ended {
                    stream.page = self.page(task, stream.status, stream.after, PAGE)?.into();
                    stream.ended = stream.page.len() < PAGE;
                    stream.after = stream.page.back().map_or(stream.after, |row| row.id);
                }
            }
            let next = streams
                .iter_mut()
                .filter(|stream| !stream.page.is_empty())
                .min_by_key(|stream| stream.page.front().map(|row| row.id));
            let Some(row) = next.and_then(|stream| stream.page.pop_front()) else {
                return Ok(());
            };
            // One that changed its status meanwhile may come twice.
            if row.id > last {
                last = row.id;
                each(row)?;
            }
        }
    }

    fn snapshot(
        &mut self,
        task: TaskId,
        each: &mut dyn FnMut(TargetFacts) -> Result<()>,
    ) -> Result<Option<Snapshot>> {
        self.take_snapshot(task, each)
    }

    fn resolve(
        &mut self,
        task: TaskId,
        targets: Option<&[TargetId]>,
        to: Verdict,
        act: &Act<'_>,
    ) -> Result<u64> {
        self.recover(Some(task))?;
        let set = match to {
            Verdict::Sent => "status = 'sent', settled_at = NOW(3), last_error = NULL",
            Verdict::Failed => "status = 'failed', settled_at = NOW(3)",
            Verdict::Retry => "status = 'pending', settled_at = NULL",
        };
        let change =
            Change { from: "unknown", set, also: "", reopens: to == Verdict::Retry, verb: "sent again" };
        Ok(self.change(task, targets, &change, act)?.changed)
    }

    fn requeue(&mut self, task: TaskId, targets: Option<&[TargetId]>, act: &Act<'_>) -> Result<Requeued> {
        let change = Change {
            from: "failed",
            set: "status = 'pending', settled_at = NULL, round = round + 1",
            // One more round has no number, and the key of an earlier one would be taken for a repeat.
            also: "AND round < 255",
            reopens: true,
            verb: "sent again",
        };
        self.change(task, targets, &change, act)
    }

    fn ended(&mut self, age: Duration) -> Result<Vec<Task>> {
        self.list_ended(age)
    }

    fn condemn(
        &mut self,
        task: TaskId,
        age: Duration,
        with_unknown: bool,
        act: &Act<'_>,
    ) -> Result<Option<Stays>> {
        self.condemn_task(task, age, with_unknown, act)
    }

    fn purge(&mut self, task: TaskId, age: Duration, with_unknown: bool, after: TargetId) -> Result<Purged> {
        self.purge_step(task, age, with_unknown, after)
    }

    fn suppress(&mut self, rows: &[Suppression], act: &Act<'_>) -> Result<Added> {
        self.add_suppressions(rows, act)
    }

    fn unsuppress(&mut self, recipient: &str, channel: Option<&str>, act: &Act<'_>) -> Result<u64> {
        self.remove_suppression(recipient, channel, act)
    }

    fn suppressions(&mut self, each: &mut dyn FnMut(Suppression) -> Result<()>) -> Result<()> {
        self.list_suppressions(each)
    }
}

/// The columns that [`read_row`] reads.
fn row_columns() -> String {
    format!(
        "id, recipient, params, status, attempts, round, {}, {}, {}, receipt, last_error, \
         status = 'sending' AND {CLAIM_ENDED}",
        ms("retry_at"),
        ms("send_at"),
        ms("settled_at"),
    )
}

fn read_row(row: &mut Cells, task: TaskId) -> Result<TargetRow> {
    Ok(TargetRow {
        id: row.number()?,
        task_id: task,
        recipient: row.word(),
        params: row.text(),
        status: row.word(),
        attempts: row.number()?,
        round: row.number()?,
        retry_at: time(row.maybe()?),
        send_at: time(row.maybe()?),
        settled_at: time(row.maybe()?),
        receipt: row.text(),
        last_error: row.text(),
        overdue: row.flag()?,
    })
}

/// What a person does to the targets of one status.
struct Change {
    from: &'static str,
    set: &'static str,
    also: &'static str,
    /// They are open afterwards: a finished task is pending again, a cancelled one refuses.
    reopens: bool,
    verb: &'static str,
}

/// The targets of one status in the order of id, a page at a time.
struct Stream {
    status: &'static str,
    page: VecDeque<TargetRow>,
    after: TargetId,
    ended: bool,
}

impl Stream {
    fn new(status: &'static str) -> Self {
        Self { status, page: VecDeque::new(), after: 0, ended: false }
    }
}

impl MySql {
    /// All targets of a status, or those of them that are among `targets`. How many were changed.
    fn change(
        &mut self,
        task: TaskId,
        targets: Option<&[TargetId]>,
        change: &Change,
        act: &Act<'_>,
    ) -> Result<Requeued> {
        let tables = Rc::clone(&self.tables);
        let target = &tables.target;
        let condition = format!("task_id = {task} AND status = '{}' {}", change.from, change.also);
        let mut named = targets.map(|targets| {
            let mut targets = targets.to_vec();
            targets.sort_unstable();
            targets.dedup();
            targets.chunks(CHUNK).map(list).collect::<Vec<_>>().into_iter()
        });
        let columns = format!("id, last_error <=> {}", quote(SUPPRESSED));
        let (mut done, mut after, mut first) = (Requeued::default(), 0, true);
        loop {
            let look = match &mut named {
                Some(chunks) => match chunks.next() {
                    Some(ids) => format!(
                        "SELECT {columns} FROM {target} WHERE id IN ({ids}) AND {condition} ORDER BY id FOR UPDATE"
                    ),
                    // Without any, still a word on a task that is not there.
                    None if first => format!("SELECT {columns} FROM {target} WHERE id = 0"),
                    None => return Ok(done),
                },
                // Forward only: what a run has made of them meanwhile is not changed twice.
                None => format!(
                    "SELECT {columns} FROM {target} FORCE INDEX (k_task_status) WHERE {condition} AND id > {after} \
                     ORDER BY id LIMIT {CHUNK} FOR UPDATE"
                ),
            };
            let found = self.connection.attempt("change targets", |connection, _| {
                let status = lock_task(connection, &tables, task)?.ok_or_else(|| no_such_task(task))?;
                if status == "cancelled" && change.reopens {
                    return Err(Fault::Final(cancelled(task, change.verb)));
                }
                let (mut ids, mut suppressed) = (Vec::new(), 0);
                for mut row in last(connection.run(&look)?).rows {
                    ids.push(row.number()?);
                    suppressed += u64::from(row.flag()?);
                }
                if ids.is_empty() {
                    return Ok((ids, 0));
                }
                let reopened = if change.reopens { REOPENED } else { UNFROZEN };
                let audited: Vec<Option<TargetId>> = match (targets, done.changed) {
                    (Some(_), _) => ids.iter().copied().map(Some).collect(),
                    (None, 0) => vec![None],
                    (None, _) => Vec::new(),
                };
                let audit = match audited.as_slice() {
                    [] => String::new(),
                    audited => tables.audit_statement(act, Some(task), audited) + "; ",
                };
                connection.run(&format!(
                    "UPDATE {} SET {reopened} WHERE id = {task} AND status = 'finished'; \
                     UPDATE {target} SET {}, dedupe_until = NULL, message_hash = NULL, retry_at = NULL \
                     WHERE id IN ({}) AND {condition}; {audit}COMMIT",
                    tables.task,
                    change.set,
                    list(&ids)
                ))?;
                Ok((ids, suppressed))
            })?;
            let (found, suppressed) = found;
            first = false;
            done.changed += found.len() as u64;
            done.suppressed += suppressed;
            match found.last() {
                Some(last) => after = *last,
                None if named.is_none() => return Ok(done),
                None => {}
            }
        }
    }

    /// The first `most` targets of one status behind an id, in the order of id.
    pub(super) fn page(
        &mut self,
        task: TaskId,
        status: &str,
        after: TargetId,
        most: usize,
    ) -> Result<Vec<TargetRow>> {
        let text = format!(
            "SELECT {} FROM {} FORCE INDEX (k_task_status) \
             WHERE task_id = {task} AND status = '{status}' AND id > {after} ORDER BY id LIMIT {most}",
            row_columns(),
            self.tables.target,
        );
        let rows = self.read("read targets", &text)?;
        rows.into_iter().map(|mut row| read_row(&mut row, task)).collect()
    }
}

/// Brings the schema to our version, under the named lock. Each file can be applied again after a part of it was.
fn apply(connection: &mut Connection, tables: &Tables, deadline: Moment) -> Result<Migrated, Fault> {
    let Tables { prefix, task, migration, installation, .. } = tables;
    let text = format!(
        "{}; SELECT version, checksum FROM {migration} ORDER BY version",
        migrations::own_table(false, prefix)
    );
    let mut from = 0;
    for mut row in last(connection.run(&text)?).rows {
        let (version, checksum): (u32, _) = (row.number()?, row.word());
        from = version;
        let file = migrations::MIGRATIONS.iter().find(|migration| migration.version == version);
        if let Some(file) = file.filter(|file| migrations::checksum(file.mysql) != checksum) {
            return Err(Fault::Final(
                Trouble::usage(format!(
                    "migration {} is not the one that was applied: use the batch-send that made these tables, or a newer one",
                    file.name
                ))
                .into(),
            ));
        }
    }
    if from > migrations::VERSION {
        check_version(from)?;
    }
    let missing: Vec<_> =
        migrations::MIGRATIONS.iter().filter(|migration| migration.version > from).collect();
    if !missing.is_empty() {
        match wait_for_leases(connection, task, deadline) {
            // The first migration: there is nothing to hold yet.
            Ok(()) | Err(Fault::Missing(_)) => {}
            Err(fault) => return Err(fault),
        }
    }
    let mut applied = Vec::new();
    for file in missing {
        for statement in migrations::statements(file.mysql, prefix) {
            connection.run(&statement)?;
        }
        connection.run(&format!(
            "INSERT INTO {migration} (version, name, checksum) VALUES ({}, {}, {}) \
             ON DUPLICATE KEY UPDATE version = version",
            file.version,
            quote(file.name),
            quote(&migrations::checksum(file.mysql)),
        ))?;
        applied.push(file.name.to_owned());
    }
    connection.run(&format!(
        "INSERT INTO {installation} (one, id, server) \
         VALUES (1, '{}', LEFT(CONCAT(@@hostname, ':', @@port), {NAME_MOST})) ON DUPLICATE KEY UPDATE one = one",
        Uuid::new_v4()
    ))?;
    Ok(Migrated { from, to: migrations::VERSION, applied })
}

/// No run may meet tables that change under it. New leases are refused once the version has moved.
fn wait_for_leases(connection: &mut Connection, task: &str, deadline: Moment) -> Result<(), Fault> {
    let text = format!(
        "SELECT COUNT(*), MAX(lock_owner) FROM {task} WHERE lock_token IS NOT NULL AND lock_until > NOW(3)"
    );
    loop {
        let Some(mut row) = last(connection.run(&text)?).rows.pop() else {
            return Ok(());
        };
        let (live, owner): (u64, _) = (row.number()?, row.word());
        if live == 0 {
            return Ok(());
        }
        if deadline.passed() {
            return Err(Fault::Final(
                Trouble::try_later(format!(
                    "{live} tasks are being worked on (by {owner}): migrate when no run is live"
                ))
                .into(),
            ));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}
