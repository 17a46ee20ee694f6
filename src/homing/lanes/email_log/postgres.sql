-- email_log on PostgreSQL: the sending stage, and what people and programs do with emails. Time is the database's
-- everywhere. Statements that write several rows lock them in id order: two that meet in opposite orders would
-- deadlock.
--
-- A row that is being sent is Pending, locked, and has a last_queued_at. A row that is being published is
-- RetryQueued, or Pending and locked without a last_queued_at: then its creator publishes it.

-- fragment: bytes
-- As for mail_outbox: what a claim would bring. The length of a text is known without reading it.
({text_bytes}
    + CASE WHEN coalesce(e.variables, e.headers, e.recipients) IS NULL THEN 0 ELSE {json_bytes} END)

-- fragment: text_bytes
-- Several values of a GiB are more than an integer holds.
0::bigint + coalesce(octet_length(e.to_address), 0) + coalesce(octet_length(e.cc_address), 0)
    + coalesce(octet_length(e.bcc_address), 0) + coalesce(octet_length(e.reply_to), 0)
    + coalesce(octet_length(e.from_address), 0) + coalesce(octet_length(e.subject), 0)
    + coalesce(octet_length(e.body), 0) + coalesce(octet_length(e.html_body), 0)

-- fragment: json_bytes
-- That of JSON is not: it is compressed, and a number of 100,000 digits takes a dozen bytes. What may be long is not
-- even written out to be weighed, so that nobody makes a claim take long: it counts for so much that it will be weighed.
-- Few bytes hold few such numbers; of more, none may be one.
CASE WHEN coalesce(pg_column_size(e.variables), 0) + coalesce(pg_column_size(e.headers), 0)
          + coalesce(pg_column_size(e.recipients), 0) > 6553 THEN 1000000
     ELSE (SELECT CASE WHEN pg_column_size(whole) > 16384
                         OR pg_column_size(whole) > 512 AND whole @@ '$.** > 1e40 || $.** < -1e40'
                       THEN 1000000 ELSE octet_length(whole::text) END
           FROM (SELECT jsonb_build_array(e.variables, e.headers, e.recipients) AS whole OFFSET 0) AS json) END

-- fragment: claimed
-- Of a large email only what it is known by: all else is read for the attempt.
e.id, e.claim_seq AS fence, e.attempt_count AS attempts, e.defer_count AS deferrals,
    date_part('epoch', now()) - date_part('epoch', e.created_at) AS age, left(e.traceparent, 200) AS traceparent,
    coalesce(e.next_attempt_at, e.created_at) AS due_at, e.message_key, e.last_attempt_at,
    CASE {fits} e.from_address END AS from_address, CASE {fits} e.to_address END AS to_address,
    CASE {fits} e.cc_address END AS cc_address, CASE {fits} e.bcc_address END AS bcc_address,
    CASE {fits} e.reply_to END AS reply_to, CASE {fits} e.subject END AS subject, CASE {fits} e.body END AS text_body,
    CASE {fits} e.html_body END AS html_body, left(e.template, 300) AS template, CASE {fits} e.variables END AS variables,
    left(e.locale, 100) AS locale, CASE {fits} e.headers END AS headers, e.attachments IS NOT NULL AS has_attachments,
    left(e.unsubscribe_url, 3000) AS unsubscribe_url, left(e.token, 300) AS token,
    CASE {fits} e.recipients END AS recipients, {size} AS size

-- fragment: fits
WHEN f.bytes <= 65536 THEN

-- fragment: size
CASE WHEN f.bytes <= 65536 AND coalesce(pg_column_size(e.attachments), 0) <= 2000
     THEN 0 ELSE f.bytes + coalesce(10::bigint * pg_column_size(e.attachments), 0) END

-- fragment: listed
id, message_key, status, attempt_count, next_attempt_at, last_attempt_at, last_queued_at, last_error, dead_reason,
    to_address, subject, template, provider, created_at, sent_at

-- fragment: ours
-- Another program knows nothing of us. But it writes locked_until when it takes a row. One that is cleared while we send
-- is nobody else's, and what we send will be settled. A version that does not write leased_until claims by claim_seq.
(locked_by IS NOT NULL AND (leased_claim IS DISTINCT FROM claim_seq OR coalesce(locked_until = leased_until, true)))

-- fragment: a_senders
-- Our scheduler published it and let go of it, and it has not failed since, which moves its time, nor was it put back: so
-- whoever has locked it since is a sender.
(status = 'Pending' AND published_at = last_queued_at AND next_attempt_at <= published_at AND reopened_at IS NULL)

-- fragment: put_back
-- It had ended, and a person wants it sent again, by whichever SQL.
(e.ended_claim IS NOT NULL OR e.sent_at IS NOT NULL)

-- fragment: keep_accepted
(SELECT jsonb_object_agg(key, value)
 FROM jsonb_each(CASE jsonb_typeof(e.recipients) WHEN 'object' THEN e.recipients END)
 WHERE value ->> 'status' = 'accepted')

-- name: claim_these
-- The rows that messages name, if they are still to be sent and nobody sends them: in every state in which a scheduler
-- may leave them. One of ours that has not yet written down that it published is overtaken: its settle finds another
-- fence. A lock of another program is its scheduler's, which may keep it until the row is sent; it may be a sender's where
-- the message was handed out before, and is one where the message was ours. A lock of ours that is over belongs to the
-- rescue, which counts it.
--
-- What was put back goes to those who have not accepted it; if it was sent, to all of them again, under a Message-ID
-- that their servers have not seen.
WITH wanted AS MATERIALIZED (
    SELECT b.id, b.key, bool_and(b.again) AS again
    FROM json_to_recordset(:batch::json) AS b(id bigint, key text, again boolean)
    GROUP BY b.id, b.key
), free AS MATERIALIZED (
    SELECT id, message_key, {bytes} AS bytes,
        locked_until IS NOT NULL AND NOT {ours} AND {a_senders} IS NOT TRUE AS to_the_first,
        CASE WHEN locked_until IS NULL THEN status <> 'Failed'
             WHEN {ours} THEN status = 'RetryQueued' OR last_queued_at IS NULL
             ELSE locked_until < now() END AS to_all
    FROM email_log AS e
    WHERE id = ANY (ARRAY(SELECT id FROM wanted))
      AND message_key = ANY (ARRAY(SELECT key FROM wanted))
      AND attempt_count < :max_attempts
      AND (status IN ('Pending', 'RetryQueued') OR status = 'Failed' AND locked_until IS NOT NULL)
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT free.id, free.bytes FROM free JOIN wanted ON wanted.id = free.id AND wanted.key = free.message_key
    WHERE free.to_all OR free.to_the_first AND NOT wanted.again
)
UPDATE email_log AS e
SET status = 'Pending',
    last_attempt_at = now(),
    last_queued_at = CASE WHEN e.status = 'Pending' THEN coalesce(e.last_queued_at, now()) ELSE now() END,
    published_at = NULL,
    recipients = CASE WHEN NOT {put_back} THEN e.recipients WHEN e.sent_at IS NULL THEN {keep_accepted} END,
    token = CASE WHEN e.sent_at IS NULL THEN e.token ELSE replace(gen_random_uuid()::text, '-', '') END,
    sent_at = NULL,
    ended_claim = NULL,
    failed_claim = NULL,
    reopened_at = NULL,
    claim_seq = e.claim_seq + 1,
    locked_by = :owner,
    locked_until = now() + make_interval(secs => :lease_seconds),
    leased_until = now() + make_interval(secs => :lease_seconds),
    leased_claim = e.claim_seq + 1
FROM mine AS f
WHERE e.id = f.id
RETURNING {claimed}

-- name: states
-- Why a message found nothing to send.
SELECT id, status, message_key, attempt_count,
    extract(epoch FROM locked_until - now())::double precision AS held_for
FROM email_log
WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))

-- name: claim_lost
-- Rows that lost their worker for the fourth time and more: taken over, to be charged by the policy.
WITH lost AS MATERIALIZED (
    SELECT id, {bytes} AS bytes
    FROM email_log AS e
    WHERE {ours} AND status = 'Pending' AND last_queued_at IS NOT NULL
      AND locked_until < now() AND rescue_count >= 3
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE email_log AS e
SET claim_seq = e.claim_seq + 1,
    rescue_count = e.rescue_count + 1,
    locked_by = :owner,
    locked_until = now() + make_interval(secs => :lease_seconds),
    leased_until = now() + make_interval(secs => :lease_seconds),
    leased_claim = e.claim_seq + 1
FROM lost AS f
WHERE e.id = f.id
RETURNING {claimed}

-- fragment: held
-- Still being sent, by us: no other program has written how it ended, or taken the lock or cleared it.
held AS MATERIALIZED (
    SELECT id, claim_seq, {ours} AND status = 'Pending' AND last_queued_at IS NOT NULL AS is_ours
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND locked_by IS NOT NULL
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.* FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence AND held.is_ours
)

-- name: settle
-- By an array of ids, not by a join: the planner may think that nothing is Pending when its statistics were made
-- at a quiet hour, and would read all that is.
WITH batch AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:batch::json) AS b(
        id bigint, fence bigint, status text, charged integer, delay double precision, error text,
        dead_reason text, recipients jsonb, provider text, provider_message_id text, millis integer)
), {held}, done AS (
    UPDATE email_log AS e
    SET status = mine.status,
        attempt_count = e.attempt_count + mine.charged,
        defer_count = CASE WHEN mine.status = 'Failed' AND mine.charged = 0 THEN e.defer_count + 1 ELSE 0 END,
        next_attempt_at = CASE WHEN mine.status = 'Failed' THEN now() + make_interval(secs => mine.delay)
                               ELSE e.next_attempt_at END,
        last_error = mine.error,
        dead_reason = mine.dead_reason,
        recipients = coalesce(mine.recipients, e.recipients),
        ended_claim = CASE WHEN mine.status <> 'Failed' THEN e.claim_seq END,
        failed_claim = CASE WHEN mine.status = 'Failed' AND mine.charged > 0 THEN e.claim_seq END,
        announced_at = NULL,
        provider = coalesce(mine.provider, e.provider),
        provider_message_id = coalesce(mine.provider_message_id, e.provider_message_id),
        sent_at = CASE WHEN mine.status = 'Sent' THEN now() ELSE e.sent_at END,
        delivered_by = CASE WHEN mine.status = 'Sent' THEN :owner ELSE e.delivered_by END,
        delivered_millis = coalesce(mine.millis, e.delivered_millis),
        locked_by = NULL,
        locked_until = NULL,
        leased_until = NULL
    FROM mine
    WHERE e.id = mine.id
    RETURNING e.id, e.message_key, e.status
), completed AS (
    INSERT INTO email_idempotency (message_key, email_id, completed_at)
    SELECT DISTINCT ON (message_key) message_key, id, now() FROM done WHERE status = 'Sent' ORDER BY message_key
    ON CONFLICT (message_key) DO UPDATE SET completed_at = excluded.completed_at
    WHERE email_idempotency.email_id = excluded.email_id
)
SELECT id FROM done

-- name: confirm
SELECT e.id
FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
JOIN email_log AS e ON e.id = b.id
WHERE e.claim_seq = b.fence AND e.locked_by IS NULL

-- name: renew
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), {held}
UPDATE email_log AS e
SET locked_until = now() + make_interval(secs => :lease_seconds),
    leased_until = now() + make_interval(secs => :lease_seconds)
FROM mine
WHERE e.id = mine.id
RETURNING e.id

-- name: release
-- Its message goes back to the broker and finds the row free, unless somebody had it and dropped it while the row
-- was still locked. So another one is published soon, and of two the second finds nothing to do.
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), {held}
UPDATE email_log AS e
SET next_attempt_at = now(), last_queued_at = NULL, locked_by = NULL, locked_until = NULL, leased_until = NULL
FROM mine
WHERE e.id = mine.id
RETURNING e.id

-- name: rescue
-- The dead worker's message may have been acknowledged or not: the scheduler publishes another one, and of two the
-- second finds nothing to do. The fence rises, so that a settlement that was never written cannot be taken for one
-- that was.
WITH lost AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE {ours} AND status = 'Pending' AND last_queued_at IS NOT NULL
      AND locked_until < now() AND rescue_count < 3
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE email_log AS e
SET claim_seq = e.claim_seq + 1,
    rescue_count = e.rescue_count + 1,
    next_attempt_at = now(),
    last_queued_at = NULL,
    locked_by = NULL,
    locked_until = NULL,
    leased_until = NULL
FROM lost
WHERE e.id = lost.id
RETURNING e.id

-- name: disown
-- Rows that another program has taken over from us, or ended: our name goes, and nothing else. The fence rises, as above.
WITH taken AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE locked_by IS NOT NULL AND (status NOT IN ('Pending', 'RetryQueued') OR {ours} IS NOT TRUE
                                    OR locked_until IS NULL AND leased_until < now())
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE email_log AS e
SET claim_seq = e.claim_seq + 1, locked_by = NULL, leased_until = NULL
FROM taken
WHERE e.id = taken.id
RETURNING e.id

-- name: weigh
SELECT {text_bytes}
    + coalesce(octet_length(e.variables::text), 0) + coalesce(octet_length(e.headers::text), 0)
    + coalesce(octet_length(e.recipients::text), 0) + coalesce(octet_length(e.attachments::text), 0) AS size
FROM email_log AS e WHERE e.id = :id

-- name: parts
SELECT from_address, to_address, cc_address, bcc_address, reply_to, subject, body AS text_body, html_body,
    variables, headers, recipients, attachments
FROM email_log WHERE id = :id

-- name: enqueue
-- Keys first: whoever gets one may write the row. Sorted: two batches with the same keys in opposite orders would
-- deadlock. With an owner the row is claimed for publishing in the same breath, and nobody else publishes it. The first
-- claim is counted in any case, by which a scheduler knows it for one of ours.
WITH batch AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:batch::json) AS b(
        message_key text, fingerprint text, token text, from_address text, to_address text, cc_address text,
        bcc_address text, reply_to text, subject text, body text, html_body text, template text, variables jsonb,
        locale text, headers jsonb, attachments jsonb, unsubscribe_url text, traceparent text)
), keys AS (
    INSERT INTO email_idempotency (message_key, email_id, fingerprint)
    SELECT message_key, nextval(pg_get_serial_sequence('email_log', 'id')), fingerprint
    FROM batch
    -- Another program may have written a row with that key, which is then the first one.
    WHERE NOT EXISTS (SELECT 1 FROM email_log AS e WHERE e.message_key = batch.message_key)
    ORDER BY message_key
    ON CONFLICT (message_key) DO NOTHING
    RETURNING message_key, email_id
)
INSERT INTO email_log (
    id, message_key, token, from_address, to_address, cc_address, bcc_address, reply_to, subject, body, html_body,
    template, variables, locale, headers, attachments, unsubscribe_url, traceparent, claim_seq, locked_by,
    locked_until, leased_until, leased_claim)
SELECT
    k.email_id, b.message_key, b.token, b.from_address, b.to_address, b.cc_address, b.bcc_address, b.reply_to,
    b.subject, coalesce(:body::text, b.body), coalesce(:html_body::text, b.html_body), b.template,
    coalesce(:variables::jsonb, b.variables), b.locale, coalesce(:headers::jsonb, b.headers),
    coalesce(:attachments::jsonb, b.attachments), b.unsubscribe_url, b.traceparent,
    1, :publisher::text,
    CASE WHEN :publisher::text IS NULL THEN NULL ELSE now() + make_interval(secs => :lease_seconds) END,
    CASE WHEN :publisher::text IS NULL THEN NULL ELSE now() + make_interval(secs => :lease_seconds) END,
    1
FROM batch AS b JOIN keys AS k ON k.message_key = b.message_key
RETURNING id, message_key, status, claim_seq, next_attempt_at, created_at, traceparent

-- name: by_message_key
SELECT k.message_key, k.email_id AS id, k.fingerprint, e.status
FROM email_idempotency AS k LEFT JOIN email_log AS e ON e.id = k.email_id
WHERE k.message_key IN (SELECT json_array_elements_text(:keys::json))
UNION ALL
SELECT e.message_key, e.id, NULL, e.status
FROM email_log AS e
WHERE e.message_key IN (SELECT json_array_elements_text(:keys::json))
  AND NOT EXISTS (SELECT 1 FROM email_idempotency AS k WHERE k.message_key = e.message_key)

-- name: get
SELECT e.*, k.completed_at
FROM email_log AS e LEFT JOIN email_idempotency AS k ON k.message_key = e.message_key AND k.email_id = e.id
WHERE e.id = :id

-- name: page
SELECT {listed}
FROM email_log
WHERE (:status::text IS NULL OR status = :status) AND (:before::bigint IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit

-- name: page_open
-- The states are named, so that the planner knows its small index applies.
SELECT {listed}
FROM email_log
WHERE status IN ('Failed', 'Dead', 'RetryQueued') AND status = :status
  AND (:before::bigint IS NULL OR id < :before) AND (:reason::text IS NULL OR dead_reason = :reason)
ORDER BY id DESC
LIMIT :limit

-- name: dead_reasons
SELECT dead_reason AS reason, count(*) AS count FROM email_log WHERE status = 'Dead' GROUP BY dead_reason ORDER BY 2 DESC, 1

-- name: dead_ids
-- What a person has cancelled only when it is asked for by this reason.
SELECT id
FROM email_log
WHERE status = 'Dead' AND status IN ('Failed', 'Dead', 'RetryQueued') AND id > :after
  AND (dead_reason = :reason OR :reason::text IS NULL AND (dead_reason IS NULL OR dead_reason <> 'Cancelled'))
ORDER BY id
LIMIT :limit

-- name: requeue
-- Whoever has the mail keeps it: only the others get it. All attempts are there again.
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE id IN (SELECT json_array_elements_text(:ids::json)::bigint) AND status IN ('Dead', 'Failed')
    ORDER BY id
    FOR UPDATE
)
UPDATE email_log AS e
SET status = 'Pending', attempt_count = 0, rescue_count = 0, defer_count = 0, publish_failures = 0,
    claim_seq = e.claim_seq + 1, ended_claim = e.claim_seq + 1,
    next_attempt_at = now(), last_queued_at = NULL, reopened_at = NULL, dead_reason = NULL, announced_at = NULL,
    locked_by = NULL, locked_until = NULL, leased_until = NULL
FROM chosen
WHERE e.id = chosen.id
RETURNING e.id

-- name: cancel
-- The contract knows one end that is not Sent, and the reason says which it is. Nobody sends a Dead one: a message
-- that is in the queue already finds nothing to do. A person decided it, so the dead letter queue is not told.
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint)) AND status IN ('Pending', 'Failed')
      AND locked_by IS NULL AND (locked_until IS NULL OR locked_until < now())
    ORDER BY id
    FOR UPDATE
)
UPDATE email_log AS e
SET status = 'Dead', dead_reason = 'Cancelled', claim_seq = e.claim_seq + 1, ended_claim = e.claim_seq + 1,
    announced_at = now(), locked_until = NULL
FROM chosen
WHERE e.id = chosen.id
RETURNING e.id

-- name: send_now
-- Those that wait for another attempt, or to be queued, are due for the scheduler. What is in the queue stays there:
-- no second message of the same attempt.
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
      AND (status = 'Failed' OR status = 'Pending' AND last_queued_at IS NULL)
      AND locked_by IS NULL AND (locked_until IS NULL OR locked_until < now())
    ORDER BY id
    FOR UPDATE
)
UPDATE email_log AS e
SET next_attempt_at = least(e.next_attempt_at, now()), locked_until = NULL
FROM chosen
WHERE e.id = chosen.id
RETURNING e.id

-- name: counts
-- What is not sent yet is counted in the index. What was sent is the rest, and the total is tallied.
SELECT 'Pending' AS status, count(*) AS count FROM email_log WHERE status = 'Pending'
UNION ALL
SELECT 'RetryQueued', count(*) FROM email_log WHERE status = 'RetryQueued'
UNION ALL
SELECT 'Failed', count(*) FROM email_log WHERE status = 'Failed'
UNION ALL
SELECT 'Dead', count(*) FROM email_log WHERE status = 'Dead'
UNION ALL
SELECT 'total', coalesce(sum(count), 0)::bigint FROM homing_tally WHERE lane = 'email_log'

-- name: cancelled
-- How many of the dead a person has cancelled: counted in an index of their own.
SELECT count(*) AS count FROM email_log WHERE status = 'Dead' AND dead_reason = 'Cancelled'

-- name: oldest_due
-- The first of each state that something is still to happen to and that nobody holds, also where its message waits in
-- the queue. Who put a new one in may have left the time empty.
SELECT extract(epoch FROM now() - min(due_at))::double precision AS age
FROM (
    SELECT first.next_attempt_at AS due_at
    FROM unnest(ARRAY['Failed', 'RetryQueued', 'Pending']) AS open (state), LATERAL (
        SELECT next_attempt_at
        FROM email_log
        WHERE status = open.state AND next_attempt_at <= now() AND next_attempt_at > '-infinity' AND (locked_until IS NULL OR locked_until < now())
        ORDER BY next_attempt_at
        LIMIT 1) AS first
    UNION ALL
    (SELECT coalesce(next_attempt_at, created_at)
     FROM email_log
     WHERE status = 'Pending' AND (last_queued_at IS NULL OR ended_claim IS NOT NULL OR sent_at IS NOT NULL
                                   OR failed_claim IS NOT NULL AND attempt_count = 0)
       AND coalesce(next_attempt_at, created_at) <= now() AND coalesce(next_attempt_at, created_at) > '-infinity'
       AND (locked_until IS NULL OR locked_until < now())
     ORDER BY coalesce(next_attempt_at, created_at)
     LIMIT 1)
) AS due

-- fragment: ended
greatest(e.created_at, e.sent_at, e.last_attempt_at, e.last_queued_at, e.announced_at)

-- fragment: prunable
-- Nothing that somebody holds.
email_log AS e
JOIN json_to_recordset(:ages::json) AS a(state text, seconds double precision) ON a.state = e.status
WHERE e.status IN ('Sent', 'Dead')
  AND e.locked_by IS NULL AND (e.locked_until IS NULL OR e.locked_until < now())
  AND {ended} < now() - make_interval(secs => a.seconds)

-- name: prune_window
SELECT max(id) AS last, min(created_at) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT id, created_at FROM email_log WHERE id > :after ORDER BY id LIMIT :window) AS ahead

-- name: prune_survey
SELECT e.status AS state, count(*) AS count, min({ended}) AS oldest
FROM {prunable} AND e.id > :after AND e.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT e.id AS id FROM {prunable} AND e.id > :after AND e.id <= :until ORDER BY e.id LIMIT :limit

-- name: prune
-- With their keys. Locks only what has ended, which no claim looks at, and waits for nobody.
WITH chosen AS MATERIALIZED (
    SELECT e.id AS id FROM {prunable}
      AND e.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))
    ORDER BY e.id
    FOR UPDATE OF e SKIP LOCKED
), gone AS (
    DELETE FROM email_log AS e USING chosen WHERE e.id = chosen.id RETURNING e.id, e.message_key, e.status
), keys AS (
    DELETE FROM email_idempotency AS k
    USING gone
    WHERE k.message_key = ANY (ARRAY(SELECT message_key FROM gone))
      AND k.message_key = gone.message_key AND k.email_id = gone.id
)
SELECT status AS state FROM gone
