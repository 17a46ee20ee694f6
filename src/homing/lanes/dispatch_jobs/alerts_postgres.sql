-- What alerts ask of dispatch_job on PostgreSQL. Jobs that are alerts, and their target, are left out of everything.

-- name: failing_targets
-- Those that fail enough, and those that have been told of.
SELECT t.target, t.failures, t.last_error, t.paused_until > now() AS paused
FROM homing_target AS t
WHERE (t.failures >= :least AND t.failures > 0
       OR t.target = ANY (ARRAY(SELECT json_array_elements_text(:told::json))))
  AND t.target <> :alert_target
ORDER BY t.failures DESC
LIMIT :most
