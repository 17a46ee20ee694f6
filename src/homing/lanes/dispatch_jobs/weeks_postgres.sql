-- The weeks of dispatch_attempt: partitions, which only PostgreSQL has, and the rest that lies in none of them.

-- name: prune_weeks
-- The weeks of attempts that are over for so long, with about as many rows as they have.
SELECT c.relname AS name, (bounds[1])::bigint AS first, (bounds[2])::bigint AS bound,
    homing_tsid_time((bounds[1])::bigint) AS began, greatest(c.reltuples, 0)::bigint AS count
FROM pg_inherits AS i
JOIN pg_class AS c ON c.oid = i.inhrelid
CROSS JOIN regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''?([0-9]+)''?\) TO \(''?([0-9]+)''?\)') AS bounds
WHERE i.inhparent = 'dispatch_attempt'::regclass AND c.relname ~ '^dispatch_attempt_[0-9]+w[0-9]+$'
  AND (bounds[2])::bigint <= homing_tsid_at(now() - make_interval(secs => :seconds))
ORDER BY first

-- name: prune_week_is_needed
-- A job that is still to be delivered keeps the story of its attempts.
SELECT j.id
FROM dispatch_job AS j
WHERE j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS') AND j.attempt_count > 0 AND j.id < :bound
  AND EXISTS (SELECT FROM dispatch_attempt AS a
              WHERE a.dispatch_job_id = j.id AND a.id >= :first AND a.id < :bound)
LIMIT 1

-- name: prune_detached
-- What was taken out of dispatch_attempt by us and is still there: somebody was stopped in between.
SELECT c.relname AS name
FROM pg_class AS c
WHERE c.relkind = 'r' AND NOT c.relispartition AND c.relname ~ '^homing_pruned_dispatch_attempt_[0-9]+w[0-9]+$'
  AND pg_table_is_visible(c.oid)
ORDER BY name

-- fragment: prunable_rest
dispatch_attempt_rest AS r
CROSS JOIN json_to_recordset(:ages::json) AS a(state text, seconds double precision)
WHERE r.created_at < now() - make_interval(secs => a.seconds)
  AND NOT EXISTS (SELECT FROM dispatch_job AS j
                  WHERE j.id = r.dispatch_job_id AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS'))

-- name: prune_rest_window
SELECT max(id) AS last, min(created_at) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT id, created_at FROM dispatch_attempt_rest WHERE id > :after ORDER BY id LIMIT :window) AS ahead

-- name: prune_rest_survey
SELECT a.state, count(*) AS count, min(r.created_at) AS oldest
FROM {prunable_rest} AND r.id > :after AND r.id <= :until
GROUP BY 1

-- name: prune_rest_candidates
SELECT r.id FROM {prunable_rest} AND r.id > :after AND r.id <= :until ORDER BY r.id LIMIT :limit

-- name: prune_rest
WITH chosen AS MATERIALIZED (
    SELECT r.id, a.state FROM {prunable_rest}
      AND r.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
    ORDER BY r.id
    FOR UPDATE OF r SKIP LOCKED
)
DELETE FROM dispatch_attempt_rest AS r USING chosen WHERE r.id = chosen.id RETURNING chosen.state
