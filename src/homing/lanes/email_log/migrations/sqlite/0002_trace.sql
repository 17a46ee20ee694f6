-- As on PostgreSQL.
ALTER TABLE email_log ADD COLUMN traceparent TEXT;
