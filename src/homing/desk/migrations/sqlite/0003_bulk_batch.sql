-- As on PostgreSQL. Foreign keys are not looked after here, so a trigger lets batches go with their run.
CREATE TABLE homing_bulk_batch (
    run_id  INTEGER NOT NULL,
    lane    TEXT NOT NULL,
    low     INTEGER NOT NULL,
    high    INTEGER NOT NULL,
    at      TIMESTAMP NOT NULL,
    numbers TEXT NOT NULL CHECK (json_valid(numbers)),
    PRIMARY KEY (run_id, lane, high, low)
);
CREATE TRIGGER homing_bulk_batch_goes AFTER DELETE ON homing_bulk_run
BEGIN
    DELETE FROM homing_bulk_batch WHERE run_id = OLD.id;
END;
