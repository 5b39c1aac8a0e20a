//! The pace of a channel on SQLite: its next slot, and its holds. The host's clock is read to the millisecond, slots are counted in
//! microseconds: a run may wait a millisecond longer than needed, never less.

use rusqlite::params;

use super::writer::micros;
use super::*;

pub(super) fn reserve(tx: &Tx<'_>, channel: &str, span: Duration, horizon: Duration) -> Result<Slot> {
    let p = tx.p;
    let now = tx.now.saturating_mul(1000);
    // Up: a rate means not more often than so.
    let span = micros(span.saturating_add(Duration::from_nanos(999)));
    let sql = format!(
        "INSERT INTO {p}pace (channel, next_at) VALUES (?1, ?2 + ?3) \
         ON CONFLICT (channel) DO UPDATE SET next_at = max(next_at, ?2) + ?3 WHERE max(next_at, ?2) <= ?2 + ?4 \
         RETURNING next_at - ?3 - ?2"
    );
    let wait = |us: i64| Duration::from_micros(us.max(0).cast_unsigned());
    if let Some(left) = tx.one(&sql, params![channel, now, span, micros(horizon)], |row| row.get(0))? {
        return Ok(Slot::In(wait(left)));
    }
    let sql = format!("SELECT next_at - ?2 FROM {p}pace WHERE channel = ?1");
    let left = tx.one(&sql, params![channel, now], |row| row.get(0))?;
    Ok(Slot::Later(wait(left.with_context(|| format!("the row of channel {channel} is gone"))?)))
}

pub(super) fn hold(tx: &Tx<'_>, channel: &str, hold: &Hold) -> Result<Duration> {
    let p = tx.p;
    let sql = format!("SELECT COALESCE(held_until, 0) / 1000, holds FROM {p}pace WHERE channel = ?1");
    let before = tx.one(&sql, [channel], |row| Ok((row.get::<_, i64>(0)?, small(row, 1, u16::MAX)?)))?;
    let (until, holds) = before.unwrap_or((0, 0));
    let held = until > tx.now;
    // The last hold ended long ago: this one is the first of a new row of them.
    let holds = if until < tx.before(hold.most) { 0 } else { holds };
    let end = match hold.asked {
        Some(asked) => tx.after(asked).max(until),
        // Other lanes meet the same silence: together they are one hold.
        None if held => until,
        None => tx.after(hold.first.saturating_mul(1 << u32::from(holds).min(31)).min(hold.most)),
    };
    let holds = if held { holds } else { holds.saturating_add(1) };
    tx.change(
        &format!(
            "INSERT INTO {p}pace (channel, next_at, held_until, holds) VALUES (?1, ?2 * 1000, ?2 * 1000, ?3) \
             ON CONFLICT (channel) DO UPDATE SET held_until = excluded.held_until, \
             next_at = max(next_at, excluded.next_at), holds = excluded.holds"
        ),
        params![channel, end, holds],
    )?;
    Ok(Duration::from_millis((end - tx.now).max(0).cast_unsigned()))
}
