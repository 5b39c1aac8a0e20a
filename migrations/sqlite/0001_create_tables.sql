-- The same tables as migrations/mysql, in SQLite's words. Times are milliseconds since 1970 UTC (pace.next_at: microseconds).
-- AUTOINCREMENT: an id given again would repeat an idempotency key. julianday: an application's SQLite may be too old for
-- unixepoch('subsec').

CREATE TABLE IF NOT EXISTS {prefix}task (
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  name          TEXT NOT NULL CHECK (length(name) <= 191),
  channel       TEXT NOT NULL CHECK (length(channel) <= 64),
  payload       TEXT NULL CHECK (payload IS NULL OR json_valid(payload)),
  status        TEXT NOT NULL DEFAULT 'draft' CHECK (status IN ('draft','pending','paused','finished','cancelled')),
  status_reason TEXT NULL,
  priority      INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN -32768 AND 32767),
  scheduled_at  INTEGER NULL,
  expires_at    INTEGER NULL,
  lock_token    TEXT NULL,
  lock_owner    TEXT NULL,
  lock_at       INTEGER NULL,
  lock_until    INTEGER NULL,
  served_at     INTEGER NULL,
  halt_at       INTEGER NULL,
  unknown_run   INTEGER NOT NULL DEFAULT 0,
  sent_count    INTEGER NULL,
  failed_count  INTEGER NULL,
  unknown_count INTEGER NULL,
  created_at    INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
  started_at    INTEGER NULL,
  finished_at   INTEGER NULL
) STRICT;

CREATE INDEX IF NOT EXISTS {prefix}task_k_status ON {prefix}task (status, finished_at);

CREATE TABLE IF NOT EXISTS {prefix}task_target (
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  task_id       INTEGER NOT NULL,
  recipient     TEXT NOT NULL CHECK (length(recipient) <= 255),
  params        TEXT NULL CHECK (params IS NULL OR json_valid(params)),
  status        TEXT NOT NULL DEFAULT 'pending'
                CHECK (status IN ('pending','processing','sending','sent','failed','retry','unknown')),
  cron_token    TEXT NULL,
  claim_until   INTEGER NULL,
  attempts      INTEGER NOT NULL DEFAULT 0,
  round         INTEGER NOT NULL DEFAULT 0,
  retry_at      INTEGER NULL CHECK ((retry_at IS NOT NULL) = (status = 'retry')),
  dedupe_until  INTEGER NULL,
  message_hash  BLOB NULL,
  send_at       INTEGER NULL,
  settled_at    INTEGER NULL,
  receipt       TEXT NULL,
  last_error    TEXT NULL,
  UNIQUE (task_id, recipient)
) STRICT;

CREATE INDEX IF NOT EXISTS {prefix}task_target_k_task_status ON {prefix}task_target (task_id, status);
CREATE INDEX IF NOT EXISTS {prefix}task_target_k_task_retry ON {prefix}task_target (task_id, retry_at);

CREATE TABLE IF NOT EXISTS {prefix}pace (
  channel       TEXT PRIMARY KEY,
  next_at       INTEGER NOT NULL DEFAULT 0,
  holds         INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE IF NOT EXISTS {prefix}installation (
  one           INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
  id            TEXT NOT NULL,
  server        TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS {prefix}audit (
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  at            INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
  who           TEXT NOT NULL,
  what          TEXT NOT NULL,
  task_id       INTEGER NOT NULL,
  target_id     INTEGER NULL,
  why           TEXT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS {prefix}audit_k_task ON {prefix}audit (task_id);
