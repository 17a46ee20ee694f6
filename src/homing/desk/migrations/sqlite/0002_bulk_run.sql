-- As on PostgreSQL. Times are ISO text in UTC with milliseconds and Z, so that they sort as they are.
CREATE TABLE homing_bulk_run (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    verb             TEXT NOT NULL CHECK (verb IN ('requeue', 'cancel', 'send_now')),
    query            TEXT NOT NULL,
    lanes            TEXT NOT NULL CHECK (json_valid(lanes)),
    created_by       TEXT NOT NULL,
    created_at       TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    state            TEXT NOT NULL DEFAULT 'counting'
                     CHECK (state IN ('counting', 'running', 'done', 'cancelled', 'failed')),
    total            INTEGER,
    is_estimate      INTEGER NOT NULL DEFAULT 0,
    done             INTEGER NOT NULL DEFAULT 0,
    skipped          INTEGER NOT NULL DEFAULT 0,
    failed           INTEGER NOT NULL DEFAULT 0,
    progress         TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(progress)),
    started_at       TIMESTAMP,
    updated_at       TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    finished_at      TIMESTAMP,
    last_error       TEXT,
    troubles         INTEGER NOT NULL DEFAULT 0,
    claim_seq        INTEGER NOT NULL DEFAULT 0,
    locked_by        TEXT,
    lease_expires_at TIMESTAMP
);
CREATE INDEX homing_bulk_run_open ON homing_bulk_run (id) WHERE finished_at IS NULL;
