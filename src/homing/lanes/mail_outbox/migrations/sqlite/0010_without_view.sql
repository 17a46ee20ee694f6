-- A view on another program's table keeps that program from making it anew: SQLite renames no table while a view
-- names one that is not there. So what the view said of a row is said by the triggers (adopt/0001_mail_outbox.sql).
DROP TRIGGER IF EXISTS homing_mail_outbox_on_insert;
-- unless: SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'homing_mail_outbox_foreign')
CREATE TRIGGER homing_mail_outbox_on_insert AFTER INSERT ON mail_outbox
BEGIN
    UPDATE mail_outbox
    SET token = CASE WHEN NEW.token = '' THEN lower(hex(randomblob(16))) ELSE NEW.token END,
        created_at = CASE WHEN NEW.created_at = '1970-01-01T00:00:00.000Z' THEN v.now ELSE NEW.created_at END,
        next_attempt_at = v.next_attempt_at, expires_at = v.expires_at
    FROM (
        SELECT strftime(f.format, 'now') AS now,
            CASE WHEN NEW.next_attempt_at = '1970-01-01T00:00:00.000Z' THEN strftime(f.format, 'now')
                 WHEN NEW.next_attempt_at NOT GLOB '*[^0-9.]*'
                 THEN strftime(f.format, NEW.next_attempt_at / CASE WHEN NEW.next_attempt_at + 0 > 100000000000 THEN 1000.0 ELSE 1 END, 'unixepoch')
                 WHEN NEW.next_attempt_at = substr(strftime(f.format, NEW.next_attempt_at), 1, 19) THEN NEW.next_attempt_at
                 ELSE coalesce(strftime(f.format, NEW.next_attempt_at), NEW.next_attempt_at) END AS next_attempt_at,
            CASE WHEN NEW.expires_at = substr(strftime(f.format, NEW.expires_at), 1, 19) THEN NEW.expires_at
                 ELSE coalesce(strftime(f.format, NEW.expires_at), NEW.expires_at) END AS expires_at
        FROM homing_time_format AS f WHERE f.lane = 'mail_outbox') AS v
    WHERE mail_outbox.id = NEW.id
      AND (NEW.token = '' OR NEW.created_at = '1970-01-01T00:00:00.000Z'
           OR v.next_attempt_at IS NOT NEW.next_attempt_at OR v.expires_at IS NOT NEW.expires_at);
END;
DROP TRIGGER IF EXISTS homing_mail_outbox_on_update;
-- unless: SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'homing_mail_outbox_foreign')
CREATE TRIGGER homing_mail_outbox_on_update AFTER UPDATE OF next_attempt_at, expires_at ON mail_outbox
WHEN NEW.next_attempt_at IS NOT OLD.next_attempt_at OR NEW.expires_at IS NOT OLD.expires_at
BEGIN
    UPDATE mail_outbox
    SET next_attempt_at = v.next_attempt_at, expires_at = v.expires_at
    FROM (
        SELECT CASE WHEN NEW.next_attempt_at = '1970-01-01T00:00:00.000Z' THEN strftime(f.format, 'now')
                 WHEN NEW.next_attempt_at NOT GLOB '*[^0-9.]*'
                 THEN strftime(f.format, NEW.next_attempt_at / CASE WHEN NEW.next_attempt_at + 0 > 100000000000 THEN 1000.0 ELSE 1 END, 'unixepoch')
                 WHEN NEW.next_attempt_at = substr(strftime(f.format, NEW.next_attempt_at), 1, 19) THEN NEW.next_attempt_at
                 ELSE coalesce(strftime(f.format, NEW.next_attempt_at), NEW.next_attempt_at) END AS next_attempt_at,
            CASE WHEN NEW.expires_at = substr(strftime(f.format, NEW.expires_at), 1, 19) THEN NEW.expires_at
                 ELSE coalesce(strftime(f.format, NEW.expires_at), NEW.expires_at) END AS expires_at
        FROM homing_time_format AS f WHERE f.lane = 'mail_outbox') AS v
    WHERE mail_outbox.id = NEW.id
      AND (v.next_attempt_at IS NOT NEW.next_attempt_at OR v.expires_at IS NOT NEW.expires_at);
END;
DROP VIEW IF EXISTS homing_mail_outbox_foreign;
