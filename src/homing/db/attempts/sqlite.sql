-- Attempts that did not deliver: the same queries by the same names.

-- name: keep
INSERT INTO homing_attempt (lane, message_id, fence, number, ended_at, duration_millis, worker, code, message, unknown)
SELECT {lane}, m.{key}, m.claim_seq, json_extract(b.value, '$.number'), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
    json_extract(b.value, '$.millis'), :owner, json_extract(b.value, '$.code'), json_extract(b.value, '$.message'),
    json_extract(b.value, '$.unknown')
FROM json_each(:attempts) AS b
CROSS JOIN {messages} AS m ON m.{key} = json_extract(b.value, '$.id') AND m.claim_seq = json_extract(b.value, '$.fence')
WHERE true
ON CONFLICT (lane, message_id, fence) DO UPDATE
SET number = excluded.number, ended_at = excluded.ended_at, duration_millis = excluded.duration_millis,
    worker = excluded.worker, code = excluded.code, message = excluded.message, unknown = excluded.unknown

-- name: of
SELECT fence, number, ended_at, duration_millis, worker, code, message, unknown
FROM homing_attempt
WHERE lane = {lane} AND message_id = :id
ORDER BY fence

-- name: forget
DELETE FROM homing_attempt
WHERE lane = {lane} AND message_id IN (SELECT value FROM json_each(:ids))
  AND NOT EXISTS (SELECT 1 FROM {messages} AS m WHERE m.{key} = homing_attempt.message_id)

-- fragment: orphaned
a.lane = {lane} AND json_extract(g.value, '$.state') = 'attempts'
    AND a.ended_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', json_extract(g.value, '$.seconds')))
    AND NOT EXISTS (SELECT 1 FROM {messages} AS m WHERE m.{key} = a.message_id)

-- name: prune_orphans_window
SELECT max(message_id) AS last,
    min(ended_at) < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', :youngest)) AS old
FROM (SELECT message_id, ended_at FROM homing_attempt
      WHERE lane = {lane} AND message_id > :after ORDER BY message_id LIMIT :window)

-- name: prune_orphans_survey
SELECT 'attempts' AS state, count(*) AS count, min(a.ended_at) AS oldest
FROM homing_attempt AS a CROSS JOIN json_each(:ages) AS g
WHERE {orphaned} AND a.message_id > :after AND a.message_id <= :until
GROUP BY 1

-- name: prune_orphans_candidates
SELECT DISTINCT a.message_id AS id
FROM homing_attempt AS a CROSS JOIN json_each(:ages) AS g
WHERE {orphaned} AND a.message_id > :after AND a.message_id <= :until
ORDER BY 1
LIMIT :limit

-- name: prune_orphans
DELETE FROM homing_attempt
WHERE (lane, message_id, fence) IN (
    SELECT a.lane, a.message_id, a.fence FROM homing_attempt AS a CROSS JOIN json_each(:ages) AS g
    WHERE {orphaned} AND a.message_id IN (SELECT value FROM json_each(:ids)))
RETURNING 'attempts' AS state
