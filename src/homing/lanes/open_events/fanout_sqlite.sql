-- A section's flips on SQLite: the same queries by the same names. There is no lock to take: every writing
-- transaction runs under BEGIN IMMEDIATE. Times of other programs are read by julianday(), to the millisecond, and
-- by a function of ours in the ISO forms that it does not know.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: flip
flip AS MATERIALIZED (
    SELECT json_extract(:flip, '$.section_id') AS section_id, json_extract(:flip, '$.term_id') AS term_id,
        json_extract(:flip, '$.campus_code') AS campus_code, json_extract(:flip, '$.index_number') AS index_number,
        json_extract(:flip, '$.status_before') AS status_before, json_extract(:flip, '$.status_after') AS status_after,
        json_extract(:flip, '$.seat_delta') AS seat_delta, json_extract(:flip, '$.event_at') AS event_at,
        json_extract(:flip, '$.detected_by') AS detected_by, json_extract(:flip, '$.snapshot_id') AS snapshot_id,
        json_extract(:flip, '$.dedupe_key') AS dedupe_key, json_extract(:flip, '$.trace_id') AS trace_id,
        json_extract(:flip, '$.payload') AS payload
)

-- fragment: near
-- The opening of the section that this flip is, told once more: by its key, or because it is so close.
SELECT open_event_id
FROM (
    SELECT e.open_event_id, 0 AS distance FROM flip JOIN open_events AS e USING (dedupe_key)
    UNION ALL
    SELECT e.open_event_id,
        round(abs(coalesce(julianday(e.event_at), instant_julianday(e.event_at)) - julianday(flip.event_at)) * 86400, 3)
    FROM flip JOIN open_events AS e USING (term_id, campus_code, index_number)
    WHERE lower(e.status_after) = 'open'
)
WHERE distance < :window_seconds
ORDER BY distance, open_event_id
LIMIT 1

-- fragment: had
-- What a subscription was sent since its last change of status, and what it waits for.
(SELECT count(*) FROM subscription_events AS sent
 WHERE sent.subscription_id = s.subscription_id AND sent.event_type = 'notify_sent'
   AND sent.rowid > coalesce(
       (SELECT max(changed.rowid) FROM subscription_events AS changed
        WHERE changed.subscription_id = s.subscription_id AND changed.event_type = 'status_changed'), 0))
+ (SELECT count(*) FROM open_event_notifications AS waiting
   WHERE waiting.subscription_id = s.subscription_id AND lower(waiting.fanout_status) = 'pending')

-- name: near
WITH {flip}
{near}

-- name: reopened
-- Whether the section is noted as closed though it was seen open after the opening that is known.
WITH {flip}
SELECT 1
FROM flip
JOIN open_events AS e ON e.open_event_id = :open_event_id
JOIN sections AS s ON s.term_id = flip.term_id AND s.campus_code = flip.campus_code
    AND s.index_number = flip.index_number
WHERE julianday(flip.event_at) > coalesce(julianday(e.event_at), instant_julianday(e.event_at))
  AND lower(s.open_status) IS NOT 'open'
LIMIT 1

-- name: section
-- What is known of a section now, for an event that does not say.
SELECT s.section_id, s.section_number, s.subject_code, c.course_string, c.title
FROM sections AS s LEFT JOIN courses AS c ON c.course_id = s.course_id
WHERE s.term_id = :term_id AND s.campus_code = :campus_code AND s.index_number = :index_number
ORDER BY s.section_id
LIMIT 1

-- name: wishes
-- Only what can make a difference to who gets a row.
SELECT subscription_id AS id, metadata
FROM subscriptions
WHERE term_id = :term_id AND campus_code = :campus_code AND index_number = :index_number
  AND lower(status) = 'active' AND (metadata LIKE '%maxNotifications%' OR metadata LIKE '%notifyOn%')

-- name: record
-- The event and all its rows, or nothing; `:limits` says who has had enough with how many mails. Three statements:
-- a statement here writes one table, and the last one answers.
WITH {flip}
INSERT INTO open_events (
    section_id, -- given: section_id
    seat_delta, -- given: seat_delta
    snapshot_id, -- given: snapshot_id
    payload, -- given: payload
    term_id, campus_code, index_number, status_before, status_after, event_at, detected_by, dedupe_key, trace_id,
    created_at)
SELECT
    section_id, -- given: section_id
    seat_delta, -- given: seat_delta
    snapshot_id, -- given: snapshot_id
    payload, -- given: payload
    term_id, campus_code, index_number, status_before, status_after, event_at, detected_by, dedupe_key, trace_id,
    {now}
FROM flip
WHERE NOT EXISTS ({near});

-- Materialized, because the rows that this statement inserts change what these functions say.
WITH event AS MATERIALIZED (
    SELECT open_event_id, term_id, campus_code, index_number, dedupe_key
    FROM open_events
    WHERE open_event_id = last_insert_rowid() AND changes() = 1
),
limits AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.most') AS most FROM json_each(:limits)
)
INSERT INTO open_event_notifications (
    open_event_id, subscription_id, dedupe_key, fanout_status, fanout_attempts, created_at)
-- In two parts, because a join with `limits` would look all of them through for each subscription.
SELECT event.open_event_id, s.subscription_id, event.dedupe_key, 'pending', 0, {now}
FROM event JOIN subscriptions AS s USING (term_id, campus_code, index_number)
WHERE lower(s.status) = 'active' AND s.subscription_id NOT IN (SELECT id FROM limits)
UNION ALL
SELECT event.open_event_id, s.subscription_id, event.dedupe_key, 'pending', 0, {now}
FROM event
CROSS JOIN limits
CROSS JOIN subscriptions AS s ON s.subscription_id = limits.id AND s.term_id = event.term_id
    AND s.campus_code = event.campus_code AND s.index_number = event.index_number
WHERE lower(s.status) = 'active' AND limits.most > {had}
ORDER BY 2;

WITH {flip}
SELECT e.open_event_id, changes() AS notifications
FROM flip JOIN open_events AS e USING (dedupe_key)
ORDER BY e.open_event_id DESC
LIMIT 1

-- name: mark_section
-- What the section is now.
UPDATE sections
SET open_status = :status
WHERE term_id = :term_id AND campus_code = :campus_code AND index_number = :index_number
  AND open_status IS NOT :status

-- name: mark_subscriptions
-- It is not open any more, and whoever was told so will be told again.
UPDATE subscriptions
SET last_known_section_status = :status
WHERE term_id = :term_id AND campus_code = :campus_code AND index_number = :index_number
  AND last_known_section_status IS NOT :status
