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

-- fragment: prunable
homing_caught_mail AS m CROSS JOIN json_each(:ages) AS a
WHERE m.caught_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', json_extract(a.value, '$.seconds')))

-- name: prune_window
SELECT max(id) AS last,
    min(caught_at) < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', :youngest)) AS old
FROM (SELECT id, caught_at FROM homing_caught_mail WHERE id > :after ORDER BY id LIMIT :window)

-- name: prune_survey
SELECT json_extract(a.value, '$.state') AS state, count(*) AS count, min(m.caught_at) AS oldest
FROM {prunable} AND m.id > :after AND m.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT m.id FROM {prunable} AND m.id > :after AND m.id <= :until ORDER BY m.id LIMIT :limit

-- name: prune
DELETE FROM homing_caught_mail
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING (SELECT json_extract(value, '$.state') FROM json_each(:ages)) AS state
