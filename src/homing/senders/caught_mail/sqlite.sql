-- name: keep
INSERT INTO homing_caught_mail (message_id, sender, recipients, subject, source)
SELECT json_extract(value, '$.message_id'), json_extract(value, '$.sender'), json_extract(value, '$.recipients'),
    json_extract(value, '$.subject'), json_extract(value, '$.source')
FROM json_each(:batch)
WHERE true
RETURNING id

-- name: forget_old
DELETE FROM homing_caught_mail WHERE id <= (SELECT max(id) - :kept FROM homing_caught_mail) RETURNING id

-- name: list
SELECT id, message_id, sender, recipients, subject, caught_at
FROM homing_caught_mail ORDER BY id DESC LIMIT :limit

-- name: get
SELECT id, message_id, sender, recipients, subject, caught_at, source FROM homing_caught_mail WHERE id = :id
