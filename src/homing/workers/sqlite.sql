-- Workers on SQLite: as on PostgreSQL.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: lost_before
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:lost_after))

-- fragment: is_old
seen_at < CASE state
    WHEN 'stopped' THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:stopped_after))
    ELSE {lost_before}
END

-- name: beat
INSERT INTO homing_worker (name, host, pid, boot, version, lanes, serves, state, report, started_at, seen_at)
VALUES (:name, :host, :pid, :boot, :version, :lanes, :serves, :state, :report,
        strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:up_seconds)), {now})
ON CONFLICT (name) DO UPDATE
SET host = excluded.host, pid = excluded.pid, boot = excluded.boot, version = excluded.version,
    lanes = excluded.lanes, serves = excluded.serves, state = excluded.state, report = excluded.report,
    started_at = CASE homing_worker.boot WHEN excluded.boot THEN homing_worker.started_at ELSE excluded.started_at END,
    seen_at = excluded.seen_at
RETURNING name

-- name: workers
SELECT name, host, pid, version, lanes, serves, report, started_at, seen_at,
    (julianday('now') - julianday(seen_at)) * 86400.0 AS silent_seconds,
    CASE WHEN state <> 'stopped' AND seen_at < {lost_before} THEN 'lost' ELSE state END AS state
FROM homing_worker
ORDER BY homing_worker.state = 'stopped', seen_at < {lost_before}, name
LIMIT :limit

-- name: worker
SELECT CASE WHEN state <> 'stopped' AND seen_at < {lost_before} THEN 'lost' ELSE state END AS state
FROM homing_worker
WHERE name = :name

-- name: forget_pauses
DELETE FROM homing_pause
WHERE scope = 'worker' AND name IN (SELECT name FROM homing_worker WHERE {is_old})
RETURNING name

-- name: forget_workers
DELETE FROM homing_worker WHERE {is_old} RETURNING name

-- name: pauses
SELECT scope, name, reason, asked_by, asked_at FROM homing_pause ORDER BY scope, name

-- name: pause
INSERT INTO homing_pause (scope, name, reason, asked_by) VALUES (:scope, :name, :reason, :by)
ON CONFLICT (scope, name) DO NOTHING
RETURNING name

-- name: resume
DELETE FROM homing_pause WHERE scope = :scope AND name = :name RETURNING name
