-- email_log on PostgreSQL: the scheduling stage. What is due is claimed, published, and written down as queued.

-- fragment: claimed
e.id, e.claim_seq AS fence, e.attempt_count AS attempts, e.publish_failures AS deferrals,
    -- A message that is queued is not delivered yet: the sending stage measures.
    NULL AS age, e.traceparent, e.next_attempt_at AS due_at, e.message_key

-- fragment: due
-- Three kinds of rows, each a jump in the index (status, next_attempt_at): a failed one whose time has come; one
-- whose scheduler died; one that was never queued, or whose message must be taken for lost. What is being sent is
-- locked, and its lock is the rescue's business.
failed AS MATERIALIZED (
    SELECT id, next_attempt_at
    FROM email_log
    WHERE status = 'Failed' AND next_attempt_at <= now() AND attempt_count < :max_attempts
      AND (locked_until IS NULL OR locked_until < now())
    ORDER BY next_attempt_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), abandoned AS MATERIALIZED (
    SELECT id, next_attempt_at
    FROM email_log
    WHERE status = 'RetryQueued' AND next_attempt_at <= now() AND attempt_count < :max_attempts
      AND (locked_until IS NULL OR locked_until < now())
    ORDER BY next_attempt_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), unqueued AS MATERIALIZED (
    SELECT id, next_attempt_at
    FROM email_log
    WHERE status = 'Pending' AND next_attempt_at <= now() AND attempt_count < :max_attempts
      AND (last_queued_at IS NULL OR last_queued_at <= now() - make_interval(secs => :sweep_seconds))
      AND (locked_until IS NULL OR locked_until < now() AND (locked_by IS NULL OR last_queued_at IS NULL))
    ORDER BY next_attempt_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (
    SELECT * FROM failed UNION ALL SELECT * FROM abandoned UNION ALL SELECT * FROM unqueued
    ORDER BY next_attempt_at, id
    LIMIT :limit
)

-- name: claim
WITH {due}
UPDATE email_log AS e
SET status = 'RetryQueued',
    claim_seq = e.claim_seq + 1,
    locked_by = :owner,
    locked_until = now() + make_interval(secs => :lease_seconds)
FROM chosen
WHERE e.id = chosen.id
RETURNING {claimed}

-- name: preview
WITH {due}
SELECT id, next_attempt_at FROM chosen ORDER BY next_attempt_at, id

-- name: settle
-- A failed publish leaves the count alone. What has failed before is Failed again; what was never tried waits as
-- it did before. The window after which a message is taken for lost doubles with each publish: a long queue is no
-- loss.
WITH batch AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:batch::json) AS b(
        id bigint, fence bigint, published boolean, delay double precision, error text)
), held AS MATERIALIZED (
    SELECT id, claim_seq
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND locked_by IS NOT NULL
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.* FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
)
UPDATE email_log AS e
SET status = CASE WHEN mine.published OR e.attempt_count + e.defer_count = 0 THEN 'Pending' ELSE 'Failed' END,
    last_queued_at = CASE WHEN mine.published THEN now()
                          WHEN e.attempt_count + e.defer_count = 0 THEN NULL ELSE e.last_queued_at END,
    next_attempt_at = CASE WHEN mine.published
                           THEN now() + make_interval(secs => :sweep_seconds) * 2 ^ least(e.queue_count, 6)
                           ELSE greatest(e.next_attempt_at, now() + make_interval(secs => mine.delay)) END,
    publish_failures = CASE WHEN mine.published THEN 0 ELSE e.publish_failures + 1 END,
    queue_count = e.queue_count + mine.published::integer,
    last_error = CASE WHEN mine.published THEN e.last_error ELSE coalesce(e.last_error, mine.error) END,
    locked_by = NULL,
    locked_until = NULL
FROM mine
WHERE e.id = mine.id
RETURNING e.id

-- name: confirm
SELECT e.id
FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
JOIN email_log AS e ON e.id = b.id
WHERE e.claim_seq = b.fence AND e.locked_by IS NULL

-- name: renew
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), held AS MATERIALIZED (
    SELECT id, claim_seq
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND locked_by IS NOT NULL
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.id FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
)
UPDATE email_log AS e
SET locked_until = now() + make_interval(secs => :lease_seconds)
FROM mine
WHERE e.id = mine.id
RETURNING e.id

-- name: release
-- Nothing was published, and it is as due as it was.
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), held AS MATERIALIZED (
    SELECT id, claim_seq
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND locked_by IS NOT NULL
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.id FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
)
UPDATE email_log AS e
SET status = CASE WHEN e.attempt_count + e.defer_count = 0 THEN 'Pending' ELSE 'Failed' END,
    last_queued_at = CASE WHEN e.attempt_count + e.defer_count = 0 THEN NULL ELSE e.last_queued_at END,
    locked_by = NULL,
    locked_until = NULL
FROM mine
WHERE e.id = mine.id
RETURNING e.id

-- name: sweep
-- Whatever is at the limit and in nobody's hands, also when the limit was lowered since. What is queued and at the
-- limit would be refused to its consumer.
WITH over AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE status IN ('Failed', 'RetryQueued', 'Pending') AND attempt_count > 0 AND attempt_count >= :max_attempts
      AND (locked_until IS NULL OR status <> 'Pending' AND locked_until < now())
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE email_log AS e
SET status = 'Dead', dead_reason = 'MaxAttemptsExceeded', claim_seq = e.claim_seq + 1,
    locked_by = NULL, locked_until = NULL
FROM over
WHERE e.id = over.id
RETURNING e.status, e.id, e.attempt_count, e.next_attempt_at

-- name: claim_deaths
-- Of whom the dead letter queue was not told yet. Whoever tells it and dies is followed by another after a lease.
WITH untold AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE status = 'Dead' AND announced_at IS NULL AND (locked_until IS NULL OR locked_until < now())
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE email_log AS e
SET locked_until = now() + make_interval(secs => :lease_seconds)
FROM untold
WHERE e.id = untold.id
RETURNING e.id, e.message_key, e.attempt_count, e.dead_reason

-- name: settle_deaths
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, told boolean)
), dead AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND status = 'Dead'
    ORDER BY id
    FOR UPDATE
)
UPDATE email_log AS e
SET announced_at = CASE WHEN batch.told THEN now() END, locked_until = NULL
FROM batch JOIN dead ON dead.id = batch.id
WHERE e.id = batch.id
RETURNING e.id

-- name: counts
SELECT 'due' AS status,
    (SELECT count(*) FROM email_log
     WHERE status = 'Failed' AND next_attempt_at <= now() AND attempt_count < :max_attempts
       AND (locked_until IS NULL OR locked_until < now()))
    + (SELECT count(*) FROM email_log
       WHERE status = 'RetryQueued' AND next_attempt_at <= now() AND attempt_count < :max_attempts
         AND (locked_until IS NULL OR locked_until < now())) AS count
