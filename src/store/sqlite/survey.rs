//! What `status` shows, on SQLite: counts, courses, and the details of one task. One snapshot each; it never waits for a writer. What
//! cannot be counted in about a second is estimated, as on MySQL; SQLite has no statistics, but ids that can be looked at.

use std::collections::HashMap;

use rusqlite::params;

use super::*;
use crate::course::{Course, Courses, Gate, Lost, RECENT, RECENT_MOST, Recent};

/// Pending rows that may bear the reason why they were given back: those are the first.
const GIVEN_BACK: i64 = 1_000;

/// About so many targets are counted for one answer, unless it is to be exact.
const COUNTED: i64 = 1_000_000;

/// So few of a status are counted even of a task that is estimated.
const FEW: i64 = 1_000;

/// Ids that an estimate looks at, and ten times as many where not all were what it looked for.
const LOOKS: i64 = 40;

/// The counts of tasks that have none frozen: the smallest first, about a million targets; the others are estimated.
pub(super) fn count(tx: &Tx<'_>, tasks: &[TaskId], exact: bool) -> Result<HashMap<TaskId, Counts>> {
    let mut sizes: Vec<(i64, TaskId)> = tasks.iter().map(|task| (0, *task)).collect();
    if !exact && rows_at_most(tx)? > COUNTED {
        for (size, task) in &mut sizes {
            let stretches = stretches(tx, *task)?;
            *size = stretches.iter().map(|(_, first, last)| last - first + 1).sum();
        }
        sizes.sort_unstable();
    }
    let (mut spent, mut counted) = (0_i64, HashMap::new());
    for (size, task) in sizes {
        spent = spent.saturating_add(size);
        let mut counts = if spent <= COUNTED { counted_one(tx, task)? } else { estimated(tx, task)? };
        if counts.sending > 0 {
            let sql = format!(
                "SELECT count(*) FROM {p}task_target WHERE task_id = ?1 AND status = 'sending' \
                 AND (claim_until IS NULL OR claim_until < ?2)",
                p = tx.p
            );
            let overdue = tx.one(&sql, [task.cast_signed(), tx.now], |row| row.get::<_, i64>(0))?;
            counts.overdue = overdue.unwrap_or(0).cast_unsigned();
        }
        counted.insert(task, counts);
    }
    Ok(counted)
}

/// Targets have no more ids than there are between the first and the last.
fn rows_at_most(tx: &Tx<'_>) -> Result<i64> {
    let sql = format!(
        "SELECT COALESCE((SELECT max(id) FROM {p}task_target) - (SELECT min(id) FROM {p}task_target), 0)",
        p = tx.p
    );
    Ok(tx.one(&sql, [], |row| row.get(0))?.unwrap_or(0))
}

fn counted_one(tx: &Tx<'_>, task: TaskId) -> Result<Counts> {
    let sql =
        format!("SELECT status, count(*) FROM {p}task_target WHERE task_id = ?1 GROUP BY status", p = tx.p);
    let mut counts = Counts::default();
    for (word, number) in tx.all(&sql, [task.cast_signed()], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
    })? {
        counts.add(&word, number);
    }
    Ok(counts)
}

/// The first and the last id of each status that a task has targets in: the two ends of its stretch of the index.
fn stretches(tx: &Tx<'_>, task: TaskId) -> Result<Vec<(&'static str, i64, i64)>> {
    let end = |order: &str| {
        let sql = format!(
            "SELECT id FROM {p}task_target WHERE task_id = ?1 AND status = ?2 ORDER BY id {order} LIMIT 1",
            p = tx.p
        );
        move |word: &str| tx.one(&sql, params![task.cast_signed(), word], |row| row.get::<_, i64>(0))
    };
    let (first, last) = (end("ASC"), end("DESC"));
    let mut found = Vec::new();
    for word in TargetStatus::ALL.map(TargetStatus::word) {
        if let (Some(first), Some(last)) = (first(word)?, last(word)?) {
            found.push((word, first, last));
        }
    }
    Ok(found)
}

/// Of each status, the ids between its first and its last, less the share that was found to be others'.
fn estimated(tx: &Tx<'_>, task: TaskId) -> Result<Counts> {
    let p = tx.p;
    let few = format!(
        "SELECT count(*) FROM (SELECT 1 FROM {p}task_target WHERE task_id = ?1 AND status = ?2 LIMIT ?3)"
    );
    let look = format!("SELECT 1 FROM {p}task_target WHERE id = ?3 AND task_id = ?1 AND status = ?2");
    let mut counts = Counts { estimated: true, ..Counts::default() };
    for (word, first, last) in stretches(tx, task)? {
        let task = task.cast_signed();
        let some = tx.one(&few, params![task, word, FEW + 1], |row| row.get::<_, i64>(0))?.unwrap_or(0);
        let number = if some <= FEW {
            some
        } else {
            let mut random = fastrand::Rng::with_seed(first.cast_unsigned());
            let mut ours = |looks: i64| -> Result<i64> {
                let mut ours = 0;
                for _ in 0..looks {
                    let id = random.i64(first..=last);
                    ours += i64::from(tx.exists(&look, params![task, word, id])?);
                }
                Ok(ours)
            };
            // Most were added together, and sent in the order of their ids.
            let apart = last - first + 1;
            if ours(LOOKS)? == LOOKS { apart } else { apart / (10 * LOOKS) * ours(10 * LOOKS)? }.max(some)
        };
        counts.add(word, number.cast_unsigned());
    }
    Ok(counts)
}

pub(super) fn courses(tx: &Tx<'_>, only: Option<TaskId>) -> Result<Courses> {
    let p = tx.p;
    let now = time(Some(tx.now)).context("the clock has no time")?;
    let at_work = format!("SELECT max(priority) FROM {p}task WHERE status = 'pending' AND lock_until >= ?1");
    let mut courses = Courses {
        now,
        at_work: tx.one(&at_work, [tx.now], |row| row.get::<_, Option<i16>>(0))?.flatten(),
        of: HashMap::new(),
    };
    let sql = format!(
        "SELECT t.id, t.status = 'pending', t.lock_until, t.lock_owner, t.created_at, t.scheduled_at, t.halt_at, t.started_at, \
         t.served_at, p.next_at / 1000, p.held_until / 1000, COALESCE(p.holds, 0), \
         (SELECT max(at) FROM {p}audit WHERE task_id = t.id AND what IN ('start', 'resume')) \
         FROM {p}task AS t LEFT JOIN {p}pace AS p ON p.channel = t.channel \
         WHERE (t.status = 'pending' OR t.lock_token IS NOT NULL) AND (?1 IS NULL OR t.id = ?1)"
    );
    let found = tx.all(&sql, [only.map(u64::cast_signed)], |row| {
        let at = |column: usize| row.get::<_, Option<i64>>(column).map(time);
        let lock_until: Option<i64> = row.get(2)?;
        let live = lock_until.is_some_and(|until| until >= tx.now);
        let owner = text(row, 3)?.unwrap_or_default();
        let ready = [at(4)?, at(5)?, at(6)?, at(12)?].into_iter().flatten().max();
        let course = Course {
            ready_since: ready.unwrap_or(now),
            pending: false,
            retry_at: None,
            served_at: at(8)?,
            lost: time(lock_until).filter(|_| !live).map(|at| Lost { owner, at }),
            gate: Gate { next_slot: at(9)?, held_until: at(10)?, holds: small(row, 11, u16::MAX)? },
            recent: None,
        };
        Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?, live, at(7)?, course))
    })?;
    let pending = format!("SELECT 1 FROM {p}task_target WHERE task_id = ?1 AND status = 'pending' LIMIT 1");
    let retry = format!(
        "SELECT retry_at FROM {p}task_target INDEXED BY {p}task_target_k_task_retry \
         WHERE task_id = ?1 AND retry_at IS NOT NULL ORDER BY retry_at LIMIT 1"
    );
    for (id, is_pending, live, started, mut course) in found {
        if is_pending {
            course.pending = tx.exists(&pending, [id])?;
            course.retry_at = time(tx.one(&retry, [id], |row| row.get(0))?);
        }
        if live {
            let began = started.unwrap_or(now).max(course.ready_since);
            course.recent = Some(recent(tx, id, began, now)?);
        }
        courses.of.insert(id.cast_unsigned(), course);
    }
    Ok(courses)
}

fn recent(tx: &Tx<'_>, task: i64, began: DateTime<Utc>, now: DateTime<Utc>) -> Result<Recent> {
    let sql = format!(
        "SELECT count(*), ?2 - min(settled_at) FROM (SELECT settled_at FROM {p}task_target \
         WHERE task_id = ?1 AND status = 'sent' ORDER BY id DESC LIMIT {RECENT_MOST}) WHERE settled_at > ?3",
        p = tx.p
    );
    let found = tx.one(&sql, params![task, tx.now, tx.before(RECENT)], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?))
    })?;
    let (sent, oldest) = found.unwrap_or((0, None));
    let oldest = Duration::from_millis(oldest.unwrap_or(0).max(0).cast_unsigned());
    Ok(Recent::new(sent.cast_unsigned(), oldest, began, now))
}

pub(super) fn details(tx: &Tx<'_>, task: TaskId, exact: bool) -> Result<Details> {
    let p = tx.p;
    let task = task.cast_signed();
    // Of so many targets it takes seconds.
    let most = |most: u64| if exact { -1 } else { most.cast_signed() };
    let sql = format!(
        "SELECT count(*), COALESCE(sum(attempts), 0), COALESCE(sum(attempts > 1), 0) \
         FROM (SELECT attempts FROM {p}task_target INDEXED BY {p}task_target_k_task_status WHERE task_id = ?1 LIMIT ?2)"
    );
    let number = |row: &Row<'_>, column: usize| row.get::<_, i64>(column).map(i64::cast_unsigned);
    let attempts = tx.one(&sql, params![task, most(ATTEMPTS_MOST + 1)], |row| {
        Ok((number(row, 0)?, Attempts { all: number(row, 1)?, repeated: number(row, 2)? }))
    })?;
    let attempts =
        attempts.filter(|(looked_at, _)| exact || *looked_at <= ATTEMPTS_MOST).map(|(_, attempts)| attempts);

    let stretch = |status: &str, order: &str, most: &str| {
        format!(
            "SELECT last_error FROM (SELECT last_error FROM {p}task_target \
             WHERE task_id = ?1 AND status = '{status}' ORDER BY id {order} LIMIT {most})"
        )
    };
    let stretches = [
        stretch("failed", "DESC", "?2"),
        stretch("unknown", "DESC", "?2"),
        stretch("retry", "DESC", "?2"),
        stretch("pending", "ASC", "?3"),
    ];
    let sql = format!(
        "SELECT last_error, count(*) AS number FROM ({}) WHERE last_error IS NOT NULL \
         GROUP BY last_error ORDER BY number DESC, last_error LIMIT {DETAILED}",
        stretches.join(" UNION ALL ")
    );
    let given_back = if exact { -1 } else { GIVEN_BACK };
    let reasons = tx.all(&sql, params![task, most(REASONS_MOST), given_back], |row| {
        Ok((text(row, 0)?.unwrap_or_default(), number(row, 1)?))
    })?;

    let of_task = format!("FROM {p}audit WHERE task_id = ?1");
    let audits = tx.one(&format!("SELECT count(*) {of_task}"), [task], |row| number(row, 0))?;
    let sql = format!("SELECT at, who, what, target_id, why {of_task} ORDER BY id DESC LIMIT {DETAILED}");
    let audit = tx.all(&sql, [task], |row| {
        Ok(Audited {
            at: time(row.get(0)?).unwrap_or_default(),
            who: text(row, 1)?.unwrap_or_default(),
            what: text(row, 2)?.unwrap_or_default(),
            target: row.get::<_, Option<i64>>(3)?.map(i64::cast_unsigned),
            why: text(row, 4)?,
        })
    })?;
    let unknown = desk::page(tx, task.cast_unsigned(), &["unknown"], 0, DETAILED as i64)?;
    Ok(Details { attempts, reasons, unknown, audit, audits: audits.unwrap_or(0) })
}
