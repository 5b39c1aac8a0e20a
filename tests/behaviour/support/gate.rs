//! Holds a run inside one statement of the relay, from outside: a trigger on the transition waits for a named lock
//! that the story holds. MySQL alone; SQLite has no other session inside a statement.

use super::database::Database;
use super::process::wait_until;

pub struct Gate {
    keeper: Database,
    trigger: String,
}

impl Gate {
    /// Whoever moves a target from one status to another waits.
    pub fn on_targets(database: &Database, from: &str, to: &str) -> Self {
        Self::new(database, "batch_task_target", &format!("OLD.status = '{from}' AND NEW.status = '{to}'"))
    }

    /// Whoever takes the lease of a task waits.
    pub fn on_lease(database: &Database) -> Self {
        Self::new(
            database,
            "batch_task",
            "NEW.lock_token IS NOT NULL AND NOT NEW.lock_token <=> OLD.lock_token",
        )
    }

    fn new(database: &Database, table: &str, condition: &str) -> Self {
        let name = database.name().to_owned();
        let trigger = format!("gate_{table}");
        let keeper = database.another();
        assert_eq!(keeper.text(&format!("SELECT GET_LOCK('{name}', 0)")), "1");
        keeper.execute(&format!(
            "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW
             BEGIN IF {condition} THEN DO GET_LOCK('{name}', 60); DO RELEASE_LOCK('{name}'); END IF; END"
        ));
        Self { keeper, trigger }
    }

    /// Returns once somebody waits.
    #[track_caller]
    pub fn reached(&self) {
        let name = self.keeper.name();
        let sql = format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{name}' AND state = 'User lock'"
        );
        wait_until("a run to stand at the gate", 30, || self.keeper.number(&sql) > 0);
    }

    /// Lets everybody through, now and later.
    pub fn open(self) {
        self.keeper.execute(&format!("DO RELEASE_LOCK('{}')", self.keeper.name()));
        self.keeper.execute(&format!("DROP TRIGGER {}", self.trigger));
    }
}
