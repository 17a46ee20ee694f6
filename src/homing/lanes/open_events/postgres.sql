-- open_event_notifications on PostgreSQL. Time is the database's everywhere. Statements that write several rows lock
-- them in id order: two that meet in opposite orders would deadlock. Another program may read and write every row:
-- what is ours is told by claim_seq, locked_by and locked_at together.

-- fragment: unlocked
-- A lock that lies far ahead would be for ever, so it is none.
(locked_at IS NULL OR locked_at <= now() - make_interval(secs => :lock_ttl_seconds)
    OR locked_at >= now() + make_interval(secs => :lock_ttl_seconds))

-- fragment: was_reset
-- As the index has it: somebody has changed the attempts, or taken our lock away, or the word that says why it waits.
(due_attempts IS DISTINCT FROM fanout_attempts OR lock_written_at IS NOT NULL AND locked_at IS NULL
    OR lock_written_at IS NULL AND error IS NULL)

-- fragment: expired
coalesce(e.event_at, e.created_at) <= now() - make_interval(secs => :expire_after_seconds)

-- fragment: attempts
greatest(coalesce(n.fanout_attempts, 0), 0)

-- fragment: lock_time
-- In milliseconds, so that another program can read it and write it back unchanged.
date_trunc('milliseconds', now())

-- fragment: held
-- Found by the key alone and judged afterwards: a word about the status would send the planner through the index of
-- all that waits.
held AS MATERIALIZED (
    SELECT notification_id AS id, claim_seq,
        lower(fanout_status) = 'pending' AND locked_by = :owner AND locked_at = lock_written_at AS is_ours
    FROM open_event_notifications
    WHERE notification_id = ANY (ARRAY(SELECT id FROM batch))
    ORDER BY notification_id
    FOR UPDATE
)

-- fragment: mine
batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), {held}, mine AS (
    SELECT batch.id FROM batch JOIN held ON held.id = batch.id WHERE held.claim_seq = batch.fence AND held.is_ours
)

-- fragment: notified
-- A pause and a resumption are changes of status: with each the count begins anew.
(SELECT count(*)
 FROM subscription_events AS told
 WHERE told.subscription_id = s.subscription_id AND told.event_type = 'notify_sent'
   AND told.event_id > coalesce((SELECT max(changed.event_id) FROM subscription_events AS changed
                                 WHERE changed.subscription_id = s.subscription_id
                                   AND changed.event_type = 'status_changed'), 0))

-- fragment: listed
n.notification_id AS id, n.open_event_id, n.subscription_id, n.dedupe_key, lower(n.fanout_status) AS status,
    {attempts} AS attempts, n.last_attempt_at, n.locked_by, n.locked_at, n.error, n.created_at,
    CASE WHEN lower(n.fanout_status) = 'pending' AND n.lock_written_at IS NULL
              AND n.due_attempts IS NOT DISTINCT FROM n.fanout_attempts AND n.error IS NOT NULL
         THEN n.due_at END AS due_at,
    e.term_id, e.campus_code, e.index_number, e.status_after, e.event_at, e.trace_id,
    s.contact_type, s.contact_value, s.status AS subscription_status

-- fragment: listed_from
open_event_notifications AS n
    LEFT JOIN open_events AS e ON e.open_event_id = n.open_event_id
    LEFT JOIN subscriptions AS s ON s.subscription_id = n.subscription_id

-- name: claim
-- What has waited goes first: it was claimed before, in the order of the ids, so its ids are the lower ones. A lock
-- whose worker died is over at the time that is in due_at.
WITH waited AS MATERIALIZED (
    SELECT notification_id
    FROM open_event_notifications
    WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND due_at <= now() AND {unlocked}
    ORDER BY due_at, notification_id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), reset AS MATERIALIZED (
    SELECT notification_id
    FROM open_event_notifications
    WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND {was_reset} AND due_at > now() AND {unlocked}
    ORDER BY notification_id
    LIMIT greatest(0, :limit - (SELECT count(*) FROM waited))
    FOR UPDATE SKIP LOCKED
), fresh AS MATERIALIZED (
    SELECT notification_id
    FROM open_event_notifications
    WHERE lower(fanout_status) = 'pending' AND due_at IS NULL AND {unlocked}
    ORDER BY notification_id
    LIMIT greatest(0, :limit - (SELECT count(*) FROM waited) - (SELECT count(*) FROM reset))
    FOR UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (
    SELECT notification_id FROM waited UNION ALL SELECT notification_id FROM reset
    UNION ALL SELECT notification_id FROM fresh
)
UPDATE open_event_notifications AS n
SET claim_seq = coalesce(n.claim_seq, 0) + 1,
    locked_by = :owner,
    locked_at = {lock_time},
    lock_written_at = {lock_time},
    due_at = {lock_time} + make_interval(secs => :lock_ttl_seconds),
    due_attempts = n.fanout_attempts
WHERE n.notification_id = ANY (ARRAY(SELECT notification_id FROM chosen))
RETURNING n.notification_id AS id, n.claim_seq AS fence, {attempts} AS attempts, n.open_event_id, n.subscription_id,
    n.dedupe_key, n.error IS NOT NULL AND {attempts} > 0 AS has_error, n.locked_at AS claimed_at,
    date_part('epoch', now()) - date_part('epoch', n.created_at::timestamptz) AS age

-- name: preview
SELECT notification_id AS id
FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND due_at IS NULL AND {unlocked}
ORDER BY notification_id
LIMIT :limit

-- name: subscribers
-- Read when the claim is committed: of two workers that hold notifications of one subscription, the later one sees
-- the other's. What goes before: all that wait with a lower id, and what others are sending. Rows are claimed in the
-- order of their ids, so what others are sending is near; a subscription with very many is not read to its end.
SELECT n.notification_id AS id,
    {notified} AS notified,
    (SELECT count(*)
     FROM (SELECT 1
           FROM open_event_notifications AS other
           WHERE other.subscription_id = n.subscription_id AND lower(other.fanout_status) = 'pending'
             AND other.notification_id < n.notification_id
           LIMIT :most_counted) AS lower_ids)
    + (SELECT count(*)
       FROM (SELECT other.locked_by, other.locked_at
             FROM open_event_notifications AS other
             WHERE other.subscription_id = n.subscription_id AND lower(other.fanout_status) = 'pending'
               AND other.notification_id > n.notification_id
             ORDER BY other.notification_id
             LIMIT :most_counted) AS other
       WHERE other.locked_at IS NOT NULL
         AND (other.locked_by, other.locked_at) IS DISTINCT FROM (n.locked_by, n.locked_at)) AS ahead,
    s.contact_type, s.contact_value, s.contact_hash, s.locale, s.status, s.last_known_section_status, s.metadata,
    s.subscription_id
FROM open_event_notifications AS n LEFT JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
WHERE n.notification_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))

-- name: events
SELECT e.open_event_id, e.section_id, e.term_id, e.campus_code, e.index_number, e.status_before, e.status_after,
    e.event_at, e.detected_by, e.trace_id, e.payload,
    {expired} AS expired,
    s.section_number, coalesce(s.subject_code, c.subject_code), c.course_number, c.course_string, c.title,
    (SELECT json_agg(json_build_object('day', m.meeting_day, 'start', m.start_minutes::text,
            'end', m.end_minutes::text, 'campus', m.campus_abbrev, 'building', m.building_code, 'room', m.room_number)
            ORDER BY m.meeting_id)::text
     FROM section_meetings AS m WHERE m.section_id = coalesce(s.section_id, e.section_id)) AS meetings
FROM open_events AS e
LEFT JOIN sections AS s ON s.section_id = coalesce(e.section_id, (
    SELECT same.section_id FROM sections AS same
    WHERE same.term_id = e.term_id AND same.campus_code = e.campus_code AND same.index_number = e.index_number
    ORDER BY same.section_id LIMIT 1))
LEFT JOIN courses AS c ON c.course_id = s.course_id
WHERE e.open_event_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))

-- name: standings
-- What may have changed while a claim waited for its turn.
SELECT n.notification_id AS id,
    CASE WHEN lower(n.fanout_status) = 'pending' AND n.locked_by = :owner AND n.locked_at = n.lock_written_at
         THEN n.claim_seq END AS fence,
    s.subscription_id IS NOT NULL AS subscribed, s.contact_value, s.status, s.metadata, {expired} AS expired
FROM open_event_notifications AS n
LEFT JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
LEFT JOIN open_events AS e ON e.open_event_id = n.open_event_id
WHERE n.notification_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))

-- name: settle
-- All that a result changes, in one statement: the notification, the subscription and its history. What was settled is
-- looked up in the tables, by their keys: joins between the steps below would be loops in loops, for the planner takes
-- each step for a single row.
WITH batch AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:batch::json) AS b(
        id bigint, fence bigint, status text, charged integer, delay double precision, error text,
        told text, snapshot text, story text, most integer, pause boolean, millis integer)
), {held}, mine AS MATERIALIZED (
    SELECT batch.* FROM batch JOIN held ON held.id = batch.id WHERE held.claim_seq = batch.fence AND held.is_ours
), settled AS (
    UPDATE open_event_notifications AS n
    SET fanout_status = mine.status,
        fanout_attempts = CASE mine.charged WHEN 0 THEN n.fanout_attempts ELSE {attempts} + mine.charged END,
        last_attempt_at = CASE mine.charged WHEN 0 THEN n.last_attempt_at ELSE now() END,
        error = coalesce(mine.error, n.error),
        delivered_by = CASE WHEN mine.status = 'sent' THEN :owner ELSE n.delivered_by END,
        delivered_millis = coalesce(mine.millis, n.delivered_millis),
        locked_by = NULL,
        locked_at = NULL,
        lock_written_at = NULL,
        due_at = CASE WHEN mine.status = 'pending' AND mine.delay > 0
                      THEN now() + make_interval(secs => mine.delay) END,
        due_attempts = CASE WHEN mine.status = 'pending' AND mine.delay > 0
            THEN CASE mine.charged WHEN 0 THEN n.fanout_attempts ELSE {attempts} + mine.charged END END
    FROM mine
    WHERE n.notification_id = mine.id
    RETURNING n.notification_id AS id, n.subscription_id, mine.status = 'sent' AS sent, mine.told, mine.snapshot,
        mine.story, mine.most, mine.pause
), concerned AS MATERIALIZED (
    SELECT subscription_id
    FROM subscriptions
    WHERE subscription_id = ANY (ARRAY(SELECT subscription_id FROM settled WHERE sent OR pause))
    ORDER BY subscription_id
    FOR UPDATE
), tallied AS MATERIALIZED (
    SELECT s.subscription_id, s.sent, s.snapshot,
        s.pause OR s.sent AND {notified} + s.count >= s.most AS pauses
    FROM (
        SELECT subscription_id, bool_or(sent) AS sent, bool_or(pause) AS pause, min(most) AS most,
            max(snapshot) FILTER (WHERE sent) AS snapshot, count(*) FILTER (WHERE sent) AS count
        FROM settled
        WHERE sent OR pause
        GROUP BY subscription_id
    ) AS s
    -- Which are locked first, in the order of their ids.
    WHERE (SELECT count(*) FROM concerned) > 0
), noted AS (
    -- The status is what it is now: whoever has unsubscribed in this moment stays unsubscribed.
    UPDATE subscriptions AS s
    SET last_notified_at = CASE WHEN tallied.sent THEN now() ELSE s.last_notified_at END,
        last_known_section_status = coalesce(tallied.snapshot, s.last_known_section_status),
        status = CASE WHEN tallied.pauses AND lower(s.status) = 'active' THEN 'paused' ELSE s.status END,
        updated_at = now()
    FROM tallied
    WHERE s.subscription_id = tallied.subscription_id
), history AS (
    -- A change of status comes last: what was sent before it is not counted any more.
    INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot, payload, created_at)
    SELECT lines.subscription_id, event_type, snapshot, story, now()
    FROM (
        SELECT 1 AS place, id, subscription_id, told AS event_type, snapshot, story
        FROM settled WHERE told IS NOT NULL
        UNION ALL
        SELECT 2, subscription_id, subscription_id, 'status_changed', snapshot,
            '{"from":"active","to":"paused","reason":"max_notifications"}'
        FROM tallied WHERE pauses
    ) AS lines
    JOIN subscriptions AS s ON s.subscription_id = lines.subscription_id AND (place = 1 OR lower(s.status) = 'active')
    ORDER BY place, id
)
SELECT id FROM settled

-- name: confirm
-- Only a settlement or a release of ours takes lock_written_at away.
SELECT n.notification_id AS id
FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
JOIN open_event_notifications AS n ON n.notification_id = b.id
WHERE n.claim_seq = b.fence AND n.lock_written_at IS NULL

-- name: renew
WITH {mine}
UPDATE open_event_notifications AS n
SET locked_at = {lock_time}, lock_written_at = {lock_time},
    due_at = {lock_time} + make_interval(secs => :lock_ttl_seconds)
FROM mine
WHERE n.notification_id = mine.id
RETURNING n.notification_id AS id

-- name: release
WITH {mine}
UPDATE open_event_notifications AS n
SET locked_by = NULL, locked_at = NULL, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
FROM mine
WHERE n.notification_id = mine.id
RETURNING n.notification_id AS id

-- name: get
SELECT {listed}, e.payload AS event_payload, s.locale, s.metadata, s.last_notified_at,
    s.last_known_section_status, n.claim_seq, n.delivered_by, n.delivered_millis
FROM {listed_from}
WHERE n.notification_id = :id

-- name: page
SELECT {listed}
FROM {listed_from}
WHERE (:status::text IS NULL OR lower(n.fanout_status) = :status) AND (:before::bigint IS NULL OR n.notification_id < :before)
ORDER BY n.notification_id DESC
LIMIT :limit

-- name: page_ended
-- The states are named, so that the planner knows its small index applies.
SELECT {listed}
FROM {listed_from}
WHERE lower(n.fanout_status) IN ('skipped', 'failed', 'expired') AND lower(n.fanout_status) = :status
  AND (:before::bigint IS NULL OR n.notification_id < :before)
ORDER BY n.notification_id DESC
LIMIT :limit

-- name: ended_ids
-- What another program wrote into `error` may be no JSON, so its text is looked through.
SELECT notification_id AS id
FROM open_event_notifications
WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired') AND lower(fanout_status) = :status
  AND notification_id > :after
  AND (:code::text IS NULL OR strpos(replace(error, ' ', ''), '"code":"' || :code || '"') > 0)
ORDER BY notification_id
LIMIT :limit

-- name: requeue
-- As an operator does it by hand. The fence rises: who settled it last settles it no more.
WITH chosen AS MATERIALIZED (
    SELECT notification_id
    FROM open_event_notifications
    WHERE notification_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
      AND lower(fanout_status) IN ('skipped', 'failed', 'expired')
    ORDER BY notification_id
    FOR UPDATE
)
UPDATE open_event_notifications AS n
SET fanout_status = 'pending', fanout_attempts = 0, error = NULL, locked_by = NULL, locked_at = NULL,
    claim_seq = coalesce(n.claim_seq, 0) + 1, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
FROM chosen
WHERE n.notification_id = chosen.notification_id
RETURNING n.notification_id AS id

-- name: cancel
WITH chosen AS MATERIALIZED (
    SELECT notification_id
    FROM open_event_notifications
    WHERE notification_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
      AND lower(fanout_status) = 'pending' AND {unlocked}
    ORDER BY notification_id
    FOR UPDATE
)
UPDATE open_event_notifications AS n
SET fanout_status = 'skipped', error = :error, locked_by = NULL, locked_at = NULL,
    claim_seq = coalesce(n.claim_seq, 0) + 1, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
FROM chosen
WHERE n.notification_id = chosen.notification_id
RETURNING n.notification_id AS id

-- name: send_now
-- Those that wait are looked at by the next worker. Outside of somebody's hours, or behind another, they wait again.
WITH chosen AS MATERIALIZED (
    SELECT notification_id
    FROM open_event_notifications
    WHERE notification_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
      AND lower(fanout_status) = 'pending' AND {unlocked}
    ORDER BY notification_id
    FOR UPDATE
)
UPDATE open_event_notifications AS n
SET locked_by = NULL, locked_at = NULL, claim_seq = coalesce(n.claim_seq, 0) + 1, lock_written_at = NULL,
    due_at = NULL, due_attempts = NULL
FROM chosen
WHERE n.notification_id = chosen.notification_id
RETURNING n.notification_id AS id

-- name: pending_ids
SELECT notification_id AS id
FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND notification_id > :after
ORDER BY notification_id
LIMIT :limit

-- name: counts
-- What waits and what ended badly is counted in small indexes, and what was sent is the rest. The total has no tally,
-- for the table may be another program's, which would have to live with our triggers: what is above a number that
-- was counted up to is counted now (db/tally.py).
SELECT 'pending' AS status, count(*) AS count FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND due_at IS NULL
UNION ALL
SELECT 'pending', count(*) FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL
UNION ALL
SELECT lower(fanout_status), count(*) FROM open_event_notifications
WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired') GROUP BY 1
UNION ALL
SELECT 'total', :known::bigint + count(*) FROM open_event_notifications WHERE notification_id > :upto
UNION ALL
SELECT 'upto', max(notification_id) FROM open_event_notifications

-- name: reasons
SELECT lower(fanout_status) AS status, substring(error FROM '"code"\s*:\s*"([^"]*)"') AS code, count(*) AS count
FROM open_event_notifications
WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired')
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2

-- name: oldest_due
-- The first of each of the three kinds that a claim takes. Another program need not say when it made a row; its event tells.
-- Since when a row is due that was put back by hand, nobody knows: at the earliest since it was tried last.
SELECT extract(epoch FROM now() - since)::double precision AS age
FROM (
    (SELECT coalesce(n.created_at, e.event_at, e.created_at) AS since
     FROM (SELECT open_event_id, created_at
           FROM open_event_notifications
           WHERE lower(fanout_status) = 'pending' AND due_at IS NULL AND {unlocked}
           ORDER BY notification_id
           LIMIT 1) AS n
     LEFT JOIN open_events AS e ON e.open_event_id = n.open_event_id)
    UNION ALL
    (SELECT due_at
     FROM open_event_notifications
     WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND due_at <= now() AND {unlocked}
     ORDER BY due_at
     LIMIT 1)
    UNION ALL
    (SELECT coalesce(last_attempt_at, created_at)
     FROM open_event_notifications
     WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL AND {was_reset} AND due_at > now() AND {unlocked}
     ORDER BY notification_id
     LIMIT 1)
) AS firsts
WHERE since IS NOT NULL
ORDER BY since
LIMIT 1

-- name: locks
-- Who holds how many, and since when: a lock that is older than its time is nobody's any more.
SELECT locked_by, count(*) AS count, min(locked_at) AS oldest, count(*) FILTER (WHERE {unlocked}) AS over
FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND locked_at IS NOT NULL
GROUP BY locked_by
ORDER BY 3

-- name: churn
-- What was tried and is still pending, by how often.
SELECT fanout_attempts AS attempts, count(*) AS count
FROM open_event_notifications
WHERE lower(fanout_status) = 'pending' AND fanout_attempts > 0
GROUP BY fanout_attempts
ORDER BY 1 DESC
