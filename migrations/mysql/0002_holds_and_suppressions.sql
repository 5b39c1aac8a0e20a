-- A hold is told apart from the rate, and recipients can be left alone. Applied in part, each statement may be applied again.

-- Held: held_until > NOW(6). next_at alone is when the channel's next slot begins. Until now both were one.
SET @held_until = IF(
  EXISTS (SELECT 1 FROM information_schema.COLUMNS
          WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{prefix}pace' AND COLUMN_NAME = 'held_until'),
  'DO 0',
  'ALTER TABLE {prefix}pace ADD COLUMN held_until TIMESTAMP(6) NULL DEFAULT NULL');

PREPARE held_until FROM @held_until;

EXECUTE held_until;

DEALLOCATE PREPARE held_until;

UPDATE {prefix}pace SET held_until = next_at WHERE held_until IS NULL;

-- Who gets nothing: from this channel, or with '*' from any. Compared by what `folded` makes of a recipient.
CREATE TABLE IF NOT EXISTS {prefix}suppression (
  id            BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  recipient     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  channel       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '*',
  reason        VARCHAR(500) NULL DEFAULT NULL,
  since         TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  folded        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin GENERATED ALWAYS AS (LOWER(TRIM(recipient))) STORED,
  UNIQUE KEY u_folded_channel (folded, channel)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- NULL: an act that is of no task.
ALTER TABLE {prefix}audit MODIFY task_id BIGINT UNSIGNED NULL DEFAULT NULL;
