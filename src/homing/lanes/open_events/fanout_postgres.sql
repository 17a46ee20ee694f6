-- A section's flips on PostgreSQL. `:flip` is a JSON object with the columns of open_events.

-- fragment: flip
flip AS MATERIALIZED (
    SELECT *
    FROM jsonb_to_record(:flip::jsonb) AS f(
        section_id bigint, term_id text, campus_code text, index_number text, status_before text, status_after text,
        seat_delta integer, event_at timestamptz, detected_by text, snapshot_id bigint, dedupe_key text,
        trace_id text, payload text)
)

-- fragment: near
-- The opening of the section that this flip is, told once more: by its key, or because it is so close.
SELECT open_event_id
FROM (
    SELECT e.open_event_id, 0 AS distance FROM flip JOIN open_events AS e USING (dedupe_key)
    UNION ALL
    SELECT e.open_event_id, abs(extract(epoch FROM e.event_at - flip.event_at))
    FROM flip JOIN open_events AS e USING (term_id, campus_code, index_number)
    WHERE lower(e.status_after) = 'open'
      AND e.event_at > flip.event_at - make_interval(secs => :window_seconds)
      AND e.event_at < flip.event_at + make_interval(secs => :window_seconds)
) AS near
ORDER BY distance, open_event_id
LIMIT 1

-- fragment: had
-- What a subscription was sent since its last change of status, and what it waits for.
(SELECT count(*) FROM subscription_events AS sent
 WHERE sent.subscription_id = s.subscription_id AND sent.event_type = 'notify_sent'
   AND sent.event_id > coalesce(
       (SELECT max(changed.event_id) FROM subscription_events AS changed
        WHERE changed.subscription_id = s.subscription_id AND changed.event_type = 'status_changed'), 0))
+ (SELECT count(*) FROM open_event_notifications AS waiting
   WHERE waiting.subscription_id = s.subscription_id AND lower(waiting.fanout_status) = 'pending')

-- name: lock_section
-- Flips of one section go one after the other, in all processes: each sees what the one before it has written.
SELECT pg_advisory_xact_lock(hashtextextended('homing open_events ' || :section, 0))

-- name: near
WITH {flip}
{near}

-- name: reopened
-- Whether the section is noted as closed though it was seen open after the opening that is known.
WITH {flip}
SELECT 1
FROM flip
JOIN open_events AS e ON e.open_event_id = :open_event_id
JOIN sections AS s ON (s.term_id, s.campus_code, s.index_number)
    = (flip.term_id, flip.campus_code, flip.index_number)
WHERE flip.event_at > e.event_at AND lower(s.open_status) IS DISTINCT FROM 'open'
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
-- The event and all its rows, or nothing; `:limits` says who has had enough with how many mails.
WITH {flip},
event AS (
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
        statement_timestamp()
    FROM flip
    WHERE NOT EXISTS ({near})
    ON CONFLICT DO NOTHING
    RETURNING open_event_id, term_id, campus_code, index_number, dedupe_key
),
limits AS MATERIALIZED (
    SELECT id, most FROM jsonb_to_recordset(:limits::jsonb) AS l(id bigint, most bigint)
),
fanned_out AS (
    INSERT INTO open_event_notifications (
        open_event_id, subscription_id, dedupe_key, fanout_status, fanout_attempts, created_at)
    SELECT event.open_event_id, s.subscription_id, event.dedupe_key, 'pending', 0, statement_timestamp()
    FROM event
    JOIN subscriptions AS s USING (term_id, campus_code, index_number)
    LEFT JOIN limits ON limits.id = s.subscription_id
    WHERE lower(s.status) = 'active' AND (limits.most IS NULL OR limits.most > {had})
    ORDER BY s.subscription_id
    RETURNING 1
)
SELECT open_event_id, (SELECT count(*) FROM fanned_out) AS notifications FROM event

-- name: mark_section
-- What the section is now.
UPDATE sections
SET open_status = :status
WHERE term_id = :term_id AND campus_code = :campus_code AND index_number = :index_number
  AND open_status IS DISTINCT FROM :status

-- name: mark_subscriptions
-- It is not open any more, and whoever was told so will be told again. In id order, as workers settle.
WITH known AS MATERIALIZED (
    SELECT subscription_id
    FROM subscriptions
    WHERE term_id = :term_id AND campus_code = :campus_code AND index_number = :index_number
      AND last_known_section_status IS DISTINCT FROM :status
    ORDER BY subscription_id
    FOR UPDATE
)
UPDATE subscriptions
SET last_known_section_status = :status
FROM known
WHERE subscriptions.subscription_id = known.subscription_id
