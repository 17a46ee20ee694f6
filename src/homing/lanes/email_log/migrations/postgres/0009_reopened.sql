ALTER TABLE email_log
    -- The claim that wrote leased_until: where claim_seq is another, a version that knows nothing of it has claimed since.
    ADD COLUMN IF NOT EXISTS leased_claim bigint,
    -- When what had ended, or was tried, was made Failed by plain SQL: whichever scheduler comes first publishes it, and
    -- may note no time. So if it is Pending then, that does not ask for a message.
    ADD COLUMN IF NOT EXISTS reopened_at timestamptz;

-- What was put back by plain SQL, whoever had ended it: as after a requeue of ours it is no longer queued, which makes a
-- Pending one due, and the claim after it is a new beginning. Unless whoever put it back has noted that it is published.
--
-- An update of its own, for few rows: a trigger before each update would lock each row twice. With the rights of the
-- table's owner and without pg_temp before it, as homing_note_email_death.
CREATE FUNCTION homing_note_email_reopened() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    UPDATE email_log
    SET reopened_at = CASE WHEN NEW.status = 'Failed' THEN now() END,
        last_queued_at = CASE WHEN NEW.status <> 'Pending' OR NEW.last_queued_at IS DISTINCT FROM OLD.last_queued_at
                              THEN last_queued_at END,
        sent_at = CASE WHEN OLD.status = 'Sent' THEN coalesce(sent_at, now()) ELSE sent_at END,
        ended_claim = claim_seq,
        claim_seq = claim_seq + 1
    WHERE id = NEW.id;
    RETURN NULL;
END
$$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION homing_note_email_reopened() SET search_path = %s, pg_temp', current_setting('search_path'));
END
$$;
CREATE TRIGGER homing_email_reopened AFTER UPDATE OF status, attempt_count ON email_log FOR EACH ROW
    -- A scheduler that takes a failed one lowers no count; our own requeue raises claim_seq, and says all of this itself.
    WHEN (NEW.status NOT IN ('Dead', 'Sent')
          AND (OLD.status IN ('Dead', 'Sent')
               OR NEW.attempt_count < OLD.attempt_count AND 'Failed' IN (OLD.status, NEW.status))
          AND (NEW.claim_seq = OLD.claim_seq OR NEW.reopened_at IS NOT NULL))
    EXECUTE FUNCTION homing_note_email_reopened();

-- What a scheduler looks for among Pending rows, and nothing else: what other programs have published, or will, may be
-- many. First those that were in our hands, or were put back by plain SQL after they had ended; then new ones.
CREATE INDEX email_log_unpublished_ours ON email_log (coalesce(next_attempt_at, created_at))
    WHERE status = 'Pending' AND reopened_at IS NULL
      AND (last_queued_at IS NULL AND claim_seq > 0
           OR last_queued_at <= greatest(last_attempt_at, sent_at) AND locked_by IS NULL
              AND (ended_claim IS NOT NULL OR sent_at IS NOT NULL OR failed_claim IS NOT NULL AND attempt_count = 0));
CREATE INDEX email_log_unpublished_new ON email_log (coalesce(next_attempt_at, created_at))
    WHERE status = 'Pending' AND reopened_at IS NULL AND last_queued_at IS NULL AND claim_seq = 0 AND attempt_count = 0;

-- What was put back by plain SQL before there was the trigger: it was tried after it had been queued, and yet it waits without
-- an attempt. One with attempts may be a retry of which another scheduler noted no time: it is left to its message.
UPDATE email_log SET last_queued_at = NULL, ended_claim = coalesce(ended_claim, claim_seq)
WHERE status = 'Pending' AND attempt_count = 0 AND defer_count = 0 AND claim_seq > 0
  AND locked_by IS NULL AND locked_until IS NULL AND last_queued_at <= last_attempt_at;
