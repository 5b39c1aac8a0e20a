//! What a server says of itself: the facts that `check` judges. The statements that it has explained are the very ones that
//! runs use. Only reads.

use std::time::SystemTime;

use super::grants;
use super::recover::{left_by_dead_runs, stray_tasks, tasks_having, unfinished_tasks};
use super::suppression::suppressed;
use super::*;
use crate::store::facts::{Flavour, Plan, PlanStep, ServerFacts, TableFacts};
use crate::trouble::Kind;

/// What is asked for of a session of ours. `tx_` is how older servers, and MariaDB, call what is `transaction_` elsewhere.
const VARIABLES: [&str; 24] = [
    "aurora_version",
    "autocommit",
    "binlog_format",
    "character_set_connection",
    "group_replication_group_name",
    "group_replication_single_primary_mode",
    "innodb_flush_log_at_trx_commit",
    "innodb_lock_wait_timeout",
    "innodb_read_only",
    "lock_wait_timeout",
    "log_bin",
    "max_allowed_packet",
    "read_only",
    "sql_mode",
    "super_read_only",
    "sync_binlog",
    "time_zone",
    "transaction_isolation",
    "transaction_read_only",
    "tx_isolation",
    "tx_read_only",
    "version",
    "wait_timeout",
    "wsrep_on",
];

/// What there is to see; or a word in `unseen`, if the server is there and does not tell.
fn seen<T>(facts: &mut ServerFacts, looked: Result<T>) -> Result<Option<T>> {
    match looked {
        Ok(seen) => Ok(Some(seen)),
        Err(error) if Trouble::kind_of(&error) == Some(Kind::TryLater) => Err(error),
        Err(error) => {
            facts.unseen.push(format!("{error:#}"));
            Ok(None)
        }
    }
}

/// Errors: those of connecting. What cannot be looked at after that is told in `unseen`.
pub fn examine(settings: &Settings) -> Result<ServerFacts> {
    let mut first = MySql::connect(settings)?;
    let mut facts = ServerFacts {
        place: settings.place.clone(),
        database: settings.database.clone(),
        claim: settings.claim,
        ..ServerFacts::default()
    };
    first.look_at_server(&mut facts)?;
    match MySql::connect(settings) {
        Ok(mut second) => {
            for store in [&mut first, &mut second] {
                let who = seen(&mut facts, store.who_answers())?;
                facts.answered.extend(who);
            }
        }
        Err(error) => facts.unseen.push(format!("a second connection: {error:#}")),
    }
    let schema = first.schema();
    facts.schema = seen(&mut facts, schema)?.map(|schema| schema.version);
    first.look_at_rights(&mut facts)?;
    // Where no version is written, some may be there all the same.
    if matches!(facts.schema, Some(0 | migrations::VERSION)) {
        first.look_at_tables(&mut facts)?;
    }
    if facts.schema == Some(migrations::VERSION) {
        first.look_at_tasks(&mut facts)?;
        facts.plans = first.plans(&facts.version);
    }
    Ok(facts)
}

impl MySql {
    fn who_answers(&mut self) -> Result<String> {
        let row = self
            .read("ask who answers", "SELECT CONCAT(@@hostname, ':', @@port, ' (', @@server_id, ')')")?
            .pop();
        Ok(row.map_or_else(String::new, |mut row| row.word()))
    }

    /// The rows of one look; none, and a word in `unseen`, when this user may not take it. Errors: the server is away, and each
    /// further look would wait for it.
    fn look(&mut self, facts: &mut ServerFacts, what: &'static str, text: &str) -> Result<Vec<Cells>> {
        let rows = self.read(what, text);
        seen(facts, rows).map(Option::unwrap_or_default)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "it is this host's clock that is compared with the database's"
    )]
    fn look_at_server(&mut self, facts: &mut ServerFacts) -> Result<()> {
        let names = list(VARIABLES.map(quote));
        let text = format!("SHOW VARIABLES WHERE Variable_name IN ({names})");
        for mut row in self.look(facts, "read the server's variables", &text)? {
            facts.variables.insert(row.word().to_lowercase(), row.word());
        }
        // A variable like the others, but asked for in these words a proxy tells its own name.
        let comment = self.look(facts, "ask who answers", "select @@version_comment limit 1")?.pop();
        facts
            .variables
            .insert("version_comment".into(), comment.map_or_else(String::new, |mut row| row.word()));
        let variable = |name: &str| facts.variables.get(name).map_or("", String::as_str);
        let (version, comment) = (variable("version").to_owned(), variable("version_comment"));
        facts.number = connection::number_of(&version);
        facts.flavour = match &version {
            _ if !variable("aurora_version").is_empty() => Flavour::Aurora,
            _ if version.contains("TiDB") => Flavour::TiDb,
            _ if version.contains("MariaDB") => Flavour::MariaDb,
            _ if comment.contains("Percona") => Flavour::Percona,
            _ => Flavour::MySql,
        };
        facts.version = version;

        let begun = self.connection.session();
        let text = "SELECT LEFT(CONCAT(@@hostname, ':', @@port), 191), CURRENT_USER(), CONNECTION_ID()";
        if let Some(mut row) = self.look(facts, "ask who answers", text)?.pop() {
            (facts.server, facts.user) = (row.word(), row.word());
            // What begins a session has 32 bits of its number.
            let session = row.maybe::<u64>().ok().flatten().map(|id| id as u32);
            facts.relayed = facts.flavour != Flavour::TiDb && begun.is_some() && session != begun;
        }

        let since = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis() as i64);
        let before = since();
        let now = self.now();
        facts.now = seen(facts, now)?;
        if let Some(now) = facts.now {
            let (after, now) = (since(), now.timestamp_millis());
            // Within the way there and back, nobody can tell.
            facts.ahead = if now < before { before - now } else { (after - now).min(0) };
        }
        // It takes PROCESS, which this user had better not have: no word if it cannot be read.
        let text =
            "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'";
        if let Ok(mut rows) = self.read("read the length of the history", text) {
            facts.history = rows.pop().and_then(|mut row| row.maybe().ok().flatten());
        }
        Ok(())
    }

    fn look_at_rights(&mut self, facts: &mut ServerFacts) -> Result<()> {
        let roles = if facts.flavour == Flavour::MariaDb || facts.number < (8, 0, 0) {
            // MariaDB shows what comes by the role in use, and before 8.0 there were none.
            None
        } else {
            let row = self.look(facts, "ask for roles", "SELECT CURRENT_ROLE()")?.pop();
            row.map(|mut row| row.word()).filter(|roles| !matches!(roles.as_str(), "" | "NONE"))
        };
        let using = roles.map_or_else(String::new, |roles| format!(" FOR CURRENT_USER() USING {roles}"));
        let mut lines = Vec::new();
        let rows = self.look(facts, "read the user's rights", &format!("SHOW GRANTS{using}"))?;
        lines.extend(rows.into_iter().map(|mut row| row.word()));
        facts.grants = (!lines.is_empty()).then(|| grants::read(&lines, &facts.database));
        let text = format!("SELECT server FROM {}", self.tables.installation);
        if facts.schema.is_some_and(|version| version > 0)
            && let Some(mut row) = self.look(facts, "read whose database it is", &text)?.pop()
        {
            facts.made_on = row.text();
        }
        Ok(())
    }

    fn look_at_tables(&mut self, facts: &mut ServerFacts) -> Result<()> {
        let prefix = self.tables.prefix.clone();
        let names = migrations::tables().into_iter().map(|table| format!("{prefix}{}", table.name));
        let ours = format!("IN ({})", list(names.map(|name| quote(&name))));
        let of = |column: &str| format!("TABLE_SCHEMA = DATABASE() AND {column} {ours}");
        let text = format!(
            "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE {} AND TABLE_TYPE = 'BASE TABLE'",
            of("TABLE_NAME")
        );
        for mut row in self.look(facts, "look at the tables", &text)? {
            let (name, engine) = (row.word(), row.word());
            facts.tables.insert(name, TableFacts { engine, ..TableFacts::default() });
        }
        let text = format!(
            "SELECT TABLE_NAME, COLUMN_NAME, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS WHERE {}",
            of("TABLE_NAME")
        );
        for mut row in self.look(facts, "look at the columns", &text)? {
            let (name, column, set) = (row.word(), row.word(), row.text().zip(row.text()));
            facts.tables.entry(name).or_default().columns.insert(column, set);
        }
        let text = format!(
            "SELECT TABLE_NAME, INDEX_NAME, NON_UNIQUE, COLUMN_NAME FROM information_schema.STATISTICS WHERE {} \
             ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
            of("TABLE_NAME")
        );
        for mut row in self.look(facts, "look at the indexes", &text)? {
            let (name, index, not_unique, column) = (row.word(), row.word(), row.word(), row.word());
            let table = facts.tables.entry(name).or_default();
            let (columns, unique) = table.indexes.entry(index).or_default();
            if !columns.is_empty() {
                columns.push_str(", ");
            }
            columns.push_str(&column);
            *unique = not_unique == "0";
        }
        let text = format!(
            "SELECT EVENT_OBJECT_TABLE, TRIGGER_NAME FROM information_schema.TRIGGERS \
             WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE {ours} ORDER BY TRIGGER_NAME"
        );
        for mut row in self.look(facts, "look for triggers", &text)? {
            let (name, trigger) = (row.word(), row.word());
            facts.tables.entry(name).or_default().triggers.push(trigger);
        }
        for (table, schema) in
            [("TABLE_NAME", "TABLE_SCHEMA"), ("REFERENCED_TABLE_NAME", "REFERENCED_TABLE_SCHEMA")]
        {
            let text = format!(
                "SELECT {table}, CONSTRAINT_NAME FROM information_schema.KEY_COLUMN_USAGE \
                 WHERE {schema} = DATABASE() AND {table} {ours} AND REFERENCED_TABLE_NAME IS NOT NULL"
            );
            for mut row in self.look(facts, "look for foreign keys", &text)? {
                let (name, key) = (row.word(), row.word());
                let keys = &mut facts.tables.entry(name).or_default().foreign_keys;
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        Ok(())
    }

    fn look_at_tasks(&mut self, facts: &mut ServerFacts) -> Result<()> {
        let text = format!(
            "SELECT channel, COUNT(*) FROM {} FORCE INDEX (k_status) WHERE status IN ('draft', 'pending', 'paused') \
             GROUP BY channel",
            self.tables.task
        );
        for mut row in self.look(facts, "look at the tasks' channels", &text)? {
            let (channel, count) = (row.word(), row.maybe().ok().flatten().unwrap_or(0));
            facts.channels.insert(channel, count);
        }
        Ok(())
    }

    /// Every statement of a run that looks for rows, explained for tasks that are not there.
    fn plans(&mut self, version: &str) -> Vec<Plan> {
        let tables = Rc::clone(&self.tables);
        let Tables { prefix, task, target, .. } = &*tables;
        let none: &[TaskId] = &[0, 1];
        let (of_task, of_target) = (format!("{prefix}task"), format!("{prefix}task_target"));
        let by_status = &["k_task_status"][..];
        let mut asked = vec![
            ("due", "t".to_owned(), &["k_status"][..], due_tasks(&tables, &["none"], none)),
            ("due", of_target.clone(), &["k_task_status", "k_task_retry"], looks_for_work(target, none)),
            ("strays", "t".to_owned(), &["k_status"], stray_tasks(&tables, &["none"])),
            ("recover", of_task, &["k_status"], unfinished_tasks(task, None)),
            ("recover", of_target.clone(), by_status, left_by_dead_runs(target, none)),
            ("recover", of_target.clone(), by_status, tasks_having(target, none, OPEN)),
            ("promote", of_target.clone(), &["k_task_retry"], due_retries(target, 0)),
            (
                "claim (update)",
                of_target.clone(),
                by_status,
                stamp_pending(target, 0, "status = 'processing'", 10),
            ),
            ("claim (update)", of_target.clone(), by_status, claimed_with(target, 0, Uuid::nil())),
            ("begin", "s".to_owned(), &["u_folded_channel"], {
                format!("SELECT {} FROM {target} WHERE id IN (0, 1)", suppressed(&tables, "none"))
            }),
            ("close", of_target.clone(), by_status, probes(target, 0, &["pending", "sending", ""])),
        ];
        if connection::has_skip_locked(version) {
            asked.push(("claim (skip locked)", of_target, by_status, lock_pending(target, 0, 10)));
        }
        asked
            .into_iter()
            .map(|(about, table, indexes, text)| Plan { about, table, indexes, steps: self.explain(&text) })
            .collect()
    }

    fn explain(&mut self, text: &str) -> Result<Vec<PlanStep>, String> {
        let rows = self
            .read("explain a statement", &format!("{EXPLAIN} {text}"))
            .map_err(|error| format!("{error:#}"))?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let [table, access, index, extra] =
                    ["table", "type", "key", "Extra"].map(|name| row.peek(name));
                PlanStep { table, access, index, rows: row.peek("rows").parse().unwrap_or(0), extra }
            })
            .collect())
    }
}
