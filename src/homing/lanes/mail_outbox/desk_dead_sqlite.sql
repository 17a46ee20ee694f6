-- Where the dead mails of the outbox are, on SQLite, for messages/dead_by_text.sql.

-- fragment: table
mail_outbox

-- fragment: key
id

-- fragment: by_index
mail_outbox INDEXED BY mail_outbox_ended

-- fragment: order
id DESC

-- fragment: dead
status IN ('failed', 'cancelled', 'expired') AND status = 'failed'

-- fragment: code
-- As mails.py has it: a group is asked for by its codes, to the letter.
nullif(substr(substr(CAST(last_error AS TEXT), 1, instr(CAST(last_error AS TEXT) || ':', ':') - 1), 1, 80), '')

-- fragment: text
last_error
