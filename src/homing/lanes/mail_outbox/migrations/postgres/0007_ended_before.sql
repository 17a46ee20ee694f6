-- What ended before there was the column. A row that was sent says so by its sent_at; they may be millions. Apart
-- from the ALTER TABLE, whose lock would keep everybody out for as long as this takes.
UPDATE mail_outbox SET ended_claim = claim_seq
WHERE status IN ('failed', 'cancelled', 'expired') AND ended_claim IS NULL;
