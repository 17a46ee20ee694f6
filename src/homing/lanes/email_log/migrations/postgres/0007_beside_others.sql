-- What it takes to work beside a sender or a scheduler of another program, which write none of these columns.
ALTER TABLE email_log
    -- Where nothing is to follow, another program may leave it empty.
    ALTER COLUMN next_attempt_at DROP NOT NULL,
    -- locked_until as Homing wrote it: where the two differ, another program has taken the row or let go of it.
    ADD COLUMN IF NOT EXISTS leased_until timestamptz,
    -- last_queued_at as Homing wrote it: the message in the queue is ours, and may be seen to be lost.
    ADD COLUMN IF NOT EXISTS published_at timestamptz,
    -- The claim that ended the email: whoever claims it afterwards has been asked to send it again.
    ADD COLUMN IF NOT EXISTS ended_claim bigint,
    -- The claim that failed last: one that is Pending again without an attempt was put back by plain SQL.
    ADD COLUMN IF NOT EXISTS failed_claim bigint;

-- What nobody has published, and what was put back by plain SQL since.
CREATE INDEX email_log_unpublished ON email_log (coalesce(next_attempt_at, created_at))
    WHERE status = 'Pending' AND (last_queued_at IS NULL OR ended_claim IS NOT NULL OR sent_at IS NOT NULL
                                  OR failed_claim IS NOT NULL AND attempt_count = 0);
CREATE INDEX email_log_queued ON email_log (last_queued_at)
    WHERE status = 'Pending' AND last_queued_at IS NOT NULL AND claim_seq > 0;

-- What the schedulers have seen of their queues; also, that some process here has a broker.
CREATE TABLE homing_email_queue (
    -- Broker and queue, without a password.
    name            text PRIMARY KEY,
    -- When the queue was missing.
    gone_at         timestamptz,
    -- When no message was ready in it; the second time is at least one lease before the first.
    empty_at        timestamptz,
    empty_before_at timestamptz
);
