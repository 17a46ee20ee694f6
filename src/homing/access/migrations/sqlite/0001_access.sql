-- As on PostgreSQL. Times are ISO text in UTC with milliseconds and Z, so that they sort as they are.
CREATE TABLE homing_api_key (
    id              TEXT PRIMARY KEY,
    name            TEXT NOT NULL,
    hash            TEXT NOT NULL,
    scopes          TEXT NOT NULL CHECK (json_valid(scopes)),
    rate_per_second REAL CHECK (rate_per_second > 0),
    created_at      TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    created_by      TEXT NOT NULL,
    expires_at      TIMESTAMP,
    last_used_at    TIMESTAMP,
    revoked_at      TIMESTAMP,
    revoked_by      TEXT
);

CREATE TABLE homing_user (
    name            TEXT PRIMARY KEY,
    password        TEXT NOT NULL,
    role            TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    created_at      TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    created_by      TEXT NOT NULL,
    password_at     TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    last_login_at   TIMESTAMP,
    removed_at      TIMESTAMP
);

CREATE TABLE homing_session (
    hash            TEXT PRIMARY KEY,
    user_name       TEXT NOT NULL,
    created_at      TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    seen_at         TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE INDEX homing_session_user ON homing_session (user_name);

CREATE TABLE homing_login_failure (
    subject         TEXT PRIMARY KEY,
    failures        INTEGER NOT NULL,
    last_at         TIMESTAMP NOT NULL,
    blocked_until   TIMESTAMP NOT NULL
);

CREATE TABLE homing_audit (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    at              TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    who             TEXT NOT NULL,
    address         TEXT,
    action          TEXT NOT NULL,
    object          TEXT,
    detail          TEXT CHECK (detail IS NULL OR json_valid(detail)),
    outcome         TEXT NOT NULL CHECK (outcome IN ('done', 'refused', 'failed'))
);
CREATE INDEX homing_audit_at ON homing_audit (at, id);
CREATE INDEX homing_audit_who ON homing_audit (who, id);
