"""How much there is in which state of each lane, for a page: at once, if not always to the last message.

On PostgreSQL what waits is counted in an index, which takes its time when millions do. So a page shows what
was counted last, and how old that is, while it is counted anew. A process that has just begun knows nothing
yet: it counts up to a number, and says that there are more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from homing.db.backlog import Snapshot
from homing.db.lately import Lately, serves_for
from homing.engine.model import Monotonic
from homing.messages.model import HowMany, LaneDesk, LaneName, Phase, Wanted

#: Up to so many of a state are counted for somebody who waits: 5 to 20 ms in an index.
MOST: Final = 100_000
#: Seconds that a page waits for the exact figures: of millions; and of few, the first time.
_PATIENCE, _PATIENCE_WITH_FEW = 0.05, 1.0
#: … and for what no index serves.
_LONGEST = 0.05


class Standing:
    """Of one lane."""

    def __init__(self, lane: LaneDesk, monotonic: Monotonic = time.monotonic) -> None:
        self._lane = lane
        self._counts = Lately(lane.counts, serves_for, monotonic)
        # Apart, so that it is always of now: it is one entry of an index, and what is judged by.
        self._oldest_due = Lately(lane.oldest_due, serves_for, monotonic)

    async def look(self) -> Snapshot:
        snapshot, oldest_due = await asyncio.gather(self._counted(), self._oldest_due())
        return Snapshot(snapshot.counts, oldest_due, snapshot.age, snapshot.at_least)

    async def _counted(self) -> Snapshot:
        known = await self._counts.at_hand(_PATIENCE) if self._counts.has_answered else None
        return await self._first() if known is None else Snapshot(known.answer, 0.0, known.age)

    async def _first(self) -> Snapshot:
        """The exact figures are asked for after the rough ones, which would have to wait beside them."""
        rough = await self._at_least()
        is_much = any(self._lane.phases[state] != "delivered" for state in rough.at_least)
        known = await self._counts.at_hand(0.0 if is_much else _PATIENCE_WITH_FEW)
        return rough if known is None else Snapshot(known.answer, 0.0, known.age)

    async def _at_least(self) -> Snapshot:
        """How many have arrived is what is left when all others are counted: that is not known here."""
        # One after the other: all at once would open a connection for each, which takes longer.
        found = {state: await self._up_to_most(state, phase) for state, phase in self._lane.phases.items()}
        counts = {state: many.number for state, many in found.items()}
        unsure = frozenset(state for state, many in found.items() if many.is_lower_bound)
        return Snapshot(counts, 0.0, at_least=unsure)

    async def _up_to_most(self, state: str, phase: Phase) -> HowMany:
        if phase == "delivered":
            return HowMany(0, is_lower_bound=True)
        wanted = Wanted(lanes=(self._lane.name,), states=(state,))
        return await self._lane.count(wanted, most=MOST, seconds=_LONGEST)


class Standings:
    """Of all lanes."""

    def __init__(self, lanes: Mapping[LaneName, LaneDesk]) -> None:
        self.of: Mapping[LaneName, Standing] = {name: Standing(lane) for name, lane in lanes.items()}
