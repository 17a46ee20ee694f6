-- Targets for people who look, on SQLite: the same queries by the same names.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: flying
flying AS MATERIALIZED (
    SELECT target, count(*) AS count FROM dispatch_job INDEXED BY homing_job_in_progress
    WHERE status = 'IN_PROGRESS' GROUP BY target)

-- name: seen_targets
-- All that have a row of their own or an open job, by one jump in the index for each.
WITH RECURSIVE {flying}, step(target, place) AS (
    SELECT :after, 0
    UNION ALL
    SELECT (SELECT min(following.target) FROM (
                SELECT min(t.target) AS target FROM homing_target AS t WHERE t.target > step.target
                UNION ALL
                SELECT min(j.target) FROM dispatch_job AS j INDEXED BY homing_job_due
                WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target > step.target
                UNION ALL
                SELECT min(f.target) FROM flying AS f WHERE f.target > step.target) AS following), step.place + 1
    FROM step WHERE step.target IS NOT NULL AND step.place < :limit
)
SELECT step.target, t.max_concurrency, t.rate_per_second, t.paused_until, t.pause_reason,
    coalesce(t.failures, 0) AS failures, t.open_until, t.endpoint_until, t.last_error, t.updated_at, {now} AS now
FROM step LEFT JOIN homing_target AS t ON t.target = step.target
WHERE step.place > 0 AND step.target IS NOT NULL
ORDER BY step.target

-- name: target_loads
-- Counted up to a thousand. A correlated LIMIT must be a constant.
WITH {flying}
SELECT named.value AS target,
    (SELECT count(*) FROM (SELECT 1 FROM dispatch_job AS j INDEXED BY homing_job_due
                           WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = named.value
                           LIMIT 1000)) AS waiting,
    coalesce((SELECT f.count FROM flying AS f WHERE f.target = named.value), 0) AS in_flight
FROM json_each(:targets) AS named

-- name: target_results
-- Attempts do not name their target, so the newest of all are looked through.
WITH looked AS MATERIALIZED (
    SELECT id, dispatch_job_id, status, attempted_at, duration_millis
    FROM dispatch_attempt ORDER BY id DESC LIMIT :window)
SELECT (SELECT count(*) FROM looked) AS looked_at, (SELECT min(attempted_at) FROM looked) AS looked_since,
    count(*) AS attempts, coalesce(sum(looked.status = 'SUCCESS'), 0) AS successful,
    avg(looked.duration_millis) AS mean_millis
FROM looked CROSS JOIN dispatch_job AS j ON j.id = looked.dispatch_job_id
WHERE j.target = :target
  AND looked.attempted_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:seconds))

-- name: target_last_job
-- Of the newest jobs of all targets, or else one that waits: no index knows the others by their target.
WITH looked AS MATERIALIZED (
    SELECT id, target, source, target_url FROM dispatch_job ORDER BY id DESC LIMIT :window),
waiting AS MATERIALIZED (
    SELECT id, target, source, target_url FROM dispatch_job INDEXED BY homing_job_due
    WHERE ready AND status IN ('PENDING', 'FAILED') AND target = :target LIMIT 1)
SELECT source, target_url
FROM (SELECT * FROM looked WHERE target = :target UNION ALL SELECT * FROM waiting) AS found
ORDER BY id DESC LIMIT 1
