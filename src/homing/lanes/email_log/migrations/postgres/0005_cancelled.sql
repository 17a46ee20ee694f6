-- What a person has cancelled is Dead in the table, and told apart from the dead wherever emails are counted, listed
-- or requeued: both lie in an index of their own, so that a million of the ones hides none of the others.
-- The state is a range here because the desk asks in this form for the order of this index (desk_dead_postgres.sql);
-- it serves a question by equality as well.
CREATE INDEX email_log_dead ON email_log (status, id)
    WHERE status >= 'Dead' AND status <= 'Dead' AND (dead_reason IS NULL OR dead_reason <> 'Cancelled');
CREATE INDEX email_log_cancelled ON email_log (status, id) WHERE status = 'Dead' AND dead_reason = 'Cancelled';
