"""What a claim and a settlement cost as the table grows: by buffers touched, then by time.

Each measurement runs the lane's own statements in a transaction that is rolled back, so that every
repetition finds the same rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from statistics import median
from typing import Any

import asyncpg
import msgspec
from msgspec import Struct

from homing.app import Homing
from homing.db import Queries, Query, load_queries
from homing.engine.model import Claim, Complete
from homing.lanes.mail_outbox.lane import transition
from homing.lanes.mail_outbox.mail import Mail, mail_of
from homing.proof.bench.homing_worker import settings_for
from homing.proof.bench.measure import Budget
from homing.proof.bench.sample_mails import settle_down
from homing.proof.bench.servers import fresh_database, postgres
from homing.senders.mail import Verdict
from homing.senders.mailing import Report

Step = Callable[[str], None]

BATCH = 100
HELD_BACK = 900_000
_REPETITIONS = 51
_AT_ONCE = 500_000
_A_DAY = timedelta(days=1)


class Cost(Struct, frozen=True):
    """Medians of one table size."""

    queued: int
    held_back: int
    claim_buffers: float
    claim_ms: float
    settle_buffers: float
    settle_ms: float

    @property
    def where(self) -> str:
        return f"{self.queued:,} rows" + (f", {self.held_back:,} held back" if self.held_back else "")


class ScaleTable(Struct, frozen=True):
    costs: tuple[Cost, ...]
    budgets: tuple[Budget, ...]


async def scale(rows: Sequence[int], step: Step, *, postgres_url: str | None = None) -> ScaleTable:
    """All tables are there at the same time, one of them with most rows held back, and measured in turns."""
    sizes = sorted(rows)
    kinds = [*((size, 0) for size in sizes), (sizes[0], HELD_BACK)]
    async with AsyncExitStack() as stack:
        server = stack.enter_context(postgres(postgres_url))
        tables = []
        for queued, held_back in kinds:
            step(f"filling: {queued:,} rows due, {held_back:,} held back")
            url = stack.enter_context(fresh_database(server))
            await _fill(url, queued, held_back)
            tables.append(await _open(url, stack))
        step("measuring them in turns")
        buffers = [[await table.repeat(table.buffers) for table in tables] for _ in range(_REPETITIONS)]
        times = [[await table.repeat(table.milliseconds) for table in tables] for _ in range(_REPETITIONS)]
    costs = [
        _cost(kind, [turn[n] for turn in buffers], [turn[n] for turn in times])
        for n, kind in enumerate(kinds)
    ]
    return ScaleTable(tuple(costs), tuple(budgets(costs)))


async def _fill(url: str, queued: int, held_back: int) -> None:
    await _make_tables(url)
    await _add_rows(url, queued, held_back)
    await settle_down(url)


async def _make_tables(url: str) -> None:
    homing = Homing(settings_for(url, 25))
    await homing.migrate()
    await homing.close()


_ADD = """
INSERT INTO mail_outbox (to_address, subject, text_body, token, next_attempt_at)
SELECT 'a@example.org', 'n', 't', n::text, now() + $3::interval + n * interval '1 microsecond'
FROM generate_series($1::bigint, $2::bigint) AS n
"""


async def _add_rows(url: str, queued: int, held_back: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        for first in range(1, queued + 1, _AT_ONCE):
            await connection.execute(_ADD, first, min(first + _AT_ONCE - 1, queued), -_A_DAY)
        if held_back:
            await connection.execute(_ADD, queued + 1, queued + held_back, _A_DAY)
    finally:
        await connection.close()


# ── one statement ────────────────────────────────────────────────────────────────────────────────


class Sample(Struct, frozen=True):
    claim: float
    settle: float


def _cost(kind: tuple[int, int], buffers: Sequence[Sample], times: Sequence[Sample]) -> Cost:
    return Cost(
        *kind,
        median(sample.claim for sample in buffers),
        median(sample.claim for sample in times),
        median(sample.settle for sample in buffers),
        median(sample.settle for sample in times),
    )


async def _open(url: str, stack: AsyncExitStack) -> _Statements:
    # As our own connections are: compiling would take longer than any of these statements.
    connection = await asyncpg.connect(url, server_settings={"jit": "off"})
    stack.push_async_callback(connection.close)
    return _Statements(connection, load_queries("homing.lanes.mail_outbox", "postgres"))


class _Statements:
    """The claim and the settlement of one batch, as the store runs them."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], queries: Queries) -> None:
        self._connection = connection
        self._claim, self._settle = queries["claim"], queries["settle"]
        self._given = {"limit": BATCH, "max_attempts": 5, "owner": "bench", "lease_seconds": 120.0}

    async def repeat(self, cost: Callable[[Query, Sequence[Any]], Awaitable[float]]) -> Sample:
        """Both statements, undone afterwards."""
        claiming = self._arguments(self._claim)
        claim_cost = await self._undone(lambda: cost(self._claim, claiming))

        async def settle() -> float:
            rows = await self._connection.fetch(self._claim.sql, *claiming)
            return await cost(self._settle, self._arguments(self._settle, batch=_settlements(rows)))

        return Sample(claim_cost, await self._undone(settle))

    def _arguments(self, query: Query, **given: Any) -> list[Any]:
        values = {**self._given, **given}
        return [values[name] for name in query.parameters]

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


def _settlements(rows: Sequence[asyncpg.Record]) -> str:
    """What a worker writes when all was well."""
    report = Report("smtp", None, {"a@example.org": Verdict("accepted")})
    claims: list[Claim[Mail]] = [
        Claim(row["id"], row["fence"], row["attempts"], mail_of(row), 0) for row in rows
    ]
    columns = [{"id": c.id, "fence": c.fence, **transition(c, Complete(report))} for c in claims]
    return msgspec.json.encode(columns).decode()


def budgets(costs: Sequence[Cost]) -> list[Budget]:
    """Against the first, which is the smallest."""
    base, *others = costs
    return [
        Budget(f"{what}, {cost.where}", getattr(cost, field) / getattr(base, field), 1.5, "most", unit="x")
        for cost in others
        for field, what in _COMPARED.items()
    ]


_COMPARED = {
    "claim_buffers": "claim buffers",
    "claim_ms": "claim time",
    "settle_buffers": "settle buffers",
    "settle_ms": "settle time",
}
