-- As on PostgreSQL.
ALTER TABLE email_log ADD COLUMN IF NOT EXISTS leased_until TIMESTAMP;
ALTER TABLE email_log ADD COLUMN IF NOT EXISTS published_at TIMESTAMP;
ALTER TABLE email_log ADD COLUMN IF NOT EXISTS ended_claim INTEGER;
ALTER TABLE email_log ADD COLUMN IF NOT EXISTS failed_claim INTEGER;

-- SQLite drops no NOT NULL by a statement; its documentation gives this way, which touches no row
-- (sqlite.org/lang_altertable.html, "Making Other Kinds Of Table Schema Changes"). The CREATE INDEX below tells
-- other connections that the schema has changed.
PRAGMA writable_schema = ON;
UPDATE sqlite_master
SET sql = replace(sql, 'next_attempt_at     TIMESTAMP NOT NULL DEFAULT', 'next_attempt_at     TIMESTAMP DEFAULT')
WHERE type = 'table' AND name = 'email_log';
PRAGMA writable_schema = RESET;

CREATE INDEX email_log_unpublished ON email_log (coalesce(next_attempt_at, created_at))
    WHERE status = 'Pending' AND (last_queued_at IS NULL OR ended_claim IS NOT NULL OR sent_at IS NOT NULL
                                  OR failed_claim IS NOT NULL AND attempt_count = 0);
CREATE INDEX email_log_queued ON email_log (last_queued_at)
    WHERE status = 'Pending' AND last_queued_at IS NOT NULL AND claim_seq > 0;

CREATE TABLE homing_email_queue (
    name            TEXT PRIMARY KEY,
    gone_at         TIMESTAMP,
    empty_at        TIMESTAMP,
    empty_before_at TIMESTAMP
);
