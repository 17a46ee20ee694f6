-- Who holds what, and its release when the holder is gone. The number of rows that are looked through is bounded.

-- name: leases
SELECT locked_by AS owner, count(*) AS held, min(locked_until) AS ends_first
FROM (SELECT locked_by, locked_until
      FROM email_log
      WHERE locked_by IS NOT NULL
      LIMIT :limit) AS looked
GROUP BY locked_by

-- name: end_leases
-- Only their time is over then. The next rescue takes the rows, and the fence keeps out whoever was not gone.
WITH held AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE locked_by IS NOT NULL AND locked_by = :owner AND locked_until >= now()
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE email_log AS e
SET locked_until = now() - interval '1 second', leased_until = now() - interval '1 second'
FROM held
WHERE e.id = held.id
RETURNING e.id
