-- What the desk does with jobs, on SQLite.

-- fragment: classes
class(error_class) AS (
    SELECT min(error_class) FROM dispatch_job INDEXED BY homing_job_dead WHERE status = 'ERROR'
    UNION ALL
    SELECT (SELECT min(j.error_class) FROM dispatch_job AS j INDEXED BY homing_job_dead
            WHERE j.status = 'ERROR' AND j.error_class > class.error_class)
    FROM class WHERE class.error_class IS NOT NULL
), known AS MATERIALIZED (
    SELECT error_class FROM class WHERE error_class IS NOT NULL LIMIT :codes
)

-- name: dead_codes
WITH RECURSIVE {classes}, found AS MATERIALIZED (
    SELECT known.error_class AS code,
        (SELECT count(*) FROM (SELECT 1 FROM dispatch_job AS j INDEXED BY homing_job_dead
                               WHERE j.status = 'ERROR' AND j.error_class = known.error_class LIMIT :most)) AS count,
        (SELECT max(j.id) FROM dispatch_job AS j INDEXED BY homing_job_dead WHERE j.status = 'ERROR' AND j.error_class = known.error_class) AS newest,
        (SELECT min(j.id) FROM dispatch_job AS j INDEXED BY homing_job_dead WHERE j.status = 'ERROR' AND j.error_class = known.error_class) AS oldest
    FROM known
    UNION ALL
    SELECT NULL,
        (SELECT count(*) FROM (SELECT 1 FROM dispatch_job AS j INDEXED BY homing_job_dead
                               WHERE j.status = 'ERROR' AND j.error_class IS NULL LIMIT :most)),
        (SELECT max(j.id) FROM dispatch_job AS j INDEXED BY homing_job_dead WHERE j.status = 'ERROR' AND j.error_class IS NULL),
        (SELECT min(j.id) FROM dispatch_job AS j INDEXED BY homing_job_dead WHERE j.status = 'ERROR' AND j.error_class IS NULL)
)
SELECT found.code, found.count, found.newest, n.last_error AS text, coalesce(n.completed_at, n.updated_at) AS last_at,
    coalesce(o.completed_at, o.updated_at) AS first_at
FROM found CROSS JOIN dispatch_job AS n ON n.id = found.newest CROSS JOIN dispatch_job AS o ON o.id = found.oldest

-- name: dead_words
WITH RECURSIVE {classes}
SELECT j.error_class AS code, j.last_error AS text, j.target
FROM known CROSS JOIN dispatch_job AS j
WHERE j.id IN (SELECT d.id FROM dispatch_job AS d INDEXED BY homing_job_dead
               WHERE d.status = 'ERROR' AND d.error_class = known.error_class ORDER BY d.id DESC LIMIT :most)
UNION ALL
SELECT NULL, j.last_error, j.target
FROM dispatch_job AS j
WHERE j.id IN (SELECT d.id FROM dispatch_job AS d INDEXED BY homing_job_dead
               WHERE d.status = 'ERROR' AND d.error_class IS NULL ORDER BY d.id DESC LIMIT :most)

-- name: count_states
SELECT count(*) AS count
FROM (SELECT 1
      FROM json_each(:states) AS s CROSS JOIN dispatch_job AS j INDEXED BY idx_dispatch_status ON j.status = s.value
      LIMIT :most)
