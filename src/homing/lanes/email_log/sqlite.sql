-- email_log on SQLite: the same queries by the same names. FOR UPDATE SKIP LOCKED is missing; every writing
-- statement runs under BEGIN IMMEDIATE instead, so there is only one at a time. Times are ISO text, made by strftime.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: lease
-- Never a whole second: that is what another program writes by datetime(), and a lock like ours would be taken for ours.
-- Nor longer than a lease.
substr(strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', :lease_seconds - 0.01)), 1, 22) || '7Z'

-- fragment: bytes
(ifnull(length(CAST(from_address AS BLOB)), 0) + ifnull(length(CAST(to_address AS BLOB)), 0) +
    ifnull(length(CAST(cc_address AS BLOB)), 0) + ifnull(length(CAST(bcc_address AS BLOB)), 0) +
    ifnull(length(CAST(reply_to AS BLOB)), 0) + ifnull(length(CAST(subject AS BLOB)), 0) +
    ifnull(length(CAST(headers AS BLOB)), 0) + ifnull(length(CAST(recipients AS BLOB)), 0) + ifnull(length(CAST(body
    AS BLOB)), 0) + ifnull(length(CAST(html_body AS BLOB)), 0) + ifnull(length(CAST(variables AS BLOB)), 0) +
    ifnull(length(CAST(attachments AS BLOB)), 0))

-- fragment: about
-- Characters of what is not its content. To count them copies nothing.
(ifnull(length(from_address), 0) + ifnull(length(to_address), 0) + ifnull(length(cc_address), 0) +
    ifnull(length(bcc_address), 0) + ifnull(length(reply_to), 0) + ifnull(length(subject), 0) +
    ifnull(length(headers), 0) + ifnull(length(recipients), 0))

-- fragment: size
CASE WHEN {about} > 16384 OR {about} + ifnull(length(body), 0) + ifnull(length(html_body), 0)
        + ifnull(length(variables), 0) + ifnull(length(attachments), 0) > 65536
     THEN {bytes} ELSE 0 END

-- fragment: claimed
-- As on PostgreSQL, value by value: RETURNING knows nothing but the table.
id, claim_seq AS fence, attempt_count AS attempts, defer_count AS deferrals,
    (julianday('now') - julianday(created_at)) * 86400.0 AS age, substr(traceparent, 1, 200) AS traceparent,
    coalesce(next_attempt_at, created_at) AS due_at, message_key, last_attempt_at,
    CASE WHEN length(from_address) <= 16384 THEN from_address END AS from_address,
    CASE WHEN length(to_address) <= 16384 THEN to_address END AS to_address,
    CASE WHEN length(cc_address) <= 16384 THEN cc_address END AS cc_address,
    CASE WHEN length(bcc_address) <= 16384 THEN bcc_address END AS bcc_address,
    CASE WHEN length(reply_to) <= 16384 THEN reply_to END AS reply_to,
    CASE WHEN length(subject) <= 16384 THEN subject END AS subject,
    CASE WHEN length(body) <= 65536 THEN body END AS text_body,
    CASE WHEN length(html_body) <= 65536 THEN html_body END AS html_body, substr(template, 1, 300) AS template,
    CASE WHEN length(variables) <= 65536 THEN variables END AS variables, substr(locale, 1, 100) AS locale,
    CASE WHEN length(headers) <= 16384 THEN headers END AS headers, attachments IS NOT NULL AS has_attachments,
    substr(unsubscribe_url, 1, 3000) AS unsubscribe_url, substr(token, 1, 300) AS token,
    CASE WHEN length(recipients) <= 16384 THEN recipients END AS recipients, {size} AS size

-- fragment: listed
id, message_key, status, attempt_count, next_attempt_at, last_attempt_at, last_queued_at, last_error, dead_reason,
    to_address, subject, template, provider, created_at, sent_at

-- fragment: fences
batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.fence') AS fence FROM json_each(:batch)
)

-- fragment: ours
(locked_by IS NOT NULL AND (leased_claim IS NOT claim_seq OR coalesce(locked_until = leased_until, 1)))

-- fragment: a_senders
(status = 'Pending' AND published_at = last_queued_at AND next_attempt_at <= published_at AND reopened_at IS NULL)

-- fragment: put_back
(ended_claim IS NOT NULL OR sent_at IS NOT NULL)

-- fragment: keep_accepted
(SELECT nullif(json_group_object(key, json(value)), '{}')
 FROM json_each(email_log.recipients)
 WHERE CASE type WHEN 'object' THEN json_extract(value, '$.status') END = 'accepted')

-- name: claim_these
WITH wanted AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.key') AS key,
        min(json_extract(value, '$.again')) AS again
    FROM json_each(:batch)
    GROUP BY 1, 2
)
UPDATE email_log
SET status = 'Pending',
    last_attempt_at = {now},
    last_queued_at = CASE WHEN status = 'Pending' THEN coalesce(last_queued_at, {now}) ELSE {now} END,
    published_at = NULL,
    recipients = CASE WHEN NOT {put_back} THEN recipients WHEN sent_at IS NULL THEN {keep_accepted} END,
    token = CASE WHEN sent_at IS NULL THEN token ELSE lower(hex(randomblob(16))) END,
    sent_at = NULL,
    ended_claim = NULL,
    failed_claim = NULL,
    reopened_at = NULL,
    claim_seq = claim_seq + 1,
    locked_by = :owner,
    locked_until = {lease},
    leased_until = {lease},
    leased_claim = claim_seq + 1
FROM wanted
WHERE email_log.id = wanted.id AND email_log.message_key = wanted.key
  AND attempt_count < :max_attempts
  AND (status IN ('Pending', 'RetryQueued') OR status = 'Failed' AND locked_until IS NOT NULL)
  AND (CASE WHEN locked_until IS NULL THEN status <> 'Failed'
            WHEN {ours} THEN status = 'RetryQueued' OR last_queued_at IS NULL
            ELSE locked_until < {now} OR NOT wanted.again AND {a_senders} IS NOT TRUE END)
RETURNING {claimed}

-- name: states
SELECT id, status, message_key, attempt_count, (julianday(locked_until) - julianday('now')) * 86400.0 AS held_for
FROM email_log
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: claim_lost
-- Named, because the planner would rather read everything that is Pending.
WITH lost AS MATERIALIZED (
    SELECT id
    FROM email_log INDEXED BY email_log_locked
    WHERE {ours} AND status = 'Pending' AND last_queued_at IS NOT NULL
      AND locked_until < {now} AND rescue_count >= 3
    ORDER BY id
    LIMIT :limit
)
UPDATE email_log
SET claim_seq = claim_seq + 1, rescue_count = rescue_count + 1, locked_by = :owner, locked_until = {lease},
    leased_until = {lease}, leased_claim = claim_seq + 1
FROM lost
WHERE email_log.id = lost.id
RETURNING {claimed}

-- fragment: held
email_log.id = batch.id AND {ours} AND email_log.claim_seq = batch.fence AND email_log.status = 'Pending'
  AND email_log.last_queued_at IS NOT NULL

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
    ended_claim = CASE WHEN batch.status <> 'Failed' THEN claim_seq END,
    failed_claim = CASE WHEN batch.status = 'Failed' AND batch.charged > 0 THEN claim_seq END,
    announced_at = NULL,
    provider = coalesce(batch.provider, email_log.provider),
    provider_message_id = coalesce(batch.provider_message_id, email_log.provider_message_id),
    sent_at = CASE WHEN batch.status = 'Sent' THEN {now} ELSE sent_at END,
    delivered_by = CASE WHEN batch.status = 'Sent' THEN :owner ELSE delivered_by END,
    delivered_millis = coalesce(batch.millis, delivered_millis),
    locked_by = NULL,
    locked_until = NULL,
    leased_until = NULL
FROM batch
WHERE {held}
RETURNING id

-- name: complete_keys
-- In the transaction of settle: a statement here writes one table.
INSERT INTO email_idempotency (message_key, email_id, completed_at)
SELECT message_key, id, sent_at
FROM email_log
WHERE id IN (SELECT json_extract(value, '$.id') FROM json_each(:batch)) AND status = 'Sent'
ON CONFLICT (message_key) DO UPDATE SET completed_at = excluded.completed_at
WHERE email_idempotency.email_id = excluded.email_id AND email_idempotency.completed_at IS NULL

-- name: confirm
WITH {fences}
SELECT email_log.id
FROM batch JOIN email_log ON email_log.id = batch.id
WHERE email_log.claim_seq = batch.fence AND email_log.locked_by IS NULL

-- name: renew
WITH {fences}
UPDATE email_log
SET locked_until = {lease}, leased_until = {lease}
FROM batch
WHERE {held}
RETURNING id

-- name: release
WITH {fences}
UPDATE email_log
SET next_attempt_at = {now}, last_queued_at = NULL, locked_by = NULL, locked_until = NULL, leased_until = NULL
FROM batch
WHERE {held}
RETURNING id

-- name: rescue
WITH lost AS MATERIALIZED (
    SELECT id
    FROM email_log INDEXED BY email_log_locked
    WHERE {ours} AND status = 'Pending' AND last_queued_at IS NOT NULL
      AND locked_until < {now} AND rescue_count < 3
    ORDER BY id
    LIMIT :limit
)
UPDATE email_log
SET claim_seq = claim_seq + 1, rescue_count = rescue_count + 1, next_attempt_at = {now}, last_queued_at = NULL,
    locked_by = NULL, locked_until = NULL, leased_until = NULL
FROM lost
WHERE email_log.id = lost.id
RETURNING id

-- name: disown
WITH taken AS MATERIALIZED (
    SELECT id
    FROM email_log INDEXED BY email_log_locked
    WHERE locked_by IS NOT NULL AND (status NOT IN ('Pending', 'RetryQueued') OR {ours} IS NOT TRUE
                                    OR locked_until IS NULL AND leased_until < {now})
    LIMIT :limit
)
UPDATE email_log
SET claim_seq = claim_seq + 1, locked_by = NULL, leased_until = NULL
FROM taken
WHERE email_log.id = taken.id
RETURNING id

-- name: weigh
SELECT {bytes} AS size FROM email_log WHERE id = :id

-- name: parts
SELECT from_address, to_address, cc_address, bcc_address, reply_to, subject, body AS text_body, html_body,
    variables, headers, recipients, attachments
FROM email_log WHERE id = :id

-- name: enqueue
INSERT INTO email_log (
    message_key, token, from_address, to_address, cc_address, bcc_address, reply_to, subject, body, html_body,
    template, variables, locale, headers, attachments, unsubscribe_url, traceparent, claim_seq, locked_by,
    locked_until, leased_until, leased_claim)
SELECT
    json_extract(value, '$.message_key'), json_extract(value, '$.token'), json_extract(value, '$.from_address'),
    json_extract(value, '$.to_address'), json_extract(value, '$.cc_address'), json_extract(value, '$.bcc_address'),
    json_extract(value, '$.reply_to'), json_extract(value, '$.subject'),
    -- What is large comes apart: every json_extract of a row holds the whole row.
    coalesce(:body, json_extract(value, '$.body')), coalesce(:html_body, json_extract(value, '$.html_body')),
    json_extract(value, '$.template'), coalesce(:variables, json_extract(value, '$.variables')),
    json_extract(value, '$.locale'), coalesce(:headers, json_extract(value, '$.headers')),
    coalesce(:attachments, json_extract(value, '$.attachments')),
    json_extract(value, '$.unsubscribe_url'), json_extract(value, '$.traceparent'), 1, :publisher,
    CASE WHEN :publisher IS NULL THEN NULL ELSE {lease} END, CASE WHEN :publisher IS NULL THEN NULL ELSE {lease} END, 1
FROM json_each(:batch)
WHERE NOT EXISTS (SELECT 1 FROM email_idempotency AS k WHERE k.message_key = json_extract(value, '$.message_key'))
  AND NOT EXISTS (SELECT 1 FROM email_log AS e WHERE e.message_key = json_extract(value, '$.message_key'))
RETURNING id, message_key, status, claim_seq, next_attempt_at, created_at, traceparent

-- name: reserve_keys
-- In the transaction of enqueue, and of those rows that it wrote: another program's row has another token.
INSERT INTO email_idempotency (message_key, email_id, fingerprint)
SELECT e.message_key, e.id, json_extract(b.value, '$.fingerprint')
FROM json_each(:batch) AS b CROSS JOIN email_log AS e
WHERE e.message_key = json_extract(b.value, '$.message_key') AND e.token = json_extract(b.value, '$.token')

-- name: by_message_key
SELECT k.message_key, k.email_id AS id, k.fingerprint, e.status
FROM email_idempotency AS k LEFT JOIN email_log AS e ON e.id = k.email_id
WHERE k.message_key IN (SELECT value FROM json_each(:keys))
UNION ALL
SELECT e.message_key, e.id, NULL, e.status
FROM email_log AS e
WHERE e.message_key IN (SELECT value FROM json_each(:keys))
  AND NOT EXISTS (SELECT 1 FROM email_idempotency AS k WHERE k.message_key = e.message_key)

-- name: get
SELECT e.*, k.completed_at
FROM email_log AS e LEFT JOIN email_idempotency AS k ON k.message_key = e.message_key AND k.email_id = e.id
WHERE e.id = :id

-- name: page
SELECT {listed}
FROM email_log
WHERE (:status IS NULL OR status = :status) AND (:before IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit

-- name: page_open
-- The states are named, so that the planner knows its small index applies.
SELECT {listed}
FROM email_log
WHERE status IN ('Failed', 'Dead', 'RetryQueued') AND status = :status
  AND (:before IS NULL OR id < :before) AND (:reason IS NULL OR dead_reason = :reason)
ORDER BY id DESC
LIMIT :limit

-- name: dead_reasons
SELECT dead_reason AS reason, count(*) AS count FROM email_log WHERE status = 'Dead' GROUP BY dead_reason ORDER BY 2 DESC, 1

-- name: dead_ids
-- What a person has cancelled only when it is asked for by this reason.
SELECT id
FROM email_log
WHERE status IN ('Failed', 'Dead', 'RetryQueued') AND status = 'Dead' AND id > :after
  AND (dead_reason = :reason OR :reason IS NULL AND dead_reason IS NOT 'Cancelled')
ORDER BY id
LIMIT :limit

-- name: requeue
UPDATE email_log
SET status = 'Pending', attempt_count = 0, rescue_count = 0, defer_count = 0, publish_failures = 0,
    claim_seq = claim_seq + 1, ended_claim = claim_seq + 1,
    next_attempt_at = {now}, last_queued_at = NULL, reopened_at = NULL, dead_reason = NULL, announced_at = NULL,
    locked_by = NULL, locked_until = NULL, leased_until = NULL
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('Dead', 'Failed')
RETURNING id

-- name: cancel
UPDATE email_log
SET status = 'Dead', dead_reason = 'Cancelled', claim_seq = claim_seq + 1, ended_claim = claim_seq + 1,
    announced_at = {now}, locked_until = NULL
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('Pending', 'Failed')
  AND locked_by IS NULL AND (locked_until IS NULL OR locked_until < {now})
RETURNING id

-- name: send_now
UPDATE email_log
SET next_attempt_at = min(coalesce(next_attempt_at, {now}), {now}), locked_until = NULL
WHERE id IN (SELECT value FROM json_each(:ids))
  AND (status = 'Failed' OR status = 'Pending' AND last_queued_at IS NULL)
  AND locked_by IS NULL AND (locked_until IS NULL OR locked_until < {now})
RETURNING id

-- name: counts
-- Every state has its tally here (migrations/sqlite/0003_tally.sql).
SELECT state AS status, count FROM homing_tally WHERE lane = 'email_log'

-- name: cancelled
-- How many of the dead a person has cancelled: counted in an index of their own.
SELECT count(*) AS count FROM email_log WHERE status = 'Dead' AND dead_reason = 'Cancelled'

-- name: oldest_due
SELECT (julianday('now') - julianday(min(due_at))) * 86400.0 AS age
FROM (
    SELECT (
        SELECT next_attempt_at
        FROM email_log INDEXED BY email_log_due
        WHERE status = open.state AND next_attempt_at <= {now} AND (locked_until IS NULL OR locked_until < {now})
        ORDER BY next_attempt_at
        LIMIT 1) AS due_at
    FROM (SELECT 'Failed' AS state UNION ALL SELECT 'RetryQueued' UNION ALL SELECT 'Pending') AS open
    UNION ALL
    SELECT (
        SELECT coalesce(next_attempt_at, created_at)
        FROM email_log INDEXED BY email_log_unpublished
        WHERE status = 'Pending' AND (last_queued_at IS NULL OR ended_claim IS NOT NULL OR sent_at IS NOT NULL
                                      OR failed_claim IS NOT NULL AND attempt_count = 0)
          AND coalesce(next_attempt_at, created_at) <= {now} AND (locked_until IS NULL OR locked_until < {now})
        ORDER BY coalesce(next_attempt_at, created_at)
        LIMIT 1)
)

-- fragment: ended
max(e.created_at, coalesce(e.sent_at, e.created_at), coalesce(e.last_attempt_at, e.created_at),
    coalesce(e.last_queued_at, e.created_at), coalesce(e.announced_at, e.created_at))

-- fragment: prunable
-- CROSS JOIN keeps this order: by id, without the index of states.
email_log AS e CROSS JOIN json_each(:ages) AS a
WHERE +e.status = json_extract(a.value, '$.state')
  AND +e.status IN ('Sent', 'Dead')
  AND +e.locked_by IS NULL AND (e.locked_until IS NULL OR e.locked_until < {now})
  AND {ended} < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', json_extract(a.value, '$.seconds')))

-- name: prune_window
SELECT max(id) AS last,
    min(created_at) < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', :youngest)) AS old
FROM (SELECT id, created_at FROM email_log WHERE id > :after ORDER BY id LIMIT :window)

-- name: prune_survey
SELECT e.status AS state, count(*) AS count, min({ended}) AS oldest
FROM {prunable} AND e.id > :after AND e.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT e.id AS id FROM {prunable} AND e.id > :after AND e.id <= :until ORDER BY e.id LIMIT :limit

-- name: prune
DELETE FROM email_idempotency
WHERE message_key IN (SELECT e.message_key FROM {prunable} AND e.id IN (SELECT value FROM json_each(:ids)))
  AND email_id IN (SELECT value FROM json_each(:ids));

DELETE FROM email_log
WHERE id IN (SELECT e.id FROM {prunable} AND e.id IN (SELECT value FROM json_each(:ids)))
RETURNING status AS state
