-- Bulk runs on PostgreSQL. Time is the database's everywhere.

-- fragment: run
id, verb, query, lanes::text AS lanes, created_by, created_at, state, total, is_estimate, done, skipped, failed,
    started_at, updated_at, finished_at, last_error

-- fragment: ours
id = :id AND claim_seq = :fence AND finished_at IS NULL

-- fragment: told
-- What was changed and its entry in the audit log are one statement: neither is there without the other.
noted AS (
    INSERT INTO homing_audit (who, address, action, object, detail, outcome)
    SELECT t.who, t.address, t.action, 'bulk_' || changed.id, t.detail, t.outcome
    FROM changed, json_to_recordset(:audit::text::json)
         AS t (who text, address text, action text, detail jsonb, outcome text)
)
SELECT * FROM changed

-- name: create
WITH changed AS (
    INSERT INTO homing_bulk_run (verb, query, lanes, created_by)
    VALUES (:verb, :query, :lanes::text::json, :created_by)
    RETURNING {run}
), {told}

-- name: get
SELECT {run} FROM homing_bulk_run WHERE id = :id

-- name: page
-- Not those with a lane that is hidden from whoever asks.
SELECT {run} FROM homing_bulk_run
WHERE id < :before AND NOT EXISTS (
    SELECT 1 FROM json_array_elements_text(lanes) AS its (lane)
    JOIN json_array_elements_text(:hidden::text::json) AS hidden (lane) USING (lane)
)
ORDER BY id DESC LIMIT :limit

-- name: cancel
-- Whoever works on it sees it after the batch that is under way, and writes down what that did.
WITH changed AS (
    UPDATE homing_bulk_run SET state = 'cancelled', updated_at = now()
    WHERE id = :id AND state IN ('counting', 'running')
    RETURNING {run}
), {told}

-- name: waiting
SELECT id FROM homing_bulk_run
WHERE finished_at IS NULL AND (lease_expires_at IS NULL OR lease_expires_at <= now())
  AND id = coalesce(:id::bigint, id)
ORDER BY id LIMIT 1

-- name: claim
WITH free AS MATERIALIZED (
    SELECT id FROM homing_bulk_run
    WHERE finished_at IS NULL AND (lease_expires_at IS NULL OR lease_expires_at <= now())
      AND id = coalesce(:id::bigint, id)
    ORDER BY id LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE homing_bulk_run AS r
SET claim_seq = r.claim_seq + 1, locked_by = :owner,
    lease_expires_at = now() + make_interval(secs => :lease_seconds)
FROM free WHERE r.id = free.id
RETURNING r.id, r.verb, r.query, r.lanes::text AS lanes, r.created_by, r.created_at, r.state, r.total, r.is_estimate,
    r.done, r.skipped, r.failed, r.started_at, r.updated_at, r.finished_at, r.last_error,
    r.claim_seq AS fence, r.progress::text AS progress, r.troubles

-- name: standing
SELECT state FROM homing_bulk_run WHERE {ours}

-- name: counted
UPDATE homing_bulk_run
SET total = :total, is_estimate = :is_estimate, started_at = now(), updated_at = now(),
    state = CASE state WHEN 'counting' THEN 'running' ELSE state END,
    lease_expires_at = now() + make_interval(secs => :lease_seconds)
WHERE {ours}
RETURNING state

-- name: advance
-- What the last batch changed, by its numbers, with what it came to. It began when the run was written to last.
WITH advanced AS (
    UPDATE homing_bulk_run
    SET done = done + :done, skipped = skipped + :skipped, failed = failed + :failed, progress = :progress::text::json,
        last_error = coalesce(:error::text, last_error), troubles = 0, updated_at = now(),
        lease_expires_at = now() + make_interval(secs => :lease_seconds)
    WHERE {ours}
    RETURNING id, state
), told AS (
    INSERT INTO homing_bulk_batch (run_id, lane, low, high, at, numbers)
    SELECT a.id, :lane, min(c.number), max(c.number), r.updated_at, array_agg(c.number)
    FROM advanced AS a JOIN homing_bulk_run AS r USING (id)
    CROSS JOIN (SELECT value::bigint AS number FROM json_array_elements_text(:changed::text::json)) AS c
    GROUP BY a.id, r.updated_at
)
SELECT state FROM advanced

-- name: of_message
-- Batches of one run lie one after the other, so that few of each have to be looked into.
SELECT r.id AS run, r.verb, r.created_by, r.lanes::text AS lanes, b.at
FROM (SELECT id, verb, created_by, lanes FROM homing_bulk_run ORDER BY id DESC LIMIT :most) AS r
JOIN homing_bulk_batch AS b ON b.run_id = r.id AND b.lane = :lane AND b.high >= :number AND b.low <= :number
WHERE :number = ANY (b.numbers)
ORDER BY b.at, r.id

-- name: changed
-- Each batch has one number at least, so that no more batches are needed.
SELECT n.number
FROM (SELECT numbers FROM homing_bulk_batch WHERE run_id = :id AND lane = :lane ORDER BY high DESC LIMIT :limit) AS b
CROSS JOIN unnest(b.numbers) AS n (number)
ORDER BY n.number DESC LIMIT :limit

-- name: renew
UPDATE homing_bulk_run SET lease_expires_at = now() + make_interval(secs => :lease_seconds)
WHERE {ours}
RETURNING state

-- name: release
UPDATE homing_bulk_run
SET locked_by = NULL, lease_expires_at = now() + make_interval(secs => :delay), updated_at = now(),
    last_error = coalesce(:error::text, last_error),
    progress = coalesce(:progress::text::json, progress),
    troubles = CASE WHEN :error::text IS NULL THEN 0 ELSE troubles + 1 END
WHERE {ours}
RETURNING id

-- name: finish
WITH changed AS (
    UPDATE homing_bulk_run
    SET state = CASE state WHEN 'cancelled' THEN state ELSE :state END, last_error = coalesce(:error::text, last_error),
        finished_at = now(), updated_at = now(), locked_by = NULL, lease_expires_at = NULL
    WHERE {ours}
    RETURNING {run}
), {told}
