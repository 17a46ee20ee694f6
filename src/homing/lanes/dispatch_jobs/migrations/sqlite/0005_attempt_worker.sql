-- As on PostgreSQL.
ALTER TABLE dispatch_attempt ADD COLUMN worker TEXT;
