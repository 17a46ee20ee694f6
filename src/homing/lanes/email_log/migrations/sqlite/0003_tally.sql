-- How many emails there are in which state, without counting them. On SQLite a row's trigger costs claims and
-- settlements about a thirtieth (measured), so that every state has its tally; on PostgreSQL only the total has one.
CREATE TABLE IF NOT EXISTS homing_tally (
    lane  TEXT NOT NULL,
    state TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (lane, state)
) WITHOUT ROWID;

INSERT INTO homing_tally (lane, state, count)
WITH states (state) AS (VALUES ('Pending'), ('RetryQueued'), ('Sent'), ('Failed'), ('Dead'))
SELECT 'email_log', states.state, coalesce(found.count, 0)
FROM states LEFT JOIN (SELECT status, count(*) AS count FROM email_log GROUP BY status) AS found
    ON found.status = states.state;

CREATE TRIGGER email_log_tally_insert AFTER INSERT ON email_log
BEGIN
    UPDATE homing_tally SET count = count + 1 WHERE lane = 'email_log' AND state = NEW.status;
END;
-- A renewed lease changes no state, and costs nothing here.
CREATE TRIGGER email_log_tally_update AFTER UPDATE OF status ON email_log WHEN OLD.status IS NOT NEW.status
BEGIN
    UPDATE homing_tally SET count = count - 1 WHERE lane = 'email_log' AND state = OLD.status;
    UPDATE homing_tally SET count = count + 1 WHERE lane = 'email_log' AND state = NEW.status;
END;
CREATE TRIGGER email_log_tally_delete AFTER DELETE ON email_log
BEGIN
    UPDATE homing_tally SET count = count - 1 WHERE lane = 'email_log' AND state = OLD.status;
END;
