-- Who holds what, and its release when the holder is gone. The number of rows that are looked through is bounded.

-- name: leases
SELECT locked_by AS owner, count(*) AS held, min(due_at) AS ends_first
FROM (SELECT locked_by, locked_at, lock_written_at, due_at
      FROM open_event_notifications INDEXED BY homing_notifications_waiting
      WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      ORDER BY due_at, notification_id
      LIMIT :limit)
WHERE locked_by IS NOT NULL AND locked_at = lock_written_at
GROUP BY locked_by

-- name: end_leases
UPDATE open_event_notifications
SET locked_by = NULL, locked_at = NULL, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
WHERE notification_id IN (
    SELECT notification_id
    FROM open_event_notifications INDEXED BY homing_notifications_waiting
    WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      AND locked_by = :owner AND locked_at = lock_written_at
    LIMIT :limit)
RETURNING notification_id AS id
