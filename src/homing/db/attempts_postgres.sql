-- Attempts that did not deliver. The fence tells two attempts of a message apart, and one from its repetition: what was
-- written though the answer was lost is written once.

-- name: keep
INSERT INTO homing_attempt (lane, message_id, fence, number, ended_at, duration_millis, worker, code, message)
SELECT :attempts_of, b.id, b.fence, b.number, now(), b.millis, :owner, b.code, b.message
FROM json_to_recordset(:attempts::json) AS b(id bigint, fence bigint, number integer, millis integer, code text, message text)
ON CONFLICT DO NOTHING

-- name: of
SELECT fence, number, ended_at, duration_millis, worker, code, message
FROM homing_attempt
WHERE lane = :attempts_of AND message_id = :id
ORDER BY fence

-- name: forget
-- Those whose message is gone: one that was requeued in the moment of pruning is still there, and so is its story.
DELETE FROM homing_attempt
WHERE lane = :attempts_of AND message_id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
  AND NOT EXISTS (SELECT 1 FROM MESSAGES AS m WHERE m.KEY = homing_attempt.message_id)
