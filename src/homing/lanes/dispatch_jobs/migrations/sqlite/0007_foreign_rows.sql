-- As on PostgreSQL.
ALTER TABLE dispatch_attempt ADD COLUMN claim_seq INTEGER;

-- A constraint cannot be dropped here. This is how SQLite's documentation does it (ALTER TABLE, section 8); the trigger below
-- tells other connections that the schema has changed.
PRAGMA writable_schema = ON;
UPDATE sqlite_master
SET sql = replace(sql, 'CHECK (retry_strategy IN (''exponential'', ''linear'', ''fixed''))', '')
WHERE type = 'table' AND name = 'dispatch_job';
PRAGMA writable_schema = RESET;

CREATE TRIGGER homing_job_reschedule AFTER UPDATE OF scheduled_for, status ON dispatch_job
WHEN NEW.status = 'PENDING' AND NEW.next_attempt_at = OLD.next_attempt_at
    AND (NEW.scheduled_for IS NOT OLD.scheduled_for OR OLD.status NOT IN ('PENDING', 'IN_PROGRESS'))
BEGIN
    UPDATE dispatch_job
    SET scheduled_for = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.scheduled_for),
        next_attempt_at = max(coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', NEW.scheduled_for), ''), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
        queue_at = max(coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', NEW.scheduled_for), ''), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
        queued = 0,
        attempts_before = min(attempts_before, attempt_count)
    WHERE id = NEW.id;
END;
