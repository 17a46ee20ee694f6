"""What a claim and a settlement of dispatch jobs cost as the table grows: by buffers touched, then by time.

A claim is a look at the targets and the claim itself. Most jobs of two of the tables are held back, behind
one paused target or behind the failed head of one ordered group: they must cost the others nothing. Each
measurement runs the lane's own statements in a transaction that is rolled back, so that every repetition
finds the same rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import Any, Literal

import asyncpg
import msgspec
from msgspec import Struct

from homing.db import Queries, Query, Row, connect, load_queries
from homing.db.migrate import load_migrations, migrate
from homing.engine.model import Claim, Complete
from homing.lanes.dispatch_jobs.job import Report, job_of
from homing.lanes.dispatch_jobs.jobs import transition
from homing.proof.bench.sample_mails import settle_down
from homing.proof.bench.scale import BATCH, HELD_BACK, Cost, Sample, ScaleTable, Step, budgets
from homing.proof.bench.servers import fresh_database, postgres

LANE = "homing.lanes.dispatch_jobs"
TARGETS = 20
_REPETITIONS = 31
_AT_ONCE = 250_000

Holder = Literal["", "one paused target", "one ordered group"]
Measure = Callable[[Query, Sequence[Any]], Awaitable[float]]


class Kind(Struct, frozen=True):
    """A table to be measured: so many jobs are due, so many are held back."""

    due: int
    held_back: int = 0
    holder: Holder = ""


class JobsCost(Cost, frozen=True):
    """Medians of one table."""

    holder: Holder = ""

    @property
    def where(self) -> str:
        held = f", {self.held_back:,} held back by {self.holder}" if self.held_back else ""
        return f"{self.queued:,} jobs{held}"


async def jobs_scale(rows: Sequence[int], step: Step, *, postgres_url: str | None = None) -> ScaleTable:
    """All tables are there at the same time, and measured in turns."""
    sizes = sorted(rows)
    kinds = [
        *(Kind(size) for size in sizes),
        Kind(sizes[0], HELD_BACK, "one paused target"),
        Kind(sizes[0], HELD_BACK, "one ordered group"),
    ]
    async with AsyncExitStack() as stack:
        server = stack.enter_context(postgres(postgres_url))
        tables = []
        for kind in kinds:
            step(f"filling: {kind.due:,} jobs due, {kind.held_back:,} held back")
            url = stack.enter_context(fresh_database(server))
            await fill(url, kind)
            tables.append(await opened(url, stack))
        step("measuring them in turns")
        buffers = [[await table.repeat(table.buffers) for table in tables] for _ in range(_REPETITIONS)]
        times = [[await table.repeat(table.milliseconds) for table in tables] for _ in range(_REPETITIONS)]
    costs = [
        _cost(kind, [turn[n] for turn in buffers], [turn[n] for turn in times])
        for n, kind in enumerate(kinds)
    ]
    return ScaleTable(tuple(costs), tuple(budgets(costs)))


def _cost(kind: Kind, buffers: Sequence[Sample], times: Sequence[Sample]) -> JobsCost:
    return JobsCost(
        kind.due,
        kind.held_back,
        median(sample.claim for sample in buffers),
        median(sample.claim for sample in times),
        median(sample.settle for sample in buffers),
        median(sample.settle for sample in times),
        kind.holder,
    )


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


async def fill(url: str, kind: Kind) -> None:
    """Tables of the lane with jobs in them, and statistics as after a while of running."""
    database = connect(url)
    await migrate(database, load_migrations([LANE], "postgres"))
    await database.close()
    await add_jobs(url, kind)
    await settle_down(url)


_DUE = f"""
INSERT INTO dispatch_job (source, type, target_url, target, payload, has_headers, next_attempt_at)
SELECT 'order-service', 'order.created', 'https://partner' || n % {TARGETS} || '.example/hooks',
    'https://partner' || n % {TARGETS} || '.example:443', '{{"orderId":' || n || '}}', false,
    now() - interval '1 day' + n * interval '1 microsecond'
FROM generate_series($1::bigint, $2::bigint) AS n
"""  # noqa: S608 - a number of ours
_PAUSED = """
INSERT INTO dispatch_job (source, type, target_url, target, payload, has_headers, next_attempt_at)
SELECT 'order-service', 'order.created', 'https://paused.example/', 'https://paused.example:443', '{}', false,
    now() - interval '2 days' + n * interval '1 microsecond'
FROM generate_series($1::bigint, $2::bigint) AS n
"""
_PAUSE = """
INSERT INTO homing_target (target, paused_until)
VALUES ('https://paused.example:443', now() + interval '1 day')
"""
# The head has failed and is tried again tomorrow; all others have been due since the day before yesterday.
_IN_A_GROUP = """
INSERT INTO dispatch_job (
    source, type, target_url, target, payload, has_headers, group_id, ordering, position, ready, status,
    attempt_count, next_attempt_at)
SELECT 'order-service', 'order.created', 'https://partner0.example/hooks', 'https://partner0.example:443',
    '{}', false, 'held', 'group', n, n = 1, CASE n WHEN 1 THEN 'FAILED' ELSE 'PENDING' END, (n = 1)::integer,
    now() + CASE n WHEN 1 THEN interval '1 day' ELSE interval '-2 days' END
FROM generate_series($1::bigint, $2::bigint) AS n
"""
_HELD: Mapping[Holder, str] = {"one paused target": _PAUSED, "one ordered group": _IN_A_GROUP}


async def add_jobs(url: str, kind: Kind) -> None:
    connection = await asyncpg.connect(url, server_settings={"jit": "off", "synchronous_commit": "off"})
    try:
        await _add(connection, _DUE, kind.due)
        if kind.holder:
            await _add(connection, _HELD[kind.holder], kind.held_back)
        if kind.holder == "one paused target":
            await connection.execute(_PAUSE)
    finally:
        await connection.close()


async def _add(connection: asyncpg.Connection[asyncpg.Record], statement: str, rows: int) -> None:
    for first in range(1, rows + 1, _AT_ONCE):
        await connection.execute(statement, first, min(first + _AT_ONCE - 1, rows))


# ── statements ───────────────────────────────────────────────────────────────────────────────────


async def opened(url: str, stack: AsyncExitStack) -> Statements:
    # As our own connections are: compiling would take longer than any of these statements.
    connection = await asyncpg.connect(url, server_settings={"jit": "off"})
    stack.push_async_callback(connection.close)
    return Statements(connection, load_queries(LANE, "postgres"))


class Statements:
    """The claim and the settlement of one batch, as the store runs them."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], queries: Queries) -> None:
        self._connection = connection
        self._queries = queries
        self._parameters = {
            "owner": "bench",
            "lease_seconds": 60.0,
            "after": "",
            "most": 1000,
            "shares": json.dumps(
                [
                    {"target": f"https://partner{n}.example:443", "slots": BATCH // TARGETS}
                    for n in range(TARGETS)
                ]
            ),
        }

    async def repeat(self, measure: Measure) -> Sample:
        """A claim, and the settlement of another; both undone afterwards."""

        async def claim() -> float:
            return await measure(*self._call("due_targets")) + await measure(*self._call("claim"))

        async def settle() -> float:
            query, arguments = self._call("claim")
            rows = await self._connection.fetch(query.sql, *arguments)
            return await measure(self._queries["settle"], [_settlements(rows)])

        return Sample(await self._undone(claim), await self._undone(settle))

    def _call(self, name: str) -> tuple[Query, list[Any]]:
        query = self._queries[name]
        return query, [self._parameters[parameter] for parameter in query.parameters]

    async def _undone(self, work: Callable[[], Awaitable[float]]) -> float:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            return await work()
        finally:
            await transaction.rollback()

    async def buffers(self, query: Query, arguments: Sequence[Any]) -> float:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {query.sql}"
        plan = json.loads(await self._connection.fetchval(explain, *arguments))[0]["Plan"]
        return float(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    async def milliseconds(self, query: Query, arguments: Sequence[Any]) -> float:
        started = time.perf_counter()
        await self._connection.fetch(query.sql, *arguments)
        return (time.perf_counter() - started) * 1000


def _settlements(rows: Sequence[Row]) -> str:
    """What a worker writes when all was well."""
    done = Complete(Report(0.05, 200, "thank you", {"server": "x"}, target_failed=False))
    claims = [Claim(row["id"], row["fence"], row["attempts"], job_of(row)) for row in rows]
    columns = [{"id": c.id, "fence": c.fence, **transition(c, done)} for c in claims]
    return msgspec.json.encode(columns).decode()
