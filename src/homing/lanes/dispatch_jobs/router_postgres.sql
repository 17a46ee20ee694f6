-- The router's configuration, where two people may change it at the same time.

-- name: replace_router_config
-- Only what was looked at is replaced: version 0 is that none was there.
INSERT INTO homing_router_config AS c (config)
SELECT :config::text::json WHERE :version::bigint = 0 OR EXISTS (SELECT FROM homing_router_config)
ON CONFLICT (id) DO UPDATE SET config = excluded.config, version = c.version + 1, updated_at = now()
WHERE c.version = :version
RETURNING c.version
