"""Keeping leases alive: all in one statement, when a third of their length has passed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from homing.engine.flight import Flight
from homing.engine.lane import Lane
from homing.engine.model import Monotonic
from homing.errors import DatabaseError
from homing.telemetry import Telemetry

#: Two renewals may fail before a lease is lost.
_RENEWALS_PER_LEASE = 3


class Renewer:
    """Renews while there are flights; tells `lost` of each whose row is, or may be, another worker's."""

    def __init__(
        self,
        lane: Lane[Any],
        telemetry: Telemetry,
        flights: Mapping[int, Flight],
        lost: Callable[[Flight], None],
        monotonic: Monotonic,
    ) -> None:
        self._lane = lane
        self._telemetry = telemetry
        self._flights = flights
        self._lost = lost
        self._monotonic = monotonic
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        pause = interval = self._lane.lease_seconds / _RENEWALS_PER_LEASE
        while self._flights:
            await asyncio.sleep(pause)
            started = self._monotonic()
            await self._renew(list(self._flights.values()), patience=interval)
            pause = max(0.0, interval - (self._monotonic() - started))
        self._task = None

    async def _renew(self, flights: Sequence[Flight], patience: float) -> None:
        kept = await self._ask(flights, patience)
        for flight in flights:
            # A settled row is not renewed either; that is the good end, not a loss.
            if flight.claim.id not in kept and flight.settlement is None:
                self._lost(flight)

    async def _ask(self, flights: Sequence[Flight], patience: float) -> set[int]:
        asked = self._monotonic()
        try:
            # One statement that hangs must not keep the next renewal from coming in time.
            async with asyncio.timeout(patience):
                kept = await self._lane.store.renew([f.claim for f in flights])
        except (DatabaseError, TimeoutError) as error:
            reason = str(error) or "no answer"
            self._telemetry.log.warning("lease.renewal_delayed", lane=self._lane.name, error=reason)
            return {f.claim.id for f in flights if f.until > self._monotonic()}
        for flight in flights:
            flight.until = asked + self._lane.lease_seconds
        return kept
