//! What a run is compared with: its statements with nothing sent and nothing decided (the database's own limit), and the loop
//! that everybody writes first. Both on one connection and a table that nobody else uses.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mysql::Conn;
use mysql::prelude::Queryable;
use uuid::Uuid;

use crate::site::{Site, fill};

const BATCH: usize = 500;
const GROUP: usize = 64;
const LOOP_BATCH: usize = 100;

type Row = (u64, String, String);

/// Claims a batch, begins and settles it in groups, until nothing is left.
pub fn limit(site: &mut Site, rows: u64) -> Result<Duration> {
    let table = format!("{}limit", site.prefix);
    on_table(site, &table, "", rows, |db| {
        let token = Uuid::new_v4();
        let ids = claim(db, &table, &token)?;
        for group in ids.chunks(GROUP) {
            let group = list(group);
            db.query_drop(format!(
                "UPDATE {table} SET status = 'sending', attempts = attempts + 1, send_at = NOW(3) \
                 WHERE id IN ({group}) AND cron_token = '{token}' AND status = 'processing'"
            ))?;
            db.query_drop(format!(
                "UPDATE {table} SET status = 'sent', cron_token = NULL, settled_at = NOW(3), receipt = 'r' \
                 WHERE id IN ({group}) AND cron_token = '{token}'"
            ))?;
        }
        Ok(ids.len())
    })
}

fn claim(db: &mut Conn, table: &str, token: &Uuid) -> Result<Vec<u64>> {
    db.query_drop("START TRANSACTION")?;
    let found: Vec<Row> = db.query(format!(
        "SELECT id, recipient, params FROM {table} WHERE task_id = 1 AND status = 'pending' \
         ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED"
    ))?;
    let ids: Vec<u64> = found.into_iter().map(|row| row.0).collect();
    if !ids.is_empty() {
        db.query_drop(format!(
            "UPDATE {table} SET status = 'processing', cron_token = '{token}', claim_until = NOW(3) + INTERVAL 30 SECOND \
             WHERE id IN ({})",
            list(&ids)
        ))?;
    }
    db.query_drop("COMMIT")?;
    Ok(ids)
}

/// Claims by token and settles row by row, with the index that its claim asks for.
pub fn simple_loop(site: &mut Site, rows: u64) -> Result<Duration> {
    let table = format!("{}loop", site.prefix);
    let index = "DROP KEY k_task_status, DROP KEY k_task_retry, ADD KEY k_task_token (task_id, cron_token)";
    on_table(site, &table, index, rows, |db| {
        let token = Uuid::new_v4();
        db.query_drop(format!(
            "UPDATE {table} SET status = 'processing', cron_token = '{token}', send_at = NOW(3) \
             WHERE task_id = 1 AND status = 'pending' LIMIT {LOOP_BATCH}"
        ))?;
        let found: Vec<Row> = db.query(format!(
            "SELECT id, recipient, params FROM {table} WHERE task_id = 1 AND cron_token = '{token}'"
        ))?;
        for (id, ..) in &found {
            db.query_drop(format!(
                "UPDATE {table} SET status = 'sent', cron_token = NULL, settled_at = NOW(3), receipt = 'r' \
                 WHERE id = {id} AND cron_token = '{token}'"
            ))?;
        }
        Ok(found.len())
    })
}

/// How long `step` takes for all rows of a new table like that of targets; it says how many it did.
fn on_table(
    site: &mut Site,
    table: &str,
    change: &str,
    rows: u64,
    mut step: impl FnMut(&mut Conn) -> Result<usize>,
) -> Result<Duration> {
    let like = site.target_table();
    let db = &mut site.db;
    db.query_drop(format!("CREATE TABLE {table} LIKE {like}"))?;
    if !change.is_empty() {
        db.query_drop(format!("ALTER TABLE {table} {change}"))?;
    }
    fill(db, table, 1, 0, rows, "pending")?;
    let began = Instant::now();
    let mut done = 0;
    loop {
        match step(db)? {
            0 => break,
            more => done += more as u64,
        }
    }
    let took = began.elapsed();
    ensure!(done == rows, "{done} of {rows} rows done");
    db.query_drop(format!("DROP TABLE {table}"))?;
    Ok(took)
}

fn list(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}
