-- As on PostgreSQL.

-- name: write
INSERT INTO homing_traffic (at, lane, span, writer, delivered, retried, dead, stopped, attempts, waits)
SELECT json_extract(value, '$.at'), json_extract(value, '$.lane'), json_extract(value, '$.span'),
    json_extract(value, '$.writer'), json_extract(value, '$.delivered'), json_extract(value, '$.retried'),
    json_extract(value, '$.dead'), json_extract(value, '$.stopped'), json_extract(value, '$.attempts'),
    json_extract(value, '$.waits')
-- Without a WHERE SQLite would read ON as the beginning of a join.
FROM json_each(:batch) WHERE true
ON CONFLICT (at, lane, span, writer) DO UPDATE
SET delivered = excluded.delivered, retried = excluded.retried, dead = excluded.dead, stopped = excluded.stopped,
    attempts = excluded.attempts, waits = excluded.waits

-- name: series
SELECT lane, at / :step * :step AS at, sum(delivered) AS delivered, sum(retried) AS retried, sum(dead) AS dead
FROM homing_traffic
WHERE at >= :since
GROUP BY 1, 2

-- name: rows
SELECT at, lane, delivered, retried, dead, stopped, attempts, waits
FROM homing_traffic
WHERE at >= :since AND at < :until

-- name: oldest_minute
SELECT min(at) AS at FROM homing_traffic WHERE span = 60 AND at < :until

-- name: forget_minutes
DELETE FROM homing_traffic WHERE span = 60 AND at >= :since AND at < :until

-- name: forget_hours
DELETE FROM homing_traffic WHERE at < :until
