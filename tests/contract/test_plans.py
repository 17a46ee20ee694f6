"""The claim reads the partial index in order: no scan, no sort. On 100,000 rows, most of them done."""

from __future__ import annotations

import json
import re

import pytest
from tests.outbox import Bench, bench
from tests.plans import assert_only_ours_are_read, measuring, our_batch

ROWS = 100_000
POSTGRES_ROWS = f"""
INSERT INTO mail_outbox (to_address, subject, text_body, status, next_attempt_at)
SELECT 'a@example.org', 's', 'b', CASE WHEN g % 10 = 0 THEN 'queued' ELSE 'sent' END,
    now() - g * interval '1 second'
FROM generate_series(1, {ROWS}) AS g RETURNING 1
"""
SQLITE_ROWS = f"""
WITH RECURSIVE series(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM series WHERE g < {ROWS})
INSERT INTO mail_outbox (to_address, subject, text_body, status)
SELECT 'a@example.org', 's', 'b', CASE WHEN g % 10 = 0 THEN 'queued' ELSE 'sent' END FROM series RETURNING 1
"""


async def plan_of(opened: Bench, name: str, **parameters: object) -> str:
    query = opened.outbox._queries[name]
    explain = (
        "EXPLAIN (FORMAT JSON) " if opened.homing.database.dialect == "postgres" else "EXPLAIN QUERY PLAN "
    )
    values = {**opened.outbox._parameters, **parameters}
    explained = type(query)("explain", explain + query.sql, query.parameters, writes=False)
    rows = await opened.homing.database.fetch(explained, values)
    return json.dumps([str(dict(row)) for row in rows])


@pytest.mark.clause("OUT-02")
async def test_postgres_claims_by_the_partial_index_without_a_sort(postgres_url: str) -> None:
    async with bench(postgres_url) as opened:
        await opened.sql(POSTGRES_ROWS)
        await opened.sql("VACUUM ANALYZE mail_outbox")
        plan = await plan_of(opened, "claim", limit=100)
        assert "mail_outbox_due" in plan
        assert not re.search(r"Node Type[^,]*Sort", plan)
        assert not re.search(r"Seq Scan", plan)
        for name in ("rescue", "claim_lost"):
            plan = await plan_of(opened, name, limit=100)
            assert "mail_outbox_dispatching" in plan, name
            assert "Seq Scan" not in plan, name
        plan = await plan_of(opened, "sweep", limit=100)
        assert "mail_outbox_expiring" in plan
        assert "mail_outbox_retried" in plan
        assert "Seq Scan" not in plan
        async with measuring(postgres_url) as connection:
            batch = our_batch(ROWS, status="sent", charged=0)
            given = {**opened.outbox._parameters, "batch": batch}
            await assert_only_ours_are_read(
                connection,
                "mail_outbox",
                """UPDATE mail_outbox SET status = 'dispatching', claim_seq = 1, locked_by = 'someone',
                    lease_expires_at = now() + interval '1 minute' WHERE id % 5 = 0""",
                {name: (opened.outbox._queries[name], given) for name in ("settle", "renew", "release")},
            )


@pytest.mark.clause("OUT-02")
async def test_sqlite_claims_by_the_partial_index_without_a_sort(sqlite_url: str) -> None:
    async with bench(sqlite_url) as opened:
        await opened.sql(SQLITE_ROWS)
        plan = await plan_of(opened, "claim", limit=100)
        assert "USING COVERING INDEX mail_outbox_due" in plan or "USING INDEX mail_outbox_due" in plan
        assert "TEMP B-TREE" not in plan
        assert "SCAN mail_outbox'" not in plan
        for name in ("rescue", "claim_lost"):
            assert "mail_outbox_dispatching" in await plan_of(opened, name, limit=100), name
        plan = await plan_of(opened, "sweep", limit=100)
        assert "mail_outbox_expiring" in plan
        assert "mail_outbox_retried" in plan
