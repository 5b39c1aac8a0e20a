//! What a run repairs before it sends: what dead runs left, tasks that expired, were cancelled or finished too early, and tasks
//! that no host serves.

use super::*;

/// Targets whose claim has ended, by what becomes of them.
#[derive(Default)]
struct Dead {
    claimed: Vec<TargetId>,
    /// Begun, and the provider still remembers the key.
    remembered: Vec<TargetId>,
    begun: BTreeMap<TaskId, Vec<TargetId>>,
}

/// In a cancelled task what waits was not sent; what may have been sent, and will not be sent again, is unknown.
pub(super) fn left_in_doubt(target: &str, task: TaskId) -> String {
    format!(
        "UPDATE {target} FORCE INDEX (k_task_status) SET status = 'unknown', retry_at = NULL, settled_at = NOW(3) \
         WHERE task_id = {task} AND status IN ('pending', 'retry') AND dedupe_until IS NOT NULL"
    )
}

/// A task cancelled or finished within the last hour is looked at again: a claim, or an application's late commit, may have
/// come right after.
pub(super) fn unfinished_tasks(task: &str, only: Option<TaskId>) -> String {
    let which = match only {
        Some(id) => format!("WHERE id = {id}"),
        None => "FORCE INDEX (k_status) WHERE (status IN ('', 'draft', 'pending', 'paused', 'cancelled') AND finished_at IS NULL) \
                 OR (status IN ('finished', 'cancelled') AND finished_at > NOW(3) - INTERVAL 1 HOUR)"
            .into(),
    };
    format!(
        "SELECT id, status, expires_at <= NOW(3), {}, finished_at IS NULL FROM {task} {which}",
        ms("expires_at")
    )
}

pub(super) fn left_by_dead_runs(target: &str, tasks: &[TaskId]) -> String {
    format!(
        "SELECT id, task_id, status, dedupe_until > NOW(3) FROM {target} FORCE INDEX (k_task_status) \
         WHERE task_id IN ({}) AND status IN ('processing', 'sending') AND {CLAIM_ENDED} LIMIT {CHUNK}",
        list(tasks)
    )
}

/// Due tasks whose channel is none of these.
pub(super) fn stray_tasks(tables: &Tables, channels: &[&str]) -> String {
    let unknown = match channels {
        [] => String::new(),
        channels => format!("AND t.channel NOT IN ({})", list(channels.iter().map(|name| quote(name)))),
    };
    format!(
        "SELECT t.id, t.channel FROM {} WHERE t.status = 'pending' AND {DUE} AND {NOT_HELD} {unknown} ORDER BY t.id",
        tasks_with_pace(tables, "FORCE INDEX (k_status)"),
    )
}

pub(super) fn tasks_having(target: &str, tasks: &[TaskId], statuses: &str) -> String {
    format!(
        "SELECT DISTINCT task_id FROM {target} FORCE INDEX (k_task_status) \
         WHERE task_id IN ({}) AND status IN {statuses}",
        list(tasks)
    )
}

impl MySql {
    pub(super) fn repair(&mut self, only: Option<TaskId>) -> Result<Recovered> {
        let tables = Rc::clone(&self.tables);
        let Tables { task, target, .. } = &*tables;
        let text = unfinished_tasks(task, only);
        let (mut unfinished, mut cancelled, mut finished, mut late) = (vec![], vec![], vec![], vec![]);
        for mut row in self.read("look for unfinished tasks", &text)? {
            let (id, status): (TaskId, _) = (row.number()?, row.word());
            let (is_late, end, no_end) = (row.flag()?, time(row.maybe()?), row.flag()?);
            match status.as_str() {
                "finished" => finished.push(id),
                "pending" if is_late => late.push((id, end)),
                "cancelled" if no_end => cancelled.push(id),
                _ => {}
            }
            if only.is_some() || status != "finished" {
                unfinished.push(id);
            }
        }

        let mut recovered = Recovered::default();
        for tasks in unfinished.chunks(CHUNK) {
            let text = left_by_dead_runs(target, tasks);
            loop {
                let mut dead = Dead::default();
                let rows = self.read("look for what dead runs left", &text)?;
                let found = rows.len();
                for mut row in rows {
                    let (id, of, status, remembered) =
                        (row.number()?, row.number()?, row.word(), row.flag()?);
                    match status.as_str() {
                        "processing" => dead.claimed.push(id),
                        _ if remembered => dead.remembered.push(id),
                        _ => dead.begun.entry(of).or_default().push(id),
                    }
                }
                // Found and not changed: another run recovers the same ones right now.
                if found == 0 || self.bury(dead, &mut recovered)? == 0 || found < CHUNK {
                    break;
                }
            }
        }

        for (id, end) in late {
            let reason = expired(end);
            let text = format!(
                "UPDATE {task} SET status = 'paused', status_reason = {}, {HALT} \
                 WHERE id = {id} AND status = 'pending' AND expires_at <= NOW(3)",
                fitted(&reason, REASON_MOST)
            );
            if self.write("pause an expired task", &text)? > 0 {
                recovered.expired.push((id, reason));
            }
        }
        if !cancelled.is_empty() {
            let busy = self.having(&cancelled, "('processing', 'sending')")?;
            cancelled.retain(|id| !busy.contains(id));
        }
        for id in self.having(&cancelled, "('pending', 'retry')")? {
            let unknown =
                self.write("settle what a cancelled task leaves in doubt", &left_in_doubt(target, id))?;
            if unknown > 0 {
                recovered.unknown += unknown;
                recovered.doubtful.push(id);
            }
        }
        for tasks in cancelled.chunks(CHUNK) {
            let text = format!(
                "UPDATE {task} SET finished_at = NOW(3) WHERE id IN ({}) AND status = 'cancelled' AND finished_at IS NULL",
                list(tasks)
            );
            self.write("end cancelled tasks", &text)?;
        }
        if !finished.is_empty() {
            for id in self.having(&finished, OPEN)? {
                let text = format!("UPDATE {task} SET {REOPENED} WHERE id = {id} AND status = 'finished'");
                if self.write("reopen a task", &text)? > 0 {
                    recovered.reopened.push(id);
                }
            }
        }
        Ok(recovered)
    }

    pub(super) fn look_for_strays(&mut self, channels: &[&str]) -> Result<Vec<Stray>> {
        let tables = Rc::clone(&self.tables);
        let Tables { task, audit, .. } = &*tables;
        let text = stray_tasks(&tables, channels);
        let mut found: Vec<(TaskId, String)> = Vec::new();
        for mut row in self.read("look for tasks that nobody serves", &text)? {
            found.push((row.number()?, row.word()));
        }
        let mut strays = Vec::new();
        for step in found.chunks(PROBED_MOST) {
            let due = self.with_work(&Vec::from_iter(step.iter().map(|(id, _)| *id)))?;
            let due = step.iter().filter(|(id, _)| due.contains(id));
            strays.extend(due.map(|(id, channel)| Stray {
                task: *id,
                channel: channel.clone(),
                paused: false,
            }));
        }
        if strays.is_empty() {
            return Ok(strays);
        }
        // Served, paused or resumed since it was first seen: the wait begins again.
        let text = format!(
            "SELECT t.id, MIN(a.at) <= NOW(3) - INTERVAL {} SECOND FROM {task} t JOIN {audit} a \
             ON a.task_id = t.id AND a.what = 'unserved' AND (t.served_at IS NULL OR t.served_at <= a.at) \
             AND (t.halt_at IS NULL OR t.halt_at <= a.at) WHERE t.id IN ({}) GROUP BY t.id",
            PATIENCE.as_secs(),
            list(strays.iter().map(|stray| stray.task)),
        );
        let mut seen = HashMap::new();
        for mut row in self.read("look for tasks that nobody serves", &text)? {
            seen.insert(row.number::<TaskId>()?, row.flag()?);
        }
        for stray in &mut strays {
            let Stray { task: id, channel, .. } = stray;
            match seen.get(id) {
                None => {
                    let text = format!(
                        "INSERT INTO {audit} (who, what, task_id, why) VALUES ({}, 'unserved', {id}, {})",
                        quote(OURSELVES),
                        fitted(
                            &format!("channel {channel} is not configured where it was seen"),
                            REASON_MOST
                        )
                    );
                    self.write("remember a task that nobody serves", &text)?;
                }
                Some(false) => {}
                Some(true) => {
                    let reason = format!("channel {channel} is not configured on any host that looked");
                    let text = format!(
                        "UPDATE {task} t SET status = 'paused', status_reason = {}, {HALT} \
                         WHERE id = {id} AND status = 'pending' AND {DUE}",
                        fitted(&reason, REASON_MOST)
                    );
                    stray.paused = self.write("pause a task that nobody serves", &text)? > 0;
                }
            }
        }
        Ok(strays)
    }

    /// Repairs what a dead run left. How many rows changed.
    fn bury(&mut self, dead: Dead, recovered: &mut Recovered) -> Result<u64> {
        let mut changed = 0;
        for (mut ids, condition) in [
            (dead.claimed, "status = 'processing'"),
            (dead.remembered, "status = 'sending' AND dedupe_until > NOW(3)"),
        ] {
            if ids.is_empty() {
                continue;
            }
            ids.sort_unstable();
            let text = format!(
                "UPDATE {} SET status = 'pending' WHERE id IN ({}) AND {condition} AND {CLAIM_ENDED}",
                self.tables.target,
                list(&ids)
            );
            let pending = self.write("recover targets", &text)?;
            recovered.pending += pending;
            changed += pending;
        }
        let Tables { task, target, .. } = &*self.tables;
        for (of, mut ids) in dead.begun {
            ids.sort_unstable();
            let text = format!(
                "{BEGIN}SELECT 1 FROM {task} WHERE id = {of} FOR UPDATE; \
                 UPDATE {target} SET status = 'unknown', settled_at = NOW(3), last_error = {} \
                 WHERE id IN ({}) AND status = 'sending' AND {CLAIM_ENDED} \
                 AND (dedupe_until IS NULL OR dedupe_until <= NOW(3))",
                quote(DIED),
                list(&ids)
            );
            // A crash counts once, however many it left unknown.
            let counted = recovered.doubtful.contains(&of);
            let count = if counted { "" } else { "unknown_run = LEAST(unknown_run + 1, 65535), " };
            let unknown = self.connection.attempt("recover targets", |connection, _| {
                let unknown = last(connection.run(&text)?).changed;
                if unknown > 0 {
                    connection
                        .run(&format!("UPDATE {task} SET {count}{UNFROZEN} WHERE id = {of}; COMMIT"))?;
                }
                Ok(unknown)
            })?;
            if unknown > 0 && !counted {
                recovered.doubtful.push(of);
            }
            recovered.unknown += unknown;
            changed += unknown;
        }
        Ok(changed)
    }

    /// Of `tasks`, those that have a target in one of `statuses`.
    pub(super) fn having(&mut self, tasks: &[TaskId], statuses: &str) -> Result<BTreeSet<TaskId>> {
        let mut having = BTreeSet::new();
        for tasks in tasks.chunks(CHUNK) {
            let text = tasks_having(&self.tables.target, tasks, statuses);
            having.extend(ids(self.read("look for open targets", &text)?)?);
        }
        Ok(having)
    }
}
