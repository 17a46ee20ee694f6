-- Who holds what, and its release when the holder is gone. The number of rows that are looked through is bounded.

-- name: leases
-- A lock of ours ends at the time that is in due_at; others wait there too, and are left out afterwards.
SELECT locked_by AS owner, count(*) AS held, min(due_at) AS ends_first
FROM (SELECT locked_by, locked_at, lock_written_at, due_at
      FROM open_event_notifications
      WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND due_at > now()
      ORDER BY due_at, notification_id
      LIMIT :limit) AS looked
WHERE locked_by IS NOT NULL AND locked_at = lock_written_at
GROUP BY locked_by

-- name: end_leases
-- There is no rescue here: an unlocked row is due. Whoever was not gone finds its lock gone, and settles nothing.
WITH held AS MATERIALIZED (
    SELECT notification_id
    FROM open_event_notifications
    WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND due_at > now()
      AND locked_by = :owner AND locked_at = lock_written_at
    ORDER BY notification_id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE open_event_notifications AS n
SET locked_by = NULL, locked_at = NULL, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
FROM held
WHERE n.notification_id = held.notification_id
RETURNING n.notification_id AS id
