-- What the desk does with mails of the outbox, on SQLite.

-- fragment: code
-- As desk_conditions.py has it: a group is asked for by its codes, to the letter.
nullif(substr(substr(CAST(last_error AS TEXT), 1, instr(CAST(last_error AS TEXT) || ':', ':') - 1), 1, 80), '')

-- name: dead_codes
WITH newest AS MATERIALIZED (
    SELECT id, {code} AS code, coalesce(last_attempt_at, created_at) AS at
    FROM mail_outbox INDEXED BY mail_outbox_ended
    WHERE status IN ('failed', 'cancelled', 'expired') AND status = 'failed'
    ORDER BY id DESC
    LIMIT :most
), codes AS MATERIALIZED (
    SELECT code, count(*) AS count, min(at) AS first_at, max(at) AS last_at, max(id) AS newest,
        sum(count(*)) OVER () AS looked
    FROM newest
    GROUP BY code
    ORDER BY 2 DESC
    LIMIT :codes
)
SELECT c.*, o.last_error AS text FROM codes AS c CROSS JOIN mail_outbox AS o ON o.id = c.newest

-- name: dead_words
SELECT {code} AS code, last_error AS text
FROM mail_outbox INDEXED BY mail_outbox_ended
WHERE status IN ('failed', 'cancelled', 'expired') AND status = 'failed'
ORDER BY id DESC
LIMIT :most
