-- table: mail_outbox
-- As on PostgreSQL: what another program has made stays as it is, and only what is missing is added. A column that
-- is added is TEXT or INTEGER, which are the words that a STRICT table knows, and its default is a constant, which
-- is all that SQLite allows: the trigger below puts in what no constant can be.

-- In which form times are written. They are compared as text, so all of a table have to have one form, and where
-- the other program's is that of CURRENT_TIMESTAMP its own comparisons have to stay true.
CREATE TABLE IF NOT EXISTS homing_time_format (
    lane   TEXT PRIMARY KEY NOT NULL,
    format TEXT NOT NULL
) WITHOUT ROWID;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS next_attempt_at TEXT NOT NULL DEFAULT '1970-01-01T00:00:00.000Z';
INSERT INTO homing_time_format (lane, format)
SELECT 'mail_outbox', CASE WHEN EXISTS (
        SELECT 1 FROM pragma_table_xinfo('mail_outbox')
        WHERE lower(name) = 'next_attempt_at' AND (lower(dflt_value) LIKE '%current_timestamp%' OR lower(dflt_value) LIKE '%datetime(%'))
    OR (SELECT next_attempt_at FROM mail_outbox ORDER BY id DESC LIMIT 1) LIKE '____-__-__ __:__%'
    THEN '%Y-%m-%d %H:%M:%f' ELSE '%Y-%m-%dT%H:%M:%fZ' END;

ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS retry_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS last_attempt_at TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS last_error TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS from_address TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS cc_address TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS bcc_address TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS reply_to TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS text_body TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS html_body TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS template TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS variables TEXT CHECK (variables IS NULL OR json_valid(variables));
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS locale TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS headers TEXT CHECK (headers IS NULL OR json_valid(headers));
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS attachments TEXT CHECK (attachments IS NULL OR json_valid(attachments));
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS unsubscribe_url TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS idempotency_key TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS fingerprint TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS expires_at TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS metadata TEXT CHECK (metadata IS NULL OR json_valid(metadata));
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS token TEXT NOT NULL DEFAULT '';
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS recipients TEXT CHECK (recipients IS NULL OR json_valid(recipients));
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS provider TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS provider_message_id TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS created_at TEXT NOT NULL DEFAULT '1970-01-01T00:00:00.000Z';
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS sent_at TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS claim_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS locked_by TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS lease_expires_at TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS rescue_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS defer_count INTEGER NOT NULL DEFAULT 0;

CREATE INDEX mail_outbox_due ON mail_outbox (next_attempt_at, id) WHERE status = 'queued';
CREATE INDEX mail_outbox_dispatching ON mail_outbox (id) WHERE status = 'dispatching';
CREATE INDEX mail_outbox_retried ON mail_outbox (retry_count) WHERE status = 'queued' AND retry_count > 0;
CREATE INDEX mail_outbox_expiring ON mail_outbox (expires_at) WHERE status = 'queued' AND expires_at IS NOT NULL;
CREATE INDEX mail_outbox_ended ON mail_outbox (status, id) WHERE status IN ('failed', 'cancelled', 'expired');
CREATE UNIQUE INDEX mail_outbox_idempotency ON mail_outbox (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- What a row has that was there before, or was inserted by a program that knows none of our columns. Times come into
-- the table's form, also those that are numbers (seconds or milliseconds since 1970); what cannot be read stays, so
-- that no INSERT of the other program fails. Times that differ only in having no fraction of a second sort well.
CREATE VIEW homing_mail_outbox_foreign AS
SELECT o.id,
    CASE WHEN o.token = '' THEN lower(hex(randomblob(16))) ELSE o.token END AS token,
    CASE WHEN o.created_at = '1970-01-01T00:00:00.000Z' THEN strftime(f.format, 'now') ELSE o.created_at END AS created_at,
    CASE WHEN o.next_attempt_at = '1970-01-01T00:00:00.000Z' THEN strftime(f.format, 'now')
         WHEN o.next_attempt_at NOT GLOB '*[^0-9.]*'
         THEN strftime(f.format, o.next_attempt_at / CASE WHEN o.next_attempt_at + 0 > 100000000000 THEN 1000.0 ELSE 1 END, 'unixepoch')
         WHEN o.next_attempt_at = substr(strftime(f.format, o.next_attempt_at), 1, 19) THEN o.next_attempt_at
         ELSE coalesce(strftime(f.format, o.next_attempt_at), o.next_attempt_at) END AS next_attempt_at,
    CASE WHEN o.expires_at = substr(strftime(f.format, o.expires_at), 1, 19) THEN o.expires_at
         ELSE coalesce(strftime(f.format, o.expires_at), o.expires_at) END AS expires_at
FROM mail_outbox AS o, homing_time_format AS f
WHERE f.lane = 'mail_outbox';

UPDATE mail_outbox
SET token = v.token, created_at = v.created_at, next_attempt_at = v.next_attempt_at, expires_at = v.expires_at
FROM (SELECT * FROM homing_mail_outbox_foreign) AS v
WHERE v.id = mail_outbox.id;
CREATE TRIGGER homing_mail_outbox_on_insert AFTER INSERT ON mail_outbox
BEGIN
    UPDATE mail_outbox
    SET token = v.token, created_at = v.created_at, next_attempt_at = v.next_attempt_at, expires_at = v.expires_at
    FROM homing_mail_outbox_foreign AS v
    WHERE mail_outbox.id = NEW.id AND v.id = NEW.id
      AND (NEW.token = '' OR NEW.created_at = '1970-01-01T00:00:00.000Z'
           OR v.next_attempt_at IS NOT NEW.next_attempt_at OR v.expires_at IS NOT NEW.expires_at);
END;
CREATE TRIGGER homing_mail_outbox_on_update AFTER UPDATE OF next_attempt_at, expires_at ON mail_outbox
WHEN NEW.next_attempt_at IS NOT OLD.next_attempt_at OR NEW.expires_at IS NOT OLD.expires_at
BEGIN
    UPDATE mail_outbox
    SET next_attempt_at = v.next_attempt_at, expires_at = v.expires_at
    FROM homing_mail_outbox_foreign AS v
    WHERE mail_outbox.id = NEW.id AND v.id = NEW.id
      AND (v.next_attempt_at IS NOT NEW.next_attempt_at OR v.expires_at IS NOT NEW.expires_at);
END;
