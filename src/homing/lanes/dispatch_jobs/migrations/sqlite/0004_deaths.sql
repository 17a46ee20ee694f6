-- As on PostgreSQL.
CREATE TABLE homing_job_death (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER NOT NULL,
    error      TEXT,
    died_at    TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    batch      TEXT
);
CREATE TRIGGER homing_job_death AFTER UPDATE OF status ON dispatch_job
WHEN NEW.status = 'ERROR' AND OLD.status <> 'ERROR' AND NOT (NEW.source = 'homing' AND NEW.type = 'homing.alert')
BEGIN
    INSERT INTO homing_job_death (message_id, error) VALUES (NEW.id, NEW.error_class);
END;

CREATE INDEX homing_target_failing ON homing_target (failures) WHERE failures > 0;
