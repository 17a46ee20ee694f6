-- As on PostgreSQL.
CREATE TABLE homing_traffic (
    at        INTEGER NOT NULL,
    lane      TEXT NOT NULL,
    span      INTEGER NOT NULL,
    writer    TEXT NOT NULL,
    delivered INTEGER NOT NULL,
    retried   INTEGER NOT NULL,
    dead      INTEGER NOT NULL,
    stopped   INTEGER NOT NULL,
    attempts  TEXT NOT NULL CHECK (json_valid(attempts)),
    waits     TEXT NOT NULL CHECK (json_valid(waits)),
    PRIMARY KEY (at, lane, span, writer)
) WITHOUT ROWID;
CREATE INDEX homing_traffic_minutes ON homing_traffic (at) WHERE span = 60;
