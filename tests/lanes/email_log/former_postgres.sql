-- The sender of the version before there was leased_until, as it was: what an old process does to the rows during an upgrade.

-- fragment: claimed
e.id, e.claim_seq AS fence, e.attempt_count AS attempts, e.defer_count AS deferrals,
    date_part('epoch', now()) - date_part('epoch', e.created_at) AS age, e.traceparent, e.next_attempt_at AS due_at, e.message_key,
    e.last_attempt_at, e.from_address, e.to_address, e.cc_address, e.bcc_address, e.reply_to, e.subject,
    e.body AS text_body, e.html_body, e.template, e.variables, e.locale, e.headers,
    e.attachments IS NOT NULL AS has_attachments, e.unsubscribe_url, e.token, e.recipients

-- name: claim_these
-- The rows that messages name, if they are still to be sent and nobody sends them. A scheduler that has not yet
-- written down that it published is overtaken: its settle finds another fence. A lock that is over belongs to the
-- rescue, which counts it, unless nobody's name is on it.
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT b.id, b.key FROM json_to_recordset(:batch::json) AS b(id bigint, key text)
), free AS MATERIALIZED (
    SELECT e.id
    FROM email_log AS e
    WHERE e.id = ANY (ARRAY(SELECT id FROM wanted))
      AND e.message_key = ANY (ARRAY(SELECT key FROM wanted))
      AND e.attempt_count < :max_attempts
      AND (e.status = 'RetryQueued'
           OR e.status = 'Pending' AND (e.locked_until IS NULL OR e.last_queued_at IS NULL
                                        OR e.locked_by IS NULL AND e.locked_until < now()))
    ORDER BY e.id
    FOR UPDATE
), mine AS (
    SELECT free.id FROM free JOIN email_log AS e ON e.id = free.id JOIN wanted ON wanted.id = e.id AND wanted.key = e.message_key
)
UPDATE email_log AS e
SET status = 'Pending',
    last_attempt_at = now(),
    next_attempt_at = CASE WHEN e.status = 'RetryQueued' OR e.last_queued_at IS NULL
                           THEN now() + make_interval(secs => :sweep_seconds) ELSE e.next_attempt_at END,
    queue_count = 0,
    last_queued_at = CASE WHEN e.status = 'RetryQueued' THEN now() ELSE coalesce(e.last_queued_at, now()) END,
    claim_seq = e.claim_seq + 1,
    locked_by = :owner,
    locked_until = now() + make_interval(secs => :lease_seconds)
FROM mine
WHERE e.id = mine.id
RETURNING {claimed}

-- name: settle
-- By an array of ids, not by a join: the planner may think that nothing is Pending when its statistics were made
-- at a quiet hour, and would read all that is.
WITH batch AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:batch::json) AS b(
        id bigint, fence bigint, status text, charged integer, delay double precision, error text,
        dead_reason text, recipients jsonb, provider text, provider_message_id text, millis integer)
), held AS MATERIALIZED (
    SELECT id, claim_seq
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND locked_by IS NOT NULL
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.* FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
), done AS (
    UPDATE email_log AS e
    SET status = mine.status,
        attempt_count = e.attempt_count + mine.charged,
        defer_count = CASE WHEN mine.status = 'Failed' AND mine.charged = 0 THEN e.defer_count + 1 ELSE 0 END,
        next_attempt_at = CASE WHEN mine.status = 'Failed' THEN now() + make_interval(secs => mine.delay)
                               ELSE e.next_attempt_at END,
        last_error = mine.error,
        dead_reason = mine.dead_reason,
        recipients = coalesce(mine.recipients, e.recipients),
        provider = coalesce(mine.provider, e.provider),
        provider_message_id = coalesce(mine.provider_message_id, e.provider_message_id),
        sent_at = CASE WHEN mine.status = 'Sent' THEN now() ELSE e.sent_at END,
        delivered_by = CASE WHEN mine.status = 'Sent' THEN :owner ELSE e.delivered_by END,
        delivered_millis = coalesce(mine.millis, e.delivered_millis),
        locked_by = NULL,
        locked_until = NULL
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

-- name: renew
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(id bigint, fence bigint)
), held AS MATERIALIZED (
    SELECT id, claim_seq
    FROM email_log
    WHERE id = ANY (ARRAY(SELECT id FROM batch)) AND locked_by IS NOT NULL
    ORDER BY id
    FOR UPDATE
), mine AS (
    SELECT batch.id FROM batch JOIN held ON held.id = batch.id AND held.claim_seq = batch.fence
)
UPDATE email_log AS e
SET locked_until = now() + make_interval(secs => :lease_seconds)
FROM mine
WHERE e.id = mine.id
RETURNING e.id
