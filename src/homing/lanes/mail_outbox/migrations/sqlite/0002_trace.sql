-- As on PostgreSQL.
ALTER TABLE mail_outbox ADD COLUMN traceparent TEXT;
ALTER TABLE mail_outbox ADD COLUMN send_at TIMESTAMP;
