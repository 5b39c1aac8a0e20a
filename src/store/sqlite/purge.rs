//! Ended tasks: condemned, then removed a step at a time, each a short write transaction.

use rusqlite::params;

use super::*;

/// An ended task, and which of its targets may go; or why it stays.
fn stand(
    tx: &Tx<'_>,
    task: TaskId,
    age: Duration,
    with_unknown: bool,
) -> Result<Result<(TaskStatus, Vec<&'static str>), Stays>> {
    let Some(found) = read_one_task(tx, task)? else { return Ok(Err(Stays::Gone)) };
    let ended = found.finished_at.is_some_and(|at| at.timestamp_millis() <= tx.before(age));
    if !ended
        || found.lease.is_some()
        || !matches!(found.status, TaskStatus::Finished | TaskStatus::Cancelled)
    {
        return Ok(Err(Stays::NotEnded));
    }
    let mut may_go = vec!["sent", "failed"];
    if with_unknown {
        may_go.push("unknown");
    }
    // What waits in a cancelled task was not sent, and is not going to be.
    if found.status == TaskStatus::Cancelled && found.status_reason.as_deref() != Some(PURGING) {
        may_go.extend(["pending", "retry"]);
    }
    Ok(Ok((found.status, may_go)))
}

/// Why what is left of a task must stay, if there is any beside what may go.
fn left(tx: &Tx<'_>, task: TaskId, may_go: &[&str]) -> Result<Option<Stays>> {
    let mut words = TargetStatus::ALL.map(TargetStatus::word).to_vec();
    words.retain(|word| !may_go.contains(word) && *word != "unknown");
    if any_of(tx, task, &words)? {
        return Ok(Some(Stays::Open));
    }
    let unknown = !may_go.contains(&"unknown") && any_of(tx, task, &["unknown"])?;
    Ok(unknown.then_some(Stays::Unknown))
}

pub(super) fn ended(tx: &Tx<'_>, age: Duration) -> Result<Vec<Task>> {
    let sql = format!(
        "{} WHERE status IN ('finished', 'cancelled') AND finished_at <= ?1 ORDER BY id",
        select_tasks(tx.p)
    );
    tx.all(&sql, [tx.before(age)], |row| read_task(row, tx.now))
}

pub(super) fn condemn(
    tx: &Tx<'_>,
    task: TaskId,
    age: Duration,
    with_unknown: bool,
    act: &Act<'_>,
) -> Result<Option<Stays>> {
    let (status, may_go) = match stand(tx, task, age, with_unknown)? {
        Ok(standing) => standing,
        Err(stays) => return Ok(Some(stays)),
    };
    if let Some(stays) = left(tx, task, &may_go)? {
        return Ok(Some(stays));
    }
    if status == TaskStatus::Finished {
        let sql = format!(
            "UPDATE {p}task SET status = 'cancelled', status_reason = ?2, halt_at = ?3 WHERE id = ?1",
            p = tx.p
        );
        tx.change(&sql, params![task.cast_signed(), PURGING, halt(tx, task)?])?;
        thaw(tx, task)?;
    }
    let known = format!("SELECT 1 FROM {p}audit WHERE task_id = ?1 AND what = ?2 LIMIT 1", p = tx.p);
    if tx.one(&known, params![task.cast_signed(), act.what], |_| Ok(()))?.is_none() {
        tx.audit(act, Some(task), None)?;
    }
    Ok(None)
}

pub(super) fn step(
    tx: &Tx<'_>,
    task: TaskId,
    age: Duration,
    with_unknown: bool,
    after: TargetId,
) -> Result<Purged> {
    let p = tx.p;
    let may_go = match stand(tx, task, age, with_unknown)? {
        Ok((TaskStatus::Cancelled, may_go)) => may_go,
        Ok(_) => return Ok(Purged::Stays(Stays::NotEnded)),
        Err(stays) => return Ok(Purged::Stays(stays)),
    };
    let (id, most) = (task.cast_signed(), i64::try_from(PURGED_MOST).unwrap_or(i64::MAX));
    // In two stretches of one index: a retry has a time of its own.
    let stretch = |condition: &str, after: TargetId| {
        let sql = format!(
            "SELECT id FROM {p}task_target INDEXED BY {p}task_target_k_task_{condition} ORDER BY id LIMIT ?3"
        );
        tx.all(&sql, params![id, after.cast_signed(), most], |row| row.get::<_, i64>(0))
    };
    let mut found = stretch("retry WHERE task_id = ?1 AND retry_at IS NULL AND id > ?2", after)?;
    let last = found.last().map_or(after, |last| last.cast_unsigned());
    if found.is_empty() && may_go.contains(&"retry") {
        found = stretch("status WHERE task_id = ?1 AND status = 'retry' AND id > ?2", 0)?;
    }
    if !found.is_empty() {
        let sql = format!(
            "DELETE FROM {p}task_target WHERE id IN (SELECT value FROM json_each(?1)) \
             AND status IN (SELECT value FROM json_each(?2))"
        );
        let gone = tx.change(&sql, params![list(&found)?, list(&may_go)?])?;
        return Ok(Purged::Some(gone, last));
    }
    if let Some(stays) = left(tx, task, &[])? {
        return Ok(Purged::Stays(stays));
    }
    let sql = format!(
        "DELETE FROM {p}audit WHERE id IN \
         (SELECT id FROM {p}audit WHERE task_id = ?1 AND what <> ?2 ORDER BY id LIMIT ?3)"
    );
    if tx.change(&sql, params![id, PURGE, most])? > 0 {
        return Ok(Purged::Some(0, after));
    }
    tx.change(&format!("DELETE FROM {p}task WHERE id = ?1"), [id])?;
    Ok(Purged::Whole)
}
