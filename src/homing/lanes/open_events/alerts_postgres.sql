-- What alerts ask of open_event_notifications on PostgreSQL. The table may be another program's, so there is no trigger on
-- it that would note who dies: the newest that failed are looked at, by the index of what ended badly.

-- name: newest_dead
SELECT notification_id AS id, last_attempt_at, error
FROM open_event_notifications
WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired') AND lower(fanout_status) = 'failed'
ORDER BY notification_id DESC
LIMIT :limit
