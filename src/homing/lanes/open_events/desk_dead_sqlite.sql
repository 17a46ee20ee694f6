-- What the desk does with notifications, on SQLite. Another program may read and write every row.

-- fragment: code
-- desk_conditions.py has the same: a group is asked for by its codes, to the letter.
nullif(substr(CASE WHEN json_valid(error) THEN CAST(json_extract(error, '$.code') AS TEXT) END, 1, 80), '')

-- name: dead_codes
WITH newest AS MATERIALIZED (
    SELECT notification_id AS id, {code} AS code, coalesce(last_attempt_at, created_at) AS at
    FROM open_event_notifications INDEXED BY homing_notifications_ended
    WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired') AND lower(fanout_status) = 'failed'
    ORDER BY notification_id DESC
    LIMIT :most
), codes AS MATERIALIZED (
    SELECT code, count(*) AS count, min(at) AS first_at, max(at) AS last_at, max(id) AS newest,
        sum(count(*)) OVER () AS looked
    FROM newest
    GROUP BY code
    ORDER BY 2 DESC
    LIMIT :codes
)
SELECT c.*, CAST(n.error AS TEXT) AS text
FROM codes AS c CROSS JOIN open_event_notifications AS n ON n.notification_id = c.newest

-- name: dead_words
SELECT {code} AS code, CAST(error AS TEXT) AS text
FROM open_event_notifications INDEXED BY homing_notifications_ended
WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired') AND lower(fanout_status) = 'failed'
ORDER BY notification_id DESC
LIMIT :most
