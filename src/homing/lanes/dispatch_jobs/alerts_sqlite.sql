-- What alerts ask of dispatch_job on SQLite.

-- name: oldest_claimable
WITH RECURSIVE head(target) AS (
    SELECT min(target) FROM dispatch_job INDEXED BY homing_job_due WHERE ready AND status IN ('PENDING', 'FAILED')
    UNION ALL
    SELECT (SELECT min(j.target) FROM dispatch_job AS j INDEXED BY homing_job_due
            WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target > head.target)
    FROM head WHERE head.target IS NOT NULL
), heads AS (
    SELECT head.target,
        (SELECT min(j.next_attempt_at) FROM dispatch_job AS j INDEXED BY homing_job_due
         WHERE j.ready AND j.status IN ('PENDING', 'FAILED') AND j.target = head.target) AS next_attempt_at
    FROM head WHERE head.target IS NOT NULL LIMIT :most
)
SELECT (julianday('now') - julianday(min(heads.next_attempt_at))) * 86400.0 AS age
FROM heads LEFT JOIN homing_target AS t ON t.target = heads.target
WHERE heads.next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND heads.target <> :alert_target
  AND t.open_until IS NULL AND (t.paused_until IS NULL OR t.paused_until <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))

-- name: failing_targets
SELECT t.target, t.failures, t.last_error, t.paused_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AS paused
FROM homing_target AS t
WHERE (t.failures >= :least AND t.failures > 0 OR t.target IN (SELECT value FROM json_each(:told)))
  AND t.target <> :alert_target
ORDER BY t.failures DESC
LIMIT :most
