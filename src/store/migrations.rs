//! The numbered files of /migrations: which there are, and how one is cut into statements. Applying them, once and safely
//! beside another process, is each adapter's own work.

use uuid::Uuid;

/// The schema version that this binary speaks.
pub const VERSION: u32 = MIGRATIONS.len() as u32;

/// One step of the schema, in each database's words.
#[derive(Debug)]
pub struct Migration {
    /// From 1, without gaps.
    pub version: u32,
    pub name: &'static str,
    pub mysql: &'static str,
    pub sqlite: &'static str,
}

macro_rules! migration {
    ($version:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            mysql: include_str!(concat!("../../migrations/mysql/", $name, ".sql")),
            sqlite: include_str!(concat!("../../migrations/sqlite/", $name, ".sql")),
        }
    };
}

pub const MIGRATIONS: &[Migration] =
    &[migration!(1, "0001_create_tables"), migration!(2, "0002_holds_and_suppressions")];

/// The statements of one file, without comments, with the prefix of the tables put in. A statement ends with a semicolon at the
/// end of a line.
pub fn statements(sql: &str, prefix: &str) -> Vec<String> {
    let code: Vec<&str> = sql.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let ended = code.join("\n") + "\n";
    ended
        .split(";\n")
        .map(|statement| statement.trim().replace("{prefix}", prefix))
        .filter(|statement| !statement.is_empty())
        .collect()
}

/// The table that remembers which files were applied: the one that no file makes.
pub fn own_table(sqlite: bool, prefix: &str) -> String {
    let columns = match sqlite {
        true => {
            "version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL \
             DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER))) STRICT"
        }
        false => {
            "version INT UNSIGNED NOT NULL PRIMARY KEY, name VARCHAR(191) NOT NULL, checksum CHAR(36) NOT NULL, \
             applied_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)) \
             ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4"
        }
    };
    format!("CREATE TABLE IF NOT EXISTS {prefix}migration ({columns}")
}

/// What `migrate` does to tables of version `from` (0: there are none), in one text, for a person who may create and alter tables
/// where batch-send may not.
pub fn script(sqlite: bool, prefix: &str, from: u32) -> Vec<String> {
    let mut script = Vec::new();
    if from == 0 {
        script.push(own_table(sqlite, prefix));
    }
    for step in MIGRATIONS.iter().filter(|step| step.version > from) {
        let sql = if sqlite { step.sqlite } else { step.mysql };
        script.extend(statements(sql, prefix));
        script.push(format!(
            "INSERT INTO {prefix}migration (version, name, checksum) VALUES ({}, '{}', '{}')",
            step.version,
            step.name,
            checksum(sql)
        ));
    }
    if from > 0 {
        return script;
    }
    // The database makes the id: a text that is run in two places must not make one installation of them.
    let (id, server) = match sqlite {
        true => (
            "lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8' || \
             substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))",
            "''",
        ),
        false => ("UUID()", "LEFT(CONCAT(@@hostname, ':', @@port), 191)"),
    };
    script.push(format!("INSERT INTO {prefix}installation (one, id, server) VALUES (1, {id}, {server})"));
    script
}

/// A table as the files for MySQL make it; its name without the prefix.
#[derive(Debug)]
pub struct TableForm {
    pub name: String,
    pub columns: Vec<ColumnForm>,
    pub indexes: Vec<IndexForm>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct ColumnForm {
    pub name: String,
    /// All that follows the name.
    pub definition: String,
    /// Of a column of characters: its character set, and its collation where that matters.
    pub text: Option<(String, Option<String>)>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct IndexForm {
    pub name: String,
    pub columns: String,
    pub unique: bool,
}

/// Every table that the files for MySQL make, read from them: what tables must look like is written down once.
pub fn tables() -> Vec<TableForm> {
    let statements = MIGRATIONS.iter().flat_map(|migration| statements(migration.mysql, ""));
    let mut tables: Vec<TableForm> = statements.filter_map(|statement| table(&statement)).collect();
    tables.push(TableForm { name: "migration".into(), columns: Vec::new(), indexes: Vec::new() });
    tables
}

fn table(statement: &str) -> Option<TableForm> {
    let rest = statement.strip_prefix("CREATE TABLE IF NOT EXISTS ")?;
    let (name, lines) = rest.split_once(" (\n")?;
    let (mut columns, mut indexes) = (Vec::new(), Vec::new());
    for line in lines.lines().map(|line| line.trim().trim_end_matches(',')) {
        let unique = line.starts_with("UNIQUE KEY ");
        if let Some(key) = line.strip_prefix("UNIQUE ").unwrap_or(line).strip_prefix("KEY ") {
            let (name, of) = key.split_once(" (")?;
            indexes.push(IndexForm { name: name.into(), columns: of.trim_end_matches(')').into(), unique });
        } else if let Some((name, definition)) = line.split_once(' ').filter(|_| !line.starts_with(')')) {
            let definition = definition.trim().to_owned();
            let after = |words: &str| {
                let (_, rest) = definition.split_once(words)?;
                rest.split_whitespace().next().map(str::to_owned)
            };
            let is_text = definition.starts_with("VARCHAR") || definition.starts_with("CHAR");
            let charset = after("CHARACTER SET ").unwrap_or_else(|| "utf8mb4".into());
            let text = is_text.then(|| (charset, after("COLLATE ")));
            columns.push(ColumnForm { name: name.into(), text, definition });
        }
    }
    Some(TableForm { name: name.into(), columns, indexes })
}

/// The names of the indexes that the files for SQLite make, without the prefix.
pub fn sqlite_indexes() -> Vec<String> {
    let statements = MIGRATIONS.iter().flat_map(|migration| statements(migration.sqlite, ""));
    statements
        .filter_map(|statement| {
            let rest = statement.strip_prefix("CREATE INDEX IF NOT EXISTS ")?;
            rest.split_whitespace().next().map(str::to_owned)
        })
        .collect()
}

/// What `batch_migration` remembers of a file, so that a file changed after it was applied is noticed.
pub fn checksum(sql: &str) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, sql.as_bytes()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_forgotten_and_both_databases_have_the_same() {
        for database in ["mysql", "sqlite"] {
            let folder = format!("{}/migrations/{database}", env!("CARGO_MANIFEST_DIR"));
            let mut files: Vec<String> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            files.sort();
            let listed: Vec<String> = MIGRATIONS.iter().map(|m| format!("{}.sql", m.name)).collect();
            assert_eq!(files, listed, "{database}");
        }
        for (position, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version as usize, position + 1);
            assert!(migration.name.starts_with(&format!("{:04}_", migration.version)));
        }
    }

    #[test]
    fn what_a_table_looks_like_is_read_from_the_files() {
        let tables = tables();
        let of = |name: &str| tables.iter().find(|table| table.name == name).unwrap();
        for name in ["task", "task_target", "pace", "installation", "audit", "suppression", "migration"] {
            assert_eq!(of(name).name, name);
        }
        let index = |name: &str, columns: &str, unique| IndexForm {
            name: name.into(),
            columns: columns.into(),
            unique,
        };
        assert_eq!(
            of("task_target").indexes,
            [
                index("u_task_recipient", "task_id, recipient", true),
                index("k_task_status", "task_id, status", false),
                index("k_task_retry", "task_id, retry_at", false)
            ]
        );
        let column = |table: &str, name: &str| {
            of(table).columns.iter().find(|column| column.name == name).unwrap().text.clone()
        };
        let text =
            |charset: &str, collation: Option<&str>| Some((charset.to_owned(), collation.map(str::to_owned)));
        assert_eq!(column("task_target", "recipient"), text("utf8mb4", Some("utf8mb4_bin")));
        assert_eq!(column("task_target", "cron_token"), text("ascii", Some("ascii_bin")));
        assert_eq!(column("task_target", "last_error"), text("utf8mb4", None));
        assert_eq!(column("task_target", "claim_until"), None);
        assert_eq!(column("suppression", "folded"), text("utf8mb4", Some("utf8mb4_bin")));
        assert_eq!(
            sqlite_indexes(),
            [
                "task_k_status",
                "task_target_k_task_status",
                "task_target_k_task_retry",
                "audit_k_task",
                "audit_k_task"
            ]
        );
    }

    #[test]
    fn a_file_is_cut_into_statements() {
        let sql =
            "-- a; comment\nCREATE TABLE {prefix}a (\n  -- inside;\n  x INT DEFAULT 1\n);\n\nDROP TABLE b;\n";
        assert_eq!(statements(sql, "p_"), ["CREATE TABLE p_a (\n  x INT DEFAULT 1\n)", "DROP TABLE b"]);
    }
}
