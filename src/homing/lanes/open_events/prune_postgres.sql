-- Pruning of open_events, on PostgreSQL. The tables may be another program's: a row without any date stays.

-- fragment: ended
greatest(n.created_at, n.last_attempt_at, n.locked_at)

-- fragment: prunable
open_event_notifications AS n
JOIN json_to_recordset(:ages::json) AS a(state text, seconds double precision) ON a.state = lower(n.fanout_status)
WHERE lower(n.fanout_status) IN ('sent', 'skipped', 'failed', 'expired')
  AND {ended} < now() - make_interval(secs => a.seconds)

-- name: prune_notifications_window
SELECT max(notification_id) AS last, min(created_at) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT notification_id, created_at FROM open_event_notifications WHERE notification_id > :after ORDER BY notification_id LIMIT :window) AS ahead

-- name: prune_notifications_survey
SELECT lower(n.fanout_status) AS state, count(*) AS count, min({ended}) AS oldest
FROM {prunable} AND n.notification_id > :after AND n.notification_id <= :until
GROUP BY 1

-- name: prune_notifications_candidates
SELECT n.notification_id AS id FROM {prunable} AND n.notification_id > :after AND n.notification_id <= :until ORDER BY n.notification_id LIMIT :limit

-- name: prune_notifications
-- Locks only what has ended, which no claim looks at, and waits for nobody.
WITH chosen AS MATERIALIZED (
    SELECT n.notification_id AS id FROM {prunable}
      AND n.notification_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
    ORDER BY n.notification_id
    FOR UPDATE OF n SKIP LOCKED
)
DELETE FROM open_event_notifications AS n USING chosen
WHERE n.notification_id = chosen.id
RETURNING lower(n.fanout_status) AS state

-- fragment: prunable_event
-- An event that somebody is still to be told of, or was told of, stays with its notifications.
open_events AS e
CROSS JOIN json_to_recordset(:ages::json) AS a(state text, seconds double precision)
WHERE greatest(e.created_at, e.event_at) < now() - make_interval(secs => a.seconds)
  AND NOT EXISTS (SELECT FROM open_event_notifications AS n WHERE n.open_event_id = e.open_event_id)

-- name: prune_events_window
SELECT max(open_event_id) AS last, min(created_at) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT open_event_id, coalesce(created_at, event_at) AS created_at FROM open_events WHERE open_event_id > :after ORDER BY open_event_id LIMIT :window) AS ahead

-- name: prune_events_survey
SELECT a.state, count(*) AS count, min(greatest(e.created_at, e.event_at)) AS oldest
FROM {prunable_event} AND e.open_event_id > :after AND e.open_event_id <= :until
GROUP BY 1

-- name: prune_events_candidates
SELECT e.open_event_id AS id
FROM {prunable_event} AND e.open_event_id > :after AND e.open_event_id <= :until
ORDER BY e.open_event_id
LIMIT :limit

-- name: prune_events
WITH chosen AS MATERIALIZED (
    SELECT e.open_event_id AS id, a.state FROM {prunable_event}
      AND e.open_event_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
    ORDER BY e.open_event_id
    FOR UPDATE OF e SKIP LOCKED
)
DELETE FROM open_events AS e USING chosen WHERE e.open_event_id = chosen.id RETURNING chosen.state

-- fragment: prunable_line
-- Only what was sent or failed. What was sent since the last change of status is counted against the most
-- notifications that a subscriber wants, and stays; so does all that says who asked for what, and when.
subscription_events AS l
CROSS JOIN json_to_recordset(:ages::json) AS a(state text, seconds double precision)
WHERE l.created_at < now() - make_interval(secs => a.seconds)
  AND (l.event_type = 'notify_failed'
       OR l.event_type = 'notify_sent'
          AND EXISTS (SELECT FROM subscription_events AS changed
                      WHERE changed.subscription_id = l.subscription_id AND changed.event_type = 'status_changed'
                        AND changed.event_id > l.event_id))

-- name: prune_history_window
SELECT max(event_id) AS last, min(created_at) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT event_id, created_at FROM subscription_events WHERE event_id > :after ORDER BY event_id LIMIT :window) AS ahead

-- name: prune_history_survey
SELECT a.state, count(*) AS count, min(l.created_at) AS oldest
FROM {prunable_line} AND l.event_id > :after AND l.event_id <= :until
GROUP BY 1

-- name: prune_history_candidates
SELECT l.event_id AS id
FROM {prunable_line} AND l.event_id > :after AND l.event_id <= :until
ORDER BY l.event_id
LIMIT :limit

-- name: prune_history
WITH chosen AS MATERIALIZED (
    SELECT l.event_id AS id, a.state FROM {prunable_line}
      AND l.event_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
    ORDER BY l.event_id
    FOR UPDATE OF l SKIP LOCKED
)
DELETE FROM subscription_events AS l USING chosen WHERE l.event_id = chosen.id RETURNING chosen.state
