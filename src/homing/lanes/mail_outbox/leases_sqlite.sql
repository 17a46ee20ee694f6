-- Who holds what, and its release when the holder is gone. The number of rows that are looked through is bounded.

-- name: leases
SELECT locked_by AS owner, count(*) AS held, min(lease_expires_at) AS ends_first
FROM (SELECT locked_by, lease_expires_at
      FROM mail_outbox INDEXED BY mail_outbox_dispatching
      WHERE status = 'dispatching'
      LIMIT :limit)
WHERE locked_by IS NOT NULL
GROUP BY locked_by

-- name: end_leases
UPDATE mail_outbox
SET lease_expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')
WHERE id IN (SELECT id
             FROM mail_outbox INDEXED BY mail_outbox_dispatching
             WHERE status = 'dispatching' AND locked_by = :owner AND lease_expires_at >= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
             LIMIT :limit)
RETURNING id
