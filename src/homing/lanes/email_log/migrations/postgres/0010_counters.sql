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

CREATE FUNCTION homing_email_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE check_violation USING MESSAGE = TG_ARGV[0];
END
$$;

CREATE TRIGGER homing_email_counters BEFORE INSERT ON email_log FOR EACH ROW
    WHEN (NEW.claim_seq NOT BETWEEN 0 AND 9007199254740992 OR NEW.attempt_count NOT BETWEEN 0 AND 1000000
          OR NEW.rescue_count NOT BETWEEN 0 AND 1000000 OR NEW.defer_count NOT BETWEEN 0 AND 1000000
          OR NEW.publish_failures NOT BETWEEN 0 AND 1000000 OR NEW.queue_count NOT BETWEEN 0 AND 1000000)
    EXECUTE FUNCTION homing_email_refuse(
        'claim_seq, attempt_count, rescue_count, defer_count, publish_failures and queue_count are kept by Homing; leave them out');
