-- Which trace a mail belongs to (W3C Trace Context), as its producer wrote it: whoever inserts a row may fill it in.
-- Text that is no traceparent is passed over. And for when it was ordered, for next_attempt_at moves with every retry.
ALTER TABLE mail_outbox
    ADD COLUMN traceparent text,
    ADD COLUMN send_at timestamptz;
