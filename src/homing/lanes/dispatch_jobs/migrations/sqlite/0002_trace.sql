-- As on PostgreSQL.
ALTER TABLE dispatch_job ADD COLUMN traceparent TEXT;
ALTER TABLE dispatch_job ADD COLUMN tracestate TEXT;
