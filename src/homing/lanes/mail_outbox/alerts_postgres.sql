-- What alerts ask of mail_outbox on PostgreSQL. Mails that are alerts are left out of everything.

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
