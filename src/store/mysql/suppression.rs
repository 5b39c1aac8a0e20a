//! Suppressions on MySQL and MariaDB: the condition that begin asks of them, and what an operator does to them.

use super::connection::COMMIT;
use super::desk::{inserts, refuse_long, when};
use super::*;

/// Suppressions read at once.
const PAGE: usize = 1000;

/// Of a row of the targets' table: NULL unless its recipient is suppressed for this channel or for every one. A scalar with a LIMIT,
/// which no server turns into a join. It reads one stretch of the index, and no row; where nobody is suppressed, which is looked at
/// once a statement, it costs nothing.
pub(super) fn suppressed(tables: &Tables, channel: &str) -> String {
    let Tables { target, suppression, .. } = tables;
    // By its full name: `recipient` alone would be the suppression's own.
    format!(
        "IF((SELECT 1 FROM {suppression} LIMIT 1) IS NULL, NULL, \
         (SELECT 1 FROM {suppression} s FORCE INDEX (u_folded_channel) \
         WHERE s.folded = LOWER(TRIM({target}.recipient)) AND s.channel IN ('{EVERY_CHANNEL}', {}) LIMIT 1))",
        quote(channel)
    )
}

/// A word of ours as `folded` has it: by the same rules of the same collation.
fn fold(recipient: &str) -> String {
    format!("LOWER(TRIM({} COLLATE utf8mb4_bin))", quote(recipient))
}

fn fault(fault: Fault, what: &'static str) -> anyhow::Error {
    match fault {
        Fault::Data(why) => why.context(Trouble::usage(format!("{what}: a value does not fit"))),
        fault => fault.into_error().context(what),
    }
}

impl MySql {
    pub(super) fn add_suppressions(&mut self, rows: &[Suppression], act: &Act<'_>) -> Result<Added> {
        refuse_long(rows.iter().map(|row| row.recipient.trim()))?;
        let tables = Rc::clone(&self.tables);
        let values = rows.iter().map(|row| {
            format!(
                "({}, {}, {}, {})",
                quote(row.recipient.trim()),
                quote(row.channel.as_deref().unwrap_or(EVERY_CHANNEL)),
                row.reason.as_deref().map_or_else(|| "NULL".into(), |reason| fitted(reason, REASON_MOST)),
                row.since.map_or_else(|| "NOW(3)".into(), |since| when(When::At(since))),
            )
        });
        let into = format!("{} (recipient, channel, reason, since)", tables.suppression);
        let inserts = inserts(&into, values, self.connection.server.packet);
        let added = self.connection.persist(|connection, _| {
            let mut new = 0;
            let mut begin = BEGIN;
            for insert in &inserts {
                let insert = format!("{begin}{insert} ON DUPLICATE KEY UPDATE channel = channel");
                new += last(connection.run(&insert)?).changed;
                begin = "";
            }
            if new > 0 {
                let why = about_all(rows, new, act);
                let act = Act { why: Some(&why), ..act.clone() };
                connection.run(&format!("{}; COMMIT", tables.audit_statement(&act, None, &[None])))?;
            }
            Ok(Added { new, repeated: rows.len() as u64 - new })
        });
        added.map_err(|why| fault(why, "cannot suppress"))
    }

    pub(super) fn remove_suppression(
        &mut self,
        recipient: &str,
        channel: Option<&str>,
        act: &Act<'_>,
    ) -> Result<u64> {
        let Tables { suppression, .. } = &*self.tables;
        let which = format!(
            "FROM {suppression} WHERE folded = {} AND channel = {}",
            fold(recipient.trim()),
            quote(channel.unwrap_or(EVERY_CHANNEL))
        );
        let why = about(recipient.trim(), channel, act);
        let audit = self.tables.audit_statement(&Act { why: Some(&why), ..act.clone() }, None, &[None]);
        let mut before = 0;
        let removed = self.connection.persist(|connection, lost| {
            let found =
                last(connection.run(&format!("{BEGIN}SELECT id {which} FOR UPDATE"))?).rows.len() as u64;
            if found == 0 {
                // Perhaps by a try whose answer was lost.
                return Ok(if lost { before } else { 0 });
            }
            before = found;
            connection.run(&format!("DELETE {which}; {audit}; {COMMIT}"))?;
            Ok(found)
        });
        removed.map_err(|why| fault(why, "cannot end a suppression"))
    }

    /// Those after this one (its recipient as it is compared, and its channel), in order.
    fn page_of_suppressions(&mut self, after: Option<&(String, String)>) -> Result<Vec<Cells>> {
        let after = after.map_or_else(String::new, |(recipient, channel)| {
            let (recipient, channel) = (quote(recipient), quote(channel));
            format!("WHERE folded >= {recipient} AND (folded > {recipient} OR channel > {channel})")
        });
        let text = format!(
            "SELECT folded, channel, reason, {} FROM {} FORCE INDEX (u_folded_channel) {after} \
             ORDER BY folded, channel LIMIT {PAGE}",
            ms("since"),
            self.tables.suppression,
        );
        self.read("read suppressions", &text)
    }

    pub(super) fn list_suppressions(
        &mut self,
        each: &mut dyn FnMut(Suppression) -> Result<()>,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.page_of_suppressions(after.as_ref())?;
            let ended = page.len() < PAGE;
            for mut row in page {
                let (recipient, channel) = (row.word(), row.word());
                let (reason, since) = (row.text(), time(row.maybe()?));
                after = Some((recipient.clone(), channel.clone()));
                let channel = Some(channel).filter(|channel| channel != EVERY_CHANNEL);
                each(Suppression { recipient, channel, reason, since })?;
            }
            if ended {
                return Ok(());
            }
        }
    }
}
