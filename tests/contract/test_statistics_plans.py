"""The figures of all completed jobs are read from an index, and no row is looked at."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.jobs import job_bench
from tests.plans import Connection, measuring, plan_of

from homing.db import load_queries

pytestmark = pytest.mark.clause("JOB-27")

ROWS = 20_000
#: Rows are wide: what reads them all is found out.
COLUMNS = "source, type, target_url, target, payload, status, attempt_count, duration_millis, created_at"
VALUES = """
    's' || n % 7, 't' || n % 5, 'https://a.example/', 'https://a.example:443', {wide},
    CASE WHEN n % 10 = 1 THEN 'ERROR' WHEN n % 10 = 2 THEN 'FAILED' ELSE 'COMPLETED' END, n % 3, n, {created}
"""
STATISTICS = {
    "duration_by_type": {"most": 10_000},
    "needs_attention": {"limit": 20},
    "count_attention": {},
}


async def test_postgres_looks_at_no_row(postgres_url: str) -> None:
    queries = load_queries("homing.lanes.dispatch_jobs", "postgres")
    values = VALUES.format(wide="repeat('x', 1000)", created=f"now() - ({ROWS} - n) * interval '1 second'")
    async with measuring(postgres_url) as connection:
        await connection.execute(
            f"INSERT INTO dispatch_job ({COLUMNS}) SELECT {values} FROM generate_series(1, {ROWS}) AS n"
        )
        pages = await vacuumed(connection)
        for name, given in STATISTICS.items():
            plan = await plan_of(connection, queries[name], given)
            assert not plan.scanned, name
            assert plan.buffers < pages / 10, (name, plan.buffers, pages)


async def vacuumed(connection: Connection) -> int:
    """The pages of the table, all of them known as visible, for which no old snapshot may be left."""
    async with asyncio.timeout(60):
        while True:
            await connection.execute("VACUUM ANALYZE dispatch_job")
            row = await connection.fetchrow(
                "SELECT relpages, relallvisible FROM pg_class WHERE relname = 'dispatch_job'"
            )
            if row is not None and row["relallvisible"] == row["relpages"]:
                return int(row["relpages"])
            await asyncio.sleep(0.05)


async def test_sqlite_looks_at_no_row(tmp_path: Path) -> None:
    path = tmp_path / "homing.db"
    async with job_bench(f"sqlite:///{path}"):
        pass
    queries = load_queries("homing.lanes.dispatch_jobs", "sqlite")
    with closing(sqlite3.connect(path)) as connection:
        for _ in range(2):
            for name, given in STATISTICS.items():
                explained = connection.execute(f"EXPLAIN QUERY PLAN {queries[name].sql}", given).fetchall()
                plan = "\n".join(row[3] for row in explained)
                assert "COVERING INDEX" in plan, (name, plan)
                assert "TEMP B-TREE" not in plan, (name, plan)
            created = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', -n || ' seconds')"
            values = VALUES.format(wide="printf('%1000s', 'x')", created=created)
            connection.execute(
                f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS})"
                f" INSERT INTO dispatch_job ({COLUMNS}) SELECT {values} FROM s"
            )
            connection.execute("ANALYZE")
