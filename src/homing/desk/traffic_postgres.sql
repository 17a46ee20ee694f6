-- Traffic on PostgreSQL. `at` is the process's own time throughout: rows are written and read by the same clock.

-- name: write
-- Whole rows: whoever does not know whether they were written writes them again.
INSERT INTO homing_traffic (at, lane, span, writer, delivered, retried, dead, stopped, attempts, waits)
SELECT at, lane, span, writer, delivered, retried, dead, stopped, attempts, waits
FROM json_to_recordset(:batch::json) AS b(
    at bigint, lane text, span integer, writer text, delivered bigint, retried bigint, dead bigint, stopped bigint,
    attempts json, waits json)
ORDER BY at, lane
ON CONFLICT (at, lane, span, writer) DO UPDATE
SET delivered = excluded.delivered, retried = excluded.retried, dead = excluded.dead, stopped = excluded.stopped,
    attempts = excluded.attempts, waits = excluded.waits

-- name: series
SELECT lane, at / :step::bigint * :step AS at, sum(delivered)::bigint AS delivered, sum(retried)::bigint AS retried,
    sum(dead)::bigint AS dead
FROM homing_traffic
WHERE at >= :since::bigint
GROUP BY 1, 2

-- name: rows
SELECT at, lane, delivered, retried, dead, stopped, attempts::text AS attempts, waits::text AS waits
FROM homing_traffic
WHERE at >= :since::bigint AND at < :until::bigint

-- name: oldest_minute
SELECT min(at) AS at FROM homing_traffic WHERE span = 60 AND at < :until::bigint

-- name: forget_minutes
DELETE FROM homing_traffic WHERE span = 60 AND at >= :since::bigint AND at < :until::bigint

-- name: forget_hours
DELETE FROM homing_traffic WHERE at < :until::bigint
