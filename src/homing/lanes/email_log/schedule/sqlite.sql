-- email_log on SQLite: the scheduling stage, by the same names as on PostgreSQL.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: lease
-- Never a whole second: that is what another program writes by datetime(), and a lock like ours would be taken for ours.
substr(strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', :lease_seconds - 0.01)), 1, 22) || '7Z'

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
        SELECT id, next_attempt_at AS due_at
        FROM email_log
        WHERE status = 'Failed' AND next_attempt_at <= {now} AND attempt_count < :max_attempts
          AND (locked_until IS NULL OR locked_until < {now})
        ORDER BY next_attempt_at
        LIMIT :limit)
    UNION ALL
    SELECT * FROM (
        SELECT id, next_attempt_at AS due_at
        FROM email_log
        WHERE status = 'RetryQueued' AND next_attempt_at <= {now} AND attempt_count < :max_attempts
          AND locked_until < {now}
        ORDER BY next_attempt_at
        LIMIT :limit)
    UNION ALL
    SELECT * FROM (
        SELECT id, coalesce(next_attempt_at, created_at) AS due_at
        FROM email_log INDEXED BY email_log_unpublished_ours
        WHERE status = 'Pending' AND reopened_at IS NULL
          AND (last_queued_at IS NULL AND claim_seq > 0
               OR last_queued_at <= max(coalesce(last_attempt_at, sent_at), coalesce(sent_at, last_attempt_at))
                  AND locked_by IS NULL
                  AND (ended_claim IS NOT NULL OR sent_at IS NOT NULL OR failed_claim IS NOT NULL AND attempt_count = 0))
          AND coalesce(next_attempt_at, created_at) <= {now} AND attempt_count < :max_attempts
          AND (locked_until IS NULL OR locked_until < {now})
        ORDER BY coalesce(next_attempt_at, created_at)
        LIMIT :limit)
    UNION ALL
    SELECT * FROM (
        SELECT id, coalesce(next_attempt_at, created_at) AS due_at
        FROM email_log INDEXED BY email_log_unpublished_new
        WHERE :publish_new
          AND status = 'Pending' AND reopened_at IS NULL AND last_queued_at IS NULL AND claim_seq = 0 AND attempt_count = 0
          AND coalesce(next_attempt_at, created_at) <= {now} AND attempt_count < :max_attempts
          AND (locked_until IS NULL OR locked_until < {now})
        ORDER BY coalesce(next_attempt_at, created_at)
        LIMIT :limit)
    ORDER BY 2, 1
    LIMIT :limit
)

-- name: claim
WITH {due}
UPDATE email_log
SET status = 'RetryQueued', next_attempt_at = coalesce(next_attempt_at, {now}), announced_at = NULL,
    published_at = NULL, failed_claim = NULL, reopened_at = NULL, claim_seq = claim_seq + 1, locked_by = :owner,
    locked_until = {lease}, leased_until = {lease}, leased_claim = claim_seq + 1
FROM chosen
WHERE email_log.id = chosen.id
RETURNING {claimed}

-- name: preview
WITH {due}
SELECT id, due_at FROM chosen ORDER BY due_at, id

-- fragment: ours
email_log.id = batch.id AND email_log.locked_by IS NOT NULL AND email_log.claim_seq = batch.fence
  AND (email_log.status = 'RetryQueued' OR email_log.status = 'Pending' AND email_log.last_queued_at IS NULL)
  AND email_log.locked_until = coalesce(email_log.leased_until, email_log.locked_until)

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
    published_at = CASE WHEN batch.published THEN {now} END,
    next_attempt_at = CASE WHEN batch.published THEN next_attempt_at
        ELSE max(coalesce(next_attempt_at, created_at),
                 strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', batch.delay))) END,
    publish_failures = CASE WHEN batch.published THEN 0 ELSE publish_failures + 1 END,
    last_error = CASE WHEN batch.published THEN last_error ELSE coalesce(last_error, batch.error) END,
    locked_by = NULL,
    locked_until = NULL,
    leased_until = NULL
FROM batch
WHERE {ours}
RETURNING id

-- name: confirm
WITH {fences}
SELECT email_log.id
FROM batch JOIN email_log ON email_log.id = batch.id
WHERE email_log.claim_seq = batch.fence AND email_log.locked_by IS NULL

-- name: renew
WITH {fences}
UPDATE email_log
SET locked_until = {lease}, leased_until = {lease}
FROM batch
WHERE {ours}
RETURNING id

-- name: release
WITH {fences}
UPDATE email_log
SET status = CASE WHEN attempt_count + defer_count = 0 THEN 'Pending' ELSE 'Failed' END,
    last_queued_at = CASE WHEN attempt_count + defer_count = 0 THEN NULL ELSE last_queued_at END,
    locked_by = NULL,
    locked_until = NULL,
    leased_until = NULL
FROM batch
WHERE {ours}
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
SET status = 'Dead', dead_reason = 'MaxAttemptsExceeded', claim_seq = claim_seq + 1, ended_claim = claim_seq + 1,
    announced_at = NULL, locked_by = NULL, locked_until = NULL, leased_until = NULL
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
RETURNING id, message_key, attempt_count, dead_reason, ended_claim IS NOT claim_seq AS is_foreign

-- name: waive_deaths
WITH untold AS MATERIALIZED (
    SELECT id
    FROM email_log INDEXED BY email_log_unannounced
    WHERE status = 'Dead' AND announced_at IS NULL AND NOT EXISTS (SELECT 1 FROM homing_email_queue)
      AND NOT EXISTS (SELECT 1 FROM homing_worker
                      WHERE coalesce(json_extract(report, '$.brokers.email_log'), '') NOT LIKE 'memory://%')
    ORDER BY id
    LIMIT :limit
)
UPDATE email_log
SET announced_at = {now}
FROM untold
WHERE email_log.id = untold.id
RETURNING dead_reason, ended_claim IS NOT claim_seq AS is_foreign

-- name: settle_deaths
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.told') AS told FROM json_each(:batch)
)
UPDATE email_log
SET announced_at = CASE WHEN batch.told THEN {now} END, locked_until = NULL
FROM batch
WHERE email_log.id = batch.id AND email_log.status = 'Dead'
RETURNING id

-- fragment: apart
-- One lease before a sighting.
strftime('%Y-%m-%dT%H:%M:%fZ', excluded.empty_at, printf('%+.3f seconds', -:lease_seconds))

-- name: saw_queue
INSERT INTO homing_email_queue (name, gone_at, empty_at)
SELECT :queue, CASE WHEN :is_gone THEN asked END, CASE WHEN :is_empty THEN asked END
FROM (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:since)) AS asked)
WHERE true
ON CONFLICT (name) DO UPDATE
SET gone_at = coalesce(excluded.gone_at, gone_at),
    empty_before_at = CASE WHEN empty_at <= {apart} THEN empty_at ELSE empty_before_at END,
    empty_at = CASE WHEN empty_at > {apart} THEN empty_at ELSE coalesce(excluded.empty_at, empty_at) END
RETURNING name

-- fragment: long_ago
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:lost_after_seconds))

-- fragment: missing
coalesce((SELECT max(coalesce(gone_at, ''), coalesce(empty_before_at, '')) FROM homing_email_queue WHERE name = :queue), '')

-- name: lost
WITH lost AS MATERIALIZED (
    SELECT id
    FROM email_log INDEXED BY email_log_queued
    WHERE status = 'Pending' AND last_queued_at IS NOT NULL AND claim_seq > 0
      AND last_queued_at < max({long_ago}, {missing})
      AND max(last_queued_at, coalesce(next_attempt_at, ''), coalesce(reopened_at, ''))
          < CASE WHEN last_queued_at = published_at THEN max({long_ago}, {missing}) ELSE {long_ago} END
      AND locked_by IS NULL AND (locked_until IS NULL OR locked_until < {now})
    ORDER BY last_queued_at
    LIMIT :limit
)
UPDATE email_log
SET last_queued_at = NULL, published_at = NULL, reopened_at = NULL,
    next_attempt_at = min(coalesce(next_attempt_at, created_at), {now})
FROM lost
WHERE email_log.id = lost.id
RETURNING id

-- name: counts
SELECT 'due' AS status,
    (SELECT count(*) FROM email_log
     WHERE status = 'Failed' AND next_attempt_at <= {now} AND attempt_count < :max_attempts
       AND (locked_until IS NULL OR locked_until < {now}))
    + (SELECT count(*) FROM email_log
       WHERE status = 'RetryQueued' AND next_attempt_at <= {now} AND attempt_count < :max_attempts
         AND locked_until < {now}) AS count

-- name: unpublished
SELECT count(*) AS count
FROM (SELECT 1 FROM email_log INDEXED BY email_log_unpublished
      WHERE status = 'Pending' AND (last_queued_at IS NULL OR ended_claim IS NOT NULL OR sent_at IS NOT NULL
                                    OR failed_claim IS NOT NULL AND attempt_count = 0)
        AND coalesce(next_attempt_at, created_at) <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour')
        AND created_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour')
        AND last_queued_at IS NULL AND (locked_until IS NULL OR locked_until < {now})
      LIMIT :limit)
