-- What alerts ask of open_event_notifications on SQLite.

-- name: newest_dead
SELECT notification_id AS id, CAST(last_attempt_at AS TEXT) AS last_attempt_at, CAST(error AS TEXT) AS error
FROM open_event_notifications INDEXED BY homing_notifications_ended
WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired') AND lower(fanout_status) = 'failed'
ORDER BY notification_id DESC
LIMIT :limit
