-- What the desk shows of notifications, on SQLite.

-- name: listed
-- A time to wait for counts as long as nobody has changed the row since it was written.
SELECT n.notification_id AS id, n.open_event_id, n.subscription_id, lower(n.fanout_status) AS status,
    max(0, CAST(coalesce(n.fanout_attempts, 0) AS INTEGER)) AS attempts, CAST(n.error AS TEXT) AS error, n.created_at,
    CASE WHEN lower(n.fanout_status) = 'pending' AND n.lock_written_at IS NULL
              AND n.due_attempts IS n.fanout_attempts AND n.error IS NOT NULL THEN n.due_at END AS due_at,
    e.term_id, e.campus_code, e.index_number, CAST(e.payload AS TEXT) AS event_payload,
    CAST(s.contact_value AS TEXT) AS contact_value
FROM open_event_notifications AS n
LEFT JOIN open_events AS e ON e.open_event_id = n.open_event_id
LEFT JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
WHERE n.notification_id IN (SELECT value FROM json_each(:ids))
ORDER BY n.notification_id DESC
