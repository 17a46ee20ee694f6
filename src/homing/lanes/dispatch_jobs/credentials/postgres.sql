-- dispatch_credentials on PostgreSQL. Every secret of ours is sealed for its row and column before it comes here, so
-- an id is drawn first. A sealed text never repeats: comparing it tells whether a row was changed meanwhile. Another
-- program may write plain text: it is used as it is.

-- fragment: shown
id, algorithm, name, fingerprint, created_at, updated_at, signing_key,
    allowed_targets::text AS allowed_targets,
    CASE WHEN previous_until > now() THEN previous_until END AS previous_until

-- fragment: sealed
id, bearer_token, signing_secret, signing_key, fingerprint, previous_bearer_token, previous_signing_secret,
    previous_signing_key, allowed_targets::text AS allowed_targets, previous_until,
    coalesce(previous_until > now(), false) AS in_grace

-- name: draw_id
SELECT homing_tsid() AS id

-- name: insert
INSERT INTO dispatch_credentials
    (id, bearer_token, signing_secret, signing_key, algorithm, name, fingerprint, allowed_targets)
VALUES (:id, :bearer_token, :signing_secret, :signing_key, :algorithm, :name, :fingerprint, :allowed_targets::jsonb)
RETURNING {shown}

-- name: describe
SELECT {shown} FROM dispatch_credentials WHERE id = :id

-- name: page
SELECT {shown} FROM dispatch_credentials
WHERE :before::bigint IS NULL OR id < :before
ORDER BY id DESC
LIMIT :limit

-- name: load
SELECT {sealed} FROM dispatch_credentials
WHERE id IN (SELECT json_array_elements_text(:ids::json)::bigint)

-- name: rotate
-- Nothing is written over what somebody else has rotated meanwhile.
UPDATE dispatch_credentials
SET bearer_token = :bearer_token, signing_secret = :signing_secret, signing_key = :signing_key,
    fingerprint = :fingerprint, previous_bearer_token = :previous_bearer_token,
    previous_signing_secret = :previous_signing_secret, previous_signing_key = :previous_signing_key,
    previous_until = CASE WHEN :keeps_previous THEN greatest(
        CASE WHEN :extends_previous THEN previous_until END, now() + make_interval(secs => :grace_seconds)) END,
    updated_at = now()
WHERE id = :id
  AND bearer_token IS NOT DISTINCT FROM :seen_bearer_token
  AND signing_secret IS NOT DISTINCT FROM :seen_signing_secret
  AND signing_key IS NOT DISTINCT FROM :seen_signing_key
RETURNING {shown}

-- name: end_grace
-- Only the new secrets count from now on.
UPDATE dispatch_credentials
SET previous_bearer_token = NULL, previous_signing_secret = NULL, previous_signing_key = NULL, previous_until = NULL,
    updated_at = now()
WHERE id = :id AND previous_until > now()
RETURNING {shown}

-- name: allow_targets
-- Beside those that are there. Where nobody has limited them there is nothing to add to. The secrets stay what they are, so
-- `updated_at` does too.
UPDATE dispatch_credentials
SET allowed_targets = (
    SELECT jsonb_agg(u.origin ORDER BY u.origin)
    FROM (SELECT jsonb_array_elements_text(allowed_targets) UNION SELECT jsonb_array_elements_text(:targets::jsonb)) AS u(origin))
WHERE id = :id AND allowed_targets IS NOT NULL
RETURNING {shown}

-- name: replace_targets
UPDATE dispatch_credentials SET allowed_targets = :targets::jsonb WHERE id = :id
RETURNING {shown}

-- name: uses
-- Open jobs of each, counted up to a thousand.
SELECT named.id, (SELECT count(*) FROM (
    SELECT 1 FROM dispatch_job AS j
    WHERE j.credentials_id = named.id AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS') LIMIT 1000) AS counted) AS jobs
FROM (SELECT value::bigint AS id FROM json_array_elements_text(:ids::text::json)) AS named

-- name: delete
DELETE FROM dispatch_credentials
WHERE id = :id
  AND (:force OR NOT EXISTS (
    SELECT FROM dispatch_job WHERE credentials_id = :id AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS')))
RETURNING id

-- name: count
SELECT count(*) AS count FROM dispatch_credentials

-- name: sealed_after
SELECT {sealed} FROM dispatch_credentials WHERE id > :after ORDER BY id LIMIT :limit

-- name: reseal
-- The secrets stay what they are, so `updated_at` does too.
WITH batch AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:batch::json) AS b(
        id bigint, bearer_token text, signing_secret text, signing_key text, previous_bearer_token text,
        previous_signing_secret text, previous_signing_key text, fingerprint text, seen json)
), held AS MATERIALIZED (
    SELECT id FROM dispatch_credentials WHERE id = ANY (ARRAY(SELECT id FROM batch)) ORDER BY id FOR UPDATE
)
UPDATE dispatch_credentials AS c
SET bearer_token = batch.bearer_token, signing_secret = batch.signing_secret, signing_key = batch.signing_key,
    previous_bearer_token = batch.previous_bearer_token,
    previous_signing_secret = batch.previous_signing_secret, previous_signing_key = batch.previous_signing_key,
    fingerprint = batch.fingerprint
FROM batch JOIN held ON held.id = batch.id
WHERE c.id = batch.id
  AND c.bearer_token IS NOT DISTINCT FROM batch.seen ->> 'bearer_token'
  AND c.signing_secret IS NOT DISTINCT FROM batch.seen ->> 'signing_secret'
  AND c.signing_key IS NOT DISTINCT FROM batch.seen ->> 'signing_key'
  AND c.previous_bearer_token IS NOT DISTINCT FROM batch.seen ->> 'previous_bearer_token'
  AND c.previous_signing_secret IS NOT DISTINCT FROM batch.seen ->> 'previous_signing_secret'
  AND c.previous_signing_key IS NOT DISTINCT FROM batch.seen ->> 'previous_signing_key'
RETURNING c.id
