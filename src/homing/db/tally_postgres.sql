-- name: fold
-- Many rows of a lane and state become one. Readers see all of the old rows or the new one, never both: a statement
-- has one snapshot. Who comes while another process is at it does nothing, and a few rows are not worth it.
WITH alone AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtext('homing_tally')) AS granted
    FROM (SELECT count(*) AS rows FROM (SELECT FROM homing_tally LIMIT 50) AS first_ones) AS appended
    WHERE rows = 50
), gone AS (
    DELETE FROM homing_tally
    WHERE (SELECT granted FROM alone)
      AND ctid = ANY (ARRAY(SELECT ctid FROM homing_tally LIMIT :limit))
    RETURNING lane, state, count
), summed AS (
    INSERT INTO homing_tally (lane, state, count)
    SELECT lane, state, sum(count) FROM gone GROUP BY lane, state HAVING sum(count) <> 0
)
SELECT count(*) AS folded FROM gone
