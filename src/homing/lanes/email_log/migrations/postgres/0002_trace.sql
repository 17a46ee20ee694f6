-- Which trace an email belongs to (W3C Trace Context), as its producer wrote it: whoever inserts a row may fill it in.
-- Text that is no traceparent is passed over.
ALTER TABLE email_log ADD COLUMN traceparent text;
