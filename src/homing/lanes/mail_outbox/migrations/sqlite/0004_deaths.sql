-- As on PostgreSQL.
CREATE TABLE homing_mail_death (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER NOT NULL,
    error      TEXT,
    died_at    TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    batch      TEXT
);
CREATE TRIGGER homing_mail_death AFTER UPDATE OF status ON mail_outbox
WHEN NEW.status = 'failed' AND OLD.status <> 'failed'
     AND (NEW.idempotency_key IS NULL OR NEW.idempotency_key NOT LIKE 'homing-alert:%')
BEGIN
    -- A word before a colon, or nothing but a word; a sentence is none.
    INSERT INTO homing_mail_death (message_id, error)
    SELECT NEW.id, CASE WHEN word <> '' AND word NOT GLOB '*[^A-Za-z0-9_]*' THEN word END
    FROM (SELECT substr(NEW.last_error, 1, instr(NEW.last_error || ':', ':') - 1) AS word);
END;
