-- Attempts that did not deliver: the same queries by the same names.

-- name: keep
INSERT INTO homing_attempt (lane, message_id, fence, number, ended_at, duration_millis, worker, code, message)
SELECT :attempts_of, json_extract(value, '$.id'), json_extract(value, '$.fence'), json_extract(value, '$.number'),
    strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), json_extract(value, '$.millis'), :owner, json_extract(value, '$.code'),
    json_extract(value, '$.message')
FROM json_each(:attempts)
WHERE true
ON CONFLICT DO NOTHING

-- name: of
SELECT fence, number, ended_at, duration_millis, worker, code, message
FROM homing_attempt
WHERE lane = :attempts_of AND message_id = :id
ORDER BY fence

-- name: forget
-- Those whose message is gone: one that was requeued in the moment of pruning is still there, and so is its story.
DELETE FROM homing_attempt
WHERE lane = :attempts_of AND message_id IN (SELECT value FROM json_each(:ids))
  AND NOT EXISTS (SELECT 1 FROM MESSAGES AS m WHERE m.KEY = homing_attempt.message_id)
