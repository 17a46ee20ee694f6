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

-- fragment: of_class
-- Written so that the order has to come from the index by class and id: in an order by id alone the planner reads
-- all jobs from the end, and where the dead are old ones, to the beginning.
dispatch_job AS j
    WHERE j.status = 'ERROR' AND j.error_class >= known.error_class AND j.error_class <= known.error_class

-- fragment: unclassified
dispatch_job AS j WHERE j.status = 'ERROR' AND j.error_class IS NULL

-- name: dead_codes
-- Counted up to a limit: a class with a million costs no more than one with some ten thousand.
WITH RECURSIVE {classes}
SELECT known.error_class AS code, {figures}, counted.count
FROM known
CROSS JOIN LATERAL (
    SELECT count(*) AS count
    FROM (SELECT FROM {of_class} ORDER BY j.error_class DESC, j.id DESC LIMIT :most) AS few) AS counted
CROSS JOIN LATERAL (SELECT j.* FROM {of_class} ORDER BY j.error_class DESC, j.id DESC LIMIT 1) AS newest
CROSS JOIN LATERAL (SELECT j.* FROM {of_class} ORDER BY j.error_class, j.id LIMIT 1) AS oldest
UNION ALL
SELECT NULL, {figures}, counted.count
FROM (SELECT count(*) AS count FROM (SELECT FROM {unclassified} LIMIT :most) AS few) AS counted
CROSS JOIN (SELECT j.* FROM {unclassified} ORDER BY j.error_class DESC, j.id DESC LIMIT 1) AS newest
CROSS JOIN (SELECT j.* FROM {unclassified} ORDER BY j.error_class, j.id LIMIT 1) AS oldest

-- name: dead_words
WITH RECURSIVE {classes}
SELECT known.error_class AS code, dead.last_error AS text, dead.target
FROM known CROSS JOIN LATERAL (
    SELECT j.last_error, j.target FROM {of_class} ORDER BY j.error_class DESC, j.id DESC LIMIT :most) AS dead
UNION ALL
(SELECT NULL, j.last_error, j.target FROM {unclassified} ORDER BY j.error_class DESC, j.id DESC LIMIT :most)

-- name: count_states
SELECT count(*) AS count
FROM (SELECT
      FROM json_array_elements_text(:states::json) AS s(state) CROSS JOIN LATERAL (
          SELECT FROM dispatch_job AS j WHERE j.status = s.state LIMIT :most) AS some_of_state
      LIMIT :most) AS few
