-- Subscriptions on SQLite: the same queries by the same names. A statement here writes one table, so some are
-- several, and the last one answers; every writing transaction runs under BEGIN IMMEDIATE.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: order
wanted AS MATERIALIZED (
    SELECT json_extract(:order, '$.term_id') AS term_id, json_extract(:order, '$.campus_code') AS campus_code,
        json_extract(:order, '$.index_number') AS index_number,
        json_extract(:order, '$.contact_value') AS contact_value,
        json_extract(:order, '$.contact_hash') AS contact_hash, json_extract(:order, '$.locale') AS locale,
        json_extract(:order, '$.unsubscribe_token') AS unsubscribe_token,
        json_extract(:order, '$.metadata') AS metadata
)

-- fragment: of_contact
-- All of one contact. Another program may leave the hash out, or make it in its own way: then the address tells.
SELECT subscription_id FROM subscriptions WHERE contact_hash = :contact_hash
UNION
SELECT subscription_id FROM subscriptions WHERE lower(trim(contact_value)) = lower(trim(:contact))

-- fragment: kept
-- The types of event that the history takes: another program's may have a rule about them.
(SELECT value FROM json_each(:kept))

-- fragment: ending
-- An event after which a link to confirm that was sent before is void.
(ending.event_type = 'unsubscribed'
 OR ending.event_type = 'status_changed' AND replace(ending.payload, ' ', '') LIKE '%"to":"pending"%')

-- fragment: last_ending
coalesce((SELECT max(ending.rowid) FROM subscription_events AS ending
          WHERE ending.subscription_id = s.subscription_id AND {ending}), 0)

-- fragment: is_void
EXISTS (SELECT 1 FROM subscription_events AS ending
        WHERE ending.subscription_id = last.subscription_id AND ending.rowid > last.event_id AND {ending})

-- fragment: known
-- The subscription of this contact to this section. Where another program has made several, one that lives. What
-- was suppressed when it was ended is that again when it is asked for: nobody but an operator may undo it.
SELECT s.subscription_id, lower(s.status) AS status,
    CASE WHEN replace((SELECT e.payload FROM subscription_events AS e
                       WHERE e.subscription_id = s.subscription_id AND e.event_type = 'unsubscribed'
                       ORDER BY e.rowid DESC LIMIT 1), ' ', '') LIKE '%"from":"suppressed"%'
         THEN 'suppressed' ELSE 'pending' END AS again
FROM wanted
CROSS JOIN ({of_contact}) AS theirs
CROSS JOIN subscriptions AS s ON s.subscription_id = theirs.subscription_id AND s.term_id = wanted.term_id
    AND s.campus_code = wanted.campus_code AND s.index_number = wanted.index_number
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
LEFT JOIN sections AS section ON section.section_id = (
    SELECT min(section_id) FROM sections AS x
    WHERE x.term_id = s.term_id AND x.campus_code = s.campus_code AND x.index_number = s.index_number)
LEFT JOIN courses AS course ON course.course_id = section.course_id

-- name: section_id
SELECT min(section_id) AS section_id
FROM sections
WHERE term_id = :term_id AND campus_code = :campus_code AND index_number = :index_number

-- name: subscribe
-- A new one, or one that was ended and is asked for again: both wait to be confirmed. Any other stays as it is, also
-- one that a key of another program knows and we do not.
WITH {order}, known AS MATERIALIZED ({known})
INSERT INTO subscription_events (subscription_id, event_type, payload, created_at)
SELECT subscription_id, 'status_changed',
    '{"from":"unsubscribed","to":"' || again || '","reason":"subscribed_again"}', {now}
FROM known
WHERE status = 'unsubscribed' AND 'status_changed' IN {kept};

WITH {order}, known AS MATERIALIZED ({known})
UPDATE subscriptions
SET status = known.again, is_verified = 0, contact_value = wanted.contact_value,
    locale = coalesce(wanted.locale, subscriptions.locale), metadata = coalesce(wanted.metadata, '{}'),
    updated_at = {now}
FROM wanted, known
WHERE subscriptions.subscription_id = known.subscription_id AND known.status = 'unsubscribed';

WITH {order}, known AS MATERIALIZED ({known})
INSERT INTO subscriptions (
    section_id, -- given: section_id
    locale, -- given: locale
    metadata, -- given: metadata
    term_id, campus_code, index_number, contact_type, contact_value, contact_hash, status, is_verified,
    unsubscribe_token, created_at, updated_at)
SELECT
    :section_id, -- given: section_id
    locale, -- given: locale
    metadata, -- given: metadata
    term_id, campus_code, index_number, 'email', contact_value, contact_hash, 'pending', 0, unsubscribe_token,
    {now}, {now}
FROM wanted
WHERE NOT EXISTS (SELECT 1 FROM known)
ON CONFLICT DO NOTHING;

INSERT INTO subscription_events (subscription_id, event_type, payload, created_at)
SELECT last_insert_rowid(), 'created', '{}', {now} WHERE changes() = 1 AND 'created' IN {kept}

-- name: reserve_confirmation
-- The right to send a confirmation: at once, or as soon as the last one of this address is long enough ago; not
-- where one is on its way already, for it confirms everything that waits, unless its link is void by now.
WITH {order},
waiting AS MATERIALIZED (SELECT subscription_id FROM ({known}) WHERE status = 'pending'),
last AS MATERIALIZED (
    SELECT e.rowid AS event_id, e.subscription_id,
        coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', e.created_at),
                 strftime('%Y-%m-%dT%H:%M:%fZ', instant_julianday(e.created_at))) AS sent_at
    FROM ({of_contact}) AS theirs
    CROSS JOIN subscription_events AS e ON e.subscription_id = theirs.subscription_id
    WHERE e.event_type = 'verification_sent'
    ORDER BY sent_at DESC, e.rowid DESC
    LIMIT 1
)
INSERT INTO subscription_events (subscription_id, event_type, payload, created_at)
SELECT waiting.subscription_id, 'verification_sent', '{}',
    max({now}, coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', last.sent_at, printf('%+.3f seconds', :pause_seconds)), ''))
FROM waiting LEFT JOIN last ON true
WHERE last.sent_at IS NULL OR last.sent_at <= {now} OR {is_void}
RETURNING rowid AS event_id, subscription_id, created_at, created_at > {now} AS later

-- name: forget_confirmation
DELETE FROM subscription_events WHERE rowid = :event_id

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
  AND (:status IS NULL OR lower(s.status) = :status)
ORDER BY s.subscription_id DESC
LIMIT :limit

-- name: page_of_contact
SELECT {shown}
FROM subscriptions AS s
WHERE s.subscription_id IN ({of_contact}) AND s.subscription_id < coalesce(:before, 9223372036854775807)
  AND (:status IS NULL OR lower(s.status) = :status)
  AND (:term_id IS NULL OR s.term_id = :term_id AND s.campus_code = :campus_code AND s.index_number = :index_number)
ORDER BY s.subscription_id DESC
LIMIT :limit

-- name: page_of_section
SELECT {shown}
FROM subscriptions AS s
WHERE s.term_id = :term_id AND s.campus_code = :campus_code AND s.index_number = :index_number
  AND s.subscription_id < coalesce(:before, 9223372036854775807)
  AND (:status IS NULL OR lower(s.status) = :status)
ORDER BY s.subscription_id DESC
LIMIT :limit

-- name: history
SELECT rowid AS event_id, event_type, section_status_snapshot, payload, created_at
FROM subscription_events
WHERE subscription_id = :id
ORDER BY rowid DESC
LIMIT :limit

-- name: confirm
INSERT INTO subscription_events (subscription_id, event_type, payload, created_at)
SELECT s.subscription_id, event.type, event.payload, {now}
FROM subscriptions AS s
CROSS JOIN (
    SELECT 1 AS place, 'verified' AS type, '{}' AS payload
    UNION ALL SELECT 2, 'status_changed', '{"from":"pending","to":"active"}'
) AS event
WHERE s.subscription_id IN (SELECT value FROM json_each(:ids))
  AND lower(trim(s.contact_value)) = lower(trim(:contact)) AND lower(s.status) = 'pending' AND event.type IN {kept}
ORDER BY s.subscription_id, event.place;

UPDATE subscriptions
SET status = 'active', is_verified = 1, updated_at = {now}
WHERE subscription_id IN (SELECT value FROM json_each(:ids))
  AND lower(trim(contact_value)) = lower(trim(:contact)) AND lower(status) = 'pending'
RETURNING subscription_id

-- name: change_status
INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot, payload, created_at)
SELECT subscription_id, 'status_changed', last_known_section_status, :payload, {now}
FROM subscriptions
WHERE subscription_id = :id AND lower(status) = :old AND 'status_changed' IN {kept};

UPDATE subscriptions
SET status = :new, updated_at = {now}
WHERE subscription_id = :id AND lower(status) = :old
RETURNING subscription_id

-- name: unsubscribe
-- For good: also what is queued ends here. What a worker has in hand it looks at once more before it sends.
INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot, payload, created_at)
SELECT subscription_id, 'unsubscribed', last_known_section_status,
    json_object('from', lower(status), 'via', :via), {now}
FROM subscriptions
WHERE subscription_id = :id AND lower(status) <> 'unsubscribed' AND 'unsubscribed' IN {kept};

UPDATE subscriptions
SET status = 'unsubscribed', updated_at = {now}
WHERE subscription_id = :id AND lower(status) <> 'unsubscribed';

INSERT INTO subscription_events (subscription_id, event_type, payload, created_at)
SELECT subscription_id, 'notify_failed',
    json_object('notificationId', notification_id, 'openEventId', open_event_id, 'code', 'unsubscribed'), {now}
FROM open_event_notifications
WHERE subscription_id = :id AND lower(fanout_status) = 'pending' AND locked_by IS NULL AND 'notify_failed' IN {kept};

UPDATE open_event_notifications
SET fanout_status = 'skipped', fanout_attempts = min(fanout_attempts, 30000) + 1, last_attempt_at = {now},
    error = '{"code":"unsubscribed","message":"the subscriber has unsubscribed"}',
    locked_at = NULL, due_at = NULL, due_attempts = NULL, lock_written_at = NULL
WHERE subscription_id = :id AND lower(fanout_status) = 'pending' AND locked_by IS NULL;

SELECT changes() AS skipped

-- name: change
-- Only where nobody has changed it since it was read.
UPDATE subscriptions
SET metadata = :metadata, locale = :locale, updated_at = {now}
WHERE subscription_id = :id AND metadata IS :old_metadata AND locale IS :old_locale
RETURNING subscription_id

-- name: look_again
-- A mail that waits for a window or a snooze is looked at again: perhaps it waits no more.
UPDATE open_event_notifications
SET due_at = NULL, due_attempts = NULL
WHERE subscription_id = :id AND lower(fanout_status) = 'pending' AND due_at IS NOT NULL
  AND fanout_attempts = 0 AND locked_by IS NULL
