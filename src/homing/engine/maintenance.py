"""What has to happen though nobody asks for it: rescue the rows of the dead, end what is over."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from homing.engine.lane import Lane
from homing.engine.model import WORKER_LOST, Monotonic, Rand, Retry
from homing.engine.policy import decide
from homing.errors import DatabaseError, Unreachable
from homing.telemetry import Telemetry

_BATCH = 1000
#: How long a rescue may be late: with a lease of five seconds a row is back after six.
_LONGEST_INTERVAL = 5.0
#: After an outage the workers that lived through it get this long to settle what they have sent meanwhile:
#: their leases are over, but a row that nobody took is still theirs.
_AFTER_AN_OUTAGE = 5.0


class Maintenance:
    """One round: rescue, charge the repeatedly rescued, sweep. Any number of processes may run it."""

    def __init__(
        self,
        lane: Lane[Any],
        telemetry: Telemetry,
        rand: Rand = random.random,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._lane = lane
        self._telemetry = telemetry
        self._rand = rand
        self._monotonic = monotonic
        self._rescue_from = 0.0
        self.interval = min(_LONGEST_INTERVAL, lane.lease_seconds / 5)

    async def run(self) -> None:
        while True:
            await self._guarded(self._round)
            await asyncio.sleep(self.interval)

    async def _round(self) -> None:
        if self._monotonic() >= self._rescue_from:
            await self.rescue()
        await self.sweep()

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
        outcome = Retry(WORKER_LOST)
        await self._lane.store.settle(
            [(c, decide(self._lane.policy_of(c), c, outcome, self._rand)) for c in claims]
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
            if isinstance(error, Unreachable):
                self._rescue_from = self._monotonic() + _AFTER_AN_OUTAGE
            self._telemetry.log.warning("maintenance.failed", lane=self._lane.name, error=str(error))
        except Exception as bug:  # noqa: BLE001 - a row that we cannot read must not end the rescue of all others
            self._telemetry.crashed("maintenance.crashed", bug, lane=self._lane.name)
