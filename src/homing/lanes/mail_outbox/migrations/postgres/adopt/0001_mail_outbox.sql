-- table: mail_outbox
-- Another program has made the table: what it has stays as it is, and only what is missing is added. What cannot be
-- worked with is refused before this is run (adopt.py). Times without a zone are UTC: our sessions are.
ALTER TABLE mail_outbox
    ADD COLUMN IF NOT EXISTS retry_count         integer NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    ADD COLUMN IF NOT EXISTS next_attempt_at     timestamptz NOT NULL DEFAULT now()
                                                 CHECK (next_attempt_at > '0001-01-02Z' AND next_attempt_at < '9999-12-30Z'),
    ADD COLUMN IF NOT EXISTS last_attempt_at     timestamptz,
    ADD COLUMN IF NOT EXISTS last_error          text,
    ADD COLUMN IF NOT EXISTS from_address        text,
    ADD COLUMN IF NOT EXISTS cc_address          text,
    ADD COLUMN IF NOT EXISTS bcc_address         text,
    ADD COLUMN IF NOT EXISTS reply_to            text,
    ADD COLUMN IF NOT EXISTS text_body           text,
    ADD COLUMN IF NOT EXISTS html_body           text,
    ADD COLUMN IF NOT EXISTS template            text,
    ADD COLUMN IF NOT EXISTS variables           jsonb,
    ADD COLUMN IF NOT EXISTS locale              text,
    ADD COLUMN IF NOT EXISTS headers             jsonb,
    ADD COLUMN IF NOT EXISTS attachments         jsonb,
    ADD COLUMN IF NOT EXISTS unsubscribe_url     text,
    ADD COLUMN IF NOT EXISTS idempotency_key     text,
    ADD COLUMN IF NOT EXISTS fingerprint         text,
    ADD COLUMN IF NOT EXISTS expires_at          timestamptz CHECK (expires_at > '0001-01-02Z' AND expires_at < '9999-12-30Z'),
    ADD COLUMN IF NOT EXISTS metadata            jsonb,
    ADD COLUMN IF NOT EXISTS token               text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
    ADD COLUMN IF NOT EXISTS recipients          jsonb,
    ADD COLUMN IF NOT EXISTS provider            text,
    ADD COLUMN IF NOT EXISTS provider_message_id text,
    ADD COLUMN IF NOT EXISTS created_at          timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN IF NOT EXISTS sent_at             timestamptz,
    ADD COLUMN IF NOT EXISTS claim_seq           bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS locked_by           text,
    ADD COLUMN IF NOT EXISTS lease_expires_at    timestamptz,
    ADD COLUMN IF NOT EXISTS rescue_count        integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS defer_count         integer NOT NULL DEFAULT 0;

-- As on a table of ours.
CREATE INDEX mail_outbox_due ON mail_outbox (next_attempt_at, id) WHERE status = 'queued';
CREATE INDEX mail_outbox_dispatching ON mail_outbox (id) WHERE status = 'dispatching';
CREATE INDEX mail_outbox_retried ON mail_outbox (retry_count) WHERE status = 'queued' AND retry_count > 0;
CREATE INDEX mail_outbox_expiring ON mail_outbox (expires_at) WHERE status = 'queued' AND expires_at IS NOT NULL;
CREATE INDEX mail_outbox_ended ON mail_outbox (status, id) WHERE status IN ('failed', 'cancelled', 'expired');
CREATE UNIQUE INDEX mail_outbox_idempotency ON mail_outbox (idempotency_key) WHERE idempotency_key IS NOT NULL;
-- States of the other program's own, so that they are not counted as ours.
CREATE INDEX homing_mail_outbox_foreign ON mail_outbox (id)
    WHERE status NOT IN ('queued', 'dispatching', 'sent', 'failed', 'cancelled', 'expired');
