"""One look of the alerts reads what indexes tell, and no more of it than it asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.alerts.bench import AlertBench, alert_bench

from homing.db import Query, Row

ROWS, DEAD = 6000, 100
#: The dead are the oldest: who reads all from the newest on reads the whole table.
JOBS = f"""
INSERT INTO dispatch_job (id, source, type, target_url, target, payload, status, error_class)
SELECT homing_tsid() + i, 's-' || i % 7, 't', 'http://127.0.0.1:9/', 'http://127.0.0.1:9', '{{}}',
    CASE WHEN i <= {DEAD} THEN 'ERROR' ELSE 'COMPLETED' END, CASE WHEN i <= {DEAD} THEN 'timeout' END
FROM generate_series(1, {ROWS}) AS n(i)
"""
NOTIFICATIONS = f"""
INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, fanout_status, error)
SELECT 1, i, 'k', CASE WHEN i % 2 = 0 THEN 'failed' ELSE 'sent' END, '{{}}'
FROM generate_series(1, {ROWS}) AS n(i)
"""
BY_STATE = {"homing_job_dead", "homing_job_due", "idx_dispatch_status"}
DEATHS = "INSERT INTO homing_job_death (message_id, error) VALUES (1, 'timeout'), (2, 'all sorts of things')"


class Asked:
    """The reads that went to a database, each with what was set for its transaction."""

    def __init__(self, database: Any) -> None:
        self._fetch, self._fetch_all = database.fetch, database.fetch_all
        self._reads: list[tuple[list[Query], Mapping[str, Any]]] = []
        database.fetch, database.fetch_all = self._one, self._several

    async def _one(self, query: Query, given: Mapping[str, Any]) -> Sequence[Row]:
        self._reads.append(([query], given))
        rows: Sequence[Row] = await self._fetch(query, given)
        return rows

    async def _several(self, queries: Sequence[Query], given: Mapping[str, Any]) -> Sequence[Sequence[Row]]:
        self._reads.append((list(queries), given))
        rows: Sequence[Sequence[Row]] = await self._fetch_all(queries, given)
        return rows

    async def plans(self, table: str) -> list[Any]:
        """Of all that read a table."""
        return [
            await self._plan(queries, given)
            for queries, given in self._reads
            if f"FROM {table}" in queries[-1].sql and not queries[-1].writes
        ]

    async def _plan(self, queries: Sequence[Query], given: Mapping[str, Any]) -> Any:
        explained = replace(queries[-1], sql=f"EXPLAIN (ANALYZE, FORMAT JSON) {queries[-1].sql}")
        rows = (await self._fetch_all([*queries[:-1], explained], given))[-1]
        return msgspec.json.decode(rows[0][0])[0]["Plan"]


def nodes(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [plan, *(node for one in plan.get("Plans", ()) for node in nodes(one))]


def indexes(plan: Mapping[str, Any]) -> set[str]:
    return {node["Index Name"] for node in nodes(plan) if "Index Name" in node}


@pytest.fixture
async def alerts(postgres_url: str) -> AsyncIterator[AlertBench]:
    async with alert_bench(postgres_url) as bench:
        for script in (JOBS, NOTIFICATIONS, DEATHS):
            await bench.homing.database.run_script(script)
        await bench.homing.database.run_script("ANALYZE")
        yield bench


@pytest.mark.clause("RTY-18")
async def test_a_look_reads_what_it_asks_for_by_an_index(alerts: AlertBench) -> None:
    asked = Asked(alerts.homing.database)
    await alerts.homing.alerts_part.watch.round()
    assert await alerts.titles(), "there was something to look for"
    looks = await asked.plans("dispatch_job")
    assert {name for plan in looks for name in indexes(plan)} <= BY_STATE
    (newest,) = await asked.plans("open_event_notifications\nWHERE")
    assert [node["Node Type"] for node in nodes(newest)] == ["Limit", "Index Scan"], (
        "it stops when it has enough"
    )
    assert max(node["Actual Rows"] for plan in looks for node in nodes(plan)) <= DEAD, "and of nothing else"
