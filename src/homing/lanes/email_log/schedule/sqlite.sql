-- email_log on SQLite: the scheduling stage, by the same names as on PostgreSQL.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: lease
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :lease_seconds))

-- fragment: swept
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :sweep_seconds * (1 << min(queue_count, 6))))

-- fragment: claimed
id, claim_seq AS fence, attempt_count AS attempts, publish_failures AS deferrals, NULL AS age, traceparent,
    next_attempt_at AS due_at, message_key

-- fragment: fences
batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)

-- fragment: due
chosen AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, next_attempt_at
        FROM email_log
        WHERE status = 'Failed' AND next_attempt_at <= {now} AND attempt_count < :max_attempts
          AND (locked_until IS NULL OR locked_until < {now})
        ORDER BY next_attempt_at
        LIMIT :limit)
    UNION ALL
    SELECT * FROM (
        SELECT id, next_attempt_at
        FROM email_log
        WHERE status = 'RetryQueued' AND next_attempt_at <= {now} AND attempt_count < :max_attempts
          AND (locked_until IS NULL OR locked_until < {now})
        ORDER BY next_attempt_at
        LIMIT :limit)
    UNION ALL
    SELECT * FROM (
        SELECT id, next_attempt_at
        FROM email_log
        WHERE status = 'Pending' AND next_attempt_at <= {now} AND attempt_count < :max_attempts
          AND (last_queued_at IS NULL
               OR last_queued_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:sweep_seconds)))
          AND (locked_until IS NULL OR locked_until < {now} AND (locked_by IS NULL OR last_queued_at IS NULL))
        ORDER BY next_attempt_at
        LIMIT :limit)
    ORDER BY 2, 1
    LIMIT :limit
)

-- name: claim
WITH {due}
UPDATE email_log
SET status = 'RetryQueued', claim_seq = claim_seq + 1, locked_by = :owner, locked_until = {lease}
FROM chosen
WHERE email_log.id = chosen.id
RETURNING {claimed}

-- name: preview
WITH {due}
SELECT id, next_attempt_at FROM chosen ORDER BY next_attempt_at, id

-- name: settle
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
        json_extract(value, '$.published') AS published, json_extract(value, '$.delay') AS delay,
        json_extract(value, '$.error') AS error
    FROM json_each(:batch)
)
UPDATE email_log
SET status = CASE WHEN batch.published OR attempt_count + defer_count = 0 THEN 'Pending' ELSE 'Failed' END,
    last_queued_at = CASE WHEN batch.published THEN {now}
                          WHEN attempt_count + defer_count = 0 THEN NULL ELSE last_queued_at END,
    next_attempt_at = CASE WHEN batch.published THEN {swept}
        ELSE max(next_attempt_at, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', batch.delay))) END,
    publish_failures = CASE WHEN batch.published THEN 0 ELSE publish_failures + 1 END,
    queue_count = queue_count + batch.published,
    last_error = CASE WHEN batch.published THEN last_error ELSE coalesce(last_error, batch.error) END,
    locked_by = NULL,
    locked_until = NULL
FROM batch
WHERE email_log.id = batch.id AND email_log.locked_by IS NOT NULL AND email_log.claim_seq = batch.fence
RETURNING id

-- name: confirm
WITH {fences}
SELECT email_log.id
FROM batch JOIN email_log ON email_log.id = batch.id
WHERE email_log.claim_seq = batch.fence AND email_log.locked_by IS NULL

-- name: renew
WITH {fences}
UPDATE email_log
SET locked_until = {lease}
FROM batch
WHERE email_log.id = batch.id AND email_log.locked_by IS NOT NULL AND email_log.claim_seq = batch.fence
RETURNING id

-- name: release
WITH {fences}
UPDATE email_log
SET status = CASE WHEN attempt_count + defer_count = 0 THEN 'Pending' ELSE 'Failed' END,
    last_queued_at = CASE WHEN attempt_count + defer_count = 0 THEN NULL ELSE last_queued_at END,
    locked_by = NULL,
    locked_until = NULL
FROM batch
WHERE email_log.id = batch.id AND email_log.locked_by IS NOT NULL AND email_log.claim_seq = batch.fence
RETURNING id

-- name: sweep
WITH over AS MATERIALIZED (
    SELECT id
    FROM email_log INDEXED BY email_log_retried
    WHERE status IN ('Failed', 'RetryQueued', 'Pending') AND attempt_count > 0 AND attempt_count >= :max_attempts
      AND (locked_until IS NULL OR status <> 'Pending' AND locked_until < {now})
    LIMIT :limit
)
UPDATE email_log
SET status = 'Dead', dead_reason = 'MaxAttemptsExceeded', claim_seq = claim_seq + 1,
    locked_by = NULL, locked_until = NULL
FROM over
WHERE email_log.id = over.id
RETURNING status, id, attempt_count, next_attempt_at

-- name: claim_deaths
WITH untold AS MATERIALIZED (
    SELECT id
    FROM email_log INDEXED BY email_log_unannounced
    WHERE status = 'Dead' AND announced_at IS NULL AND (locked_until IS NULL OR locked_until < {now})
    ORDER BY id
    LIMIT :limit
)
UPDATE email_log
SET locked_until = {lease}
FROM untold
WHERE email_log.id = untold.id
RETURNING id, message_key, attempt_count, dead_reason

-- name: settle_deaths
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.told') AS told FROM json_each(:batch)
)
UPDATE email_log
SET announced_at = CASE WHEN batch.told THEN {now} END, locked_until = NULL
FROM batch
WHERE email_log.id = batch.id AND email_log.status = 'Dead'
RETURNING id

-- name: counts
SELECT 'due' AS status,
    (SELECT count(*) FROM email_log
     WHERE status = 'Failed' AND next_attempt_at <= {now} AND attempt_count < :max_attempts
       AND (locked_until IS NULL OR locked_until < {now}))
    + (SELECT count(*) FROM email_log
       WHERE status = 'RetryQueued' AND next_attempt_at <= {now} AND attempt_count < :max_attempts
         AND (locked_until IS NULL OR locked_until < {now})) AS count
