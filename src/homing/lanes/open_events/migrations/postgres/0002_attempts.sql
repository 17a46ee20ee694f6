-- Who delivered it, and how long that took. Attempts that did not deliver have a table of their own, for all lanes in
-- this database (db/attempts.py).
ALTER TABLE open_event_notifications
    ADD COLUMN IF NOT EXISTS delivered_by text,
    ADD COLUMN IF NOT EXISTS delivered_millis integer;

CREATE TABLE IF NOT EXISTS homing_attempt (
    lane            text NOT NULL,
    message_id      bigint NOT NULL,
    fence           bigint NOT NULL,
    number          integer NOT NULL,
    ended_at        timestamptz NOT NULL,
    duration_millis integer,
    worker          text,
    code            text NOT NULL,
    message         text NOT NULL,
    PRIMARY KEY (lane, message_id, fence)
);
