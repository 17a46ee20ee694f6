-- Pruning of open_events, on SQLite. The tables may be another program's, and so may be how a time is written: all are
-- compared as days. A row whose dates cannot be read stays.

-- fragment: ended
max({made}, coalesce(julianday(n.last_attempt_at), instant_julianday(n.last_attempt_at), {made}),
    coalesce(julianday(n.locked_at), instant_julianday(n.locked_at), {made}))

-- fragment: made
coalesce(julianday(n.created_at), instant_julianday(n.created_at), julianday(n.last_attempt_at))

-- fragment: age
json_extract(a.value, '$.seconds') / 86400.0

-- fragment: prunable
-- CROSS JOIN keeps this order: by id, without the indexes of states.
open_event_notifications AS n CROSS JOIN json_each(:ages) AS a
WHERE +lower(n.fanout_status) IN ('sent', 'skipped', 'failed', 'expired')
  AND +lower(n.fanout_status) = json_extract(a.value, '$.state')
  AND {ended} < julianday('now') - {age}

-- name: prune_notifications_window
SELECT max(notification_id) AS last, min(made) < julianday('now') - :youngest / 86400.0 AS old
FROM (SELECT notification_id, coalesce(julianday(created_at), instant_julianday(created_at)) AS made FROM open_event_notifications WHERE notification_id > :after ORDER BY notification_id LIMIT :window)

-- name: prune_notifications_survey
SELECT lower(n.fanout_status) AS state, count(*) AS count, strftime('%Y-%m-%dT%H:%M:%fZ', min({ended})) AS oldest
FROM {prunable} AND n.notification_id > :after AND n.notification_id <= :until
GROUP BY 1

-- name: prune_notifications_candidates
SELECT n.notification_id AS id
FROM {prunable} AND n.notification_id > :after AND n.notification_id <= :until
ORDER BY n.notification_id
LIMIT :limit

-- name: prune_notifications
DELETE FROM open_event_notifications
WHERE notification_id IN (
    SELECT n.notification_id FROM {prunable} AND n.notification_id IN (SELECT value FROM json_each(:ids)))
RETURNING lower(fanout_status) AS state

-- fragment: happened
max(coalesce(julianday(e.created_at), instant_julianday(e.created_at), julianday(e.event_at), instant_julianday(e.event_at)),
    coalesce(julianday(e.event_at), instant_julianday(e.event_at), julianday(e.created_at)))

-- fragment: prunable_event
-- An event that somebody is still to be told of, or was told of, stays with its notifications.
open_events AS e CROSS JOIN json_each(:ages) AS a
WHERE {happened} < julianday('now') - {age}
  AND NOT EXISTS (SELECT 1 FROM open_event_notifications AS n WHERE n.open_event_id = e.open_event_id)

-- name: prune_events_window
SELECT max(open_event_id) AS last, min(made) < julianday('now') - :youngest / 86400.0 AS old
FROM (SELECT open_event_id, coalesce(julianday(created_at), instant_julianday(created_at)) AS made FROM open_events WHERE open_event_id > :after ORDER BY open_event_id LIMIT :window)

-- name: prune_events_survey
SELECT json_extract(a.value, '$.state') AS state, count(*) AS count,
    strftime('%Y-%m-%dT%H:%M:%fZ', min({happened})) AS oldest
FROM {prunable_event} AND e.open_event_id > :after AND e.open_event_id <= :until
GROUP BY 1

-- name: prune_events_candidates
SELECT e.open_event_id AS id
FROM {prunable_event} AND e.open_event_id > :after AND e.open_event_id <= :until
ORDER BY e.open_event_id
LIMIT :limit

-- name: prune_events
DELETE FROM open_events
WHERE open_event_id IN (
    SELECT e.open_event_id FROM {prunable_event} AND e.open_event_id IN (SELECT value FROM json_each(:ids)))
RETURNING (SELECT json_extract(value, '$.state') FROM json_each(:ages)) AS state

-- fragment: prunable_line
-- Only what was sent or failed. What was sent since the last change of status is counted against the most
-- notifications that a subscriber wants, and stays; so does all that says who asked for what, and when.
subscription_events AS l CROSS JOIN json_each(:ages) AS a
WHERE coalesce(julianday(l.created_at), instant_julianday(l.created_at)) < julianday('now') - {age}
  AND (l.event_type = 'notify_failed'
       OR l.event_type = 'notify_sent'
          AND EXISTS (SELECT 1 FROM subscription_events AS changed
                      WHERE changed.subscription_id = l.subscription_id AND changed.event_type = 'status_changed'
                        AND changed.rowid > l.rowid))

-- name: prune_history_window
SELECT max(id) AS last, min(made) < julianday('now') - :youngest / 86400.0 AS old
FROM (SELECT rowid AS id, coalesce(julianday(created_at), instant_julianday(created_at)) AS made FROM subscription_events WHERE rowid > :after ORDER BY rowid LIMIT :window)

-- name: prune_history_survey
SELECT json_extract(a.value, '$.state') AS state, count(*) AS count,
    strftime('%Y-%m-%dT%H:%M:%fZ', min(coalesce(julianday(l.created_at), instant_julianday(l.created_at)))) AS oldest
FROM {prunable_line} AND l.rowid > :after AND l.rowid <= :until
GROUP BY 1

-- name: prune_history_candidates
SELECT l.rowid AS id
FROM {prunable_line} AND l.rowid > :after AND l.rowid <= :until
ORDER BY l.rowid
LIMIT :limit

-- name: prune_history
DELETE FROM subscription_events
WHERE rowid IN (SELECT l.rowid FROM {prunable_line} AND l.rowid IN (SELECT value FROM json_each(:ids)))
RETURNING (SELECT json_extract(value, '$.state') FROM json_each(:ages)) AS state
