-- As on PostgreSQL.
ALTER TABLE email_log ADD COLUMN IF NOT EXISTS leased_claim INTEGER;
ALTER TABLE email_log ADD COLUMN IF NOT EXISTS reopened_at TIMESTAMP;

CREATE TRIGGER homing_email_reopened AFTER UPDATE OF status, attempt_count ON email_log
WHEN (NEW.status = 'Failed' OR NEW.reopened_at IS NOT NULL)
  AND (OLD.status IN ('Dead', 'Sent') AND NEW.status NOT IN ('Dead', 'Sent')
       OR NEW.attempt_count < OLD.attempt_count)
BEGIN
    UPDATE email_log
    SET reopened_at = CASE WHEN NEW.status = 'Failed' THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now') END
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
