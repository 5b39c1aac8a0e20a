//! What waits and what is in doubt, by channel, on SQLite: for metrics. It reads index entries alone, no more than [`COUNTED`]
//! of a task; beyond, the first and the last id tell how many there are at most.

use rusqlite::params;

use super::*;

pub(super) fn backlog(tx: &Tx<'_>) -> Result<Vec<Backlog>> {
    let (p, most) = (tx.p, i64::try_from(COUNTED + 1)?);
    let mut all = Backlogs::default();

    let due = format!(
        "SELECT id, channel, max(created_at, coalesce(scheduled_at, created_at)) FROM {p}task INDEXED BY {p}task_k_status \
         WHERE status = 'pending' AND (scheduled_at IS NULL OR scheduled_at <= ?1) AND (expires_at IS NULL OR expires_at > ?1) \
         ORDER BY id LIMIT {TASKS}"
    );
    let tasks = tx.all(&due, [tx.now], |row| {
        Ok((row.get::<_, i64>(0)?, text(row, 1)?.unwrap_or_default(), row.get::<_, i64>(2)?))
    })?;
    let age = |since: i64| Duration::from_millis(tx.now.saturating_sub(since).max(0).cast_unsigned());
    let pending = counting(p, "status = 'pending'");
    let of_id = format!(
        "SELECT id FROM {p}task_target INDEXED BY {p}task_target_k_task_status WHERE task_id = ?1 AND status = 'pending'"
    );
    let span = format!(
        "SELECT (SELECT id FROM ({of_id} ORDER BY id DESC LIMIT 1)) - (SELECT id FROM ({of_id} ORDER BY id LIMIT 1)) + 1"
    );
    let retries = format!(
        "SELECT count(*), min(retry_at) FROM (SELECT retry_at FROM {p}task_target INDEXED BY {p}task_target_k_task_retry \
         WHERE task_id = ?1 AND retry_at <= ?3 ORDER BY retry_at LIMIT ?2)"
    );
    for (id, channel, since) in tasks {
        let mut count = number(tx.one(&pending, params![id, most], |row| row.get(0))?);
        if count > COUNTED {
            count = count.max(number(tx.one(&span, [id], |row| row.get(0))?));
        }
        all.waits(&channel, count, age(since));
        let due = tx.one(&retries, params![id, most, tx.now], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?))
        })?;
        if let Some((count, Some(since))) = due {
            all.waits(&channel, number(Some(count)), age(since));
        }
    }

    let frozen = format!(
        "SELECT channel, sum(unknown_count) FROM {p}task INDEXED BY {p}task_k_status \
         WHERE status = 'finished' AND unknown_count > 0 GROUP BY channel"
    );
    for (channel, count) in tx.all(&frozen, [], |row| Ok((text(row, 0)?.unwrap_or_default(), row.get(1)?)))? {
        all.unknown(&channel, number(Some(count)));
    }
    let thawed = format!(
        "SELECT id, channel FROM {p}task WHERE unknown_count IS NULL AND status <> 'draft' ORDER BY id DESC LIMIT {TASKS}"
    );
    let unknown = counting(p, "status = 'unknown'");
    let tasks = tx.all(&thawed, [], |row| Ok((row.get::<_, i64>(0)?, text(row, 1)?.unwrap_or_default())))?;
    for (id, channel) in tasks {
        all.unknown(&channel, number(tx.one(&unknown, params![id, most], |row| row.get(0))?));
    }
    Ok(all.list())
}

/// How many targets of a task fit, up to a number.
fn counting(p: &str, condition: &str) -> String {
    format!(
        "SELECT count(*) FROM (SELECT 1 FROM {p}task_target INDEXED BY {p}task_target_k_task_status \
         WHERE task_id = ?1 AND {condition} LIMIT ?2)"
    )
}

fn number(count: Option<i64>) -> u64 {
    count.unwrap_or(0).max(0).cast_unsigned()
}
