-- table: mail_outbox
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS traceparent TEXT;
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS send_at TEXT;
