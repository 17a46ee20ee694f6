-- What had ended before there was the column; apart from the ALTER TABLE, whose lock would keep everybody out for as long
-- as this takes. What was sent says so by its sent_at: those may be millions.
UPDATE email_log SET ended_claim = claim_seq WHERE status = 'Dead' AND ended_claim IS NULL;
