-- name: keep
INSERT INTO homing_caught_mail (message_id, sender, recipients, subject, source)
SELECT b.message_id, b.sender, b.recipients, b.subject, b.source
FROM json_to_recordset(:batch::json) AS b(
    message_id text, sender text, recipients jsonb, subject text, source text)
RETURNING id

-- name: forget_old
DELETE FROM homing_caught_mail WHERE id <= (SELECT max(id) - :kept FROM homing_caught_mail) RETURNING id

-- name: list
SELECT id, message_id, sender, recipients, subject, caught_at
FROM homing_caught_mail ORDER BY id DESC LIMIT :limit

-- name: get
SELECT id, message_id, sender, recipients, subject, caught_at, source FROM homing_caught_mail WHERE id = :id
