-- Attempts that did not deliver, of all lanes whose messages are in this database. The fence tells two attempts of a
-- message apart.
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
    -- It may have been taken all the same.
    unknown         boolean NOT NULL,
    PRIMARY KEY (lane, message_id, fence)
);
