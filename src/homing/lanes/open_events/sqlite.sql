-- open_event_notifications on SQLite: the same queries by the same names. FOR UPDATE SKIP LOCKED is missing; every
-- writing statement runs under BEGIN IMMEDIATE instead, so there is only one at a time. The file is another program's
-- too: what is written is little, and what can be read before or after is read outside. Times of ours are ISO text,
-- made by strftime; those of others are any ISO text, and may be nonsense.

-- fragment: now
-- In a query of its own, which is asked once and not for each row.
(SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))

-- fragment: lock_end
(SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :lock_ttl_seconds)))

-- fragment: unlocked
-- A lock whose time nobody can read, or that lies far ahead, would be for ever, so it is none. SQLite itself does not
-- read every ISO form.
(locked_at IS NULL OR abs(coalesce(julianday(locked_at), iso_julianday(locked_at), 0) - julianday('now'))
                      >= :lock_ttl_seconds / 86400.0)

-- fragment: was_reset
-- As the index has it.
(due_attempts IS NOT fanout_attempts OR lock_written_at IS NOT NULL AND locked_at IS NULL
    OR lock_written_at IS NULL AND error IS NULL)

-- fragment: expired
coalesce(julianday(e.event_at), iso_julianday(e.event_at), julianday(e.created_at))
        <= julianday('now') - :expire_after_seconds / 86400.0

-- fragment: attempts
max(0, CAST(coalesce(n.fanout_attempts, 0) AS INTEGER))

-- fragment: is_mine
n.claim_seq = b.fence AND n.locked_by = :owner AND n.locked_at = n.lock_written_at AND lower(n.fanout_status) = 'pending'

-- fragment: fences
batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)

-- fragment: notified
(SELECT count(*)
 FROM subscription_events AS told
 WHERE told.subscription_id = s.subscription_id AND told.event_type = 'notify_sent'
   AND told.event_id > coalesce((SELECT max(changed.event_id) FROM subscription_events AS changed
                                 WHERE changed.subscription_id = s.subscription_id
                                   AND changed.event_type = 'status_changed'), 0))

-- fragment: listed
-- As text where it is read as text, whatever another program has put there.
n.notification_id AS id, n.open_event_id, n.subscription_id, n.dedupe_key, lower(n.fanout_status) AS status,
    {attempts} AS attempts, n.last_attempt_at, n.locked_by, n.locked_at, CAST(n.error AS TEXT) AS error, n.created_at,
    CASE WHEN lower(n.fanout_status) = 'pending' AND n.lock_written_at IS NULL
              AND n.due_attempts IS n.fanout_attempts AND n.error IS NOT NULL THEN n.due_at END AS due_at,
    e.term_id, e.campus_code, e.index_number, e.status_after, e.event_at, e.trace_id,
    s.contact_type, CAST(s.contact_value AS TEXT) AS contact_value, s.status AS subscription_status

-- fragment: listed_from
open_event_notifications AS n
    LEFT JOIN open_events AS e ON e.open_event_id = n.open_event_id
    LEFT JOIN subscriptions AS s ON s.subscription_id = n.subscription_id

-- fragment: waited
SELECT notification_id
FROM open_event_notifications INDEXED BY homing_notifications_waiting
WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND due_at <= {now} AND {unlocked}
ORDER BY due_at, notification_id
LIMIT :limit

-- fragment: reset
SELECT notification_id
FROM open_event_notifications INDEXED BY homing_notifications_reset
WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND {was_reset} AND due_at > {now} AND {unlocked}
ORDER BY notification_id
LIMIT :limit

-- fragment: fresh
SELECT notification_id
FROM open_event_notifications INDEXED BY homing_notifications_new
WHERE lower(fanout_status) = 'pending' AND due_at IS NULL AND {unlocked}
ORDER BY notification_id
LIMIT :limit

-- name: claim
-- What has waited goes first: see there.
UPDATE open_event_notifications
SET claim_seq = coalesce(claim_seq, 0) + 1,
    locked_by = :owner,
    locked_at = {now},
    lock_written_at = {now},
    due_at = {lock_end},
    due_attempts = fanout_attempts
WHERE notification_id IN (
    SELECT notification_id
    FROM (SELECT 1 AS place, notification_id FROM ({waited})
          UNION ALL SELECT 2, notification_id FROM ({reset})
          UNION ALL SELECT 3, notification_id FROM ({fresh}))
    ORDER BY place
    LIMIT :limit)
RETURNING notification_id AS id, claim_seq AS fence, max(0, CAST(coalesce(fanout_attempts, 0) AS INTEGER)) AS attempts,
    open_event_id, subscription_id, CAST(dedupe_key AS TEXT) AS dedupe_key,
    error IS NOT NULL AND CAST(coalesce(fanout_attempts, 0) AS INTEGER) > 0 AS has_error, locked_at AS claimed_at,
    (julianday('now') - coalesce(julianday(created_at), iso_julianday(created_at))) * 86400.0 AS age

-- name: preview
SELECT notification_id AS id
FROM (SELECT 1 AS place, notification_id FROM ({waited})
      UNION ALL SELECT 2, notification_id FROM ({reset})
      UNION ALL SELECT 3, notification_id FROM ({fresh}))
ORDER BY place
LIMIT :limit

-- name: subscribers
-- As text, whatever another program has put there.
SELECT n.notification_id AS id,
    {notified} AS notified,
    (SELECT count(*)
     FROM (SELECT 1
           FROM open_event_notifications AS other
           WHERE other.subscription_id = n.subscription_id AND lower(other.fanout_status) = 'pending'
             AND other.notification_id < n.notification_id
           LIMIT :most_counted))
    + (SELECT count(*)
       FROM (SELECT other.locked_by, other.locked_at
             FROM open_event_notifications AS other
             WHERE other.subscription_id = n.subscription_id AND lower(other.fanout_status) = 'pending'
               AND other.notification_id > n.notification_id
             ORDER BY other.notification_id
             LIMIT :most_counted) AS other
       WHERE other.locked_at IS NOT NULL
         AND (other.locked_by IS NOT n.locked_by OR other.locked_at IS NOT n.locked_at)) AS ahead,
    CAST(s.contact_type AS TEXT), CAST(s.contact_value AS TEXT), CAST(s.contact_hash AS TEXT), CAST(s.locale AS TEXT),
    CAST(s.status AS TEXT), CAST(s.last_known_section_status AS TEXT), CAST(s.metadata AS TEXT), s.subscription_id
FROM json_each(:ids) AS b
CROSS JOIN open_event_notifications AS n ON n.notification_id = b.value
LEFT JOIN subscriptions AS s ON s.subscription_id = n.subscription_id

-- name: events
SELECT e.open_event_id, e.section_id, CAST(e.term_id AS TEXT), CAST(e.campus_code AS TEXT),
    CAST(e.index_number AS TEXT), CAST(e.status_before AS TEXT), CAST(e.status_after AS TEXT),
    CAST(e.event_at AS TEXT), CAST(e.detected_by AS TEXT), CAST(e.trace_id AS TEXT), CAST(e.payload AS TEXT),
    {expired} AS expired,
    CAST(s.section_number AS TEXT), CAST(coalesce(s.subject_code, c.subject_code) AS TEXT),
    CAST(c.course_number AS TEXT), CAST(c.course_string AS TEXT), CAST(c.title AS TEXT),
    (SELECT json_group_array(json_object('day', CAST(m.meeting_day AS TEXT), 'start', CAST(m.start_minutes AS TEXT),
            'end', CAST(m.end_minutes AS TEXT), 'campus', CAST(m.campus_abbrev AS TEXT),
            'building', CAST(m.building_code AS TEXT), 'room', CAST(m.room_number AS TEXT)))
     FROM (SELECT * FROM section_meetings
           WHERE section_id = coalesce(s.section_id, e.section_id) ORDER BY meeting_id) AS m) AS meetings
FROM json_each(:ids) AS b
CROSS JOIN open_events AS e ON e.open_event_id = b.value
LEFT JOIN sections AS s ON s.section_id = coalesce(e.section_id, (
    SELECT same.section_id FROM sections AS same
    WHERE same.term_id = e.term_id AND same.campus_code = e.campus_code AND same.index_number = e.index_number
    ORDER BY same.section_id LIMIT 1))
LEFT JOIN courses AS c ON c.course_id = s.course_id

-- name: standings
SELECT n.notification_id AS id,
    CASE WHEN lower(n.fanout_status) = 'pending' AND n.locked_by = :owner AND n.locked_at = n.lock_written_at
         THEN n.claim_seq END AS fence,
    s.subscription_id IS NOT NULL AS subscribed, CAST(s.contact_value AS TEXT), CAST(s.status AS TEXT),
    CAST(s.metadata AS TEXT), {expired} AS expired
FROM json_each(:ids) AS b
CROSS JOIN open_event_notifications AS n ON n.notification_id = b.value
LEFT JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
LEFT JOIN open_events AS e ON e.open_event_id = n.open_event_id

-- name: settle
-- In one transaction, the notifications last: until then they say which of them are ours. The history comes first,
-- because it is counted in the statements after it.
INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot, payload, created_at)
SELECT s.subscription_id, b.told, b.snapshot, b.story, {now}
FROM (SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
          json_extract(value, '$.told') AS told, json_extract(value, '$.snapshot') AS snapshot,
          json_extract(value, '$.story') AS story
      FROM json_each(:batch)) AS b
CROSS JOIN open_event_notifications AS n ON n.notification_id = b.id
CROSS JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
WHERE b.told IS NOT NULL AND {is_mine};

INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot, payload, created_at)
SELECT DISTINCT s.subscription_id, 'status_changed', b.snapshot,
    '{"from":"active","to":"paused","reason":"max_notifications"}', {now}
FROM (SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
          json_extract(value, '$.most') AS most, json_extract(value, '$.pause') AS pause,
          json_extract(value, '$.snapshot') AS snapshot
      FROM json_each(:batch)) AS b
CROSS JOIN open_event_notifications AS n ON n.notification_id = b.id
CROSS JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
WHERE (b.pause OR b.most IS NOT NULL) AND {is_mine} AND lower(s.status) = 'active'
  AND (b.pause OR {notified} >= b.most);

-- A change of status that is younger than the last notification is the one above.
UPDATE subscriptions
SET last_notified_at = CASE WHEN b.sent THEN {now} ELSE last_notified_at END,
    last_known_section_status = coalesce(b.snapshot, last_known_section_status),
    status = CASE WHEN lower(status) = 'active' AND b.limited AND EXISTS (
            SELECT 1 FROM subscription_events AS changed
            WHERE changed.subscription_id = subscriptions.subscription_id AND changed.event_type = 'status_changed'
              AND changed.event_id > (SELECT max(told.event_id) FROM subscription_events AS told
                                      WHERE told.subscription_id = subscriptions.subscription_id
                                        AND told.event_type IN ('notify_sent', 'notify_failed')))
        THEN 'paused' ELSE status END,
    updated_at = {now}
FROM (SELECT n.subscription_id, max(b.most IS NOT NULL) AS sent, max(b.pause OR b.most IS NOT NULL) AS limited,
          max(CASE WHEN b.most IS NOT NULL THEN b.snapshot END) AS snapshot
      FROM (SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
                json_extract(value, '$.most') AS most, json_extract(value, '$.pause') AS pause,
                json_extract(value, '$.snapshot') AS snapshot
            FROM json_each(:batch)) AS b
      CROSS JOIN open_event_notifications AS n ON n.notification_id = b.id
      WHERE (b.pause OR b.most IS NOT NULL) AND {is_mine}
      GROUP BY n.subscription_id) AS b
WHERE subscriptions.subscription_id = b.subscription_id;

UPDATE open_event_notifications AS n
SET fanout_status = b.status,
    fanout_attempts = CASE b.charged WHEN 0 THEN n.fanout_attempts ELSE {attempts} + b.charged END,
    last_attempt_at = CASE b.charged WHEN 0 THEN n.last_attempt_at ELSE {now} END,
    error = coalesce(b.error, n.error),
    delivered_by = CASE WHEN b.status = 'sent' THEN :owner ELSE n.delivered_by END,
    delivered_millis = coalesce(b.millis, n.delivered_millis),
    locked_by = NULL,
    locked_at = NULL,
    lock_written_at = NULL,
    due_at = CASE WHEN b.status = 'pending' AND b.delay > 0
                  THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', b.delay)) END,
    due_attempts = CASE WHEN b.status = 'pending' AND b.delay > 0
        THEN CASE b.charged WHEN 0 THEN n.fanout_attempts ELSE {attempts} + b.charged END END
FROM (SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
          json_extract(value, '$.status') AS status, json_extract(value, '$.charged') AS charged,
          json_extract(value, '$.delay') AS delay, json_extract(value, '$.error') AS error,
          json_extract(value, '$.millis') AS millis
      FROM json_each(:batch)) AS b
WHERE n.notification_id = b.id AND {is_mine}
RETURNING notification_id AS id

-- name: confirm
WITH {fences}
SELECT n.notification_id AS id
FROM batch AS b CROSS JOIN open_event_notifications AS n ON n.notification_id = b.id
WHERE n.claim_seq = b.fence AND n.lock_written_at IS NULL

-- name: renew
WITH {fences}
UPDATE open_event_notifications AS n
SET locked_at = {now}, lock_written_at = {now}, due_at = {lock_end}
FROM batch AS b
WHERE n.notification_id = b.id AND {is_mine}
RETURNING notification_id AS id

-- name: release
WITH {fences}
UPDATE open_event_notifications AS n
SET locked_by = NULL, locked_at = NULL, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
FROM batch AS b
WHERE n.notification_id = b.id AND {is_mine}
RETURNING notification_id AS id

-- name: get
SELECT {listed}, CAST(e.payload AS TEXT) AS event_payload, s.locale, CAST(s.metadata AS TEXT) AS metadata, s.last_notified_at,
    s.last_known_section_status, n.claim_seq, n.delivered_by, n.delivered_millis
FROM {listed_from}
WHERE n.notification_id = :id

-- name: page
SELECT {listed}
FROM {listed_from}
WHERE (:status IS NULL OR lower(n.fanout_status) = :status) AND (:before IS NULL OR n.notification_id < :before)
ORDER BY n.notification_id DESC
LIMIT :limit

-- name: page_ended
-- The states are named, so that the planner knows its small index applies.
SELECT {listed}
FROM {listed_from}
WHERE lower(n.fanout_status) IN ('skipped', 'failed', 'expired') AND lower(n.fanout_status) = :status
  AND (:before IS NULL OR n.notification_id < :before)
ORDER BY n.notification_id DESC
LIMIT :limit

-- name: ended_ids
SELECT notification_id AS id
FROM open_event_notifications
WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired') AND lower(fanout_status) = :status
  AND notification_id > :after
  AND (:code IS NULL OR instr(replace(error, ' ', ''), '"code":"' || :code || '"') > 0)
ORDER BY notification_id
LIMIT :limit

-- name: requeue
UPDATE open_event_notifications
SET fanout_status = 'pending', fanout_attempts = 0, error = NULL, locked_by = NULL, locked_at = NULL,
    claim_seq = coalesce(claim_seq, 0) + 1, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
WHERE notification_id IN (SELECT value FROM json_each(:ids)) AND lower(fanout_status) IN ('skipped', 'failed', 'expired')
RETURNING notification_id AS id

-- name: cancel
UPDATE open_event_notifications
SET fanout_status = 'skipped', error = :error, locked_by = NULL, locked_at = NULL,
    claim_seq = coalesce(claim_seq, 0) + 1, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
WHERE notification_id IN (SELECT value FROM json_each(:ids)) AND lower(fanout_status) = 'pending' AND {unlocked}
RETURNING notification_id AS id

-- name: send_now
UPDATE open_event_notifications
SET locked_by = NULL, locked_at = NULL, claim_seq = coalesce(claim_seq, 0) + 1, lock_written_at = NULL,
    due_at = NULL, due_attempts = NULL
WHERE notification_id IN (SELECT value FROM json_each(:ids)) AND lower(fanout_status) = 'pending' AND {unlocked}
RETURNING notification_id AS id

-- name: pending_ids
SELECT notification_id AS id
FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND notification_id > :after
ORDER BY notification_id
LIMIT :limit

-- name: counts
SELECT 'pending' AS status, count(*) AS count FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND due_at IS NULL
UNION ALL
SELECT 'pending', count(*) FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL
UNION ALL
SELECT * FROM (
    SELECT lower(fanout_status), count(*) FROM open_event_notifications
    WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired') GROUP BY 1)
UNION ALL
SELECT 'total', :known + count(*) FROM open_event_notifications WHERE notification_id > :upto
UNION ALL
SELECT 'upto', max(notification_id) FROM open_event_notifications

-- name: reasons
SELECT lower(fanout_status) AS status,
    CASE WHEN json_valid(error) THEN CAST(json_extract(error, '$.code') AS TEXT) END AS code, count(*) AS count
FROM open_event_notifications
WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired')
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2

-- name: oldest_due
SELECT (julianday('now') - since) * 86400.0 AS age
FROM (
    SELECT julianday(coalesce(n.created_at, e.event_at, e.created_at)) AS since
    FROM (SELECT open_event_id, created_at
          FROM open_event_notifications INDEXED BY homing_notifications_new
          WHERE lower(fanout_status) = 'pending' AND due_at IS NULL AND {unlocked}
          ORDER BY notification_id
          LIMIT 1) AS n
    LEFT JOIN open_events AS e ON e.open_event_id = n.open_event_id
    UNION ALL
    SELECT * FROM (
        SELECT julianday(due_at)
        FROM open_event_notifications INDEXED BY homing_notifications_waiting
        WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND due_at <= {now} AND {unlocked}
        ORDER BY due_at
        LIMIT 1)
    UNION ALL
    SELECT * FROM (
        SELECT julianday(coalesce(last_attempt_at, created_at))
        FROM open_event_notifications INDEXED BY homing_notifications_reset
        WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND {was_reset} AND due_at > {now} AND {unlocked}
        ORDER BY notification_id
        LIMIT 1))
WHERE since IS NOT NULL
ORDER BY since
LIMIT 1

-- name: locks
SELECT locked_by, count(*) AS count, min(locked_at) AS oldest, sum({unlocked}) AS over
FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND locked_at IS NOT NULL
GROUP BY locked_by
ORDER BY 3

-- name: churn
SELECT fanout_attempts AS attempts, count(*) AS count
FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND fanout_attempts > 0
GROUP BY fanout_attempts
ORDER BY 1 DESC
