-- Who holds what, and its release when the holder is gone. The number of rows that are looked through is bounded.

-- name: leases
SELECT locked_by AS owner, count(*) AS held, min(lease_expires_at) AS ends_first
FROM (SELECT locked_by, lease_expires_at
      FROM dispatch_job INDEXED BY homing_job_in_progress
      WHERE status = 'IN_PROGRESS'
      LIMIT :limit)
WHERE locked_by IS NOT NULL
GROUP BY locked_by

-- name: end_leases
UPDATE dispatch_job
SET lease_expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')
WHERE id IN (SELECT id
             FROM dispatch_job INDEXED BY homing_job_in_progress
             WHERE status = 'IN_PROGRESS' AND locked_by = :owner AND lease_expires_at >= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
             LIMIT :limit)
RETURNING id
