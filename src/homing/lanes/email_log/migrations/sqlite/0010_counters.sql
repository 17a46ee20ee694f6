-- As on PostgreSQL. Here a number that is counted up beyond its end becomes a fraction, and no longer rises; and after
-- the last id there is no other.

UPDATE email_log
SET claim_seq = min(max(CAST(claim_seq AS INTEGER), 0), 9007199254740992),
    attempt_count = min(max(CAST(attempt_count AS INTEGER), 0), 1000000),
    rescue_count = min(max(CAST(rescue_count AS INTEGER), 0), 1000000),
    defer_count = min(max(CAST(defer_count AS INTEGER), 0), 1000000),
    publish_failures = min(max(CAST(publish_failures AS INTEGER), 0), 1000000),
    queue_count = min(max(CAST(queue_count AS INTEGER), 0), 1000000)
WHERE status IN ('Pending', 'RetryQueued', 'Failed')
  AND (claim_seq NOT BETWEEN 0 AND 9007199254740992 OR attempt_count NOT BETWEEN 0 AND 1000000
       OR rescue_count NOT BETWEEN 0 AND 1000000 OR defer_count NOT BETWEEN 0 AND 1000000
       OR publish_failures NOT BETWEEN 0 AND 1000000 OR queue_count NOT BETWEEN 0 AND 1000000);

CREATE TRIGGER homing_email_counters AFTER INSERT ON email_log
WHEN NEW.id > 4611686018427387904 OR NEW.claim_seq NOT BETWEEN 0 AND 9007199254740992 OR NEW.attempt_count NOT BETWEEN 0 AND 1000000
  OR NEW.rescue_count NOT BETWEEN 0 AND 1000000 OR NEW.defer_count NOT BETWEEN 0 AND 1000000
  OR NEW.publish_failures NOT BETWEEN 0 AND 1000000 OR NEW.queue_count NOT BETWEEN 0 AND 1000000
BEGIN
    SELECT RAISE(ABORT, 'id, claim_seq, attempt_count, rescue_count, defer_count, publish_failures and queue_count are kept by Homing; leave them out');
END;
