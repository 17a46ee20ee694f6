-- What the desk does with emails, on PostgreSQL.

-- fragment: code
-- As desk_conditions.py has it: a group is asked for by its codes, to the letter.
nullif(substr(dead_reason, 1, 80), '')

-- fragment: dead
-- What a person cancelled is no dead letter. The state is written so that the order has to come from the index of
-- the dead, and not from that of all.
status >= 'Dead' AND status <= 'Dead' AND (dead_reason IS NULL OR dead_reason <> 'Cancelled')

-- name: by_index
-- For the transaction: what is asked for lies in an index in the order that is asked for, and only the newest of it
-- are read. The planner, which does not know how old they are, would rather read it all and sort.
SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_seqscan', 'off', true)

-- name: dead_codes
-- No index is by the reason: of the newest dead, each reason.
WITH newest AS MATERIALIZED (
    SELECT id, {code} AS code, coalesce(last_attempt_at, created_at) AS at
    FROM email_log
    WHERE {dead}
    ORDER BY status DESC, id DESC
    LIMIT :most
), codes AS MATERIALIZED (
    SELECT code, count(*) AS count, min(at) AS first_at, max(at) AS last_at, max(id) AS newest,
        (sum(count(*)) OVER ())::bigint AS looked
    FROM newest
    GROUP BY code
    ORDER BY 2 DESC
    LIMIT :codes
)
SELECT c.*, e.last_error AS text FROM codes AS c JOIN email_log AS e ON e.id = c.newest

-- name: dead_words
SELECT {code} AS code, last_error AS text
FROM email_log
WHERE {dead}
ORDER BY status DESC, id DESC
LIMIT :most
