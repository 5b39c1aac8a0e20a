//! Suppressions on SQLite. Its own lower() knows the letters of ASCII alone, so what is written and what is looked up is put in lower
//! case here as well. What others inserted with other letters in upper case is found for those who are written just so.

use rusqlite::params;

use super::*;

/// Suppressions read in one go; between two goes other stores may write.
const PAGE: i64 = 1_000;

/// Letter by letter, blanks around it taken off: what the `folded` of the table does, for every alphabet.
pub(super) fn fold(recipient: &str) -> String {
    recipient.trim_matches(' ').chars().flat_map(char::to_lowercase).collect()
}

/// Of a row of the targets' table: its recipient (?4, folded) is suppressed for channel ?5 or for every one.
pub(super) fn suppressed(p: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM {p}suppression WHERE folded IN (?4, lower(trim({p}task_target.recipient))) \
         AND channel IN ('{EVERY_CHANNEL}', ?5))"
    )
}

/// Whether this recipient is suppressed for this channel or for every one.
pub(super) fn stands(tx: &Tx<'_>, recipient: &str, channel: Option<&str>) -> Result<bool> {
    let sql = format!(
        "SELECT 1 FROM {p}suppression WHERE folded IN (?1, lower(trim(?2))) AND channel IN ('{EVERY_CHANNEL}', ?3)",
        p = tx.p
    );
    tx.exists(&sql, params![fold(recipient), recipient, channel])
}

pub(super) fn add(tx: &Tx<'_>, rows: &[Suppression], act: &Act<'_>) -> Result<Added> {
    let p = tx.p;
    let sql = format!(
        "INSERT INTO {p}suppression (recipient, channel, reason, since) VALUES (?1, ?2, ?3, ?4) \
         ON CONFLICT (folded, channel) DO NOTHING"
    );
    let mut added = Added::default();
    for row in rows {
        let recipient = fold(row.recipient.trim());
        desk::refuse_long(&recipient)?;
        let channel = row.channel.as_deref().unwrap_or(EVERY_CHANNEL);
        if channel.chars().count() > CHANNEL_MOST {
            let text =
                format!("a channel's name is longer than {CHANNEL_MOST} characters: {}", fit(channel, 40));
            return Err(Trouble::usage(text).into());
        }
        let reason = row.reason.as_deref().map(|reason| fit(reason, REASON_MOST));
        let since = row.since.map_or(tx.now, |since| since.timestamp_millis());
        let new = tx.change(&sql, params![recipient, channel, reason, since])?;
        added.new += new;
        added.repeated += 1 - new;
    }
    if added.new > 0 {
        let why = about_all(rows, added.new, act);
        tx.audit(&Act { why: Some(&why), ..act.clone() }, None, None)?;
    }
    Ok(added)
}

pub(super) fn remove(tx: &Tx<'_>, recipient: &str, channel: Option<&str>, act: &Act<'_>) -> Result<u64> {
    let p = tx.p;
    let recipient = recipient.trim();
    let removed = tx.change(
        &format!("DELETE FROM {p}suppression WHERE folded IN (?1, lower(trim(?2))) AND channel = ?3"),
        params![fold(recipient), recipient, channel.unwrap_or(EVERY_CHANNEL)],
    )?;
    if removed > 0 {
        let why = about(recipient, channel, act);
        tx.audit(&Act { why: Some(&why), ..act.clone() }, None, None)?;
    }
    Ok(removed)
}

/// Those after this one (its recipient as it is compared, and its channel), in order.
pub(super) fn page(tx: &Tx<'_>, after: &(String, String)) -> Result<Vec<Suppression>> {
    let sql = format!(
        "SELECT folded, channel, reason, since FROM {p}suppression WHERE (folded, channel) > (?1, ?2) \
         ORDER BY folded, channel LIMIT {PAGE}",
        p = tx.p
    );
    tx.all(&sql, params![after.0, after.1], |row| {
        let word = |column| Ok::<_, rusqlite::Error>(text(row, column)?.unwrap_or_default());
        Ok(Suppression {
            recipient: word(0)?,
            channel: Some(word(1)?).filter(|channel| channel != EVERY_CHANNEL),
            reason: text(row, 2)?,
            since: time(row.get(3)?),
        })
    })
}
