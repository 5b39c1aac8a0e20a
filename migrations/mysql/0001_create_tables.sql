-- Tasks, targets and what belongs to them. Statements end with a semicolon at the end of a line; {prefix} is table_prefix.
-- Every nullable time says NULL DEFAULT NULL, every other its default: old servers invent defaults otherwise.

CREATE TABLE IF NOT EXISTS {prefix}task (
  id            BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name          VARCHAR(191) NOT NULL,
  channel       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  payload       JSON NULL,
  status        ENUM('draft','pending','paused','finished','cancelled') NOT NULL DEFAULT 'draft',
  status_reason VARCHAR(500) NULL DEFAULT NULL,
  priority      SMALLINT NOT NULL DEFAULT 0,
  scheduled_at  TIMESTAMP(3) NULL DEFAULT NULL,
  expires_at    TIMESTAMP(3) NULL DEFAULT NULL,
  lock_token    CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NULL DEFAULT NULL,
  lock_owner    VARCHAR(191) NULL DEFAULT NULL,
  lock_at       TIMESTAMP(3) NULL DEFAULT NULL,
  lock_until    TIMESTAMP(3) NULL DEFAULT NULL,
  served_at     TIMESTAMP(3) NULL DEFAULT NULL,
  halt_at       TIMESTAMP(3) NULL DEFAULT NULL,
  unknown_run   SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  -- counts frozen by close; NULL: count the rows
  sent_count    BIGINT UNSIGNED NULL DEFAULT NULL,
  failed_count  BIGINT UNSIGNED NULL DEFAULT NULL,
  unknown_count BIGINT UNSIGNED NULL DEFAULT NULL,
  created_at    TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  started_at    TIMESTAMP(3) NULL DEFAULT NULL,
  finished_at   TIMESTAMP(3) NULL DEFAULT NULL,
  KEY k_status (status, finished_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS {prefix}task_target (
  id            BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  task_id       BIGINT UNSIGNED NOT NULL,
  recipient     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  params        JSON NULL,
  status        ENUM('pending','processing','sending','sent','failed','retry','unknown') NOT NULL DEFAULT 'pending',
  cron_token    CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NULL DEFAULT NULL,
  claim_until   TIMESTAMP(3) NULL DEFAULT NULL,
  attempts      SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  round         TINYINT UNSIGNED NOT NULL DEFAULT 0,
  retry_at      TIMESTAMP(3) NULL DEFAULT NULL,
  dedupe_until  TIMESTAMP(3) NULL DEFAULT NULL,
  message_hash  BINARY(16) NULL DEFAULT NULL,
  send_at       TIMESTAMP(3) NULL DEFAULT NULL,
  settled_at    TIMESTAMP(3) NULL DEFAULT NULL,
  receipt       VARCHAR(191) NULL DEFAULT NULL,
  last_error    VARCHAR(500) NULL DEFAULT NULL,
  UNIQUE KEY u_task_recipient (task_id, recipient),
  KEY k_task_status (task_id, status),
  KEY k_task_retry (task_id, retry_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- holds: holds in a row, for the backoff of the next one.
CREATE TABLE IF NOT EXISTS {prefix}pace (
  channel       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  next_at       TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  holds         SMALLINT UNSIGNED NOT NULL DEFAULT 0
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS {prefix}installation (
  one           TINYINT NOT NULL DEFAULT 1 PRIMARY KEY,
  id            CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  server        VARCHAR(191) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS {prefix}audit (
  id            BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at            TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  who           VARCHAR(191) NOT NULL,
  what          VARCHAR(64) NOT NULL,
  task_id       BIGINT UNSIGNED NOT NULL,
  target_id     BIGINT UNSIGNED NULL DEFAULT NULL,
  why           VARCHAR(500) NULL DEFAULT NULL,
  KEY k_task (task_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4;
