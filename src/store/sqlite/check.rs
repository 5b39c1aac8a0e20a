//! What an SQLite database says of itself: the facts that `check` judges. Read through a connection of its own that cannot write.

use super::writer::unusable;
use super::*;
use crate::store::facts::FileFacts;
use crate::who;

/// A larger file is not looked through: it would take longer than a person waits.
const LOOKED_THROUGH: u64 = 256 << 20;

/// Things that SQLite finds wrong, at most.
const DAMAGE_MOST: u32 = 5;

impl Writer {
    /// Errors: a file that cannot be opened.
    pub fn examine(&self) -> Result<FileFacts> {
        let mut facts = FileFacts { path: self.path.clone(), ..FileFacts::default() };
        let path = self.path.display();
        match std::fs::metadata(&self.path) {
            Ok(found) => facts.bytes = found.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.expect_folder()?;
                facts.missing = true;
                return Ok(facts);
            }
            Err(error) => {
                return Err(Trouble::usage(format!(
                    "cannot open the database {path} as user {}: {error}; let it look into that directory, or correct `database_url`",
                    who::user()
                ))
                .into());
            }
        }
        let connection = self.read_only()?;
        let text = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0));
        facts.journal_mode = text("PRAGMA journal_mode").map_err(|error| unusable(&self.path, error))?;
        let mut unseen = Vec::new();
        let all = |sql: &str, unseen: &mut Vec<String>| -> Vec<String> {
            let rows = || -> rusqlite::Result<Vec<String>> {
                connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
            };
            rows().unwrap_or_else(|error| {
                unseen.push(error.to_string());
                Vec::new()
            })
        };
        let now =
            connection.query_row("SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)", [], |row| row.get(0));
        facts.now = now.ok().and_then(DateTime::from_timestamp_millis);

        let p = self.prefix();
        let there = all("SELECT name FROM sqlite_schema WHERE type IN ('table', 'index')", &mut unseen);
        let is_there = |name: &str| there.iter().any(|known| known == &format!("{p}{name}"));
        facts.schema = if is_there("migration") {
            let version = format!("SELECT CAST(COALESCE(MAX(version), 0) AS TEXT) FROM {p}migration");
            all(&version, &mut unseen).pop().and_then(|version| version.parse().ok())
        } else {
            Some(0)
        };
        if facts.schema == Some(0) {
            let (there, missing): (Vec<_>, Vec<_>) =
                migrations::tables().into_iter().map(|table| table.name).partition(|name| is_there(name));
            let missing = missing.into_iter().map(|name| format!("{p}{name}")).collect();
            facts.missing_tables = (!there.is_empty()).then_some(missing);
        }
        if facts.schema == Some(migrations::VERSION) {
            let mut indexes = migrations::sqlite_indexes();
            indexes.dedup();
            indexes.retain(|name| !is_there(name));
            facts.missing_indexes = indexes.into_iter().map(|name| format!("{p}{name}")).collect();
            let ours = migrations::tables().into_iter().map(|table| format!("'{p}{}'", table.name));
            facts.triggers = all(
                &format!(
                    "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ({}) ORDER BY name",
                    ours.collect::<Vec<_>>().join(", ")
                ),
                &mut unseen,
            );
            let open = format!("FROM {p}task WHERE status IN ('draft', 'pending', 'paused')");
            let channels = all(&format!("SELECT channel {open}"), &mut unseen);
            for channel in channels {
                *facts.channels.entry(channel).or_default() += 1;
            }
        }
        if facts.bytes <= LOOKED_THROUGH {
            let mut damage = all(&format!("PRAGMA quick_check({DAMAGE_MOST})"), &mut unseen);
            damage.retain(|line| line != "ok");
            facts.damage = Some(damage);
        }
        facts.unseen = unseen;
        Ok(facts)
    }
}
