-- Alerts on PostgreSQL. Time is the database's everywhere.

-- fragment: cause
cause, kind, state, since, facts::text AS facts, pending, level, told::text AS told, silenced_until, silenced_by, revision,
    silenced_until > now() AS silenced

-- fragment: alert
a.id, a.cause, a.kind, a.event, a.facts::text AS facts, a.at, a.ways::text AS ways, a.mail_id, a.job_id

-- name: watch
SELECT holder, until > now() AS held FROM homing_alert_watch

-- name: take_watch
INSERT INTO homing_alert_watch AS w (id, holder, until)
VALUES (1, :holder, now() + make_interval(secs => :seconds))
ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE w.until <= now() OR w.holder = excluded.holder
RETURNING w.holder

-- name: leave_watch
UPDATE homing_alert_watch SET until = now() WHERE holder = :holder RETURNING holder

-- name: causes
SELECT {cause}
FROM homing_alert_cause
WHERE state <> 'quiet' OR pending > 0
UNION
SELECT {cause}
FROM homing_alert_cause
WHERE cause = ANY (ARRAY(SELECT json_array_elements_text(:causes::json)))

-- name: now
SELECT now() AS now, (SELECT count(*) FROM homing_alert WHERE at > now() - interval '1 hour' AND event <> 'test') AS told

-- name: open_dead
SELECT cause FROM homing_alert_cause
WHERE (state <> 'quiet' OR pending > 0) AND kind = 'dead' AND starts_with(cause, :prefix)

-- name: count_deaths
-- A batch counts once, however often somebody comes with it.
WITH fresh AS (
    INSERT INTO homing_alert_batch (batch) VALUES (:batch) ON CONFLICT (batch) DO NOTHING RETURNING batch
)
INSERT INTO homing_alert_cause AS c (cause, kind, facts, pending, state)
SELECT d.cause, 'dead', d.facts, d.count, 'firing'
FROM json_to_recordset(:deaths::json) AS d(cause text, facts jsonb, count bigint)
WHERE EXISTS (SELECT FROM fresh)
ORDER BY d.cause
ON CONFLICT (cause) DO UPDATE
SET pending = c.pending + excluded.pending, facts = excluded.facts, revision = c.revision + 1, updated_at = now(),
    since = CASE c.state WHEN 'quiet' THEN now() ELSE c.since END, state = 'firing'
RETURNING c.cause

-- name: seen
SELECT revision, seen::text AS seen FROM homing_alert_seen WHERE lane = :lane

-- name: note_seen
INSERT INTO homing_alert_seen AS s (lane, revision, seen)
VALUES (:lane, 1, :seen::jsonb)
ON CONFLICT (lane) DO UPDATE SET revision = s.revision + 1, seen = excluded.seen
WHERE s.revision = :revision
RETURNING s.lane

-- name: tell
-- The verdict and what people are told go together, or not at all: what was judged since by somebody else stands.
WITH judged AS (
    INSERT INTO homing_alert_cause AS c (cause, kind, state, since, facts, pending, level, told, revision)
    VALUES (:cause, :kind, :state, :since::timestamptz, :facts::jsonb, :pending::bigint, :level::integer, :told::jsonb, 1)
    ON CONFLICT (cause) DO UPDATE
    SET state = excluded.state, since = excluded.since, facts = excluded.facts, level = excluded.level,
        told = excluded.told, pending = excluded.pending, revision = c.revision + 1, updated_at = now()
    WHERE c.revision = :revision::bigint
    RETURNING c.cause
)
INSERT INTO homing_alert (cause, kind, event, facts, ways)
SELECT judged.cause, :kind, :event, :alert_facts::jsonb, :ways::jsonb FROM judged
WHERE :event::text IS NOT NULL
RETURNING cause

-- name: tell_test
INSERT INTO homing_alert (cause, kind, event, facts, ways) VALUES ('test', 'test', 'test', '{}', :ways::jsonb) RETURNING id

-- name: silence
-- Also of what has not happened yet.
INSERT INTO homing_alert_cause AS c (cause, kind, silenced_until, silenced_by)
VALUES (:cause, :kind, now() + make_interval(secs => :seconds), :by)
ON CONFLICT (cause) DO UPDATE
SET silenced_until = excluded.silenced_until, silenced_by = excluded.silenced_by, updated_at = now()
RETURNING {cause}

-- name: waiting
-- Not those that only wait for ways that are away, unless one that works was not thought of.
SELECT {alert}, a.token
FROM homing_alert AS a, LATERAL (
    SELECT a.ways - ARRAY[CASE WHEN a.mail_id IS NOT NULL THEN 'mail' END, CASE WHEN a.job_id IS NOT NULL THEN 'webhook' END] AS left_over
) AS w
WHERE NOT a.handed_over AND a.id > :after
  AND (w.left_over = '[]' OR NOT w.left_over <@ :away::jsonb OR NOT a.ways @> :working::jsonb)
ORDER BY a.id LIMIT :limit

-- name: renew_token
UPDATE homing_alert SET token = :token WHERE id = :id AND NOT handed_over RETURNING id

-- name: note_ways
UPDATE homing_alert
SET ways = :ways::jsonb, mail_id = coalesce(mail_id, :mail_id::bigint), job_id = coalesce(job_id, :job_id::bigint),
    handed_over = :handed_over::boolean
WHERE id = :id AND NOT handed_over
RETURNING handed_over

-- name: recent
SELECT {alert}, CASE WHEN c.silenced_until > now() THEN c.silenced_until END AS silenced_until
FROM homing_alert AS a LEFT JOIN homing_alert_cause AS c ON c.cause = a.cause
ORDER BY a.at DESC, a.id DESC
LIMIT :limit

-- name: get
SELECT {alert}, CASE WHEN c.silenced_until > now() THEN c.silenced_until END AS silenced_until
FROM homing_alert AS a LEFT JOIN homing_alert_cause AS c ON c.cause = a.cause
WHERE a.id = :id

-- name: firing
SELECT {cause} FROM homing_alert_cause WHERE state = 'firing' ORDER BY since LIMIT :limit

-- name: silenced
SELECT {cause} FROM homing_alert_cause WHERE silenced_until > now() ORDER BY cause LIMIT :limit

-- name: forget
-- What is long past: alerts after ninety days, and what has been quiet for thirty. The words of dead letters are other
-- programs', and may be as many as there are messages: after a day.
WITH batches AS (
    DELETE FROM homing_alert_batch WHERE at < now() - interval '7 days'
), causes AS (
    DELETE FROM homing_alert_cause
    WHERE state = 'quiet' AND pending = 0 AND updated_at < now() - CASE kind WHEN 'dead' THEN interval '1 day' ELSE interval '30 days' END
      AND coalesce(silenced_until < now(), true)
)
DELETE FROM homing_alert WHERE at < now() - interval '90 days' AND handed_over RETURNING id
