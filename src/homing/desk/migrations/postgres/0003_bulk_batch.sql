-- Which messages a bulk run has changed, a row for each batch: for whoever asks of a message what was done with it.
CREATE TABLE homing_bulk_batch (
    run_id  bigint NOT NULL REFERENCES homing_bulk_run (id) ON DELETE CASCADE,
    lane    text NOT NULL,
    low     bigint NOT NULL,
    high    bigint NOT NULL,
    -- When it began.
    at      timestamptz NOT NULL,
    -- Between low and high those that were changed.
    numbers bigint[] NOT NULL,
    PRIMARY KEY (run_id, lane, high, low)
);
