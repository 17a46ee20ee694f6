-- mail_outbox on SQLite: the same queries by the same names. FOR UPDATE SKIP LOCKED is missing; every
-- writing statement runs under BEGIN IMMEDIATE instead, so there is only one at a time. Times are ISO
-- text, made by strftime, and JSON is read by json_extract: subsec and ->> need a newer SQLite than 3.35.

-- fragment: form
-- That of the table: another program that made it may have its own, and compares times as text, too. Leases are ours.
(SELECT format FROM homing_time_format WHERE lane = 'mail_outbox')

-- fragment: now
-- In a query of its own, so that SQLite makes it once and not for every row.
(SELECT strftime(format, 'now') FROM homing_time_format WHERE lane = 'mail_outbox')

-- fragment: age
(julianday('now') - julianday(max(created_at, coalesce(send_at, ''), CASE claim_seq WHEN 1 THEN next_attempt_at ELSE '' END))) * 86400.0

-- fragment: put_back
(ended_claim IS claim_seq OR ended_claim IS NULL AND sent_at IS NOT NULL)

-- fragment: had_all
(delivered_by IS NOT NULL OR ended_claim IS NULL)

-- fragment: keep_accepted
(SELECT nullif(json_group_object(key, json(value)), '{}')
 FROM json_each(CASE WHEN json_valid(mail_outbox.recipients) THEN mail_outbox.recipients END)
 WHERE CASE type WHEN 'object' THEN json_extract(value, '$.status') END = 'accepted')

-- fragment: bytes
(ifnull(length(CAST(from_address AS BLOB)), 0) + ifnull(length(CAST(to_address AS BLOB)), 0) +
    ifnull(length(CAST(cc_address AS BLOB)), 0) + ifnull(length(CAST(bcc_address AS BLOB)), 0) +
    ifnull(length(CAST(reply_to AS BLOB)), 0) + ifnull(length(CAST(subject AS BLOB)), 0) +
    ifnull(length(CAST(headers AS BLOB)), 0) + ifnull(length(CAST(recipients AS BLOB)), 0) +
    ifnull(length(CAST(text_body AS BLOB)), 0) + ifnull(length(CAST(html_body AS BLOB)), 0) +
    ifnull(length(CAST(variables AS BLOB)), 0) + ifnull(length(CAST(attachments AS BLOB)), 0))

-- fragment: about
-- Characters of what is not its content. To count them copies nothing.
(ifnull(length(from_address), 0) + ifnull(length(to_address), 0) + ifnull(length(cc_address), 0) +
    ifnull(length(bcc_address), 0) + ifnull(length(reply_to), 0) + ifnull(length(subject), 0) +
    ifnull(length(headers), 0) + ifnull(length(recipients), 0))

-- fragment: size
CASE WHEN {about} > 16384 OR {about} + ifnull(length(text_body), 0) + ifnull(length(html_body), 0)
        + ifnull(length(variables), 0) + ifnull(length(attachments), 0) > 65536
     THEN {bytes} ELSE 0 END

-- fragment: claimed
-- As on PostgreSQL, value by value: RETURNING knows nothing but the table.
id, claim_seq AS fence, retry_count AS attempts, defer_count AS deferrals, {age} AS age,
    substr(traceparent, 1, 200) AS traceparent, next_attempt_at AS due_at, last_attempt_at, expires_at <= {now} AS expired,
    CASE WHEN length(from_address) <= 16384 THEN from_address END AS from_address,
    CASE WHEN length(to_address) <= 16384 THEN to_address END AS to_address,
    CASE WHEN length(cc_address) <= 16384 THEN cc_address END AS cc_address,
    CASE WHEN length(bcc_address) <= 16384 THEN bcc_address END AS bcc_address,
    CASE WHEN length(reply_to) <= 16384 THEN reply_to END AS reply_to,
    CASE WHEN length(subject) <= 16384 THEN subject END AS subject,
    CASE WHEN length(text_body) <= 65536 THEN text_body END AS text_body,
    CASE WHEN length(html_body) <= 65536 THEN html_body END AS html_body, substr(template, 1, 300) AS template,
    CASE WHEN length(variables) <= 65536 THEN variables END AS variables, substr(locale, 1, 100) AS locale,
    CASE WHEN length(headers) <= 16384 THEN headers END AS headers, attachments IS NOT NULL AS has_attachments,
    substr(unsubscribe_url, 1, 3000) AS unsubscribe_url, substr(token, 1, 300) AS token,
    CASE WHEN length(recipients) <= 16384 THEN recipients END AS recipients, {size} AS size

-- name: claim
WITH candidates AS MATERIALIZED (
    SELECT id
    FROM mail_outbox
    WHERE status = 'queued'
      AND next_attempt_at <= {now}
      AND retry_count < :max_attempts
    ORDER BY next_attempt_at ASC, id ASC
    LIMIT :limit
)
UPDATE mail_outbox
SET status = 'dispatching',
    last_attempt_at = {now},
    claim_seq = claim_seq + 1,
    locked_by = :owner,
    lease_expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :lease_seconds)),
    recipients = CASE WHEN NOT {put_back} THEN recipients WHEN NOT {had_all} THEN {keep_accepted} END,
    token = CASE WHEN {put_back} AND {had_all} THEN lower(hex(randomblob(16))) ELSE token END,
    expires_at = CASE WHEN {put_back} AND expires_at <= {now} THEN NULL ELSE expires_at END,
    ended_claim = CASE WHEN {put_back} THEN claim_seq ELSE ended_claim END
FROM candidates
WHERE mail_outbox.id = candidates.id
RETURNING {claimed}

-- name: claim_lost
WITH lost AS MATERIALIZED (
    SELECT id
    FROM mail_outbox
    WHERE status = 'dispatching'
      AND coalesce(lease_expires_at, strftime('%Y-%m-%dT%H:%M:%fZ', last_attempt_at,
                   printf('%+.3f seconds', :lease_seconds)), '') < strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      AND rescue_count >= 3
    ORDER BY id
    LIMIT :limit
)
UPDATE mail_outbox
SET claim_seq = claim_seq + 1,
    rescue_count = rescue_count + 1,
    locked_by = :owner,
    lease_expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :lease_seconds))
FROM lost
WHERE mail_outbox.id = lost.id
RETURNING {claimed}

-- name: settle
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence, json_extract(value, '$.status') AS status,
        json_extract(value, '$.charged') AS charged, json_extract(value, '$.delay') AS delay, json_extract(value, '$.error') AS error,
        json_extract(value, '$.recipients') AS recipients, json_extract(value, '$.provider') AS provider,
        json_extract(value, '$.provider_message_id') AS provider_message_id, json_extract(value, '$.millis') AS millis
    FROM json_each(:batch)
)
UPDATE mail_outbox
SET status = batch.status,
    retry_count = retry_count + batch.charged,
    defer_count = CASE WHEN batch.status = 'queued' AND batch.charged = 0 THEN defer_count + 1 ELSE 0 END,
    next_attempt_at = CASE WHEN batch.status = 'queued'
        THEN strftime({form}, 'now', printf('%+.3f seconds', batch.delay))
        ELSE next_attempt_at END,
    last_error = batch.error,
    recipients = coalesce(batch.recipients, mail_outbox.recipients),
    provider = coalesce(batch.provider, mail_outbox.provider),
    provider_message_id = coalesce(batch.provider_message_id, mail_outbox.provider_message_id),
    sent_at = CASE WHEN batch.status = 'sent' THEN {now} ELSE sent_at END,
    delivered_by = CASE WHEN batch.status = 'sent' THEN :owner END,
    delivered_millis = coalesce(batch.millis, delivered_millis),
    ended_claim = CASE WHEN batch.status = 'queued' THEN ended_claim ELSE claim_seq END,
    locked_by = NULL,
    lease_expires_at = NULL
FROM batch
WHERE mail_outbox.id = batch.id AND mail_outbox.status = 'dispatching' AND mail_outbox.claim_seq = batch.fence
RETURNING id

-- name: confirm
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)
SELECT mail_outbox.id
FROM batch JOIN mail_outbox ON mail_outbox.id = batch.id
WHERE mail_outbox.claim_seq = batch.fence AND mail_outbox.status <> 'dispatching'

-- name: renew
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)
UPDATE mail_outbox
SET lease_expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :lease_seconds))
FROM batch
WHERE mail_outbox.id = batch.id AND mail_outbox.status = 'dispatching' AND mail_outbox.claim_seq = batch.fence
RETURNING id

-- name: release
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)
UPDATE mail_outbox
SET status = 'queued', locked_by = NULL, lease_expires_at = NULL
FROM batch
WHERE mail_outbox.id = batch.id AND mail_outbox.status = 'dispatching' AND mail_outbox.claim_seq = batch.fence
RETURNING id

-- name: rescue
-- The fence rises, so that a settlement that was never written cannot be taken for one that was. A row
-- without a lease was marked by somebody else's SQL; it gets the lease it would have had.
WITH lost AS MATERIALIZED (
    SELECT id
    FROM mail_outbox
    WHERE status = 'dispatching'
      AND coalesce(lease_expires_at, strftime('%Y-%m-%dT%H:%M:%fZ', last_attempt_at,
                   printf('%+.3f seconds', :lease_seconds)), '') < strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      AND rescue_count < 3
    ORDER BY id
    LIMIT :limit
)
UPDATE mail_outbox
SET status = 'queued',
    claim_seq = claim_seq + 1,
    rescue_count = rescue_count + 1,
    next_attempt_at = {now},
    locked_by = NULL,
    lease_expires_at = NULL
FROM lost
WHERE mail_outbox.id = lost.id
RETURNING id

-- name: sweep
WITH over AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, 'expired' AS status
        FROM mail_outbox
        WHERE status = 'queued' AND expires_at IS NOT NULL
          AND expires_at <= {now} AND NOT {put_back}
        LIMIT :limit)
    UNION ALL
    SELECT * FROM (
        SELECT id, 'failed' AS status
        FROM mail_outbox
        WHERE status = 'queued' AND retry_count > 0 AND retry_count >= :max_attempts
          AND (expires_at IS NULL OR expires_at > {now} OR {put_back})
        LIMIT :limit)
)
UPDATE mail_outbox
SET status = over.status,
    last_error = CASE WHEN over.status = 'expired' THEN 'expired before it could be sent'
                      ELSE coalesce(last_error, 'no attempts left') END,
    ended_claim = claim_seq
FROM over
WHERE mail_outbox.id = over.id
RETURNING status

-- name: preview
SELECT id, retry_count, next_attempt_at, last_attempt_at
FROM mail_outbox
WHERE status = 'queued'
  AND next_attempt_at <= {now}
  AND retry_count < :max_attempts
ORDER BY next_attempt_at ASC, id ASC
LIMIT :limit

-- name: due
SELECT count(*) AS count
FROM mail_outbox
WHERE status = 'queued' AND next_attempt_at <= {now} AND retry_count < :max_attempts

-- name: by_ids
SELECT id, status, retry_count, next_attempt_at, last_attempt_at
FROM mail_outbox
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: weigh
SELECT {bytes} AS size FROM mail_outbox WHERE id = :id

-- name: parts
SELECT from_address, to_address, cc_address, bcc_address, reply_to, subject, text_body, html_body,
    variables, headers, recipients, attachments
FROM mail_outbox WHERE id = :id

-- name: enqueue
INSERT INTO mail_outbox (
    from_address, to_address, cc_address, bcc_address, reply_to, subject, text_body, html_body, template,
    variables, locale, headers, attachments, unsubscribe_url, idempotency_key, fingerprint, expires_at,
    metadata, token, traceparent, send_at, status, retry_count, created_at, next_attempt_at)
SELECT
    json_extract(value, '$.from_address'), json_extract(value, '$.to_address'), json_extract(value, '$.cc_address'), json_extract(value, '$.bcc_address'),
    json_extract(value, '$.reply_to'), json_extract(value, '$.subject'),
    -- What is large comes apart: every json_extract of a row holds the whole row.
    coalesce(:text_body, json_extract(value, '$.text_body')), coalesce(:html_body, json_extract(value, '$.html_body')),
    json_extract(value, '$.template'), coalesce(:variables, json_extract(value, '$.variables')),
    json_extract(value, '$.locale'), coalesce(:headers, json_extract(value, '$.headers')),
    coalesce(:attachments, json_extract(value, '$.attachments')),
    json_extract(value, '$.unsubscribe_url'), json_extract(value, '$.idempotency_key'), json_extract(value, '$.fingerprint'),
    json_extract(value, '$.expires_at'), coalesce(:metadata, json_extract(value, '$.metadata')), json_extract(value, '$.token'),
    json_extract(value, '$.traceparent'), json_extract(value, '$.send_at'),
    -- Another program's columns may have no default.
    'queued', 0, {now},
    CASE WHEN json_extract(value, '$.urgent')
         THEN strftime({form}, 'now', '-1 day')
         ELSE coalesce(json_extract(value, '$.send_at'), {now}) END
FROM json_each(:batch)
WHERE true
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id, token, status

-- name: by_idempotency_key
SELECT id, idempotency_key, fingerprint, status
FROM mail_outbox
WHERE idempotency_key IN (SELECT value FROM json_each(:keys))

-- name: get
SELECT *, expires_at <= {now} AS expired FROM mail_outbox WHERE id = :id

-- name: page
SELECT id, status, retry_count, next_attempt_at, last_attempt_at, last_error, to_address, subject, template,
    idempotency_key, provider, created_at, sent_at
FROM mail_outbox
WHERE (:status IS NULL OR status = :status) AND (:before IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit

-- name: page_ended
-- The states are named, so that the planner knows its small index applies.
SELECT id, status, retry_count, next_attempt_at, last_attempt_at, last_error, to_address, subject, template,
    idempotency_key, provider, created_at, sent_at
FROM mail_outbox
WHERE status IN ('failed', 'cancelled', 'expired') AND status = :status AND (:before IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit

-- name: page_dispatching
SELECT id, status, retry_count, next_attempt_at, last_attempt_at, last_error, to_address, subject, template,
    idempotency_key, provider, created_at, sent_at
FROM mail_outbox
WHERE status = 'dispatching' AND (:before IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit

-- name: requeue
UPDATE mail_outbox
SET status = 'queued', retry_count = 0, rescue_count = 0, defer_count = 0,
    next_attempt_at = {now}, ended_claim = claim_seq
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('failed', 'cancelled', 'expired')
RETURNING id

-- name: cancel
UPDATE mail_outbox
SET status = 'cancelled', ended_claim = claim_seq
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'queued'
RETURNING id

-- name: send_now
UPDATE mail_outbox
SET next_attempt_at = min(next_attempt_at, {now}),
    send_at = min(send_at, {now})
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'queued'
RETURNING id

-- name: ended_ids
SELECT id
FROM mail_outbox
WHERE status IN ('failed', 'cancelled', 'expired') AND status = :status AND id > :after
ORDER BY id
LIMIT :limit

-- name: queued_ids
SELECT id FROM mail_outbox WHERE status = 'queued' ORDER BY next_attempt_at, id LIMIT :limit

-- name: counts
-- Every state has its tally here (migrations/sqlite/0003_tally.sql).
SELECT state AS status, count FROM homing_tally WHERE lane = 'mail_outbox'

-- fragment: due_since
max(next_attempt_at, coalesce(created_at, ''))

-- name: oldest_due
SELECT (julianday('now') - julianday({due_since})) * 86400.0 AS age
FROM mail_outbox INDEXED BY mail_outbox_due_since
WHERE status = 'queued' AND {due_since} <= {now}
  AND (:with_alerts OR idempotency_key IS NULL OR idempotency_key NOT LIKE 'homing-alert:%')
ORDER BY {due_since}
LIMIT 1

-- fragment: ended
max(o.created_at, coalesce(o.sent_at, o.created_at), coalesce(o.last_attempt_at, o.created_at), o.next_attempt_at,
    CASE WHEN o.status = 'expired' AND o.expires_at IS NOT NULL THEN o.expires_at ELSE o.created_at END)

-- fragment: prunable
-- CROSS JOIN keeps this order: by id, without the index of states.
mail_outbox AS o CROSS JOIN json_each(:ages) AS a
WHERE +o.status IN ('sent', 'failed', 'cancelled', 'expired') AND o.status = json_extract(a.value, '$.state')
  AND {ended} < strftime({form}, 'now', printf('-%d seconds', json_extract(a.value, '$.seconds')))

-- name: prune_window
SELECT max(id) AS last,
    min(created_at) < strftime({form}, 'now', printf('-%d seconds', :youngest)) AS old
FROM (SELECT id, created_at FROM mail_outbox WHERE id > :after ORDER BY id LIMIT :window)

-- name: prune_survey
SELECT o.status AS state, count(*) AS count, min({ended}) AS oldest
FROM {prunable} AND o.id > :after AND o.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT o.id AS id FROM {prunable} AND o.id > :after AND o.id <= :until ORDER BY o.id LIMIT :limit

-- name: prune
DELETE FROM mail_outbox
WHERE id IN (SELECT o.id FROM {prunable} AND o.id IN (SELECT value FROM json_each(:ids)))
RETURNING status AS state
