-- Pruning of a table of our own, whose rows go by themselves: TABLE with the word for how a row ended (STATE), when that was
-- (ENDED), and when it was made (MADE), which rises with the ids. All of them without an alias: RETURNING has none on SQLite.

-- fragment: prunable
TABLE AS r JOIN json_array_elements(:ages::json) AS g (age) ON g.age ->> 'state' = STATE
WHERE ENDED < now() - make_interval(secs => (g.age ->> 'seconds')::double precision)

-- name: prune_window
SELECT max(id) AS last, min(MADE) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT id, MADE FROM TABLE WHERE id > :after ORDER BY id LIMIT :window) AS ahead

-- name: prune_survey
SELECT STATE AS state, count(*) AS count, min(ENDED) AS oldest
FROM {prunable} AND r.id > :after AND r.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT r.id AS id FROM {prunable} AND r.id > :after AND r.id <= :until ORDER BY r.id LIMIT :limit

-- name: prune
DELETE FROM TABLE
WHERE id IN (SELECT r.id FROM {prunable} AND r.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint)))
RETURNING STATE AS state
