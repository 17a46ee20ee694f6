-- How many mails there are in which state, without counting them. On SQLite a row's trigger costs claims and
-- settlements about a thirtieth (measured), so that every state has its tally; on PostgreSQL only the total has one.
CREATE TABLE IF NOT EXISTS homing_tally (
    lane  TEXT NOT NULL,
    state TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (lane, state)
) WITHOUT ROWID;

INSERT INTO homing_tally (lane, state, count)
WITH states (state) AS (VALUES ('queued'), ('dispatching'), ('sent'), ('failed'), ('cancelled'), ('expired'))
SELECT 'mail_outbox', states.state, coalesce(found.count, 0)
FROM states LEFT JOIN (SELECT status, count(*) AS count FROM mail_outbox GROUP BY status) AS found
    ON found.status = states.state;

CREATE TRIGGER mail_outbox_tally_insert AFTER INSERT ON mail_outbox
BEGIN
    UPDATE homing_tally SET count = count + 1 WHERE lane = 'mail_outbox' AND state = NEW.status;
END;
-- A renewed lease changes no state, and costs nothing here.
CREATE TRIGGER mail_outbox_tally_update AFTER UPDATE OF status ON mail_outbox WHEN OLD.status IS NOT NEW.status
BEGIN
    UPDATE homing_tally SET count = count - 1 WHERE lane = 'mail_outbox' AND state = OLD.status;
    UPDATE homing_tally SET count = count + 1 WHERE lane = 'mail_outbox' AND state = NEW.status;
END;
CREATE TRIGGER mail_outbox_tally_delete AFTER DELETE ON mail_outbox
BEGIN
    UPDATE homing_tally SET count = count - 1 WHERE lane = 'mail_outbox' AND state = OLD.status;
END;
