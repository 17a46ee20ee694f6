-- What became of attempts, by lane and minute, and after two days by hour. Each process writes rows of its own, whole:
-- to write one again does no harm, and no two processes wait for each other. Who looks adds them up.
CREATE TABLE homing_traffic (
    -- Seconds since 1970, by the clock of the process: the begin of the minute or hour.
    at        bigint NOT NULL,
    lane      text NOT NULL,
    -- 60 or 3600 seconds.
    span      integer NOT NULL,
    -- Empty for hours, which hold what all processes did.
    writer    text NOT NULL,
    delivered bigint NOT NULL,
    retried   bigint NOT NULL,
    dead      bigint NOT NULL,
    stopped   bigint NOT NULL,
    -- Arrays of counts, by bucket (telemetry.py): how long attempts took, and messages from creation to delivery.
    attempts  json NOT NULL,
    waits     json NOT NULL,
    PRIMARY KEY (at, lane, span, writer)
);
CREATE INDEX homing_traffic_minutes ON homing_traffic (at) WHERE span = 60;
