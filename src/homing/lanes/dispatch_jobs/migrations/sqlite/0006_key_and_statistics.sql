-- As on PostgreSQL.
CREATE UNIQUE INDEX homing_job_key
    ON dispatch_job (idempotency_key, source, type, target_url, coalesce(credentials_id, 0))
    WHERE idempotency_key IS NOT NULL;

CREATE INDEX homing_job_completed ON dispatch_job (type, duration_millis) WHERE status = 'COMPLETED';
CREATE INDEX homing_job_attention ON dispatch_job (created_at, id)
    WHERE status = 'ERROR' OR (status = 'FAILED' AND attempt_count >= max_retries - 1);
