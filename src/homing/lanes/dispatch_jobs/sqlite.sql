-- dispatch_job on SQLite: the same queries by the same names. A query may be several statements here, where
-- PostgreSQL writes to several tables in one; they run in one transaction, and the last one answers. There
-- is one writer at a time, so nothing needs to be locked beforehand. CROSS JOIN keeps the order of the
-- tables as written, INDEXED BY and `+status` name the index: nobody runs ANALYZE, and the planner would take
-- the index of all states.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: lease_end
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :lease_seconds))

-- fragment: duration
max(0, CAST(round((julianday('now') - julianday(max(dispatch_job.created_at, coalesce(dispatch_job.scheduled_for, '')))) * 86400000) AS INTEGER))

-- fragment: claimed
id, claim_seq AS fence, attempt_count - attempts_before AS attempts, defer_count AS deferrals,
    (julianday('now') - julianday(max(created_at, coalesce(scheduled_for, '')))) * 86400.0 AS age, substr(traceparent, 1, 200) AS traceparent,
    next_attempt_at AS due_at, expires_at <= {now} AS expired, target, target_url,
    CASE WHEN length(payload) <= 16384 THEN payload END AS payload,
    payload_content_type, credentials_id, max_retries, retry_strategy, timeout_seconds,
    CASE ordering WHEN 'group' THEN group_id END AS ordered_group, type, source,
    CASE WHEN has_headers THEN (
        SELECT CASE WHEN count(*) > 1000 OR sum(length(given.header_name) + length(given.header_value)) > 65536 THEN ''
                    ELSE json_group_array(json_array(given.header_name, given.header_value)) FILTER (WHERE length(given.header_value) <= 65536) END
        FROM (SELECT header_name, header_value FROM dispatch_job_headers
              WHERE dispatch_job_id = dispatch_job.id LIMIT 1001) AS given) END AS headers,
    substr(tracestate, 1, 600) AS tracestate, protocol, CASE WHEN length(payload) <= 16384 THEN 0 ELSE {bytes} END AS size

-- fragment: bytes
-- To count characters copies nothing.
length(CAST(payload AS BLOB))

-- fragment: as_it_was
CASE WHEN attempt_count <= attempts_before THEN 'PENDING' ELSE 'FAILED' END

-- fragment: real_error
-- What follows the last of these words. As a list, because SQLite finds only the first.
(SELECT value FROM json_each('[' || replace(json_quote(dispatch_job.last_error), '; last error: ', '","') || ']')
 ORDER BY key DESC LIMIT 1)

-- fragment: scheduled
-- In our form, so that it can be compared; nothing is less than any time.
coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', scheduled_for), '')

-- fragment: if_pending
CASE WHEN attempt_count <= attempts_before THEN {scheduled} ELSE '' END

-- fragment: next_id
-- Of the time, or one more than the last. What lies more than a day ahead was given by another program, and may be the
-- largest number there is.
max(CAST((julianday('now') - 2458849.5) * 86400000 AS INTEGER) << 22, CASE WHEN last < {a_day_ahead} THEN last + 1 ELSE 0 END)

-- fragment: a_day_ahead
(CAST((julianday('now', '+1 day') - 2458849.5) * 86400000 AS INTEGER) << 22)

-- fragment: an_hour_ago
(CAST((julianday('now', '-1 hour') - 2458849.5) * 86400000 AS INTEGER) << 22)

-- fragment: heads
head(target) AS (
    SELECT min(target) FROM dispatch_job INDEXED BY homing_job_due
    WHERE ready AND status IN ('PENDING', 'FAILED') AND target > :after
    UNION ALL
    SELECT (SELECT min(j.target) FROM dispatch_job AS j INDEXED BY homing_job_due
            WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target > head.target)
    FROM head WHERE head.target IS NOT NULL
), heads AS (
    SELECT target FROM head WHERE target IS NOT NULL LIMIT :most
)

-- name: due_targets
WITH RECURSIVE {heads}
SELECT heads.target,
    (SELECT min(j.next_attempt_at) FROM dispatch_job AS j INDEXED BY homing_job_due
     WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = heads.target) <= {now}
        AND coalesce(t.paused_until <= {now}, 1) AND coalesce(t.open_until <= {now}, 1) AS due,
    CASE WHEN t.open_until IS NOT NULL OR t.max_concurrency IS NOT NULL
         THEN (SELECT count(*) FROM dispatch_job AS f INDEXED BY homing_job_in_progress
               WHERE f.status = 'IN_PROGRESS' AND f.target = t.target) END AS in_flight,
    CASE WHEN t.open_until IS NOT NULL THEN 1 ELSE t.max_concurrency END AS most_in_flight,
    t.rate_per_second, coalesce(t.failures, 0) AS failures,
    max(0.0, (julianday(max(coalesce(t.paused_until, ''), coalesce(t.open_until, ''))) - julianday('now')) * 86400) AS closed_for,
    t.endpoint, max(0.0, (julianday(t.endpoint_until) - julianday('now')) * 86400) AS endpoint_closed_for,
    t.open_until IS NOT NULL AS broken
FROM heads LEFT JOIN homing_target AS t ON t.target = heads.target

-- name: probes
SELECT id, target_url FROM (
    SELECT id, target_url FROM dispatch_job INDEXED BY homing_job_due
    WHERE ready AND status IN ('PENDING', 'FAILED') AND target = :target AND next_attempt_at <= {now}
    ORDER BY next_attempt_at, id LIMIT :most)
UNION ALL
SELECT id, target_url FROM (
    SELECT id, target_url FROM dispatch_job INDEXED BY homing_job_due
    WHERE ready AND status IN ('PENDING', 'FAILED') AND target = :target AND next_attempt_at <= {now}
    ORDER BY next_attempt_at DESC, id DESC LIMIT :most)

-- name: lock_targets
SELECT 1 WHERE :shares IS NULL

-- fragment: tokens
min(max(t.rate_per_second, 1), t.tokens + t.rate_per_second * (julianday('now') - julianday(t.tokens_at)) * 86400)

-- fragment: room
coalesce(CASE WHEN t.open_until IS NOT NULL THEN 1 ELSE t.max_concurrency END
        - (SELECT count(*) FROM dispatch_job AS f INDEXED BY homing_job_in_progress WHERE f.status = 'IN_PROGRESS' AND f.target = t.target), 1000000)

-- name: claim
-- First the tokens of targets with a rate are spent on what is due of them. A correlated LIMIT must be a
-- constant, so each target offers the largest share, and the rank cuts it.
WITH grants AS MATERIALIZED (
    SELECT t.target, {tokens} AS tokens,
        max(0, min(json_extract(s.value, '$.slots'), {room}, CAST({tokens} AS INTEGER),
            (SELECT count(*) FROM (
                SELECT 1 FROM dispatch_job AS d INDEXED BY homing_job_due
                WHERE d.ready AND d.status IN ('PENDING', 'FAILED') AND d.target = t.target AND d.next_attempt_at <= {now}
                LIMIT 1000)))) AS granted
    FROM json_each(:shares) AS s CROSS JOIN homing_target AS t ON t.target = json_extract(s.value, '$.target')
    WHERE t.rate_per_second IS NOT NULL
)
UPDATE homing_target
SET granted = grants.granted, tokens = grants.tokens - grants.granted, tokens_at = {now}
FROM grants
WHERE homing_target.target = grants.target;
WITH share AS MATERIALIZED (
    SELECT json_extract(s.value, '$.target') AS target,
        min(json_extract(s.value, '$.slots'), {room},
            CASE WHEN t.rate_per_second IS NULL THEN 1000000 ELSE t.granted END) AS slots
    FROM json_each(:shares) AS s LEFT JOIN homing_target AS t ON t.target = json_extract(s.value, '$.target')
), ranked AS MATERIALIZED (
    SELECT j.id, share.slots,
        row_number() OVER (PARTITION BY j.target ORDER BY j.next_attempt_at, j.id) AS place
    FROM share CROSS JOIN dispatch_job AS j
    WHERE j.id IN (
        SELECT d.id
        FROM dispatch_job AS d INDEXED BY homing_job_due
        WHERE d.ready AND d.status IN ('PENDING', 'FAILED') AND d.target = share.target AND d.next_attempt_at <= {now}
        ORDER BY d.next_attempt_at, d.id
        LIMIT (SELECT max(slots) FROM share))
)
UPDATE dispatch_job
SET status = 'IN_PROGRESS',
    claim_seq = claim_seq + 1,
    locked_by = :owner,
    lease_expires_at = {lease_end},
    updated_at = {now}
WHERE id IN (SELECT id FROM ranked WHERE place <= slots)
RETURNING {claimed}

-- name: payload
SELECT payload FROM dispatch_job WHERE id = :id

-- name: claim_one
UPDATE dispatch_job
SET status = 'IN_PROGRESS',
    claim_seq = claim_seq + 1,
    locked_by = :owner,
    lease_expires_at = {lease_end},
    updated_at = {now}
WHERE id = :id AND ready AND status IN ('PENDING', 'FAILED') AND next_attempt_at <= {now}
  AND NOT EXISTS (SELECT 1 FROM homing_target AS t
                  WHERE t.target = dispatch_job.target
                    AND (t.paused_until > {now} OR t.open_until IS NOT NULL OR t.max_concurrency IS NOT NULL
                         OR t.rate_per_second IS NOT NULL))
RETURNING {claimed}

-- name: claim_these
UPDATE dispatch_job
SET status = 'IN_PROGRESS',
    claim_seq = claim_seq + 1,
    locked_by = :owner,
    lease_expires_at = {lease_end},
    updated_at = {now}
WHERE id IN (SELECT value FROM json_each(:ids)) AND ready AND +status IN ('PENDING', 'FAILED') AND next_attempt_at <= {now}
  AND NOT EXISTS (SELECT 1 FROM homing_target AS t
                  WHERE t.target = dispatch_job.target
                    AND (t.paused_until > {now} OR t.open_until IS NOT NULL OR t.max_concurrency IS NOT NULL
                         OR t.rate_per_second IS NOT NULL))
RETURNING {claimed}

-- name: lock_target_of
SELECT 1 WHERE :id IS NULL

-- name: claim_one_limited
UPDATE homing_target
SET granted = 0
WHERE target = (SELECT target FROM dispatch_job WHERE id = :id);
UPDATE homing_target
SET granted = 1,
    tokens = coalesce((SELECT {tokens} FROM homing_target AS t WHERE t.target = homing_target.target) - 1, tokens),
    tokens_at = {now}
WHERE target = (SELECT j.target FROM dispatch_job AS j
                WHERE j.id = :id AND j.ready AND j.status IN ('PENDING', 'FAILED') AND j.next_attempt_at <= {now})
  AND coalesce(paused_until <= {now}, 1) AND coalesce(open_until <= {now}, 1)
  AND (SELECT {room} > 0 AND (t.rate_per_second IS NULL OR {tokens} >= 1)
       FROM homing_target AS t WHERE t.target = homing_target.target);
UPDATE dispatch_job
SET status = 'IN_PROGRESS',
    claim_seq = claim_seq + 1,
    locked_by = :owner,
    lease_expires_at = {lease_end},
    updated_at = {now}
WHERE id = :id AND (SELECT t.granted FROM homing_target AS t WHERE t.target = dispatch_job.target)
RETURNING {claimed}

-- name: hold_up
SELECT o.status, o.ready, o.group_id,
    max(0.0, (julianday(o.next_attempt_at) - julianday('now')) * 86400) AS due_in,
    max(0.0, (julianday(o.lease_expires_at) - julianday('now')) * 86400) AS leased_for,
    max(0.0, (julianday(max(coalesce(t.paused_until, ''), coalesce(t.open_until, ''))) - julianday('now')) * 86400) AS closed_for,
    t.open_until IS NOT NULL OR t.max_concurrency IS NOT NULL OR t.rate_per_second IS NOT NULL AS limited
FROM dispatch_job AS o LEFT JOIN homing_target AS t ON t.target = o.target
WHERE o.id = :id

-- fragment: send_at
strftime('%Y-%m-%dT%H:%M:%fZ', next_attempt_at, printf('%+.3f seconds', CASE WHEN queued THEN :window ELSE 0.0 END))

-- name: postpone_unsent
UPDATE dispatch_job
SET queue_at = {send_at}
WHERE id IN (
    SELECT id
    FROM dispatch_job INDEXED BY homing_job_unsent
    WHERE status IN ('PENDING', 'FAILED') AND queue_at <= {now}
    ORDER BY queue_at, id
    LIMIT :limit)
  AND {send_at} > {now}
RETURNING id

-- name: claim_unsent
UPDATE dispatch_job
SET queue_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :window * (1 << min(send_number, 6)))),
    queued = 1,
    send_number = send_number + 1
WHERE id IN (
    SELECT id
    FROM dispatch_job INDEXED BY homing_job_unsent
    WHERE status IN ('PENDING', 'FAILED') AND queue_at <= {now}
    ORDER BY queue_at, id
    LIMIT :limit)
  AND {send_at} <= {now}
RETURNING id, send_number AS fence, queue_url, CASE ordering WHEN 'group' THEN group_id END AS ordered_group,
    traceparent

-- name: settle_unsent
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
        json_extract(value, '$.delay') AS delay
    FROM json_each(:batch)
)
UPDATE dispatch_job
SET queue_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', batch.delay)), queued = 0
FROM batch
WHERE dispatch_job.id = batch.id AND dispatch_job.send_number = batch.fence
RETURNING id

-- name: seen_in_queue
UPDATE dispatch_job
SET queue_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :delay + :window)), queued = 1
WHERE id = :id AND +status IN ('PENDING', 'FAILED')
RETURNING id

-- name: unsent
SELECT count(*) AS count, (julianday('now') - julianday(min(queue_at))) * 86400 AS age
FROM (SELECT queue_at FROM dispatch_job INDEXED BY homing_job_unsent
      WHERE status IN ('PENDING', 'FAILED') AND queue_at <= {now} ORDER BY queue_at LIMIT :limit)

-- name: router_config
SELECT config, version FROM homing_router_config

-- name: put_router_config
INSERT INTO homing_router_config (id, config) VALUES (1, :config)
ON CONFLICT (id) DO UPDATE SET config = excluded.config, version = version + 1, updated_at = {now}
RETURNING version

-- name: claim_lost
UPDATE dispatch_job
SET claim_seq = claim_seq + 1,
    rescue_count = rescue_count + 1,
    lease_expires_at = {lease_end}
WHERE id IN (
    SELECT id
    FROM dispatch_job INDEXED BY homing_job_in_progress
    WHERE status = 'IN_PROGRESS' AND rescue_count >= 3
      AND coalesce(lease_expires_at, strftime('%Y-%m-%dT%H:%M:%fZ', updated_at, printf('%+.3f seconds', :lease_seconds))) < {now}
    LIMIT :limit)
RETURNING {claimed}

-- name: lock_groups
SELECT 1 WHERE :groups IS NULL

-- name: try_lock_groups
SELECT 1 WHERE :groups IS NULL

-- name: promote
UPDATE dispatch_job
SET ready = 1
WHERE id IN (
    SELECT (SELECT j.id FROM dispatch_job AS j INDEXED BY homing_job_group
            WHERE j.group_id = g.value AND j.ordering = 'group' AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
            ORDER BY j.position LIMIT 1)
    FROM json_each(:groups) AS g
    WHERE NOT EXISTS (
        SELECT 1 FROM dispatch_job AS j INDEXED BY homing_job_one_per_group
        WHERE j.group_id = g.value AND j.ordering = 'group' AND j.ready
          AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS') AND j.target IS NOT NULL))
RETURNING id, next_attempt_at <= {now} AS due

-- name: stuck_groups
WITH RECURSIVE head(group_id) AS (
    SELECT min(group_id) FROM dispatch_job INDEXED BY homing_job_group
    WHERE ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS') AND group_id > :after
    UNION ALL
    SELECT (SELECT min(j.group_id) FROM dispatch_job AS j INDEXED BY homing_job_group
            WHERE j.ordering = 'group' AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS') AND j.group_id > head.group_id)
    FROM head WHERE head.group_id IS NOT NULL
)
SELECT head.group_id, (SELECT j.ready FROM dispatch_job AS j INDEXED BY homing_job_group
    WHERE j.group_id = head.group_id AND j.ordering = 'group' AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
    ORDER BY j.position LIMIT 1) AS ready
FROM head WHERE head.group_id IS NOT NULL LIMIT :limit

-- fragment: draw_ids
UPDATE homing_tsid SET base = {next_id};
UPDATE homing_tsid SET last = base + json_array_length(:batch)

-- fragment: begun
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', json_extract(b.value, '$.millis') / -1000.0))

-- name: settle
{draw_ids};
INSERT INTO dispatch_attempt (
    id, dispatch_job_id, claim_seq, attempt_number, attempted_at, completed_at, duration_millis, status, response_code,
    response_body, response_headers, error_class, error_message, error_stack_trace, unknown, worker)
SELECT (SELECT base FROM homing_tsid) + b.key, j.id, j.claim_seq - coalesce(json_extract(b.value, '$.lost'), 0),
    j.attempt_count + 1, CASE WHEN json_extract(b.value, '$.lost') THEN j.updated_at ELSE {begun} END, {now},
    json_extract(b.value, '$.millis'), json_extract(b.value, '$.attempt'), json_extract(b.value, '$.response_code'),
    json_extract(b.value, '$.response_body'), json_extract(b.value, '$.response_headers'),
    json_extract(b.value, '$.error_class'), json_extract(b.value, '$.error'), json_extract(b.value, '$.stack_trace'),
    coalesce(json_extract(b.value, '$.unknown'), 0), j.locked_by
FROM json_each(:batch) AS b CROSS JOIN dispatch_job AS j ON j.id = json_extract(b.value, '$.id')
WHERE j.status = 'IN_PROGRESS' AND j.claim_seq = json_extract(b.value, '$.fence') AND json_extract(b.value, '$.counted') = 1;
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
        json_extract(value, '$.status') AS status, json_extract(value, '$.counted') AS counted,
        json_extract(value, '$.delay') AS delay, json_extract(value, '$.error') AS error,
        json_extract(value, '$.error_class') AS error_class, json_extract(value, '$.millis') AS millis
    FROM json_each(:batch)
)
UPDATE dispatch_job
SET status = batch.status,
    attempt_count = attempt_count + batch.counted,
    defer_count = CASE WHEN batch.status IN ('PENDING', 'FAILED') AND batch.counted = 0 THEN defer_count + 1 ELSE 0 END,
    next_attempt_at = CASE WHEN batch.status IN ('PENDING', 'FAILED')
        THEN max(strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', batch.delay)),
                 CASE batch.status WHEN 'PENDING' THEN {scheduled} ELSE '' END)
        ELSE next_attempt_at END,
    last_attempt_at = CASE WHEN batch.counted = 1
        THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', batch.millis / -1000.0)) ELSE last_attempt_at END,
    completed_at = CASE WHEN batch.status IN ('COMPLETED', 'ERROR') THEN {now} END,
    duration_millis = CASE WHEN batch.status IN ('COMPLETED', 'ERROR') THEN {duration} END,
    -- What ends or puts off a job without an attempt does not hide what the last attempt met.
    last_error = CASE WHEN batch.counted = 1 OR attempt_count = 0 OR last_error IS NULL THEN batch.error
                      WHEN batch.status = 'ERROR'
                      THEN batch.error || coalesce('; last error: ' || nullif({real_error}, batch.error), '')
                      ELSE last_error END,
    error_class = CASE WHEN batch.counted = 1 OR batch.status = 'ERROR' OR last_error IS NULL THEN batch.error_class
                       ELSE dispatch_job.error_class END,
    locked_by = NULL,
    lease_expires_at = NULL,
    updated_at = {now}
FROM batch
WHERE dispatch_job.id = batch.id AND dispatch_job.status = 'IN_PROGRESS' AND dispatch_job.claim_seq = batch.fence
RETURNING id

-- name: confirm
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)
SELECT dispatch_job.id
FROM batch CROSS JOIN dispatch_job ON dispatch_job.id = batch.id
WHERE dispatch_job.claim_seq = batch.fence AND dispatch_job.status <> 'IN_PROGRESS'

-- name: renew
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)
UPDATE dispatch_job
SET lease_expires_at = {lease_end}
FROM batch
WHERE dispatch_job.id = batch.id AND dispatch_job.status = 'IN_PROGRESS' AND dispatch_job.claim_seq = batch.fence
RETURNING id

-- name: release
{draw_ids};
INSERT INTO dispatch_attempt (
    id, dispatch_job_id, claim_seq, attempt_number, attempted_at, completed_at, duration_millis, status, error_class,
    error_message, unknown, worker)
SELECT (SELECT base FROM homing_tsid) + b.key, j.id, j.claim_seq, j.attempt_count + 1, {begun}, {now},
    json_extract(b.value, '$.millis'), 'FAILURE', :lost_class, :lost_error, 1, j.locked_by
FROM json_each(:batch) AS b CROSS JOIN dispatch_job AS j ON j.id = json_extract(b.value, '$.id')
WHERE j.status = 'IN_PROGRESS' AND j.claim_seq = json_extract(b.value, '$.fence')
  AND json_extract(b.value, '$.millis') IS NOT NULL;
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
        json_extract(value, '$.millis') AS millis
    FROM json_each(:batch)
)
UPDATE dispatch_job
SET status = {as_it_was},
    attempt_count = attempt_count + (batch.millis IS NOT NULL),
    attempts_before = attempts_before + (batch.millis IS NOT NULL),
    last_attempt_at = coalesce(
        strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', batch.millis / -1000.0)), last_attempt_at),
    next_attempt_at = max(next_attempt_at, {if_pending}),
    locked_by = NULL, lease_expires_at = NULL, updated_at = {now}
FROM batch
WHERE dispatch_job.id = batch.id AND dispatch_job.status = 'IN_PROGRESS' AND dispatch_job.claim_seq = batch.fence
RETURNING id

-- fragment: lost
SELECT id
FROM dispatch_job INDEXED BY homing_job_in_progress
WHERE status = 'IN_PROGRESS' AND rescue_count < 3
  AND coalesce(lease_expires_at, strftime('%Y-%m-%dT%H:%M:%fZ', updated_at, printf('%+.3f seconds', :lease_seconds))) < {now}
ORDER BY id
LIMIT :limit

-- name: rescue
-- Nothing is written when nothing is lost: this runs every few seconds.
UPDATE homing_tsid SET base = {next_id} WHERE EXISTS ({lost});
UPDATE homing_tsid SET last = base + :limit WHERE EXISTS ({lost});
INSERT INTO dispatch_attempt (
    id, dispatch_job_id, claim_seq, attempt_number, attempted_at, completed_at, status, error_class, error_message,
    unknown, worker)
SELECT (SELECT base FROM homing_tsid) + row_number() OVER (ORDER BY j.id), j.id, j.claim_seq, j.attempt_count + 1,
    j.updated_at, {now}, 'FAILURE', :lost_class, :lost_error, 1, j.locked_by
FROM dispatch_job AS j
WHERE j.id IN ({lost});
UPDATE dispatch_job
SET status = {as_it_was},
    claim_seq = dispatch_job.claim_seq + 1,
    rescue_count = rescue_count + 1,
    attempt_count = attempt_count + 1,
    attempts_before = attempts_before + 1,
    last_attempt_at = updated_at,
    next_attempt_at = max({now}, {if_pending}),
    locked_by = NULL,
    lease_expires_at = NULL,
    updated_at = {now}
FROM homing_tsid CROSS JOIN dispatch_attempt AS a ON a.id > homing_tsid.base AND a.id <= homing_tsid.last
WHERE dispatch_job.id = a.dispatch_job_id AND dispatch_job.claim_seq = a.claim_seq AND dispatch_job.status = 'IN_PROGRESS'
RETURNING dispatch_job.id

-- name: lock_jobs
SELECT 1 WHERE :ids IS NULL

-- fragment: late
json_each(:batch) AS b CROSS JOIN dispatch_job AS j ON j.id = json_extract(b.value, '$.id')

-- fragment: late_claim
json_extract(b.value, '$.fence') - coalesce(json_extract(b.value, '$.lost'), 0)

-- name: record_late
{draw_ids};
UPDATE dispatch_attempt
SET attempted_at = {begun},
    completed_at = {now},
    duration_millis = json_extract(b.value, '$.millis'),
    status = json_extract(b.value, '$.attempt'),
    response_code = json_extract(b.value, '$.response_code'),
    response_body = json_extract(b.value, '$.response_body'),
    response_headers = json_extract(b.value, '$.response_headers'),
    error_class = json_extract(b.value, '$.error_class'),
    error_message = json_extract(b.value, '$.error'),
    error_stack_trace = json_extract(b.value, '$.stack_trace'),
    unknown = coalesce(json_extract(b.value, '$.unknown'), 0)
FROM json_each(:batch) AS b
WHERE dispatch_attempt.dispatch_job_id = json_extract(b.value, '$.id') AND dispatch_attempt.claim_seq = {late_claim}
  AND dispatch_attempt.error_class = :lost_class AND json_extract(b.value, '$.error_class') IS NOT :lost_class;
INSERT INTO dispatch_attempt (
    id, dispatch_job_id, claim_seq, attempt_number, attempted_at, completed_at, duration_millis, status, response_code,
    response_body, response_headers, error_class, error_message, error_stack_trace, unknown, worker)
SELECT (SELECT base FROM homing_tsid) + b.key, j.id, {late_claim},
    j.attempt_count + row_number() OVER (PARTITION BY j.id ORDER BY {late_claim}), {begun}, {now},
    json_extract(b.value, '$.millis'), json_extract(b.value, '$.attempt'), json_extract(b.value, '$.response_code'),
    json_extract(b.value, '$.response_body'), json_extract(b.value, '$.response_headers'),
    json_extract(b.value, '$.error_class'), json_extract(b.value, '$.error'), json_extract(b.value, '$.stack_trace'),
    coalesce(json_extract(b.value, '$.unknown'), 0), :owner
FROM {late}
WHERE NOT EXISTS (
    SELECT 1 FROM dispatch_attempt AS a WHERE a.dispatch_job_id = j.id AND a.claim_seq = {late_claim});
WITH more AS MATERIALIZED (
    SELECT a.dispatch_job_id AS id, count(*) AS count, sum(json_extract(b.value, '$.counted')) AS counted,
        max(a.attempted_at) AS attempted_at
    FROM json_each(:batch) AS b CROSS JOIN dispatch_attempt AS a ON a.id = (SELECT base FROM homing_tsid) + b.key
    GROUP BY a.dispatch_job_id
)
UPDATE dispatch_job
SET attempt_count = attempt_count + more.count,
    attempts_before = attempts_before + more.count - more.counted,
    last_attempt_at = max(coalesce(last_attempt_at, ''), more.attempted_at)
FROM more
WHERE dispatch_job.id = more.id
RETURNING id

-- name: expired
SELECT id, CASE ordering WHEN 'group' THEN group_id END AS ordered_group
FROM dispatch_job INDEXED BY homing_job_expiring
WHERE status IN ('PENDING', 'FAILED') AND expires_at IS NOT NULL AND expires_at <= {now}
ORDER BY expires_at
LIMIT :limit

-- name: expire
UPDATE dispatch_job
SET status = 'ERROR',
    last_error = 'expired before it could be delivered'
        || coalesce('; last error: ' || nullif({real_error}, 'expired before it could be delivered'), ''),
    error_class = 'expired',
    completed_at = {now},
    duration_millis = {duration},
    updated_at = {now}
WHERE id IN (SELECT value FROM json_each(:ids)) AND +status IN ('PENDING', 'FAILED') AND expires_at <= {now}
RETURNING id, status

-- name: make_attempt_weeks
-- There are no partitions here.
SELECT NULL AS week WHERE 0

-- name: sweep_metadata
UPDATE homing_tsid
SET seen = (SELECT max(id)
            FROM (SELECT id FROM dispatch_job_metadata WHERE id > :after AND id < {an_hour_ago} ORDER BY id LIMIT :limit));
DELETE FROM dispatch_job_metadata
WHERE id > :after AND id <= (SELECT seen FROM homing_tsid)
  AND NOT EXISTS (SELECT 1 FROM dispatch_job AS j WHERE j.id = dispatch_job_metadata.dispatch_job_id);
SELECT seen AS last, changes() AS swept FROM homing_tsid

-- name: sweep_headers
UPDATE homing_tsid
SET seen = (SELECT max(dispatch_job_id)
            FROM (SELECT dispatch_job_id FROM dispatch_job_headers WHERE dispatch_job_id > :after AND dispatch_job_id < {an_hour_ago} ORDER BY dispatch_job_id LIMIT :limit));
DELETE FROM dispatch_job_headers
WHERE dispatch_job_id > :after AND dispatch_job_id <= (SELECT seen FROM homing_tsid)
  AND NOT EXISTS (SELECT 1 FROM dispatch_job AS j WHERE j.id = dispatch_job_headers.dispatch_job_id);
SELECT seen AS last, changes() AS swept FROM homing_tsid

-- name: sweep_attempts
UPDATE homing_tsid
SET seen = (SELECT max(id)
            FROM (SELECT id FROM dispatch_attempt WHERE id > :after AND id < {an_hour_ago} ORDER BY id LIMIT :limit));
DELETE FROM dispatch_attempt
WHERE id > :after AND id <= (SELECT seen FROM homing_tsid)
  AND NOT EXISTS (SELECT 1 FROM dispatch_job AS j WHERE j.id = dispatch_attempt.dispatch_job_id);
SELECT seen AS last, changes() AS swept FROM homing_tsid

-- name: note_targets
INSERT INTO homing_target (target)
SELECT json_extract(value, '$.target')
FROM json_each(:verdicts)
WHERE json_extract(value, '$.failures') > 0 OR json_extract(value, '$.pause') > 0
ON CONFLICT (target) DO NOTHING

-- fragment: in_a_while
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds',

-- name: judge_targets
-- As on PostgreSQL. Times that are not there are '' where the latest is looked for.
WITH said AS MATERIALIZED (
    SELECT t.*, json_extract(v.value, '$.failures') AS new_failures, json_extract(v.value, '$.pause') AS pause,
        json_extract(v.value, '$.error') AS error, json_extract(v.value, '$.succeeded') AS succeeded,
        json_extract(v.value, '$.endpoint') AS said_endpoint,
        coalesce(t.endpoint IN (SELECT value FROM json_each(v.value, '$.well')), 0) AS is_well,
        max(coalesce(t.well_at, ''), CASE WHEN json_extract(v.value, '$.well_age') IS NOT NULL
            THEN {in_a_while} -json_extract(v.value, '$.well_age'))) ELSE '' END) AS well_now
    FROM json_each(:verdicts) AS v CROSS JOIN homing_target AS t ON t.target = json_extract(v.value, '$.target')
), met AS MATERIALIZED (
    SELECT *,
        CASE WHEN succeeded THEN 0 ELSE failures END + new_failures AS in_a_row,
        CASE WHEN succeeded THEN NULL ELSE open_until END AS open_before,
        CASE WHEN succeeded THEN 0 ELSE cooldown END AS cooldown_before,
        CASE WHEN said_endpoint <> endpoint AND failures > 0 AND NOT succeeded THEN '*' ELSE said_endpoint END AS failing
    FROM said
), verdict AS MATERIALIZED (
    SELECT *, coalesce(failing = '*', 0) AS is_spread,
        coalesce(failing, CASE WHEN endpoint <> '*' AND NOT is_well THEN endpoint END) AS endpoint_now,
        CASE WHEN coalesce(failing, endpoint) = endpoint AND NOT is_well THEN endpoint_until END AS kept_until,
        min(max(cooldown_before * 2, :cooldown), :longest_cooldown) AS next_cooldown
    FROM met
), opening AS MATERIALIZED (
    SELECT *,
        new_failures > 0 AND coalesce(
            CASE WHEN is_spread THEN open_before WHEN cooldown_before > 0 THEN kept_until END <= {now},
            in_a_row >= :threshold) AS opens
    FROM verdict
)
UPDATE homing_target
SET failures = v.in_a_row,
    open_until = CASE WHEN v.opens AND v.is_spread THEN {in_a_while} v.next_cooldown)) ELSE v.open_before END,
    cooldown = CASE WHEN v.opens THEN v.next_cooldown ELSE v.cooldown_before END,
    paused_until = CASE WHEN v.pause > 0 AND v.is_spread
        THEN max(coalesce(homing_target.paused_until, ''), {in_a_while} CASE
            WHEN v.well_now > {in_a_while} -300)) THEN min(v.pause, :shorter_pause) ELSE v.pause END)))
        ELSE homing_target.paused_until END,
    pause_reason = CASE WHEN v.pause > 0 AND v.is_spread THEN v.error ELSE homing_target.pause_reason END,
    endpoint = v.endpoint_now,
    endpoint_until = CASE WHEN NOT v.is_spread THEN nullif(max(
        coalesce(v.kept_until, ''),
        CASE WHEN v.opens THEN {in_a_while} v.next_cooldown)) ELSE '' END,
        CASE WHEN v.pause > 0 THEN {in_a_while} v.pause)) ELSE '' END), '') END,
    well_at = nullif(v.well_now, ''),
    last_error = coalesce(v.error, homing_target.last_error),
    updated_at = {now}
FROM opening AS v
WHERE homing_target.target = v.target
RETURNING target, coalesce(open_until > {now}, 0) AS open, endpoint,
    max(0.0, (julianday(endpoint_until) - julianday('now')) * 86400) AS endpoint_closed_for,
    max(0.0, (julianday(max(coalesce(paused_until, ''), coalesce(open_until, ''))) - julianday('now')) * 86400) AS closed_for

-- name: insert_jobs
UPDATE homing_tsid
SET base = max({next_id}, (SELECT coalesce(max(id), 0) + 1 FROM dispatch_job WHERE id < {a_day_ahead}));
UPDATE homing_tsid SET last = base + json_array_length(:batch) * 64;
INSERT INTO dispatch_job (
    id, created_at, updated_at, external_id, source, type, group_id, target_url, target, protocol, payload,
    payload_content_type, credentials_id, max_retries, retry_strategy, scheduled_for, expires_at,
    idempotency_key, fingerprint, queue_url, ordering, timeout_seconds, has_headers, next_attempt_at, queue_at, ready,
    position, traceparent, tracestate)
SELECT (SELECT base FROM homing_tsid) + b.key * 64, {now}, {now}, json_extract(b.value, '$.external_id'),
    json_extract(b.value, '$.source'), json_extract(b.value, '$.type'), json_extract(b.value, '$.group_id'),
    json_extract(b.value, '$.target_url'), json_extract(b.value, '$.target'), json_extract(b.value, '$.protocol'),
    json_extract(b.value, '$.payload'), json_extract(b.value, '$.payload_content_type'),
    json_extract(b.value, '$.credentials_id'), json_extract(b.value, '$.max_retries'),
    json_extract(b.value, '$.retry_strategy'), json_extract(b.value, '$.scheduled_for'),
    json_extract(b.value, '$.expires_at'), json_extract(b.value, '$.idempotency_key'),
    json_extract(b.value, '$.fingerprint'), json_extract(b.value, '$.queue_url'), json_extract(b.value, '$.ordering'),
    json_extract(b.value, '$.timeout_seconds'), json_extract(b.value, '$.headers') IS NOT NULL,
    max(coalesce(json_extract(b.value, '$.scheduled_for'), ''), {now}),
    max(coalesce(json_extract(b.value, '$.scheduled_for'), ''), {now}),
    json_extract(b.value, '$.ordering') = 'none',
    CASE json_extract(b.value, '$.ordering') WHEN 'group' THEN b.key + 1 + (
        SELECT coalesce(max(j.position), 0) FROM dispatch_job AS j
        WHERE j.group_id = json_extract(b.value, '$.group_id') AND j.ordering = 'group'
          AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS')) END,
    json_extract(b.value, '$.traceparent'), json_extract(b.value, '$.tracestate')
FROM json_each(:batch) AS b
WHERE true
ON CONFLICT DO NOTHING;
INSERT INTO dispatch_job_metadata (id, dispatch_job_id, meta_key, meta_value)
SELECT j.id + row_number() OVER (PARTITION BY j.id), j.id, entry.key, entry.value
FROM json_each(:batch) AS b CROSS JOIN dispatch_job AS j ON j.id = (SELECT base FROM homing_tsid) + b.key * 64,
    json_each(json_extract(b.value, '$.metadata')) AS entry;
INSERT INTO dispatch_job_headers (dispatch_job_id, header_name, header_value)
SELECT j.id, entry.key, entry.value
FROM json_each(:batch) AS b CROSS JOIN dispatch_job AS j ON j.id = (SELECT base FROM homing_tsid) + b.key * 64,
    json_each(json_extract(b.value, '$.headers')) AS entry;
SELECT json_extract(b.value, '$.number') AS number, j.id, j.status, j.created_at
FROM json_each(:batch) AS b CROSS JOIN dispatch_job AS j ON j.id = (SELECT base FROM homing_tsid) + b.key * 64

-- name: by_idempotency_key
SELECT json_extract(k.value, '$.number') AS number, j.id, j.credentials_id, j.fingerprint, j.status, j.created_at
FROM json_each(:keys) AS k CROSS JOIN dispatch_job AS j
    ON j.idempotency_key IS NOT NULL AND j.idempotency_key = json_extract(k.value, '$.idempotency_key')
    AND j.source = json_extract(k.value, '$.source') AND j.type = json_extract(k.value, '$.type')
    AND j.target_url = json_extract(k.value, '$.target_url')

-- name: get
SELECT o.*,
    (SELECT json_group_object(m.meta_key, m.meta_value) FROM dispatch_job_metadata AS m
     WHERE m.dispatch_job_id = o.id) AS metadata,
    (SELECT json_group_object(h.header_name, h.header_value) FROM dispatch_job_headers AS h
     WHERE h.dispatch_job_id = o.id) AS headers,
    t.paused_until, t.pause_reason, t.open_until, t.last_error AS target_error, {now} AS now
FROM dispatch_job AS o LEFT JOIN homing_target AS t ON t.target = o.target
WHERE o.id = :id

-- name: attempts
SELECT * FROM dispatch_attempt WHERE dispatch_job_id = :id ORDER BY attempt_number, id

-- name: ordered_groups
SELECT DISTINCT group_id
FROM dispatch_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND ordering = 'group'

-- name: cancel
UPDATE dispatch_job
SET status = 'CANCELLED', updated_at = {now}
WHERE id IN (SELECT value FROM json_each(:ids)) AND +status IN ('PENDING', 'FAILED')
RETURNING id

-- name: requeue
UPDATE dispatch_job
SET status = 'PENDING',
    attempts_before = attempt_count,
    next_attempt_at = max(coalesce(scheduled_for, ''), {now}),
    queue_at = max(coalesce(scheduled_for, ''), {now}),
    queued = 0,
    expires_at = CASE WHEN expires_at <= {now} THEN NULL ELSE expires_at END,
    completed_at = NULL,
    duration_millis = NULL,
    rescue_count = 0,
    defer_count = 0,
    dead_letter_sent = 0,
    ready = ordering = 'none',
    position = CASE ordering WHEN 'group' THEN (
        SELECT coalesce(max(j.position), 0) + 1
        FROM dispatch_job AS j
        WHERE j.group_id = dispatch_job.group_id AND j.ordering = 'group'
          AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS')) END,
    updated_at = {now}
WHERE id IN (SELECT value FROM json_each(:ids)) AND +status IN ('ERROR', 'CANCELLED')
RETURNING id

-- name: send_now
UPDATE dispatch_job
SET queue_at = CASE WHEN next_attempt_at > {now} THEN {now} ELSE queue_at END,
    queued = queued AND next_attempt_at <= {now},
    next_attempt_at = min(next_attempt_at, {now}),
    scheduled_for = min(scheduled_for, {now}),
    updated_at = {now}
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('PENDING', 'FAILED')
RETURNING id

-- name: dead_letters
SELECT id, source, type, group_id, target_url, attempt_count, error_class, last_error, created_at, completed_at,
    claim_seq, traceparent, tracestate
FROM dispatch_job
WHERE status = 'ERROR' AND NOT dead_letter_sent AND updated_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 day')
ORDER BY updated_at
LIMIT :limit

-- name: dead_letters_sent
UPDATE dispatch_job
SET dead_letter_sent = 1
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'ERROR'
RETURNING id

-- name: targets
SELECT *, {now} AS now FROM homing_target WHERE target > :after ORDER BY target LIMIT :limit

-- name: held_targets
-- Paused, or with a breaker that is open, half or whole; or one of its endpoints keeps failing.
SELECT t.*, {now} AS now FROM homing_target AS t
WHERE {closed} OR t.endpoint_until IS NOT NULL AND t.cooldown > 0
ORDER BY t.target LIMIT :most

-- name: target
SELECT *, {now} AS now FROM homing_target WHERE target = :target

-- name: limit_target
INSERT INTO homing_target (target, max_concurrency, rate_per_second, tokens)
VALUES (:target, :max_concurrency, :rate_per_second, max(coalesce(:rate_per_second, 1), 1))
ON CONFLICT (target) DO UPDATE
SET max_concurrency = excluded.max_concurrency, rate_per_second = excluded.rate_per_second,
    tokens = excluded.tokens, tokens_at = {now}, updated_at = {now}
RETURNING target

-- name: replace_limits
-- Only those that somebody has seen: of a target without a row none.
INSERT INTO homing_target (target, max_concurrency, rate_per_second, tokens)
SELECT :target, :max_concurrency, :rate_per_second, max(coalesce(:rate_per_second, 1), 1)
WHERE coalesce(:seen_concurrency, :seen_rate) IS NULL
   OR EXISTS (SELECT 1 FROM homing_target WHERE target = :target)
ON CONFLICT (target) DO UPDATE
SET max_concurrency = excluded.max_concurrency, rate_per_second = excluded.rate_per_second,
    tokens = excluded.tokens, tokens_at = {now}, updated_at = {now}
WHERE max_concurrency IS :seen_concurrency AND rate_per_second IS :seen_rate
RETURNING target

-- name: pause_target
INSERT INTO homing_target (target, paused_until, pause_reason)
VALUES (:target, :until, :reason)
ON CONFLICT (target) DO UPDATE
SET paused_until = excluded.paused_until, pause_reason = excluded.pause_reason, updated_at = {now}
RETURNING target

-- name: resume_target
UPDATE homing_target
SET paused_until = NULL, pause_reason = NULL, open_until = NULL, endpoint_until = NULL, cooldown = 0, failures = 0,
    updated_at = {now}
WHERE target = :target
RETURNING target

-- name: counts
-- Every state has its tally here (migrations/sqlite/0003_tally.sql).
SELECT state AS status, count FROM homing_tally WHERE lane = 'dispatch_jobs'

-- fragment: due_heads
{heads}, due AS MATERIALIZED (
    SELECT heads.target,
        (SELECT min(j.next_attempt_at) FROM dispatch_job AS j INDEXED BY homing_job_due
         WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = heads.target) AS since
    FROM heads
)

-- fragment: closed
(coalesce(t.paused_until > {now}, 0) OR t.open_until IS NOT NULL)

-- name: oldest_due
WITH RECURSIVE {due_heads}
SELECT (julianday('now') - julianday(min(since))) * 86400 AS age FROM due WHERE target <> :but_for

-- name: held_back
WITH RECURSIVE {due_heads}
SELECT due.target, due.since, (julianday('now') - julianday(due.since)) * 86400 AS age,
    (SELECT count(*)
     FROM (SELECT 1 FROM dispatch_job AS j INDEXED BY homing_job_due
           WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = due.target AND j.next_attempt_at <= {now}
           LIMIT :counted)) AS count
FROM due JOIN homing_target AS t ON t.target = due.target
WHERE due.since <= {now} AND {closed}
ORDER BY due.since
LIMIT :most_held

-- name: oldest_claimable
WITH RECURSIVE {due_heads}
SELECT (julianday('now') - julianday(min(due.since))) * 86400 AS age
FROM due LEFT JOIN homing_target AS t ON t.target = due.target
WHERE due.since <= {now} AND NOT {closed}

-- name: listed_jobs
SELECT o.id, o.external_id, o.source, o.type, o.group_id, o.status, o.target_url, o.protocol, o.payload_content_type,
    o.credentials_id, o.max_retries, o.retry_strategy, o.ordering, o.timeout_seconds, o.idempotency_key, o.queue_url,
    o.scheduled_for, o.expires_at, o.attempt_count, o.next_attempt_at, o.last_attempt_at, o.completed_at,
    o.duration_millis, o.last_error, o.error_class, o.created_at, o.updated_at,
    (SELECT json_group_object(m.meta_key, m.meta_value) FROM dispatch_job_metadata AS m
     WHERE m.dispatch_job_id = o.id) AS metadata
FROM dispatch_job AS o
WHERE o.id IN (SELECT value FROM json_each(:ids))

-- name: group_head
SELECT id, status
FROM dispatch_job
WHERE group_id = :group_id AND ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
ORDER BY position
LIMIT 1

-- name: refuse_conflicts
-- Here it is the absolute value of the one number that has none.
SELECT abs(CASE WHEN EXISTS (
    SELECT 1
    FROM json_each(:keys) AS k
    WHERE NOT EXISTS (
        SELECT 1
        FROM dispatch_job AS j
        WHERE j.idempotency_key IS NOT NULL AND j.idempotency_key = json_extract(k.value, '$.idempotency_key')
          AND j.source = json_extract(k.value, '$.source') AND j.type = json_extract(k.value, '$.type')
          AND j.target_url = json_extract(k.value, '$.target_url')
          AND j.credentials_id IS json_extract(k.value, '$.credentials_id')
          AND coalesce(j.fingerprint, json_extract(k.value, '$.fingerprint')) = json_extract(k.value, '$.fingerprint')))
    THEN -9223372036854775807 - 1 ELSE 1 END) AS refused

-- name: dead_groups
WITH RECURSIVE class(error_class) AS (
    SELECT min(error_class) FROM dispatch_job WHERE status = 'ERROR'
    UNION ALL
    SELECT (SELECT min(j.error_class) FROM dispatch_job AS j
            WHERE j.status = 'ERROR' AND j.error_class > class.error_class)
    FROM class WHERE class.error_class IS NOT NULL
), known AS MATERIALIZED (
    SELECT error_class FROM class WHERE error_class IS NOT NULL LIMIT :classes
), newest AS MATERIALIZED (
    SELECT j.error_class, j.id, j.source, j.type
    FROM known CROSS JOIN dispatch_job AS j
    WHERE j.id IN (
        SELECT d.id
        FROM dispatch_job AS d
        WHERE d.status = 'ERROR' AND d.error_class = known.error_class
          AND d.source = coalesce(:source, d.source) AND d.type = coalesce(:type, d.type)
        ORDER BY d.id DESC
        LIMIT :most)
    UNION ALL
    SELECT 'unclassified', j.id, j.source, j.type
    FROM dispatch_job AS j
    WHERE j.id IN (
        SELECT d.id
        FROM dispatch_job AS d
        WHERE d.status = 'ERROR' AND d.error_class IS NULL
          AND d.source = coalesce(:source, d.source) AND d.type = coalesce(:type, d.type)
        ORDER BY d.id DESC
        LIMIT :most)
), grouped AS MATERIALIZED (
    SELECT error_class, source, type, count(*) AS count, max(id) AS newest,
        sum(count(*)) OVER (PARTITION BY error_class) AS of_class
    FROM newest
    GROUP BY error_class, source, type
)
SELECT g.error_class, g.source, g.type, g.count, g.of_class, j.id, j.last_error, j.created_at, j.completed_at
FROM grouped AS g JOIN dispatch_job AS j ON j.id = g.newest
ORDER BY g.count DESC, g.newest DESC
LIMIT :groups

-- fragment: a_day_ago
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 day')

-- name: success_by_source
WITH RECURSIVE head(source) AS (
    SELECT min(source) FROM dispatch_job
    UNION ALL
    SELECT (SELECT min(j.source) FROM dispatch_job AS j WHERE j.source > head.source)
    FROM head WHERE head.source IS NOT NULL
), known AS MATERIALIZED (
    SELECT source FROM head WHERE source IS NOT NULL LIMIT :most
), counted AS MATERIALIZED (
    SELECT known.source,
        (SELECT count(*) FROM dispatch_job AS j
         WHERE j.source = known.source AND j.created_at > {a_day_ago}) AS total,
        (SELECT count(*) FROM dispatch_job AS j
         WHERE j.source = known.source AND j.status = 'COMPLETED' AND j.created_at > {a_day_ago}) AS successful
    FROM known
)
SELECT source, total, successful FROM counted WHERE total > 0 ORDER BY total DESC, source

-- name: duration_by_type
-- By the plus the index of states is left out, from which nearly all rows would have to be sorted.
SELECT type, count(*) AS count, avg(duration_millis) AS mean, max(duration_millis) AS max
FROM dispatch_job
WHERE +status = 'COMPLETED'
GROUP BY type
ORDER BY type
LIMIT :most

-- fragment: needing_attention
dispatch_job INDEXED BY homing_job_attention
WHERE status = 'ERROR' OR (status = 'FAILED' AND attempt_count >= max_retries - 1)

-- name: needs_attention
SELECT id FROM {needing_attention} ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: count_attention
SELECT count(*) AS count FROM {needing_attention}

-- fragment: ended
max(o.created_at, o.updated_at, coalesce(o.completed_at, o.created_at))

-- fragment: prunable
-- CROSS JOIN keeps this order: by id, without the indexes of states.
dispatch_job AS o CROSS JOIN json_each(:ages) AS a
WHERE +o.status IN ('COMPLETED', 'ERROR', 'CANCELLED') AND +o.status = json_extract(a.value, '$.state')
  AND {ended} < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', json_extract(a.value, '$.seconds')))

-- fragment: chosen
SELECT o.id FROM {prunable} AND o.id IN (SELECT value FROM json_each(:ids))

-- name: prune_window
SELECT max(id) AS last,
    min(created_at) < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', :youngest)) AS old
FROM (SELECT id, created_at FROM dispatch_job WHERE id > :after ORDER BY id LIMIT :window)

-- name: prune_survey
SELECT o.status AS state, count(*) AS count, min({ended}) AS oldest
FROM {prunable} AND o.id > :after AND o.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT o.id AS id FROM {prunable} AND o.id > :after AND o.id <= :until ORDER BY o.id LIMIT :limit

-- name: prune
DELETE FROM dispatch_job_metadata WHERE dispatch_job_id IN ({chosen});
DELETE FROM dispatch_job_headers WHERE dispatch_job_id IN ({chosen});
DELETE FROM dispatch_attempt WHERE :with_attempts AND dispatch_job_id IN ({chosen});
DELETE FROM dispatch_job WHERE id IN ({chosen}) RETURNING status AS state
