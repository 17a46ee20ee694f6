-- Workers on PostgreSQL. Who was seen when is told by the database's clock, which all processes share.

-- name: beat
INSERT INTO homing_worker (name, host, pid, boot, version, lanes, serves, state, report, started_at, seen_at)
VALUES (:name, :host, :pid, :boot, :version, :lanes::text::jsonb, :serves, :state, :report::text::jsonb,
        now() - make_interval(secs => :up_seconds), now())
ON CONFLICT (name) DO UPDATE
SET host = excluded.host, pid = excluded.pid, boot = excluded.boot, version = excluded.version,
    lanes = excluded.lanes, serves = excluded.serves, state = excluded.state, report = excluded.report,
    -- It does not begin anew with every beat.
    started_at = CASE homing_worker.boot WHEN excluded.boot THEN homing_worker.started_at ELSE excluded.started_at END,
    seen_at = excluded.seen_at
RETURNING name

-- name: workers
SELECT name, host, pid, version, lanes::text AS lanes, serves, report::text AS report, started_at, seen_at,
    extract(epoch FROM now() - seen_at)::double precision AS silent_seconds,
    CASE WHEN state <> 'stopped' AND seen_at < now() - make_interval(secs => :lost_after) THEN 'lost' ELSE state END
        AS state
FROM homing_worker
ORDER BY state = 'stopped', seen_at < now() - make_interval(secs => :lost_after), name
LIMIT :limit

-- name: worker
SELECT CASE WHEN state <> 'stopped' AND seen_at < now() - make_interval(secs => :lost_after) THEN 'lost' ELSE state END
    AS state
FROM homing_worker
WHERE name = :name

-- name: forget_workers
-- A pause goes with its worker: nobody could lift it from where it is not shown.
WITH old AS (
    DELETE FROM homing_worker
    WHERE seen_at < now() - make_interval(secs => CASE state WHEN 'stopped' THEN :stopped_after::double precision ELSE :lost_after END)
    RETURNING name
), lifted AS (
    DELETE FROM homing_pause WHERE scope = 'worker' AND name IN (SELECT name FROM old)
)
SELECT name FROM old

-- name: pauses
SELECT scope, name, reason, asked_by, asked_at FROM homing_pause ORDER BY scope, name

-- name: pause
-- Who asked first stays on record.
INSERT INTO homing_pause (scope, name, reason, asked_by) VALUES (:scope, :name, :reason, :by)
ON CONFLICT (scope, name) DO NOTHING
RETURNING name

-- name: resume
DELETE FROM homing_pause WHERE scope = :scope AND name = :name RETURNING name
