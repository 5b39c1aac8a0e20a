//! Begin and settle: one text, one commit. Answers are grouped by token and kind into one statement each; where a statement
//! changed fewer rows than asked, the rows are looked at under their locks.

use super::suppression::suppressed;
use super::*;

/// What a begin wrote.
pub(super) struct Written {
    settled: Settled,
    /// By token and id: a run may hold a claim that has ended and the one after it, of the same target.
    begun: HashSet<(Uuid, TargetId)>,
    unknown: HashSet<(Uuid, TargetId)>,
    suppressed: HashSet<(Uuid, TargetId)>,
    /// From before the request that may have begun them.
    since: Moment,
}

impl Written {
    pub(super) fn into_begun(mut self, ready: Vec<Ready>, lease: &Lease) -> Begun {
        let mut begun = Begun { settled: self.settled, ..Begun::default() };
        for Ready { claimed: Claimed { target, token, .. }, message, .. } in ready {
            let suppressed = self.suppressed.remove(&(token, target.id));
            if self.begun.remove(&(token, target.id)) {
                begun.in_flight.push(InFlight {
                    id: target.id,
                    token,
                    attempt: target.attempts.saturating_add(1),
                    in_doubt: target.in_doubt,
                    until: self.since + lease.terms.send,
                    message,
                });
            } else if suppressed && !target.in_doubt {
                begun.suppressed.push(target.id);
            } else if suppressed || self.unknown.remove(&(token, target.id)) {
                begun.unknown.push(target.id);
            } else {
                begun.fenced.push(target.id);
            }
        }
        begun
    }
}

impl MySql {
    /// One text, one commit: the answers settled, the ready ones begun. `doubtful` becomes true once it cannot be told any
    /// more from this side whether something was begun.
    pub(super) fn write_begin(
        &mut self,
        lease: &Lease,
        ready: &[Ready],
        answers: &[Answer],
        doubtful: &mut bool,
    ) -> Result<Written, Fault> {
        let tables = &*self.tables;
        let settling = groups(answers.iter());
        let mut sorted: Vec<&Ready> = ready.iter().collect();
        sorted.sort_by_key(|ready| {
            (ready.claimed.token, ready.claimed.target.in_doubt, ready.claimed.target.id)
        });
        let beginning: Vec<&[&Ready]> = sorted
            .chunk_by(|a, b| {
                a.claimed.token == b.claimed.token && a.claimed.target.in_doubt == b.claimed.target.in_doubt
            })
            .flat_map(|group| group.chunks(CHUNK))
            .collect();
        let mut statements: Vec<String> =
            settling.iter().map(|group| settle_statement(tables, group, "= 'sending'")).collect();
        statements.extend(beginning.iter().map(|group| begin_statement(tables, group, &lease.terms)));
        if statements.is_empty() {
            return Ok(Written {
                settled: Settled::default(),
                begun: HashSet::new(),
                unknown: HashSet::new(),
                suppressed: HashSet::new(),
                since: Moment::now(),
            });
        }
        let text = format!("{BEGIN}{}; COMMIT", statements.join("; "));
        let patience = if answers.is_empty() { connection::PATIENCE } else { connection::WITH_ANSWERS };
        let mut since = Moment::now();
        self.connection.persist_for(patience, |connection, lost| {
            *doubtful |= lost;
            if !lost {
                since = Moment::now();
            }
            let replies = connection.run(&text)?;
            let mut changed = replies.iter().skip(1).map(|reply| reply.changed);
            let settled = reconcile(connection, tables, &settling, &mut changed)?;
            let (mut begun, mut unknown, mut suppressed) = (HashSet::new(), HashSet::new(), HashSet::new());
            for group in &beginning {
                let changed = changed.next().unwrap_or(0);
                if changed == group.len() as u64 {
                    begun.extend(group.iter().map(|ready| (ready.claimed.token, ready.claimed.target.id)));
                } else {
                    let changed = (!lost).then_some(changed);
                    let token = group[0].claimed.token;
                    let found = read_back(connection, tables, group, &lease.terms, changed)?;
                    begun.extend(found.begun.into_iter().map(|id| (token, id)));
                    unknown.extend(found.unknown.into_iter().map(|id| (token, id)));
                    suppressed.extend(found.suppressed.into_iter().map(|id| (token, id)));
                }
            }
            Ok(Written { settled, begun, unknown, suppressed, since })
        })
    }

    pub(super) fn write_settle(&mut self, answers: &[Answer]) -> Result<Settled, Fault> {
        let tables = &*self.tables;
        let groups = groups(answers.iter());
        let statements: Vec<String> =
            groups.iter().map(|group| settle_statement(tables, group, "= 'sending'")).collect();
        let text = match statements.as_slice() {
            [] => return Ok(Settled::default()),
            [one] => one.clone(),
            many => format!("{BEGIN}{}; COMMIT", many.join("; ")),
        };
        let skip = usize::from(statements.len() > 1);
        self.connection.persist_for(connection::WITH_ANSWERS, |connection, _| {
            let replies = connection.run(&text)?;
            let mut changed = replies.iter().skip(skip).map(|reply| reply.changed);
            reconcile(connection, tables, &groups, &mut changed)
        })
    }
}

fn begin_statement(tables: &Tables, group: &[&Ready], terms: &Terms) -> String {
    let end = after(terms.send + terms.margin);
    let first = &group[0].claimed;
    let hashes: Vec<_> = group
        .iter()
        .map(|ready| {
            let hash = ready
                .hash
                .map_or_else(|| "NULL".into(), |hash| format!("0x{}", Uuid::from_bytes(hash).simple()));
            (ready.claimed.target.id, hash)
        })
        .collect();
    // In doubt, it leaves only as the same message, and only while the provider surely remembers the key to the end of the send.
    let (also, doubt) = match terms.dedupe {
        _ if first.target.in_doubt => {
            (String::new(), format!("dedupe_until > {end} AND message_hash = {}", by_id(&hashes)))
        }
        Some(dedupe) => (
            format!(", dedupe_until = {}, message_hash = {}", after(dedupe), by_id(&hashes)),
            "dedupe_until IS NULL".into(),
        ),
        None => (String::new(), "dedupe_until IS NULL".into()),
    };
    format!(
        "UPDATE {} SET status = 'sending', attempts = LEAST(attempts + 1, 65535), send_at = NOW(3), claim_until = {end}{also} \
         WHERE id IN ({}) AND cron_token = '{}' AND status = 'processing' AND claim_until > NOW(3) AND {doubt} AND {} IS NULL",
        tables.target,
        list(group.iter().map(|ready| ready.claimed.target.id)),
        first.token,
        suppressed(tables, &terms.channel),
    )
}

/// What became of a group of which fewer were begun than asked.
struct ReadBack {
    begun: Vec<TargetId>,
    unknown: Vec<TargetId>,
    suppressed: Vec<TargetId>,
}

/// After a begin that changed fewer than asked: which of them it began, and which are suppressed. These, and those that may
/// never be sent again by themselves, end here. `changed`: how many it began; not known after a loss, when an earlier
/// try may have begun some.
fn read_back(
    connection: &mut Connection,
    tables: &Tables,
    group: &[&Ready],
    terms: &Terms,
    changed: Option<u64>,
) -> Result<ReadBack, Fault> {
    let Tables { target, .. } = tables;
    let token = group[0].claimed.token;
    let rows = last(connection.run(&format!(
        "{BEGIN}SELECT id, status, last_error, {}, dedupe_until IS NOT NULL, claim_until > NOW(3), dedupe_until > {}, {} IS NOT NULL \
         FROM {target} WHERE id IN ({}) AND cron_token = '{token}' ORDER BY id FOR UPDATE",
        ms("send_at"),
        after(terms.send + terms.margin),
        suppressed(tables, &terms.channel),
        list(group.iter().map(|ready| ready.claimed.target.id)),
    ))?)
    .rows;
    let mut sending: Vec<(TargetId, Option<i64>)> = Vec::new();
    let (mut unknown, mut left_alone) = (Vec::new(), Vec::new());
    // What each of the others becomes, and why.
    let (mut ends, mut reasons) = (Vec::new(), Vec::new());
    let mut end = |id, in_doubt, why| {
        ends.push((id, if in_doubt { "'unknown'" } else { "'failed'" }.to_owned()));
        reasons.push((id, quote(why)));
    };
    for mut row in rows {
        let (id, status, error) = (row.number()?, row.word(), row.text());
        let began: Option<i64> = row.maybe()?;
        let (in_doubt, live, in_time, suppressed) = (row.flag()?, row.flag()?, row.flag()?, row.flag()?);
        match status.as_str() {
            "sending" => sending.push((id, began)),
            "processing" if suppressed => {
                left_alone.push(id);
                end(id, in_doubt, SUPPRESSED);
            }
            "processing" if in_doubt && live && in_time => {
                unknown.push(id);
                end(id, true, "an earlier attempt may have arrived, and the message has changed since");
            }
            "processing" if in_doubt && live => {
                unknown.push(id);
                end(
                    id,
                    true,
                    "an earlier attempt may have arrived, and the provider's memory of it ends too soon",
                );
            }
            // By a try whose answer was lost.
            "failed" | "unknown" if error.as_deref() == Some(SUPPRESSED) => left_alone.push(id),
            "unknown" if changed.is_none() => unknown.push(id),
            _ => {}
        }
    }
    if !ends.is_empty() {
        connection.run(&format!(
            "UPDATE {target} SET status = {}, settled_at = NOW(3), last_error = {} \
             WHERE id IN ({}) AND cron_token = '{token}' AND status = 'processing'; COMMIT",
            by_id(&ends),
            by_id(&reasons),
            list(ends.iter().map(|(id, _)| id)),
        ))?;
    }
    if let Some(changed) = changed {
        // One statement gives one time. What began earlier is in flight already, and must not leave again.
        let latest = sending.iter().map(|(_, began)| *began).max().flatten();
        sending.retain(|(_, began)| *began == latest);
        if sending.len() as u64 != changed {
            sending.clear();
        }
    }
    let begun = sending.into_iter().map(|(id, _)| id).collect();
    Ok(ReadBack { begun, unknown, suppressed: left_alone })
}

/// Answers that one statement can write: of one token and kind, by id.
fn groups<'a>(answers: impl Iterator<Item = &'a Answer>) -> Vec<Vec<&'a Answer>> {
    fn kind(answer: &Answer) -> (Uuid, u8, bool) {
        let kind = match answer.settlement {
            Settlement::Sent { .. } => 0,
            Settlement::Failed { .. } => 1,
            Settlement::Retry { in_doubt: false, .. } => 2,
            Settlement::Retry { in_doubt: true, .. } => 5,
            Settlement::Unknown { .. } => 3,
            Settlement::Returned { .. } => 4,
        };
        (answer.token, kind, forgets(answer, &answer.settlement))
    }
    let mut sorted: Vec<&Answer> = answers.collect();
    sorted.sort_by_key(|answer| (kind(answer), answer.id));
    sorted
        .chunk_by(|a, b| kind(a) == kind(b))
        .flat_map(|group| group.chunks(CHUNK))
        .map(<[&Answer]>::to_vec)
        .collect()
}

/// `from`: the statuses that it may be in, as the end of a condition.
fn settle_statement(tables: &Tables, group: &[&Answer], from: &str) -> String {
    let reasons = || {
        let reasons: Vec<_> = group
            .iter()
            .map(|answer| {
                let reason = match &answer.settlement {
                    Settlement::Failed { reason }
                    | Settlement::Retry { reason, .. }
                    | Settlement::Unknown { reason }
                    | Settlement::Returned { reason } => fitted(reason, REASON_MOST),
                    Settlement::Sent { .. } => "NULL".into(),
                };
                (answer.id, reason)
            })
            .collect();
        by_id(&reasons)
    };
    let mut set = match &group[0].settlement {
        Settlement::Sent { .. } => {
            let receipts: Vec<_> = group
                .iter()
                .map(|answer| {
                    let receipt = match &answer.settlement {
                        Settlement::Sent { receipt: Some(receipt) } => fitted(receipt, RECEIPT_MOST),
                        _ => "NULL".into(),
                    };
                    (answer.id, receipt)
                })
                .collect();
            format!(
                "status = 'sent', settled_at = NOW(3), retry_at = NULL, last_error = NULL, receipt = {}",
                by_id(&receipts)
            )
        }
        Settlement::Failed { .. } => {
            format!("status = 'failed', settled_at = NOW(3), last_error = {}", reasons())
        }
        Settlement::Unknown { .. } => {
            format!("status = 'unknown', settled_at = NOW(3), last_error = {}", reasons())
        }
        Settlement::Retry { .. } => {
            let times: Vec<_> = group
                .iter()
                .map(|answer| match answer.settlement {
                    Settlement::Retry { after: wait, .. } => (answer.id, after(wait)),
                    _ => (answer.id, "NOW(3)".into()),
                })
                .collect();
            format!("status = 'retry', retry_at = {}, last_error = {}", by_id(&times), reasons())
        }
        Settlement::Returned { .. } => {
            format!(
                "status = 'pending', attempts = IF(attempts > 0, attempts - 1, 0), last_error = {}",
                reasons()
            )
        }
    };
    if forgets(group[0], &group[0].settlement) {
        set += ", dedupe_until = NULL, message_hash = NULL";
    }
    // In doubt and to be repeated, though nobody remembers its key: looked at more closely.
    let keyed = match group[0].settlement {
        Settlement::Retry { in_doubt: true, .. } => " AND dedupe_until IS NOT NULL",
        _ => "",
    };
    format!(
        "UPDATE {} SET {set} WHERE id IN ({}) AND cron_token = '{}' AND status {from}{keyed}",
        tables.target,
        list(group.iter().map(|answer| answer.id)),
        group[0].token
    )
}

/// Takes the texts off, and names them.
pub(super) fn strip(settlement: &mut Settlement) -> String {
    match settlement {
        Settlement::Sent { receipt } => receipt.take().unwrap_or_default(),
        Settlement::Failed { reason }
        | Settlement::Retry { reason, .. }
        | Settlement::Unknown { reason }
        | Settlement::Returned { reason } => std::mem::take(reason),
    }
}

/// `changed`: rows that the statement of each group changed. Where they are fewer than asked, looks at the rows and
/// does what late answers and duplicates ask for.
fn reconcile(
    connection: &mut Connection,
    tables: &Tables,
    groups: &[Vec<&Answer>],
    changed: &mut impl Iterator<Item = u64>,
) -> Result<Settled, Fault> {
    let mut settled = Settled::default();
    let mut short = Vec::new();
    for group in groups {
        if changed.next() == Some(group.len() as u64) {
            settled.written += group.len() as u64;
        } else {
            short.extend(group.iter().copied());
        }
    }
    for answers in short.chunks(CHUNK) {
        settled.add(look_closer(connection, tables, answers)?);
    }
    Ok(settled)
}

/// What was found of a target, under its lock.
#[derive(Default)]
struct Found {
    task: TaskId,
    token: Option<String>,
    status: String,
    /// The latest attempt carried a key that the provider remembers.
    keyed: bool,
}

fn look_closer(connection: &mut Connection, tables: &Tables, answers: &[&Answer]) -> Result<Settled, Fault> {
    let Tables { task, target, audit, .. } = tables;
    let tasks: BTreeSet<TaskId> = answers.iter().map(|answer| answer.task).collect();
    let targets: BTreeSet<TargetId> = answers.iter().map(|answer| answer.id).collect();
    let rows = last(connection.run(&format!(
        "{BEGIN}SELECT id FROM {task} WHERE id IN ({}) ORDER BY id FOR UPDATE; \
         SELECT id, task_id, cron_token, status, dedupe_until IS NOT NULL FROM {target} \
         WHERE id IN ({}) ORDER BY id FOR UPDATE",
        list(&tasks),
        list(&targets)
    ))?)
    .rows;
    let mut found = HashMap::new();
    for mut row in rows {
        let id: TargetId = row.number()?;
        let (task, token, status, keyed) = (row.number()?, row.text(), row.word(), row.flag()?);
        found.insert(id, Found { task, token, status, keyed });
    }

    let gone = Found::default();
    let mut settled = Settled::default();
    // What is written, by the end of the condition on the status that it may be in.
    let (mut accepted, mut answered, mut late) = (vec![], vec![], vec![]);
    let mut audited = Vec::new();
    let mut touched = BTreeSet::new();
    for answer in answers {
        // A row that is gone bears no token.
        let found = found.get(&answer.id).filter(|found| found.task == answer.task).unwrap_or(&gone);
        let settlement = match meaning(answer, found.token.as_deref(), &found.status, found.keyed) {
            Meaning::Write(settlement) => settlement,
            Meaning::Said => {
                settled.written += 1;
                continue;
            }
            Meaning::Fenced => {
                settled.fenced.push(answer.id);
                continue;
            }
            Meaning::Duplicate => {
                settled.duplicates.push(answer.id);
                audited.push(duplicate_statement(audit, answer));
                continue;
            }
        };
        settled.written += 1;
        let from = match (&*settlement, found.status.as_str()) {
            (Settlement::Sent { .. }, _) => &mut accepted,
            (_, "sending") => &mut answered,
            _ => &mut late,
        };
        from.push(answer.instead(settlement.into_owned()));
        if found.status != "sending" {
            settled.late += 1;
            touched.insert(answer.task);
        }
    }
    let mut statements = Vec::new();
    if !touched.is_empty() {
        statements.push(format!("UPDATE {task} SET {UNFROZEN} WHERE id IN ({})", list(&touched)));
    }
    for (answers, from) in [(accepted, "<> 'sent'"), (answered, "= 'sending'"), (late, "= 'unknown'")] {
        statements.extend(groups(answers.iter()).iter().map(|group| settle_statement(tables, group, from)));
    }
    statements.extend(audited);
    if !statements.is_empty() {
        connection.run(&format!("{}; COMMIT", statements.join("; ")))?;
    }
    // Without anything to write the locks go when the work ends.
    Ok(settled)
}

/// Audits an acceptance that finds another token on its row; once, however often the answer comes.
fn duplicate_statement(audit: &str, answer: &Answer) -> String {
    let why = fitted(&duplicate(answer), REASON_MOST);
    format!(
        "INSERT INTO {audit} (who, what, task_id, target_id, why) \
         SELECT {}, 'duplicate', {task}, {target}, {why} FROM (SELECT 1) once WHERE NOT EXISTS \
         (SELECT 1 FROM {audit} WHERE task_id = {task} AND target_id = {target} AND what = 'duplicate' AND why = {why})",
        quote(OURSELVES),
        task = answer.task,
        target = answer.id,
    )
}

impl Answer {
    /// The same answer, with another conclusion.
    fn instead(&self, settlement: Settlement) -> Self {
        Self { task: self.task, id: self.id, token: self.token, in_doubt: self.in_doubt, settlement }
    }
}
