-- What the migration after this one indexes and a table of another program may lack: its specification does not name
-- these columns. A table that does not exist yet is made there, with all of them. Lines of the
-- history are told apart by their rowid, which event_id is in tables of ours.
ALTER TABLE IF EXISTS subscriptions ADD COLUMN IF NOT EXISTS term_id TEXT;
ALTER TABLE IF EXISTS subscriptions ADD COLUMN IF NOT EXISTS campus_code TEXT;
ALTER TABLE IF EXISTS subscriptions ADD COLUMN IF NOT EXISTS index_number TEXT;
ALTER TABLE IF EXISTS subscription_events ADD COLUMN IF NOT EXISTS event_id INTEGER;
ALTER TABLE IF EXISTS sections ADD COLUMN IF NOT EXISTS section_id INTEGER;
ALTER TABLE IF EXISTS courses ADD COLUMN IF NOT EXISTS course_id INTEGER;
ALTER TABLE IF EXISTS section_meetings ADD COLUMN IF NOT EXISTS meeting_id INTEGER;
ALTER TABLE IF EXISTS section_meetings ADD COLUMN IF NOT EXISTS section_id INTEGER;
