-- Bulk runs on SQLite. Time is the database's everywhere. A query may be several statements, which run in one transaction;
-- the last one answers.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: lease_end
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :lease_seconds))

-- fragment: run
id, verb, query, lanes, created_by, created_at, state, total, is_estimate, done, skipped, failed,
    started_at, updated_at, finished_at, last_error

-- fragment: ours
id = :id AND claim_seq = :fence AND finished_at IS NULL

-- fragment: told_of
-- The entry in the audit log of whichever run is changed in the same transaction.
INSERT INTO homing_audit (who, address, action, object, detail, outcome)
SELECT json_extract(e.value, '$.who'), json_extract(e.value, '$.address'), json_extract(e.value, '$.action'),
       'bulk_' || r.id, json_extract(e.value, '$.detail'), json_extract(e.value, '$.outcome')
FROM json_each(:audit) AS e JOIN

-- name: create
INSERT INTO homing_bulk_run (verb, query, lanes, created_by)
VALUES (:verb, :query, :lanes, :created_by);
{told_of} (SELECT max(id) AS id FROM homing_bulk_run) AS r;
SELECT {run} FROM homing_bulk_run WHERE id = (SELECT max(id) FROM homing_bulk_run)

-- name: get
SELECT {run} FROM homing_bulk_run WHERE id = :id

-- name: page
-- Not those with a lane that is hidden from whoever asks.
SELECT {run} FROM homing_bulk_run
WHERE id < :before AND NOT EXISTS (
    SELECT 1 FROM json_each(lanes) AS its JOIN json_each(:hidden) AS hidden ON its.value = hidden.value
)
ORDER BY id DESC LIMIT :limit

-- name: cancel
-- Whoever works on it sees it after the batch that is under way, and writes down what that did.
{told_of} (SELECT id FROM homing_bulk_run WHERE id = :id AND state IN ('counting', 'running')) AS r;
UPDATE homing_bulk_run SET state = 'cancelled', updated_at = {now}
WHERE id = :id AND state IN ('counting', 'running')
RETURNING {run}

-- name: waiting
SELECT id FROM homing_bulk_run
WHERE finished_at IS NULL AND (lease_expires_at IS NULL OR lease_expires_at <= {now})
  AND id = coalesce(:id, id)
ORDER BY id LIMIT 1

-- name: claim
UPDATE homing_bulk_run
SET claim_seq = claim_seq + 1, locked_by = :owner, lease_expires_at = {lease_end}
WHERE id = (SELECT id FROM homing_bulk_run
            WHERE finished_at IS NULL AND (lease_expires_at IS NULL OR lease_expires_at <= {now})
              AND id = coalesce(:id, id)
            ORDER BY id LIMIT 1)
RETURNING {run}, claim_seq AS fence, progress, troubles

-- name: standing
SELECT state FROM homing_bulk_run WHERE {ours}

-- name: counted
UPDATE homing_bulk_run
SET total = :total, is_estimate = :is_estimate, started_at = {now}, updated_at = {now},
    state = CASE state WHEN 'counting' THEN 'running' ELSE state END,
    lease_expires_at = {lease_end}
WHERE {ours}
RETURNING state

-- name: advance
-- What the last batch changed, by its numbers, with what it came to. It began when the run was written to last.
INSERT INTO homing_bulk_batch (run_id, lane, low, high, at, numbers)
SELECT r.id, :lane, min(c.value), max(c.value), r.updated_at, :changed
FROM (SELECT id, updated_at FROM homing_bulk_run WHERE {ours}) AS r CROSS JOIN json_each(:changed) AS c
GROUP BY r.id;
UPDATE homing_bulk_run
SET done = done + :done, skipped = skipped + :skipped, failed = failed + :failed, progress = :progress,
    last_error = coalesce(:error, last_error), troubles = 0, updated_at = {now},
    lease_expires_at = {lease_end}
WHERE {ours}
RETURNING state

-- name: of_message
-- Batches of one run lie one after the other, so that few of each have to be looked into.
SELECT r.id AS run, r.verb, r.created_by, r.lanes, b.at
FROM (SELECT id, verb, created_by, lanes FROM homing_bulk_run ORDER BY id DESC LIMIT :most) AS r
CROSS JOIN homing_bulk_batch AS b ON b.run_id = r.id AND b.lane = :lane AND b.high >= :number AND b.low <= :number
WHERE EXISTS (SELECT 1 FROM json_each(b.numbers) AS n WHERE n.value = :number)
ORDER BY b.at, r.id

-- name: changed
-- Each batch has one number at least, so that no more batches are needed.
SELECT n.value AS number
FROM (SELECT numbers FROM homing_bulk_batch WHERE run_id = :id AND lane = :lane ORDER BY high DESC LIMIT :limit) AS b
CROSS JOIN json_each(b.numbers) AS n
ORDER BY n.value DESC LIMIT :limit

-- name: renew
UPDATE homing_bulk_run SET lease_expires_at = {lease_end}
WHERE {ours}
RETURNING state

-- name: release
UPDATE homing_bulk_run
SET locked_by = NULL, lease_expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :delay)), updated_at = {now},
    last_error = coalesce(:error, last_error),
    progress = coalesce(:progress, progress),
    troubles = CASE WHEN :error IS NULL THEN 0 ELSE troubles + 1 END
WHERE {ours}
RETURNING id

-- name: finish
{told_of} (SELECT id FROM homing_bulk_run WHERE {ours}) AS r;
UPDATE homing_bulk_run
SET state = CASE state WHEN 'cancelled' THEN state ELSE :state END, last_error = coalesce(:error, last_error),
    finished_at = {now}, updated_at = {now}, locked_by = NULL, lease_expires_at = NULL
WHERE {ours}
RETURNING {run}
