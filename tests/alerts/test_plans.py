"""One look of the alerts reads what indexes tell, and no more of it than it asks for."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.alerts.bench import AlertBench, alert_bench

from homing.db import Database, Query, Row

#: A tenth of them are due, and a hundred dead; of notifications half.
ROWS, DEAD = 6000, 100
#: What one statement may read of a table: of notifications the newest thousand that failed are looked at.
MOST_READ = {
    "dispatch_job": DEAD,
    # And alerts, which are passed over: at most so many are made in an hour.
    "mail_outbox": DEAD + 30,
    "email_log": DEAD,
    "open_event_notifications": 1000,
    "homing_target": DEAD,
}
NUMBERS = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
#: The dead are the oldest: who reads all from the newest on reads the whole table.
STATE = f"CASE WHEN i <= {DEAD} THEN '{{dead}}' WHEN i % 10 = 0 THEN '{{due}}' ELSE '{{done}}' END"
TARGET = "'http://127.0.0.1:' || i % 7"
FILLED = (
    f"""INSERT INTO dispatch_job (id, source, type, target_url, target, payload, status, error_class)
    {NUMBERS} SELECT i, 's', 't', {TARGET} || '/', {TARGET}, '{{}}',
    {STATE.format(dead="ERROR", due="PENDING", done="COMPLETED")},
    CASE WHEN i <= {DEAD} THEN 'timeout' END FROM n""",
    f"""INSERT INTO mail_outbox (to_address, text_body, status, last_error)
    {NUMBERS} SELECT 'ann@example.org', 'Hi', {STATE.format(dead="failed", due="queued", done="sent")},
    CASE WHEN i <= {DEAD} THEN 'timeout: no answer' END FROM n""",
    f"""INSERT INTO email_log (to_address, body, status, dead_reason)
    {NUMBERS} SELECT 'ann@example.org', 'Hi', {STATE.format(dead="Dead", due="Failed", done="Sent")},
    CASE WHEN i <= {DEAD} THEN 'timeout' END FROM n""",
    f"""INSERT INTO open_event_notifications
        (open_event_id, subscription_id, dedupe_key, fanout_status, error)
    {NUMBERS} SELECT 1, i, 'k' || i,
    CASE WHEN i % 2 = 0 THEN 'failed' WHEN i % 5 = 0 THEN 'pending' ELSE 'sent' END, '{{}}' FROM n""",
    f"""INSERT INTO homing_target (target, failures)
    {NUMBERS} SELECT 'http://127.0.0.1:' || i, CASE WHEN i % 600 = 0 THEN 30 ELSE 0 END FROM n""",
    "INSERT INTO homing_job_death (message_id, error) VALUES (1, 'timeout'), (2, 'all sorts of things')",
    "INSERT INTO homing_mail_death (message_id, error) VALUES (1, 'timeout')",
    "INSERT INTO homing_email_death (message_id, error) VALUES (1, 'timeout')",
    "ANALYZE",
)


class Asked:
    """The reads that went to a database, each with what was set for its transaction."""

    def __init__(self, database: Any) -> None:
        self.database: Database = database
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

    async def of(self, table: str, explain: str) -> list[tuple[str, Sequence[Row]]]:
        """What the database tells of each statement that reads a table, and the statement."""
        read = re.compile(rf"\b(FROM|JOIN) {table}\b")
        return [
            (queries[-1].sql, await self._explained(queries, given, explain))
            for queries, given in self._reads
            if read.search(queries[-1].sql) and not queries[-1].writes
        ]

    async def _explained(
        self, queries: Sequence[Query], given: Mapping[str, Any], explain: str
    ) -> Sequence[Row]:
        explained = replace(queries[-1], sql=f"{explain} {queries[-1].sql}")
        rows: Sequence[Row] = (await self._fetch_all([*queries[:-1], explained], given))[-1]
        return rows


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for one in plan.get("Plans", ()):
        yield from nodes(one)


def rows_read(node: Mapping[str, Any]) -> float:
    """Also those that were thrown away."""
    names = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return float(sum(node.get(name, 0) for name in names) * node["Actual Loops"])


async def postgres_faults(asked: Asked, table: str) -> list[str]:
    """Of each statement on a table: what read it without an index, or too much of it."""
    found = await asked.of(table, "EXPLAIN (ANALYZE, FORMAT JSON)")
    assert found, table
    reads = [
        (sql, node)
        for sql, rows in found
        for node in nodes(msgspec.json.decode(rows[0][0])[0]["Plan"])
        if node.get("Relation Name") == table or node["Node Type"] == "Bitmap Index Scan"
    ]
    assert {sql for sql, _ in reads} == {sql for sql, _ in found}, "each was seen to read it"
    return [
        f"{node['Node Type']} reads {rows_read(node)}: {sql}"
        for sql, node in reads
        if node["Node Type"] == "Seq Scan" or rows_read(node) > MOST_READ[table]
    ]


async def sqlite_faults(asked: Asked, table: str) -> list[str]:
    """The same, where a scan is told from a search and nothing is counted."""
    found = await asked.of(table, "EXPLAIN QUERY PLAN")
    assert found, table
    partial = await asked.database.fetch(
        Query("partial", "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE INDEX% WHERE %'", (), False),
        {},
    )
    names = {str(row["name"]) for row in partial}
    plans = [(sql, [str(tuple(row)[-1]) for row in rows]) for sql, rows in found]
    assert all(any(" USING " in step for step in steps) for _, steps in plans), "an index in each"
    return [f"{step}: {sql}" for sql, steps in plans for step in scans(steps, names)]


def scans(steps: Sequence[str], partial: set[str]) -> list[str]:
    """Of whole tables; an index that has only what is meant may be gone through from its beginning."""
    made = {step.split()[1] for step in steps if step.startswith(("CO-ROUTINE ", "MATERIALIZE "))}
    return [
        step
        for step in steps
        if step.startswith("SCAN ")
        and step.split()[1] not in {*made, "CONSTANT"}
        and "VIRTUAL TABLE" not in step
        and not (" USING " in step and step.split()[-1] in partial)
    ]


@asynccontextmanager
async def filled_bench(url: str) -> AsyncIterator[AlertBench]:
    async with alert_bench(url) as bench:
        for script in FILLED:
            await bench.homing.database.run_script(script)
        yield bench


async def faults(bench: AlertBench) -> list[str]:
    """Of one look, over all lanes."""
    asked = Asked(bench.homing.database)
    await bench.look()
    look_at = postgres_faults if bench.homing.database.dialect == "postgres" else sqlite_faults
    return [fault for table in MOST_READ for fault in await look_at(asked, table)]


@pytest.mark.clause("RTY-18")
async def test_a_look_reads_what_it_asks_for_by_an_index(database_url: str) -> None:
    async with filled_bench(database_url) as bench:
        assert await faults(bench) == []
        titles = " ".join(await bench.titles())
    for found in (
        "webhook was given up: timeout",
        "mail was given up",
        "email was given up",
        "failed 30 times",
    ):
        assert found in titles, "there was something to look for in each"


async def test_a_look_without_its_indexes_would_be_seen(postgres_url: str) -> None:
    """Or the test above would prove nothing."""
    async with filled_bench(postgres_url) as bench:
        for index in (
            "homing_job_due",
            "homing_job_dead",
            "idx_dispatch_status",
            "homing_notifications_ended",
        ):
            await bench.homing.database.run_script(f"DROP INDEX {index}")
        found = await faults(bench)
    assert any("dispatch_job" in fault for fault in found)
    assert any("open_event_notifications" in fault for fault in found)


def test_a_scan_of_sqlite_would_be_seen() -> None:
    whole = ["SCAN dispatch_job", "SCAN j USING INDEX all_of_them"]
    harmless = [
        "CO-ROUTINE o",
        "SEARCH o USING INDEX due (status=?)",
        "SCAN o",
        "SCAN CONSTANT ROW",
        "SCAN j USING INDEX due",
    ]
    assert scans([*whole, *harmless], {"due"}) == whole
