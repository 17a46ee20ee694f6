CREATE TABLE homing_worker (
    -- The same as in locked_by of what it has claimed.
    name            text PRIMARY KEY,
    host            text NOT NULL,
    pid             bigint NOT NULL,
    -- Another one for each start, also where host and pid are the same again.
    boot            text NOT NULL,
    version         text NOT NULL,
    lanes           jsonb NOT NULL,
    serves          boolean NOT NULL,
    state           text NOT NULL CHECK (state IN ('running', 'paused', 'stopping', 'stopped')),
    report          jsonb NOT NULL,
    started_at      timestamptz NOT NULL,
    seen_at         timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX homing_worker_seen ON homing_worker (seen_at);

CREATE TABLE homing_pause (
    scope           text NOT NULL CHECK (scope IN ('worker', 'lane')),
    name            text NOT NULL,
    reason          text,
    asked_by        text NOT NULL,
    asked_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, name)
);
