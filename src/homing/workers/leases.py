"""What each process holds in each lane, and how it is taken back from one that is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from homing.db import Database, Queries, Row, instant
from homing.workers.fleet import Fleet

#: Rows of a lane that are looked through; with more in progress the figures are at least so high.
_MOST_LOOKED_AT = 10_000
_AT_ONCE = 1000


class Held(Struct, frozen=True, rename="camel"):
    """Rows of one lane that one process has claimed."""

    owner: str
    lane: str
    count: int
    #: When the first of these leases ends, unless it is renewed: of a dead process, when its rows come back.
    ends_first: datetime | None


class LaneLeases(Struct, frozen=True):
    """Where a lane's rows are, and the two questions that can be asked of them."""

    lane: str
    database: Database
    queries: Queries


class Leases:
    """`rescue` takes rows of some lanes from holders whose leases have ended."""

    def __init__(
        self, fleet: Fleet, lanes: Sequence[LaneLeases], rescue: Callable[[Collection[str]], Awaitable[None]]
    ) -> None:
        self._fleet = fleet
        self._lanes = lanes
        self._rescue = rescue

    async def held(self) -> list[Held]:
        return [held for lane in self._lanes for held in await _held(lane)]

    async def release(self, worker: str) -> Mapping[str, int]:
        """What a process held that is gone is due again at once; how many, by lane.

        Were it alive after all, the fence would refuse what it writes of them: a message may go out twice,
        and no row is written by two.
        """
        await self._fleet.require_gone(worker)
        ended = {lane.lane: await _end(lane, worker) for lane in self._lanes}
        released = {lane: count for lane, count in ended.items() if count}
        await self._rescue(released.keys())
        return released


async def _held(lane: LaneLeases) -> list[Held]:
    rows = await lane.database.fetch(lane.queries["leases"], {"limit": _MOST_LOOKED_AT})
    return [_view(lane.lane, row) for row in rows]


def _view(lane: str, row: Row) -> Held:
    return Held(str(row["owner"]), lane, row["held"], instant(row["ends_first"]))


async def _end(lane: LaneLeases, owner: str) -> int:
    total = 0
    while True:
        done = await lane.database.fetch(lane.queries["end_leases"], {"owner": owner, "limit": _AT_ONCE})
        total += len(done)
        if len(done) < _AT_ONCE:
            return total
