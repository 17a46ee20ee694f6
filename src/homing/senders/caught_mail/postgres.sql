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

-- fragment: prunable
homing_caught_mail AS m
CROSS JOIN json_to_recordset(:ages::json) AS a(state text, seconds double precision)
WHERE m.caught_at < now() - make_interval(secs => a.seconds)

-- name: prune_window
SELECT max(id) AS last, min(caught_at) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT id, caught_at FROM homing_caught_mail WHERE id > :after ORDER BY id LIMIT :window) AS ahead

-- name: prune_survey
SELECT a.state, count(*) AS count, min(m.caught_at) AS oldest
FROM {prunable} AND m.id > :after AND m.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT m.id FROM {prunable} AND m.id > :after AND m.id <= :until ORDER BY m.id LIMIT :limit

-- name: prune
DELETE FROM homing_caught_mail AS m
USING json_to_recordset(:ages::json) AS a(state text, seconds double precision)
WHERE m.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
RETURNING a.state
