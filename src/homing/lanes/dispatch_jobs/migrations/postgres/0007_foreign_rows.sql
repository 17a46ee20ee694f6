-- Which claim an attempt was: a late result finds the row that the rescue left of it. The attempts of one job are few,
-- so the index by job finds it.
ALTER TABLE dispatch_attempt ADD COLUMN claim_seq bigint;

-- A strategy that is unknown here ends the job with that reason; to refuse the row would say it to nobody but its producer.
ALTER TABLE dispatch_job DROP CONSTRAINT IF EXISTS dispatch_job_retry_strategy_check;

-- Claims read what is due from one index, so whoever reschedules a job by SQL alone, or puts one back, moves its due time
-- here. Who sets that time as well means both. After the update, and not before it: claims and settlements then pay a look
-- at a condition, and no lock.
CREATE FUNCTION homing_job_reschedule() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    UPDATE dispatch_job
    SET next_attempt_at = greatest(scheduled_for, now()), queue_at = greatest(scheduled_for, now()), queued = false,
        attempts_before = least(attempts_before, attempt_count)
    WHERE id = NEW.id AND status = 'PENDING';
    RETURN NULL;
END
$$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION homing_job_reschedule() SET search_path = %s, pg_temp', current_setting('search_path'));
END
$$;
CREATE TRIGGER homing_job_reschedule AFTER UPDATE OF scheduled_for, status ON dispatch_job FOR EACH ROW
    WHEN (NEW.status = 'PENDING' AND NEW.next_attempt_at = OLD.next_attempt_at
          AND (NEW.scheduled_for IS DISTINCT FROM OLD.scheduled_for OR OLD.status NOT IN ('PENDING', 'IN_PROGRESS')))
    EXECUTE FUNCTION homing_job_reschedule();
