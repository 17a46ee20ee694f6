-- Where the dead emails are, on SQLite, for messages/dead_by_text.sql.

-- fragment: table
email_log

-- fragment: key
id

-- fragment: by_index
email_log INDEXED BY email_log_dead

-- fragment: order
id DESC

-- fragment: dead
-- What a person cancelled is no dead letter.
status = 'Dead' AND (dead_reason IS NULL OR dead_reason <> 'Cancelled')

-- fragment: code
-- As desk_conditions.py has it: a group is asked for by its codes, to the letter.
nullif(substr(CAST(dead_reason AS TEXT), 1, 80), '')

-- fragment: text
last_error
