-- The newest dead of a lane without an index by error. Where they are, and what they died of, its own file says:
-- table and key; the same with their index, the condition and the order in which it lies; code and text.

-- name: dead_codes
WITH newest AS MATERIALIZED (
    SELECT {key} AS id, {code} AS code, coalesce(last_attempt_at, created_at) AS at
    FROM {by_index}
    WHERE {dead}
    ORDER BY {order}
    LIMIT :most
), codes AS MATERIALIZED (
    SELECT code, count(*) AS count, min(at) AS first_at, max(at) AS last_at, max(id) AS newest,
        CAST(sum(count(*)) OVER () AS BIGINT) AS looked
    FROM newest
    GROUP BY code
    ORDER BY 2 DESC
    LIMIT :codes
)
SELECT c.*, (SELECT {text} FROM {table} WHERE {key} = c.newest) AS text FROM codes AS c

-- name: dead_words
SELECT {code} AS code, {text} AS text
FROM {by_index}
WHERE {dead}
ORDER BY {order}
LIMIT :most
