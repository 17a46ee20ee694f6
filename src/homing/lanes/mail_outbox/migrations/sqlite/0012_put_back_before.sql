-- What plain SQL has put back before there was the trigger: a row that was tried and counts neither an attempt nor a
-- deferral, or that says it has expired and waits.
UPDATE mail_outbox SET ended_claim = claim_seq
WHERE status = 'queued' AND ended_claim IS NULL AND sent_at IS NULL
  AND (claim_seq > 0 AND retry_count = 0 AND defer_count = 0 AND (last_error IS NOT NULL OR recipients IS NOT NULL)
       OR last_error = 'expired before it could be sent');
