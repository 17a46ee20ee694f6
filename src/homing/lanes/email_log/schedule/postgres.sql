-- email_log on PostgreSQL: the scheduling stage. What is due is claimed, published, and written down as queued.

-- fragment: claimed
e.id, e.claim_seq AS fence, e.attempt_count AS attempts, e.publish_failures AS deferrals,
    -- A message that is queued is not delivered yet: the sending stage measures.
    NULL AS age, e.traceparent, e.next_attempt_at AS due_at, e.message_key

-- fragment: due
-- Four kinds of rows, each a jump in an index that holds no others: a failed one whose time has come; one whose
-- scheduler died, for the lock that it set is over; one that Homing had in hand and nobody has published since, or that
-- was put back by plain SQL after it had ended; a new one, where these are ours. A RetryQueued row without a lock was
-- published by a scheduler that leaves it so, and a Pending one with attempts by one that notes no time. What is being
-- sent is locked, and its lock is the rescue's business.
failed AS MATERIALIZED (
    SELECT id, next_attempt_at AS due_at
    FROM email_log
    WHERE status = 'Failed' AND next_attempt_at <= now() AND attempt_count < :max_attempts
      AND (locked_until IS NULL OR locked_until < now())
    ORDER BY next_attempt_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), abandoned AS MATERIALIZED (
    SELECT id, next_attempt_at AS due_at
    FROM email_log
    WHERE status = 'RetryQueued' AND next_attempt_at <= now() AND attempt_count < :max_attempts
      AND locked_until < now()
    ORDER BY next_attempt_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), unpublished AS MATERIALIZED (
    SELECT id, coalesce(next_attempt_at, created_at) AS due_at
    FROM email_log
    WHERE status = 'Pending' AND reopened_at IS NULL
      AND (last_queued_at IS NULL AND claim_seq > 0
           OR last_queued_at <= greatest(last_attempt_at, sent_at) AND locked_by IS NULL
              AND (ended_claim IS NOT NULL OR sent_at IS NOT NULL OR failed_claim IS NOT NULL AND attempt_count = 0))
      AND coalesce(next_attempt_at, created_at) <= now() AND attempt_count < :max_attempts
      AND (locked_until IS NULL OR locked_until < now())
    ORDER BY coalesce(next_attempt_at, created_at)
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), new AS MATERIALIZED (
    SELECT id, coalesce(next_attempt_at, created_at) AS due_at
    FROM email_log
    WHERE :publish_new
      AND status = 'Pending' AND reopened_at IS NULL AND last_queued_at IS NULL AND claim_seq = 0 AND attempt_count = 0
      AND coalesce(next_attempt_at, created_at) <= now() AND attempt_count < :max_attempts
      AND (locked_until IS NULL OR locked_until < now())
    ORDER BY coalesce(next_attempt_at, created_at)
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (
    SELECT * FROM failed UNION ALL SELECT * FROM abandoned UNION ALL SELECT * FROM unpublished UNION ALL SELECT * FROM new
    ORDER BY due_at, id
    LIMIT :limit
)

-- name: claim
WITH {due}
UPDATE email_log AS e
SET status = 'RetryQueued',
    -- Else nobody would look for it when we die.
    next_attempt_at = coalesce(e.next_attempt_at, now()),
    announced_at = NULL,
    published_at = NULL,
    failed_claim = NULL,
    reopened_at = NULL,
    claim_seq = e.claim_seq + 1,
    locked_by = :owner,
    locked_until = now() + make_interval(secs => :lease_seconds),
    leased_until = now() + make_interval(secs => :lease_seconds),
    leased_claim = e.claim_seq + 1
FROM chosen
WHERE e.id = chosen.id
RETURNING {claimed}

-- name: preview
WITH {due}
SELECT id, due_at FROM chosen ORDER BY due_at, id

-- fragment: held
-- Still being published, by us: neither has a sender written how it ended, nor has anybody taken or cleared the lock.
held AS MATERIALIZED (
    SELECT id, claim_seq,
        (status = 'RetryQueued' OR status = 'Pending' AND last_queued_at IS NULL)
        AND locked_until = coalesce(leased_until, locked_until) AS is_ours
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND locked_by IS NOT NULL
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.* FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence AND held.is_ours
)

-- name: settle
-- A failed publish leaves the count alone. What has failed before is Failed again; what was never tried waits as
-- it did before.
WITH batch AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:batch::json) AS b(
        id bigint, fence bigint, published boolean, delay double precision, error text)
), {held}
UPDATE email_log AS e
SET status = CASE WHEN mine.published OR e.attempt_count + e.defer_count = 0 THEN 'Pending' ELSE 'Failed' END,
    last_queued_at = CASE WHEN mine.published THEN now()
                          WHEN e.attempt_count + e.defer_count = 0 THEN NULL ELSE e.last_queued_at END,
    published_at = CASE WHEN mine.published THEN now() END,
    next_attempt_at = CASE WHEN mine.published THEN e.next_attempt_at
                           ELSE greatest(e.next_attempt_at, now() + make_interval(secs => mine.delay)) END,
    publish_failures = CASE WHEN mine.published THEN 0 ELSE e.publish_failures + 1 END,
    last_error = CASE WHEN mine.published THEN e.last_error ELSE coalesce(e.last_error, mine.error) END,
    locked_by = NULL,
    locked_until = NULL,
    leased_until = NULL
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
), {held}
UPDATE email_log AS e
SET locked_until = now() + make_interval(secs => :lease_seconds),
    leased_until = now() + make_interval(secs => :lease_seconds)
FROM mine
WHERE e.id = mine.id
RETURNING e.id

-- name: release
-- Nothing was published, and it is as due as it was.
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), {held}
UPDATE email_log AS e
SET status = CASE WHEN e.attempt_count + e.defer_count = 0 THEN 'Pending' ELSE 'Failed' END,
    last_queued_at = CASE WHEN e.attempt_count + e.defer_count = 0 THEN NULL ELSE e.last_queued_at END,
    locked_by = NULL,
    locked_until = NULL,
    leased_until = NULL
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
SET status = 'Dead', dead_reason = 'MaxAttemptsExceeded', claim_seq = e.claim_seq + 1, ended_claim = e.claim_seq + 1,
    announced_at = NULL, locked_by = NULL, locked_until = NULL, leased_until = NULL
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
RETURNING e.id, e.message_key, e.attempt_count, e.dead_reason,
    e.ended_claim IS DISTINCT FROM e.claim_seq AS is_foreign

-- name: waive_deaths
-- Nobody is to be told where no process has a broker; one that will have one tells of later deaths only. A process may
-- not have seen its queue yet, and one of a version before does not say what it has: so all that are known count, also
-- those that have stopped within the hour.
WITH untold AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE status = 'Dead' AND announced_at IS NULL AND NOT EXISTS (SELECT 1 FROM homing_email_queue)
      AND NOT EXISTS (SELECT 1 FROM homing_worker
                      WHERE coalesce(report -> 'brokers' ->> 'email_log', '') NOT ILIKE 'memory://%')
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE email_log AS e
SET announced_at = now()
FROM untold
WHERE e.id = untold.id
RETURNING e.dead_reason, e.ended_claim IS DISTINCT FROM e.claim_seq AS is_foreign

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

-- name: saw_queue
-- `since` is how long ago the broker was asked. Sightings of an empty queue are kept one lease apart.
INSERT INTO homing_email_queue AS q (name, gone_at, empty_at)
VALUES (
    :queue,
    CASE WHEN :is_gone THEN now() - make_interval(secs => :since) END,
    CASE WHEN :is_empty THEN now() - make_interval(secs => :since) END)
ON CONFLICT (name) DO UPDATE
SET gone_at = coalesce(excluded.gone_at, q.gone_at),
    empty_before_at = CASE WHEN q.empty_at <= excluded.empty_at - make_interval(secs => :lease_seconds)
                           THEN q.empty_at ELSE q.empty_before_at END,
    empty_at = CASE WHEN q.empty_at > excluded.empty_at - make_interval(secs => :lease_seconds)
                    THEN q.empty_at ELSE coalesce(excluded.empty_at, q.empty_at) END
RETURNING name

-- fragment: long_ago
now() - make_interval(secs => :lost_after_seconds)

-- fragment: missing
(SELECT greatest(gone_at, empty_before_at) FROM homing_email_queue WHERE name = :queue)

-- name: lost
-- Our messages that are in no queue any more: it was missing since, or twice empty. After too long a time whatever was
-- in our hands before counts as lost, whoever published it: a version before notes nothing else. Who notes no time at all
-- has published it after it was due again. What another program holds is its own business.
WITH lost AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE status = 'Pending' AND last_queued_at IS NOT NULL AND claim_seq > 0
      AND last_queued_at < greatest({long_ago}, {missing})
      AND greatest(last_queued_at, next_attempt_at, reopened_at)
          < CASE WHEN last_queued_at = published_at THEN greatest({long_ago}, {missing}) ELSE {long_ago} END
      AND locked_by IS NULL AND (locked_until IS NULL OR locked_until < now())
    ORDER BY last_queued_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE email_log AS e
SET last_queued_at = NULL, published_at = NULL, reopened_at = NULL, next_attempt_at = least(e.next_attempt_at, now())
FROM lost
WHERE e.id = lost.id
RETURNING e.id

-- name: counts
SELECT 'due' AS status,
    (SELECT count(*) FROM email_log
     WHERE status = 'Failed' AND next_attempt_at <= now() AND attempt_count < :max_attempts
       AND (locked_until IS NULL OR locked_until < now()))
    + (SELECT count(*) FROM email_log
       WHERE status = 'RetryQueued' AND next_attempt_at <= now() AND attempt_count < :max_attempts
         AND locked_until < now()) AS count

-- name: unpublished
-- Pending for longer than an hour, and nobody has noted that it was published; for the doctor.
SELECT count(*) AS count
FROM (SELECT 1 FROM email_log
      WHERE status = 'Pending' AND (last_queued_at IS NULL OR ended_claim IS NOT NULL OR sent_at IS NOT NULL
                                    OR failed_claim IS NOT NULL AND attempt_count = 0)
        AND coalesce(next_attempt_at, created_at) <= now() - interval '1 hour'
        AND created_at <= now() - interval '1 hour'
        AND last_queued_at IS NULL AND (locked_until IS NULL OR locked_until < now())
      LIMIT :limit) AS found
