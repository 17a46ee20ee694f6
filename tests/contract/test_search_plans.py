"""A search reads what it shows and what it counts, not the table. On 200,000 jobs with 400,000 entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.lanes.dispatch_jobs.api_bench import api_bench

from homing.db import Database, Query, Row
from homing.lanes.dispatch_jobs import search as search_module
from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.search import JobSearch, Place
from homing.lanes.dispatch_jobs.target import Targets
from homing.proof.bench.search import Case, cases, make_jobs, measure

ROWS = 200_000
#: A twentieth of the table is counted, as of two million jobs are: of half of it, all is best read.
COUNTED = 10_020
#: One page with its metadata.
A_PAGE = 200


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.clause("JOB-03", "JOB-17")
async def test_every_filter_is_served_by_an_index(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "MOST_COUNTED", COUNTED)
    await make_jobs(postgres_url, ROWS)
    asked = cases(ROWS)
    for case, cost in zip(asked, await measure(postgres_url, asked), strict=True):
        if case.promised:
            assert cost.rows_read <= most_read(case), cost
            assert "all of" not in cost.plan, cost
            assert cost.is_estimate == (cost.total > COUNTED), cost


def most_read(case: Case) -> int:
    """What is counted, what is skipped, and one page; of several entries of metadata, more are looked up."""
    skipped = case.page * 20
    return (COUNTED + skipped + A_PAGE) * (1 if len(case.filter.metadata) < 2 else 10)


class Explaining:
    """SQLite, asked for its plans."""

    dialect = "sqlite"

    def __init__(self, database: Database) -> None:
        self._database = database
        self.plans: list[str] = []

    async def fetch(self, query: Query, parameters: Mapping[str, Any]) -> Sequence[Row]:
        explained = msgspec.structs.replace(query, sql=f"EXPLAIN QUERY PLAN {query.sql}")
        rows = await self._database.fetch(explained, parameters)
        self.plans += [row["detail"] for row in rows]
        return await self._database.fetch(query, parameters)


@pytest.mark.clause("JOB-03", "JOB-17")
async def test_sqlite_reads_an_index_in_order_too(sqlite_url: str) -> None:
    async with api_bench(sqlite_url) as api:
        database = Explaining(api.database)
        jobs: Any = DispatchJobs(database, Targets(slots=1, connections=1), owner="test", lease_seconds=60)  # type: ignore[arg-type]  # reads only
        search = JobSearch(jobs)
        for case in cases(ROWS):
            database.plans.clear()
            after = Place("2026-01-01T00:00:00.000Z", 5)
            for place in (None, after):
                await search.places(case.filter, 0, after=place, limit=20)
                await search.places(case.filter, 0, after=place, limit=20, direction="ASC")
            await search.count(case.filter, 0, 100)
            plan = "\n".join(database.plans)
            assert "SCAN m" not in plan, (case.name, plan)
            assert "TEMP B-TREE" not in plan, (case.name, plan)
            scans = [line for line in database.plans if line.startswith("SCAN o")]
            # Without any filter there is nothing to search for: the index is read from its end.
            assert all("idx_dispatch_created" in line for line in scans), (case.name, plan)
            assert not scans or case.filter == Filter(), (case.name, plan)
