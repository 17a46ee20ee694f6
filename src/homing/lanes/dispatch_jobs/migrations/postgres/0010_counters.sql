-- Columns that are only counted up, and claims, rescues and settlements are one statement for many rows: a number next
-- to the end of its type, which any producer can insert, would make it fail for all of them, and again with each try.
-- Refused where it comes from, far below that end, so that no claim is ever stopped by one; a CHECK would be asked by
-- each claim as well. What is there already comes first, while nothing is locked.

UPDATE dispatch_job
SET claim_seq = least(greatest(claim_seq, 0), 9007199254740992),
    position = CASE WHEN position IS NOT NULL THEN least(greatest(position, 0), 4611686018427387904) END,
    attempt_count = least(greatest(attempt_count, 0), 1000000),
    attempts_before = least(greatest(attempts_before, 0), 1000000),
    send_number = least(greatest(send_number, 0), 1000000), rescue_count = least(greatest(rescue_count, 0), 1000000),
    defer_count = least(greatest(defer_count, 0), 1000000)
WHERE status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
  AND (claim_seq NOT BETWEEN 0 AND 9007199254740992 OR position NOT BETWEEN 0 AND 4611686018427387904
       OR attempt_count NOT BETWEEN 0 AND 1000000 OR attempts_before NOT BETWEEN 0 AND 1000000
       OR send_number NOT BETWEEN 0 AND 1000000 OR rescue_count NOT BETWEEN 0 AND 1000000
       OR defer_count NOT BETWEEN 0 AND 1000000);

UPDATE dispatch_job
SET created_at = least(greatest(created_at, '0001-01-02Z'), '9999-12-30Z'),
    updated_at = least(greatest(updated_at, '0001-01-02Z'), '9999-12-30Z'),
    scheduled_for = CASE WHEN scheduled_for IS NOT NULL THEN least(greatest(scheduled_for, '0001-01-02Z'), '9999-12-30Z') END,
    expires_at = CASE WHEN expires_at IS NOT NULL THEN least(greatest(expires_at, '0001-01-02Z'), '9999-12-30Z') END,
    next_attempt_at = least(greatest(next_attempt_at, '0001-01-02Z'), '9999-12-30Z'),
    queue_at = least(greatest(queue_at, '0001-01-02Z'), '9999-12-30Z'),
    last_attempt_at = CASE WHEN last_attempt_at IS NOT NULL THEN least(greatest(last_attempt_at, '0001-01-02Z'), '9999-12-30Z') END,
    completed_at = CASE WHEN completed_at IS NOT NULL THEN least(greatest(completed_at, '0001-01-02Z'), '9999-12-30Z') END,
    lease_expires_at = CASE WHEN lease_expires_at IS NOT NULL THEN least(greatest(lease_expires_at, '0001-01-02Z'), '9999-12-30Z') END
WHERE status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
  AND (created_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
       OR updated_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
       OR scheduled_for NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
       OR expires_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
       OR next_attempt_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
       OR queue_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
       OR last_attempt_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
       OR completed_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
       OR lease_expires_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z');

CREATE FUNCTION homing_job_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE check_violation USING MESSAGE = TG_ARGV[0];
END
$$;

CREATE TRIGGER homing_job_counters BEFORE INSERT ON dispatch_job FOR EACH ROW
    WHEN (NEW.claim_seq NOT BETWEEN 0 AND 9007199254740992 OR NEW.position NOT BETWEEN 0 AND 4611686018427387904
          OR NEW.attempt_count NOT BETWEEN 0 AND 1000000 OR NEW.attempts_before NOT BETWEEN 0 AND 1000000
          OR NEW.send_number NOT BETWEEN 0 AND 1000000 OR NEW.rescue_count NOT BETWEEN 0 AND 1000000
          OR NEW.defer_count NOT BETWEEN 0 AND 1000000)
    EXECUTE FUNCTION homing_job_refuse(
        'claim_seq, position, attempt_count, attempts_before, send_number, rescue_count and defer_count are kept by Homing; leave them out');

-- From an infinite time PostgreSQL subtracts none, and to one near the end of its range it adds nothing.
CREATE TRIGGER homing_job_times BEFORE INSERT ON dispatch_job FOR EACH ROW
    WHEN (NEW.created_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
          OR NEW.updated_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
          OR NEW.scheduled_for NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
          OR NEW.expires_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
          OR NEW.next_attempt_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
          OR NEW.queue_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
          OR NEW.last_attempt_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
          OR NEW.completed_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z'
          OR NEW.lease_expires_at NOT BETWEEN '0001-01-02Z' AND '9999-12-30Z')
    EXECUTE FUNCTION homing_job_refuse(
        'a time of this row is not between 0001-01-02 and 9999-12-30, as every time has to be; write another, or none');
