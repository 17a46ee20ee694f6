-- As on PostgreSQL.
ALTER TABLE email_log ADD COLUMN IF NOT EXISTS leased_claim INTEGER;
ALTER TABLE email_log ADD COLUMN IF NOT EXISTS reopened_at TIMESTAMP;

CREATE TRIGGER homing_email_reopened AFTER UPDATE OF status, attempt_count ON email_log
WHEN NEW.status NOT IN ('Dead', 'Sent')
  AND (OLD.status IN ('Dead', 'Sent')
       OR NEW.attempt_count < OLD.attempt_count AND 'Failed' IN (OLD.status, NEW.status))
  AND (NEW.claim_seq = OLD.claim_seq OR NEW.reopened_at IS NOT NULL)
BEGIN
    UPDATE email_log
    SET reopened_at = CASE WHEN NEW.status = 'Failed' THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now') END,
        last_queued_at = CASE WHEN NEW.status <> 'Pending' OR NEW.last_queued_at IS NOT OLD.last_queued_at
                              THEN last_queued_at END,
        sent_at = CASE WHEN OLD.status = 'Sent'
                       THEN coalesce(sent_at, strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) ELSE sent_at END,
        ended_claim = claim_seq,
        claim_seq = claim_seq + 1
    WHERE id = NEW.id;
END;

-- Times are put into our form as they are in the row, not as the statement wrote them: the trigger above may have been first.
DROP TRIGGER email_log_times_on_update;
CREATE TRIGGER email_log_times_on_update AFTER UPDATE OF next_attempt_at, locked_until, last_queued_at ON email_log
WHEN NEW.next_attempt_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt_at)
  OR NEW.locked_until IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.locked_until)
  OR NEW.last_queued_at IS NOT strftime('%Y-%m-%dT%H:%M:%fZ', NEW.last_queued_at)
BEGIN
    UPDATE email_log
    SET next_attempt_at = strftime('%Y-%m-%dT%H:%M:%fZ', next_attempt_at),
        locked_until = strftime('%Y-%m-%dT%H:%M:%fZ', locked_until),
        last_queued_at = strftime('%Y-%m-%dT%H:%M:%fZ', last_queued_at)
    WHERE id = NEW.id;
END;

CREATE INDEX email_log_unpublished_ours ON email_log (coalesce(next_attempt_at, created_at))
    WHERE status = 'Pending' AND reopened_at IS NULL
      AND (last_queued_at IS NULL AND claim_seq > 0
           OR last_queued_at <= max(coalesce(last_attempt_at, sent_at), coalesce(sent_at, last_attempt_at))
              AND locked_by IS NULL
              AND (ended_claim IS NOT NULL OR sent_at IS NOT NULL OR failed_claim IS NOT NULL AND attempt_count = 0));
CREATE INDEX email_log_unpublished_new ON email_log (coalesce(next_attempt_at, created_at))
    WHERE status = 'Pending' AND reopened_at IS NULL AND last_queued_at IS NULL AND claim_seq = 0 AND attempt_count = 0;

-- As on PostgreSQL.
UPDATE email_log SET last_queued_at = NULL, ended_claim = coalesce(ended_claim, claim_seq)
WHERE status = 'Pending' AND attempt_count = 0 AND defer_count = 0 AND claim_seq > 0
  AND locked_by IS NULL AND locked_until IS NULL AND last_queued_at <= last_attempt_at;
