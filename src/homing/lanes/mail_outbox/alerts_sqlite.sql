-- What alerts ask of mail_outbox on SQLite.

-- name: has_deaths
SELECT EXISTS (SELECT 1 FROM homing_mail_death) AS some

-- name: mark_deaths
UPDATE homing_mail_death
SET batch = :batch
WHERE id IN (SELECT id FROM homing_mail_death WHERE batch IS NULL ORDER BY id LIMIT :limit)
  AND NOT EXISTS (SELECT 1 FROM homing_mail_death WHERE batch IS NOT NULL)
RETURNING id

-- name: marked_deaths
SELECT batch, error, count(*) AS count, max(message_id) AS example, min(died_at) AS first_at, max(died_at) AS last_at
FROM homing_mail_death
WHERE batch IS NOT NULL
GROUP BY batch, error
ORDER BY batch, error

-- name: drop_deaths
DELETE FROM homing_mail_death WHERE batch = :batch RETURNING id

-- name: oldest_due
SELECT max((julianday('now') - julianday(max(next_attempt_at, created_at))) * 86400.0) AS age
FROM (
    SELECT next_attempt_at, created_at
    FROM mail_outbox INDEXED BY mail_outbox_due
    WHERE status = 'queued' AND next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      AND (idempotency_key IS NULL OR idempotency_key NOT LIKE 'homing-alert:%')
    ORDER BY next_attempt_at, id
    LIMIT 100)
