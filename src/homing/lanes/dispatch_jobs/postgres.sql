-- dispatch_job on PostgreSQL. Time is the database's everywhere. Statements that write several rows lock
-- them in id order: two that meet in opposite orders would deadlock. Whatever may change which job is the
-- head of an ordered group runs between `lock_groups` and `promote`, in one transaction.

-- fragment: claimed
o.id, o.claim_seq AS fence, o.attempt_count - o.attempts_before AS attempts, o.defer_count AS deferrals,
    date_part('epoch', now()) - date_part('epoch', greatest(o.created_at, o.scheduled_for)) AS age,
    left(o.traceparent, 200) AS traceparent,
    o.next_attempt_at AS due_at, o.expires_at <= now() AS expired, o.target, o.target_url,
    -- What is large is read for the attempt. To ask for the length of a text reads none of it.
    CASE WHEN octet_length(o.payload) <= 16384 THEN o.payload END AS payload,
    o.payload_content_type, o.credentials_id, o.max_retries, o.retry_strategy, o.timeout_seconds,
    CASE o.ordering WHEN 'group' THEN o.group_id END AS ordered_group, o.type, o.source,
    -- An empty text is for more than any server takes; these are not put together.
    CASE WHEN o.has_headers THEN (
        SELECT CASE WHEN max(given.count) > 1000 OR max(given.bytes) > 65536 THEN ''
                    ELSE (json_agg(json_build_array(given.header_name, given.header_value))
                          FILTER (WHERE given.count <= 1000 AND given.bytes <= 65536))::text END
        FROM (SELECT header_name, header_value, count(*) OVER () AS count,
                     sum(octet_length(header_name) + octet_length(header_value)) OVER () AS bytes
              FROM (SELECT header_name, header_value FROM dispatch_job_headers
                    WHERE dispatch_job_id = o.id LIMIT 1001) AS few) AS given) END AS headers,
    left(o.tracestate, 600) AS tracestate, o.protocol, CASE WHEN octet_length(o.payload) <= 16384 THEN 0 ELSE octet_length(o.payload) END AS size

-- fragment: real_error
-- Without the reason that stands before it, where the job had ended so already.
regexp_replace(o.last_error, '^.*; last error: ', '')

-- fragment: told_beside
-- What ends or puts off a job without an attempt does not hide what the last attempt met.
WHEN mine.status = 'ERROR' THEN concat_ws('; last error: ', mine.error, nullif({real_error}, mine.error))
ELSE coalesce(o.last_error, mine.error)

-- fragment: as_it_was
CASE WHEN o.attempt_count <= o.attempts_before THEN 'PENDING' ELSE 'FAILED' END

-- fragment: if_pending
-- Somebody may have scheduled it while it was held.
CASE WHEN o.attempt_count <= o.attempts_before THEN o.scheduled_for END

-- fragment: head
head AS (
    (SELECT target, next_attempt_at
     FROM dispatch_job
     WHERE ready AND status IN ('PENDING', 'FAILED') AND target > :after
     ORDER BY target, next_attempt_at
     LIMIT 1)
    UNION ALL
    SELECT following.target, following.next_attempt_at
    FROM head, LATERAL (
        SELECT j.target, j.next_attempt_at
        FROM dispatch_job AS j
        WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target > head.target
        ORDER BY j.target, j.next_attempt_at
        LIMIT 1) AS following
)

-- fragment: endpoint_closed_for
CASE WHEN t.endpoint_until IS NOT NULL
     THEN greatest(0, extract(epoch FROM t.endpoint_until - now()))::double precision END AS endpoint_closed_for

-- name: due_targets
-- One look into the index per target that has something open, not one per job: each step jumps to the next
-- target. What is in flight is counted once, and only when a target with a limit asks.
WITH RECURSIVE {head}, heads AS MATERIALIZED (
    SELECT * FROM head LIMIT :most
), flying AS MATERIALIZED (
    SELECT target, count(*)::integer AS count FROM dispatch_job WHERE status = 'IN_PROGRESS' GROUP BY target
)
SELECT heads.target,
    heads.next_attempt_at <= now()
        AND coalesce(t.paused_until <= now(), true) AND coalesce(t.open_until <= now(), true) AS due,
    CASE WHEN t.open_until IS NOT NULL OR t.max_concurrency IS NOT NULL
         THEN (SELECT flying.count FROM flying WHERE flying.target = t.target) END AS in_flight,
    CASE WHEN t.open_until IS NOT NULL THEN 1 ELSE t.max_concurrency END AS most_in_flight,
    t.rate_per_second, coalesce(t.failures, 0) AS failures,
    greatest(0, extract(epoch FROM greatest(t.paused_until, t.open_until) - now()))::double precision AS closed_for,
    t.endpoint, {endpoint_closed_for}, t.open_until IS NOT NULL AS broken
FROM heads LEFT JOIN homing_target AS t ON t.target = heads.target

-- name: probes
-- Of a target whose breaker is half open, what is due first and what is due last: not all need be of a URL that fails.
(SELECT j.id, j.target_url
 FROM dispatch_job AS j
 WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = :target AND j.next_attempt_at <= now()
 ORDER BY j.next_attempt_at, j.id
 LIMIT :most)
UNION ALL
(SELECT j.id, j.target_url
 FROM dispatch_job AS j
 WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = :target AND j.next_attempt_at <= now()
 ORDER BY j.next_attempt_at DESC, j.id DESC
 LIMIT :most)

-- name: lock_targets
-- Before a claim from targets with limits: the next statement then sees what others have claimed of them.
SELECT target
FROM homing_target
WHERE target IN (SELECT json_array_elements(:shares::json) ->> 'target')
ORDER BY target
FOR UPDATE

-- name: claim
-- From each target its share, and never more than its limits leave. By an array of ids, not by a join: the
-- planner cannot know how small the shares are, and would read the whole table.
-- What is in flight is counted once, and only when a target with a limit asks.
WITH flying AS MATERIALIZED (
    SELECT target, count(*) AS count FROM dispatch_job WHERE status = 'IN_PROGRESS' GROUP BY target
), share AS MATERIALIZED (
    SELECT s.target,
        least(s.slots,
              CASE WHEN t.open_until IS NOT NULL OR t.max_concurrency IS NOT NULL
                   THEN CASE WHEN t.open_until IS NOT NULL THEN 1 ELSE t.max_concurrency END
                        - coalesce((SELECT flying.count FROM flying WHERE flying.target = t.target), 0) END,
              CASE WHEN t.rate_per_second IS NOT NULL
                   THEN floor(least(greatest(t.rate_per_second, 1),
                                    t.tokens + t.rate_per_second * extract(epoch FROM now() - t.tokens_at))) END
        )::bigint AS slots
    FROM json_to_recordset(:shares::json) AS s(target text, slots integer)
    LEFT JOIN homing_target AS t ON t.target = s.target
), candidates AS MATERIALIZED (
    SELECT due.id
    FROM share, LATERAL (
        SELECT j.id
        FROM dispatch_job AS j
        WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = share.target
          AND j.next_attempt_at <= now()
        ORDER BY j.next_attempt_at, j.id
        LIMIT greatest(share.slots, 0)
        FOR UPDATE SKIP LOCKED) AS due
), claimed AS (
    UPDATE dispatch_job AS o
    SET status = 'IN_PROGRESS',
        claim_seq = o.claim_seq + 1,
        locked_by = :owner,
        lease_expires_at = now() + make_interval(secs => :lease_seconds),
        updated_at = now()
    WHERE o.id = ANY (ARRAY(SELECT id FROM candidates))
    RETURNING {claimed}
), spent AS (
    UPDATE homing_target AS t
    SET tokens = least(greatest(t.rate_per_second, 1),
                       t.tokens + t.rate_per_second * extract(epoch FROM now() - t.tokens_at)) - taken.count,
        tokens_at = now()
    FROM (SELECT target, count(*) AS count FROM claimed GROUP BY target) AS taken
    WHERE t.target = taken.target AND t.rate_per_second IS NOT NULL
)
SELECT * FROM claimed

-- name: claim_one
-- For a broker's message: that job, if it is due, its turn, and nobody's. Of a target that has limits, or whose
-- breaker is not closed, nothing is claimed here but by `claim_one_limited`, after a lock.
WITH candidate AS MATERIALIZED (
    SELECT j.id
    FROM dispatch_job AS j LEFT JOIN homing_target AS t ON t.target = j.target
    WHERE j.id = :id AND j.ready AND j.status IN ('PENDING', 'FAILED') AND j.next_attempt_at <= now()
      AND coalesce(t.paused_until <= now(), true)
      AND t.open_until IS NULL AND t.max_concurrency IS NULL AND t.rate_per_second IS NULL
    FOR UPDATE OF j SKIP LOCKED
)
UPDATE dispatch_job AS o
SET status = 'IN_PROGRESS',
    claim_seq = o.claim_seq + 1,
    locked_by = :owner,
    lease_expires_at = now() + make_interval(secs => :lease_seconds),
    updated_at = now()
WHERE o.id = ANY (ARRAY(SELECT id FROM candidate))
RETURNING {claimed}

-- name: claim_these
-- The same for several, whose messages came at the same time.
WITH candidates AS MATERIALIZED (
    SELECT j.id
    FROM dispatch_job AS j LEFT JOIN homing_target AS t ON t.target = j.target
    WHERE j.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
      AND j.ready AND j.status IN ('PENDING', 'FAILED') AND j.next_attempt_at <= now()
      AND coalesce(t.paused_until <= now(), true)
      AND t.open_until IS NULL AND t.max_concurrency IS NULL AND t.rate_per_second IS NULL
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
)
UPDATE dispatch_job AS o
SET status = 'IN_PROGRESS',
    claim_seq = o.claim_seq + 1,
    locked_by = :owner,
    lease_expires_at = now() + make_interval(secs => :lease_seconds),
    updated_at = now()
WHERE o.id = ANY (ARRAY(SELECT id FROM candidates))
RETURNING {claimed}

-- name: payload
SELECT payload FROM dispatch_job WHERE id = :id

-- name: lock_target_of
-- The next statement then sees what others have claimed of the target.
SELECT target FROM homing_target WHERE target = (SELECT target FROM dispatch_job WHERE id = :id) FOR UPDATE

-- name: claim_one_limited
WITH candidate AS MATERIALIZED (
    SELECT j.id
    FROM dispatch_job AS j JOIN homing_target AS t ON t.target = j.target
    WHERE j.id = :id AND j.ready AND j.status IN ('PENDING', 'FAILED') AND j.next_attempt_at <= now()
      AND coalesce(t.paused_until <= now(), true) AND coalesce(t.open_until <= now(), true)
      AND CASE WHEN t.open_until IS NOT NULL OR t.max_concurrency IS NOT NULL
               THEN CASE WHEN t.open_until IS NOT NULL THEN 1 ELSE t.max_concurrency END
                    > (SELECT count(*) FROM dispatch_job AS f WHERE f.status = 'IN_PROGRESS' AND f.target = t.target)
               ELSE true END
      AND coalesce(least(greatest(t.rate_per_second, 1),
                         t.tokens + t.rate_per_second * extract(epoch FROM now() - t.tokens_at)) >= 1, true)
    FOR UPDATE OF j SKIP LOCKED
), claimed AS (
    UPDATE dispatch_job AS o
    SET status = 'IN_PROGRESS',
        claim_seq = o.claim_seq + 1,
        locked_by = :owner,
        lease_expires_at = now() + make_interval(secs => :lease_seconds),
        updated_at = now()
    WHERE o.id = ANY (ARRAY(SELECT id FROM candidate))
    RETURNING {claimed}
), spent AS (
    UPDATE homing_target AS t
    SET tokens = least(greatest(t.rate_per_second, 1),
                       t.tokens + t.rate_per_second * extract(epoch FROM now() - t.tokens_at)) - 1,
        tokens_at = now()
    FROM claimed
    WHERE t.target = claimed.target AND t.rate_per_second IS NOT NULL
)
SELECT * FROM claimed

-- name: hold_up
-- Why a job could not be claimed by its id, and for how many seconds.
SELECT o.status, o.ready, o.group_id,
    greatest(0, extract(epoch FROM o.next_attempt_at - now()))::double precision AS due_in,
    greatest(0, extract(epoch FROM o.lease_expires_at - now()))::double precision AS leased_for,
    greatest(0, extract(epoch FROM greatest(t.paused_until, t.open_until) - now()))::double precision AS closed_for,
    t.open_until IS NOT NULL OR t.max_concurrency IS NOT NULL OR t.rate_per_second IS NOT NULL AS limited
FROM dispatch_job AS o LEFT JOIN homing_target AS t ON t.target = o.target
WHERE o.id = :id

-- name: postpone_unsent
-- What is to be looked at and not to be sent yet: before its time, or sent and perhaps still on its way. Only
-- the first are looked at, so that a million of others costs nothing.
WITH first AS MATERIALIZED (
    SELECT id, next_attempt_at, queued
    FROM dispatch_job
    WHERE status IN ('PENDING', 'FAILED') AND queue_at <= now()
    ORDER BY queue_at, id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), early AS (
    SELECT id FROM first
    WHERE next_attempt_at > now() - CASE WHEN queued THEN make_interval(secs => :window) ELSE interval '0' END
)
UPDATE dispatch_job AS o
SET queue_at = o.next_attempt_at + CASE WHEN o.queued THEN make_interval(secs => :window) ELSE interval '0' END
WHERE o.id = ANY (ARRAY(SELECT id FROM early))
RETURNING o.id

-- name: claim_unsent
-- What was never sent to its queue and is due, and what was sent and has not been heard of since. The window in
-- which nobody sends it again doubles: a long queue is no loss.
WITH first AS MATERIALIZED (
    SELECT id, next_attempt_at, queued
    FROM dispatch_job
    WHERE status IN ('PENDING', 'FAILED') AND queue_at <= now()
    ORDER BY queue_at, id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), unsent AS (
    SELECT id FROM first
    WHERE next_attempt_at <= now() - CASE WHEN queued THEN make_interval(secs => :window) ELSE interval '0' END
)
UPDATE dispatch_job AS o
SET queue_at = now() + make_interval(secs => :window) * 2 ^ least(o.send_number, 6),
    queued = true,
    send_number = o.send_number + 1
WHERE o.id = ANY (ARRAY(SELECT id FROM unsent))
RETURNING o.id, o.send_number AS fence, o.queue_url, CASE o.ordering WHEN 'group' THEN o.group_id END AS ordered_group,
    o.traceparent

-- name: settle_unsent
-- Those that the broker did not take: due for it again after a while.
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint, delay double precision)
), held AS MATERIALIZED (
    SELECT id, send_number FROM dispatch_job WHERE id = ANY (ARRAY(SELECT id FROM batch)) ORDER BY id FOR UPDATE
)
UPDATE dispatch_job AS o
SET queue_at = now() + make_interval(secs => batch.delay), queued = false
FROM batch JOIN held ON held.id = batch.id AND held.send_number = batch.fence
WHERE o.id = batch.id
RETURNING o.id

-- name: seen_in_queue
-- A message of this job was there and goes on waiting: not lost.
UPDATE dispatch_job AS o
SET queue_at = now() + make_interval(secs => :delay) + make_interval(secs => :window), queued = true
WHERE o.id = :id AND o.status IN ('PENDING', 'FAILED')
RETURNING o.id

-- name: unsent
-- Counted up to a limit: that there are many is what somebody wants to know.
SELECT count(*) AS count, extract(epoch FROM now() - min(queue_at))::double precision AS age
FROM (SELECT queue_at FROM dispatch_job WHERE status IN ('PENDING', 'FAILED') AND queue_at <= now()
      ORDER BY queue_at LIMIT :limit) AS waiting

-- name: router_config
SELECT config::text AS config, version FROM homing_router_config

-- name: put_router_config
INSERT INTO homing_router_config AS c (config) VALUES (:config::json)
ON CONFLICT (id) DO UPDATE SET config = excluded.config, version = c.version + 1, updated_at = now()
RETURNING c.version

-- name: claim_lost
-- Jobs that lost their worker for the fourth time and more: taken over, to be charged by the policy. Whose they were and
-- since when stays, for the attempt that says so.
WITH lost AS MATERIALIZED (
    SELECT id
    FROM dispatch_job
    WHERE status = 'IN_PROGRESS' AND rescue_count >= 3
      AND coalesce(lease_expires_at, updated_at + make_interval(secs => :lease_seconds)) < now()
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE dispatch_job AS o
SET claim_seq = o.claim_seq + 1,
    rescue_count = o.rescue_count + 1,
    lease_expires_at = now() + make_interval(secs => :lease_seconds)
WHERE o.id = ANY (ARRAY(SELECT id FROM lost))
RETURNING {claimed}

-- name: lock_groups
-- In the order of the keys: two batches with the same groups in opposite orders would deadlock.
SELECT pg_advisory_xact_lock(hashtext('homing_job_group'), key)
FROM (SELECT DISTINCT hashtext(value) AS key FROM json_array_elements_text(:groups::json) ORDER BY key) AS keys

-- name: try_lock_groups
-- For who would rather come again than wait.
SELECT pg_try_advisory_xact_lock(hashtext('homing_job_group'), key)
FROM (SELECT DISTINCT hashtext(value) AS key FROM json_array_elements_text(:groups::json)) AS keys

-- name: promote
-- In each group that has no job ready or under way, the first becomes ready: if the group is locked by us.
UPDATE dispatch_job AS o
SET ready = true
FROM (
    SELECT first.id
    FROM (SELECT DISTINCT value AS group_id FROM json_array_elements_text(:groups::json)
          WHERE pg_try_advisory_xact_lock(hashtext('homing_job_group'), hashtext(value))) AS g,
    LATERAL (
        SELECT j.id, j.ready
        FROM dispatch_job AS j
        WHERE j.group_id = g.group_id AND j.ordering = 'group' AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
        ORDER BY j.position
        LIMIT 1) AS first
    WHERE NOT first.ready AND NOT EXISTS (
        SELECT FROM dispatch_job AS j
        WHERE j.group_id = g.group_id AND j.ordering = 'group' AND j.ready
          AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS'))
) AS heads
WHERE o.id = heads.id
RETURNING o.id, o.next_attempt_at <= now() AS due

-- name: stuck_groups
-- Groups whose first job is not ready, which somebody else's SQL brings about, or a producer who held the group.
WITH RECURSIVE head AS (
    (SELECT group_id, ready
     FROM dispatch_job
     WHERE ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS') AND group_id > :after
     ORDER BY group_id, position
     LIMIT 1)
    UNION ALL
    SELECT following.group_id, following.ready
    FROM head, LATERAL (
        SELECT j.group_id, j.ready
        FROM dispatch_job AS j
        WHERE j.ordering = 'group' AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS') AND j.group_id > head.group_id
        ORDER BY j.group_id, j.position
        LIMIT 1) AS following
)
SELECT group_id, ready FROM head LIMIT :limit

-- name: settle
-- The new state and the attempt are one statement. By an array of ids, as in `claim`. A `lost` one was taken over to be
-- charged, and is the attempt of the claim before.
WITH batch AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:batch::json) AS b(
        id bigint, fence bigint, status text, counted integer, delay double precision, error text, stack_trace text,
        error_class text, millis bigint, attempt text, response_code integer, response_body text,
        response_headers jsonb, unknown boolean, lost integer)
), held AS MATERIALIZED (
    SELECT id, claim_seq, attempt_count, locked_by, updated_at
    FROM dispatch_job
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND status = 'IN_PROGRESS'
    ORDER BY id
    FOR UPDATE
), mine AS MATERIALIZED (
    SELECT batch.*, held.attempt_count + 1 AS attempt_number, held.locked_by AS worker, held.updated_at AS claimed_at
    FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
), attempts AS (
    INSERT INTO dispatch_attempt (
        dispatch_job_id, claim_seq, attempt_number, attempted_at, completed_at, duration_millis, status, response_code,
        response_body, response_headers, error_class, error_message, error_stack_trace, unknown, worker)
    SELECT id, fence - coalesce(lost, 0), attempt_number,
        CASE WHEN lost = 1 THEN claimed_at ELSE now() - millis * interval '1 ms' END, now(), millis, attempt, response_code,
        response_body, response_headers, error_class, error, stack_trace, coalesce(unknown, false), worker
    FROM mine
    WHERE counted = 1
    ORDER BY id
)
UPDATE dispatch_job AS o
SET status = mine.status,
    attempt_count = o.attempt_count + mine.counted,
    defer_count = CASE WHEN mine.status IN ('PENDING', 'FAILED') AND mine.counted = 0 THEN o.defer_count + 1 ELSE 0 END,
    next_attempt_at = CASE mine.status
        WHEN 'PENDING' THEN greatest(now() + make_interval(secs => mine.delay), o.scheduled_for)
        WHEN 'FAILED' THEN now() + make_interval(secs => mine.delay) ELSE o.next_attempt_at END,
    last_attempt_at = CASE WHEN mine.counted = 1 THEN now() - mine.millis * interval '1 ms' ELSE o.last_attempt_at END,
    completed_at = CASE WHEN mine.status IN ('COMPLETED', 'ERROR') THEN now() END,
    duration_millis = CASE WHEN mine.status IN ('COMPLETED', 'ERROR')
        THEN greatest(0, extract(epoch FROM now() - greatest(o.created_at, o.scheduled_for)) * 1000)::bigint END,
    last_error = CASE WHEN mine.counted = 1 OR o.attempt_count = 0 THEN mine.error {told_beside} END,
    error_class = CASE WHEN mine.counted = 1 OR mine.status = 'ERROR' OR o.last_error IS NULL THEN mine.error_class
                       ELSE o.error_class END,
    locked_by = NULL,
    lease_expires_at = NULL,
    updated_at = now()
FROM mine
WHERE o.id = mine.id
RETURNING o.id

-- name: confirm
SELECT o.id
FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
JOIN dispatch_job AS o ON o.id = b.id
WHERE o.claim_seq = b.fence AND o.status <> 'IN_PROGRESS'

-- name: renew
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), held AS MATERIALIZED (
    SELECT id, claim_seq
    FROM dispatch_job
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND status = 'IN_PROGRESS'
    ORDER BY id
    FOR UPDATE
)
UPDATE dispatch_job AS o
SET lease_expires_at = now() + make_interval(secs => :lease_seconds)
FROM (SELECT batch.id FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence) AS mine
WHERE o.id = mine.id
RETURNING o.id

-- name: release
-- What was being sent, for so many milliseconds, is an attempt whose outcome nobody knows, and does not count.
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint, millis bigint)
), held AS MATERIALIZED (
    SELECT id, claim_seq, attempt_count, locked_by
    FROM dispatch_job
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND status = 'IN_PROGRESS'
    ORDER BY id
    FOR UPDATE
), mine AS MATERIALIZED (
    SELECT batch.*, held.attempt_count + 1 AS attempt_number, held.locked_by AS worker,
        CASE WHEN batch.millis IS NULL THEN 0 ELSE 1 END AS sent
    FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
), attempts AS (
    INSERT INTO dispatch_attempt (
        dispatch_job_id, claim_seq, attempt_number, attempted_at, completed_at, duration_millis, status, error_class,
        error_message, unknown, worker)
    SELECT id, fence, attempt_number, now() - millis * interval '1 ms', now(), millis, 'FAILURE', :lost_class, :lost_error,
        true, worker
    FROM mine
    WHERE sent = 1
    ORDER BY id
)
UPDATE dispatch_job AS o
SET status = {as_it_was},
    attempt_count = o.attempt_count + mine.sent,
    attempts_before = o.attempts_before + mine.sent,
    last_attempt_at = CASE mine.sent WHEN 1 THEN now() - mine.millis * interval '1 ms' ELSE o.last_attempt_at END,
    next_attempt_at = greatest(o.next_attempt_at, {if_pending}),
    locked_by = NULL, lease_expires_at = NULL, updated_at = now()
FROM mine
WHERE o.id = mine.id
RETURNING o.id

-- name: rescue
-- The fence rises, so that a settlement that was never written cannot be taken for one that was. Due now,
-- so behind everything that was due before: a job that kills its workers must not stand first. Each claim that ends here
-- is an attempt: nobody knows whether it arrived. It is among `attempts_before`, which do not count.
WITH lost AS MATERIALIZED (
    SELECT id, claim_seq, attempt_count, locked_by, updated_at
    FROM dispatch_job
    WHERE status = 'IN_PROGRESS' AND rescue_count < 3
      AND coalesce(lease_expires_at, updated_at + make_interval(secs => :lease_seconds)) < now()
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), attempts AS (
    INSERT INTO dispatch_attempt (
        dispatch_job_id, claim_seq, attempt_number, attempted_at, completed_at, status, error_class, error_message,
        unknown, worker)
    SELECT id, claim_seq, attempt_count + 1, updated_at, now(), 'FAILURE', :lost_class, :lost_error, true, locked_by
    FROM lost
    ORDER BY id
)
UPDATE dispatch_job AS o
SET status = {as_it_was},
    claim_seq = o.claim_seq + 1,
    rescue_count = o.rescue_count + 1,
    attempt_count = o.attempt_count + 1,
    attempts_before = o.attempts_before + 1,
    last_attempt_at = o.updated_at,
    next_attempt_at = greatest(now(), {if_pending}),
    locked_by = NULL,
    lease_expires_at = NULL,
    updated_at = now()
WHERE o.id = ANY (ARRAY(SELECT id FROM lost))
RETURNING o.id

-- name: lock_jobs
-- The next statement then sees what others have written of these jobs.
SELECT id
FROM dispatch_job
WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
ORDER BY id
FOR UPDATE

-- name: record_late
-- Results of claims that are nobody's any more: each replaces what was written of a lost worker. Where nothing was, since
-- somebody changed the job meanwhile, it is an attempt more.
WITH batch AS MATERIALIZED (
    SELECT b.*, b.fence - coalesce(b.lost, 0) AS claim
    FROM json_to_recordset(:batch::json) AS b(
        id bigint, fence bigint, counted integer, error text, stack_trace text, error_class text, millis bigint, attempt text,
        response_code integer, response_body text, response_headers jsonb, unknown boolean, lost integer)
), known AS MATERIALIZED (
    SELECT a.id, a.dispatch_job_id, a.claim_seq, a.error_class
    FROM batch JOIN dispatch_attempt AS a ON a.dispatch_job_id = batch.id AND a.claim_seq = batch.claim
), replaced AS (
    UPDATE dispatch_attempt AS a
    SET attempted_at = now() - batch.millis * interval '1 ms', completed_at = now(), duration_millis = batch.millis,
        status = batch.attempt, response_code = batch.response_code, response_body = batch.response_body,
        response_headers = batch.response_headers, error_class = batch.error_class, error_message = batch.error,
        error_stack_trace = batch.stack_trace,
        unknown = coalesce(batch.unknown, false)
    FROM batch JOIN known ON known.dispatch_job_id = batch.id AND known.claim_seq = batch.claim
    WHERE a.id = known.id AND known.error_class = :lost_class AND batch.error_class IS DISTINCT FROM :lost_class
), missing AS MATERIALIZED (
    SELECT batch.*,
        j.attempt_count + row_number() OVER (PARTITION BY batch.id ORDER BY batch.claim) AS attempt_number
    FROM batch JOIN dispatch_job AS j ON j.id = batch.id
    WHERE NOT EXISTS (
        SELECT FROM known WHERE known.dispatch_job_id = batch.id AND known.claim_seq = batch.claim)
), added AS (
    INSERT INTO dispatch_attempt (
        dispatch_job_id, claim_seq, attempt_number, attempted_at, completed_at, duration_millis, status, response_code,
        response_body, response_headers, error_class, error_message, error_stack_trace, unknown, worker)
    SELECT id, claim, attempt_number, now() - millis * interval '1 ms', now(), millis, attempt, response_code,
        response_body, response_headers, error_class, error, stack_trace, coalesce(unknown, false), :owner
    FROM missing
    ORDER BY id, claim
)
UPDATE dispatch_job AS o
SET attempt_count = o.attempt_count + more.count,
    attempts_before = o.attempts_before + more.count - more.counted,
    last_attempt_at = greatest(o.last_attempt_at, now() - more.millis * interval '1 ms')
FROM (SELECT id, count(*) AS count, sum(counted) AS counted, min(millis) AS millis FROM missing GROUP BY id) AS more
WHERE o.id = more.id
RETURNING o.id

-- name: expired
SELECT id, CASE ordering WHEN 'group' THEN group_id END AS ordered_group
FROM dispatch_job
WHERE status IN ('PENDING', 'FAILED') AND expires_at IS NOT NULL AND expires_at <= now()
ORDER BY expires_at
LIMIT :limit

-- name: expire
WITH over AS MATERIALIZED (
    SELECT id
    FROM dispatch_job
    WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
      AND status IN ('PENDING', 'FAILED') AND expires_at <= now()
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
UPDATE dispatch_job AS o
SET status = 'ERROR',
    last_error = concat_ws('; last error: ', 'expired before it could be delivered',
                           nullif({real_error}, 'expired before it could be delivered')),
    error_class = 'expired',
    completed_at = now(),
    duration_millis = greatest(0, extract(epoch FROM now() - greatest(o.created_at, o.scheduled_for)) * 1000)::bigint,
    updated_at = now()
WHERE o.id = ANY (ARRAY(SELECT id FROM over))
RETURNING o.id, o.status

-- name: make_attempt_weeks
-- Those that dispatch_attempt will need, some weeks ahead.
SELECT week FROM homing_make_attempt_weeks(8) AS week

-- name: sweep_metadata
-- There are no foreign keys, so what belongs to no job is looked for, a window at a time. The last hour is
-- left alone: another program may write its rows in another order.
WITH seen AS MATERIALIZED (
    SELECT id, dispatch_job_id
    FROM dispatch_job_metadata
    WHERE id > :after AND id < homing_tsid_at(now() - interval '1 hour')
    ORDER BY id
    LIMIT :limit
), orphans AS (
    DELETE FROM dispatch_job_metadata AS m
    USING seen
    WHERE m.id = seen.id AND NOT EXISTS (SELECT FROM dispatch_job AS j WHERE j.id = seen.dispatch_job_id)
    RETURNING m.id
)
SELECT max(id) AS last, (SELECT count(*) FROM orphans) AS swept FROM seen

-- name: sweep_headers
WITH seen AS MATERIALIZED (
    SELECT DISTINCT dispatch_job_id
    FROM (SELECT dispatch_job_id FROM dispatch_job_headers
          WHERE dispatch_job_id > :after AND dispatch_job_id < homing_tsid_at(now() - interval '1 hour')
          ORDER BY dispatch_job_id LIMIT :limit) AS window_of_rows
), orphans AS (
    DELETE FROM dispatch_job_headers AS h
    USING seen
    WHERE h.dispatch_job_id = seen.dispatch_job_id
      AND NOT EXISTS (SELECT FROM dispatch_job AS j WHERE j.id = seen.dispatch_job_id)
    RETURNING 1
)
SELECT max(dispatch_job_id) AS last, (SELECT count(*) FROM orphans) AS swept FROM seen

-- name: sweep_attempts
WITH seen AS MATERIALIZED (
    SELECT id, dispatch_job_id
    FROM dispatch_attempt
    WHERE id > :after AND id < homing_tsid_at(now() - interval '1 hour')
    ORDER BY id
    LIMIT :limit
), orphans AS (
    DELETE FROM dispatch_attempt AS a
    USING seen
    WHERE a.id = seen.id AND NOT EXISTS (SELECT FROM dispatch_job AS j WHERE j.id = seen.dispatch_job_id)
    RETURNING a.id
)
SELECT max(id) AS last, (SELECT count(*) FROM orphans) AS swept FROM seen

-- name: note_targets
INSERT INTO homing_target (target)
SELECT v.target
FROM json_to_recordset(:verdicts::json) AS v(target text, failures integer, pause double precision)
WHERE v.failures > 0 OR v.pause > 0
ORDER BY v.target
ON CONFLICT (target) DO NOTHING

-- name: judge_targets
-- What attempts said of their targets, all of a flush at once. `failures` are those in a row after the last
-- success. A success closes the breaker; enough failures open it, and so does a failed probe, for longer
-- each time. A pause is what the target itself asked for. As long as all failures in a row are of one endpoint, both
-- are for this endpoint alone: others are not to wait for it. '*' stands for several, or for the connection itself.
WITH said AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:verdicts::json) AS v(
        target text, succeeded boolean, failures integer, pause double precision, error text, endpoint text,
        well json, well_age double precision)
), held AS MATERIALIZED (
    SELECT target, failures, open_until, cooldown, endpoint, endpoint_until, well_at
    FROM homing_target
    WHERE target IN (SELECT target FROM said)
    ORDER BY target
    FOR UPDATE
), met AS (
    SELECT said.*, held.endpoint AS endpoint_before,
        coalesce(held.endpoint IN (SELECT json_array_elements_text(said.well)), false) AS is_well,
        CASE WHEN said.succeeded THEN 0 ELSE held.failures END AS failures_before,
        CASE WHEN said.succeeded THEN NULL ELSE held.open_until END AS open_before,
        CASE WHEN said.succeeded THEN 0 ELSE held.cooldown END AS cooldown_before,
        CASE WHEN said.endpoint IS NOT NULL AND said.endpoint <> held.endpoint AND held.failures > 0
                  AND NOT said.succeeded THEN '*'
             ELSE said.endpoint END AS failing,
        held.endpoint_until AS until_before,
        greatest(held.well_at, now() - make_interval(secs => said.well_age)) AS well_now
    FROM said JOIN held ON held.target = said.target
), verdict AS (
    SELECT *, coalesce(failing = '*', false) AS is_spread,
        coalesce(failing, CASE WHEN endpoint_before <> '*' AND NOT is_well THEN endpoint_before END) AS endpoint_now,
        failures_before + failures AS in_a_row,
        CASE WHEN coalesce(failing, endpoint_before) = endpoint_before AND NOT is_well THEN until_before END AS kept_until,
        least(greatest(cooldown_before * 2, :cooldown::double precision), :longest_cooldown::double precision) AS next_cooldown
    FROM met
), opening AS (
    SELECT *,
        failures > 0 AND coalesce(
            CASE WHEN is_spread THEN open_before WHEN cooldown_before > 0 THEN kept_until END <= now(),
            in_a_row >= :threshold::integer) AS opens
    FROM verdict
)
UPDATE homing_target AS t
SET failures = v.in_a_row,
    open_until = CASE WHEN v.opens AND v.is_spread
                      THEN now() + make_interval(secs => v.next_cooldown) ELSE v.open_before END,
    cooldown = CASE WHEN v.opens THEN v.next_cooldown ELSE v.cooldown_before END,
    paused_until = CASE WHEN v.pause > 0 AND v.is_spread
                        THEN greatest(t.paused_until, now() + make_interval(secs => least(
                             v.pause, CASE WHEN v.well_now > now() - interval '5 minutes' THEN :shorter_pause::double precision END)))
                        ELSE t.paused_until END,
    pause_reason = CASE WHEN v.pause > 0 AND v.is_spread THEN v.error ELSE t.pause_reason END,
    endpoint = v.endpoint_now,
    endpoint_until = CASE WHEN NOT v.is_spread THEN greatest(
        v.kept_until,
        CASE WHEN v.opens THEN now() + make_interval(secs => v.next_cooldown) END,
        CASE WHEN v.pause > 0 THEN now() + make_interval(secs => v.pause) END) END,
    well_at = v.well_now,
    last_error = coalesce(v.error, t.last_error),
    updated_at = now()
FROM opening AS v
WHERE t.target = v.target
RETURNING t.target, coalesce(t.open_until > now(), false) AS open, t.endpoint, {endpoint_closed_for},
    greatest(0, extract(epoch FROM greatest(t.paused_until, t.open_until) - now()))::double precision AS closed_for

-- name: insert_jobs
-- Ids in the order of the request; rows by key, since two batches with the same keys in opposite orders
-- would deadlock. A key that is known makes no row.
WITH batch AS MATERIALIZED (
    SELECT homing_tsid() AS id, CASE b.ordering WHEN 'group' THEN nextval('homing_job_position') END AS position, b.*
    FROM json_to_recordset(:batch::json) AS b(
        number integer, external_id text, source text, type text, group_id text, target_url text, target text,
        protocol text, payload text, payload_content_type text, credentials_id bigint, max_retries integer,
        retry_strategy text, scheduled_for timestamptz, expires_at timestamptz, idempotency_key text,
        fingerprint text, queue_url text, ordering text, timeout_seconds double precision,
        metadata json, headers json, traceparent text, tracestate text)
), created AS (
    INSERT INTO dispatch_job (
        id, created_at, updated_at, external_id, source, type, group_id, target_url, target, protocol, payload,
        payload_content_type, credentials_id, max_retries, retry_strategy, scheduled_for, expires_at,
        idempotency_key, fingerprint, queue_url, ordering, timeout_seconds, has_headers, next_attempt_at, queue_at, ready,
        position, traceparent, tracestate)
    SELECT id, homing_tsid_time(id), homing_tsid_time(id), external_id, source, type, group_id, target_url, target,
        protocol, payload, payload_content_type, credentials_id, max_retries, retry_strategy, scheduled_for,
        expires_at, idempotency_key, fingerprint, queue_url, ordering, timeout_seconds, headers IS NOT NULL,
        greatest(scheduled_for, homing_tsid_time(id)), greatest(scheduled_for, homing_tsid_time(id)), ordering = 'none',
        position, traceparent, tracestate
    FROM batch
    ORDER BY idempotency_key, source, type, target_url, credentials_id, number
    ON CONFLICT DO NOTHING
    RETURNING id, status, created_at
), metadata AS (
    INSERT INTO dispatch_job_metadata (dispatch_job_id, meta_key, meta_value)
    SELECT batch.id, entry.key, entry.value
    FROM batch JOIN created ON created.id = batch.id, json_each_text(batch.metadata) AS entry
), headers AS (
    INSERT INTO dispatch_job_headers (dispatch_job_id, header_name, header_value)
    SELECT batch.id, entry.key, entry.value
    FROM batch JOIN created ON created.id = batch.id, json_each_text(batch.headers) AS entry
)
SELECT batch.number, created.id, created.status, created.created_at
FROM created JOIN batch ON batch.id = created.id

-- name: by_idempotency_key
-- Also those with other credentials; see key_index.py.
SELECT k.number, j.id, j.credentials_id, j.fingerprint, j.status, j.created_at
FROM json_to_recordset(:keys::json) AS k(number integer, source text, type text, target_url text, idempotency_key text)
JOIN dispatch_job AS j ON j.idempotency_key = k.idempotency_key AND j.source = k.source AND j.type = k.type
    AND md5(j.target_url) = md5(k.target_url)

-- name: get
SELECT o.*,
    (SELECT json_object_agg(m.meta_key, m.meta_value)::text FROM dispatch_job_metadata AS m
     WHERE m.dispatch_job_id = o.id) AS metadata,
    (SELECT json_object_agg(h.header_name, h.header_value)::text FROM dispatch_job_headers AS h
     WHERE h.dispatch_job_id = o.id) AS headers,
    t.paused_until, t.pause_reason, t.open_until, t.last_error AS target_error, now() AS now
FROM dispatch_job AS o LEFT JOIN homing_target AS t ON t.target = o.target
WHERE o.id = :id

-- name: attempts
-- An attempt is younger than its job: that spares the partitions before it. A day is for clocks that were set back. An id
-- that another program has given may lie in the future, and then says nothing.
SELECT *
FROM dispatch_attempt
WHERE dispatch_job_id = :id AND id >= CASE WHEN :id < homing_tsid_at(now()) THEN :id ELSE 362387865600000 END - 362387865600000
ORDER BY attempt_number, id

-- name: ordered_groups
SELECT DISTINCT group_id
FROM dispatch_job
WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint)) AND ordering = 'group'

-- name: cancel
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM dispatch_job
    WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint)) AND status IN ('PENDING', 'FAILED')
    ORDER BY id
    FOR UPDATE
)
UPDATE dispatch_job AS o
SET status = 'CANCELLED', updated_at = now()
WHERE o.id = ANY (ARRAY(SELECT id FROM chosen))
RETURNING o.id

-- name: requeue
-- With all attempts again, counted on from those it had. A job of an ordered group goes to the back.
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM dispatch_job
    WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint)) AND status IN ('ERROR', 'CANCELLED')
    ORDER BY id
    FOR UPDATE
), placed AS MATERIALIZED (
    SELECT id, nextval('homing_job_position') AS place FROM (SELECT id FROM chosen ORDER BY id) AS by_age
)
UPDATE dispatch_job AS o
SET status = 'PENDING',
    attempts_before = o.attempt_count,
    next_attempt_at = greatest(o.scheduled_for, now()),
    queue_at = greatest(o.scheduled_for, now()),
    queued = false,
    expires_at = CASE WHEN o.expires_at <= now() THEN NULL ELSE o.expires_at END,
    completed_at = NULL,
    duration_millis = NULL,
    rescue_count = 0,
    defer_count = 0,
    dead_letter_sent = false,
    ready = o.ordering = 'none',
    position = CASE o.ordering WHEN 'group' THEN placed.place END,
    updated_at = now()
FROM placed
WHERE o.id = placed.id
RETURNING o.id

-- name: send_now
-- Those that wait become due. A pause, a breaker, a limit of the target and the order of a group stay as they are.
-- Its message is sent again, if it has a queue: of two the second finds nothing to claim.
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM dispatch_job
    WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint)) AND status IN ('PENDING', 'FAILED')
    ORDER BY id
    FOR UPDATE
)
UPDATE dispatch_job AS o
SET queue_at = CASE WHEN o.next_attempt_at > now() THEN now() ELSE o.queue_at END,
    queued = o.queued AND o.next_attempt_at <= now(),
    next_attempt_at = least(o.next_attempt_at, now()),
    scheduled_for = least(o.scheduled_for, now()),
    updated_at = now()
WHERE o.id = ANY (ARRAY(SELECT id FROM chosen))
RETURNING o.id

-- name: dead_letters
-- Of the last day: whoever names a dead-letter target today does not want the past of years. Without payloads.
SELECT id, source, type, group_id, target_url, attempt_count, error_class, last_error, created_at, completed_at,
    claim_seq, traceparent, tracestate
FROM dispatch_job AS o
WHERE o.status = 'ERROR' AND NOT o.dead_letter_sent AND o.updated_at > now() - interval '1 day'
ORDER BY o.updated_at
LIMIT :limit

-- name: dead_letters_sent
UPDATE dispatch_job AS o
SET dead_letter_sent = true
WHERE o.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint)) AND o.status = 'ERROR'
RETURNING o.id

-- name: targets
SELECT t.*, now() AS now FROM homing_target AS t WHERE t.target > :after ORDER BY t.target LIMIT :limit

-- name: held_targets
-- Paused, or with a breaker that is open, half or whole; or one of its endpoints keeps failing.
SELECT t.*, now() AS now FROM homing_target AS t
WHERE {closed} OR t.endpoint_until IS NOT NULL AND t.cooldown > 0
ORDER BY t.target LIMIT :most

-- name: target
SELECT t.*, now() AS now FROM homing_target AS t WHERE t.target = :target

-- name: limit_target
INSERT INTO homing_target AS t (target, max_concurrency, rate_per_second, tokens)
VALUES (:target, :max_concurrency::integer, :rate_per_second::double precision,
        greatest(:rate_per_second::double precision, 1))
ON CONFLICT (target) DO UPDATE
SET max_concurrency = excluded.max_concurrency, rate_per_second = excluded.rate_per_second,
    tokens = greatest(excluded.rate_per_second, 1), tokens_at = now(), updated_at = now()
RETURNING t.target

-- name: replace_limits
-- Only those that somebody has seen: of a target without a row none.
INSERT INTO homing_target AS t (target, max_concurrency, rate_per_second, tokens)
SELECT :target, :max_concurrency::integer, :rate_per_second::double precision,
       greatest(:rate_per_second::double precision, 1)
WHERE num_nonnulls(:seen_concurrency::integer, :seen_rate::double precision) = 0
   OR EXISTS (SELECT FROM homing_target WHERE target = :target)
ON CONFLICT (target) DO UPDATE
SET max_concurrency = excluded.max_concurrency, rate_per_second = excluded.rate_per_second,
    tokens = greatest(excluded.rate_per_second, 1), tokens_at = now(), updated_at = now()
WHERE t.max_concurrency IS NOT DISTINCT FROM :seen_concurrency::integer
  AND t.rate_per_second IS NOT DISTINCT FROM :seen_rate::double precision
RETURNING t.target

-- name: pause_target
INSERT INTO homing_target AS t (target, paused_until, pause_reason)
VALUES (:target, :until::timestamptz, :reason)
ON CONFLICT (target) DO UPDATE
SET paused_until = excluded.paused_until, pause_reason = excluded.pause_reason, updated_at = now()
RETURNING t.target

-- name: resume_target
-- Also closes the breaker: whoever resumes a target says that it is well.
UPDATE homing_target AS t
SET paused_until = NULL, pause_reason = NULL, open_until = NULL, endpoint_until = NULL, cooldown = 0, failures = 0,
    updated_at = now()
WHERE t.target = :target
RETURNING t.target

-- name: counts
-- What is not completed is counted in the index of the states. What is, is the rest, and the total is tallied.
SELECT status, count(*) AS count
FROM dispatch_job
WHERE status IN ('PENDING', 'IN_PROGRESS', 'FAILED', 'ERROR', 'CANCELLED')
GROUP BY status
UNION ALL
SELECT 'total', coalesce(sum(count), 0)::bigint FROM homing_tally WHERE lane = 'dispatch_jobs'

-- name: oldest_due
-- One jump into the index per target, also of those that are held back.
WITH RECURSIVE {head}
SELECT extract(epoch FROM now() - min(next_attempt_at))::double precision AS age
FROM (SELECT * FROM head LIMIT :most) AS heads
WHERE target <> :but_for

-- fragment: closed
t.paused_until > now() OR t.open_until IS NOT NULL

-- name: held_back
-- Of targets that are paused or whose breaker is open: since when something is due, and how much, up to a limit. In the
-- order of the index, or the planner would take the table where most rows are of one target.
WITH RECURSIVE {head}, heads AS MATERIALIZED (
    SELECT * FROM head LIMIT :most
)
SELECT heads.target, heads.next_attempt_at AS since,
    extract(epoch FROM now() - heads.next_attempt_at)::double precision AS age,
    (SELECT count(*)::integer
     FROM (SELECT FROM dispatch_job AS j
           WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = heads.target AND j.next_attempt_at <= now()
           ORDER BY j.next_attempt_at
           LIMIT :counted) AS due) AS count
FROM heads
-- A LIMIT, or all targets there are would be read to be joined with a few.
JOIN LATERAL (SELECT * FROM homing_target WHERE target = heads.target LIMIT 1) AS t ON {closed}
WHERE heads.next_attempt_at <= now()
ORDER BY since
LIMIT :most_held

-- name: oldest_claimable
-- For pages: of what could be sent now and is not.
WITH RECURSIVE {head}, heads AS MATERIALIZED (
    SELECT * FROM head LIMIT :most
)
SELECT extract(epoch FROM now() - min(heads.next_attempt_at))::double precision AS age
FROM heads
LEFT JOIN LATERAL (SELECT * FROM homing_target WHERE target = heads.target LIMIT 1) AS t ON true
WHERE heads.next_attempt_at <= now() AND ({closed}) IS NOT TRUE

-- name: listed_jobs
-- Without the payload, which may be a megabyte.
SELECT o.id, o.external_id, o.source, o.type, o.group_id, o.status, o.target_url, o.protocol, o.payload_content_type,
    o.credentials_id, o.max_retries, o.retry_strategy, o.ordering, o.timeout_seconds, o.idempotency_key, o.queue_url,
    o.scheduled_for, o.expires_at, o.attempt_count, o.next_attempt_at, o.last_attempt_at, o.completed_at,
    o.duration_millis, o.last_error, o.error_class, o.created_at, o.updated_at,
    (SELECT json_object_agg(m.meta_key, m.meta_value)::text FROM dispatch_job_metadata AS m
     WHERE m.dispatch_job_id = o.id) AS metadata
FROM dispatch_job AS o
WHERE o.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))

-- name: group_head
SELECT id, status
FROM dispatch_job
WHERE group_id = :group_id AND ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS')
ORDER BY position
LIMIT 1

-- name: refuse_conflicts
-- Undoes the transaction where a key of the batch was first used for something else. No statement can raise an
-- error of its own, so this one divides by zero.
SELECT 1 / CASE WHEN EXISTS (
    SELECT
    FROM json_to_recordset(:keys::json) AS k(
        source text, type text, target_url text, credentials_id bigint, idempotency_key text, fingerprint text)
    WHERE NOT EXISTS (
        SELECT
        FROM dispatch_job AS j
        WHERE j.idempotency_key = k.idempotency_key AND j.source = k.source AND j.type = k.type
          AND md5(j.target_url) = md5(k.target_url) AND coalesce(j.credentials_id, 0) = coalesce(k.credentials_id, 0)
          AND coalesce(j.fingerprint, k.fingerprint) = k.fingerprint)) THEN 0 ELSE 1 END AS refused

-- name: dead_groups
-- One jump into the index per error class, then the newest jobs of each: a class with a million of them hides no
-- other. Who is filtered out is read all the same, since there is an index by error class only.
WITH RECURSIVE class AS (
    (SELECT error_class FROM dispatch_job WHERE status = 'ERROR' AND error_class IS NOT NULL ORDER BY error_class LIMIT 1)
    UNION ALL
    SELECT (SELECT j.error_class FROM dispatch_job AS j
            WHERE j.status = 'ERROR' AND j.error_class > class.error_class ORDER BY j.error_class LIMIT 1)
    FROM class WHERE class.error_class IS NOT NULL
), known AS MATERIALIZED (
    SELECT error_class FROM class WHERE error_class IS NOT NULL LIMIT :classes
), newest AS MATERIALIZED (
    SELECT known.error_class, dead.*
    FROM known CROSS JOIN LATERAL (
        SELECT j.id, j.source, j.type
        FROM dispatch_job AS j
        WHERE j.status = 'ERROR' AND j.error_class = known.error_class
          AND j.source = coalesce(:source::text, j.source) AND j.type = coalesce(:type::text, j.type)
        ORDER BY j.id DESC
        LIMIT :most) AS dead
    UNION ALL
    (SELECT 'unclassified', j.id, j.source, j.type
     FROM dispatch_job AS j
     WHERE j.status = 'ERROR' AND j.error_class IS NULL
       AND j.source = coalesce(:source::text, j.source) AND j.type = coalesce(:type::text, j.type)
     ORDER BY j.id DESC
     LIMIT :most)
), grouped AS MATERIALIZED (
    SELECT error_class, source, type, count(*) AS count, max(id) AS newest,
        (sum(count(*)) OVER (PARTITION BY error_class))::bigint AS of_class
    FROM newest
    GROUP BY error_class, source, type
)
SELECT g.error_class, g.source, g.type, g.count, g.of_class, j.id, j.last_error, j.created_at, j.completed_at
FROM grouped AS g JOIN dispatch_job AS j ON j.id = g.newest
ORDER BY g.count DESC, g.newest DESC
LIMIT :groups

-- name: success_by_source
-- One jump per source, then only the entries of the last day, from the indexes alone.
WITH RECURSIVE head AS (
    (SELECT source FROM dispatch_job ORDER BY source LIMIT 1)
    UNION ALL
    SELECT (SELECT j.source FROM dispatch_job AS j WHERE j.source > head.source ORDER BY j.source LIMIT 1)
    FROM head WHERE head.source IS NOT NULL
), known AS MATERIALIZED (
    SELECT source FROM head WHERE source IS NOT NULL LIMIT :most
), counted AS MATERIALIZED (
    SELECT known.source,
        (SELECT count(*) FROM dispatch_job AS j
         WHERE j.source = known.source AND j.created_at > now() - interval '24 hours') AS total,
        (SELECT count(*) FROM dispatch_job AS j
         WHERE j.source = known.source AND j.status = 'COMPLETED'
           AND j.created_at > now() - interval '24 hours') AS successful
    FROM known
)
SELECT source, total, successful FROM counted WHERE total > 0 ORDER BY total DESC, source

-- name: duration_by_type
-- Of all that are completed: the index of types has all that is asked for, and is read from end to end.
SELECT type, count(*) AS count, avg(duration_millis)::double precision AS mean, max(duration_millis) AS max
FROM dispatch_job
WHERE status = 'COMPLETED'
GROUP BY type
ORDER BY type
LIMIT :most

-- fragment: needing_attention
dispatch_job WHERE status = 'ERROR' OR (status = 'FAILED' AND attempt_count >= max_retries - 1)

-- name: needs_attention
SELECT id FROM {needing_attention} ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: count_attention
SELECT count(*) AS count FROM {needing_attention}

-- fragment: ended
greatest(o.created_at, o.updated_at, o.completed_at)

-- fragment: prunable
dispatch_job AS o
JOIN json_to_recordset(:ages::json) AS a(state text, seconds double precision) ON a.state = o.status
WHERE o.status IN ('COMPLETED', 'ERROR', 'CANCELLED')
  AND {ended} < now() - make_interval(secs => a.seconds)

-- name: prune_window
SELECT max(id) AS last, min(created_at) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT id, created_at FROM dispatch_job WHERE id > :after ORDER BY id LIMIT :window) AS ahead

-- name: prune_survey
SELECT o.status AS state, count(*) AS count, min({ended}) AS oldest
FROM {prunable} AND o.id > :after AND o.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT o.id AS id FROM {prunable} AND o.id > :after AND o.id <= :until ORDER BY o.id LIMIT :limit

-- name: prune
-- Locks only what has ended, which no claim looks at, and waits for nobody. An attempt is younger than its job, so weeks
-- before the first of the jobs are not looked at; a day is for clocks that differ. Or attempts are left to be dropped
-- with their week: that costs nothing, to delete rows as much as to write them.
WITH chosen AS MATERIALIZED (
    SELECT o.id AS id FROM {prunable}
      AND o.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
    ORDER BY o.id
    FOR UPDATE OF o SKIP LOCKED
), metadata AS (
    DELETE FROM dispatch_job_metadata AS m WHERE m.dispatch_job_id = ANY (ARRAY(SELECT id FROM chosen))
), headers AS (
    DELETE FROM dispatch_job_headers AS h WHERE h.dispatch_job_id = ANY (ARRAY(SELECT id FROM chosen))
), gone AS (
    DELETE FROM dispatch_job AS o USING chosen WHERE o.id = chosen.id RETURNING o.status
), attempts AS (
    DELETE FROM dispatch_attempt AS a
    WHERE :with_attempts::boolean AND a.dispatch_job_id = ANY (ARRAY(SELECT id FROM chosen))
      AND a.id >= (SELECT min(id) - (86400000::bigint << 22) FROM chosen)
)
SELECT status AS state FROM gone
