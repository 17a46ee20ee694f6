"""A table to search in: years of work, with values that are frequent, rare, or all old."""

from __future__ import annotations

import asyncpg

from homing.proof.bench.sample_mails import settle_down

_AT_ONCE = 250_000

# n counts from the oldest to the newest of $3 jobs, half a second apart.
_JOBS = """
INSERT INTO dispatch_job (
    id, created_at, updated_at, external_id, source, type, group_id, target_url, target, payload, status,
    attempt_count, completed_at, duration_millis, error_class, last_error, has_headers, next_attempt_at)
SELECT made.id, homing_tsid_time(made.id), homing_tsid_time(made.id),
    CASE WHEN n <= $3 / 50 THEN 'shared' ELSE 'ext-' || n END,
    CASE WHEN n <= $3 / 50 AND n % 2 = 0 THEN 'retired-service'
         WHEN n % 400000 = 7 THEN 'rare-service'
         WHEN n % 10 IN (1, 2, 3) THEN 'medium-' || n % 10
         ELSE 'huge-service' END,
    CASE WHEN n <= $3 / 50 AND n % 2 = 1 THEN 'legacy.event'
         WHEN n % 400000 = 8 THEN 'audit.sealed'
         WHEN n % 10 < 6 THEN 'order.created'
         ELSE 'kind-' || n % 20 END,
    CASE WHEN n <= $3 / 50 THEN 'old-group' WHEN n % 3 = 0 THEN 'bulk' ELSE 'order-' || n / 20 END,
    'https://partner.example.com/hooks', 'https://partner.example.com:443', '{"orderId":' || n || '}',
    made.status,
    CASE made.status WHEN 'PENDING' THEN 0 ELSE 1 END,
    CASE WHEN made.status IN ('COMPLETED', 'ERROR') THEN homing_tsid_time(made.id) END,
    CASE WHEN made.status IN ('COMPLETED', 'ERROR') THEN n % 5000 END,
    CASE WHEN made.status IN ('ERROR', 'FAILED') THEN 'http_' || 500 + n % 7 END,
    CASE WHEN made.status IN ('ERROR', 'FAILED') THEN 'HTTP 500' END,
    false, now()
FROM generate_series($1::bigint, $2::bigint) AS n, LATERAL (
    SELECT homing_tsid_at(now() - ($3 - n) * interval '0.5 seconds') + n % 4194303 AS id,
        CASE WHEN n <= $3 / 20 AND n % 100 = 9 THEN 'CANCELLED'
             WHEN n % 100 = 5 THEN 'ERROR'
             WHEN n % 1000 = 3 THEN 'FAILED'
             WHEN n = $3 / 2 THEN 'IN_PROGRESS'
             WHEN n > $3 - $3 / 25 THEN 'PENDING'
             ELSE 'COMPLETED' END AS status) AS made
"""
_METADATA = """
INSERT INTO dispatch_job_metadata (id, dispatch_job_id, meta_key, meta_value)
SELECT j.id + entry.n, j.id, entry.key, entry.value
FROM dispatch_job AS j, LATERAL (VALUES
    (0, 'tenantId', CASE WHEN j.external_id = 'shared' THEN 'gone'
                         WHEN (j.id & 1) = 0 THEN 'acme' ELSE 'tenant-' || (j.id >> 1) % 1000 END),
    (1, 'priority', CASE WHEN (j.id & 4095) = 0 THEN 'urgent' WHEN (j.id & 3) = 0 THEN 'high' ELSE 'low' END)
) AS entry(n, key, value)
WHERE j.id BETWEEN $1 AND $2
"""


async def fill_jobs(url: str, rows: int) -> None:
    """That many jobs, each with two entries of metadata, and statistics as after a while of running."""
    connection = await asyncpg.connect(url, server_settings={"jit": "off", "synchronous_commit": "off"})
    try:
        for first in range(1, rows + 1, _AT_ONCE):
            await connection.execute(_JOBS, first, min(first + _AT_ONCE - 1, rows), rows)
        await _add_metadata(connection)
        # Until a commit is on disk, VACUUM cannot tell that its rows are seen by all.
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
    await settle_down(url)


async def _add_metadata(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    after = 0
    while True:
        last = await connection.fetchval(
            "SELECT max(id) FROM (SELECT id FROM dispatch_job WHERE id > $1 ORDER BY id LIMIT $2) AS part",
            after, _AT_ONCE,
        )  # fmt: skip
        if last is None:
            return
        await connection.execute(_METADATA, after + 1, last)
        after = last
