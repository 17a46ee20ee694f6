-- Where the dead emails are, on PostgreSQL, for messages/dead_by_text.sql.

-- fragment: table
email_log

-- fragment: key
id

-- fragment: by_index
email_log

-- fragment: order
status DESC, id DESC

-- fragment: dead
-- What a person cancelled is no dead letter. The state is written so that the order has to come from the index of
-- the dead, and not from that of all.
status >= 'Dead' AND status <= 'Dead' AND (dead_reason IS NULL OR dead_reason <> 'Cancelled')

-- fragment: code
-- As desk_conditions.py has it: a group is asked for by its codes, to the letter.
nullif(substr(dead_reason, 1, 80), '')

-- fragment: text
last_error
