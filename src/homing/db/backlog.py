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


class HeldTarget(Struct, frozen=True):
    """A target that is paused or keeps failing, and what is due for it."""

    target: str
    #: Up to a limit.
    count: int
    #: When the first of them became due, and how many seconds ago that was.
    since: str | None
    age: float


class HeldBack(Struct, frozen=True):
    """What of a lane is due and waits for its targets, the longest first."""

    targets: tuple[HeldTarget, ...] = ()
    #: There is more than was counted.
    is_lower_bound: bool = False

    @property
    def count(self) -> int:
        return sum(one.count for one in self.targets)

    @property
    def since(self) -> str | None:
        return self.targets[0].since if self.targets else None

    @property
    def places(self) -> list[str]:
        """Scheme, host and port, without the number of the credentials."""
        return list(dict.fromkeys(one.target.partition("#")[0] for one in self.targets))


class Snapshot(Struct, frozen=True):
    counts: Mapping[str, int]
    #: For how many seconds the first of all that are due has been due, held back or not.
    oldest_due: float
    #: For how many seconds the counts have been known.
    age: float = 0.0
    #: States that have more than is told: they are still being counted.
    at_least: frozenset[str] = frozenset()
    held_back: HeldBack = HeldBack()


class Counted(Protocol):
    """A lane's rows, as far as they can be counted."""

    async def counts(self) -> Mapping[str, int]: ...

    async def oldest_due(self) -> float: ...

    async def held_back(self) -> HeldBack: ...


async def look(rows: Counted) -> Snapshot:
    counts, oldest_due = await rows.counts(), await rows.oldest_due()
    return Snapshot(counts, oldest_due, held_back=await rows.held_back())


class Backlog:
    """Asked when somebody looks. A large table is counted more rarely; the last answer serves meanwhile."""

    def __init__(
        self, lane: str, rows: Counted, telemetry: Telemetry, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._lane = lane
        self._telemetry = telemetry
        self.look = Lately(lambda: look(rows), serves_for, monotonic)

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
        self._telemetry.held_back(
            self._lane, ((t.target, t.count, t.age) for t in snapshot.held_back.targets)
        )
