-- Access on SQLite. Every time that is compared is the database's, so that all processes agree.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- name: is_configured
SELECT EXISTS (SELECT 1 FROM homing_api_key) OR EXISTS (SELECT 1 FROM homing_user) AS configured

-- ── keys ────────────────────────────────────────────────────────────────────────────────────────

-- fragment: key
id, name, scopes, rate_per_second, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
    CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= {now} THEN 'expired' ELSE 'valid' END
        AS state

-- name: create_key
INSERT INTO homing_api_key (id, name, hash, scopes, rate_per_second, created_by, expires_at)
VALUES (:id, :name, :hash, :scopes, :rate_per_second, :created_by,
        CASE WHEN :expires_in IS NOT NULL
             THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :expires_in)) END)
RETURNING {key}

-- name: load_keys
SELECT {key}, hash FROM homing_api_key WHERE id IN (SELECT value FROM json_each(:ids))

-- name: list_keys
SELECT {key}, hash FROM homing_api_key ORDER BY created_at DESC, id

-- name: revoke_key
UPDATE homing_api_key SET revoked_at = {now}, revoked_by = :revoked_by
WHERE id = :id AND revoked_at IS NULL
RETURNING {key}

-- name: note_uses
UPDATE homing_api_key SET last_used_at = {now}
WHERE id IN (SELECT value FROM json_each(:batch))
  AND (last_used_at IS NULL
       OR last_used_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:gap)))
RETURNING id

-- name: rehash_key
UPDATE homing_api_key SET hash = :hash WHERE id = :id AND hash = :seen RETURNING id

-- ── users ───────────────────────────────────────────────────────────────────────────────────────

-- fragment: person
name, role, created_at, created_by, password_at, last_login_at

-- name: add_user
INSERT INTO homing_user (name, password, role, created_by) VALUES (:name, :password, :role, :created_by)
ON CONFLICT (name) DO UPDATE
SET password = excluded.password, role = excluded.role, created_by = excluded.created_by,
    created_at = {now}, password_at = {now}, last_login_at = NULL, removed_at = NULL
WHERE homing_user.removed_at IS NOT NULL
RETURNING {person}

-- name: load_user
SELECT {person}, password FROM homing_user WHERE name = :name AND removed_at IS NULL

-- name: list_users
SELECT {person} FROM homing_user WHERE removed_at IS NULL ORDER BY name

-- name: set_password
UPDATE homing_user SET password = :password, password_at = {now}
WHERE name = :name AND removed_at IS NULL
RETURNING {person}

-- name: set_role
UPDATE homing_user SET role = :role WHERE name = :name AND removed_at IS NULL RETURNING {person}

-- name: remove_user
UPDATE homing_user SET removed_at = {now}, password = '' WHERE name = :name AND removed_at IS NULL
RETURNING {person}

-- ── sessions ────────────────────────────────────────────────────────────────────────────────────

-- name: open_session
INSERT INTO homing_session (hash, user_name) VALUES (:hash, :name) RETURNING hash

-- name: note_login
UPDATE homing_user SET last_login_at = {now} WHERE name = :name RETURNING name

-- fragment: longest_ago
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:longest))

-- fragment: idle_ago
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:idle))

-- name: load_sessions
SELECT s.hash, u.name, u.role
FROM homing_session s JOIN homing_user u ON u.name = s.user_name
WHERE s.hash IN (SELECT value FROM json_each(:hashes)) AND u.removed_at IS NULL
  AND s.created_at > {longest_ago} AND s.seen_at > {idle_ago}

-- name: note_sessions
UPDATE homing_session SET seen_at = {now}
WHERE hash IN (SELECT value FROM json_each(:batch))
  AND seen_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:gap))
RETURNING hash

-- name: close_session
DELETE FROM homing_session WHERE hash = :hash RETURNING user_name

-- name: close_sessions_of
DELETE FROM homing_session WHERE user_name = :name RETURNING hash

-- name: forget_old_sessions
DELETE FROM homing_session WHERE created_at < {longest_ago} OR seen_at < {idle_ago}

-- ── logins that failed ──────────────────────────────────────────────────────────────────────────

-- fragment: forgotten
strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:forgotten_after))

-- name: try_login
-- Counted before the password is looked at, so that a hundred at once are a hundred; a login that succeeds
-- takes it back. No row comes back while the subject is blocked.
INSERT INTO homing_login_failure (subject, failures, last_at, blocked_until)
VALUES (:subject, 1, {now}, {now})
ON CONFLICT (subject) DO UPDATE
SET failures = CASE WHEN last_at < {forgotten} THEN 1 ELSE min(failures, 1000000) + 1 END,
    last_at = {now},
    blocked_until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', CASE
        WHEN failures < :free OR last_at < {forgotten} THEN 0
        ELSE min(:longest_block, 1 << min(failures - :free, 20)) END))
WHERE blocked_until <= {now}
RETURNING subject

-- name: login_failures
-- Of an address and a name, before anything is counted.
SELECT subject, failures,
       max(0.0, (julianday(blocked_until) - julianday('now')) * 86400.0) AS seconds
FROM homing_login_failure WHERE subject IN (:address_subject, :name_subject) AND last_at >= {forgotten}

-- name: login_wait
SELECT coalesce((julianday(max(blocked_until)) - julianday('now')) * 86400.0, 0.0) AS seconds
FROM homing_login_failure WHERE subject = :subject

-- name: forgive_name
DELETE FROM homing_login_failure WHERE subject = :name_subject

-- name: forgive_address
UPDATE homing_login_failure SET failures = max(failures - 1, 0), blocked_until = {now}
WHERE subject = :address_subject

-- name: forget_old_failures
DELETE FROM homing_login_failure WHERE last_at < {forgotten}

-- ── audit ───────────────────────────────────────────────────────────────────────────────────────

-- name: write_audit
INSERT INTO homing_audit (who, address, action, object, detail, outcome)
SELECT json_extract(value, '$.who'), json_extract(value, '$.address'), json_extract(value, '$.action'),
       json_extract(value, '$.object'), json_extract(value, '$.detail'), json_extract(value, '$.outcome')
FROM json_each(:audit)
WHERE true
RETURNING id

-- fragment: entry
a.id, a.at, a.who, k.name AS who_name, a.address, a.action, a.object, a.detail, a.outcome

-- name: audit_page
SELECT {entry}
FROM (SELECT * FROM homing_audit
      WHERE id < :before
        AND id >= coalesce((SELECT id FROM homing_audit WHERE at >= :since ORDER BY at, id LIMIT 1), :before)
      ORDER BY id DESC LIMIT :limit) a
LEFT JOIN homing_api_key k ON a.who = 'key:' || k.id
ORDER BY a.id DESC

-- name: audit_page_of
SELECT {entry}
FROM (SELECT * FROM homing_audit
      WHERE who = :who AND id < :before AND at >= :since
      ORDER BY id DESC LIMIT :limit) a
LEFT JOIN homing_api_key k ON a.who = 'key:' || k.id
ORDER BY a.id DESC

-- name: audit_whos
-- Who has entries and is called so, one jump in the index for each. They lie side by side.
WITH RECURSIVE step(who) AS (
    SELECT min(who) FROM homing_audit WHERE who >= :begins
    UNION ALL
    SELECT (SELECT min(a.who) FROM homing_audit AS a WHERE a.who > step.who)
    FROM step WHERE substr(step.who, 1, length(:begins)) = :begins
)
SELECT who FROM step WHERE substr(who, 1, length(:begins)) = :begins LIMIT :most

-- name: keys_called
-- Keys by the name that they have.
SELECT 'key:' || id AS who FROM homing_api_key WHERE substr(name, 1, length(:begins)) = :begins ORDER BY id LIMIT :most

-- name: audit_page_of_some
-- CROSS JOIN: in this order, or it would read the whole table.
SELECT {entry}
FROM (SELECT newest.id
      FROM json_each(:whos) AS w
      CROSS JOIN homing_audit AS newest ON newest.id IN (
          SELECT id FROM homing_audit
          WHERE who = w.value AND id < :before AND {since}
          ORDER BY id DESC LIMIT :limit)
      ORDER BY newest.id DESC LIMIT :limit) AS meant
CROSS JOIN homing_audit a ON a.id = meant.id
LEFT JOIN homing_api_key k ON a.who = 'key:' || k.id
ORDER BY a.id DESC

-- fragment: since
-- Ids rise with time, so a time is looked for once and not compared with every row.
id >= coalesce((SELECT id FROM homing_audit WHERE at >= :since ORDER BY at, id LIMIT 1), :before)

-- fragment: found
-- Of the rows that were looked at those that are meant, and in each how far it was looked: also when none is meant.
SELECT {entry}, seen.least AS looked_until, seen.count AS looked_at
FROM (SELECT min(id) AS least, count(*) AS count FROM looked) AS seen
LEFT JOIN (SELECT id FROM looked
           WHERE (:who IS NULL OR who = :who)
             AND (:who_begins IS NULL OR substr(who, 1, length(:who_begins)) = :who_begins)
             AND (:whos IS NULL OR who IN (SELECT value FROM json_each(:whos)))
             AND (:action IS NULL OR action = :action)
             AND (:begins IS NULL OR substr(action, 1, length(:begins)) = :begins)
             AND (:outcome IS NULL OR outcome = :outcome)
             AND (:object IS NULL OR object = :object)
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
FROM (SELECT value AS who FROM json_each(:names)
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
