-- open_event_notifications on PostgreSQL. Time is the database's everywhere. Statements that write several rows lock
-- them in id order: two that meet in opposite orders would deadlock. Another program may read and write every row:
-- what is ours is told by claim_seq, locked_by and locked_at together.

-- fragment: unlocked
-- Whose lock is over. One that lies far ahead is over when it has not changed for as long as a lock lasts.
(locked_at IS NULL OR locked_at <= now() - make_interval(secs => :lock_ttl_seconds)
    OR lock_seen = {lock} AND lock_seen_at <= now() - make_interval(secs => :lock_ttl_seconds))

-- fragment: lock
-- What tells one lock from another, whatever the session's time zone.
(coalesce(locked_by, '') || ' ' || date_part('epoch', locked_at)::text)

-- fragment: says_nothing
-- A lock further ahead than a lock lasts: nobody can tell from it when it is over.
locked_at > now() + make_interval(secs => :lock_ttl_seconds)

-- fragment: theirs
-- As the index has it.
lower(fanout_status) = 'pending' AND locked_at IS NOT NULL AND lock_written_at IS DISTINCT FROM locked_at

-- fragment: was_reset
-- As the index has it: somebody has changed the attempts, or taken our lock away, or the word that says why it waits.
(due_attempts IS DISTINCT FROM fanout_attempts OR lock_written_at IS NOT NULL AND locked_at IS NULL
    OR lock_written_at IS NULL AND error IS NULL)

-- fragment: expired
coalesce(e.event_at, e.created_at) <= now() - make_interval(secs => :expire_after_seconds)

-- fragment: attempts
-- Whatever another program has written can still be counted up, in a column of any size: one row stops no others.
least(greatest(coalesce(n.fanout_attempts, 0), 0), 30000)

-- fragment: next_claim
-- As the attempts: next to the end of its type it begins anew.
coalesce(n.claim_seq, 0) % 9007199254740992 + 1

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

-- fragment: duplicate
-- Another one of the subscription with this dedupe key was sent. What was sent itself, and put back by an operator, is
-- sent again all the same.
EXISTS (SELECT 1 FROM open_event_notifications AS sent
        WHERE sent.subscription_id = n.subscription_id AND sent.dedupe_key = n.dedupe_key AND n.dedupe_key <> ''
          AND lower(sent.fanout_status) = 'sent' AND n.delivered_by IS NULL)

-- fragment: may_be_limited
s.metadata LIKE '%maxNotifications%'

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
SET claim_seq = {next_claim},
    locked_by = :owner,
    locked_at = {lock_time},
    lock_written_at = {lock_time},
    due_at = {lock_time} + make_interval(secs => :lock_ttl_seconds),
    due_attempts = n.fanout_attempts,
    lock_seen = NULL,
    lock_seen_at = NULL,
    -- Reset by hand, though it was tried before: whoever ended it, it has ended.
    ended_claim = CASE WHEN {attempts} = 0 AND n.last_attempt_at IS NOT NULL
                       THEN coalesce(n.ended_claim, n.claim_seq, 0) ELSE n.ended_claim END
WHERE n.notification_id = ANY (ARRAY(SELECT notification_id FROM chosen))
RETURNING n.notification_id AS id, n.claim_seq AS fence, {attempts} AS attempts, n.open_event_id, n.subscription_id,
    n.dedupe_key, n.error IS NOT NULL AND {attempts} > 0 AS has_error, n.ended_claim IS NOT NULL AS has_ended, n.locked_at AS claimed_at,
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
    CASE WHEN {may_be_limited} THEN {notified} ELSE 0 END AS notified,
    CASE WHEN {may_be_limited} THEN
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
         AND (other.locked_by, other.locked_at) IS DISTINCT FROM (n.locked_by, n.locked_at))
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
               AND (twin.locked_by, twin.locked_at) IS DISTINCT FROM (n.locked_by, n.locked_at))) AS twin,
    {duplicate} AS duplicate,
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
    s.subscription_id IS NOT NULL AS subscribed, s.contact_value, s.status, s.metadata, {expired} AS expired,
    {duplicate} AS duplicate
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
        told text, snapshot text, story text, millis integer)
), {held}, mine AS MATERIALIZED (
    SELECT batch.* FROM batch JOIN held ON held.id = batch.id WHERE held.claim_seq = batch.fence AND held.is_ours
), settled AS (
    UPDATE open_event_notifications AS n
    SET fanout_status = mine.status,
        fanout_attempts = CASE mine.charged WHEN 0 THEN n.fanout_attempts ELSE {attempts} + mine.charged END,
        last_attempt_at = CASE mine.charged WHEN 0 THEN n.last_attempt_at ELSE now() END,
        error = coalesce(mine.error, n.error),
        ended_claim = CASE WHEN mine.status = 'pending' THEN n.ended_claim ELSE n.claim_seq END,
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
        mine.story
), concerned AS MATERIALIZED (
    SELECT subscription_id
    FROM subscriptions
    WHERE subscription_id = ANY (ARRAY(SELECT subscription_id FROM settled WHERE sent))
    ORDER BY subscription_id
    FOR UPDATE
), noted AS (
    -- Nothing else of a subscription is a worker's to change.
    UPDATE subscriptions AS s
    SET last_notified_at = now(), last_known_section_status = coalesce(t.snapshot, s.last_known_section_status)
    FROM (
        SELECT subscription_id, max(snapshot) AS snapshot
        FROM settled
        -- Which are locked first, in the order of their ids.
        WHERE sent AND (SELECT count(*) FROM concerned) > 0
        GROUP BY subscription_id
    ) AS t
    WHERE s.subscription_id = t.subscription_id
), history AS (
    INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot, payload, created_at)
    SELECT settled.subscription_id, settled.told, settled.snapshot, settled.story, now()
    FROM settled JOIN subscriptions AS s ON s.subscription_id = settled.subscription_id
    WHERE settled.told IS NOT NULL
    ORDER BY settled.id
)
SELECT id FROM settled

-- name: unread_locks
SELECT notification_id AS id
FROM open_event_notifications
WHERE {theirs} AND lock_seen IS DISTINCT FROM {lock} AND {says_nothing}
ORDER BY notification_id
LIMIT :limit

-- name: note_locks
WITH chosen AS MATERIALIZED (
    SELECT notification_id
    FROM open_event_notifications
    WHERE notification_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
      AND {theirs} AND lock_seen IS DISTINCT FROM {lock} AND {says_nothing}
    ORDER BY notification_id
    FOR UPDATE
)
UPDATE open_event_notifications AS n
SET lock_seen = {lock}, lock_seen_at = now()
FROM chosen
WHERE n.notification_id = chosen.notification_id
RETURNING n.notification_id AS id, n.locked_by

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
    ended_claim = coalesce(n.ended_claim, n.claim_seq, 0), claim_seq = {next_claim},
    lock_written_at = NULL, due_at = NULL, due_attempts = NULL
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
    ended_claim = coalesce(n.claim_seq, 0), claim_seq = {next_claim}, lock_written_at = NULL, due_at = NULL, due_attempts = NULL
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
SET locked_by = NULL, locked_at = NULL, claim_seq = {next_claim}, lock_written_at = NULL,
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
             AND (created_at IS NULL OR isfinite(created_at))
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
       AND isfinite(coalesce(last_attempt_at, created_at))
     ORDER BY notification_id
     LIMIT 1)
) AS firsts
WHERE isfinite(since)
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
