-- As on PostgreSQL.
CREATE TRIGGER homing_mail_put_back AFTER UPDATE OF status ON mail_outbox
WHEN NEW.status = 'queued' AND OLD.status IN ('sent', 'failed', 'cancelled', 'expired')
  AND NEW.ended_claim IS NOT NEW.claim_seq AND (NEW.ended_claim IS NOT NULL OR NEW.sent_at IS NULL)
BEGIN
    UPDATE mail_outbox SET ended_claim = claim_seq WHERE id = NEW.id;
END;
