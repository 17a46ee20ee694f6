-- Who holds what, and its release when the holder is gone. The number of rows that are looked through is bounded.

-- name: leases
SELECT locked_by AS owner, count(*) AS held, min(locked_until) AS ends_first
FROM (SELECT locked_by, locked_until
      FROM email_log INDEXED BY email_log_locked
      WHERE locked_by IS NOT NULL
      LIMIT :limit)
GROUP BY locked_by

-- name: end_leases
UPDATE email_log
SET locked_until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds'),
    leased_until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')
WHERE id IN (SELECT id
             FROM email_log INDEXED BY email_log_locked
             WHERE locked_by IS NOT NULL AND locked_by = :owner AND locked_until >= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
             LIMIT :limit)
RETURNING id
