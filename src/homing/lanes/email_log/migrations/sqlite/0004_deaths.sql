-- As on PostgreSQL.
CREATE TABLE homing_email_death (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER NOT NULL,
    error      TEXT,
    died_at    TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    batch      TEXT
);
CREATE TRIGGER homing_email_death AFTER UPDATE OF status ON email_log
WHEN NEW.status = 'Dead' AND OLD.status <> 'Dead' AND NEW.dead_reason IS NOT 'Cancelled'
BEGIN
    INSERT INTO homing_email_death (message_id, error) VALUES (NEW.id, NEW.dead_reason);
END;
