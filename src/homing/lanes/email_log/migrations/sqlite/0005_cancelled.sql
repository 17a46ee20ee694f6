-- What a person has cancelled is Dead in the table, and told apart from the dead wherever emails are counted.
CREATE INDEX email_log_cancelled ON email_log (id) WHERE status = 'Dead' AND dead_reason = 'Cancelled';
