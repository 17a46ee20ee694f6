-- As on PostgreSQL.
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
    unknown         INTEGER NOT NULL,
    PRIMARY KEY (lane, message_id, fence)
) WITHOUT ROWID;
