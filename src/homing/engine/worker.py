"""The polling worker: claims as slots come free, sleeps when nothing is due, wakes when told."""

from __future__ import annotations

import asyncio
from typing import Any

from homing.engine.deliver import Deliverer
from homing.errors import DatabaseError
from homing.telemetry import Telemetry

_SHORTEST_PAUSE = 0.02
#: After a claim that brought something, though not all that would have fitted: there is more to come.
_PAUSE_AT_WORK = 0.005
#: Wake-ups are hints and may be lost, so every worker looks at least this often.
_LONGEST_PAUSE = 1.0


class Worker:
    """Feeds one `Deliverer` until it is told to stop."""

    def __init__(
        self, deliverer: Deliverer, telemetry: Telemetry, *, longest_pause: float = _LONGEST_PAUSE
    ) -> None:
        self._longest_pause = longest_pause
        self._deliverer = deliverer
        self._lane = deliverer.lane
        self._telemetry = telemetry
        self._woken = asyncio.Event()
        self._stopping = False
        self._pause = _SHORTEST_PAUSE

    def wake(self) -> None:
        """Something may be due: look now."""
        self._woken.set()

    def stop(self) -> None:
        """Claim nothing more; `run` returns soon after."""
        self._stopping = True
        self._woken.set()
        self._deliverer.claim_no_more()

    async def run(self) -> None:
        while await self._may_claim():
            if self._woken.is_set():
                self._woken.clear()
                self._pause = _SHORTEST_PAUSE
            if self._deliverer.paused or not await self._claim():
                await self._rest()

    async def drain(self) -> int:
        """Deliver until nothing is due; how many were claimed."""
        total = 0
        while await self._may_claim():
            # What is under way may hold back what is due: a limit of its target, an earlier one of its group.
            was_idle = self._deliverer.idle
            claims = await self._deliverer.run_batch(self._deliverer.free)
            total += len(claims)
            if not claims and was_idle:
                break
            if not claims:
                await self._deliverer.progressed()
        return total

    async def _may_claim(self) -> bool:
        await self._deliverer.has_room()
        return not self._stopping

    async def _claim(self) -> bool:
        """Whether all that fitted was found, so that there may be more."""
        free = self._deliverer.free
        try:
            claims: list[Any] = await self._deliverer.run_batch(free)
        except DatabaseError as error:
            self._telemetry.log.warning("claim.failed", lane=self._lane.name, error=str(error))
            return False
        except Exception as bug:  # noqa: BLE001 - a row that we cannot read must not end the worker for all others
            self._telemetry.crashed("claim.crashed", bug, lane=self._lane.name)
            return False
        if claims:
            self._pause = _PAUSE_AT_WORK
        if self._deliverer.paused:
            # The pause came while the database answered.
            await self._deliverer.give_back_waiting()
        return len(claims) == free

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._pause):
                await self._woken.wait()
        except TimeoutError:
            self._pause = min(max(self._pause * 2, _SHORTEST_PAUSE), self._longest_pause)
        else:
            self._pause = _SHORTEST_PAUSE
