-- dispatch_credentials on SQLite: the same queries by the same names.

-- fragment: now
strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- fragment: shown
id, algorithm, name, fingerprint, created_at, updated_at, signing_key, allowed_targets,
    CASE WHEN previous_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') THEN previous_until END AS previous_until

-- fragment: sealed
id, bearer_token, signing_secret, signing_key, fingerprint, previous_bearer_token, previous_signing_secret,
    previous_signing_key, allowed_targets, previous_until, coalesce(previous_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), false) AS in_grace

-- name: draw_id
-- Whoever draws has the write lock, so ids only rise.
UPDATE homing_tsid
SET base = max(CAST((julianday('now') - 2458849.5) * 86400000 AS INTEGER) << 22, last + 1),
    last = max(CAST((julianday('now') - 2458849.5) * 86400000 AS INTEGER) << 22, last + 1)
RETURNING base AS id

-- name: insert
INSERT INTO dispatch_credentials
    (id, bearer_token, signing_secret, signing_key, algorithm, name, fingerprint, allowed_targets)
VALUES (:id, :bearer_token, :signing_secret, :signing_key, :algorithm, :name, :fingerprint, :allowed_targets)
RETURNING {shown}

-- name: describe
SELECT {shown} FROM dispatch_credentials WHERE id = :id

-- name: page
SELECT {shown} FROM dispatch_credentials
WHERE :before IS NULL OR id < :before
ORDER BY id DESC
LIMIT :limit

-- name: load
SELECT {sealed} FROM dispatch_credentials
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: rotate
UPDATE dispatch_credentials
SET bearer_token = :bearer_token, signing_secret = :signing_secret, signing_key = :signing_key,
    fingerprint = :fingerprint, previous_bearer_token = :previous_bearer_token,
    previous_signing_secret = :previous_signing_secret, previous_signing_key = :previous_signing_key,
    previous_until = CASE WHEN :keeps_previous THEN max(
        CASE WHEN :extends_previous THEN coalesce(previous_until, '') ELSE '' END,
        strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :grace_seconds))) END,
    updated_at = {now}
WHERE id = :id
  AND bearer_token IS :seen_bearer_token
  AND signing_secret IS :seen_signing_secret
  AND signing_key IS :seen_signing_key
RETURNING {shown}

-- name: end_grace
-- Only the new secrets count from now on.
UPDATE dispatch_credentials
SET previous_bearer_token = NULL, previous_signing_secret = NULL, previous_signing_key = NULL, previous_until = NULL,
    updated_at = {now}
WHERE id = :id AND previous_until > {now}
RETURNING {shown}

-- name: allow_targets
-- As on PostgreSQL.
UPDATE dispatch_credentials
SET allowed_targets = (
    SELECT json_group_array(u.origin)
    FROM (SELECT value AS origin FROM json_each(allowed_targets) UNION SELECT value FROM json_each(:targets)) AS u)
WHERE id = :id AND allowed_targets IS NOT NULL
RETURNING {shown}

-- name: replace_targets
UPDATE dispatch_credentials SET allowed_targets = :targets WHERE id = :id
RETURNING {shown}

-- name: uses
-- Open jobs of each, counted up to a thousand. A correlated LIMIT must be a constant.
SELECT named.value AS id, (SELECT count(*) FROM (
    SELECT 1 FROM dispatch_job AS j INDEXED BY homing_job_credentials
    WHERE j.credentials_id = named.value AND j.status IN ('PENDING', 'FAILED', 'IN_PROGRESS') LIMIT 1000)) AS jobs
FROM json_each(:ids) AS named

-- name: delete
DELETE FROM dispatch_credentials
WHERE id = :id
  AND (:force OR NOT EXISTS (
    SELECT 1 FROM dispatch_job WHERE credentials_id = :id AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS')))
RETURNING id

-- name: count
SELECT count(*) AS count FROM dispatch_credentials

-- name: sealed_after
SELECT {sealed} FROM dispatch_credentials WHERE id > :after ORDER BY id LIMIT :limit

-- name: reseal
WITH batch AS MATERIALIZED (
    SELECT json_extract(value, '$.id') AS id,
        json_extract(value, '$.bearer_token') AS bearer_token,
        json_extract(value, '$.signing_secret') AS signing_secret,
        json_extract(value, '$.signing_key') AS signing_key,
        json_extract(value, '$.previous_bearer_token') AS previous_bearer_token,
        json_extract(value, '$.previous_signing_secret') AS previous_signing_secret,
        json_extract(value, '$.previous_signing_key') AS previous_signing_key,
        json_extract(value, '$.fingerprint') AS fingerprint, json_extract(value, '$.seen') AS seen
    FROM json_each(:batch)
)
UPDATE dispatch_credentials
SET bearer_token = batch.bearer_token, signing_secret = batch.signing_secret, signing_key = batch.signing_key,
    previous_bearer_token = batch.previous_bearer_token,
    previous_signing_secret = batch.previous_signing_secret, previous_signing_key = batch.previous_signing_key,
    fingerprint = batch.fingerprint
FROM batch
WHERE dispatch_credentials.id = batch.id
  AND dispatch_credentials.bearer_token IS json_extract(batch.seen, '$.bearer_token')
  AND dispatch_credentials.signing_secret IS json_extract(batch.seen, '$.signing_secret')
  AND dispatch_credentials.signing_key IS json_extract(batch.seen, '$.signing_key')
  AND dispatch_credentials.previous_bearer_token IS json_extract(batch.seen, '$.previous_bearer_token')
  AND dispatch_credentials.previous_signing_secret IS json_extract(batch.seen, '$.previous_signing_secret')
  AND dispatch_credentials.previous_signing_key IS json_extract(batch.seen, '$.previous_signing_key')
RETURNING id
