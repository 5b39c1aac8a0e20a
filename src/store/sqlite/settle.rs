//! Begin and settle, row by row inside one transaction.

use anyhow::bail;
use rusqlite::params;

use super::*;

/// What came of a begin.
pub(super) enum Start {
    /// The attempt, counted.
    Begun(u16),
    Suppressed,
    /// An earlier attempt may have arrived, and the provider would not recognise another.
    Unknown,
    Fenced,
}

/// Begins one target, if it is still ours and its recipient is not suppressed.
pub(super) fn begin(tx: &Tx<'_>, terms: &Terms, ready: &Ready) -> Result<Start> {
    let p = tx.p;
    let Claimed { target, token, .. } = &ready.claimed;
    let (id, token) = (target.id.cast_signed(), token.to_string());
    let claim_until = tx.after(terms.send.saturating_add(terms.margin));
    let suppressed = suppression::suppressed(p);
    // A target in doubt goes out again only as a repetition that the provider recognises: with the key, the same
    // to the byte, and ended before the key is forgotten. The window counts from the first begin in doubt.
    let sql = format!(
        "UPDATE {p}task_target SET status = 'sending', attempts = min(attempts + 1, 65535), send_at = ?3, claim_until = ?6, \
         dedupe_until = COALESCE(dedupe_until, ?7), message_hash = CASE WHEN ?7 IS NULL THEN message_hash ELSE ?8 END \
         WHERE id = ?1 AND cron_token = ?2 AND status = 'processing' AND claim_until > ?3 \
         AND (dedupe_until IS NULL OR (?7 IS NOT NULL AND dedupe_until > ?6 AND message_hash = ?8)) AND NOT {suppressed} RETURNING attempts"
    );
    let dedupe_until = terms.dedupe.map(|window| tx.after(window));
    let hash = ready.hash.as_ref().map(|hash| &hash[..]);
    let folded = suppression::fold(&target.recipient);
    let begun = tx.one(
        &sql,
        params![id, token, tx.now, folded, terms.channel, claim_until, dedupe_until, hash],
        |row| small(row, 0, u16::MAX),
    )?;
    if let Some(attempt) = begun {
        return Ok(Start::Begun(attempt));
    }
    let ended = tx.change(
        &format!(
            "UPDATE {p}task_target SET status = CASE WHEN dedupe_until IS NULL THEN 'failed' ELSE 'unknown' END, claim_until = NULL, \
             settled_at = ?3, last_error = '{SUPPRESSED}' \
             WHERE id = ?1 AND cron_token = ?2 AND status = 'processing' AND {suppressed}"
        ),
        params![id, token, tx.now, folded, terms.channel],
    )?;
    if ended > 0 {
        return Ok(Start::Suppressed);
    }
    let ended = tx.change(
        &format!(
            "UPDATE {p}task_target SET status = 'unknown', claim_until = NULL, settled_at = ?3, \
             last_error = 'an earlier attempt may have arrived, and the provider would not recognise another' \
             WHERE id = ?1 AND cron_token = ?2 AND status = 'processing' AND claim_until > ?3 AND dedupe_until IS NOT NULL"
        ),
        params![id, token, tx.now],
    )?;
    Ok(if ended > 0 { Start::Unknown } else { Start::Fenced })
}

pub(super) fn settle(tx: &Tx<'_>, answers: &[Answer]) -> Result<Settled> {
    let mut settled = Settled::default();
    for answer in answers {
        settle_one(tx, answer, &mut settled)?;
    }
    Ok(settled)
}

fn settle_one(tx: &Tx<'_>, answer: &Answer, settled: &mut Settled) -> Result<()> {
    let p = tx.p;
    let (id, token) = (answer.id.cast_signed(), answer.token.to_string());
    let sql = format!(
        "SELECT status, cron_token, dedupe_until IS NOT NULL FROM {p}task_target WHERE id = ?1 AND task_id = ?2"
    );
    let found = tx.one(&sql, [id, answer.task.cast_signed()], |row| {
        Ok((row.get::<_, String>(0)?, text(row, 1)?, row.get::<_, bool>(2)?))
    })?;
    // A row that is gone bears no token.
    let (word, bears, keyed) = found.unwrap_or_default();
    let settlement = match meaning(answer, bears.as_deref(), &word, keyed) {
        Meaning::Write(settlement) => settlement,
        Meaning::Said => {
            settled.written += 1;
            return Ok(());
        }
        Meaning::Fenced => {
            settled.fenced.push(answer.id);
            return Ok(());
        }
        Meaning::Duplicate => {
            settled.duplicates.push(answer.id);
            return audit_duplicate(tx, answer);
        }
    };
    let (to, receipt, reason, retry_at) = match &*settlement {
        Settlement::Sent { receipt } => (TargetStatus::Sent, receipt.as_deref(), None, None),
        Settlement::Failed { reason } => (TargetStatus::Failed, None, Some(reason), None),
        Settlement::Unknown { reason } => (TargetStatus::Unknown, None, Some(reason), None),
        Settlement::Returned { reason } => (TargetStatus::Pending, None, Some(reason), None),
        Settlement::Retry { reason, after, .. } => {
            (TargetStatus::Retry, None, Some(reason), Some(tx.after(*after)))
        }
    };
    let over = matches!(to, TargetStatus::Sent | TargetStatus::Failed | TargetStatus::Unknown);
    let changed = tx.change(
        &format!(
            "UPDATE {p}task_target SET status = ?4, claim_until = NULL, retry_at = ?5, settled_at = ?6, receipt = ?7, \
             last_error = ?8, attempts = max(attempts - ?9, 0), \
             dedupe_until = CASE WHEN ?10 THEN NULL ELSE dedupe_until END, \
             message_hash = CASE WHEN ?10 THEN NULL ELSE message_hash END \
             WHERE id = ?1 AND cron_token = ?2 AND status = ?3"
        ),
        params![
            id,
            token,
            word,
            to.word(),
            retry_at,
            over.then_some(tx.now),
            receipt.map(|text| fit(text, RECEIPT_MOST)),
            reason.map(|text| fit(text, REASON_MOST)),
            i64::from(to == TargetStatus::Pending),
            forgets(answer, &settlement),
        ],
    )?;
    if changed == 0 {
        bail!("target {} changed inside a write transaction", answer.id);
    }
    settled.written += 1;
    if word != "sending" {
        settled.late += 1;
        thaw(tx, answer.task)?;
    }
    Ok(())
}

/// Audits, once, an acceptance that finds another token on its row.
fn audit_duplicate(tx: &Tx<'_>, answer: &Answer) -> Result<()> {
    let why = duplicate(answer);
    let sql = format!(
        "SELECT 1 FROM {p}audit WHERE task_id = ?1 AND target_id = ?2 AND what = 'duplicate' AND why = ?3",
        p = tx.p
    );
    if !tx.exists(&sql, params![answer.task.cast_signed(), answer.id.cast_signed(), why])? {
        let act = Act { who: "batch-send", what: "duplicate", why: Some(&why) };
        tx.audit(&act, Some(answer.task), Some(answer.id))?;
    }
    Ok(())
}
