CREATE TABLE homing_caught_mail (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id TEXT NOT NULL,
    sender     TEXT NOT NULL,
    recipients TEXT NOT NULL,
    subject    TEXT NOT NULL,
    -- base64: JSON carries it in a batch, and both databases take it alike.
    source     TEXT NOT NULL,
    caught_at  TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
