-- What alerts ask of dispatch_job on PostgreSQL. Jobs that are alerts, and their target, are left out of everything.

-- name: oldest_claimable
-- One jump into the index per target. Whoever is left alone, since it is broken or paused, has a rule of its own: what is
-- meant here is what could be sent and is not.
WITH RECURSIVE head AS (
    (SELECT target, next_attempt_at
     FROM dispatch_job
     WHERE ready AND status IN ('PENDING', 'FAILED')
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
), heads AS MATERIALIZED (
    SELECT * FROM head LIMIT :most
)
SELECT extract(epoch FROM now() - min(heads.next_attempt_at))::double precision AS age
FROM heads
-- A LIMIT, or all targets there are would be read to be joined with a few.
LEFT JOIN LATERAL (SELECT * FROM homing_target WHERE target = heads.target LIMIT 1) AS t ON true
WHERE heads.next_attempt_at <= now() AND heads.target <> :alert_target
  AND t.open_until IS NULL AND coalesce(t.paused_until <= now(), true)

-- name: failing_targets
-- Those that fail enough, and those that have been told of.
SELECT t.target, t.failures, t.last_error, t.paused_until > now() AS paused
FROM homing_target AS t
WHERE (t.failures >= :least AND t.failures > 0
       OR t.target = ANY (ARRAY(SELECT json_array_elements_text(:told::json))))
  AND t.target <> :alert_target
ORDER BY t.failures DESC
LIMIT :most
