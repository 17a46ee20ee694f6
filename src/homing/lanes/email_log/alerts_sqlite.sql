-- What alerts ask of email_log on SQLite.

-- name: has_deaths
SELECT EXISTS (SELECT 1 FROM homing_email_death) AS some

-- name: mark_deaths
UPDATE homing_email_death
SET batch = :batch
WHERE id IN (SELECT id FROM homing_email_death WHERE batch IS NULL ORDER BY id LIMIT :limit)
  AND NOT EXISTS (SELECT 1 FROM homing_email_death WHERE batch IS NOT NULL)
RETURNING id

-- name: marked_deaths
SELECT batch, error, count(*) AS count, max(message_id) AS example, min(died_at) AS first_at, max(died_at) AS last_at
FROM homing_email_death
WHERE batch IS NOT NULL
GROUP BY batch, error
ORDER BY batch, error

-- name: drop_deaths
DELETE FROM homing_email_death WHERE batch = :batch RETURNING id
