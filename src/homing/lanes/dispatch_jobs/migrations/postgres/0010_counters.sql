-- Columns that are only counted up, and claims, rescues and settlements are one statement for many rows: a number next
-- to the end of its type, which any producer can insert, would make it fail for all of them, and again with each try.
-- Refused where it comes from, far below that end, so that no claim is ever stopped by one; a CHECK would be asked by
-- each claim as well. What is there already comes first, while nothing is locked.

UPDATE dispatch_job
SET claim_seq = least(greatest(claim_seq, 0), 9007199254740992),
    attempt_count = least(greatest(attempt_count, 0), 1000000),
    attempts_before = least(greatest(attempts_before, 0), 1000000),
    send_number = least(greatest(send_number, 0), 1000000), rescue_count = least(greatest(rescue_count, 0), 1000000),
    defer_count = least(greatest(defer_count, 0), 1000000)
WHERE status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
  AND (claim_seq NOT BETWEEN 0 AND 9007199254740992
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

-- Within the trigger that every plain INSERT has fired already, which costs next to nothing. Not as its condition: that is
-- read anew for each statement, and made a row that is inserted alone a twelfth dearer (both measured).
CREATE OR REPLACE FUNCTION homing_job_complete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.claim_seq NOT BETWEEN 0 AND 9007199254740992
       OR least(NEW.attempt_count, NEW.attempts_before, NEW.send_number, NEW.rescue_count, NEW.defer_count) < 0
       OR greatest(NEW.attempt_count, NEW.attempts_before, NEW.send_number, NEW.rescue_count, NEW.defer_count) > 1000000
    THEN
        RAISE check_violation USING MESSAGE =
            'claim_seq, attempt_count, attempts_before, send_number, rescue_count and defer_count are kept by Homing; leave them out';
    END IF;
    -- From an infinite time PostgreSQL subtracts none, and to one near the end of its range it adds nothing.
    IF least(NEW.created_at, NEW.updated_at, NEW.scheduled_for, NEW.expires_at, NEW.next_attempt_at, NEW.queue_at,
             NEW.last_attempt_at, NEW.completed_at, NEW.lease_expires_at) < '0001-01-02Z'
       OR greatest(NEW.created_at, NEW.updated_at, NEW.scheduled_for, NEW.expires_at, NEW.next_attempt_at, NEW.queue_at,
                   NEW.last_attempt_at, NEW.completed_at, NEW.lease_expires_at) > '9999-12-30Z'
    THEN
        RAISE check_violation USING MESSAGE =
            'a time of this row is not between 0001-01-02 and 9999-12-30, as every time has to be; write another, or none';
    END IF;
    IF NEW.target IS NOT NULL THEN
        RETURN NEW;
    END IF;
    -- As before (0001_dispatch_job.sql).
    NEW.target := homing_target_of(NEW.target_url, NEW.credentials_id);
    NEW.next_attempt_at := greatest(coalesce(NEW.scheduled_for, NEW.next_attempt_at), NEW.next_attempt_at);
    IF NEW.ordering = 'group' THEN
        PERFORM pg_advisory_xact_lock(hashtext('homing_job_group'), hashtext(NEW.group_id));
        NEW.position := nextval('homing_job_position');
        NEW.ready := NOT EXISTS (
            SELECT FROM dispatch_job
            WHERE group_id = NEW.group_id AND ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS'));
    END IF;
    RETURN NEW;
END
$$;
DROP TRIGGER homing_job_complete ON dispatch_job;
CREATE TRIGGER homing_job_complete BEFORE INSERT ON dispatch_job FOR EACH ROW EXECUTE FUNCTION homing_job_complete();
