-- As on PostgreSQL.
ALTER TABLE dispatch_credentials ADD COLUMN allowed_targets TEXT CHECK (json_type(allowed_targets) = 'array');

UPDATE dispatch_credentials SET allowed_targets = used.targets
FROM (
    SELECT credentials_id, CASE WHEN count(*) > 1000 THEN '["*"]' ELSE json_group_array(origin) END AS targets
    FROM (
        SELECT DISTINCT credentials_id,
            substr(target, 1, CASE instr(target, '#') WHEN 0 THEN length(target) ELSE instr(target, '#') - 1 END) AS origin
        FROM dispatch_job
        WHERE credentials_id IS NOT NULL AND (target GLOB 'http://*' OR target GLOB 'https://*')
        ORDER BY 1, 2
    )
    GROUP BY credentials_id
) AS used
WHERE dispatch_credentials.id = used.credentials_id;
