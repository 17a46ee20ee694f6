-- Columns that are only counted up, and claims, rescues and settlements are one statement for many rows: a number next
-- to the end of its type, which any producer can insert, would make it fail for all of them, and again with each try.
-- Refused where it comes from, far below that end, so that no claim is ever stopped by one; a CHECK would be asked by
-- each claim as well. What is there already comes first, while nothing is locked.

UPDATE email_log
SET claim_seq = least(greatest(claim_seq, 0), 9007199254740992),
    attempt_count = least(greatest(attempt_count, 0), 1000000),
    rescue_count = least(greatest(rescue_count, 0), 1000000), defer_count = least(greatest(defer_count, 0), 1000000),
    publish_failures = least(greatest(publish_failures, 0), 1000000),
    queue_count = least(greatest(queue_count, 0), 1000000)
WHERE status IN ('Pending', 'RetryQueued', 'Failed')
  AND (claim_seq NOT BETWEEN 0 AND 9007199254740992 OR attempt_count NOT BETWEEN 0 AND 1000000
       OR rescue_count NOT BETWEEN 0 AND 1000000 OR defer_count NOT BETWEEN 0 AND 1000000
       OR publish_failures NOT BETWEEN 0 AND 1000000 OR queue_count NOT BETWEEN 0 AND 1000000);

-- Not as a condition of the trigger: that is read anew for each statement, and made a row that is inserted alone a
-- twelfth dearer (measured).
CREATE FUNCTION homing_email_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.claim_seq NOT BETWEEN 0 AND 9007199254740992
       OR least(NEW.attempt_count, NEW.rescue_count, NEW.defer_count, NEW.publish_failures, NEW.queue_count) < 0
       OR greatest(NEW.attempt_count, NEW.rescue_count, NEW.defer_count, NEW.publish_failures, NEW.queue_count) > 1000000
    THEN
        RAISE check_violation USING MESSAGE =
            'claim_seq, attempt_count, rescue_count, defer_count, publish_failures and queue_count are kept by Homing; leave them out';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER homing_email_counters BEFORE INSERT ON email_log FOR EACH ROW EXECUTE FUNCTION homing_email_check();
