-- Who delivered it, and how long that took. Attempts that did not deliver are kept apart (db/attempts).
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS delivered_by TEXT;
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS delivered_millis INTEGER;
