-- Since when a mail has been due: an urgent one has a next_attempt_at before its order, so that it goes first. The age
-- of the oldest is one step into this index, whatever is urgent and however much waits.
CREATE INDEX mail_outbox_due_since ON mail_outbox (max(next_attempt_at, coalesce(created_at, ''))) WHERE status = 'queued';
