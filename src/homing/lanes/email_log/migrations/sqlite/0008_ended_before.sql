-- As on PostgreSQL.
UPDATE email_log SET ended_claim = claim_seq WHERE status = 'Dead' AND ended_claim IS NULL;
