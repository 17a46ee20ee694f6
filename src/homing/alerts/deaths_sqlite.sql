-- What died, on SQLite, as a lane's table notes it: `deaths` is given, `homing_mail_death`, `homing_email_death` or
-- `homing_job_death`.

-- name: has_deaths
SELECT EXISTS (SELECT 1 FROM {deaths}) AS some

-- name: mark_deaths
UPDATE {deaths}
SET batch = :batch
WHERE id IN (SELECT id FROM {deaths} WHERE batch IS NULL ORDER BY id LIMIT :limit)
  AND NOT EXISTS (SELECT 1 FROM {deaths} WHERE batch IS NOT NULL)
RETURNING id

-- name: marked_deaths
SELECT batch, error, count(*) AS count, max(message_id) AS example
FROM {deaths}
WHERE batch IS NOT NULL
GROUP BY batch, error
ORDER BY batch, error

-- name: drop_deaths
DELETE FROM {deaths} WHERE batch = :batch RETURNING id
