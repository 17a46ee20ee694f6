-- How many jobs there are in which state, without counting them. On SQLite a row's trigger costs claims and
-- settlements about a thirtieth (measured), so that every state has its tally; on PostgreSQL only the total has one.
CREATE TABLE IF NOT EXISTS homing_tally (
    lane  TEXT NOT NULL,
    state TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (lane, state)
) WITHOUT ROWID;

INSERT INTO homing_tally (lane, state, count)
WITH states (state) AS (VALUES ('PENDING'), ('IN_PROGRESS'), ('COMPLETED'), ('FAILED'), ('ERROR'), ('CANCELLED'))
SELECT 'dispatch_jobs', states.state, coalesce(found.count, 0)
FROM states LEFT JOIN (SELECT status, count(*) AS count FROM dispatch_job GROUP BY status) AS found
    ON found.status = states.state;

CREATE TRIGGER dispatch_job_tally_insert AFTER INSERT ON dispatch_job
BEGIN
    UPDATE homing_tally SET count = count + 1 WHERE lane = 'dispatch_jobs' AND state = NEW.status;
END;
-- A renewed lease changes no state, and costs nothing here.
CREATE TRIGGER dispatch_job_tally_update AFTER UPDATE OF status ON dispatch_job WHEN OLD.status IS NOT NEW.status
BEGIN
    UPDATE homing_tally SET count = count - 1 WHERE lane = 'dispatch_jobs' AND state = OLD.status;
    UPDATE homing_tally SET count = count + 1 WHERE lane = 'dispatch_jobs' AND state = NEW.status;
END;
CREATE TRIGGER dispatch_job_tally_delete AFTER DELETE ON dispatch_job
BEGIN
    UPDATE homing_tally SET count = count - 1 WHERE lane = 'dispatch_jobs' AND state = OLD.status;
END;
