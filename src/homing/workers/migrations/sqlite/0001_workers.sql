-- As on PostgreSQL. Times are ISO text in UTC with milliseconds and Z, so that they sort as they are.
CREATE TABLE homing_worker (
    name            TEXT PRIMARY KEY,
    host            TEXT NOT NULL,
    pid             INTEGER NOT NULL,
    boot            TEXT NOT NULL,
    version         TEXT NOT NULL,
    lanes           TEXT NOT NULL CHECK (json_valid(lanes)),
    serves          INTEGER NOT NULL CHECK (serves IN (0, 1)),
    state           TEXT NOT NULL CHECK (state IN ('running', 'paused', 'stopping', 'stopped')),
    report          TEXT NOT NULL CHECK (json_valid(report)),
    started_at      TIMESTAMP NOT NULL,
    seen_at         TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE INDEX homing_worker_seen ON homing_worker (seen_at);

CREATE TABLE homing_pause (
    scope           TEXT NOT NULL CHECK (scope IN ('worker', 'lane')),
    name            TEXT NOT NULL,
    reason          TEXT,
    asked_by        TEXT NOT NULL,
    asked_at        TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (scope, name)
);
