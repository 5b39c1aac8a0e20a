-- The same as migrations/mysql, in SQLite's words. What changes a column makes its table anew.

-- Held: held_until > now, in microseconds. next_at alone is when the channel's next slot begins. Until now both were one.
CREATE TABLE {prefix}pace_new (
  channel       TEXT PRIMARY KEY,
  next_at       INTEGER NOT NULL DEFAULT 0,
  holds         INTEGER NOT NULL DEFAULT 0,
  held_until    INTEGER NULL
) STRICT;

INSERT INTO {prefix}pace_new (channel, next_at, holds, held_until) SELECT channel, next_at, holds, next_at FROM {prefix}pace;

DROP TABLE {prefix}pace;

ALTER TABLE {prefix}pace_new RENAME TO {prefix}pace;

-- Who gets nothing: from this channel, or with '*' from any. Compared by what `folded` makes of a recipient. lower() knows the
-- letters of ASCII alone: batch-send writes others in lower case already, and so must whoever inserts here.
CREATE TABLE IF NOT EXISTS {prefix}suppression (
  id            INTEGER PRIMARY KEY,
  recipient     TEXT NOT NULL CHECK (length(recipient) <= 255),
  channel       TEXT NOT NULL DEFAULT '*' CHECK (length(channel) <= 64),
  reason        TEXT NULL,
  since         INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
  folded        TEXT GENERATED ALWAYS AS (lower(trim(recipient))) STORED,
  UNIQUE (folded, channel)
) STRICT;

-- NULL: an act that is of no task.
CREATE TABLE {prefix}audit_new (
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  at            INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
  who           TEXT NOT NULL,
  what          TEXT NOT NULL,
  task_id       INTEGER NULL,
  target_id     INTEGER NULL,
  why           TEXT NULL
) STRICT;

INSERT INTO {prefix}audit_new (id, at, who, what, task_id, target_id, why)
  SELECT id, at, who, what, task_id, target_id, why FROM {prefix}audit;

DROP TABLE {prefix}audit;

ALTER TABLE {prefix}audit_new RENAME TO {prefix}audit;

CREATE INDEX IF NOT EXISTS {prefix}audit_k_task ON {prefix}audit (task_id);
