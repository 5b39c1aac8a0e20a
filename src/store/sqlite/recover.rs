//! What a run repairs before it sends: what dead runs left, tasks that expired, were cancelled or finished too early, and tasks
//! that no host serves.

use rusqlite::params;

use super::*;

/// How long a finished task is still looked at for targets that were committed after its end.
const REOPENED_WITHIN: Duration = Duration::from_secs(3_600);

/// Cancelled tasks with nothing in flight are over. What waits in them was not sent; what may have been sent, and will not be sent
/// again, is unknown: by task, how many.
pub(super) fn finish_cancelled(tx: &Tx<'_>, only: Option<TaskId>) -> Result<Vec<(TaskId, u64)>> {
    let p = tx.p;
    let sql = format!(
        "SELECT id FROM {p}task AS t WHERE status = 'cancelled' AND finished_at IS NULL AND (?1 IS NULL OR id = ?1) \
         AND NOT EXISTS (SELECT 1 FROM {p}task_target WHERE task_id = t.id AND status = 'processing') \
         AND NOT EXISTS (SELECT 1 FROM {p}task_target WHERE task_id = t.id AND status = 'sending')"
    );
    let mut doubtful = Vec::new();
    for id in tx.all(&sql, [only.map(u64::cast_signed)], |row| row.get::<_, i64>(0))? {
        let sql = format!(
            "UPDATE {p}task_target SET status = 'unknown', retry_at = NULL, settled_at = ?2 \
             WHERE task_id = ?1 AND status IN ('pending', 'retry') AND dedupe_until IS NOT NULL"
        );
        let unknown = tx.change(&sql, [id, tx.now])?;
        if unknown > 0 {
            doubtful.push((id.cast_unsigned(), unknown));
        }
        tx.change(&format!("UPDATE {p}task SET finished_at = ?2 WHERE id = ?1"), [id, tx.now])?;
    }
    Ok(doubtful)
}

pub(super) fn recover(tx: &Tx<'_>, only: Option<TaskId>) -> Result<Recovered> {
    let p = tx.p;
    let mut recovered = Recovered::default();
    // Not long ago finished counts too: a claim may have been committed after its task was cancelled.
    let sql = format!(
        "SELECT id, status FROM {p}task \
         WHERE CASE WHEN ?1 IS NULL THEN finished_at IS NULL OR finished_at > ?2 ELSE id = ?1 END ORDER BY id"
    );
    let since = tx.before(REOPENED_WITHIN);
    let tasks = tx.all(&sql, params![only.map(u64::cast_signed), since], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
    })?;
    for (id, status) in tasks {
        let task = id.cast_unsigned();
        let ended = "task_id = ?1 AND (claim_until IS NULL OR claim_until < ?2) AND status";
        recovered.pending += tx.change(
            &format!("UPDATE {p}task_target SET status = 'pending', claim_until = NULL WHERE {ended} = 'processing'"),
            [id, tx.now],
        )?;
        recovered.pending += tx.change(
            &format!(
                "UPDATE {p}task_target SET status = 'pending', claim_until = NULL WHERE {ended} = 'sending' AND dedupe_until > ?2"
            ),
            [id, tx.now],
        )?;
        let unknown = tx.change(
            &format!(
                "UPDATE {p}task_target SET status = 'unknown', claim_until = NULL, settled_at = ?2, \
                 last_error = 'its run never said how the sending ended' WHERE {ended} = 'sending'"
            ),
            [id, tx.now],
        )?;
        if unknown > 0 {
            tx.change(
                &format!("UPDATE {p}task SET unknown_run = min(unknown_run + 1, 65535) WHERE id = ?1"),
                [id],
            )?;
            thaw(tx, task)?;
            recovered.unknown += unknown;
            recovered.doubtful.push(task);
        }
        if status == "finished" && is_open(tx, task)? && reopen(tx, task)? {
            recovered.reopened.push(task);
        }
    }
    let sql = format!(
        "SELECT id, expires_at FROM {p}task WHERE status = 'pending' AND expires_at <= ?1 AND (?2 IS NULL OR id = ?2) ORDER BY id"
    );
    for (task, end) in tx.all(&sql, params![tx.now, only.map(u64::cast_signed)], |row| {
        Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, Option<i64>>(1)?))
    })? {
        let reason = expired(time(end));
        if pause(tx, task, &reason)? {
            recovered.expired.push((task, reason));
        }
    }
    for (task, unknown) in finish_cancelled(tx, only)? {
        recovered.unknown += unknown;
        recovered.doubtful.push(task);
    }
    Ok(recovered)
}

/// Remembers that nobody here can serve a task, or pauses it when that was long ago. Whether it is paused now.
pub(super) fn unserved(tx: &Tx<'_>, task: &Task) -> Result<bool> {
    let p = tx.p;
    // Served, or paused and resumed, since: that sight does not count any more.
    let sql = format!(
        "SELECT max(a.at) FROM {p}audit AS a JOIN {p}task AS t ON t.id = a.task_id WHERE a.task_id = ?1 AND a.what = 'unserved' \
         AND a.at > COALESCE(t.served_at, 0) AND a.at > COALESCE(t.halt_at, 0)"
    );
    match tx.one(&sql, [task.id.cast_signed()], |row| row.get::<_, Option<i64>>(0))?.flatten() {
        Some(first) if first < tx.before(PATIENCE) => pause(
            tx,
            task.id,
            &format!("channel \"{}\" is not configured on any host that runs", task.channel),
        ),
        Some(_) => Ok(false),
        None => {
            let why = format!("channel \"{}\" is not configured here", task.channel);
            tx.audit(&Act { who: "batch-send", what: "unserved", why: Some(&why) }, Some(task.id), None)?;
            Ok(false)
        }
    }
}
