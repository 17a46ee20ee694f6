-- As on PostgreSQL. Here a number that is counted up beyond its end becomes a fraction, and no longer rises; and after
-- the last id there is no other.

UPDATE mail_outbox
SET claim_seq = min(max(CAST(claim_seq AS INTEGER), 0), 9007199254740992),
    retry_count = min(CAST(retry_count AS INTEGER), 1000000),
    rescue_count = min(max(CAST(rescue_count AS INTEGER), 0), 1000000),
    defer_count = min(max(CAST(defer_count AS INTEGER), 0), 1000000)
WHERE status IN ('queued', 'dispatching')
  AND (claim_seq NOT BETWEEN 0 AND 9007199254740992 OR retry_count > 1000000
       OR rescue_count NOT BETWEEN 0 AND 1000000 OR defer_count NOT BETWEEN 0 AND 1000000);

CREATE TRIGGER homing_mail_counters AFTER INSERT ON mail_outbox
WHEN NEW.id > 4611686018427387904 OR NEW.claim_seq NOT BETWEEN 0 AND 9007199254740992 OR NEW.retry_count > 1000000
  OR NEW.rescue_count NOT BETWEEN 0 AND 1000000 OR NEW.defer_count NOT BETWEEN 0 AND 1000000
BEGIN
    SELECT RAISE(ABORT, 'id, claim_seq, retry_count, rescue_count and defer_count are kept by Homing; leave them out');
END;
