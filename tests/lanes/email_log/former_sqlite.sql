-- The sender of the version before there was leased_until, as it was: what an old process does to the rows during an upgrade.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: lease
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :lease_seconds))

-- fragment: claimed
id, claim_seq AS fence, attempt_count AS attempts, defer_count AS deferrals,
    (julianday('now') - julianday(created_at)) * 86400.0 AS age, traceparent, next_attempt_at AS due_at,
    message_key, last_attempt_at, from_address, to_address, cc_address, bcc_address, reply_to, subject,
    body AS text_body, html_body, template, variables, locale, headers,
    attachments IS NOT NULL AS has_attachments, unsubscribe_url, token, recipients

-- fragment: fences
batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)

-- name: claim_these
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT json_extract(value, '$.id') AS id, json_extract(value, '$.key') AS key FROM json_each(:batch)
)
UPDATE email_log
SET status = 'Pending',
    last_attempt_at = {now},
    next_attempt_at = CASE WHEN status = 'RetryQueued' OR last_queued_at IS NULL
        THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :sweep_seconds)) ELSE next_attempt_at END,
    queue_count = 0,
    last_queued_at = CASE WHEN status = 'RetryQueued' THEN {now} ELSE coalesce(last_queued_at, {now}) END,
    claim_seq = claim_seq + 1,
    locked_by = :owner,
    locked_until = {lease}
FROM wanted
WHERE email_log.id = wanted.id AND email_log.message_key = wanted.key
  AND attempt_count < :max_attempts
  AND (status = 'RetryQueued'
       OR status = 'Pending' AND (locked_until IS NULL OR last_queued_at IS NULL
                                  OR locked_by IS NULL AND locked_until < {now}))
RETURNING {claimed}

-- name: settle
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence,
        json_extract(value, '$.status') AS status, json_extract(value, '$.charged') AS charged,
        json_extract(value, '$.delay') AS delay, json_extract(value, '$.error') AS error,
        json_extract(value, '$.dead_reason') AS dead_reason, json_extract(value, '$.recipients') AS recipients,
        json_extract(value, '$.provider') AS provider,
        json_extract(value, '$.provider_message_id') AS provider_message_id, json_extract(value, '$.millis') AS millis
    FROM json_each(:batch)
)
UPDATE email_log
SET status = batch.status,
    attempt_count = attempt_count + batch.charged,
    defer_count = CASE WHEN batch.status = 'Failed' AND batch.charged = 0 THEN defer_count + 1 ELSE 0 END,
    next_attempt_at = CASE WHEN batch.status = 'Failed'
        THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', batch.delay))
        ELSE next_attempt_at END,
    last_error = batch.error,
    dead_reason = batch.dead_reason,
    recipients = coalesce(batch.recipients, email_log.recipients),
    provider = coalesce(batch.provider, email_log.provider),
    provider_message_id = coalesce(batch.provider_message_id, email_log.provider_message_id),
    sent_at = CASE WHEN batch.status = 'Sent' THEN {now} ELSE sent_at END,
    delivered_by = CASE WHEN batch.status = 'Sent' THEN :owner ELSE delivered_by END,
    delivered_millis = coalesce(batch.millis, delivered_millis),
    locked_by = NULL,
    locked_until = NULL
FROM batch
WHERE email_log.id = batch.id AND email_log.locked_by IS NOT NULL AND email_log.claim_seq = batch.fence
RETURNING id

-- name: renew
WITH {fences}
UPDATE email_log
SET locked_until = {lease}
FROM batch
WHERE email_log.id = batch.id AND email_log.locked_by IS NOT NULL AND email_log.claim_seq = batch.fence
RETURNING id
