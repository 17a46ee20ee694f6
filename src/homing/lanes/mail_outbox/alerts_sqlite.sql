-- What alerts ask of mail_outbox on SQLite.

-- name: oldest_due
SELECT max((julianday('now') - julianday(max(next_attempt_at, created_at))) * 86400.0) AS age
FROM (
    SELECT next_attempt_at, created_at
    FROM mail_outbox INDEXED BY mail_outbox_due
    WHERE status = 'queued' AND next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      AND (idempotency_key IS NULL OR idempotency_key NOT LIKE 'homing-alert:%')
    ORDER BY next_attempt_at, id
    LIMIT 100)
