-- Subscriptions for an operator who looks.

-- fragment: shown
s.subscription_id, s.section_id, s.term_id, s.campus_code, s.index_number, s.contact_type, s.contact_value, s.locale,
    lower(s.status) AS status, s.is_verified, s.created_at, s.updated_at, s.last_notified_at,
    s.last_known_section_status, s.unsubscribe_token, s.metadata

-- name: look
-- No index knows the state, so the newest are looked through; each row tells how far, also when none is meant.
WITH looked AS MATERIALIZED (
    SELECT subscription_id, lower(status) AS status FROM subscriptions
    WHERE subscription_id < coalesce(:before::bigint, 9223372036854775807)
    ORDER BY subscription_id DESC LIMIT :window)
SELECT {shown}, seen.least AS looked_until, seen.count AS looked_at
FROM (SELECT min(subscription_id) AS least, count(*) AS count FROM looked) AS seen
LEFT JOIN (SELECT subscription_id FROM looked WHERE :status::text IS NULL OR status = :status
           ORDER BY subscription_id DESC LIMIT :limit) AS meant ON true
LEFT JOIN subscriptions AS s ON s.subscription_id = meant.subscription_id
ORDER BY s.subscription_id DESC

-- name: page_of_hash
SELECT {shown}
FROM subscriptions AS s
WHERE s.contact_hash = :contact_hash AND s.subscription_id < coalesce(:before::bigint, 9223372036854775807)
  AND (:status::text IS NULL OR lower(s.status) = :status)
ORDER BY s.subscription_id DESC
LIMIT :limit

-- name: waiting_of
SELECT notification_id AS id, open_event_id, fanout_attempts AS attempts, due_at, created_at
FROM open_event_notifications
WHERE subscription_id = :id AND lower(fanout_status) = 'pending'
ORDER BY notification_id
LIMIT :limit

-- name: tallies_of
SELECT event_type, count(*) AS count, max(created_at) AS last_at
FROM subscription_events
WHERE subscription_id = :id
GROUP BY event_type
ORDER BY event_type
