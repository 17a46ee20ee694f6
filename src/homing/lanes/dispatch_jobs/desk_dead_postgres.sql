-- What the desk does with jobs, on PostgreSQL.

-- fragment: classes
-- One jump into the index per error class.
class AS (
    (SELECT error_class FROM dispatch_job WHERE status = 'ERROR' AND error_class IS NOT NULL ORDER BY error_class LIMIT 1)
    UNION ALL
    SELECT (SELECT j.error_class FROM dispatch_job AS j
            WHERE j.status = 'ERROR' AND j.error_class > class.error_class ORDER BY j.error_class LIMIT 1)
    FROM class WHERE class.error_class IS NOT NULL
), known AS MATERIALIZED (
    SELECT error_class FROM class WHERE error_class IS NOT NULL LIMIT :codes
)

-- fragment: figures
newest.id AS newest, newest.last_error AS text, coalesce(newest.completed_at, newest.updated_at) AS last_at,
    coalesce(oldest.completed_at, oldest.updated_at) AS first_at

-- name: dead_codes
-- Counted up to a limit: a class with a million costs no more than one with a hundred thousand.
WITH RECURSIVE {classes}
SELECT known.error_class AS code, {figures}, counted.count
FROM known
CROSS JOIN LATERAL (
    SELECT count(*) AS count FROM (
        SELECT FROM dispatch_job AS j WHERE j.status = 'ERROR' AND j.error_class = known.error_class LIMIT :most) AS few
) AS counted
CROSS JOIN LATERAL (
    SELECT * FROM dispatch_job AS j WHERE j.status = 'ERROR' AND j.error_class = known.error_class
    ORDER BY j.id DESC LIMIT 1) AS newest
CROSS JOIN LATERAL (
    SELECT * FROM dispatch_job AS j WHERE j.status = 'ERROR' AND j.error_class = known.error_class
    ORDER BY j.id LIMIT 1) AS oldest
UNION ALL
SELECT NULL, {figures}, counted.count
FROM (SELECT count(*) AS count FROM (
          SELECT FROM dispatch_job AS j WHERE j.status = 'ERROR' AND j.error_class IS NULL LIMIT :most) AS few) AS counted
CROSS JOIN (SELECT * FROM dispatch_job AS j WHERE j.status = 'ERROR' AND j.error_class IS NULL
            ORDER BY j.id DESC LIMIT 1) AS newest
CROSS JOIN (SELECT * FROM dispatch_job AS j WHERE j.status = 'ERROR' AND j.error_class IS NULL
            ORDER BY j.id LIMIT 1) AS oldest

-- name: dead_words
WITH RECURSIVE {classes}
SELECT known.error_class AS code, dead.last_error AS text, dead.target
FROM known CROSS JOIN LATERAL (
    SELECT j.last_error, j.target FROM dispatch_job AS j
    WHERE j.status = 'ERROR' AND j.error_class = known.error_class
    ORDER BY j.id DESC LIMIT :most) AS dead
UNION ALL
(SELECT NULL, j.last_error, j.target FROM dispatch_job AS j
 WHERE j.status = 'ERROR' AND j.error_class IS NULL
 ORDER BY j.id DESC LIMIT :most)
