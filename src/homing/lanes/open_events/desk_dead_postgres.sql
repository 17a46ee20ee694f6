-- What the desk does with notifications, on PostgreSQL. Another program may read and write every row.

-- fragment: code
-- What another program wrote may be no JSON, so its text is looked through.
-- desk_conditions.py has the same: a group is asked for by its codes, to the letter.
nullif(substr(substring(CAST(error AS TEXT) FROM '"code"\s*:\s*"([^"]*)"'), 1, 80), '')

-- fragment: failed
-- Written so that the order has to come from the index of what ended badly, and not from that of all.
lower(fanout_status) IN ('skipped', 'failed', 'expired')
    AND lower(fanout_status) >= 'failed' AND lower(fanout_status) <= 'failed'

-- name: by_index
-- For the transaction: what is asked for lies in an index in the order that is asked for, and only the newest of it
-- are read. The planner, which does not know how old they are, would rather read it all and sort.
SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_seqscan', 'off', true)

-- name: dead_codes
WITH newest AS MATERIALIZED (
    SELECT notification_id AS id, {code} AS code, coalesce(last_attempt_at, created_at) AS at
    FROM open_event_notifications
    WHERE {failed}
    ORDER BY lower(fanout_status) DESC, notification_id DESC
    LIMIT :most
), codes AS MATERIALIZED (
    SELECT code, count(*) AS count, min(at) AS first_at, max(at) AS last_at, max(id) AS newest,
        (sum(count(*)) OVER ())::bigint AS looked
    FROM newest
    GROUP BY code
    ORDER BY 2 DESC
    LIMIT :codes
)
SELECT c.*, n.error AS text FROM codes AS c JOIN open_event_notifications AS n ON n.notification_id = c.newest

-- name: dead_words
SELECT {code} AS code, error AS text
FROM open_event_notifications
WHERE {failed}
ORDER BY lower(fanout_status) DESC, notification_id DESC
LIMIT :most
