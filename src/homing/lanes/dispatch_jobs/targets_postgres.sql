-- Targets for people who look: found by jumps in indexes, counted up to a bound.

-- fragment: flying
flying AS MATERIALIZED (
    SELECT target, count(*) AS count FROM dispatch_job WHERE status = 'IN_PROGRESS' GROUP BY target)

-- name: seen_targets
-- All that have a row of their own or an open job, by one jump in the index for each.
WITH RECURSIVE {flying}, step(target, place) AS (
    SELECT :after::text, 0
    UNION ALL
    SELECT (SELECT min(following.target) FROM (
                SELECT min(t.target) AS target FROM homing_target AS t WHERE t.target > step.target
                UNION ALL
                SELECT min(j.target) FROM dispatch_job AS j
                WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target > step.target
                UNION ALL
                SELECT min(f.target) FROM flying AS f WHERE f.target > step.target) AS following), step.place + 1
    FROM step WHERE step.target IS NOT NULL AND step.place < :limit
)
SELECT step.target, t.max_concurrency, t.rate_per_second, t.paused_until, t.pause_reason,
    coalesce(t.failures, 0) AS failures, t.open_until, t.endpoint_until, t.last_error, t.updated_at, now() AS now
FROM step LEFT JOIN homing_target AS t ON t.target = step.target
WHERE step.place > 0 AND step.target IS NOT NULL
ORDER BY step.target

-- name: target_loads
-- Counted up to a thousand.
WITH {flying}
SELECT named.target,
    (SELECT count(*) FROM (SELECT 1 FROM dispatch_job AS j
                           WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = named.target
                           LIMIT 1000) AS counted) AS waiting,
    coalesce((SELECT f.count FROM flying AS f WHERE f.target = named.target), 0) AS in_flight
FROM json_array_elements_text(:targets::text::json) AS named (target)

-- name: target_results
-- Attempts do not name their target, so the newest of all are looked through.
WITH looked AS MATERIALIZED (
    SELECT id, dispatch_job_id, status, attempted_at, duration_millis
    FROM dispatch_attempt ORDER BY id DESC LIMIT :window)
SELECT (SELECT count(*) FROM looked) AS looked_at, (SELECT min(attempted_at) FROM looked) AS looked_since,
    count(*) AS attempts, count(*) FILTER (WHERE looked.status = 'SUCCESS') AS successful,
    avg(looked.duration_millis)::float8 AS mean_millis
FROM looked JOIN dispatch_job AS j ON j.id = looked.dispatch_job_id
WHERE j.target = :target AND looked.attempted_at > now() - make_interval(secs => :seconds)

-- name: target_last_job
-- Of the newest jobs of all targets, or else one that waits: no index knows the others by their target.
WITH looked AS MATERIALIZED (
    SELECT id, target, source, target_url FROM dispatch_job ORDER BY id DESC LIMIT :window),
waiting AS MATERIALIZED (
    SELECT id, target, source, target_url FROM dispatch_job
    WHERE ready AND status IN ('PENDING', 'FAILED') AND target = :target LIMIT 1)
SELECT source, target_url
FROM (SELECT * FROM looked WHERE target = :target UNION ALL SELECT * FROM waiting) AS found
ORDER BY id DESC LIMIT 1
