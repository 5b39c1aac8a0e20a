//! A task and its targets on MySQL and MariaDB, as they were at one moment: for a report. Reads alone, and locks nothing.

use super::connection::COMMIT;
use super::desk::STATUSES;
use super::*;
use crate::target::TargetStatus;
use crate::trouble::Trouble;

/// Targets read at once.
const PAGE: usize = 10_000;

impl MySql {
    /// In one transaction, whose first SELECT fixes what all see. Targets come a page at a time, so that the driver never holds
    /// more.
    pub(super) fn take_snapshot(
        &mut self,
        task: TaskId,
        each: &mut dyn FnMut(TargetFacts) -> Result<()>,
    ) -> Result<Option<Snapshot>> {
        let tables = Rc::clone(&self.tables);
        let target = &tables.target;
        let look = format!(
            "{BEGIN}SELECT {}, sent_count, failed_count, unknown_count, {} FROM {} WHERE t.id = {task}",
            task_columns(),
            ms("NOW(3)"),
            tasks_with_pace(&tables, "")
        );
        let count = format!(
            "SELECT COUNT(*), COALESCE(MIN(id), 0), COALESCE(MAX(id), 0) FROM {target} FORCE INDEX (k_task_status) \
             WHERE task_id = {task}"
        );
        let mut handed_over = false;
        self.connection.attempt("read a task and its targets", |connection, _| {
            // For the next transaction alone.
            connection.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")?;
            let Some(mut row) = last(connection.run(&look)?).rows.pop() else {
                return Ok(None);
            };
            let found = read_task(&mut row)?;
            let frozen = match (row.maybe()?, row.maybe()?, row.maybe()?) {
                (Some(sent), Some(failed), Some(unknown)) => Some(Frozen { sent, failed, unknown }),
                _ => None,
            };
            let at = time(row.maybe()?).context("the database does not know the time")?;
            let mut row = last(connection.run(&count)?).rows.pop().context("the database counts nothing")?;
            let (targets, first, latest) = (row.number()?, row.number()?, row.number()?);
            for walk in walks(task, targets, first, latest) {
                let mut after = 0;
                loop {
                    let page = connection.run(&page(target, &walk, after)).map_err(|fault| match fault {
                        // From its beginning it would hand over the same targets again.
                        Fault::Undone(why) | Fault::Lost(why) if handed_over => Fault::Final(why.context(
                            Trouble::try_later("the database went away in the middle of the targets: what was printed is not all, ask again"),
                        )),
                        fault => fault,
                    })?;
                    let page = last(page).rows;
                    let ended = page.len() < PAGE;
                    for mut row in page {
                        handed_over = true;
                        let facts = read_facts(&mut row)?;
                        after = facts.id;
                        each(facts)?;
                    }
                    if ended {
                        break;
                    }
                }
            }
            connection.run(COMMIT)?;
            Ok(Some(Snapshot { at, task: found, frozen, targets }))
        })
    }
}

/// Index and condition of the walks that together meet every target once. Where most rows between its first and its last are the
/// task's, as after an import, one walk over the rows themselves: several times faster than to look each up from an index. Else a
/// stretch of the index for each status.
fn walks(task: TaskId, targets: u64, first: TargetId, latest: TargetId) -> Vec<String> {
    if latest - first < targets.saturating_mul(2) {
        let range = format!("id BETWEEN {first} AND {latest}");
        return vec![format!("FORCE INDEX (PRIMARY) WHERE task_id = {task} AND {range}")];
    }
    let walk = |status| format!("FORCE INDEX (k_task_status) WHERE task_id = {task} AND status = '{status}'");
    STATUSES.map(walk).into()
}

fn page(target: &str, walk: &str, after: TargetId) -> String {
    format!(
        "SELECT id, status, attempts, {}, {}, IF(status IN ('failed', 'unknown', 'retry'), last_error, NULL), \
         IF(status = 'unknown', recipient, NULL), status = 'sending' AND {CLAIM_ENDED} \
         FROM {target} {walk} AND id > {after} ORDER BY id LIMIT {PAGE}",
        ms("send_at"),
        ms("settled_at"),
    )
}

fn read_facts(row: &mut Cells) -> Result<TargetFacts> {
    Ok(TargetFacts {
        id: row.number()?,
        status: TargetStatus::from_word(&row.word()),
        attempts: row.number()?,
        send_at: time(row.maybe()?),
        settled_at: time(row.maybe()?),
        last_error: row.text(),
        recipient: row.text(),
        overdue: row.flag()?,
    })
}
