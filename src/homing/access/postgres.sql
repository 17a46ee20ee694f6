-- Access on PostgreSQL. Every time that is compared is the database's, so that all processes agree.

-- name: is_configured
SELECT EXISTS (SELECT FROM homing_api_key) OR EXISTS (SELECT FROM homing_user) AS configured

-- ── keys ────────────────────────────────────────────────────────────────────────────────────────

-- fragment: key
id, name, scopes::text AS scopes, rate_per_second, created_at, created_by, expires_at, last_used_at,
    revoked_at, revoked_by,
    CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= now() THEN 'expired' ELSE 'valid' END
        AS state

-- name: create_key
INSERT INTO homing_api_key (id, name, hash, scopes, rate_per_second, created_by, expires_at)
VALUES (:id, :name, :hash, :scopes::text::jsonb, :rate_per_second, :created_by,
        now() + make_interval(secs => :expires_in))
RETURNING {key}

-- name: load_keys
SELECT {key}, hash FROM homing_api_key WHERE id IN (SELECT json_array_elements_text(:ids::text::json))

-- name: list_keys
SELECT {key}, hash FROM homing_api_key ORDER BY created_at DESC, id

-- name: revoke_key
UPDATE homing_api_key SET revoked_at = now(), revoked_by = :revoked_by
WHERE id = :id AND revoked_at IS NULL
RETURNING {key}

-- name: note_uses
-- Other processes note the same key, so whoever comes within the minute writes nothing.
UPDATE homing_api_key AS k SET last_used_at = now()
FROM (SELECT id FROM homing_api_key
      WHERE id IN (SELECT json_array_elements_text(:batch::text::json))
        AND (last_used_at IS NULL OR last_used_at < now() - make_interval(secs => :gap))
      ORDER BY id FOR UPDATE SKIP LOCKED) AS used
WHERE k.id = used.id
RETURNING k.id

-- name: rehash_key
UPDATE homing_api_key SET hash = :hash WHERE id = :id AND hash = :seen RETURNING id

-- ── users ───────────────────────────────────────────────────────────────────────────────────────

-- fragment: person
name, role, created_at, created_by, password_at, last_login_at

-- name: add_user
-- Who was removed may come back under the same name.
INSERT INTO homing_user (name, password, role, created_by) VALUES (:name, :password, :role, :created_by)
ON CONFLICT (name) DO UPDATE
SET password = excluded.password, role = excluded.role, created_by = excluded.created_by, created_at = now(),
    password_at = now(), last_login_at = NULL, removed_at = NULL
WHERE homing_user.removed_at IS NOT NULL
RETURNING {person}

-- name: load_user
SELECT {person}, password FROM homing_user WHERE name = :name AND removed_at IS NULL

-- name: list_users
SELECT {person} FROM homing_user WHERE removed_at IS NULL ORDER BY name

-- name: set_password
UPDATE homing_user SET password = :password, password_at = now()
WHERE name = :name AND removed_at IS NULL
RETURNING {person}

-- name: set_role
UPDATE homing_user SET role = :role WHERE name = :name AND removed_at IS NULL RETURNING {person}

-- name: remove_user
UPDATE homing_user SET removed_at = now(), password = '' WHERE name = :name AND removed_at IS NULL
RETURNING {person}

-- ── sessions ────────────────────────────────────────────────────────────────────────────────────

-- name: open_session
INSERT INTO homing_session (hash, user_name) VALUES (:hash, :name) RETURNING hash

-- name: note_login
UPDATE homing_user SET last_login_at = now() WHERE name = :name RETURNING name

-- name: load_sessions
SELECT s.hash, u.name, u.role
FROM homing_session s JOIN homing_user u ON u.name = s.user_name
WHERE s.hash IN (SELECT json_array_elements_text(:hashes::text::json)) AND u.removed_at IS NULL
  AND s.created_at > now() - make_interval(secs => :longest)
  AND s.seen_at > now() - make_interval(secs => :idle)

-- name: note_sessions
UPDATE homing_session AS s SET seen_at = now()
FROM (SELECT hash FROM homing_session
      WHERE hash IN (SELECT json_array_elements_text(:batch::text::json))
        AND seen_at < now() - make_interval(secs => :gap)
      ORDER BY hash FOR UPDATE SKIP LOCKED) AS seen
WHERE s.hash = seen.hash
RETURNING s.hash

-- name: close_session
DELETE FROM homing_session WHERE hash = :hash RETURNING user_name

-- name: close_sessions_of
DELETE FROM homing_session WHERE user_name = :name RETURNING hash

-- name: forget_old_sessions
DELETE FROM homing_session
WHERE created_at < now() - make_interval(secs => :longest) OR seen_at < now() - make_interval(secs => :idle)

-- ── logins that failed ──────────────────────────────────────────────────────────────────────────

-- name: try_login
-- Counted before the password is looked at, so that a hundred at once are a hundred; a login that succeeds
-- takes it back. No row comes back while the subject is blocked. Whoever waited here for another began before that
-- one was counted: by the time of its transaction it would be refused, so the clock is read when its turn has come.
INSERT INTO homing_login_failure AS f (subject, failures, last_at, blocked_until)
VALUES (:subject, 1, now(), now())
ON CONFLICT (subject) DO UPDATE
SET failures = CASE WHEN f.last_at < now() - make_interval(secs => :forgotten_after) THEN 1
                    ELSE least(f.failures, 1000000) + 1 END,
    last_at = clock_timestamp(),
    blocked_until = clock_timestamp() + make_interval(secs => CASE
        WHEN f.failures < :free OR f.last_at < now() - make_interval(secs => :forgotten_after) THEN 0
        ELSE least(:longest_block, 1 << least(f.failures - :free, 20)) END)
WHERE f.blocked_until <= clock_timestamp()
RETURNING subject

-- name: login_failures
-- Of an address and a name, before anything is counted.
SELECT subject, failures, greatest(0, extract(epoch FROM blocked_until - clock_timestamp()))::float8 AS seconds
FROM homing_login_failure
WHERE subject IN (:address_subject, :name_subject) AND last_at >= now() - make_interval(secs => :forgotten_after)

-- name: login_wait
SELECT coalesce(extract(epoch FROM max(blocked_until) - now()), 0)::float8 AS seconds
FROM homing_login_failure WHERE subject = :subject

-- name: forgive_name
DELETE FROM homing_login_failure WHERE subject = :name_subject

-- name: forgive_address
-- One only: who has a password of their own must not wash away their guesses at another's.
UPDATE homing_login_failure SET failures = greatest(failures - 1, 0), blocked_until = now()
WHERE subject = :address_subject

-- name: forget_old_failures
DELETE FROM homing_login_failure WHERE last_at < now() - make_interval(secs => :forgotten_after)

-- ── audit ───────────────────────────────────────────────────────────────────────────────────────

-- name: write_audit
INSERT INTO homing_audit (who, address, action, object, detail, outcome)
SELECT who, address, action, object, detail, outcome
FROM json_to_recordset(:audit::text::json)
     AS t (who text, address text, action text, object text, detail jsonb, outcome text)
RETURNING id

-- fragment: entry
a.id, a.at, a.who, k.name AS who_name, a.address, a.action, a.object, a.detail::text AS detail, a.outcome

-- name: audit_page
SELECT {entry}
FROM (SELECT * FROM homing_audit
      WHERE id < :before
        AND id >= coalesce((SELECT id FROM homing_audit WHERE at >= :since::text::timestamptz ORDER BY at, id LIMIT 1), :before)
      ORDER BY id DESC LIMIT :limit) a
LEFT JOIN homing_api_key k ON a.who = 'key:' || k.id
ORDER BY a.id DESC

-- name: audit_page_of
SELECT {entry}
FROM (SELECT * FROM homing_audit
      WHERE who = :who AND id < :before AND at >= :since::text::timestamptz
      ORDER BY id DESC LIMIT :limit) a
LEFT JOIN homing_api_key k ON a.who = 'key:' || k.id
ORDER BY a.id DESC

-- name: audit_whos
-- Who has entries and is called so, one jump in the index for each. The column is in the order of letters, so that they lie side by side.
WITH RECURSIVE step(who) AS (
    SELECT min(who) FROM homing_audit WHERE who >= :begins
    UNION ALL
    SELECT (SELECT min(a.who) FROM homing_audit AS a WHERE a.who > step.who)
    FROM step WHERE starts_with(step.who, :begins)
)
SELECT who FROM step WHERE starts_with(who, :begins) LIMIT :most

-- name: keys_called
-- Keys by the name that they have.
SELECT 'key:' || id AS who FROM homing_api_key WHERE starts_with(name, :begins) ORDER BY id LIMIT :most

-- name: audit_page_of_some
SELECT {entry}
FROM (SELECT newest.id
      FROM jsonb_array_elements_text(:whos::text::jsonb) AS w (who)
      CROSS JOIN LATERAL (SELECT id FROM homing_audit
                          WHERE who = w.who AND id < :before AND {since}
                          ORDER BY id DESC LIMIT :limit) AS newest
      ORDER BY newest.id DESC LIMIT :limit) AS meant
JOIN homing_audit a USING (id)
LEFT JOIN homing_api_key k ON a.who = 'key:' || k.id
ORDER BY a.id DESC

-- fragment: since
-- Ids rise with time, so a time is looked for once and not compared with every row.
id >= coalesce((SELECT id FROM homing_audit WHERE at >= :since::text::timestamptz ORDER BY at, id LIMIT 1), :before)

-- fragment: found
-- Of the rows that were looked at those that are meant, and in each how far it was looked: also when none is meant.
SELECT {entry}, seen.least AS looked_until, seen.count AS looked_at
FROM (SELECT min(id) AS least, count(*) AS count FROM looked) AS seen
LEFT JOIN (SELECT id FROM looked
           WHERE (:who::text IS NULL OR who = :who)
             AND (:who_begins::text IS NULL OR starts_with(who, :who_begins))
             AND (:whos::text IS NULL OR who = ANY (ARRAY(SELECT jsonb_array_elements_text(:whos::text::jsonb))))
             AND (:action::text IS NULL OR action = :action)
             AND (:begins::text IS NULL OR starts_with(action, :begins))
             AND (:outcome::text IS NULL OR outcome = :outcome)
             AND (:object::text IS NULL OR object = :object)
           ORDER BY id DESC LIMIT :limit) AS meant ON true
LEFT JOIN homing_audit a ON a.id = meant.id
LEFT JOIN homing_api_key k ON a.who = 'key:' || k.id
ORDER BY a.id DESC

-- name: audit_search
WITH looked AS MATERIALIZED (
    SELECT id, who, action, outcome, object FROM homing_audit
    WHERE id < :before AND {since} ORDER BY id DESC LIMIT :window)
{found}

-- name: audit_search_of
WITH looked AS MATERIALIZED (
    SELECT id, who, action, outcome, object FROM homing_audit
    WHERE who = :who AND id < :before AND {since} ORDER BY id DESC LIMIT :window)
{found}

-- name: audit_search_action
WITH looked AS MATERIALIZED (
    SELECT id, who, action, outcome, object FROM homing_audit
    WHERE action = :action AND id < :before AND {since} ORDER BY id DESC LIMIT :window)
{found}

-- name: audit_search_not_done
WITH looked AS MATERIALIZED (
    SELECT id, who, action, outcome, object FROM homing_audit
    WHERE outcome <> 'done' AND id < :before AND {since} ORDER BY id DESC LIMIT :window)
{found}

-- name: audit_named
-- Of all whom a bare name may mean those who have entries: by what they are, or a key by the name that it has.
SELECT named.who
FROM (SELECT value AS who FROM jsonb_array_elements_text(:names::text::jsonb)
      UNION
      SELECT 'key:' || id FROM homing_api_key WHERE name = :name) AS named
WHERE EXISTS (SELECT 1 FROM homing_audit AS a WHERE a.who = named.who)
ORDER BY named.who LIMIT :most

-- name: audit_actions
-- One jump in the index for each.
WITH RECURSIVE step(action) AS (
    SELECT min(action) FROM homing_audit
    UNION ALL
    SELECT (SELECT min(a.action) FROM homing_audit AS a WHERE a.action > step.action)
    FROM step WHERE step.action IS NOT NULL
)
SELECT action FROM step WHERE action IS NOT NULL LIMIT :most
