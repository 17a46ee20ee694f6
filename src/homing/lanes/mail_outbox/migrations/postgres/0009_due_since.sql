-- Since when a mail has been due: an urgent one has a next_attempt_at before its order, so that it goes first. The age
-- of the oldest is one step into this index, whatever is urgent and however much waits.
--
-- An index takes no time without a zone as an instant, for that depends on the session. In a table that another program
-- made, created_at may be one: it is read as UTC.
CREATE FUNCTION homing_instant(at timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT at $$;
CREATE FUNCTION homing_instant(at timestamp) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT at AT TIME ZONE 'UTC' $$;
CREATE INDEX mail_outbox_due_since ON mail_outbox
    (greatest(homing_instant(next_attempt_at), homing_instant(created_at))) WHERE status = 'queued';
