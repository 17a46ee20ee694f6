-- Where the dead mails of the outbox are, on PostgreSQL, for messages/dead_by_text.sql.

-- fragment: table
mail_outbox

-- fragment: key
id

-- fragment: by_index
mail_outbox

-- fragment: order
status DESC, id DESC

-- fragment: dead
-- Written so that the order has to come from the index of what ended badly, and not from that of all mails.
status IN ('failed', 'cancelled', 'expired') AND status >= 'failed' AND status <= 'failed'

-- fragment: code
-- `last_error` is `code: message`. As mails.py has it: a group is asked for by its codes, to the letter.
nullif(substr(split_part(last_error, ':', 1), 1, 80), '')

-- fragment: text
last_error
