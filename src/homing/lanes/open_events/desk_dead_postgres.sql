-- Where the dead notifications are, on PostgreSQL, for messages/dead_by_text.sql. Another program may write every row.

-- fragment: table
open_event_notifications

-- fragment: key
notification_id

-- fragment: by_index
open_event_notifications

-- fragment: order
lower(fanout_status) DESC, notification_id DESC

-- fragment: dead
-- Written so that the order has to come from the index of what ended badly, and not from that of all.
lower(fanout_status) IN ('skipped', 'failed', 'expired')
    AND lower(fanout_status) >= 'failed' AND lower(fanout_status) <= 'failed'

-- fragment: code
-- What another program wrote may be no JSON, so its text is looked through.
-- As desk_conditions.py has it: a group is asked for by its codes, to the letter.
nullif(substr(substring(CAST(error AS TEXT) FROM '"code"\s*:\s*"([^"]*)"'), 1, 80), '')

-- fragment: text
error
