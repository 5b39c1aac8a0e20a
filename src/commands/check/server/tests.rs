//! Each warning by facts: of servers that are at hand, and of those that are not.

use std::collections::BTreeMap;

use chrono::DateTime;

use super::super::State;
use super::*;
use crate::store::facts::PlanStep;

/// A server that nothing is wrong with, with the rights of docs/applications.md.
fn healthy() -> ServerFacts {
    let variables = [
        ("autocommit", "ON"),
        ("binlog_format", "MIXED"),
        ("character_set_connection", "utf8mb4"),
        ("innodb_flush_log_at_trx_commit", "1"),
        ("innodb_lock_wait_timeout", "5"),
        ("innodb_read_only", "OFF"),
        ("lock_wait_timeout", "5"),
        ("log_bin", "ON"),
        ("max_allowed_packet", "16777216"),
        ("read_only", "OFF"),
        ("sql_mode", "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"),
        ("sync_binlog", "1"),
        ("time_zone", "+00:00"),
        ("tx_isolation", "READ-COMMITTED"),
        ("tx_read_only", "OFF"),
        ("version_comment", "Debian 12"),
        ("wait_timeout", "60"),
        ("wsrep_on", "OFF"),
    ];
    let grants = NEEDED.iter().map(|(table, privileges)| Grant {
        privileges: privileges.iter().map(|word| (*word).to_owned()).collect(),
        on: On::Table(format!("batch_{table}")),
        grantable: false,
    });
    let tables = migrations::tables().into_iter().map(|form| {
        let columns = form.columns.into_iter().map(|column| {
            let text = column.text.map(|(set, collation)| {
                let collation = collation.unwrap_or_else(|| format!("{set}_general_ci"));
                (set, collation)
            });
            (column.name, text)
        });
        let indexes = form.indexes.into_iter().map(|index| (index.name, (index.columns, index.unique)));
        let table = TableFacts {
            engine: "InnoDB".into(),
            columns: columns.collect(),
            indexes: indexes.collect(),
            ..TableFacts::default()
        };
        (format!("batch_{}", form.name), table)
    });
    ServerFacts {
        place: "db.internal:3306".into(),
        database: "shop".into(),
        version: "10.11.19-MariaDB-log".into(),
        flavour: Flavour::MariaDb,
        number: (10, 11, 19),
        variables: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        server: "db1:3306".into(),
        answered: vec!["db1:3306 (1)".into(), "db1:3306 (1)".into()],
        now: DateTime::from_timestamp_millis(1_700_000_000_000),
        history: Some(12),
        user: "batch_send@%".into(),
        grants: Some(grants.collect()),
        schema: Some(VERSION),
        made_on: Some("db1:3306".into()),
        tables: tables.collect(),
        plans: vec![plan("ref", "k_task_status", "Using where; Using index")],
        ..ServerFacts::default()
    }
}

fn plan(access: &str, index: &str, extra: &str) -> Plan {
    let table = "batch_task_target".to_owned();
    let step = PlanStep {
        table: table.clone(),
        access: access.into(),
        index: index.into(),
        rows: 300_000,
        extra: extra.into(),
    };
    Plan { about: "claim", table, indexes: &["k_task_status"], steps: Ok(vec![step]) }
}

/// The one finding that is not ok once the facts are changed so.
#[track_caller]
fn one(change: impl FnOnce(&mut ServerFacts)) -> Finding {
    let mut facts = healthy();
    change(&mut facts);
    let mut bad = judge(&facts, "batch_");
    bad.retain(|finding| finding.state != State::Ok);
    assert_eq!(bad.len(), 1, "{bad:#?}");
    bad.remove(0)
}

#[track_caller]
fn with(variables: &[(&str, &str)]) -> Finding {
    one(|facts| {
        facts
            .variables
            .extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    })
}

#[track_caller]
fn is(finding: &Finding, what: What, state: State, words: &[&str]) {
    assert_eq!((finding.what, finding.state), (what, state), "{finding:?}");
    let text = format!("{} {}", finding.detail, finding.way_out.as_deref().unwrap_or_default());
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

#[test]
fn a_healthy_server_is_told_so() {
    let findings = judge(&healthy(), "batch_");
    let bad: Vec<_> = findings.iter().filter(|finding| finding.state != State::Ok).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(findings.len() >= 14, "{findings:#?}");
    assert_eq!(findings[0].detail, "MariaDB 10.11.19-MariaDB-log at db.internal:3306, database shop");
}

#[test]
fn old_and_unknown_servers() {
    for (flavour, number, state) in [
        (Flavour::MySql, (5, 6, 51), State::Error),
        (Flavour::MySql, (5, 7, 0), State::Ok),
        (Flavour::Aurora, (8, 0, 28), State::Ok),
        (Flavour::Percona, (5, 6, 40), State::Error),
        (Flavour::MariaDb, (10, 2, 44), State::Error),
        (Flavour::MariaDb, (10, 3, 0), State::Ok),
        (Flavour::TiDb, (8, 0, 11), State::Warning),
    ] {
        let finding = version(&ServerFacts { flavour, number, ..healthy() });
        assert_eq!(finding.state, state, "{flavour:?} {number:?}");
    }
}

#[test]
fn a_server_that_takes_no_writes() {
    for name in ["read_only", "super_read_only", "innodb_read_only", "transaction_read_only"] {
        is(&with(&[(name, "ON")]), What::ReadOnly, State::Error, &[name, "database_url"]);
        is(&with(&[(name, "1")]), What::ReadOnly, State::Error, &[name]);
    }
    is(&with(&[("read_only", "NO_LOCK_NO_ADMIN")]), What::ReadOnly, State::Error, &["read_only"]);
}

#[test]
fn commits_that_may_be_lost() {
    let name = "innodb_flush_log_at_trx_commit";
    is(&with(&[(name, "2")]), What::Durability, State::Warning, &["power failure", "sent twice"]);
    is(&with(&[(name, "0")]), What::Durability, State::Warning, &["crash of the server", "sent twice"]);
    is(&one(|facts| drop(facts.variables.remove(name))), What::Durability, State::Warning, &["does not say"]);
    is(&with(&[("sync_binlog", "0")]), What::BinaryLog, State::Warning, &["sync_binlog is 0", "sent twice"]);
    is(&with(&[("sync_binlog", "1000")]), What::BinaryLog, State::Warning, &["sync_binlog is 1000"]);
    is(&with(&[("binlog_format", "STATEMENT")]), What::BinaryLog, State::Error, &["1665", "MIXED"]);
    // Without a binary log its settings mean nothing.
    let mut facts = healthy();
    for (name, value) in [("log_bin", "OFF"), ("sync_binlog", "0"), ("binlog_format", "STATEMENT")] {
        facts.variables.insert(name.into(), value.into());
    }
    assert_eq!(binary_log(&facts).state, State::Ok);
}

#[test]
fn clusters() {
    is(&with(&[("wsrep_on", "ON")]), What::Cluster, State::Warning, &["Galera", "same node"]);
    let forced = one(|facts| {
        facts.variables.insert("wsrep_on".into(), "ON".into());
        facts.claim = ClaimForm::SkipLocked;
    });
    is(&forced, What::Cluster, State::Error, &["skip-locked"]);
    let group = ("group_replication_group_name", "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa");
    let single = "group_replication_single_primary_mode";
    is(&with(&[group, (single, "OFF")]), What::Cluster, State::Warning, &["several primaries"]);
    let mut facts = healthy();
    facts.variables.extend([group, (single, "ON")].map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(cluster(&facts).unwrap().state, State::Ok);
}

#[test]
fn somebody_in_between() {
    is(&with(&[("version_comment", "(ProxySQL)")]), What::Proxy, State::Warning, &["ProxySQL", "replica"]);
    is(
        &one(|facts| facts.version = "10.11.8-MariaDB-maxscale".into()),
        What::Proxy,
        State::Warning,
        &["MaxScale"],
    );
    is(&one(|facts| facts.relayed = true), What::Proxy, State::Warning, &["a proxy"]);
    let two = one(|facts| facts.answered[1] = "db2:3306 (2)".into());
    is(&two, What::Proxy, State::Error, &["db1:3306 (1) and db2:3306 (2)", "the one server"]);
    let moved = one(|facts| facts.made_on = Some("old:3306".into()));
    is(
        &moved,
        What::Server,
        State::Warning,
        &["old:3306", "UPDATE batch_installation SET server = 'db1:3306'"],
    );
}

#[test]
fn a_session_that_is_not_as_it_set_itself() {
    for (name, value) in [
        ("tx_isolation", "REPEATABLE-READ"),
        ("time_zone", "SYSTEM"),
        ("sql_mode", ""),
        ("wait_timeout", "28800"),
        ("innodb_lock_wait_timeout", "50"),
        ("character_set_connection", "latin1"),
        ("autocommit", "OFF"),
    ] {
        is(&with(&[(name, value)]), What::Session, State::Warning, &["SET"]);
    }
    is(&with(&[("max_allowed_packet", "1048576")]), What::Packet, State::Warning, &["1048576"]);
}

#[test]
fn clocks_and_history() {
    is(&one(|facts| facts.ahead = 90_400), What::Clock, State::Warning, &["90.4 s ahead of", "NTP"]);
    is(&one(|facts| facts.ahead = -2_001), What::Clock, State::Warning, &["2.0 s behind"]);
    assert_eq!(clock(&ServerFacts { ahead: 2_000, ..healthy() }).unwrap().state, State::Ok);
    is(
        &one(|facts| facts.history = Some(2_000_000)),
        What::History,
        State::Warning,
        &["2000000", "INNODB_TRX"],
    );
    // Not readable: no word about it.
    assert!(history(&ServerFacts { history: None, ..healthy() }).is_none());
}

#[test]
fn rights_that_are_missing_and_rights_that_are_too_much() {
    let lacking = one(|facts| {
        let grants = facts.grants.as_mut().unwrap();
        grants.iter_mut().for_each(|grant| grant.privileges.retain(|privilege| privilege != "UPDATE"));
    });
    let statement = "GRANT UPDATE ON shop.batch_task_target TO 'batch_send'@'%'";
    is(&lacking, What::Rights, State::Error, &["UPDATE on batch_task;", statement]);
    for privilege in TOO_MUCH {
        let power = one(|facts| {
            let grant = Grant { privileges: vec![privilege.into()], on: On::Everything, grantable: false };
            facts.grants.as_mut().unwrap().push(grant);
        });
        is(&power, What::Power, State::Warning, &[privilege, "docs/applications.md"]);
    }
    is(
        &one(|facts| facts.grants.as_mut().unwrap()[0].grantable = true),
        What::Power,
        State::Warning,
        &["GRANT OPTION"],
    );
    // All rights on the one database: `migrate` needs some of them.
    let all = Grant { privileges: vec!["ALL PRIVILEGES".into()], on: On::Database, grantable: false };
    let findings = rights(&ServerFacts { grants: Some(vec![all]), ..healthy() }, "batch_");
    assert!(findings.len() == 1 && findings[0].detail.contains("`migrate` works"), "{findings:?}");
    assert!(rights(&healthy(), "batch_")[0].detail.contains("CREATE and ALTER"));
}

#[test]
fn tables_that_are_not_as_they_were_made() {
    let engine = one(|facts| facts.tables.get_mut("batch_pace").unwrap().engine = "MyISAM".into());
    is(&engine, What::Tables, State::Error, &["MyISAM", "ALTER TABLE batch_pace ENGINE=InnoDB"]);
    let collation = one(|facts| {
        let columns = &mut facts.tables.get_mut("batch_task_target").unwrap().columns;
        columns.insert("recipient".into(), Some(("utf8mb4".into(), "utf8mb4_general_ci".into())));
    });
    let modify = "MODIFY recipient VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL";
    is(&collation, What::Tables, State::Error, &["utf8mb4_general_ci", modify]);
    let set = one(|facts| {
        let columns = &mut facts.tables.get_mut("batch_task").unwrap().columns;
        columns.insert("name".into(), Some(("utf8mb3".into(), "utf8mb3_general_ci".into())));
    });
    is(&set, What::Tables, State::Error, &["utf8mb3", "MODIFY name VARCHAR(191) NOT NULL"]);
    let column = one(|facts| drop(facts.tables.get_mut("batch_task").unwrap().columns.remove("halt_at")));
    is(&column, What::Tables, State::Error, &["halt_at", "ADD halt_at TIMESTAMP(3) NULL DEFAULT NULL"]);
    is(
        &one(|facts| drop(facts.tables.remove("batch_audit"))),
        What::Tables,
        State::Error,
        &["migrate --print"],
    );
}

#[test]
fn indexes_and_plans() {
    let change = |indexes: fn(&mut BTreeMap<String, (String, bool)>)| {
        one(|facts| indexes(&mut facts.tables.get_mut("batch_task_target").unwrap().indexes))
    };
    let gone = change(|indexes| drop(indexes.remove("k_task_status")));
    is(
        &gone,
        What::Indexes,
        State::Error,
        &["ALTER TABLE batch_task_target ADD KEY k_task_status (task_id, status)"],
    );
    let other = change(|indexes| drop(indexes.insert("k_task_status".into(), ("task_id".into(), false))));
    is(
        &other,
        What::Indexes,
        State::Error,
        &["DROP KEY k_task_status, ADD KEY k_task_status (task_id, status)"],
    );
    let repeats = change(|indexes| indexes.get_mut("u_task_recipient").unwrap().1 = false);
    is(
        &repeats,
        What::Indexes,
        State::Error,
        &["not unique", "ADD UNIQUE KEY u_task_recipient (task_id, recipient)"],
    );

    for (access, index, extra, word) in [
        ("ALL", "", "Using where", "all of batch_task_target"),
        ("index", "k_task_status", "Using where", "all of batch_task_target"),
        ("index", "PRIMARY", "Using where", "all of batch_task_target"),
        ("range", "PRIMARY", "Using where", "uses PRIMARY"),
        ("index_merge", "k_task_status,k_task_retry", "Using intersect", "uses k_task_status,k_task_retry"),
        ("ref", "k_task_status", "Using where; Using filesort", "sorts"),
    ] {
        let finding = one(|facts| facts.plans = vec![plan(access, index, extra)]);
        is(&finding, What::Plans, State::Error, &["claim: ", word]);
    }
    // A table that has next to nothing in it.
    let mut small = plan("index", "k_task_status", "Using where");
    small.steps.as_mut().unwrap()[0].rows = 3;
    assert_eq!(plans(&[small], false).state, State::Ok);
    let why = "Key 'k_task_status' doesn't exist in table 'batch_task_target'";
    is(&one(|facts| facts.plans[0].steps = Err(why.into())), What::Plans, State::Error, &[why]);
    // Told already by the finding about the index.
    let mut facts = healthy();
    facts.tables.get_mut("batch_task_target").unwrap().indexes.remove("k_task_status");
    facts.plans[0].steps = Err(why.into());
    let mut bad = judge(&facts, "batch_");
    bad.retain(|finding| finding.state != State::Ok);
    assert_eq!(bad.len(), 2, "{bad:#?}");
    is(&bad[1], What::Plans, State::Warning, &["not looked at before"]);
    assert!(!bad[1].detail.contains("k_task_status"), "{bad:#?}");
    let refused = one(|facts| facts.plans[0].steps = Err("EXPLAIN is not spoken here".into()));
    is(&refused, What::Plans, State::Warning, &["not spoken here"]);
    let silent = one(|facts| facts.plans[0].steps = Ok(vec![PlanStep::default()]));
    is(&silent, What::Plans, State::Warning, &["nothing about batch_task_target"]);
}

#[test]
fn what_others_do_to_our_tables_is_told() {
    let trigger = one(|facts| facts.tables.get_mut("batch_task").unwrap().triggers.push("shop_audit".into()));
    is(&trigger, What::Triggers, State::Warning, &["shop_audit"]);
    let key = one(|facts| facts.tables.get_mut("batch_task").unwrap().foreign_keys.push("fk_task".into()));
    is(&key, What::ForeignKeys, State::Warning, &["fk_task"]);
    is(&one(|facts| facts.unseen.push("cannot read".into())), What::Unseen, State::Warning, &["cannot read"]);
    is(&one(|facts| facts.schema = Some(0)), What::Schema, State::Error, &["migrate"]);
}
