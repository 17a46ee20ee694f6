-- An idempotency key is one of its credentials too: two subscribers behind one URL both get the event. The index
-- before, homing_job_idempotency, knows nothing of credentials. It stays for processes of the version before, whose
-- ON CONFLICT names its columns, and is dropped when the last of them has stopped (`drop_old_key_index`).
CREATE UNIQUE INDEX homing_job_key
    ON dispatch_job (idempotency_key, source, type, md5(target_url), coalesce(credentials_id, 0))
    WHERE idempotency_key IS NOT NULL;

-- All that is asked of durations, without a look at the rows: the mean of a million is an eighth of a second.
CREATE INDEX homing_job_completed ON dispatch_job (type, duration_millis) WHERE status = 'COMPLETED';
-- Jobs that require attention, in the specification's words.
CREATE INDEX homing_job_attention ON dispatch_job (created_at, id)
    WHERE status = 'ERROR' OR (status = 'FAILED' AND attempt_count >= max_retries - 1);
