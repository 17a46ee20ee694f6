-- As on PostgreSQL.
UPDATE email_log SET ended_claim = claim_seq WHERE status = 'Dead' AND ended_claim IS NULL;
-- What is queued was published by the version before.
UPDATE email_log SET published_at = last_queued_at
WHERE status = 'Pending' AND last_queued_at IS NOT NULL AND locked_until IS NULL AND claim_seq > 0 AND published_at IS NULL;
