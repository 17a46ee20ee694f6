-- Alerts on SQLite: the same queries by the same names. A query may be several statements, which run in one transaction;
-- the last one answers.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: later
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :seconds))

-- fragment: cause
cause, kind, state, since, facts, pending, level, told, silenced_until, silenced_by, revision,
    coalesce(silenced_until > {now}, 0) AS silenced

-- fragment: alert
a.id, a.cause, a.kind, a.event, a.facts, a.at, a.ways, a.mail_id, a.job_id

-- name: watch
SELECT holder, until > {now} AS held FROM homing_alert_watch

-- name: take_watch
INSERT INTO homing_alert_watch (id, holder, until)
VALUES (1, :holder, {later})
ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE homing_alert_watch.until <= {now} OR homing_alert_watch.holder = excluded.holder
RETURNING holder

-- name: leave_watch
UPDATE homing_alert_watch SET until = {now} WHERE holder = :holder RETURNING holder

-- name: causes
SELECT {cause}
FROM homing_alert_cause
WHERE state <> 'quiet' OR pending > 0
UNION
SELECT {cause}
FROM homing_alert_cause
WHERE cause IN (SELECT value FROM json_each(:causes))

-- name: now
SELECT {now} AS now,
    (SELECT count(*) FROM homing_alert
     WHERE at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour') AND event <> 'test') AS told

-- name: open_dead
SELECT cause FROM homing_alert_cause
WHERE (state <> 'quiet' OR pending > 0) AND kind = 'dead' AND substr(cause, 1, length(:prefix)) = :prefix

-- name: count_deaths
INSERT INTO homing_alert_cause (cause, kind, facts, pending, state)
SELECT json_extract(d.value, '$.cause'), 'dead', json_extract(d.value, '$.facts'), json_extract(d.value, '$.count'), 'firing'
FROM json_each(:deaths) AS d
WHERE NOT EXISTS (SELECT 1 FROM homing_alert_batch WHERE batch = :batch)
ON CONFLICT (cause) DO UPDATE
SET pending = pending + excluded.pending, facts = excluded.facts, revision = revision + 1, updated_at = {now},
    since = CASE state WHEN 'quiet' THEN {now} ELSE since END, state = 'firing';
INSERT INTO homing_alert_batch (batch) VALUES (:batch) ON CONFLICT (batch) DO NOTHING RETURNING batch

-- name: seen
SELECT revision, seen FROM homing_alert_seen WHERE lane = :lane

-- name: note_seen
INSERT INTO homing_alert_seen (lane, revision, seen)
VALUES (:lane, 1, :seen)
ON CONFLICT (lane) DO UPDATE SET revision = revision + 1, seen = excluded.seen
WHERE homing_alert_seen.revision = :revision
RETURNING lane

-- name: tell
-- Somebody else's verdict has raised the revision, and then neither statement does anything.
INSERT INTO homing_alert (cause, kind, event, facts, ways)
SELECT :cause, :kind, :event, :alert_facts, :ways
WHERE :event IS NOT NULL
  AND coalesce((SELECT revision FROM homing_alert_cause WHERE cause = :cause), 0) = :revision;
INSERT INTO homing_alert_cause (cause, kind, state, since, facts, pending, level, told, revision)
VALUES (:cause, :kind, :state, :since, :facts, :pending, :level, :told, 1)
ON CONFLICT (cause) DO UPDATE
SET state = excluded.state, since = excluded.since, facts = excluded.facts, level = excluded.level,
    told = excluded.told, pending = excluded.pending, revision = homing_alert_cause.revision + 1, updated_at = {now}
WHERE homing_alert_cause.revision = :revision
RETURNING cause

-- name: tell_test
INSERT INTO homing_alert (cause, kind, event, facts, ways) VALUES ('test', 'test', 'test', '{}', :ways) RETURNING id

-- name: silence
INSERT INTO homing_alert_cause (cause, kind, silenced_until, silenced_by)
VALUES (:cause, :kind, {later}, :by)
ON CONFLICT (cause) DO UPDATE
SET silenced_until = excluded.silenced_until, silenced_by = excluded.silenced_by, updated_at = {now}
RETURNING {cause}

-- fragment: left_over
SELECT 1 FROM json_each(a.ways) AS w WHERE CASE w.value WHEN 'mail' THEN a.mail_id ELSE a.job_id END IS NULL

-- name: waiting
SELECT {alert}, a.token FROM homing_alert AS a
WHERE NOT a.handed_over AND a.id > :after
  AND (NOT EXISTS ({left_over}) OR EXISTS ({left_over} AND w.value NOT IN (SELECT value FROM json_each(:away)))
       OR EXISTS (SELECT 1 FROM json_each(:working) AS w WHERE w.value NOT IN (SELECT value FROM json_each(a.ways))))
ORDER BY a.id LIMIT :limit

-- name: renew_token
UPDATE homing_alert SET token = :token WHERE id = :id AND NOT handed_over RETURNING id

-- name: note_ways
UPDATE homing_alert
SET ways = :ways, mail_id = coalesce(mail_id, :mail_id), job_id = coalesce(job_id, :job_id), handed_over = :handed_over
WHERE id = :id AND NOT handed_over
RETURNING handed_over

-- name: recent
SELECT {alert}, CASE WHEN c.silenced_until > {now} THEN c.silenced_until END AS silenced_until
FROM homing_alert AS a LEFT JOIN homing_alert_cause AS c ON c.cause = a.cause
ORDER BY a.at DESC, a.id DESC
LIMIT :limit

-- name: get
SELECT {alert}, CASE WHEN c.silenced_until > {now} THEN c.silenced_until END AS silenced_until
FROM homing_alert AS a LEFT JOIN homing_alert_cause AS c ON c.cause = a.cause
WHERE a.id = :id

-- name: firing
SELECT {cause} FROM homing_alert_cause WHERE state = 'firing' ORDER BY since LIMIT :limit

-- name: silenced
SELECT {cause} FROM homing_alert_cause WHERE silenced_until > {now} ORDER BY cause LIMIT :limit

-- name: forget
DELETE FROM homing_alert_batch WHERE at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-7 days');
DELETE FROM homing_alert_cause
WHERE state = 'quiet' AND pending = 0
  AND updated_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', CASE kind WHEN 'dead' THEN '-1 day' ELSE '-30 days' END)
  AND (silenced_until IS NULL OR silenced_until < {now});
DELETE FROM homing_alert WHERE at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-90 days') AND handed_over RETURNING id
