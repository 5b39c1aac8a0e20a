//! What a MySQL or MariaDB server said of itself, judged: what of it the promise stands on, and what only costs time. Pure, so that a
//! warning about a server that is not at hand is tested by its facts.

use super::file::triggers;
use super::{Finding, State, What, schema, unseen};
use crate::store::ClaimForm;
use crate::store::facts::{Flavour, Grant, On, Plan, ServerFacts, TableFacts};
use crate::store::migrations::{self, ColumnForm, TableForm, VERSION};

/// Below it a group of answers may be too long for one statement.
const PACKET: u64 = 4 << 20;

/// Walking through so few rows by the right index may well be the best there is, and says nothing of many.
const FEW: u64 = 1_000;

/// Milliseconds between two clocks that nobody needs to care about.
const APART: i64 = 2_000;

/// Old versions of rows that are still kept. Claims were measured at half their speed with some tens of thousands.
const HISTORY: u64 = 100_000;

/// What `batch-send` does with each table, but for `migrate`. As docs/applications.md grants it.
const NEEDED: [(&str, &[&str]); 7] = [
    ("task", &["SELECT", "INSERT", "UPDATE"]),
    ("task_target", &["SELECT", "INSERT", "UPDATE"]),
    ("pace", &["SELECT", "INSERT", "UPDATE"]),
    ("audit", &["SELECT", "INSERT"]),
    ("suppression", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("installation", &["SELECT"]),
    ("migration", &["SELECT"]),
];

/// What `purge` does, by a user of its own. As docs/applications.md grants it.
const NEEDED_TO_PURGE: [(&str, &[&str]); 6] = [
    ("task", &["SELECT", "UPDATE", "DELETE"]),
    ("task_target", &["SELECT", "DELETE"]),
    ("audit", &["SELECT", "INSERT", "DELETE"]),
    ("pace", &["SELECT"]),
    ("installation", &["SELECT"]),
    ("migration", &["SELECT"]),
];

/// Rights on everything that nothing here needs, and that reach beyond our tables.
const TOO_MUCH: [&str; 8] = [
    "ALL PRIVILEGES",
    "SUPER",
    "FILE",
    "SHUTDOWN",
    "CREATE USER",
    "READ_ONLY ADMIN",
    "READ ONLY ADMIN",
    "SYSTEM_VARIABLES_ADMIN",
];

pub(super) fn judge(facts: &ServerFacts, prefix: &str) -> Vec<Finding> {
    let mut findings = vec![version(facts)];
    findings.extend(unseen(&facts.unseen));
    findings.extend(server(facts, prefix));
    findings.push(proxy(facts));
    findings.extend(cluster(facts));
    findings.push(read_only(facts));
    findings.push(durability(facts));
    findings.push(binary_log(facts));
    findings.extend(packet(facts));
    findings.push(session(facts));
    findings.extend(clock(facts));
    findings.extend(history(facts));
    findings.extend(rights(facts, prefix));
    findings.extend(facts.schema.map(|found| schema(found, missing_tables(facts, prefix).as_deref())));
    if facts.schema == Some(VERSION) {
        let purges = only_purges(facts, prefix);
        let (tables, indexes) = (tables(facts, prefix, purges), indexes(facts, prefix));
        let mended_first = tables.iter().chain(&indexes).any(|finding| finding.state == State::Error);
        findings.extend(tables.into_iter().chain(indexes));
        if !purges {
            findings.push(plans(&facts.plans, mended_first));
        }
        let of_all = |of: fn(&TableFacts) -> &Vec<String>| -> Vec<String> {
            let mut names: Vec<String> = facts.tables.values().flat_map(of).cloned().collect();
            names.sort();
            names.dedup();
            names
        };
        let (trigger_names, keys) = (of_all(|table| &table.triggers), of_all(|table| &table.foreign_keys));
        if !trigger_names.is_empty() {
            findings.push(triggers(&trigger_names));
        }
        if !keys.is_empty() {
            findings.push(Finding::warning(
                What::ForeignKeys,
                format!("foreign keys touch our tables: {}", keys.join(", ")),
                "drop them: what they lock meets leases and claims, and one that deletes takes with it that a message was sent",
            ));
        }
    }
    findings
}

fn variable<'a>(facts: &'a ServerFacts, name: &str) -> Option<&'a str> {
    facts.variables.get(name).map(String::as_str)
}

fn is_on(facts: &ServerFacts, name: &str) -> bool {
    variable(facts, name)
        .is_some_and(|value| !matches!(value.to_uppercase().as_str(), "OFF" | "0" | "NO" | ""))
}

fn number(facts: &ServerFacts, name: &str) -> Option<u64> {
    variable(facts, name)?.parse().ok()
}

fn version(facts: &ServerFacts) -> Finding {
    let ServerFacts { place, database, version, number, .. } = facts;
    let name = match facts.flavour {
        Flavour::MySql => "MySQL",
        Flavour::Percona => "Percona Server",
        Flavour::MariaDb => "MariaDB",
        Flavour::Aurora => "Aurora MySQL",
        Flavour::TiDb => "TiDB",
    };
    let text = format!("{name} {version} at {place}, database {database}");
    let oldest = match facts.flavour {
        Flavour::MariaDb => (10, 3, 0),
        Flavour::TiDb => {
            let way_out = "use MySQL or MariaDB; or try it first with tests/run --mysql URL";
            return Finding::warning(
                What::Database,
                format!("{text}: nobody has tried this server"),
                way_out,
            );
        }
        _ => (5, 7, 0),
    };
    if *number < oldest {
        let way_out = format!("use {name} {}.{} or newer", oldest.0, oldest.1);
        return Finding::error(What::Database, format!("{text}: too old"), way_out);
    }
    Finding::ok(What::Database, text)
}

fn server(facts: &ServerFacts, prefix: &str) -> Option<Finding> {
    let made_on = facts.made_on.as_ref()?;
    let here = &facts.server;
    if made_on == here {
        return Some(Finding::ok(What::Server, format!("{here}, where the tables were made")));
    }
    Some(Finding::warning(
        What::Server,
        format!(
            "the tables were made on {made_on}, and this is {here}: a copy beside the original would send everything again"
        ),
        format!(
            "see that no run uses {made_on} any more (a restored backup: docs/runbook.md); then \
             UPDATE {prefix}installation SET server = '{here}'"
        ),
    ))
}

fn proxy(facts: &ServerFacts) -> Finding {
    if let [first, second] = facts.answered.as_slice()
        && first != second
    {
        return Finding::error(
            What::Proxy,
            format!(
                "two connections reached two servers, {first} and {second}: what one of them wrote the other may not know"
            ),
            "let database_url name the one server that takes the writes",
        );
    }
    let words = format!("{} {}", facts.version, variable(facts, "version_comment").unwrap_or_default())
        .to_lowercase();
    let named = ["ProxySQL", "MaxScale"].into_iter().find(|name| words.contains(&name.to_lowercase()));
    match named {
        None if !facts.relayed => Finding::ok(What::Proxy, "none seen between here and the server"),
        named => Finding::warning(
            What::Proxy,
            format!(
                "{} stands between here and the server: it may answer from a replica, or repeat a statement by itself",
                named.unwrap_or("a proxy")
            ),
            "let this user's statements all go to the writer, unsplit and unrepeated, or connect to the server itself",
        ),
    }
}

fn cluster(facts: &ServerFacts) -> Option<Finding> {
    if is_on(facts, "wsrep_on") {
        let text = "a Galera node: its row locks are its own alone, and a commit may be refused at its end";
        if facts.claim == ClaimForm::SkipLocked {
            let way_out = "take `claim = \"skip-locked\"` out of [run]: skipping locked rows was seen to crash such nodes";
            return Some(Finding::error(What::Cluster, text, way_out));
        }
        let way_out = "let every host's database_url name the same node; claims use their other form here";
        return Some(Finding::warning(What::Cluster, text, way_out));
    }
    variable(facts, "group_replication_group_name").filter(|name| !name.is_empty())?;
    if is_on(facts, "group_replication_single_primary_mode") {
        return Some(Finding::ok(What::Cluster, "Group Replication with one primary"));
    }
    Some(Finding::warning(
        What::Cluster,
        "Group Replication with several primaries: row locks are each member's own, and a commit may be refused at its end",
        "let every host's database_url name the same member, or use single-primary mode",
    ))
}

fn read_only(facts: &ServerFacts) -> Finding {
    let names = ["innodb_read_only", "super_read_only", "read_only", "transaction_read_only", "tx_read_only"];
    let set: Vec<&str> = names.into_iter().filter(|name| is_on(facts, name)).collect();
    if set.is_empty() {
        return Finding::ok(What::ReadOnly, "it takes writes");
    }
    Finding::error(
        What::ReadOnly,
        format!("the server is read-only ({}): a replica, most likely", set.join(", ")),
        "let database_url name the server that takes the writes",
    )
}

/// What a commit that was answered and is gone means here.
const LOST: &str =
    "may lose commits that were answered: a message whose begin is lost after it left is sent twice";

fn durability(facts: &ServerFacts) -> Finding {
    match variable(facts, "innodb_flush_log_at_trx_commit") {
        Some("1") => Finding::ok(What::Durability, "innodb_flush_log_at_trx_commit is 1: commits last"),
        Some(other) => {
            let crash = if other == "0" {
                "a crash of the server or its host"
            } else {
                "a crash of its host, or a power failure,"
            };
            Finding::warning(
                What::Durability,
                format!("innodb_flush_log_at_trx_commit is {other}: {crash} {LOST}"),
                "set it to 1, here and in the server's configuration",
            )
        }
        None => Finding::warning(
            What::Durability,
            "the server does not say whether a commit is on disk before it is answered",
            "ask whoever runs it: the promise stands on commits that last",
        ),
    }
}

fn binary_log(facts: &ServerFacts) -> Finding {
    if !is_on(facts, "log_bin") {
        return Finding::ok(What::BinaryLog, "there is none");
    }
    let format = variable(facts, "binlog_format").unwrap_or("ROW").to_uppercase();
    if format == "STATEMENT" {
        return Finding::error(
            What::BinaryLog,
            "binlog_format is STATEMENT: InnoDB refuses every write of ours (READ COMMITTED, error 1665)",
            "set binlog_format to MIXED or ROW, here and in the server's configuration",
        );
    }
    match number(facts, "sync_binlog") {
        Some(1) | None => {
            Finding::ok(What::BinaryLog, format!("in {format} format, on disk with each commit"))
        }
        Some(other) => Finding::warning(
            What::BinaryLog,
            format!("sync_binlog is {other}: a crash of its host, or a power failure, {LOST}"),
            "set it to 1, here and in the server's configuration",
        ),
    }
}

fn packet(facts: &ServerFacts) -> Option<Finding> {
    let bytes = number(facts, "max_allowed_packet")?;
    Some(if bytes < PACKET {
        Finding::warning(
            What::Packet,
            format!(
                "max_allowed_packet is {bytes}: a large group of answers is refused, and written one by one"
            ),
            "set it to 16M or more",
        )
    } else {
        Finding::ok(What::Packet, format!("max_allowed_packet is {} MiB", bytes >> 20))
    })
}

/// Whether a session of ours is as we set it: something in between may swallow it.
fn session(facts: &ServerFacts) -> Finding {
    let isolation = variable(facts, "transaction_isolation").or_else(|| variable(facts, "tx_isolation"));
    let mut wrong = Vec::new();
    let mut expect = |name: &str, found: Option<&str>, expected: &str| {
        if let Some(found) = found.filter(|found| !found.eq_ignore_ascii_case(expected)) {
            wrong.push(format!("{name} is {found} and not {expected}"));
        }
    };
    expect("the isolation level", isolation, "READ-COMMITTED");
    expect("autocommit", variable(facts, "autocommit"), "ON");
    for (name, expected) in [
        ("time_zone", "+00:00"),
        ("character_set_connection", "utf8mb4"),
        ("innodb_lock_wait_timeout", "5"),
        ("lock_wait_timeout", "5"),
        ("wait_timeout", "60"),
    ] {
        expect(name, variable(facts, name), expected);
    }
    let strict = variable(facts, "sql_mode").is_none_or(|mode| mode.contains("STRICT_ALL_TABLES"));
    if !strict {
        wrong.push("sql_mode is not strict".into());
    }
    if wrong.is_empty() {
        return Finding::ok(
            What::Session,
            "as it sets itself: READ-COMMITTED, +00:00, utf8mb4, strict, five seconds for a lock",
        );
    }
    Finding::warning(
        What::Session,
        format!("a session is not as it set itself: {}", wrong.join(", ")),
        "see what stands between here and the server: a proxy that swallows SET, or a server that ignores it",
    )
}

fn clock(facts: &ServerFacts) -> Option<Finding> {
    facts.now?;
    let (apart, way) = (facts.ahead.abs(), if facts.ahead > 0 { "ahead of" } else { "behind" });
    if apart <= APART {
        return Some(Finding::ok(What::Clock, "this host's clock and the database's agree"));
    }
    Some(Finding::warning(
        What::Clock,
        format!(
            "this host's clock is {}.{} s {way} the database's: times in logs and signatures are this host's, schedules, hours and pace \
             are the database's",
            apart / 1000,
            apart % 1000 / 100
        ),
        "set both by NTP",
    ))
}

fn history(facts: &ServerFacts) -> Option<Finding> {
    let history = facts.history?;
    Some(if history > HISTORY {
        Finding::warning(
            What::History,
            format!(
                "{history} old changes are kept for a transaction that is still open: claims become slow"
            ),
            "end it: SELECT trx_mysql_thread_id, trx_started FROM information_schema.INNODB_TRX ORDER BY trx_started shows the oldest",
        )
    } else {
        Finding::ok(What::History, format!("{history} old changes wait to be purged"))
    })
}

// ---- rights ------------------------------------------------------------------------------------------------------

fn allows(grant: &Grant, privilege: &str) -> bool {
    grant.privileges.iter().any(|granted| granted == "ALL PRIVILEGES" || granted == privilege)
}

fn may(grants: &[Grant], table: &str, privilege: &str) -> bool {
    grants.iter().any(|grant| {
        let reaches = match &grant.on {
            On::Everything | On::Database => true,
            On::Table(name) => name == table,
        };
        reaches && allows(grant, privilege)
    })
}

/// By full name of the table, what of these rights is not granted.
fn missing(grants: &[Grant], prefix: &str, needed: &[(&str, &[&str])]) -> Vec<(String, String)> {
    let mut missing = Vec::new();
    for (name, needed) in needed {
        let table = format!("{prefix}{name}");
        let lacking: Vec<&str> =
            needed.iter().copied().filter(|privilege| !may(grants, &table, privilege)).collect();
        if !lacking.is_empty() {
            missing.push((table, lacking.join(", ")));
        }
    }
    missing
}

/// Whether this is the user that removes old tasks, and no other: it may do that, and not what runs do.
fn only_purges(facts: &ServerFacts, prefix: &str) -> bool {
    let lacks =
        |needed| facts.grants.as_ref().is_some_and(|grants| !missing(grants, prefix, needed).is_empty());
    facts.grants.is_some() && lacks(&NEEDED) && !lacks(&NEEDED_TO_PURGE)
}

fn rights(facts: &ServerFacts, prefix: &str) -> Vec<Finding> {
    let Some(grants) = &facts.grants else { return Vec::new() };
    let user = &facts.user;
    let missing = missing(grants, prefix, &NEEDED);
    let may = |table: &str, privilege: &str| may(grants, table, privilege);
    let migrates = ["CREATE", "ALTER", "INSERT", "UPDATE"].iter().all(|privilege| may("", privilege));
    let mut findings = vec![if missing.is_empty() {
        let also = if migrates {
            "`migrate` works, too"
        } else {
            "`migrate` needs another user, with CREATE and ALTER"
        };
        Finding::ok(What::Rights, format!("{user} may do what runs need; {also}"))
    } else if only_purges(facts, prefix) {
        Finding::warning(
            What::Rights,
            format!(
                "{user} may do what `batch-send purge` needs, and not what runs need: what only runs use is not looked at"
            ),
            "let runs go by another user, as docs/applications.md says; for `purge` this is the right one",
        )
    } else {
        let lacks: Vec<String> =
            missing.iter().map(|(table, rights)| format!("{rights} on {table}")).collect();
        let statements: Vec<String> = missing
            .iter()
            .map(|(table, rights)| {
                format!("GRANT {rights} ON {}.{table} TO {}", facts.database, quoted(user))
            })
            .collect();
        Finding::error(What::Rights, format!("{user} lacks {}", lacks.join("; ")), statements.join("; "))
    }];
    let everywhere = grants.iter().filter(|grant| grant.on == On::Everything);
    let mut much: Vec<&str> = everywhere
        .flat_map(|grant| &grant.privileges)
        .map(String::as_str)
        .filter(|privilege| TOO_MUCH.contains(privilege))
        .collect();
    if grants.iter().any(|grant| grant.grantable) {
        much.push("GRANT OPTION");
    }
    much.sort_unstable();
    much.dedup();
    if !much.is_empty() {
        findings.push(Finding::warning(
            What::Power,
            format!("{user} may do more than it needs: {}", much.join(", ")),
            "use a user of its own, with the rights that docs/applications.md lists",
        ));
    }
    findings
}

/// `app@localhost` as a statement names it.
fn quoted(user: &str) -> String {
    match user.rsplit_once('@') {
        Some((name, host)) => format!("'{}'@'{host}'", name.replace('\'', "''")),
        None => user.to_owned(),
    }
}

// ---- tables ------------------------------------------------------------------------------------------------------

/// `purges`: this user is one to whom the server shows only some of them.
fn tables(facts: &ServerFacts, prefix: &str, purges: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut forms = migrations::tables();
    if purges {
        forms.retain(|form| NEEDED_TO_PURGE.iter().any(|(name, _)| *name == form.name));
    }
    for TableForm { name, columns, .. } in &forms {
        let table = format!("{prefix}{name}");
        let Some(found) = facts.tables.get(&table) else {
            let way_out = "make it as `batch-send migrate --print --from 0` shows, or let this user see it";
            findings.push(
                Finding::error(What::Tables, "it is not there, or not to be seen by this user", way_out)
                    .about(&table),
            );
            continue;
        };
        if !found.engine.eq_ignore_ascii_case("InnoDB") {
            findings.push(
                Finding::error(
                    What::Tables,
                    format!("its engine is {}: nothing there is undone, and no row is locked", found.engine),
                    format!("ALTER TABLE {table} ENGINE=InnoDB"),
                )
                .about(&table),
            );
        }
        findings.extend(columns.iter().filter_map(|column| wrong_column(&table, found, column)));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            What::Tables,
            format!("{} tables of InnoDB, their texts compared as they must be", forms.len()),
        ));
    }
    findings
}

/// Where no version is written, though some of our tables are there: those that are not.
fn missing_tables(facts: &ServerFacts, prefix: &str) -> Option<Vec<String>> {
    let names = migrations::tables().into_iter().map(|table| format!("{prefix}{}", table.name));
    (!facts.tables.is_empty()).then(|| names.filter(|name| !facts.tables.contains_key(name)).collect())
}

fn wrong_column(table: &str, found: &TableFacts, expected: &ColumnForm) -> Option<Finding> {
    let ColumnForm { name, definition, text } = expected;
    let why = match (found.columns.get(name), text) {
        (None, _) => {
            let way_out = format!("ALTER TABLE {table} ADD {name} {definition}");
            return Some(
                Finding::error(What::Tables, format!("column {name} is not there"), way_out).about(table),
            );
        }
        (Some(_), None) => return None,
        (Some(None), Some(_)) => format!("column {name} is no text"),
        (Some(Some((set, collation))), Some((charset, compared))) => {
            if compared.as_ref().is_some_and(|compared| compared != collation) {
                let compared = compared.as_deref().unwrap_or_default();
                format!(
                    "column {name} is compared by {collation} and not by {compared}: two that differ may count as one"
                )
            } else if set != charset {
                format!(
                    "column {name} has the character set {set} and not {charset}: some texts do not fit in it"
                )
            } else {
                return None;
            }
        }
    };
    Some(
        Finding::error(What::Tables, why, format!("ALTER TABLE {table} MODIFY {name} {definition}"))
            .about(table),
    )
}

fn indexes(facts: &ServerFacts, prefix: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for TableForm { name, indexes, .. } in migrations::tables() {
        let table = format!("{prefix}{name}");
        let Some(found) = facts.tables.get(&table) else { continue };
        for index in indexes {
            let (name, columns) = (&index.name, &index.columns);
            let unique = if index.unique { "UNIQUE " } else { "" };
            let add = format!("ADD {unique}KEY {name} ({columns})");
            let (why, way_out) = match found.indexes.get(name) {
                Some((of, is_unique)) if of == columns && *is_unique == index.unique => continue,
                Some((of, is_unique)) => {
                    let kind = if *is_unique { "unique" } else { "not unique" };
                    let why = format!(
                        "index {name} is of ({of}), {kind}, and must be a {unique}KEY of ({columns})"
                    );
                    (why, format!("ALTER TABLE {table} DROP KEY {name}, {add}"))
                }
                None => (format!("index {name} is not there"), format!("ALTER TABLE {table} {add}")),
            };
            findings.push(Finding::error(What::Indexes, why, way_out).about(&table));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(What::Indexes, "as `migrate` makes them"));
    }
    findings
}

/// One line for all: they fail together. `mended_first`: it was told already that something of the tables or indexes is wrong.
fn plans(plans: &[Plan], mended_first: bool) -> Finding {
    // A statement that names what is not there cannot be explained, and says no more than was said of it.
    if mended_first && plans.iter().any(|plan| plan.steps.is_err()) {
        return Finding::warning(
            What::Plans,
            "not looked at before what is wrong with tables and indexes is mended",
            "mend that first, then check again",
        );
    }
    let told = |why: fn(&Plan) -> Option<String>| -> Vec<String> {
        plans.iter().filter_map(|plan| Some(format!("{}: {}", plan.about, why(plan)?))).collect()
    };
    let (slow, unsaid) = (told(why_slow), told(why_unsaid));
    if !slow.is_empty() {
        return Finding::error(
            What::Plans,
            format!("the server would walk through rows that it need not read: {}", slow.join("; ")),
            "see the findings about indexes first; then ANALYZE TABLE, or ask whoever knows this server's optimizer",
        );
    }
    if !unsaid.is_empty() {
        return Finding::warning(
            What::Plans,
            format!("the server does not say how it finds rows: {}", unsaid.join("; ")),
            "time a run on a large table before it is relied on",
        );
    }
    Finding::ok(
        What::Plans,
        format!("{} statements that look for rows find them by their index", plans.len()),
    )
}

fn why_unsaid(plan: &Plan) -> Option<String> {
    match &plan.steps {
        Ok(steps) if steps.iter().any(|step| step.table == plan.table && !step.access.is_empty()) => None,
        Ok(_) => Some(format!("nothing about {}", plan.table)),
        Err(why) => Some(why.clone()),
    }
}

fn why_slow(plan: &Plan) -> Option<String> {
    let steps = match &plan.steps {
        Ok(steps) => steps.iter().filter(|step| step.table == plan.table),
        // An index that is not there.
        Err(why) => return why.contains("doesn't exist").then(|| why.clone()),
    };
    steps
        .filter_map(|step| {
            let (index, access) = (&step.index, step.access.as_str());
            let few = access == "index" && step.rows <= FEW && plan.indexes.contains(&index.as_str());
            if matches!(access, "ALL" | "index") && !few {
                return Some(format!("walks through all of {} ({access})", step.table));
            }
            // Nothing is read at all where the server knows better.
            if !access.is_empty() && !plan.indexes.contains(&index.as_str()) {
                return Some(format!(
                    "uses {} for {}",
                    if index.is_empty() { "no index" } else { index },
                    step.table
                ));
            }
            // The tasks are few; they come in the order of their turn.
            let sorts = step.extra.contains("filesort") && step.table != "t";
            sorts.then(|| format!("sorts what it finds in {}, and locks it all", step.table))
        })
        .next()
}

#[cfg(test)]
mod tests;
