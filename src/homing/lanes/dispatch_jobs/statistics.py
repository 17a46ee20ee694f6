"""The three questions of a dashboard: what succeeds, how long it takes, and which jobs require attention.

They are the queries that the specification prints, so that whoever asks the database gets the same figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal

from msgspec import Struct

from homing.db import Row, iso
from homing.db.lately import Lately
from homing.engine.model import Monotonic
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.search import JobSearch
from homing.lanes.dispatch_jobs.view import JobSummary, listed

#: The questions may take this share of the database's time, as far as no answer gets older than a minute.
_SHARE = 0.02
_SHORTEST_REST, _LONGEST_REST = 5.0, 60.0
#: Sources or types; a label that differs for every job would make an answer that nobody can read.
_MOST_NAMES = 10_000
_MOST_ATTENTION = 20
_HUNDREDTH = Decimal("0.01")
WINDOW_HOURS = 24


class SourceSuccess(Struct, frozen=True, rename="camel"):
    source: str
    total: int
    successful: int
    #: In percent, of all jobs that were created, also of those still under way.
    success_rate: float


class TypeDuration(Struct, frozen=True, rename="camel"):
    type: str
    #: So many jobs are completed.
    count: int
    #: null where another program completed them, and did not say how long it took.
    mean_millis: float | None
    max_millis: int | None


class Statistics(Struct, frozen=True, rename="camel"):
    #: When they were asked for; they may be a minute old.
    as_of: str
    #: Rates are of jobs created within so many hours.
    window_hours: int
    success_by_source: list[SourceSuccess]
    #: Of all completed jobs.
    duration_by_type: list[TypeDuration]
    #: Jobs in ERROR, and FAILED ones with `attemptCount >= maxRetries - 1`; attempts before a requeue count.
    needing_attention_count: int
    #: The newest twenty of them.
    needing_attention: list[JobSummary]


class JobStatistics:
    """Asked when somebody looks. The larger the table, the more rarely; the last answer serves meanwhile."""

    def __init__(self, jobs: DispatchJobs, search: JobSearch, monotonic: Monotonic = time.monotonic) -> None:
        self._jobs = jobs
        self._search = search
        self.look: Lately[[], Statistics] = Lately(self._ask, _serves_for, monotonic, oldest=_LONGEST_REST)

    async def _ask(self) -> Statistics:
        as_of = iso(datetime.now(UTC)) or ""
        sources = await self._jobs.run("success_by_source", most=_MOST_NAMES)
        types = await self._jobs.run("duration_by_type", most=_MOST_NAMES)
        (needing,) = await self._jobs.run("count_attention")
        return Statistics(
            as_of,
            WINDOW_HOURS,
            [_success(row) for row in sources],
            [_duration(row) for row in types],
            needing["count"],
            [listed(row) for row in await self._attention()],
        )

    async def _attention(self) -> Sequence[Row]:
        rows = await self._jobs.run("needs_attention", limit=_MOST_ATTENTION)
        return await self._search.rows([row["id"] for row in rows])


def _serves_for(took: float) -> float:
    return min(max(_SHORTEST_REST, took / _SHARE), _LONGEST_REST)


def _success(row: Row) -> SourceSuccess:
    # As SQL rounds, a half up.
    rate = (Decimal(100 * row["successful"]) / row["total"]).quantize(_HUNDREDTH, ROUND_HALF_UP)
    return SourceSuccess(row["source"], row["total"], row["successful"], float(rate))


def _duration(row: Row) -> TypeDuration:
    return TypeDuration(row["type"], row["count"], row["mean"], row["max"])
