-- A row that plain SQL has ended says nothing of it in ended_claim. It is noted when the row is put back, and only then:
-- what Homing ends is marked, so that claims, settlements and requeues pay a look at a condition.
--
-- An update of its own, for few rows: a trigger before each update would lock each row twice. With the rights of the
-- table's owner and without pg_temp before it, as homing_note_mail_death.
CREATE FUNCTION homing_note_mail_put_back() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    UPDATE mail_outbox SET ended_claim = claim_seq WHERE id = NEW.id;
    RETURN NULL;
END
$$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION homing_note_mail_put_back() SET search_path = %s, pg_temp', current_setting('search_path'));
END
$$;
CREATE TRIGGER homing_mail_put_back AFTER UPDATE OF status ON mail_outbox FOR EACH ROW
    WHEN (NEW.status = 'queued' AND OLD.status IN ('sent', 'failed', 'cancelled', 'expired')
          AND NEW.ended_claim IS DISTINCT FROM NEW.claim_seq AND (NEW.ended_claim IS NOT NULL OR NEW.sent_at IS NULL))
    EXECUTE FUNCTION homing_note_mail_put_back();
