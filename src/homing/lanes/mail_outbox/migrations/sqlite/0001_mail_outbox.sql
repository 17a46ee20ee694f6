-- As on PostgreSQL. Times are ISO text in UTC with milliseconds and Z, so that they sort as they are.
CREATE TABLE mail_outbox (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    status              TEXT NOT NULL DEFAULT 'queued'
                        CHECK (status IN ('queued', 'dispatching', 'sent', 'failed', 'cancelled', 'expired')),
    retry_count         INTEGER NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    next_attempt_at     TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
                        CHECK (next_attempt_at > '0001-01-02' AND next_attempt_at < '9999-12-30'),
    last_attempt_at     TIMESTAMP,
    last_error          TEXT,

    from_address        TEXT,
    to_address          TEXT NOT NULL,
    cc_address          TEXT,
    bcc_address         TEXT,
    reply_to            TEXT,
    subject             TEXT NOT NULL DEFAULT '',
    text_body           TEXT,
    html_body           TEXT,
    template            TEXT,
    variables           TEXT CHECK (variables IS NULL OR json_valid(variables)),
    locale              TEXT,
    headers             TEXT CHECK (headers IS NULL OR json_valid(headers)),
    attachments         TEXT CHECK (attachments IS NULL OR json_valid(attachments)),
    unsubscribe_url     TEXT,
    idempotency_key     TEXT,
    fingerprint         TEXT,
    expires_at          TIMESTAMP CHECK (expires_at > '0001-01-02' AND expires_at < '9999-12-30'),
    metadata            TEXT CHECK (metadata IS NULL OR json_valid(metadata)),
    token               TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),

    recipients          TEXT CHECK (recipients IS NULL OR json_valid(recipients)),
    provider            TEXT,
    provider_message_id TEXT,
    created_at          TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    sent_at             TIMESTAMP,

    claim_seq           INTEGER NOT NULL DEFAULT 0,
    locked_by           TEXT,
    lease_expires_at    TIMESTAMP,
    rescue_count        INTEGER NOT NULL DEFAULT 0,
    defer_count         INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX mail_outbox_due ON mail_outbox (next_attempt_at, id) WHERE status = 'queued';
CREATE INDEX mail_outbox_dispatching ON mail_outbox (id) WHERE status = 'dispatching';
CREATE INDEX mail_outbox_retried ON mail_outbox (retry_count) WHERE status = 'queued' AND retry_count > 0;
CREATE INDEX mail_outbox_expiring ON mail_outbox (expires_at) WHERE status = 'queued' AND expires_at IS NOT NULL;
CREATE INDEX mail_outbox_ended ON mail_outbox (status, id) WHERE status IN ('failed', 'cancelled', 'expired');
CREATE UNIQUE INDEX mail_outbox_idempotency ON mail_outbox (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Another program may write a time in another form ('2026-01-02 03:04:05'), which would sort wrongly as
-- text. What SQLite can read is put into ours; what it cannot read makes the insert fail.
CREATE TRIGGER mail_outbox_times_on_insert AFTER INSERT ON mail_outbox
WHEN NEW.next_attempt_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at)
  OR NEW.expires_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.expires_at)
BEGIN
    UPDATE mail_outbox
    SET next_attempt_at = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at),
        expires_at = CASE WHEN NEW.expires_at IS NULL THEN NULL
                          ELSE coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', NEW.expires_at),
                                        RAISE(ABORT, 'expires_at is no time that SQLite can read')) END
    WHERE id = NEW.id;
END;
CREATE TRIGGER mail_outbox_times_on_update AFTER UPDATE OF next_attempt_at, expires_at ON mail_outbox
WHEN NEW.next_attempt_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at)
  OR NEW.expires_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.expires_at)
BEGIN
    UPDATE mail_outbox
    SET next_attempt_at = strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at),
        expires_at = CASE WHEN NEW.expires_at IS NULL THEN NULL
                          ELSE coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', NEW.expires_at),
                                        RAISE(ABORT, 'expires_at is no time that SQLite can read')) END
    WHERE id = NEW.id;
END;
