-- What the desk does with mails of the outbox, on PostgreSQL.

-- name: dead_codes
-- `last_error` is `code: message`, and no index is by its code: of the newest that failed, each code.
WITH newest AS MATERIALIZED (
    SELECT id, split_part(last_error, ':', 1) AS code, coalesce(last_attempt_at, created_at) AS at
    FROM mail_outbox
    WHERE status = 'failed'
    ORDER BY id DESC
    LIMIT :most
), codes AS MATERIALIZED (
    SELECT code, count(*) AS count, min(at) AS first_at, max(at) AS last_at, max(id) AS newest,
        (sum(count(*)) OVER ())::bigint AS looked
    FROM newest
    GROUP BY code
    ORDER BY 2 DESC
    LIMIT :codes
)
SELECT c.*, o.last_error AS text FROM codes AS c JOIN mail_outbox AS o ON o.id = c.newest

-- name: dead_words
SELECT split_part(last_error, ':', 1) AS code, last_error AS text
FROM mail_outbox
WHERE status = 'failed'
ORDER BY id DESC
LIMIT :most
