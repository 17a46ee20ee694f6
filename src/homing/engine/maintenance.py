"""What has to happen though nobody asks for it: rescue the rows of the dead, end what is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from homing.engine.lane import Lane
from homing.engine.model import Failure, Rand, Retry
from homing.engine.policy import decide
from homing.errors import DatabaseError
from homing.telemetry import Telemetry

_BATCH = 1000
#: How long a rescue may be late: with a lease of five seconds a row is back after six.
_LONGEST_INTERVAL = 5.0


class Maintenance:
    """One round: rescue, charge the repeatedly rescued, sweep. Any number of processes may run it."""

    def __init__(self, lane: Lane[Any], telemetry: Telemetry, rand: Rand = random.random) -> None:
        self._lane = lane
        self._telemetry = telemetry
        self._rand = rand
        self.interval = min(_LONGEST_INTERVAL, lane.lease_seconds / 5)

    async def run(self) -> None:
        while True:
            await self._guarded(self.once)
            await asyncio.sleep(self.interval)

    async def once(self) -> None:
        await self.rescue()
        await self.sweep()

    async def rescue(self) -> None:
        requeued = await self._lane.store.rescue(_BATCH)
        charged = await self._charge_the_lost()
        if requeued or charged:
            self._telemetry.rescued(self._lane.name, requeued, charged)

    async def _charge_the_lost(self) -> int:
        """A row that keeps losing its workers may be what kills them, so now it costs an attempt."""
        claims = await self._lane.store.claim_lost(_BATCH)
        outcome = Retry(Failure("worker_died", "the worker died during the attempt, again"))
        await self._lane.store.settle(
            [(c, decide(self._lane.policy, c, outcome, self._rand)) for c in claims]
        )
        return len(claims)

    async def sweep(self) -> None:
        ended = await self._lane.store.sweep(_BATCH)
        if any(ended.values()):
            self._telemetry.swept(self._lane.name, ended)

    async def _guarded(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except DatabaseError as error:
            self._telemetry.log.warning("maintenance.failed", lane=self._lane.name, error=str(error))
