-- As on PostgreSQL. Here a number that is counted up beyond its end becomes a fraction, and no longer rises.

UPDATE dispatch_job
SET claim_seq = min(max(CAST(claim_seq AS INTEGER), 0), 9007199254740992),
    position = min(max(CAST(position AS INTEGER), 0), 4611686018427387904),
    attempt_count = min(max(CAST(attempt_count AS INTEGER), 0), 1000000),
    attempts_before = min(max(CAST(attempts_before AS INTEGER), 0), 1000000),
    send_number = min(max(CAST(send_number AS INTEGER), 0), 1000000),
    rescue_count = min(max(CAST(rescue_count AS INTEGER), 0), 1000000),
    defer_count = min(max(CAST(defer_count AS INTEGER), 0), 1000000)
WHERE status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
  AND (claim_seq NOT BETWEEN 0 AND 9007199254740992 OR position NOT BETWEEN 0 AND 4611686018427387904
       OR attempt_count NOT BETWEEN 0 AND 1000000 OR attempts_before NOT BETWEEN 0 AND 1000000
       OR send_number NOT BETWEEN 0 AND 1000000 OR rescue_count NOT BETWEEN 0 AND 1000000
       OR defer_count NOT BETWEEN 0 AND 1000000);

CREATE TRIGGER homing_job_counters AFTER INSERT ON dispatch_job
WHEN NEW.claim_seq NOT BETWEEN 0 AND 9007199254740992 OR NEW.position NOT BETWEEN 0 AND 4611686018427387904
  OR NEW.attempt_count NOT BETWEEN 0 AND 1000000 OR NEW.attempts_before NOT BETWEEN 0 AND 1000000
  OR NEW.send_number NOT BETWEEN 0 AND 1000000 OR NEW.rescue_count NOT BETWEEN 0 AND 1000000
  OR NEW.defer_count NOT BETWEEN 0 AND 1000000
BEGIN
    SELECT RAISE(ABORT, 'claim_seq, position, attempt_count, attempts_before, send_number, rescue_count and defer_count are kept by Homing; leave them out');
END;
