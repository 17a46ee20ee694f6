-- What alerts ask of email_log on PostgreSQL.

-- name: has_deaths
SELECT EXISTS (SELECT FROM homing_email_death) AS some

-- name: mark_deaths
-- What somebody has marked and not yet deleted comes first; only then is more marked.
UPDATE homing_email_death
SET batch = :batch
WHERE id = ANY (ARRAY(SELECT id FROM homing_email_death WHERE batch IS NULL ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED))
  AND NOT EXISTS (SELECT FROM homing_email_death WHERE batch IS NOT NULL)
RETURNING id

-- name: marked_deaths
SELECT batch, error, count(*) AS count, max(message_id) AS example, min(died_at) AS first_at, max(died_at) AS last_at
FROM homing_email_death
WHERE batch IS NOT NULL
GROUP BY batch, error
ORDER BY batch, error

-- name: drop_deaths
DELETE FROM homing_email_death WHERE batch = :batch RETURNING id
