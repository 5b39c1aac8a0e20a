//! What waits and what is in doubt, by channel, on MySQL and MariaDB: for metrics. It reads index entries alone, no more than
//! [`COUNTED`] of a task, and asks the optimizer beyond.

use super::*;

impl MySql {
    pub(super) fn read_backlog(&mut self) -> Result<Vec<Backlog>> {
        let Tables { task, .. } = &*self.tables;
        let since = "GREATEST(t.created_at, COALESCE(t.scheduled_at, t.created_at))";
        let due = format!(
            "SELECT t.id, t.channel, GREATEST(TIMESTAMPDIFF(SECOND, {since}, NOW(3)), 0) FROM {task} t FORCE INDEX (k_status) \
             WHERE t.status = 'pending' AND (t.scheduled_at IS NULL OR t.scheduled_at <= NOW(3)) \
             AND (t.expires_at IS NULL OR t.expires_at > NOW(3)) ORDER BY t.id LIMIT {TASKS}"
        );
        let frozen = format!(
            "SELECT channel, SUM(unknown_count) FROM {task} FORCE INDEX (k_status) \
             WHERE status = 'finished' AND unknown_count > 0 GROUP BY channel"
        );
        let thawed = format!(
            "SELECT id, channel FROM {task} WHERE unknown_count IS NULL AND status <> 'draft' ORDER BY id DESC LIMIT {TASKS}"
        );
        let mut all = Backlogs::default();

        let mut tasks = HashMap::new();
        for mut row in self.read("read the backlog", &due)? {
            let (id, channel, age): (TaskId, _, u64) = (row.number()?, row.word(), row.number()?);
            tasks.insert(id, (channel, age));
        }
        let ids: Vec<TaskId> = tasks.keys().copied().collect();
        for (id, count, _) in self.counted(&ids, "k_task_status", "status = 'pending'", "0")? {
            let Some((channel, age)) = tasks.get(&id) else { continue };
            let count = if count > COUNTED { self.guessed(id)?.max(count) } else { count };
            all.waits(channel, count, Duration::from_secs(*age));
        }
        let retry_age = "TIMESTAMPDIFF(SECOND, retry_at, NOW(3))";
        for (id, count, age) in self.counted(&ids, "k_task_retry", "retry_at <= NOW(3)", retry_age)? {
            let Some((channel, _)) = tasks.get(&id) else { continue };
            all.waits(channel, count, Duration::from_secs(age));
        }

        for mut row in self.read("read the backlog", &frozen)? {
            all.unknown(&row.word(), row.number()?);
        }
        let mut tasks = HashMap::new();
        for mut row in self.read("read the backlog", &thawed)? {
            let (id, channel): (TaskId, _) = (row.number()?, row.word());
            tasks.insert(id, channel);
        }
        let ids: Vec<TaskId> = tasks.keys().copied().collect();
        for (id, count, _) in self.counted(&ids, "k_task_status", "status = 'unknown'", "0")? {
            let Some(channel) = tasks.get(&id) else { continue };
            all.unknown(channel, count);
        }
        Ok(all.list())
    }

    /// Of each task that has any: how many targets fit, up to one more than [`COUNTED`], and the greatest of `what` of them.
    fn counted(
        &mut self,
        tasks: &[TaskId],
        index: &str,
        condition: &str,
        what: &str,
    ) -> Result<Vec<(TaskId, u64, u64)>> {
        let target = &self.tables.target;
        let mut counted = Vec::new();
        let looks: Vec<String> = tasks
            .iter()
            .map(|id| {
                format!(
                    "(SELECT {id}, COUNT(*) AS n, GREATEST(COALESCE(MAX(w), 0), 0) FROM (SELECT {what} AS w FROM {target} \
                     FORCE INDEX ({index}) WHERE task_id = {id} AND {condition} LIMIT {}) x HAVING n > 0)",
                    COUNTED + 1
                )
            })
            .collect();
        for looks in looks.chunks(PROBED_MOST) {
            for mut row in self.read("count the backlog", &looks.join(" UNION ALL "))? {
                counted.push((row.number()?, row.number()?, row.number()?));
            }
        }
        Ok(counted)
    }

    fn guessed(&mut self, task: TaskId) -> Result<u64> {
        let text = format!(
            "EXPLAIN SELECT id FROM {} FORCE INDEX (k_task_status) WHERE task_id = {task} AND status = 'pending'",
            self.tables.target
        );
        self.connection.attempt("estimate the backlog", |connection, _| explained_rows(connection, &text))
    }
}
