"""How much there is in which state, for `/metrics`. Pages have `homing.desk.standing`, which never waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from homing.db.lately import Lately, serves_for
from homing.engine.model import Monotonic
from homing.errors import DatabaseError
from homing.telemetry import Telemetry


class Snapshot(Struct, frozen=True):
    counts: Mapping[str, int]
    #: For how many seconds the first in the queue has been due.
    oldest_due: float
    #: For how many seconds the counts have been known.
    age: float = 0.0
    #: States that have more than is told: they are still being counted.
    at_least: frozenset[str] = frozenset()


class Counted(Protocol):
    """A lane's rows, as far as they can be counted."""

    async def counts(self) -> Mapping[str, int]: ...

    async def oldest_due(self) -> float: ...


class Backlog:
    """Asked when somebody looks. A large table is counted more rarely; the last answer serves meanwhile."""

    def __init__(
        self, lane: str, rows: Counted, telemetry: Telemetry, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._lane = lane
        self._rows = rows
        self._telemetry = telemetry
        self.look = Lately(self._count, serves_for, monotonic)

    async def _count(self) -> Snapshot:
        return Snapshot(await self._rows.counts(), await self._rows.oldest_due())

    async def refresh(self) -> None:
        """Bring the gauges up to date; without a database they stay as they were."""
        try:
            snapshot = await self.look()
        except DatabaseError as error:
            self._telemetry.log.warning("metrics.stale", error=str(error))
            return
        for state, count in snapshot.counts.items():
            self._telemetry.backlog.labels(self._lane, state).set(count)
        self._telemetry.oldest_due.labels(self._lane).set(snapshot.oldest_due)
