-- The router's configuration, where two people may change it at the same time.

-- name: replace_router_config
INSERT INTO homing_router_config (id, config)
SELECT 1, :config WHERE :version = 0 OR EXISTS (SELECT 1 FROM homing_router_config)
ON CONFLICT (id) DO UPDATE SET config = excluded.config, version = version + 1,
    updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE version = :version
RETURNING version
