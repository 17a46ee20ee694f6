-- Pruning of a table of our own, whose rows go by themselves: its table with the word for how a row ended (state), when that was
-- (ended), and when it was made (made), which rises with the ids, are given. All of them without an alias: RETURNING has none on SQLite.

-- fragment: prunable
{table} AS r JOIN json_array_elements(:ages::json) AS g (age) ON g.age ->> 'state' = {state}
WHERE {ended} < now() - make_interval(secs => (g.age ->> 'seconds')::double precision)

-- name: prune_window
SELECT max(id) AS last, min({made}) < now() - make_interval(secs => :youngest) AS old
FROM (SELECT id, {made} FROM {table} WHERE id > :after ORDER BY id LIMIT :window) AS ahead

-- name: prune_survey
SELECT {state} AS state, count(*) AS count, min({ended}) AS oldest
FROM {prunable} AND r.id > :after AND r.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT r.id AS id FROM {prunable} AND r.id > :after AND r.id <= :until ORDER BY r.id LIMIT :limit

-- name: prune
DELETE FROM {table}
WHERE id IN (SELECT r.id FROM {prunable} AND r.id = ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint)))
RETURNING {state} AS state
