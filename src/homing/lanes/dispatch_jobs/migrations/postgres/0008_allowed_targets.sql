-- Which origins credentials may be used for; NULL where nobody has said. They begin with those that jobs have used, so that
-- nothing stops at the upgrade. Jobs are read before the table is changed: workers read it every few seconds, and would wait.
DO $$
DECLARE
    used jsonb;
BEGIN
    SELECT jsonb_agg(jsonb_build_object('id', of_one.credentials_id, 'targets', of_one.targets)) INTO used
    FROM (
        SELECT pairs.credentials_id,
            -- So many receivers share the secret that it is none: it goes on as it was.
            CASE WHEN count(*) > 1000 THEN '["*"]'::jsonb ELSE jsonb_agg(pairs.origin ORDER BY pairs.origin) END AS targets
        FROM (
            SELECT DISTINCT credentials_id, split_part(target, '#', 1) AS origin
            FROM dispatch_job WHERE credentials_id IS NOT NULL AND target ~ '^https?://'
        ) AS pairs
        GROUP BY pairs.credentials_id
    ) AS of_one;

    ALTER TABLE dispatch_credentials ADD COLUMN allowed_targets jsonb CHECK (jsonb_typeof(allowed_targets) = 'array');
    UPDATE dispatch_credentials AS c SET allowed_targets = u.targets
    FROM jsonb_to_recordset(used) AS u(id bigint, targets jsonb)
    WHERE c.id = u.id;
END
$$;
