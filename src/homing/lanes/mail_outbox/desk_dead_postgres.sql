-- What the desk does with mails of the outbox, on PostgreSQL.

-- fragment: code
-- As desk_conditions.py has it: a group is asked for by its codes, to the letter.
nullif(substr(split_part(last_error, ':', 1), 1, 80), '')

-- fragment: failed
-- Written so that the order has to come from the index of what ended badly, and not from that of all mails.
status IN ('failed', 'cancelled', 'expired') AND status >= 'failed' AND status <= 'failed'

-- name: by_index
-- For the transaction: what is asked for lies in an index in the order that is asked for, and only the newest of it
-- are read. The planner, which does not know how old they are, would rather read it all and sort.
SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_seqscan', 'off', true)

-- name: dead_codes
-- `last_error` is `code: message`, and no index is by its code: of the newest that failed, each code.
WITH newest AS MATERIALIZED (
    SELECT id, {code} AS code, coalesce(last_attempt_at, created_at) AS at
    FROM mail_outbox
    WHERE {failed}
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
SELECT c.*, o.last_error AS text FROM codes AS c JOIN mail_outbox AS o ON o.id = c.newest

-- name: dead_words
SELECT {code} AS code, last_error AS text
FROM mail_outbox
WHERE {failed}
ORDER BY status DESC, id DESC
LIMIT :most
