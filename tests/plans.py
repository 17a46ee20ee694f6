"""What a statement reads of PostgreSQL, measured: rows and buffers, never the wording of its plan.

Versions word the same plan differently, and choose others that are as good. So a statement is run and undone,
once with the plan for the given values and once with the generic one that a prepared statement may get.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg

from homing.db import Query

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)"
#: Its transactions would keep our own VACUUM from marking pages as visible, and each row would be looked up;
#: and statistics are those of the moment that a test chooses.
_NO_AUTOVACUUM = """
DO $$
DECLARE name regclass;
BEGIN
    FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', name);
    END LOOP;
END $$
"""
#: Of so many rows in flight a hundred are ours, spread over the table.
IN_FLIGHT, OURS = 20_000, 100
#: Buffers for each row that is written: its page, an entry in each index, and the way down to it.
A_WRITE = 90


class Plan:
    """What one statement did."""

    def __init__(self, explained: Mapping[str, Any]) -> None:
        scans = [node for node in _nodes(explained) if "Relation Name" in node or "Index Name" in node]
        self.buffers: int = explained["Shared Hit Blocks"] + explained["Shared Read Blocks"]
        #: Of a partition that is still empty there is nothing else to read than all of it.
        self.scanned = {
            node["Relation Name"] for node in scans if node["Node Type"] == "Seq Scan" and _rows(node) > 100
        }
        #: By all scans together, kept or not.
        self.rows_read = sum(_rows(node) for node in scans if node["Node Type"] != "ModifyTable")
        #: By table.
        self.written: Counter[str] = Counter()
        for node in _nodes(explained):
            if node["Node Type"] == "ModifyTable":
                self.written[node["Relation Name"]] += sum(
                    child["Actual Rows"] for child in node["Plans"] if child["Parent Relationship"] == "Outer"
                )


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _rows(node: Mapping[str, Any]) -> float:
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    read = node["Actual Rows"] + sum(node.get(name, 0) for name in removed)
    return float(read * node["Actual Loops"])


@asynccontextmanager
async def measuring(url: str) -> AsyncIterator[Connection]:
    """A connection to a database whose statistics stay as they are until the test makes others."""
    connection = await asyncpg.connect(url, server_settings={"jit": "off"})
    try:
        await connection.execute(_NO_AUTOVACUUM)
        yield connection
    finally:
        await connection.close()


async def plan_of(
    connection: Connection, query: Query, given: Mapping[str, Any], *, generic: bool = False
) -> Plan:
    """Run it, look at what it did, and undo it."""
    values = [given[parameter] for parameter in query.parameters]
    transaction = connection.transaction()
    await transaction.start()
    try:
        text = await (_explained_generic if generic else _explained)(connection, query.sql, values)
    finally:
        await transaction.rollback()
    return Plan(json.loads(text)[0]["Plan"])


async def _explained(connection: Connection, sql: str, values: list[Any]) -> Any:
    return await connection.fetchval(f"{_EXPLAIN} {sql}", *values)


async def _explained_generic(connection: Connection, sql: str, values: list[Any]) -> Any:
    await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE measured AS {sql}")
    literals = ", ".join(map(_literal, values))
    call = f"EXECUTE measured({literals})" if values else "EXECUTE measured"
    text = await connection.fetchval(f"{_EXPLAIN} {call}")
    await connection.execute("DEALLOCATE measured")
    return text


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def our_batch(rows: int, **settled: Any) -> str:
    """Our hundred of a table with so many rows, each settled in the same way."""
    ids = range(rows // OURS, rows + 1, rows // OURS)
    return json.dumps([{"id": id, "fence": 1, "key": f"k{id}", **settled} for id in ids])


async def assert_only_ours_are_read(
    connection: Connection,
    table: str,
    take: str,
    statements: Mapping[str, tuple[Query, Mapping[str, Any]]],
) -> None:
    """Nothing of the 20,000 rows that all workers have in flight but the hundred that are named.

    `take` is the UPDATE that puts them in flight. What the planner believes of them depends on when the
    statistics were made: at a quiet hour, when there were none, or while they were there.
    """
    await connection.execute(f"VACUUM ANALYZE {table}")
    taken = await connection.execute(take)
    assert int(taken.rpartition(" ")[2]) >= IN_FLIGHT, taken
    for statistics in ("quiet", "busy"):
        if statistics == "busy":
            await connection.execute(f"VACUUM ANALYZE {table}")
        for name, (query, given) in statements.items():
            for generic in (False, True):
                plan = await plan_of(connection, query, given, generic=generic)
                told = (name, statistics, generic, plan.rows_read, plan.buffers, plan.written)
                assert plan.written[table] == OURS, told
                # Each is found, locked, and found again to be changed; a reader may look at what hangs on it.
                assert plan.rows_read <= OURS * 4, told
                assert plan.buffers <= OURS * A_WRITE, told
