-- Where the dead notifications are, on SQLite, for messages/dead_by_text.sql. Another program may write every row.

-- fragment: table
open_event_notifications

-- fragment: key
notification_id

-- fragment: by_index
open_event_notifications INDEXED BY homing_notifications_ended

-- fragment: order
notification_id DESC

-- fragment: dead
lower(fanout_status) IN ('skipped', 'failed', 'expired') AND lower(fanout_status) = 'failed'

-- fragment: code
-- As desk_conditions.py has it: a group is asked for by its codes, to the letter.
nullif(substr(CASE WHEN json_valid(error) THEN CAST(json_extract(error, '$.code') AS TEXT) END, 1, 80), '')

-- fragment: text
CAST(error AS TEXT)
