"""The three questions of a dashboard: what succeeds, how long it takes, and what needs a person."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from msgspec import Struct

from homing.db import Row
from homing.engine.model import Monotonic
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.search import JobSearch
from homing.lanes.dispatch_jobs.view import JobSummary, listed

#: The questions may take this share of the database's time, no more.
_SHARE = 0.02
_SHORTEST_REST = 5.0
_MOST_NAMES = 500
NEWEST_PER_TYPE = 1000
_MOST_ATTENTION = 20
_MOST_FAILING = 10_000
WINDOW_HOURS = 24


class SourceSuccess(Struct, frozen=True, rename="camel"):
    source: str
    total: int
    successful: int
    #: In percent, of all jobs that were created, also of those still under way.
    success_rate: float


class TypeDuration(Struct, frozen=True, rename="camel"):
    type: str
    #: So many jobs went into it.
    count: int
    mean_millis: float
    max_millis: int


class Statistics(Struct, frozen=True, rename="camel"):
    #: Rates and durations are of jobs created within so many hours.
    window_hours: int
    #: Durations are of the newest completed jobs of each type, at most so many.
    newest_per_type: int
    success_by_source: list[SourceSuccess]
    duration_by_type: list[TypeDuration]
    #: Jobs in ERROR, or FAILED with one attempt left; the newest twenty.
    needing_attention: list[JobSummary]


class JobStatistics:
    """Asked when somebody looks. The larger the table, the more rarely; the last answer serves meanwhile."""

    def __init__(self, jobs: DispatchJobs, search: JobSearch, monotonic: Monotonic = time.monotonic) -> None:
        self._jobs = jobs
        self._search = search
        self._monotonic = monotonic
        self._next = float("-inf")
        self._last: Statistics | None = None
        self._asking = asyncio.Lock()

    async def look(self) -> Statistics:
        async with self._asking:
            if self._last is None or self._monotonic() >= self._next:
                started = self._monotonic()
                self._last = await self._ask()
                ended = self._monotonic()
                self._next = ended + max(_SHORTEST_REST, (ended - started) / _SHARE)
            return self._last

    async def _ask(self) -> Statistics:
        sources = await self._jobs.run("success_by_source", most=_MOST_NAMES)
        types = await self._jobs.run("duration_by_type", most=_MOST_NAMES, newest=NEWEST_PER_TYPE)
        return Statistics(
            WINDOW_HOURS,
            NEWEST_PER_TYPE,
            [_success(row) for row in sources],
            [_duration(row) for row in types if row["mean"] is not None],
            [listed(row) for row in await self._attention()],
        )

    async def _attention(self) -> Sequence[Row]:
        rows = await self._jobs.run("needs_attention", limit=_MOST_ATTENTION, most=_MOST_FAILING)
        return await self._search.rows([row["id"] for row in rows])


def _success(row: Row) -> SourceSuccess:
    rate = round(100.0 * row["successful"] / row["total"], 2)
    return SourceSuccess(row["source"], row["total"], row["successful"], rate)


def _duration(row: Row) -> TypeDuration:
    return TypeDuration(row["type"], row["count"], round(row["mean"], 2), row["max"])
