-- As on PostgreSQL.
DROP INDEX idx_dispatch_type;
CREATE INDEX idx_dispatch_type ON dispatch_job (type, created_at, id, status, duration_millis);
-- With what its condition asks, which SQLite looks up in the rows otherwise.
CREATE INDEX homing_job_attention ON dispatch_job (created_at, id, status, attempt_count, max_retries)
    WHERE status = 'ERROR' OR (status = 'FAILED' AND attempt_count >= max_retries - 1);
