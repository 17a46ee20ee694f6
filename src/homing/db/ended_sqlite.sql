-- As on PostgreSQL.

-- fragment: prunable
{table} AS r JOIN json_each(:ages) AS g ON json_extract(g.value, '$.state') = {state}
WHERE {ended} < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', json_extract(g.value, '$.seconds')))

-- name: prune_window
SELECT max(id) AS last,
    min({made}) < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', :youngest)) AS old
FROM (SELECT id, {made} FROM {table} WHERE id > :after ORDER BY id LIMIT :window)

-- name: prune_survey
SELECT {state} AS state, count(*) AS count, min({ended}) AS oldest
FROM {prunable} AND r.id > :after AND r.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT r.id AS id FROM {prunable} AND r.id > :after AND r.id <= :until ORDER BY r.id LIMIT :limit

-- name: prune
DELETE FROM {table}
WHERE id IN (SELECT r.id FROM {prunable} AND r.id IN (SELECT value FROM json_each(:ids)))
RETURNING {state} AS state
