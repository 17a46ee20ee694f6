-- As on PostgreSQL.

-- fragment: prunable
TABLE AS r JOIN json_each(:ages) AS g ON json_extract(g.value, '$.state') = STATE
WHERE ENDED < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', json_extract(g.value, '$.seconds')))

-- name: prune_window
SELECT max(id) AS last,
    min(MADE) < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d seconds', :youngest)) AS old
FROM (SELECT id, MADE FROM TABLE WHERE id > :after ORDER BY id LIMIT :window)

-- name: prune_survey
SELECT STATE AS state, count(*) AS count, min(ENDED) AS oldest
FROM {prunable} AND r.id > :after AND r.id <= :until
GROUP BY 1

-- name: prune_candidates
SELECT r.id AS id FROM {prunable} AND r.id > :after AND r.id <= :until ORDER BY r.id LIMIT :limit

-- name: prune
DELETE FROM TABLE
WHERE id IN (SELECT r.id FROM {prunable} AND r.id IN (SELECT value FROM json_each(:ids)))
RETURNING STATE AS state
