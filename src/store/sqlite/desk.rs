//! What an operator asks of the store on SQLite: the schema, tasks and targets, and a person's word on them.

use super::*;
use crate::course::Courses;
use crate::store::migrations::{MIGRATIONS, VERSION, checksum, statements};

/// Targets read in one go; between two goes other stores may write.
const PAGE: i64 = 1_000;

impl Desk for Sqlite {
    fn schema(&mut self) -> Result<Schema> {
        let mut writer = self.writer();
        if !writer.open(false)? {
            return Ok(Schema { version: 0, installation: None });
        }
        writer.read(|tx| {
            let version = applied(tx)?.last().map_or(0, |(version, _)| *version);
            let installation = match version {
                0 => None,
                _ => tx.one(&format!("SELECT id FROM {p}installation", p = tx.p), [], |row| {
                    row.get::<_, String>(0)
                })?,
            };
            Ok(Schema { version, installation: installation.and_then(|id| Uuid::parse_str(&id).ok()) })
        })
    }

    fn migrate(&mut self, patience: Duration) -> Result<Migrated> {
        self.writer().open(true)?;
        let until = Moment::now() + patience;
        loop {
            // All steps in one transaction: whoever comes second finds them done.
            match self.writer().write(migrate)? {
                Ok(migrated) => return Ok(migrated),
                Err(holder) if until.passed() => {
                    let text = format!("{holder}: pause the tasks or let the runs end, then migrate again");
                    return Err(Trouble::try_later(text).into());
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100).min(until.left())),
            }
        }
    }

    fn drop_tables(&mut self) -> Result<()> {
        self.writer()
            .write(|tx| {
                for table in
                    ["task", "task_target", "pace", "installation", "audit", "suppression", "migration"]
                {
                    tx.sql.execute_batch(&format!("DROP TABLE IF EXISTS {p}{table}", p = tx.p))?;
                }
                Ok(())
            })
            .context("drop the tables")
    }

    fn create(&mut self, task: &NewTask<'_>) -> Result<TaskId> {
        self.writer()
            .write(|tx| {
                let sql = format!(
                    "INSERT INTO {p}task (name, channel, payload, status, priority, scheduled_at, expires_at, created_at) \
                     VALUES (?1, ?2, ?3, 'draft', ?4, ?5, ?6, ?7)",
                    p = tx.p
                );
                tx.change(
                    &sql,
                    params![
                        fit(task.name, NAME_MOST),
                        task.channel,
                        task.payload,
                        task.priority,
                        task.scheduled.map(|when| at(tx, when)),
                        task.expires.map(|when| at(tx, when)),
                        tx.now,
                    ],
                )?;
                Ok(tx.sql.last_insert_rowid().cast_unsigned())
            })
            .context("create a task")
    }

    fn add(&mut self, task: TaskId, rows: &[NewTarget]) -> Result<Added> {
        self.writer()
            .write(|tx| {
                let p = tx.p;
                open_again(tx, task)?;
                let sql = format!(
                    "INSERT INTO {p}task_target (task_id, recipient, params) VALUES (?1, ?2, ?3) \
                     ON CONFLICT (task_id, recipient) DO NOTHING"
                );
                let mut added = Added::default();
                for row in rows {
                    let recipient = row.recipient.trim_end();
                    refuse_long(recipient)?;
                    let new = tx.change(&sql, params![task.cast_signed(), recipient, row.params])?;
                    added.new += new;
                    added.repeated += 1 - new;
                }
                if added.new > 0 {
                    reopen(tx, task)?;
                }
                Ok(added)
            })
            .with_context(|| format!("add targets to task {task}"))
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
        self.writer()
            .write(|tx| {
                let p = tx.p;
                let Some(found) = read_one_task(tx, task)? else {
                    return Ok(Turned::NoSuchTask);
                };
                if !from.contains(&found.status) {
                    return Ok(Turned::Refused(found.status));
                }
                let halts = matches!(to, TaskStatus::Paused | TaskStatus::Cancelled);
                let expires = match expiry {
                    Expiry::Keep => found.expires_at.map(|at| at.timestamp_millis()),
                    Expiry::Never => None,
                    Expiry::Until(when) => Some(at(tx, when)),
                };
                let reason = reason.map(|reason| fit(reason, REASON_MOST));
                tx.change(
                    &format!(
                        "UPDATE {p}task SET status = ?2, status_reason = ?3, expires_at = ?4, halt_at = COALESCE(?5, halt_at), \
                         unknown_run = CASE WHEN ?2 = 'pending' THEN 0 ELSE unknown_run END, finished_at = NULL WHERE id = ?1"
                    ),
                    params![
                        task.cast_signed(),
                        to.word(),
                        reason,
                        expires,
                        halts.then(|| halt(tx, task)).transpose()?
                    ],
                )?;
                recover::finish_cancelled(tx, Some(task))?;
                tx.audit(act, Some(task), None)?;
                Ok(Turned::From(found.status))
            })
            .with_context(|| format!("{} task {task}", act.what))
    }

    fn task(&mut self, id: TaskId) -> Result<Option<Task>> {
        self.writer().read(|tx| read_one_task(tx, id))
    }

    fn tasks(&mut self, only: Option<TaskId>, exact: bool) -> Result<Vec<(Task, Counts)>> {
        self.writer().read(|tx| {
            let sql = format!("{} WHERE ?1 IS NULL OR id = ?1 ORDER BY id DESC", select_tasks(tx.p));
            let mut tasks = tx.all(&sql, [only.map(u64::cast_signed)], |row| {
                let frozen = |column: usize| {
                    row.get::<_, Option<i64>>(column).map(|count| count.map(i64::cast_unsigned))
                };
                let counts = match [frozen(16)?, frozen(17)?, frozen(18)?] {
                    [Some(sent), Some(failed), Some(unknown)] => {
                        Some(Counts { sent, failed, unknown, ..Counts::default() })
                    }
                    _ => None,
                };
                Ok((read_task(row, tx.now)?, counts))
            })?;
            for (task, frozen) in &mut tasks {
                // One that was added to behind our back must not hide behind frozen counts.
                if exact || (only.is_some() && is_open(tx, task.id)?) {
                    *frozen = None;
                }
            }
            let open: Vec<TaskId> =
                tasks.iter().filter(|(_, counts)| counts.is_none()).map(|(task, _)| task.id).collect();
            let mut counted = survey::count(tx, &open, exact)?;
            let counts = |(task, frozen): (Task, Option<Counts>)| {
                let counts = frozen.or_else(|| counted.remove(&task.id)).unwrap_or_default();
                (task, counts)
            };
            Ok(tasks.into_iter().map(counts).collect())
        })
    }

    fn courses(&mut self, only: Option<TaskId>) -> Result<Courses> {
        self.writer().read(|tx| survey::courses(tx, only)).context("read how tasks move")
    }

    fn details(&mut self, task: TaskId, exact: bool) -> Result<Details> {
        self.writer().read(|tx| survey::details(tx, task, exact)).context("read the details of a task")
    }

    fn peek(&mut self, task: TaskId, most: usize) -> Result<Vec<Target>> {
        self.writer().read(|tx| {
            let sql = format!(
                "SELECT {TARGET} FROM {p}task_target WHERE id IN ({}) ORDER BY id",
                in_order_of_id(tx, &["pending", "processing", "retry"]),
                p = tx.p
            );
            let channel = format!("SELECT channel FROM {p}task WHERE id = ?1", p = tx.p);
            let channel = tx.one(&channel, [task.cast_signed()], |row| row.get::<_, String>(0))?;
            let (mut found, mut last) = (Vec::new(), 0);
            while found.len() < most {
                let page = tx.all(&sql, params![task.cast_signed(), last, PAGE], read_target)?;
                let Some(target) = page.last() else { break };
                last = target.id.cast_signed();
                for target in page {
                    if !suppression::stands(tx, &target.recipient, channel.as_deref())? {
                        found.push(target);
                    }
                }
            }
            found.truncate(most);
            Ok(found)
        })
    }

    fn target(&mut self, task: TaskId, id: TargetId) -> Result<Option<Target>> {
        self.writer().read(|tx| {
            let sql = format!("SELECT {TARGET} FROM {p}task_target WHERE id = ?1 AND task_id = ?2", p = tx.p);
            tx.one(&sql, [id.cast_signed(), task.cast_signed()], read_target)
        })
    }

    fn named(&mut self, task: TaskId, names: Names<'_>) -> Result<Vec<TargetRow>> {
        let (condition, names) = match names {
            Names::Ids(ids) => {
                let ids: Vec<i64> = ids.iter().map(|id| id.cast_signed()).collect();
                ("id IN (SELECT value FROM json_each(?2)) AND +task_id = ?1", list(&ids)?)
            }
            Names::Recipients(names) => {
                ("task_id = ?1 AND recipient IN (SELECT value FROM json_each(?2))", list(names)?)
            }
        };
        self.writer().read(|tx| {
            let sql = format!("{} WHERE {condition} ORDER BY id", select_rows(tx.p));
            tx.all(&sql, params![task.cast_signed(), names], |row| read_row(row, tx.now))
        })
    }

    fn targets(
        &mut self,
        task: TaskId,
        statuses: &[&str],
        each: &mut dyn FnMut(TargetRow) -> Result<()>,
    ) -> Result<()> {
        let known = TargetStatus::ALL.map(TargetStatus::word);
        let wanted: Vec<&str> =
            known.into_iter().filter(|word| statuses.is_empty() || statuses.contains(word)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let mut last = 0;
        loop {
            let page = self.writer().read(|tx| page(tx, task, &wanted, last, PAGE))?;
            let Some(row) = page.last() else {
                return Ok(());
            };
            last = row.id.cast_signed();
            for row in page {
                each(row)?;
            }
        }
    }

    fn snapshot(
        &mut self,
        task: TaskId,
        each: &mut dyn FnMut(TargetFacts) -> Result<()>,
    ) -> Result<Option<Snapshot>> {
        self.writer().read(|tx| snapshot(tx, task, each))
    }

    fn resolve(
        &mut self,
        task: TaskId,
        targets: Option<&[TargetId]>,
        to: Verdict,
        act: &Act<'_>,
    ) -> Result<u64> {
        self.writer()
            .write(|tx| {
                let p = tx.p;
                match to {
                    Verdict::Retry => open_again(tx, task)?,
                    Verdict::Sent | Verdict::Failed => {
                        known(tx, task)?;
                    }
                }
                recover::recover(tx, Some(task))?;
                let (status, settled_at) = match to {
                    Verdict::Sent => ("sent", Some(tx.now)),
                    Verdict::Failed => ("failed", Some(tx.now)),
                    Verdict::Retry => ("pending", None),
                };
                // The token stays: an acceptance that still comes for it wins.
                let sql = format!(
                    "UPDATE {p}task_target SET status = ?2, settled_at = ?3, dedupe_until = NULL, message_hash = NULL, \
                     last_error = CASE ?2 WHEN 'sent' THEN NULL ELSE last_error END \
                     WHERE task_id = ?1 AND status = 'unknown' AND (?4 IS NULL OR id = ?4)"
                );
                let changed = change(tx, task, targets, act, |target| {
                    tx.change(
                        &sql,
                        params![task.cast_signed(), status, settled_at, target.map(u64::cast_signed)],
                    )
                })?;
                if changed > 0 {
                    thaw(tx, task)?;
                    if to == Verdict::Retry {
                        reopen(tx, task)?;
                    }
                }
                Ok(changed)
            })
            .with_context(|| format!("resolve targets of task {task}"))
    }

    fn requeue(&mut self, task: TaskId, targets: Option<&[TargetId]>, act: &Act<'_>) -> Result<Requeued> {
        self.writer()
            .write(|tx| {
                let p = tx.p;
                open_again(tx, task)?;
                // The token stays: an acceptance that still comes for it wins.
                let failed =
                    "WHERE task_id = ?1 AND status = 'failed' AND round < 255 AND (?2 IS NULL OR id = ?2)";
                let sql = format!(
                    "UPDATE {p}task_target SET status = 'pending', round = round + 1, settled_at = NULL, \
                     dedupe_until = NULL, message_hash = NULL {failed}"
                );
                let count =
                    format!("SELECT count(*) FROM {p}task_target {failed} AND last_error = '{SUPPRESSED}'");
                let mut suppressed = 0;
                let changed = change(tx, task, targets, act, |target| {
                    let which = params![task.cast_signed(), target.map(u64::cast_signed)];
                    let among = tx.one(&count, which, |row| row.get::<_, i64>(0))?.unwrap_or(0);
                    suppressed += among.cast_unsigned();
                    tx.change(&sql, which)
                })?;
                if changed > 0 {
                    reopen(tx, task)?;
                }
                Ok(Requeued { changed, suppressed })
            })
            .with_context(|| format!("retry failed targets of task {task}"))
    }

    fn ended(&mut self, age: Duration) -> Result<Vec<Task>> {
        self.writer().read(|tx| purge::ended(tx, age)).context("look for tasks that have ended")
    }

    fn condemn(
        &mut self,
        task: TaskId,
        age: Duration,
        with_unknown: bool,
        act: &Act<'_>,
    ) -> Result<Option<Stays>> {
        self.writer()
            .write(|tx| purge::condemn(tx, task, age, with_unknown, act))
            .with_context(|| format!("end task {task} for good"))
    }

    fn purge(&mut self, task: TaskId, age: Duration, with_unknown: bool, after: TargetId) -> Result<Purged> {
        self.writer()
            .write(|tx| purge::step(tx, task, age, with_unknown, after))
            .with_context(|| format!("purge task {task}"))
    }

    fn suppress(&mut self, rows: &[Suppression], act: &Act<'_>) -> Result<Added> {
        self.writer().write(|tx| suppression::add(tx, rows, act)).context("suppress")
    }

    fn unsuppress(&mut self, recipient: &str, channel: Option<&str>, act: &Act<'_>) -> Result<u64> {
        self.writer()
            .write(|tx| suppression::remove(tx, recipient, channel, act))
            .context("end a suppression")
    }

    fn suppressions(&mut self, each: &mut dyn FnMut(Suppression) -> Result<()>) -> Result<()> {
        let mut after = (String::new(), String::new());
        loop {
            let page = self.writer().read(|tx| suppression::page(tx, &after))?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = (last.recipient.clone(), last.channel.clone().unwrap_or_else(|| EVERY_CHANNEL.into()));
            page.into_iter().try_for_each(&mut *each)?;
        }
    }
}

// ---- the schema --------------------------------------------------------------------------------------------------

/// Version and checksum of each migration applied, in order.
fn applied(tx: &Tx<'_>) -> Result<Vec<(u32, String)>> {
    let table = format!("{p}migration", p = tx.p);
    if !tx
        .exists("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE", [&table])?
    {
        return Ok(Vec::new());
    }
    tx.all(&format!("SELECT version, checksum FROM {table} ORDER BY version"), [], |row| {
        Ok((small(row, 0, u32::MAX)?, row.get(1)?))
    })
}

pub(super) fn refuse_long(recipient: &str) -> Result<()> {
    if recipient.chars().count() <= RECIPIENT_MOST {
        return Ok(());
    }
    let text = format!("a recipient is longer than {RECIPIENT_MOST} characters: {}", fit(recipient, 40));
    Err(Trouble::usage(text).into())
}

/// An error unless the tables are of the version that this binary speaks.
pub(super) fn speaks_our_version(tx: &Tx<'_>) -> Result<()> {
    let sql = format!("SELECT COALESCE(max(version), 0) FROM {p}migration", p = tx.p);
    let version = tx.one(&sql, [], |row| small(row, 0, u32::MAX))?.unwrap_or(0);
    if version == VERSION { Ok(()) } else { Err(wrong_version(version).into()) }
}

fn wrong_version(version: u32) -> Trouble {
    Trouble::usage(if version > VERSION {
        format!(
            "the tables are at version {version}, newer than this batch-send knows ({VERSION}): update it"
        )
    } else {
        format!(
            "the tables are at version {version}, this batch-send needs {VERSION}: run `batch-send migrate`"
        )
    })
}

/// All that is missing; or, the inner error, who is at work and must end first.
fn migrate(tx: &Tx<'_>) -> Result<Result<Migrated, String>> {
    let p = tx.p;
    let before = applied(tx)?;
    let from = before.last().map_or(0, |(version, _)| *version);
    if from > VERSION {
        return Err(wrong_version(from).into());
    }
    for (version, seen) in &before {
        let migration = MIGRATIONS.iter().find(|migration| migration.version == *version);
        if let Some(migration) = migration.filter(|migration| checksum(migration.sqlite) != *seen) {
            let text = format!(
                "migration {} is not the one that was applied: use the batch-send that made these tables, or a newer one",
                migration.name
            );
            return Err(Trouble::usage(text).into());
        }
    }
    let missing: Vec<_> = MIGRATIONS.iter().filter(|migration| migration.version > from).collect();
    if !missing.is_empty()
        && tx
            .exists("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1", [format!("{p}task")])?
    {
        let sql = format!("SELECT id, lock_owner FROM {p}task WHERE lock_until >= ?1");
        let held = tx.one(&sql, [tx.now], |row| Ok((row.get::<_, i64>(0)?, text(row, 1)?)))?;
        if let Some((task, owner)) = held {
            return Ok(Err(format!("task {task} is held by {}", owner.unwrap_or_default())));
        }
    }
    tx.sql.execute_batch(&migrations::own_table(true, p))?;
    for migration in &missing {
        for statement in statements(migration.sqlite, p) {
            tx.sql.execute_batch(&statement).with_context(|| format!("migration {}", migration.name))?;
        }
        tx.change(
            &format!(
                "INSERT INTO {p}migration (version, name, checksum, applied_at) VALUES (?1, ?2, ?3, ?4)"
            ),
            params![migration.version, migration.name, checksum(migration.sqlite), tx.now],
        )?;
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    tx.change(
        &format!(
            "INSERT INTO {p}installation (one, id, server) VALUES (1, ?1, ?2) ON CONFLICT (one) DO NOTHING"
        ),
        params![Uuid::new_v4().to_string(), host],
    )?;
    let applied = missing.iter().map(|migration| migration.name.to_owned()).collect();
    Ok(Ok(Migrated { from, to: VERSION, applied }))
}

// ---- steps inside a transaction ----------------------------------------------------------------------------------

/// Does `one` to each of these targets, or at once to all, and audits what changed: each target by itself, or all of them together.
fn change(
    tx: &Tx<'_>,
    task: TaskId,
    targets: Option<&[TargetId]>,
    act: &Act<'_>,
    mut one: impl FnMut(Option<TargetId>) -> Result<u64>,
) -> Result<u64> {
    let mut changed = 0;
    let mut change = |target: Option<TargetId>| {
        let now = one(target)?;
        changed += now;
        if now > 0 { tx.audit(act, Some(task), target) } else { Ok(()) }
    };
    match targets {
        None => change(None)?,
        Some(targets) => targets.iter().try_for_each(|target| change(Some(*target)))?,
    }
    Ok(changed)
}

fn at(tx: &Tx<'_>, when: When) -> i64 {
    match when {
        When::At(time) => time.timestamp_millis(),
        When::In(wait) => tx.after(wait),
    }
}

fn known(tx: &Tx<'_>, task: TaskId) -> Result<Task> {
    Ok(read_one_task(tx, task)?.ok_or_else(|| {
        Trouble::usage(format!("there is no task {task}: `batch-send task list` shows those there are"))
    })?)
}

/// A target of this task is about to become open: refuses what nobody would ever send.
fn open_again(tx: &Tx<'_>, task: TaskId) -> Result<()> {
    if known(tx, task)?.status == TaskStatus::Cancelled {
        return Err(
            Trouble::usage(format!("task {task} is cancelled: nothing of it is sent any more")).into()
        );
    }
    Ok(())
}

/// The order is the index's own, so that nothing is sorted.
fn snapshot(
    tx: &Tx<'_>,
    task: TaskId,
    each: &mut dyn FnMut(TargetFacts) -> Result<()>,
) -> Result<Option<Snapshot>> {
    let sql = format!("{} WHERE id = ?1", select_tasks(tx.p));
    let found = tx.one(&sql, [task.cast_signed()], |row| {
        let frozen = |column: usize| row.get::<_, Option<i64>>(column).map(|n| n.map(i64::cast_unsigned));
        Ok((read_task(row, tx.now)?, [frozen(16)?, frozen(17)?, frozen(18)?]))
    })?;
    let Some((found, frozen)) = found else { return Ok(None) };
    let frozen = match frozen {
        [Some(sent), Some(failed), Some(unknown)] => Some(Frozen { sent, failed, unknown }),
        _ => None,
    };
    let sql = format!("SELECT count(*) FROM {p}task_target WHERE task_id = ?1", p = tx.p);
    let targets = tx.one(&sql, [task.cast_signed()], |row| row.get::<_, i64>(0))?.unwrap_or(0);
    let sql = format!(
        "SELECT id, status, attempts, send_at, settled_at, claim_until, \
         CASE WHEN status IN ('failed', 'unknown', 'retry') THEN last_error END, \
         CASE WHEN status = 'unknown' THEN recipient END \
         FROM {p}task_target WHERE task_id = ?1 ORDER BY status, id",
        p = tx.p
    );
    let mut statement = tx.sql.prepare_cached(&sql)?;
    let mut rows = statement.query([task.cast_signed()])?;
    while let Some(row) = rows.next()? {
        each(read_facts(row, tx.now)?)?;
    }
    let at = time(Some(tx.now)).context("the clock of this host is outside all time")?;
    Ok(Some(Snapshot { at, task: found, frozen, targets: targets.cast_unsigned() }))
}

fn read_facts(row: &Row<'_>, now: i64) -> rusqlite::Result<TargetFacts> {
    let at = |column: usize| row.get::<_, Option<i64>>(column).map(time);
    let status = TargetStatus::from_word(row.get_ref(1)?.as_str().unwrap_or_default());
    let ended = row.get::<_, Option<i64>>(5)?.is_none_or(|until| until < now);
    Ok(TargetFacts {
        id: row.get::<_, i64>(0)?.cast_unsigned(),
        status,
        attempts: small(row, 2, u16::MAX)?,
        send_at: at(3)?,
        settled_at: at(4)?,
        overdue: status == Some(TargetStatus::Sending) && ended,
        last_error: text(row, 6)?,
        recipient: text(row, 7)?,
    })
}

/// The first ?3 ids after ?2 of task ?1 in these statuses, in order. One statement a status: each reads its stretch of
/// the index in order, and they are merged; `status IN` would sort all of a million rows for each page.
fn in_order_of_id(tx: &Tx<'_>, statuses: &[&str]) -> String {
    let stretches: Vec<String> = statuses
        .iter()
        .map(|status| {
            format!(
                "SELECT id FROM {p}task_target WHERE task_id = ?1 AND status = '{status}' AND id > ?2",
                p = tx.p
            )
        })
        .collect();
    format!("{} ORDER BY id LIMIT ?3", stretches.join(" UNION ALL "))
}

/// What [`read_row`] reads. A WHERE follows.
fn select_rows(p: &str) -> String {
    format!(
        "SELECT id, task_id, recipient, params, status, attempts, round, retry_at, send_at, settled_at, receipt, \
         last_error, claim_until FROM {p}task_target"
    )
}

/// The first `most` targets behind an id in these statuses, in the order of id.
pub(super) fn page(
    tx: &Tx<'_>,
    task: TaskId,
    statuses: &[&str],
    after: i64,
    most: i64,
) -> Result<Vec<TargetRow>> {
    let sql = format!("{} WHERE id IN ({}) ORDER BY id", select_rows(tx.p), in_order_of_id(tx, statuses));
    tx.all(&sql, params![task.cast_signed(), after, most], |row| read_row(row, tx.now))
}

fn read_row(row: &Row<'_>, now: i64) -> rusqlite::Result<TargetRow> {
    let at = |column: usize| row.get::<_, Option<i64>>(column).map(time);
    let status = text(row, 4)?.unwrap_or_default();
    let ended = row.get::<_, Option<i64>>(12)?.is_none_or(|until| until < now);
    Ok(TargetRow {
        id: row.get::<_, i64>(0)?.cast_unsigned(),
        task_id: row.get::<_, i64>(1)?.cast_unsigned(),
        recipient: text(row, 2)?.unwrap_or_default(),
        params: text(row, 3)?,
        overdue: status == "sending" && ended,
        status,
        attempts: small(row, 5, u16::MAX)?,
        round: small(row, 6, u8::MAX)?,
        retry_at: at(7)?,
        send_at: at(8)?,
        settled_at: at(9)?,
        receipt: text(row, 10)?,
        last_error: text(row, 11)?,
    })
}
