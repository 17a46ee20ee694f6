-- As on PostgreSQL: what another program has made stays as it is, and only what is missing is added. Times of ours
-- are ISO text in UTC with milliseconds and Z. No triggers: the other program would have to live with them.
-- A column that is added is TEXT or INTEGER, which are the words that a STRICT table knows. All of this can be run
-- again, and is when another program has made a table anew without what was added to it (repair.py).

CREATE TABLE IF NOT EXISTS courses (
    course_id     INTEGER PRIMARY KEY AUTOINCREMENT,
    term_id       TEXT,
    campus_code   TEXT,
    subject_code  TEXT,
    course_number TEXT,
    course_string TEXT,
    title         TEXT
);
ALTER TABLE courses ADD COLUMN IF NOT EXISTS term_id TEXT;
ALTER TABLE courses ADD COLUMN IF NOT EXISTS campus_code TEXT;
ALTER TABLE courses ADD COLUMN IF NOT EXISTS subject_code TEXT;
ALTER TABLE courses ADD COLUMN IF NOT EXISTS course_number TEXT;
ALTER TABLE courses ADD COLUMN IF NOT EXISTS course_string TEXT;
ALTER TABLE courses ADD COLUMN IF NOT EXISTS title TEXT;

CREATE TABLE IF NOT EXISTS sections (
    section_id           INTEGER PRIMARY KEY AUTOINCREMENT,
    course_id            INTEGER,
    term_id              TEXT,
    campus_code          TEXT,
    subject_code         TEXT,
    section_number       TEXT,
    index_number         TEXT,
    open_status          TEXT,
    meeting_mode_summary TEXT
);
ALTER TABLE sections ADD COLUMN IF NOT EXISTS course_id INTEGER;
ALTER TABLE sections ADD COLUMN IF NOT EXISTS term_id TEXT;
ALTER TABLE sections ADD COLUMN IF NOT EXISTS campus_code TEXT;
ALTER TABLE sections ADD COLUMN IF NOT EXISTS subject_code TEXT;
ALTER TABLE sections ADD COLUMN IF NOT EXISTS section_number TEXT;
ALTER TABLE sections ADD COLUMN IF NOT EXISTS index_number TEXT;
ALTER TABLE sections ADD COLUMN IF NOT EXISTS open_status TEXT;
ALTER TABLE sections ADD COLUMN IF NOT EXISTS meeting_mode_summary TEXT;
CREATE INDEX IF NOT EXISTS homing_sections_by_index ON sections (term_id, campus_code, index_number);

CREATE TABLE IF NOT EXISTS section_meetings (
    meeting_id    INTEGER PRIMARY KEY AUTOINCREMENT,
    section_id    INTEGER NOT NULL,
    meeting_day   TEXT,
    start_minutes INTEGER,
    end_minutes   INTEGER,
    campus_abbrev TEXT,
    building_code TEXT,
    room_number   TEXT
);
ALTER TABLE section_meetings ADD COLUMN IF NOT EXISTS meeting_day TEXT;
ALTER TABLE section_meetings ADD COLUMN IF NOT EXISTS start_minutes INTEGER;
ALTER TABLE section_meetings ADD COLUMN IF NOT EXISTS end_minutes INTEGER;
ALTER TABLE section_meetings ADD COLUMN IF NOT EXISTS campus_abbrev TEXT;
ALTER TABLE section_meetings ADD COLUMN IF NOT EXISTS building_code TEXT;
ALTER TABLE section_meetings ADD COLUMN IF NOT EXISTS room_number TEXT;
CREATE INDEX IF NOT EXISTS homing_meetings_of_section ON section_meetings (section_id);

CREATE TABLE IF NOT EXISTS subscriptions (
    subscription_id           INTEGER PRIMARY KEY AUTOINCREMENT,
    section_id                INTEGER,
    term_id                   TEXT NOT NULL,
    campus_code               TEXT NOT NULL,
    index_number              TEXT NOT NULL,
    contact_type              TEXT NOT NULL DEFAULT 'email',
    contact_value             TEXT NOT NULL,
    contact_hash              TEXT,
    locale                    TEXT,
    -- In any spelling: words are compared without case everywhere.
    status                    TEXT NOT NULL DEFAULT 'pending'
                              CHECK (lower(status) IN ('pending', 'active', 'paused', 'suppressed', 'unsubscribed')),
    is_verified               INTEGER NOT NULL DEFAULT 0,
    created_at                TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    updated_at                TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    last_notified_at          TIMESTAMP,
    last_known_section_status TEXT,
    unsubscribe_token         TEXT,
    metadata                  TEXT
);
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS section_id INTEGER;
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS contact_hash TEXT;
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS locale TEXT;
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS is_verified INTEGER;
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS created_at TEXT;
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS updated_at TEXT;
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS last_notified_at TEXT;
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS last_known_section_status TEXT;
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS unsubscribe_token TEXT;
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS metadata TEXT;
CREATE INDEX IF NOT EXISTS homing_subscriptions_of_section ON subscriptions (term_id, campus_code, index_number);
CREATE INDEX IF NOT EXISTS homing_subscriptions_by_contact ON subscriptions (contact_hash);
-- Another program may leave the hash out, or make it in its own way: then the address itself is looked for.
CREATE INDEX IF NOT EXISTS homing_subscriptions_by_address ON subscriptions (lower(trim(contact_value)));
CREATE INDEX IF NOT EXISTS homing_subscriptions_by_token ON subscriptions (unsubscribe_token)
    WHERE unsubscribe_token IS NOT NULL;

CREATE TABLE IF NOT EXISTS subscription_events (
    event_id                INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription_id         INTEGER NOT NULL,
    event_type              TEXT NOT NULL,
    section_status_snapshot TEXT,
    payload                 TEXT,
    created_at              TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
ALTER TABLE subscription_events ADD COLUMN IF NOT EXISTS section_status_snapshot TEXT;
ALTER TABLE subscription_events ADD COLUMN IF NOT EXISTS payload TEXT;
ALTER TABLE subscription_events ADD COLUMN IF NOT EXISTS created_at TEXT;
-- The history of one subscription; how often it was notified is counted in it.
CREATE INDEX IF NOT EXISTS homing_subscription_history ON subscription_events (subscription_id, event_type, event_id);

CREATE TABLE IF NOT EXISTS open_events (
    open_event_id INTEGER PRIMARY KEY AUTOINCREMENT,
    section_id    INTEGER,
    term_id       TEXT NOT NULL,
    campus_code   TEXT NOT NULL,
    index_number  TEXT NOT NULL,
    status_before TEXT,
    status_after  TEXT NOT NULL,
    seat_delta    INTEGER,
    event_at      TIMESTAMP NOT NULL,
    detected_by   TEXT,
    snapshot_id   INTEGER,
    dedupe_key    TEXT NOT NULL,
    trace_id      TEXT,
    payload       TEXT,
    created_at    TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
ALTER TABLE open_events ADD COLUMN IF NOT EXISTS section_id INTEGER;
ALTER TABLE open_events ADD COLUMN IF NOT EXISTS status_before TEXT;
ALTER TABLE open_events ADD COLUMN IF NOT EXISTS seat_delta INTEGER;
ALTER TABLE open_events ADD COLUMN IF NOT EXISTS detected_by TEXT;
ALTER TABLE open_events ADD COLUMN IF NOT EXISTS snapshot_id INTEGER;
ALTER TABLE open_events ADD COLUMN IF NOT EXISTS trace_id TEXT;
ALTER TABLE open_events ADD COLUMN IF NOT EXISTS payload TEXT;
ALTER TABLE open_events ADD COLUMN IF NOT EXISTS created_at TEXT;
CREATE INDEX IF NOT EXISTS homing_events_by_dedupe_key ON open_events (dedupe_key);
CREATE INDEX IF NOT EXISTS homing_events_of_section ON open_events (term_id, campus_code, index_number, event_at);

CREATE TABLE IF NOT EXISTS open_event_notifications (
    notification_id INTEGER PRIMARY KEY AUTOINCREMENT,
    open_event_id   INTEGER NOT NULL,
    subscription_id INTEGER NOT NULL,
    dedupe_key      TEXT NOT NULL,
    fanout_status   TEXT NOT NULL DEFAULT 'pending'
                    CHECK (lower(fanout_status) IN ('pending', 'sent', 'skipped', 'failed', 'expired')),
    fanout_attempts INTEGER NOT NULL DEFAULT 0,
    last_attempt_at TIMESTAMP,
    locked_by       TEXT,
    locked_at       TIMESTAMP,
    error           TEXT,
    created_at      TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS last_attempt_at TEXT;
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS locked_by TEXT;
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS locked_at TEXT;
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS error TEXT;
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS created_at TEXT;
-- Ours from here on. NULL says what nobody but us has to know, so that producers and foreign workers need
-- not know these columns. Which claim has the row: a number that only ever rises.
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS claim_seq INTEGER;
-- When a worker of ours looks at the row again; NULL is now.
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS due_at TEXT;
-- fanout_attempts when due_at was written. Another number means that somebody has changed the row since, and
-- due_at counts no more.
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS due_attempts INTEGER;
-- What we wrote into locked_at. Where the two differ the lock is somebody else's.
ALTER TABLE open_event_notifications ADD COLUMN IF NOT EXISTS lock_written_at TEXT;

-- Nobody is told twice of one event. A table that has such a key already needs no second one.
-- unless: SELECT 1 FROM pragma_index_list('open_event_notifications') AS l WHERE l."unique" AND NOT l.partial AND (SELECT group_concat(name) FROM (SELECT name FROM pragma_index_info(l.name) ORDER BY name)) = 'open_event_id,subscription_id'
CREATE UNIQUE INDEX homing_notifications_once ON open_event_notifications (open_event_id, subscription_id);
-- Claiming: what was never looked at, in the order of the ids; and what waits, by when it is due. What ended is
-- in neither.
CREATE INDEX IF NOT EXISTS homing_notifications_new ON open_event_notifications (notification_id)
    WHERE lower(fanout_status) = 'pending' AND due_at IS NULL;
CREATE INDEX IF NOT EXISTS homing_notifications_waiting ON open_event_notifications (due_at, notification_id)
    WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL;
-- What was reset by hand while it waited: nearly always empty. A row that waits has a word in `error`, and a
-- requeue takes it away: the one trace when a foreign worker has ended a row that was never tried.
CREATE INDEX IF NOT EXISTS homing_notifications_reset ON open_event_notifications (notification_id)
    WHERE lower(fanout_status) = 'pending' AND due_at IS NOT NULL
      AND (due_attempts IS NOT fanout_attempts OR lock_written_at IS NOT NULL AND locked_at IS NULL
           OR lock_written_at IS NULL AND error IS NULL);
-- What else a subscription waits for.
CREATE INDEX IF NOT EXISTS homing_notifications_of_subscription ON open_event_notifications (subscription_id)
    WHERE lower(fanout_status) = 'pending';
-- Looking at what ended badly, newest first.
CREATE INDEX IF NOT EXISTS homing_notifications_ended ON open_event_notifications (lower(fanout_status), notification_id)
    WHERE lower(fanout_status) IN ('skipped', 'failed', 'expired');
