-- Ours, as those before: nullable, and nobody else's business.
ALTER TABLE open_event_notifications
    -- The claim with which the row ended, whoever has put it back since. A row that has ended once is sent when it is
    -- requeued, however old its event is.
    ADD COLUMN IF NOT EXISTS ended_claim bigint,
    -- A lock whose time does not say since when it is held, and since when we know it.
    ADD COLUMN IF NOT EXISTS lock_seen text,
    ADD COLUMN IF NOT EXISTS lock_seen_at timestamptz;

-- Which subscription was sent a mail with which key.
CREATE INDEX IF NOT EXISTS homing_notifications_delivered ON open_event_notifications (subscription_id, dedupe_key)
    WHERE lower(fanout_status) = 'sent';
-- Locks of other programs' workers: few.
CREATE INDEX IF NOT EXISTS homing_notifications_locked ON open_event_notifications (notification_id)
    WHERE lower(fanout_status) = 'pending' AND locked_at IS NOT NULL AND lock_written_at IS DISTINCT FROM locked_at;

-- What has expired without an attempt shows no other trace of its end once it is requeued.
UPDATE open_event_notifications
SET ended_claim = coalesce(claim_seq, 0)
WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired') AND lower(fanout_status) = 'expired'
  AND ended_claim IS NULL;
