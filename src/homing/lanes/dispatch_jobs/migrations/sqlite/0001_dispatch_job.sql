-- As on PostgreSQL. An id that is left out is the next after the largest there ever was, so it stays sorted by
-- time and none is used twice;
-- times are ISO text in UTC with milliseconds and Z.
CREATE TABLE dispatch_job (
    id                   INTEGER PRIMARY KEY AUTOINCREMENT,
    external_id          TEXT CHECK (length(external_id) <= 32),
    created_at           TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    updated_at           TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),

    source               TEXT NOT NULL,
    type                 TEXT NOT NULL,
    group_id             TEXT,

    target_url           TEXT NOT NULL,
    protocol             TEXT NOT NULL DEFAULT 'HTTP_WEBHOOK',
    payload              TEXT NOT NULL,
    payload_content_type TEXT NOT NULL DEFAULT 'application/json',
    credentials_id       INTEGER,

    status               TEXT NOT NULL DEFAULT 'PENDING'
                         CHECK (status IN ('PENDING', 'IN_PROGRESS', 'COMPLETED', 'FAILED', 'ERROR', 'CANCELLED')),
    max_retries          INTEGER NOT NULL DEFAULT 3 CHECK (max_retries BETWEEN 1 AND 1000),
    retry_strategy       TEXT NOT NULL DEFAULT 'exponential'
                         CHECK (retry_strategy IN ('exponential', 'linear', 'fixed')),
    scheduled_for        TIMESTAMP CHECK (julianday(scheduled_for) IS NOT NULL OR scheduled_for IS NULL),
    expires_at           TIMESTAMP CHECK (julianday(expires_at) IS NOT NULL OR expires_at IS NULL),

    attempt_count        INTEGER NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    last_attempt_at      TIMESTAMP,
    completed_at         TIMESTAMP,
    duration_millis      INTEGER,
    last_error           TEXT,
    idempotency_key      TEXT,

    queue_url            TEXT,
    ordering             TEXT NOT NULL DEFAULT 'none'
                         CHECK (ordering = 'none' OR ordering = 'group' AND group_id IS NOT NULL),
    timeout_seconds      REAL CHECK (timeout_seconds BETWEEN 0.1 AND 300),
    error_class          TEXT,
    fingerprint          TEXT,
    has_headers          BOOLEAN NOT NULL DEFAULT 1,
    target               TEXT,
    next_attempt_at      TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
                         CHECK (next_attempt_at > '0001-01-02' AND next_attempt_at < '9999-12-31'),
    ready                BOOLEAN NOT NULL DEFAULT 1,
    position             INTEGER,
    queue_at             TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    queued               BOOLEAN NOT NULL DEFAULT 0,
    send_number          INTEGER NOT NULL DEFAULT 0,
    attempts_before      INTEGER NOT NULL DEFAULT 0,
    dead_letter_sent     BOOLEAN NOT NULL DEFAULT 0,
    claim_seq            INTEGER NOT NULL DEFAULT 0,
    locked_by            TEXT,
    lease_expires_at     TIMESTAMP,
    rescue_count         INTEGER NOT NULL DEFAULT 0,
    defer_count          INTEGER NOT NULL DEFAULT 0
);

INSERT INTO sqlite_sequence (name, seq)
VALUES ('dispatch_job', CAST((julianday('now') - 2458849.5) * 86400000 AS INTEGER) << 22);

CREATE INDEX idx_dispatch_external_id ON dispatch_job (external_id, created_at, id) WHERE external_id IS NOT NULL;
CREATE INDEX idx_dispatch_status ON dispatch_job (status, created_at, id);
CREATE INDEX idx_dispatch_source ON dispatch_job (source, created_at, id);
CREATE INDEX idx_dispatch_type ON dispatch_job (type, created_at, id);
CREATE INDEX idx_dispatch_group_id ON dispatch_job (group_id, created_at, id) WHERE group_id IS NOT NULL;
CREATE INDEX idx_dispatch_scheduled ON dispatch_job (scheduled_for) WHERE scheduled_for IS NOT NULL;
CREATE INDEX idx_dispatch_created ON dispatch_job (created_at, id);
CREATE INDEX homing_job_source_status ON dispatch_job (source, status, created_at, id);

CREATE INDEX homing_job_due ON dispatch_job (target, next_attempt_at, id)
    WHERE ready AND status IN ('PENDING', 'FAILED');
CREATE INDEX homing_job_in_progress ON dispatch_job (target, locked_by) WHERE status = 'IN_PROGRESS';
CREATE INDEX homing_job_unsent ON dispatch_job (queue_at, id) WHERE status IN ('PENDING', 'FAILED');
CREATE INDEX homing_job_expiring ON dispatch_job (expires_at)
    WHERE status IN ('PENDING', 'FAILED') AND expires_at IS NOT NULL;
CREATE INDEX homing_job_group ON dispatch_job (group_id, position)
    WHERE ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS');
-- A row without a target is being completed by the trigger below.
CREATE UNIQUE INDEX homing_job_one_per_group ON dispatch_job (group_id)
    WHERE ordering = 'group' AND ready AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS') AND target IS NOT NULL;
CREATE INDEX homing_job_credentials ON dispatch_job (credentials_id)
    WHERE credentials_id IS NOT NULL AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS');
CREATE INDEX homing_job_dead ON dispatch_job (error_class, id) WHERE status = 'ERROR';
CREATE INDEX homing_job_dead_letter ON dispatch_job (updated_at) WHERE status = 'ERROR' AND NOT dead_letter_sent;
CREATE UNIQUE INDEX homing_job_idempotency ON dispatch_job (idempotency_key, source, type, target_url)
    WHERE idempotency_key IS NOT NULL;

-- A job that another program inserts names no target: what follows from its columns is filled in here.
CREATE TRIGGER homing_job_complete AFTER INSERT ON dispatch_job WHEN NEW.target IS NULL
BEGIN
    UPDATE dispatch_job
    SET target = (
            WITH url AS (
                SELECT lower(substr(NEW.target_url, 1, instr(NEW.target_url, '://') - 1)) AS scheme,
                       replace(replace(substr(NEW.target_url, instr(NEW.target_url, '://') + 3), '?', '/'), '#', '/') || '/' AS rest
            ), authority AS (
                SELECT scheme, lower(substr(rest, 1, instr(rest, '/') - 1)) AS host FROM url
            ), place AS (
                SELECT scheme, host, CASE WHEN host LIKE '[%' THEN instr(host, ']:') + 1 ELSE instr(host, ':') END AS port
                FROM authority
            )
            SELECT CASE WHEN scheme NOT IN ('http', 'https') OR host = '' THEN 'invalid'
                   WHEN host LIKE '[%]' OR (host NOT LIKE '[%' AND instr(host, ':') = 0)
                   THEN scheme || '://' || rtrim(host, '.') || CASE scheme WHEN 'http' THEN ':80' ELSE ':443' END
                        || CASE WHEN NEW.credentials_id IS NULL THEN '' ELSE '#' || NEW.credentials_id END
                   ELSE scheme || '://' || rtrim(substr(host, 1, port - 1), '.') || ':' || CAST(substr(host, port + 1) AS INTEGER)
                        || CASE WHEN NEW.credentials_id IS NULL THEN '' ELSE '#' || NEW.credentials_id END END
            FROM place),
        scheduled_for = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.scheduled_for),
        expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.expires_at),
        next_attempt_at = max(strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at),
                              coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', NEW.scheduled_for), '')),
        position = CASE NEW.ordering WHEN 'group' THEN 1 + (
            SELECT coalesce(max(position), 0) FROM dispatch_job
            WHERE group_id = NEW.group_id AND ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
              AND id <> NEW.id) END,
        ready = NEW.ordering = 'none' OR NOT EXISTS (
            SELECT 1 FROM dispatch_job
            WHERE group_id = NEW.group_id AND ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
              AND id <> NEW.id)
    WHERE id = NEW.id;
END;

CREATE TABLE dispatch_job_metadata (
    id              INTEGER PRIMARY KEY,
    dispatch_job_id INTEGER NOT NULL,
    meta_key        TEXT NOT NULL,
    meta_value      TEXT NOT NULL
);
CREATE INDEX idx_metadata_job_id ON dispatch_job_metadata (dispatch_job_id);
CREATE INDEX idx_metadata_key_value ON dispatch_job_metadata (meta_key, meta_value, dispatch_job_id);

CREATE TABLE dispatch_job_headers (
    dispatch_job_id INTEGER NOT NULL,
    header_name     TEXT NOT NULL,
    header_value    TEXT NOT NULL
);
CREATE INDEX homing_header_job_id ON dispatch_job_headers (dispatch_job_id);

CREATE TABLE dispatch_attempt (
    id                INTEGER PRIMARY KEY,
    dispatch_job_id   INTEGER NOT NULL,
    attempt_number    INTEGER NOT NULL,
    attempted_at      TIMESTAMP NOT NULL,
    completed_at      TIMESTAMP,
    duration_millis   INTEGER,
    status            TEXT NOT NULL CHECK (status IN ('SUCCESS', 'FAILURE')),
    response_code     INTEGER,
    response_body     TEXT,
    error_message     TEXT,
    error_stack_trace TEXT,
    error_class       TEXT,
    response_headers  TEXT CHECK (response_headers IS NULL OR json_valid(response_headers)),
    unknown           BOOLEAN NOT NULL DEFAULT 0,
    created_at        TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE INDEX idx_attempt_job_id ON dispatch_attempt (dispatch_job_id);
CREATE INDEX idx_attempt_status ON dispatch_attempt (status);
CREATE INDEX idx_attempt_attempted_at ON dispatch_attempt (attempted_at);

CREATE TABLE dispatch_credentials (
    id                      INTEGER PRIMARY KEY,
    bearer_token            TEXT,
    signing_secret          TEXT,
    algorithm               TEXT NOT NULL DEFAULT 'HMAC_SHA256',
    created_at              TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    updated_at              TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    name                    TEXT,
    signing_key             TEXT,
    fingerprint             TEXT,
    previous_bearer_token   TEXT,
    previous_signing_secret TEXT,
    previous_signing_key    TEXT,
    previous_until          TIMESTAMP
);

CREATE TABLE homing_router_config (
    id         INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    config     TEXT NOT NULL CHECK (json_valid(config)),
    version    INTEGER NOT NULL DEFAULT 1,
    updated_at TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

CREATE TABLE homing_target (
    target          TEXT PRIMARY KEY,
    max_concurrency INTEGER CHECK (max_concurrency >= 1),
    rate_per_second REAL CHECK (rate_per_second > 0),
    tokens          REAL NOT NULL DEFAULT 1,
    tokens_at       TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    -- What the claim under way may take by the rate.
    granted         INTEGER,
    paused_until    TIMESTAMP,
    pause_reason    TEXT,
    failures        INTEGER NOT NULL DEFAULT 0,
    open_until      TIMESTAMP,
    cooldown        REAL NOT NULL DEFAULT 0,
    last_error      TEXT,
    updated_at      TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

-- The ids that were given out, so that they only rise whoever asks for them: a batch takes those from `base` to
-- `last`. `seen` is how far a sweep looked.
CREATE TABLE homing_tsid (base INTEGER NOT NULL, last INTEGER NOT NULL, seen INTEGER);
INSERT INTO homing_tsid VALUES (0, 0, NULL);
