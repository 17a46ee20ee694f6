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
-- Whose lock is over. Its time may be written in any form, and SQLite's own julianday() takes 04:36 for a day in 2000. A
-- lock that says nothing is over when it has not changed for as long as a lock lasts.
(locked_at IS NULL OR instant_julianday(locked_at) <= julianday('now') - :lock_ttl_seconds / 86400.0
    OR lock_seen IS {lock} AND julianday(lock_seen_at) <= julianday('now') - :lock_ttl_seconds / 86400.0)

-- fragment: lock
-- What tells one lock from another.
(coalesce(CAST(locked_by AS TEXT), '') || ' ' || CAST(locked_at AS TEXT))

-- fragment: says_nothing
-- A lock whose time cannot be read, or lies further ahead than a lock lasts: nobody can tell from it when it is over.
coalesce(instant_julianday(locked_at) > julianday('now') + :lock_ttl_seconds / 86400.0, true)

-- fragment: theirs
-- As the index has it.
lower(fanout_status) = 'pending' AND locked_at IS NOT NULL AND lock_written_at IS NOT locked_at

-- fragment: was_reset
-- As the index has it.
(due_attempts IS NOT fanout_attempts OR lock_written_at IS NOT NULL AND locked_at IS NULL
    OR lock_written_at IS NULL AND error IS NULL)

-- fragment: expired
coalesce(julianday(e.event_at), instant_julianday(e.event_at), julianday(e.created_at))
        <= julianday('now') - :expire_after_seconds / 86400.0

-- fragment: attempts
min(max(0, CAST(coalesce(n.fanout_attempts, 0) AS INTEGER)), 30000)

-- fragment: next_claim
coalesce(claim_seq, 0) % 9007199254740992 + 1

-- fragment: is_mine
n.claim_seq = b.fence AND n.locked_by = :owner AND n.locked_at = n.lock_written_at AND lower(n.fanout_status) = 'pending'

-- fragment: fences
batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)

-- fragment: duplicate
-- Another one of the subscription with this dedupe key was sent. What was sent itself, and put back by an operator, is
-- sent again all the same.
EXISTS (SELECT 1 FROM open_event_notifications AS sent
        WHERE sent.subscription_id = n.subscription_id AND sent.dedupe_key = n.dedupe_key AND n.dedupe_key <> ''
          AND lower(sent.fanout_status) = 'sent' AND n.delivered_by IS NULL)

-- fragment: notified
(SELECT count(*)
 FROM subscription_events AS told
 WHERE told.subscription_id = s.subscription_id AND told.event_type = 'notify_sent'
   AND told.rowid > coalesce((SELECT max(changed.rowid) FROM subscription_events AS changed
                                 WHERE changed.subscription_id = s.subscription_id
                                   AND changed.event_type = 'status_changed'), 0))

-- fragment: may_be_limited
s.metadata LIKE '%maxNotifications%'

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
SET claim_seq = {next_claim},
    locked_by = :owner,
    locked_at = {now},
    lock_written_at = {now},
    due_at = {lock_end},
    due_attempts = fanout_attempts,
    lock_seen = NULL,
    lock_seen_at = NULL,
    -- Reset by hand, though it was tried before: whoever ended it, it has ended.
    ended_claim = CASE WHEN CAST(coalesce(fanout_attempts, 0) AS INTEGER) <= 0 AND last_attempt_at IS NOT NULL
                       THEN coalesce(ended_claim, claim_seq, 0) ELSE ended_claim END
WHERE notification_id IN (
    SELECT notification_id
    FROM (SELECT 1 AS place, notification_id FROM ({waited})
          UNION ALL SELECT 2, notification_id FROM ({reset})
          UNION ALL SELECT 3, notification_id FROM ({fresh}))
    ORDER BY place
    LIMIT :limit)
RETURNING notification_id AS id, claim_seq AS fence, min(max(0, CAST(coalesce(fanout_attempts, 0) AS INTEGER)), 30000) AS attempts,
    open_event_id, subscription_id, CAST(dedupe_key AS TEXT) AS dedupe_key,
    error IS NOT NULL AND CAST(coalesce(fanout_attempts, 0) AS INTEGER) > 0 AS has_error,
    ended_claim IS NOT NULL AS has_ended, locked_at AS claimed_at,
    (julianday('now') - coalesce(julianday(created_at), instant_julianday(created_at))) * 86400.0 AS age

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
    CASE WHEN {may_be_limited} THEN {notified} ELSE 0 END AS notified,
    CASE WHEN {may_be_limited} THEN
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
         AND (other.locked_by IS NOT n.locked_by OR other.locked_at IS NOT n.locked_at))
    ELSE 0 END AS ahead,
    (SELECT min(twin.notification_id)
     FROM (SELECT notification_id, dedupe_key, locked_by, locked_at
           FROM open_event_notifications
           WHERE subscription_id = n.subscription_id AND lower(fanout_status) = 'pending'
           ORDER BY notification_id
           LIMIT :most_counted) AS twin
     WHERE twin.dedupe_key = n.dedupe_key AND n.dedupe_key <> ''
       AND (twin.notification_id < n.notification_id
            OR twin.notification_id > n.notification_id AND twin.locked_at IS NOT NULL
               AND (twin.locked_by IS NOT n.locked_by OR twin.locked_at IS NOT n.locked_at))) AS twin,
    {duplicate} AS duplicate,
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
    CAST(s.metadata AS TEXT), {expired} AS expired, {duplicate} AS duplicate
FROM json_each(:ids) AS b
CROSS JOIN open_event_notifications AS n ON n.notification_id = b.value
LEFT JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
LEFT JOIN open_events AS e ON e.open_event_id = n.open_event_id

-- name: settle
-- In one transaction, the notifications last: until then they say which of them are ours.
INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot, payload, created_at)
SELECT s.subscription_id, b.told, b.snapshot, b.story, {now}
FROM (SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
          json_extract(value, '$.told') AS told, json_extract(value, '$.snapshot') AS snapshot,
          json_extract(value, '$.story') AS story
      FROM json_each(:batch)) AS b
CROSS JOIN open_event_notifications AS n ON n.notification_id = b.id
CROSS JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
WHERE b.told IS NOT NULL AND {is_mine};

-- Nothing else of a subscription is a worker's to change.
UPDATE subscriptions
SET last_notified_at = {now}, last_known_section_status = coalesce(b.snapshot, last_known_section_status)
FROM (SELECT n.subscription_id, max(b.snapshot) AS snapshot
      FROM (SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
                json_extract(value, '$.status') AS status, json_extract(value, '$.snapshot') AS snapshot
            FROM json_each(:batch)) AS b
      CROSS JOIN open_event_notifications AS n ON n.notification_id = b.id
      WHERE b.status = 'sent' AND {is_mine}
      GROUP BY n.subscription_id) AS b
WHERE subscriptions.subscription_id = b.subscription_id;

UPDATE open_event_notifications AS n
SET fanout_status = b.status,
    fanout_attempts = CASE b.charged WHEN 0 THEN n.fanout_attempts ELSE {attempts} + b.charged END,
    last_attempt_at = CASE b.charged WHEN 0 THEN n.last_attempt_at ELSE {now} END,
    error = coalesce(b.error, n.error),
    ended_claim = CASE WHEN b.status = 'pending' THEN n.ended_claim ELSE n.claim_seq END,
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

-- name: unread_locks
SELECT notification_id AS id
FROM open_event_notifications INDEXED BY homing_notifications_locked
WHERE {theirs} AND lock_seen IS NOT {lock} AND {says_nothing}
ORDER BY notification_id
LIMIT :limit

-- name: note_locks
UPDATE open_event_notifications
SET lock_seen = {lock}, lock_seen_at = {now}
WHERE notification_id IN (SELECT value FROM json_each(:ids))
  AND {theirs} AND lock_seen IS NOT {lock} AND {says_nothing}
RETURNING notification_id AS id, CAST(locked_by AS TEXT) AS locked_by

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
    ended_claim = coalesce(ended_claim, claim_seq, 0), claim_seq = {next_claim}, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
WHERE notification_id IN (SELECT value FROM json_each(:ids)) AND lower(fanout_status) IN ('skipped', 'failed', 'expired')
RETURNING notification_id AS id

-- name: cancel
UPDATE open_event_notifications
SET fanout_status = 'skipped', error = :error, locked_by = NULL, locked_at = NULL,
    ended_claim = coalesce(claim_seq, 0), claim_seq = {next_claim}, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
WHERE notification_id IN (SELECT value FROM json_each(:ids)) AND lower(fanout_status) = 'pending' AND {unlocked}
RETURNING notification_id AS id

-- name: send_now
UPDATE open_event_notifications
SET locked_by = NULL, locked_at = NULL, claim_seq = {next_claim}, lock_written_at = NULL,
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
