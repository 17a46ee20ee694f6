-- What the desk does with emails, on SQLite.

-- fragment: code
-- As desk_conditions.py has it: a group is asked for by its codes, to the letter.
nullif(substr(CAST(dead_reason AS TEXT), 1, 80), '')

-- fragment: dead
-- What a person cancelled is no dead letter.
status = 'Dead' AND (dead_reason IS NULL OR dead_reason <> 'Cancelled')

-- name: dead_codes
WITH newest AS MATERIALIZED (
    SELECT id, {code} AS code, coalesce(last_attempt_at, created_at) AS at
    FROM email_log INDEXED BY email_log_dead
    WHERE {dead}
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
SELECT c.*, e.last_error AS text FROM codes AS c CROSS JOIN email_log AS e ON e.id = c.newest

-- name: dead_words
SELECT {code} AS code, last_error AS text
FROM email_log INDEXED BY email_log_dead
WHERE {dead}
ORDER BY id DESC
LIMIT :most
