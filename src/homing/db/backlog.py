"""How much there is in which state: for the page and for `/metrics`, at a price that does not grow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from homing.engine.model import Monotonic
from homing.errors import DatabaseError
from homing.telemetry import Telemetry

#: Counting may take this share of the database's time, no more.
_SHARE_FOR_COUNTING = 0.05
#: What takes more seconds than this to count is counted beside whoever looks, who gets the last answer.
_LONGEST_WAIT = 0.05
#: A last answer that is older than this many seconds says little: then it is waited for.
_OLDEST_ANSWER = 60.0


class Snapshot(Struct, frozen=True):
    counts: Mapping[str, int]
    #: For how many seconds the first in the queue has been due.
    oldest_due: float


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
        self._monotonic = monotonic
        self._next = float("-inf")
        self._last: Snapshot | None = None
        #: How long the last count took, and when it ended.
        self._took, self._counted_at = 0.0, 0.0
        self._asking: asyncio.Task[Snapshot] | None = None

    async def look(self) -> Snapshot:
        now = self._monotonic()
        if self._last is not None and now < self._next:
            return self._last
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(self._answered)
        if self._last is not None and self._took > _LONGEST_WAIT and now - self._counted_at < _OLDEST_ANSWER:
            return self._last
        # Shielded: whoever gives up waiting must not end the wait of the others.
        return await asyncio.shield(self._asking)

    @staticmethod
    def _answered(asking: asyncio.Task[Snapshot]) -> None:
        # Who waited for it has been told; where nobody did, the next look asks again.
        if not asking.cancelled():
            asking.exception()

    async def _ask(self) -> Snapshot:
        started = self._monotonic()
        self._last = Snapshot(await self._rows.counts(), await self._rows.oldest_due())
        self._counted_at = self._monotonic()
        self._took = self._counted_at - started
        self._next = self._counted_at + self._took / _SHARE_FOR_COUNTING
        return self._last

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
