-- As on PostgreSQL. Times are ISO text in UTC with milliseconds and Z, so that they sort as they are.
CREATE TABLE email_log (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    -- For length() and GLOB a text ends at a NUL.
    message_key         TEXT NOT NULL DEFAULT (lower(hex(randomblob(16))))
                        CHECK (typeof(message_key) = 'text' AND length(message_key) BETWEEN 1 AND 255
                               AND instr(message_key, char(0)) = 0
                               AND message_key NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'),
    to_address          TEXT NOT NULL,
    subject             TEXT NOT NULL DEFAULT '',
    body                TEXT,
    status              TEXT NOT NULL DEFAULT 'Pending'
                        CHECK (status IN ('Pending', 'RetryQueued', 'Sent', 'Failed', 'Dead')),
    attempt_count       INTEGER NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    next_attempt_at     TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
                        CHECK (next_attempt_at > '0001-01-02' AND next_attempt_at < '9999-12-30'),
    last_error          TEXT,
    locked_until        TIMESTAMP,
    dead_reason         TEXT,
    last_queued_at      TIMESTAMP,
    created_at          TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    sent_at             TIMESTAMP,

    from_address        TEXT,
    cc_address          TEXT,
    bcc_address         TEXT,
    reply_to            TEXT,
    html_body           TEXT,
    template            TEXT,
    variables           TEXT CHECK (variables IS NULL OR json_valid(variables)),
    locale              TEXT,
    headers             TEXT CHECK (headers IS NULL OR json_valid(headers)),
    attachments         TEXT CHECK (attachments IS NULL OR json_valid(attachments)),
    unsubscribe_url     TEXT,
    token               TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),

    recipients          TEXT CHECK (recipients IS NULL OR json_valid(recipients)),
    provider            TEXT,
    provider_message_id TEXT,
    last_attempt_at     TIMESTAMP,

    claim_seq           INTEGER NOT NULL DEFAULT 0,
    locked_by           TEXT,
    rescue_count        INTEGER NOT NULL DEFAULT 0,
    defer_count         INTEGER NOT NULL DEFAULT 0,
    publish_failures    INTEGER NOT NULL DEFAULT 0,
    queue_count         INTEGER NOT NULL DEFAULT 0,
    announced_at        TIMESTAMP
);

CREATE INDEX email_log_due ON email_log (status, next_attempt_at);
CREATE INDEX email_log_retried ON email_log (attempt_count) WHERE status IN ('Failed', 'RetryQueued', 'Pending') AND attempt_count > 0;
CREATE INDEX email_log_open ON email_log (status, id) WHERE status IN ('Failed', 'Dead', 'RetryQueued');
CREATE INDEX email_log_locked ON email_log (id) WHERE locked_by IS NOT NULL;
CREATE INDEX email_log_unannounced ON email_log (id) WHERE status = 'Dead' AND announced_at IS NULL;
-- A statement here writes one table, so a new key finds its row by this, too.
CREATE UNIQUE INDEX email_log_message_key ON email_log (message_key);

CREATE TABLE email_idempotency (
    message_key  TEXT PRIMARY KEY,
    email_id     INTEGER NOT NULL,
    fingerprint  TEXT,
    completed_at TIMESTAMP,
    created_at   TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

-- Another program may write a time in another form ('2026-01-02 03:04:05'), which would sort wrongly as
-- text. What SQLite can read is put into ours; what it cannot read makes the statement fail.
CREATE TRIGGER email_log_times_on_insert AFTER INSERT ON email_log
WHEN NEW.next_attempt_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at)
  OR NEW.locked_until IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.locked_until)
  OR NEW.last_queued_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.last_queued_at)
BEGIN
    UPDATE email_log
    SET next_attempt_at = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at),
        locked_until = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.locked_until),
        last_queued_at = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.last_queued_at)
    WHERE id = NEW.id;
END;
CREATE TRIGGER email_log_times_on_update AFTER UPDATE OF next_attempt_at, locked_until, last_queued_at ON email_log
WHEN NEW.next_attempt_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at)
  OR NEW.locked_until IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.locked_until)
  OR NEW.last_queued_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.last_queued_at)
BEGIN
    UPDATE email_log
    SET next_attempt_at = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at),
        locked_until = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.locked_until),
        last_queued_at = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.last_queued_at)
    WHERE id = NEW.id;
END;
