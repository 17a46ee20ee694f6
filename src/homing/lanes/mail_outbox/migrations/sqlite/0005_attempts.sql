-- Who delivered it, and how long that took. Attempts that did not deliver have a table of their own, for all lanes in
-- this file (db/attempts.py).
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS delivered_by TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS delivered_millis INTEGER;

CREATE TABLE IF NOT EXISTS homing_attempt (
    lane            TEXT NOT NULL,
    message_id      INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    number          INTEGER NOT NULL,
    ended_at        TEXT NOT NULL,
    duration_millis INTEGER,
    worker          TEXT,
    code            TEXT NOT NULL,
    message         TEXT NOT NULL,
    PRIMARY KEY (lane, message_id, fence)
) WITHOUT ROWID;
