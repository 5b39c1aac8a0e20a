//! What `status` shows, on MySQL and MariaDB: counts, courses, and the details of one task. It only reads, and a table of ten million
//! rows is no reason to wait: what cannot be counted in about a second is estimated.

use super::*;
use crate::course::{Course, Courses, Gate, Lost, RECENT, RECENT_MOST, Recent};

/// About so many targets are counted for one answer, unless it is to be exact.
const COUNTED: u64 = 1_000_000;

/// Tasks or statuses that one statement looks at.
const LOOKS: usize = 100;

/// Pending rows that may bear the reason why they were given back: those are the first.
const GIVEN_BACK: u64 = 1_000;

impl MySql {
    /// The counts of tasks that have none frozen.
    pub(super) fn count(&mut self, tasks: &[TaskId], exact: bool) -> Result<HashMap<TaskId, Counts>> {
        let target = self.tables.target.clone();
        let (to_count, to_estimate, table) =
            if exact { (tasks.to_vec(), Vec::new(), 0) } else { self.affordable(tasks)? };
        let mut counted = self.estimated(&to_estimate, table)?;
        for tasks in to_count.chunks(CHUNK) {
            let which = format!("FORCE INDEX (k_task_status) WHERE task_id IN ({})", list(tasks));
            let text =
                format!("SELECT task_id, status, COUNT(*) FROM {target} {which} GROUP BY task_id, status");
            for mut row in self.read("count targets", &text)? {
                let (id, status, count) = (row.number()?, row.word(), row.number()?);
                counted.entry(id).or_default().add(&status, count);
            }
        }
        for tasks in tasks.chunks(CHUNK) {
            let text = format!(
                "SELECT task_id, COUNT(*) FROM {target} FORCE INDEX (k_task_status) \
                 WHERE task_id IN ({}) AND status = 'sending' AND {CLAIM_ENDED} GROUP BY task_id",
                list(tasks)
            );
            for mut row in self.read("count targets", &text)? {
                let (id, overdue) = (row.number()?, row.number()?);
                counted.entry(id).or_default().overdue = overdue;
            }
        }
        Ok(counted)
    }

    /// The tasks whose targets are counted, the smallest first, those that are estimated, and about how many rows the table has.
    fn affordable(&mut self, tasks: &[TaskId]) -> Result<(Vec<TaskId>, Vec<TaskId>, u64)> {
        if tasks.is_empty() {
            return Ok((Vec::new(), Vec::new(), 0));
        }
        let target = self.tables.target.clone();
        let table = self.explained(&[format!("SELECT id FROM {target}")])?[0];
        // Statistics were seen to be off by half.
        if table <= COUNTED / 2 {
            return Ok((tasks.to_vec(), Vec::new(), table));
        }
        let looks: Vec<String> = tasks.iter().map(|task| stretch(&target, *task, None)).collect();
        let mut sizes: Vec<(u64, TaskId)> =
            self.explained(&looks)?.into_iter().zip(tasks.iter().copied()).collect();
        sizes.sort_unstable();
        let mut spent = 0;
        let affordable = sizes.iter().take_while(|(size, _)| {
            spent += size;
            spent <= COUNTED
        });
        let (counted, estimated) = sizes.split_at(affordable.count());
        let ids = |sizes: &[(u64, TaskId)]| sizes.iter().map(|(_, task)| *task).collect();
        Ok((ids(counted), ids(estimated), table))
    }

    /// Counts by statistics: the server's guess, which was seen to be twice too high, and never says none; and how far apart
    /// the first and the last id are, which is right for targets that were added together. The less of the two; none is none,
    /// and one is one.
    fn estimated(&mut self, tasks: &[TaskId], table: u64) -> Result<HashMap<TaskId, Counts>> {
        let tables = Rc::clone(&self.tables);
        let target = tables.target.as_str();
        let mut found: Vec<(TaskId, String, u64)> = Vec::new();
        for tasks in tasks.chunks(LOOKS / desk::STATUSES.len()) {
            let looks = tasks.iter().flat_map(|task| {
                desk::STATUSES.iter().map(move |status| {
                    let end = |order: &str| {
                        format!("({} ORDER BY id {order} LIMIT 1)", stretch(target, *task, Some(status)))
                    };
                    format!("SELECT {task}, '{status}', {}, {}", end("ASC"), end("DESC"))
                })
            });
            let text = looks.collect::<Vec<_>>().join(" UNION ALL ");
            for mut row in self.read("estimate targets", &text)? {
                let (task, status) = (row.number()?, row.word());
                if let (Some(first), Some(last)) = (row.maybe::<u64>()?, row.maybe::<u64>()?) {
                    found.push((task, status, last - first + 1));
                }
            }
        }
        let looks: Vec<String> =
            found.iter().map(|(task, status, _)| stretch(target, *task, Some(status))).collect();
        let guesses = self.explained(&looks)?;
        let estimated = || Counts { estimated: true, ..Counts::default() };
        let mut counted: HashMap<TaskId, Counts> = tasks.iter().map(|task| (*task, estimated())).collect();
        for ((task, status, apart), guess) in found.iter().zip(guesses) {
            // No guess is above half of the table, whatever is true.
            let number = if guess > table / 5 * 2 { (*apart).min(table) } else { guess.clamp(1, *apart) };
            counted.entry(*task).or_insert_with(estimated).add(status, number);
        }
        Ok(counted)
    }

    /// How many rows the optimizer thinks each of these reads.
    fn explained(&mut self, looks: &[String]) -> Result<Vec<u64>> {
        let mut guesses = vec![0; looks.len()];
        for (looks, guesses) in looks.chunks(LOOKS).zip(guesses.chunks_mut(LOOKS)) {
            for mut row in
                self.read("estimate targets", &format!("{EXPLAIN} {}", looks.join(" UNION ALL ")))?
            {
                let number: Option<usize> = row.maybe()?;
                let guess = row.named("rows").and_then(|rows| rows.parse().ok());
                // The line for the union as a whole has no number of a look.
                let place = number.and_then(|number| guesses.get_mut(number.checked_sub(1)?));
                if let (Some(place), Some(guess)) = (place, guess) {
                    *place = guess;
                }
            }
        }
        Ok(guesses)
    }

    pub(super) fn read_courses(&mut self, only: Option<TaskId>) -> Result<Courses> {
        let which = only.map_or_else(String::new, |id| format!("AND t.id = {id}"));
        let times = [
            "t.created_at",
            "t.scheduled_at",
            "t.halt_at",
            "t.started_at",
            "t.served_at",
            "t.lock_until",
            "p.next_at",
            "p.held_until",
        ];
        let text = format!(
            "SELECT {}, (SELECT MAX(priority) FROM {} FORCE INDEX (k_status) WHERE status = 'pending' AND {LIVE}); \
             SELECT t.id, t.status = 'pending', {LIVE}, t.lock_owner, p.holds, {} FROM {} \
             WHERE (t.status = 'pending' OR t.lock_token IS NOT NULL) {which}",
            ms("NOW(3)"),
            self.tables.task,
            times.map(ms).join(", "),
            tasks_with_pace(&self.tables, "")
        );
        let mut replies =
            self.connection.attempt("read how tasks move", |connection, _| connection.run(&text))?;
        let rows = replies.pop().map_or(Vec::new(), |reply| reply.rows);
        let mut clock = last(replies).rows.pop().context("the database does not know the time")?;
        let now = time(clock.maybe()?).context("the database does not know the time")?;
        let mut courses = Courses { now, at_work: clock.maybe()?, of: HashMap::new() };
        let (mut pending, mut running) = (Vec::new(), Vec::new());
        for mut row in rows {
            let (id, is_pending, live): (TaskId, _, _) = (row.number()?, row.flag()?, row.flag()?);
            let (owner, holds) = (row.word(), row.maybe()?.unwrap_or(0));
            let mut at = || Ok::<_, anyhow::Error>(time(row.maybe()?));
            let (created, scheduled, halt, started) = (at()?, at()?, at()?, at()?);
            let (served_at, lock_until, next_slot, held_until) = (at()?, at()?, at()?, at()?);
            let course = Course {
                ready_since: [created, scheduled, halt].into_iter().flatten().max().unwrap_or(now),
                pending: false,
                retry_at: None,
                served_at,
                lost: lock_until.filter(|_| !live).map(|at| Lost { owner, at }),
                gate: Gate { next_slot, held_until, holds },
                recent: None,
            };
            courses.of.insert(id, course);
            if is_pending {
                pending.push(id);
            }
            if live {
                running.push((id, started.unwrap_or(now)));
            }
        }
        self.add_what_is_due(&pending, &mut courses)?;
        self.add_recent(&running, &mut courses)?;
        Ok(courses)
    }

    /// Each look reads one entry of an index; who was started or resumed by a person is in the audit.
    fn add_what_is_due(&mut self, tasks: &[TaskId], courses: &mut Courses) -> Result<()> {
        let tables = Rc::clone(&self.tables);
        let Tables { target, audit, .. } = &*tables;
        for tasks in tasks.chunks(LOOKS / 2) {
            let looks = tasks.iter().flat_map(|task| {
                [
                    format!(
                        "(SELECT {task}, NULL FROM {target} FORCE INDEX (k_task_status) \
                         WHERE task_id = {task} AND status = 'pending' LIMIT 1)"
                    ),
                    format!(
                        "(SELECT {task}, {} FROM {target} FORCE INDEX (k_task_retry) \
                         WHERE task_id = {task} AND retry_at IS NOT NULL ORDER BY retry_at LIMIT 1)",
                        ms("retry_at")
                    ),
                ]
            });
            let looks = looks.collect::<Vec<_>>().join(" UNION ALL ");
            let acts = format!(
                "SELECT task_id, {} FROM {audit} FORCE INDEX (k_task) \
                 WHERE task_id IN ({}) AND what IN ('start', 'resume') GROUP BY task_id",
                ms("MAX(at)"),
                list(tasks)
            );
            for mut row in self.read("look for what is due", &looks)? {
                let Some(course) = courses.of.get_mut(&row.number()?) else { continue };
                match time(row.maybe()?) {
                    Some(at) => course.retry_at = Some(at),
                    None => course.pending = true,
                }
            }
            for mut row in self.read("look for what is due", &acts)? {
                let Some(course) = courses.of.get_mut(&row.number()?) else { continue };
                course.ready_since =
                    time(row.maybe()?).map_or(course.ready_since, |at| at.max(course.ready_since));
            }
        }
        Ok(())
    }

    /// What was sent of late, of each task and since when it is sent at all.
    fn add_recent(&mut self, tasks: &[(TaskId, DateTime<Utc>)], courses: &mut Courses) -> Result<()> {
        for tasks in tasks.chunks(LOOKS) {
            let looks = tasks.iter().map(|(task, _)| {
                format!(
                    "(SELECT {task}, COUNT(*), COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(settled_at), NOW(3)), 0) \
                     FROM (SELECT settled_at FROM {} FORCE INDEX (k_task_status) \
                     WHERE task_id = {task} AND status = 'sent' ORDER BY id DESC LIMIT {RECENT_MOST}) AS latest \
                     WHERE settled_at > NOW(3) - INTERVAL {} SECOND)",
                    self.tables.target,
                    RECENT.as_secs()
                )
            });
            let looks = looks.collect::<Vec<_>>().join(" UNION ALL ");
            for mut row in self.read("look at what was sent of late", &looks)? {
                let (id, sent, oldest): (TaskId, _, i64) = (row.number()?, row.number()?, row.number()?);
                let Some(course) = courses.of.get_mut(&id) else { continue };
                let began =
                    tasks.iter().find(|(task, _)| *task == id).map_or(courses.now, |(_, began)| *began);
                let oldest = Duration::from_micros(oldest.max(0).cast_unsigned());
                course.recent = Some(Recent::new(sent, oldest, began.max(course.ready_since), courses.now));
            }
        }
        Ok(())
    }

    pub(super) fn read_details(&mut self, task: TaskId, exact: bool) -> Result<Details> {
        let tables = Rc::clone(&self.tables);
        let Tables { target, audit, .. } = &*tables;
        let of_task = format!("FROM {target} FORCE INDEX (k_task_status) WHERE task_id = {task}");
        let mut details = Details::default();

        let some =
            format!("SELECT COUNT(*) FROM (SELECT 1 {of_task} LIMIT {}) AS looked_at", ATTEMPTS_MOST + 1);
        let few = exact || {
            let row = self.read("count targets", &some)?.pop();
            row.map_or(Ok(0), |mut row| row.number::<u64>())? <= ATTEMPTS_MOST
        };
        if few {
            let text = format!("SELECT COALESCE(SUM(attempts), 0), COALESCE(SUM(attempts > 1), 0) {of_task}");
            if let Some(mut row) = self.read("sum up attempts", &text)?.pop() {
                details.attempts = Some(Attempts { all: row.number()?, repeated: row.number()? });
            }
        }

        let most = |most: u64| if exact { String::new() } else { format!("LIMIT {most}") };
        let stretches = [("failed", "DESC"), ("unknown", "DESC"), ("retry", "DESC"), ("pending", "ASC")];
        let stretches = stretches.map(|(status, order)| {
            let most = most(if status == "pending" { GIVEN_BACK } else { REASONS_MOST });
            format!("(SELECT last_error {of_task} AND status = '{status}' ORDER BY id {order} {most})")
        });
        let text = format!(
            "SELECT last_error, COUNT(*) AS number FROM ({}) AS looked_at WHERE last_error IS NOT NULL \
             GROUP BY last_error ORDER BY number DESC, last_error LIMIT {DETAILED}",
            stretches.join(" UNION ALL ")
        );
        for mut row in self.read("look for the commonest reasons", &text)? {
            details.reasons.push((row.word(), row.number()?));
        }

        details.unknown = self.page(task, "unknown", 0, DETAILED)?;

        let of_audit = format!("FROM {audit} FORCE INDEX (k_task) WHERE task_id = {task}");
        let text = format!("SELECT COUNT(*) {of_audit}");
        if let Some(mut row) = self.read("read the audit", &text)?.pop() {
            details.audits = row.number()?;
        }
        let text = format!(
            "SELECT {}, who, what, target_id, why {of_audit} ORDER BY id DESC LIMIT {DETAILED}",
            ms("at")
        );
        for mut row in self.read("read the audit", &text)? {
            details.audit.push(Audited {
                at: time(row.maybe()?).unwrap_or_default(),
                who: row.word(),
                what: row.word(),
                target: row.maybe()?,
                why: row.text(),
            });
        }
        Ok(details)
    }
}

/// A run holds the task of this row now.
const LIVE: &str = "(lock_token IS NOT NULL AND lock_until >= NOW(3))";

/// The ids of a task, or of one status of it, by one stretch of an index.
fn stretch(target: &str, task: TaskId, status: Option<&str>) -> String {
    let status = status.map_or_else(String::new, |status| format!(" AND status = '{status}'"));
    format!("SELECT id FROM {target} FORCE INDEX (k_task_status) WHERE task_id = {task}{status}")
}
