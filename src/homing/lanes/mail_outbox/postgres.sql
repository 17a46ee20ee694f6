-- mail_outbox on PostgreSQL. Time is the database's everywhere. Statements that write several rows
-- lock them in id order: two that meet in opposite orders would deadlock.

-- fragment: age
-- A mail for later counts from when it was due; that is known until its first attempt has moved it. As numbers, not
-- as an interval: a time that is infinite makes an age that is, and no error.
date_part('epoch', now()) - date_part('epoch', greatest(o.created_at, o.send_at, CASE o.claim_seq WHEN 1 THEN o.next_attempt_at END))

-- fragment: due
-- Another program's column may hold '-infinity', which the driver gives without a zone: it compares with no other time.
greatest(o.next_attempt_at, '0001-01-02Z'::timestamptz)

-- fragment: put_back
-- The last thing that a claim did to the row was to end it, so a person has queued it since, by whichever SQL. What
-- was sent by a version that did not note its claim has a sent_at.
(o.ended_claim IS NOT DISTINCT FROM o.claim_seq OR o.ended_claim IS NULL AND o.sent_at IS NOT NULL)

-- fragment: had_all
-- Everybody had accepted the mail.
(o.delivered_by IS NOT NULL OR o.ended_claim IS NULL)

-- fragment: keep_accepted
(SELECT jsonb_object_agg(key, value)
 FROM jsonb_each(CASE jsonb_typeof(o.recipients) WHEN 'object' THEN o.recipients END)
 WHERE value ->> 'status' = 'accepted')

-- fragment: bytes
-- What a claim would bring. The length of a text is known without reading it.
({text_bytes}
    + CASE WHEN coalesce(o.variables, o.headers, o.recipients) IS NULL THEN 0 ELSE {json_bytes} END)

-- fragment: text_bytes
-- Several values of a GiB are more than an integer holds.
0::bigint + coalesce(octet_length(o.to_address), 0) + coalesce(octet_length(o.cc_address), 0)
    + coalesce(octet_length(o.bcc_address), 0) + coalesce(octet_length(o.reply_to), 0)
    + coalesce(octet_length(o.from_address), 0) + coalesce(octet_length(o.subject), 0)
    + coalesce(octet_length(o.text_body), 0) + coalesce(octet_length(o.html_body), 0)

-- fragment: json_bytes
-- That of JSON is not: it is compressed, and a number of 100,000 digits takes a dozen bytes. What may be long is not
-- even written out to be weighed, so that nobody makes a claim take long: it counts for so much that it will be weighed.
-- Few bytes hold few such numbers; of more, none may be one.
CASE WHEN coalesce(pg_column_size(o.variables), 0) + coalesce(pg_column_size(o.headers), 0)
          + coalesce(pg_column_size(o.recipients), 0) > 6553 THEN 1000000
     ELSE (SELECT CASE WHEN pg_column_size(whole) > 16384
                         OR pg_column_size(whole) > 512 AND whole @@ '$.** > 1e40 || $.** < -1e40'
                       THEN 1000000 ELSE octet_length(whole::text) END
           FROM (SELECT jsonb_build_array(o.variables, o.headers, o.recipients) AS whole OFFSET 0) AS json) END

-- fragment: claimed
-- Of a large mail only what it is known by: all else is read for the attempt.
o.id, o.claim_seq AS fence, o.retry_count AS attempts, o.defer_count AS deferrals, {age} AS age,
    left(o.traceparent, 200) AS traceparent, {due} AS due_at, o.last_attempt_at, o.expires_at <= now() AS expired,
    CASE {fits} o.from_address END AS from_address, CASE {fits} o.to_address END AS to_address,
    CASE {fits} o.cc_address END AS cc_address, CASE {fits} o.bcc_address END AS bcc_address,
    CASE {fits} o.reply_to END AS reply_to, CASE {fits} o.subject END AS subject,
    CASE {fits} o.text_body END AS text_body, CASE {fits} o.html_body END AS html_body, left(o.template, 300) AS template,
    CASE {fits} o.variables END AS variables, left(o.locale, 100) AS locale, CASE {fits} o.headers END AS headers,
    o.attachments IS NOT NULL AS has_attachments, left(o.unsubscribe_url, 3000) AS unsubscribe_url,
    left(o.token, 300) AS token, CASE {fits} o.recipients END AS recipients, {size} AS size

-- fragment: fits
WHEN f.bytes <= 65536 THEN

-- fragment: size
CASE WHEN f.bytes <= 65536 AND coalesce(pg_column_size(o.attachments), 0) <= 2000
     THEN 0 ELSE f.bytes + coalesce(10::bigint * pg_column_size(o.attachments), 0) END

-- name: claim
-- The specification's statement. MATERIALIZED keeps the planner from choosing more than LIMIT rows. A mail that was
-- put back goes to those who have not accepted it, however it ended and expired or not; if all had, to all of them
-- again, under a Message-ID that their servers have not seen.
WITH candidates AS MATERIALIZED (
    SELECT id, {bytes} AS bytes
    FROM mail_outbox AS o
    WHERE status = 'queued'
      AND next_attempt_at <= now()
      AND retry_count < :max_attempts
    ORDER BY next_attempt_at ASC, id ASC
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE mail_outbox AS o
SET status = 'dispatching',
    last_attempt_at = now(),
    claim_seq = o.claim_seq + 1,
    locked_by = :owner,
    lease_expires_at = now() + make_interval(secs => :lease_seconds),
    recipients = CASE WHEN NOT {put_back} THEN o.recipients WHEN NOT {had_all} THEN {keep_accepted} END,
    token = CASE WHEN {put_back} AND {had_all} THEN replace(gen_random_uuid()::text, '-', '') ELSE o.token END,
    expires_at = CASE WHEN {put_back} AND o.expires_at <= now() THEN NULL ELSE o.expires_at END,
    ended_claim = CASE WHEN {put_back} THEN o.claim_seq ELSE o.ended_claim END
FROM candidates AS f
WHERE o.id = f.id
RETURNING {claimed}

-- name: claim_lost
-- Rows that lost their worker for the fourth time and more: taken over, to be charged by the policy.
WITH lost AS MATERIALIZED (
    SELECT id, {bytes} AS bytes
    FROM mail_outbox AS o
    WHERE status = 'dispatching' AND rescue_count >= 3
      AND coalesce(lease_expires_at < now(), last_attempt_at < now() - make_interval(secs => :lease_seconds), true)
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE mail_outbox AS o
SET claim_seq = o.claim_seq + 1,
    rescue_count = o.rescue_count + 1,
    locked_by = :owner,
    lease_expires_at = now() + make_interval(secs => :lease_seconds)
FROM lost AS f
WHERE o.id = f.id
RETURNING {claimed}

-- name: settle
-- By an array of ids, not by a join: the planner takes `dispatching` for empty whenever its statistics were
-- made at a quiet hour, and would read what all workers have in flight (15 ms instead of 1 at 20,000 rows).
WITH batch AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:batch::json) AS b(
        id bigint, fence bigint, status text, charged integer, delay double precision, error text,
        recipients jsonb, provider text, provider_message_id text, millis integer)
), held AS MATERIALIZED (
    SELECT id, claim_seq
    FROM mail_outbox
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND status = 'dispatching'
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.* FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
)
UPDATE mail_outbox AS o
SET status = mine.status,
    retry_count = o.retry_count + mine.charged,
    defer_count = CASE WHEN mine.status = 'queued' AND mine.charged = 0 THEN o.defer_count + 1 ELSE 0 END,
    next_attempt_at = CASE WHEN mine.status = 'queued' THEN now() + make_interval(secs => mine.delay)
                           ELSE o.next_attempt_at END,
    last_error = mine.error,
    recipients = coalesce(mine.recipients, o.recipients),
    provider = coalesce(mine.provider, o.provider),
    provider_message_id = coalesce(mine.provider_message_id, o.provider_message_id),
    sent_at = CASE WHEN mine.status = 'sent' THEN now() ELSE o.sent_at END,
    delivered_by = CASE WHEN mine.status = 'sent' THEN :owner END,
    delivered_millis = coalesce(mine.millis, o.delivered_millis),
    ended_claim = CASE WHEN mine.status = 'queued' THEN o.ended_claim ELSE o.claim_seq END,
    locked_by = NULL,
    lease_expires_at = NULL
FROM mine
WHERE o.id = mine.id
RETURNING o.id

-- name: confirm
SELECT o.id
FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
JOIN mail_outbox AS o ON o.id = b.id
WHERE o.claim_seq = b.fence AND o.status <> 'dispatching'

-- name: renew
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), held AS MATERIALIZED (
    SELECT id, claim_seq
    FROM mail_outbox
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND status = 'dispatching'
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.id FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
)
UPDATE mail_outbox AS o
SET lease_expires_at = now() + make_interval(secs => :lease_seconds)
FROM mine
WHERE o.id = mine.id
RETURNING o.id

-- name: release
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), held AS MATERIALIZED (
    SELECT id, claim_seq
    FROM mail_outbox
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND status = 'dispatching'
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.id FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
)
UPDATE mail_outbox AS o
SET status = 'queued', locked_by = NULL, lease_expires_at = NULL
FROM mine
WHERE o.id = mine.id
RETURNING o.id

-- name: rescue
-- The fence rises, so that a settlement that was never written cannot be taken for one that was. A row
-- without a lease was marked by somebody else's SQL; it gets the lease it would have had.
-- Due now, so behind everything that was due before: a row that kills its workers must not stand first.
WITH lost AS MATERIALIZED (
    SELECT id
    FROM mail_outbox
    WHERE status = 'dispatching' AND rescue_count < 3
      AND coalesce(lease_expires_at < now(), last_attempt_at < now() - make_interval(secs => :lease_seconds), true)
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE mail_outbox AS o
SET status = 'queued',
    claim_seq = o.claim_seq + 1,
    rescue_count = o.rescue_count + 1,
    next_attempt_at = now(),
    locked_by = NULL,
    lease_expires_at = NULL
FROM lost
WHERE o.id = lost.id
RETURNING o.id

-- name: sweep
-- Two kinds of rows end without an attempt: the expired, and those at a limit that was lowered since. What was put
-- back does not expire a second time.
WITH expired AS MATERIALIZED (
    SELECT id
    FROM mail_outbox AS o
    WHERE status = 'queued' AND expires_at <= now() AND NOT {put_back}
    ORDER BY expires_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), exhausted AS MATERIALIZED (
    SELECT id
    FROM mail_outbox AS o
    WHERE status = 'queued' AND retry_count > 0 AND retry_count >= :max_attempts
      AND (expires_at IS NULL OR expires_at > now() OR {put_back})
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), over AS (
    SELECT id, 'expired' AS status FROM expired
    UNION ALL
    SELECT id, 'failed' FROM exhausted
)
UPDATE mail_outbox AS o
SET status = over.status,
    last_error = CASE WHEN over.status = 'expired' THEN 'expired before it could be sent'
                      ELSE coalesce(o.last_error, 'no attempts left') END,
    ended_claim = o.claim_seq
FROM over
WHERE o.id = over.id
RETURNING o.status

-- name: preview
SELECT id, retry_count, next_attempt_at, last_attempt_at
FROM mail_outbox
WHERE status = 'queued' AND next_attempt_at <= now() AND retry_count < :max_attempts
ORDER BY next_attempt_at ASC, id ASC
LIMIT :limit

-- name: due
SELECT count(*) AS count
FROM mail_outbox
WHERE status = 'queued' AND next_attempt_at <= now() AND retry_count < :max_attempts

-- name: by_ids
SELECT id, status, retry_count, next_attempt_at, last_attempt_at
FROM mail_outbox
WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))

-- name: weigh
SELECT {text_bytes}
    + coalesce(octet_length(o.variables::text), 0) + coalesce(octet_length(o.headers::text), 0)
    + coalesce(octet_length(o.recipients::text), 0) + coalesce(octet_length(o.attachments::text), 0) AS size
FROM mail_outbox AS o WHERE o.id = :id

-- name: parts
SELECT from_address, to_address, cc_address, bcc_address, reply_to, subject, text_body, html_body,
    variables, headers, recipients, attachments
FROM mail_outbox WHERE id = :id

-- name: enqueue
-- Sorted by key: two batches with the same keys in opposite orders would deadlock.
INSERT INTO mail_outbox (
    from_address, to_address, cc_address, bcc_address, reply_to, subject, text_body, html_body, template,
    variables, locale, headers, attachments, unsubscribe_url, idempotency_key, fingerprint, expires_at,
    metadata, token, traceparent, send_at, status, retry_count, created_at, next_attempt_at)
SELECT
    b.from_address, b.to_address, b.cc_address, b.bcc_address, b.reply_to, b.subject,
    coalesce(:text_body::text, b.text_body), coalesce(:html_body::text, b.html_body), b.template,
    coalesce(:variables::jsonb, b.variables), b.locale, coalesce(:headers::jsonb, b.headers),
    coalesce(:attachments::jsonb, b.attachments), b.unsubscribe_url, b.idempotency_key,
    b.fingerprint, b.expires_at, coalesce(:metadata::jsonb, b.metadata), b.token, b.traceparent, b.send_at,
    -- Another program's columns may have no default.
    'queued', 0, now(),
    -- An urgent mail is due before it was ordered, and so goes first in the specified order.
    CASE WHEN b.urgent THEN now() - interval '1 day'
         ELSE coalesce(b.send_at, now()) END
FROM json_to_recordset(:batch::json) AS b(
    from_address text, to_address text, cc_address text, bcc_address text, reply_to text, subject text,
    text_body text, html_body text, template text, variables jsonb, locale text, headers jsonb,
    attachments jsonb, unsubscribe_url text, idempotency_key text, fingerprint text, expires_at timestamptz,
    metadata jsonb, token text, traceparent text, send_at timestamptz, urgent boolean)
ORDER BY b.idempotency_key
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id, token, status

-- name: by_idempotency_key
SELECT id, idempotency_key, fingerprint, status
FROM mail_outbox
WHERE idempotency_key IN (SELECT json_array_elements_text(:keys::json))

-- name: get
SELECT *, expires_at <= now() AS expired FROM mail_outbox WHERE id = :id

-- name: page
SELECT id, status, retry_count, next_attempt_at, last_attempt_at, last_error, to_address, subject, template,
    idempotency_key, provider, created_at, sent_at
FROM mail_outbox
WHERE (:status::text IS NULL OR status = :status) AND (:before::bigint IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit

-- name: page_ended
-- The states are named, so that the planner knows its small index applies.
SELECT id, status, retry_count, next_attempt_at, last_attempt_at, last_error, to_address, subject, template,
    idempotency_key, provider, created_at, sent_at
FROM mail_outbox
WHERE status IN ('failed', 'cancelled', 'expired') AND status = :status AND (:before::bigint IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit

-- name: page_dispatching
SELECT id, status, retry_count, next_attempt_at, last_attempt_at, last_error, to_address, subject, template,
    idempotency_key, provider, created_at, sent_at
FROM mail_outbox
WHERE status = 'dispatching' AND (:before::bigint IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit

-- name: requeue
-- As a person would write it; the claim does the rest.
WITH chosen AS MATERIALIZED (
    SELECT o.id
    FROM mail_outbox AS o
    WHERE o.id IN (SELECT json_array_elements_text(:ids::json)::bigint)
      AND o.status IN ('failed', 'cancelled', 'expired')
    ORDER BY o.id
    FOR UPDATE OF o
)
UPDATE mail_outbox AS o
SET status = 'queued', retry_count = 0, rescue_count = 0, defer_count = 0,
    next_attempt_at = now(), ended_claim = o.claim_seq
FROM chosen
WHERE o.id = chosen.id
RETURNING o.id

-- name: cancel
WITH chosen AS MATERIALIZED (
    SELECT o.id
    FROM mail_outbox AS o
    WHERE o.id IN (SELECT json_array_elements_text(:ids::json)::bigint) AND o.status = 'queued'
    ORDER BY o.id
    FOR UPDATE OF o
)
UPDATE mail_outbox AS o
SET status = 'cancelled', ended_claim = o.claim_seq
FROM chosen
WHERE o.id = chosen.id
RETURNING o.id

-- name: send_now
-- Those that wait become due. What is claimed by then is under way anyway.
WITH chosen AS MATERIALIZED (
    SELECT o.id
    FROM mail_outbox AS o
    WHERE o.id IN (SELECT json_array_elements_text(:ids::json)::bigint) AND o.status = 'queued'
    ORDER BY o.id
    FOR UPDATE OF o
)
UPDATE mail_outbox AS o
SET next_attempt_at = least(o.next_attempt_at, now()), send_at = least(o.send_at, now())
FROM chosen
WHERE o.id = chosen.id
RETURNING o.id

-- name: ended_ids
SELECT id
FROM mail_outbox
WHERE status IN ('failed', 'cancelled', 'expired') AND status = :status AND id > :after
ORDER BY id
LIMIT :limit

-- name: queued_ids
SELECT id FROM mail_outbox WHERE status = 'queued' ORDER BY next_attempt_at, id LIMIT :limit

-- name: counts
-- What waits and what ended badly is counted in small indexes. What was sent is the rest, and the total is tallied.
SELECT 'queued' AS status, count(*) AS count FROM mail_outbox WHERE status = 'queued'
UNION ALL
SELECT 'dispatching', count(*) FROM mail_outbox WHERE status = 'dispatching'
UNION ALL
SELECT status, count(*) FROM mail_outbox WHERE status IN ('failed', 'cancelled', 'expired') GROUP BY status
UNION ALL
SELECT 'total', coalesce(sum(count), 0)::bigint FROM homing_tally WHERE lane = 'mail_outbox'
UNION ALL
-- Another program that made the table has states of its own. The index is only there, and it is not looked without it.
SELECT 'total', CASE WHEN to_regclass('homing_mail_outbox_foreign') IS NULL THEN 0 ELSE -(
    SELECT count(*) FROM mail_outbox
    WHERE status NOT IN ('queued', 'dispatching', 'sent', 'failed', 'cancelled', 'expired')) END

-- fragment: due_since
-- An urgent mail is due before it was ordered, and goes first: it is not late for that. As the index has it.
greatest(homing_instant(next_attempt_at), homing_instant(created_at))

-- name: oldest_due
-- No mail has been due for longer than the first of the queue: what was claimed before lies behind it in the index, until
-- it is vacuumed, and is not walked through.
SELECT extract(epoch FROM now() - greatest({due_since}, '0001-01-02Z'))::double precision AS age
FROM mail_outbox
WHERE status = 'queued' AND {due_since} <= now()
  AND {due_since} >= (SELECT homing_instant(next_attempt_at) FROM mail_outbox WHERE status = 'queued'
                      ORDER BY next_attempt_at LIMIT 1)
  AND (:with_alerts::boolean OR idempotency_key IS NULL OR idempotency_key NOT LIKE 'homing-alert:%')
ORDER BY {due_since}
LIMIT 1

-- fragment: ended
-- No column says when a mail ended; it was not before the latest of these.
greatest(o.created_at, o.sent_at, o.last_attempt_at, o.next_attempt_at, CASE WHEN o.status = 'expired' THEN o.expires_at END)

-- fragment: prunable
mail_outbox AS o
JOIN json_to_recordset(:ages::json) AS a(state text, seconds double precision) ON a.state = o.status
WHERE o.status IN ('sent', 'failed', 'cancelled', 'expired')
  AND {ended} < now() - make_interval(secs => a.seconds)

-- name: prune_window
SELECT max(id) AS last, min(created_at) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT id, created_at FROM mail_outbox WHERE id > :after ORDER BY id LIMIT :window) AS ahead

-- name: prune_survey
SELECT o.status AS state, count(*) AS count, min({ended}) AS oldest
FROM {prunable} AND o.id > :after AND o.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT o.id AS id FROM {prunable} AND o.id > :after AND o.id <= :until ORDER BY o.id LIMIT :limit

-- name: prune
-- Locks only what has ended, which no claim looks at, and waits for nobody.
WITH chosen AS MATERIALIZED (
    SELECT o.id AS id FROM {prunable}
      AND o.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
    ORDER BY o.id
    FOR UPDATE OF o SKIP LOCKED
)
DELETE FROM mail_outbox AS o USING chosen WHERE o.id = chosen.id RETURNING o.status AS state
