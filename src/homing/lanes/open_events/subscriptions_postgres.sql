-- Subscriptions on PostgreSQL: made, confirmed, changed, ended. `:order` is a JSON object.

-- fragment: order
wanted AS MATERIALIZED (
    SELECT *
    FROM jsonb_to_record(:order::jsonb) AS o(
        term_id text, campus_code text, index_number text, contact_value text, contact_hash text, locale text,
        unsubscribe_token text, metadata text)
)

-- fragment: of_contact
-- All of one contact. Another program may leave the hash out, or make it in its own way: then the address tells.
SELECT subscription_id FROM subscriptions WHERE contact_hash = :contact_hash
UNION
SELECT subscription_id FROM subscriptions WHERE lower(trim(contact_value)) = lower(trim(:contact))

-- fragment: kept
-- The types of event that the history takes: another program's may have a rule about them.
(SELECT json_array_elements_text(:kept::json))

-- fragment: ending
-- An event after which a link to confirm that was sent before is void.
(ending.event_type = 'unsubscribed'
 OR ending.event_type = 'status_changed' AND replace(ending.payload, ' ', '') LIKE '%"to":"pending"%')

-- fragment: last_ending
coalesce((SELECT max(ending.event_id) FROM subscription_events AS ending
          WHERE ending.subscription_id = s.subscription_id AND {ending}), 0)

-- fragment: is_void
EXISTS (SELECT 1 FROM subscription_events AS ending
        WHERE ending.subscription_id = last.subscription_id AND ending.event_id > last.event_id AND {ending})

-- fragment: known
-- The subscription of this contact to this section. Where another program has made several, one that lives. What
-- was suppressed when it was ended is that again when it is asked for: nobody but an operator may undo it.
SELECT s.subscription_id, lower(s.status) AS status,
    CASE WHEN replace((SELECT e.payload FROM subscription_events AS e
                       WHERE e.subscription_id = s.subscription_id AND e.event_type = 'unsubscribed'
                       ORDER BY e.event_id DESC LIMIT 1), ' ', '') LIKE '%"from":"suppressed"%'
         THEN 'suppressed' ELSE 'pending' END AS again
FROM wanted
JOIN subscriptions AS s USING (term_id, campus_code, index_number)
JOIN ({of_contact}) AS theirs USING (subscription_id)
WHERE lower(s.contact_type) = 'email'
ORDER BY lower(s.status) = 'unsubscribed', s.subscription_id
LIMIT 1

-- fragment: shown
s.subscription_id, s.section_id, s.term_id, s.campus_code, s.index_number, s.contact_type, s.contact_value, s.locale,
    lower(s.status) AS status, s.is_verified, s.created_at, s.updated_at, s.last_notified_at,
    s.last_known_section_status, s.unsubscribe_token, s.metadata

-- fragment: described
-- With what is known of its section.
SELECT {shown}, {last_ending} AS last_ending, section.section_number, course.course_string, course.title
FROM subscriptions AS s
LEFT JOIN LATERAL (
    SELECT section_number, course_id FROM sections
    WHERE term_id = s.term_id AND campus_code = s.campus_code AND index_number = s.index_number
    ORDER BY section_id LIMIT 1
) AS section ON true
LEFT JOIN courses AS course ON course.course_id = section.course_id

-- name: lock_contact
-- One request of a contact at a time, in all processes: each sees what the one before it has written.
SELECT pg_advisory_xact_lock(hashtextextended('homing subscriptions ' || :contact_hash, 0))

-- name: section_id
SELECT min(section_id) AS section_id
FROM sections
WHERE term_id = :term_id AND campus_code = :campus_code AND index_number = :index_number

-- name: subscribe
-- A new one, or one that was ended and is asked for again: both wait to be confirmed. Any other stays as it is, also
-- one that a key of another program knows and we do not.
WITH {order},
known AS MATERIALIZED ({known}),
made AS (
    INSERT INTO subscriptions (
        section_id, -- given: section_id
        locale, -- given: locale
        metadata, -- given: metadata
        term_id, campus_code, index_number, contact_type, contact_value, contact_hash, status, is_verified,
        unsubscribe_token, created_at, updated_at)
    SELECT
        :section_id::bigint, -- given: section_id
        locale, -- given: locale
        metadata, -- given: metadata
        term_id, campus_code, index_number, 'email', contact_value, contact_hash, 'pending', 0, unsubscribe_token,
        statement_timestamp(), statement_timestamp()
    FROM wanted
    WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT DO NOTHING
    RETURNING subscription_id
),
revived AS (
    UPDATE subscriptions
    SET status = known.again, is_verified = 0, contact_value = wanted.contact_value,
        locale = coalesce(wanted.locale, subscriptions.locale), metadata = coalesce(wanted.metadata, '{}'),
        updated_at = statement_timestamp()
    FROM wanted, known
    WHERE subscriptions.subscription_id = known.subscription_id AND known.status = 'unsubscribed'
    RETURNING subscriptions.subscription_id, known.again
)
INSERT INTO subscription_events (subscription_id, event_type, payload, created_at)
SELECT subscription_id, 'created', '{}', statement_timestamp() FROM made WHERE 'created' IN {kept}
UNION ALL
SELECT subscription_id, 'status_changed',
    '{"from":"unsubscribed","to":"' || again || '","reason":"subscribed_again"}', statement_timestamp()
FROM revived
WHERE 'status_changed' IN {kept}

-- name: reserve_confirmation
-- The right to send a confirmation: at once, or as soon as the last one of this address is long enough ago; not
-- where one is on its way already, for it confirms everything that waits, unless its link is void by now.
WITH {order},
waiting AS MATERIALIZED (SELECT subscription_id FROM ({known}) AS known WHERE status = 'pending'),
last AS MATERIALIZED (
    SELECT e.event_id, e.subscription_id, e.created_at AS sent_at
    FROM ({of_contact}) AS theirs JOIN subscription_events AS e USING (subscription_id)
    WHERE e.event_type = 'verification_sent'
    ORDER BY e.created_at DESC NULLS LAST, e.event_id DESC
    LIMIT 1
)
INSERT INTO subscription_events (subscription_id, event_type, payload, created_at)
SELECT waiting.subscription_id, 'verification_sent', '{}',
    greatest(statement_timestamp(), last.sent_at + make_interval(secs => :pause_seconds))
FROM waiting LEFT JOIN last ON true
WHERE last.sent_at IS NULL OR last.sent_at <= statement_timestamp() OR {is_void}
RETURNING event_id, subscription_id, created_at, created_at > statement_timestamp() AS later

-- name: forget_confirmation
DELETE FROM subscription_events WHERE event_id = :event_id

-- name: get
{described}
WHERE s.subscription_id = :id

-- name: by_token
{described}
WHERE s.unsubscribe_token = :token
ORDER BY s.subscription_id
LIMIT 1

-- name: waiting_of_contact
-- What one confirmation confirms.
{described}
WHERE s.subscription_id IN ({of_contact}) AND lower(s.contact_type) = 'email' AND lower(s.status) = 'pending'
ORDER BY s.subscription_id
LIMIT :limit

-- name: page
SELECT {shown}
FROM subscriptions AS s
WHERE s.subscription_id < coalesce(:before, 9223372036854775807)
  AND (:status::text IS NULL OR lower(s.status) = :status)
ORDER BY s.subscription_id DESC
LIMIT :limit

-- name: page_of_contact
SELECT {shown}
FROM subscriptions AS s
WHERE s.subscription_id IN ({of_contact}) AND s.subscription_id < coalesce(:before, 9223372036854775807)
  AND (:status::text IS NULL OR lower(s.status) = :status)
  AND (:term_id::text IS NULL
       OR (s.term_id, s.campus_code, s.index_number) = (:term_id, :campus_code, :index_number))
ORDER BY s.subscription_id DESC
LIMIT :limit

-- name: page_of_section
SELECT {shown}
FROM subscriptions AS s
WHERE s.term_id = :term_id AND s.campus_code = :campus_code AND s.index_number = :index_number
  AND s.subscription_id < coalesce(:before, 9223372036854775807)
  AND (:status::text IS NULL OR lower(s.status) = :status)
ORDER BY s.subscription_id DESC
LIMIT :limit

-- name: history
SELECT event_id, event_type, section_status_snapshot, payload, created_at
FROM subscription_events
WHERE subscription_id = :id
ORDER BY event_id DESC
LIMIT :limit

-- name: confirm
WITH chosen AS MATERIALIZED (
    SELECT subscription_id
    FROM subscriptions
    WHERE subscription_id IN (SELECT value::bigint FROM jsonb_array_elements_text(:ids::jsonb))
      AND lower(btrim(contact_value)) = lower(btrim(:contact)) AND lower(status) = 'pending'
    ORDER BY subscription_id
    FOR UPDATE
),
confirmed AS (
    UPDATE subscriptions
    SET status = 'active', is_verified = 1, updated_at = statement_timestamp()
    FROM chosen
    WHERE subscriptions.subscription_id = chosen.subscription_id
    RETURNING subscriptions.subscription_id
),
told AS (
    INSERT INTO subscription_events (subscription_id, event_type, payload, created_at)
    SELECT subscription_id, event.type, event.payload, statement_timestamp()
    FROM confirmed
    CROSS JOIN (VALUES (1, 'verified', '{}'), (2, 'status_changed', '{"from":"pending","to":"active"}'))
        AS event(place, type, payload)
    WHERE event.type IN {kept}
    ORDER BY subscription_id, place
)
SELECT subscription_id FROM confirmed ORDER BY subscription_id

-- name: change_status
WITH changed AS (
    UPDATE subscriptions
    SET status = :new, updated_at = statement_timestamp()
    WHERE subscription_id = :id AND lower(status) = :old
    RETURNING subscription_id, last_known_section_status
),
told AS (
    INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot, payload, created_at)
    SELECT subscription_id, 'status_changed', last_known_section_status, :payload, statement_timestamp()
    FROM changed
    WHERE 'status_changed' IN {kept}
)
SELECT subscription_id FROM changed

-- name: unsubscribe
-- For good: also what is queued ends here. What a worker has in hand it looks at once more before it sends.
WITH known AS MATERIALIZED (
    SELECT subscription_id, lower(status) AS status, last_known_section_status
    FROM subscriptions
    WHERE subscription_id = :id
    FOR UPDATE
),
ended AS (
    UPDATE subscriptions
    SET status = 'unsubscribed', updated_at = statement_timestamp()
    FROM known
    WHERE subscriptions.subscription_id = known.subscription_id AND known.status <> 'unsubscribed'
    RETURNING subscriptions.subscription_id, known.status, known.last_known_section_status
),
queued AS MATERIALIZED (
    SELECT notification_id, open_event_id, subscription_id
    FROM open_event_notifications
    WHERE subscription_id = :id AND lower(fanout_status) = 'pending' AND locked_by IS NULL
    ORDER BY notification_id
    FOR UPDATE
),
skipped AS (
    UPDATE open_event_notifications AS n
    SET fanout_status = 'skipped', fanout_attempts = least(coalesce(n.fanout_attempts, 0), 30000) + 1, last_attempt_at = statement_timestamp(),
        error = '{"code":"unsubscribed","message":"the subscriber has unsubscribed"}',
        locked_at = NULL, due_at = NULL, due_attempts = NULL, lock_written_at = NULL
    FROM queued
    WHERE n.notification_id = queued.notification_id
),
told AS (
    INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot, payload, created_at)
    SELECT subscription_id, 'unsubscribed', last_known_section_status,
        jsonb_build_object('from', status, 'via', :via::text)::text, statement_timestamp()
    FROM ended
    WHERE 'unsubscribed' IN {kept}
    UNION ALL
    SELECT subscription_id, 'notify_failed', NULL,
        jsonb_build_object('notificationId', notification_id, 'openEventId', open_event_id, 'code', 'unsubscribed')::text,
        statement_timestamp()
    FROM queued
    WHERE 'notify_failed' IN {kept}
)
SELECT (SELECT count(*) FROM ended) AS ended, (SELECT count(*) FROM queued) AS skipped

-- name: change
-- Only where nobody has changed it since it was read.
UPDATE subscriptions
SET metadata = :metadata, locale = :locale, updated_at = statement_timestamp()
WHERE subscription_id = :id AND metadata IS NOT DISTINCT FROM :old_metadata AND locale IS NOT DISTINCT FROM :old_locale
RETURNING subscription_id

-- name: look_again
-- A mail that waits for a window or a snooze is looked at again: perhaps it waits no more.
UPDATE open_event_notifications
SET due_at = NULL, due_attempts = NULL
WHERE subscription_id = :id AND lower(fanout_status) = 'pending' AND due_at IS NOT NULL
  AND fanout_attempts = 0 AND locked_by IS NULL
