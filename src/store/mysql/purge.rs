//! Ended tasks on MySQL and MariaDB: condemned, then removed a step at a time. Each step is one transaction that locks the task's
//! row and the rows that it removes, found before by a plain look: who works on another task never waits for it.

use super::connection::COMMIT;
use super::*;

/// What is final in every task.
const SETTLED: [&str; 2] = ["sent", "failed"];

/// A condemned or ended task as a step finds it, under its lock.
struct Standing {
    status: String,
    /// It is being purged, and was finished before.
    condemned: bool,
    /// At least so long ago, and nobody holds it.
    ended: bool,
}

impl Standing {
    /// Statuses that may go.
    fn may_go(&self, with_unknown: bool) -> Vec<&'static str> {
        let mut may_go = SETTLED.to_vec();
        if with_unknown {
            may_go.push("unknown");
        }
        // What waits in a cancelled task was not sent, and is not going to be.
        if self.status == "cancelled" && !self.condemned {
            may_go.extend(["pending", "retry"]);
        }
        may_go
    }
}

/// Takes the task's row in a new transaction.
fn stand(
    connection: &mut Connection,
    tables: &Tables,
    task: TaskId,
    age: Duration,
) -> Result<Option<Standing>, Fault> {
    let text = format!(
        "{BEGIN}SELECT status, status_reason <=> {}, finished_at <= NOW(3) - INTERVAL {} SECOND \
         AND (lock_token IS NULL OR lock_until IS NULL OR lock_until < NOW(3)) FROM {} WHERE id = {task} FOR UPDATE",
        quote(PURGING),
        age.as_secs(),
        tables.task,
    );
    let Some(mut row) = last(connection.run(&text)?).rows.pop() else { return Ok(None) };
    let (status, purging, ended) = (row.word(), row.flag()?, row.flag()?);
    Ok(Some(Standing { condemned: purging && status == "cancelled", status, ended }))
}

/// Why what is left of a task, in these statuses, must stay.
fn stays(found: &str) -> Stays {
    if found == "unknown" { Stays::Unknown } else { Stays::Open }
}

/// Rows by their ids, and the commit. By the primary key, and in short lists: of a thousand ids and more MariaDB makes a table of its
/// own, and then walks through the whole of ours to look each row up in it, waiting for every lock on the way.
fn delete(from: &str, ids: &[u64], also: &str) -> String {
    let statements = ids.chunks(CHUNK).map(|ids| {
        format!("DELETE t FROM {from} t FORCE INDEX (PRIMARY) WHERE id IN ({}) {also}; ", list(ids))
    });
    statements.collect::<String>() + COMMIT
}

impl MySql {
    pub(super) fn list_ended(&mut self, age: Duration) -> Result<Vec<Task>> {
        let text = format!(
            "SELECT {} FROM {} WHERE t.status IN ('finished', 'cancelled') \
             AND t.finished_at <= NOW(3) - INTERVAL {} SECOND ORDER BY t.id",
            task_columns(),
            tasks_with_pace(&self.tables, "FORCE INDEX (k_status)"),
            age.as_secs(),
        );
        let mut rows = self.read("look for tasks that have ended", &text)?;
        rows.iter_mut().map(read_task).collect()
    }

    pub(super) fn condemn_task(
        &mut self,
        task: TaskId,
        age: Duration,
        with_unknown: bool,
        act: &Act<'_>,
    ) -> Result<Option<Stays>> {
        let tables = Rc::clone(&self.tables);
        let audit = tables.audit_statement(act, Some(task), &[None]);
        let known = format!(
            "SELECT id FROM {} FORCE INDEX (k_task) WHERE task_id = {task} AND what = {} LIMIT 1",
            tables.audit,
            quote(act.what)
        );
        self.connection.attempt("end a task for good", |connection, _| {
            let Some(standing) = stand(connection, &tables, task, age)? else {
                return Ok(Some(Stays::Gone));
            };
            if !standing.ended || !matches!(standing.status.as_str(), "finished" | "cancelled") {
                return Ok(Some(Stays::NotEnded));
            }
            let may_go = standing.may_go(with_unknown);
            let must_stay: Vec<&str> =
                desk::STATUSES.into_iter().filter(|status| !may_go.contains(status)).collect();
            let look = probes(&tables.target, task, &must_stay);
            if let Some(mut found) = last(connection.run(&look)?).rows.pop() {
                return Ok(Some(stays(&found.word())));
            }
            let end = format!(
                "UPDATE {} SET status = 'cancelled', status_reason = {}, {HALT}, {UNFROZEN} \
                 WHERE id = {task} AND status = 'finished'",
                tables.task,
                quote(PURGING)
            );
            let first = last(connection.run(&known)?).rows.is_empty();
            let audit = if first { format!("{audit}; ") } else { String::new() };
            connection.run(&format!("{end}; {audit}COMMIT"))?;
            Ok(None)
        })
    }

    pub(super) fn purge_step(
        &mut self,
        task: TaskId,
        age: Duration,
        with_unknown: bool,
        after: TargetId,
    ) -> Result<Purged> {
        let tables = Rc::clone(&self.tables);
        let Tables { task: tasks, target, audit, .. } = &*tables;
        // Forward only: entries of rows that are gone stay in an index for a while, and a look from its start would read them all. A
        // retry has a time of its own; the few that a cancelled task has come last.
        let next = format!(
            "SELECT id FROM {target} FORCE INDEX (k_task_retry) \
             WHERE task_id = {task} AND retry_at IS NULL AND id > {after} ORDER BY id LIMIT {PURGED_MOST}"
        );
        let retries = format!(
            "SELECT id FROM {target} FORCE INDEX (k_task_status) \
             WHERE task_id = {task} AND status = 'retry' ORDER BY id LIMIT {PURGED_MOST}"
        );
        // It locks what it finds, so that it waits for a row that somebody is about to commit.
        let rest = format!(
            "SELECT status FROM {target} FORCE INDEX (k_task_status) WHERE task_id = {task} LIMIT 1 FOR UPDATE"
        );
        let audited = format!(
            "SELECT id FROM {audit} FORCE INDEX (k_task) WHERE task_id = {task} AND what <> {} \
             ORDER BY id LIMIT {PURGED_MOST}",
            quote(PURGE)
        );
        self.connection.attempt("purge a task", |connection, lost| {
            let Some(standing) = stand(connection, &tables, task, age)? else {
                return Ok(if lost { Purged::Whole } else { Purged::Stays(Stays::Gone) });
            };
            if standing.status != "cancelled" || !standing.ended {
                return Ok(Purged::Stays(Stays::NotEnded));
            }
            let may_go = standing.may_go(with_unknown);
            let mut found = ids(last(connection.run(&next)?).rows)?;
            let last_of = found.last().copied();
            if found.is_empty() && may_go.contains(&"retry") {
                found = ids(last(connection.run(&retries)?).rows)?;
            }
            if !found.is_empty() {
                let may_go = list(may_go.iter().map(|status| quote(status)));
                let mut replies =
                    connection.run(&delete(target, &found, &format!("AND status IN ({may_go})")))?;
                replies.pop();
                let gone = replies.iter().map(|reply| reply.changed).sum();
                return Ok(Purged::Some(gone, last_of.unwrap_or(after)));
            }
            if let Some(mut left) = last(connection.run(&rest)?).rows.pop() {
                return Ok(Purged::Stays(stays(&left.word())));
            }
            let audits = ids(last(connection.run(&audited)?).rows)?;
            if !audits.is_empty() {
                connection.run(&delete(audit, &audits, ""))?;
                return Ok(Purged::Some(0, after));
            }
            connection.run(&format!("DELETE FROM {tasks} WHERE id = {task}; COMMIT"))?;
            Ok(Purged::Whole)
        })
    }
}
