-- Attempts that did not deliver. Where the messages of a lane stand is given: messages, key; and lane is its name.

-- name: keep
-- In the transaction of settle and after it. A claim that is not the last of its message was not settled, and nothing
-- is kept of it. What was written though the answer was lost is written again; and where ids are used again, what was
-- left of another message is written over.
INSERT INTO homing_attempt (lane, message_id, fence, number, ended_at, duration_millis, worker, code, message, unknown)
SELECT {lane}, b.id, b.fence, b.number, now(), b.millis, :owner, b.code, b.message, b.unknown
FROM json_to_recordset(:attempts::json) AS b(
    id bigint, fence bigint, number integer, millis integer, code text, message text, unknown boolean)
JOIN {messages} AS m ON m.{key} = b.id AND m.claim_seq = b.fence
ON CONFLICT (lane, message_id, fence) DO UPDATE
SET number = excluded.number, ended_at = excluded.ended_at, duration_millis = excluded.duration_millis,
    worker = excluded.worker, code = excluded.code, message = excluded.message, unknown = excluded.unknown

-- name: of
SELECT fence, number, ended_at, duration_millis, worker, code, message, unknown
FROM homing_attempt
WHERE lane = {lane} AND message_id = :id
ORDER BY fence

-- name: forget
-- One that was requeued in the moment of pruning is still there, and so is its story.
DELETE FROM homing_attempt AS a
WHERE a.lane = {lane} AND a.message_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
  AND NOT EXISTS (SELECT 1 FROM {messages} AS m WHERE m.{key} = a.message_id)

-- fragment: orphaned
-- Whose message another program has deleted.
a.lane = {lane} AND g.state = 'attempts' AND a.ended_at < now() - make_interval(secs => g.seconds)
    AND NOT EXISTS (SELECT 1 FROM {messages} AS m WHERE m.{key} = a.message_id)

-- fragment: ages
json_to_recordset(:ages::json) AS g(state text, seconds double precision)

-- name: prune_orphans_window
SELECT max(message_id) AS last, min(ended_at) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT message_id, ended_at FROM homing_attempt
      WHERE lane = {lane} AND message_id > :after ORDER BY message_id LIMIT :window) AS next

-- name: prune_orphans_survey
SELECT 'attempts' AS state, count(*) AS count, min(a.ended_at) AS oldest
FROM homing_attempt AS a CROSS JOIN {ages}
WHERE {orphaned} AND a.message_id > :after AND a.message_id <= :until
GROUP BY 1

-- name: prune_orphans_candidates
SELECT DISTINCT a.message_id AS id
FROM homing_attempt AS a CROSS JOIN {ages}
WHERE {orphaned} AND a.message_id > :after AND a.message_id <= :until
ORDER BY 1
LIMIT :limit

-- name: prune_orphans
DELETE FROM homing_attempt AS a
USING {ages}
WHERE {orphaned} AND a.message_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
RETURNING 'attempts' AS state
