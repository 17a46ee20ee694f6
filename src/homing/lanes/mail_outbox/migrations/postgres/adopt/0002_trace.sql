-- table: mail_outbox
ALTER TABLE mail_outbox
    ADD COLUMN IF NOT EXISTS traceparent text,
    ADD COLUMN IF NOT EXISTS send_at timestamptz;
