-- Who holds what, and its release when the holder is gone. The number of rows that are looked through is bounded.

-- name: leases
SELECT locked_by AS owner, count(*) AS held, min(lease_expires_at) AS ends_first
FROM (SELECT locked_by, lease_expires_at
      FROM dispatch_job
      WHERE status = 'IN_PROGRESS'
      LIMIT :limit) AS looked
WHERE locked_by IS NOT NULL
GROUP BY locked_by

-- name: end_leases
-- Only their time is over then. The next rescue takes the rows, and the fence keeps out whoever was not gone.
WITH held AS MATERIALIZED (
    SELECT id
    FROM dispatch_job
    WHERE status = 'IN_PROGRESS' AND locked_by = :owner AND lease_expires_at >= now()
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE dispatch_job AS o
SET lease_expires_at = now() - interval '1 second'
FROM held
WHERE o.id = held.id
RETURNING o.id
