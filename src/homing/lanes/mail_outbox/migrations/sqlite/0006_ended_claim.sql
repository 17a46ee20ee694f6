-- The claim that ended a row. A row that is queued right after it was put back by a person, whoever wrote the SQL:
-- it goes to everybody who has not accepted the mail.
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS ended_claim INTEGER;

-- In which form this table's times are written: ours, unless another program made the table and has its own
-- (adopt/0001_mail_outbox.sql).
CREATE TABLE IF NOT EXISTS homing_time_format (
    lane   TEXT PRIMARY KEY NOT NULL,
    format TEXT NOT NULL
) WITHOUT ROWID;
INSERT OR IGNORE INTO homing_time_format (lane, format) VALUES ('mail_outbox', '%Y-%m-%dT%H:%M:%fZ');

-- A claim names expires_at now, and changes it only when a row was put back: what stays as it was is not read again.
DROP TRIGGER IF EXISTS mail_outbox_times_on_update;
-- unless: SELECT 1 FROM sqlite_master WHERE name = 'homing_mail_outbox_foreign'
CREATE TRIGGER mail_outbox_times_on_update AFTER UPDATE OF next_attempt_at, expires_at ON mail_outbox
WHEN (NEW.next_attempt_at IS NOT OLD.next_attempt_at OR NEW.expires_at IS NOT OLD.expires_at)
 AND (NEW.next_attempt_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at)
      OR NEW.expires_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.expires_at))
BEGIN
    UPDATE mail_outbox
    SET next_attempt_at = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at),
        expires_at = CASE WHEN NEW.expires_at IS NULL THEN NULL
                          ELSE coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', NEW.expires_at),
                                        RAISE(ABORT, 'expires_at is no time that SQLite can read')) END
    WHERE id = NEW.id;
END;
