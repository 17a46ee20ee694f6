-- What alerts ask of dispatch_job on SQLite.

-- name: failing_targets
SELECT t.target, t.failures, t.last_error, t.paused_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AS paused
FROM homing_target AS t
WHERE (t.failures >= :least AND t.failures > 0 OR t.target IN (SELECT value FROM json_each(:told)))
  AND t.target <> :alert_target
ORDER BY t.failures DESC
LIMIT :most
