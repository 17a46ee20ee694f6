-- What alerts ask of mail_outbox on PostgreSQL. Mails that are alerts are left out of everything.

-- name: has_deaths
SELECT EXISTS (SELECT FROM homing_mail_death) AS some

-- name: mark_deaths
-- What somebody has marked and not yet deleted comes first; only then is more marked.
UPDATE homing_mail_death
SET batch = :batch
WHERE id = ANY (ARRAY(SELECT id FROM homing_mail_death WHERE batch IS NULL ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED))
  AND NOT EXISTS (SELECT FROM homing_mail_death WHERE batch IS NOT NULL)
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
-- An urgent mail is due before it was ordered, and comes first; so the oldest is looked for among the first.
SELECT max(extract(epoch FROM now() - greatest(next_attempt_at, created_at)))::double precision AS age
FROM (
    SELECT next_attempt_at, created_at
    FROM mail_outbox
    WHERE status = 'queued' AND next_attempt_at <= now()
      AND (idempotency_key IS NULL OR idempotency_key NOT LIKE 'homing-alert:%')
    ORDER BY next_attempt_at, id
    LIMIT 100) AS first
