-- Which trace a job belongs to (W3C Trace Context), as its producer wrote it: whoever inserts a row may fill it in.
-- Both are sent on with the webhook, so both are kept; text that is no traceparent is passed over.
ALTER TABLE dispatch_job
    ADD COLUMN traceparent text,
    ADD COLUMN tracestate text;
