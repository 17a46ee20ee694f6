-- In which form this table's times are written: ours, unless another program made the table and has its own
-- (adopt/0001_mail_outbox.sql).
CREATE TABLE IF NOT EXISTS homing_time_format (
    lane   TEXT PRIMARY KEY NOT NULL,
    format TEXT NOT NULL
) WITHOUT ROWID;
INSERT OR IGNORE INTO homing_time_format (lane, format) VALUES ('mail_outbox', '%Y-%m-%dT%H:%M:%fZ');
