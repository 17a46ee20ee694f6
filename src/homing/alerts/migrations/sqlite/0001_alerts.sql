-- As on PostgreSQL. Times are ISO text in UTC with milliseconds and Z.
CREATE TABLE homing_alert_cause (
    cause          TEXT PRIMARY KEY,
    kind           TEXT NOT NULL,
    state          TEXT NOT NULL DEFAULT 'quiet' CHECK (state IN ('quiet', 'watching', 'firing')),
    since          TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    facts          TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(facts)),
    pending        INTEGER NOT NULL DEFAULT 0,
    level          INTEGER NOT NULL DEFAULT 0,
    told           TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(told)),
    silenced_until TIMESTAMP,
    silenced_by    TEXT,
    revision       INTEGER NOT NULL DEFAULT 0,
    updated_at     TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE INDEX homing_alert_cause_open ON homing_alert_cause (cause) WHERE state <> 'quiet' OR pending > 0;

CREATE TABLE homing_alert (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    cause       TEXT NOT NULL,
    kind        TEXT NOT NULL,
    event       TEXT NOT NULL CHECK (event IN ('fired', 'again', 'level', 'resolved', 'test')),
    facts       TEXT NOT NULL CHECK (json_valid(facts)),
    at          TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    ways        TEXT NOT NULL CHECK (json_valid(ways)),
    handed_over BOOLEAN NOT NULL DEFAULT 0,
    mail_id     INTEGER,
    job_id      INTEGER,
    token       TEXT NOT NULL DEFAULT (lower(hex(randomblob(16))))
);
CREATE INDEX homing_alert_at ON homing_alert (at, id);
CREATE INDEX homing_alert_waiting ON homing_alert (id) WHERE NOT handed_over;

CREATE TABLE homing_alert_batch (
    batch TEXT PRIMARY KEY,
    at    TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

CREATE TABLE homing_alert_seen (
    lane     TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    seen     TEXT NOT NULL CHECK (json_valid(seen))
);

CREATE TABLE homing_alert_watch (
    id      INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    holder  TEXT NOT NULL,
    until   TIMESTAMP NOT NULL
);
