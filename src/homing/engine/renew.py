"""Keeping leases alive: all in one statement, each time a third of their length has passed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from homing.engine.flight import Flight
from homing.engine.lane import Lane
from homing.engine.model import Monotonic
from homing.errors import DatabaseError, Locked
from homing.telemetry import Telemetry

#: Two renewals may fail before a lease is lost.
_RENEWALS_PER_LEASE = 3
#: One that is slow goes on beside the next, and counts when it answers; one that hangs is given up.
_INTERVALS_OF_PATIENCE = 2


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
        self._heartbeat: asyncio.Task[None] | None = None
        self._renewals: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._heartbeat is None:
            self._heartbeat = asyncio.get_running_loop().create_task(self._beat())

    def stop(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        for renewal in self._renewals:
            renewal.cancel()

    async def _beat(self) -> None:
        interval = self._lane.lease_seconds / _RENEWALS_PER_LEASE
        while self._flights:
            await asyncio.sleep(interval)
            renewal = asyncio.create_task(self._renew(list(self._flights.values()), interval))
            self._renewals.add(renewal)
            renewal.add_done_callback(self._renewals.discard)
        self._heartbeat = None

    async def _renew(self, flights: Sequence[Flight], interval: float) -> None:
        asked = self._monotonic()
        try:
            async with asyncio.timeout(interval * _INTERVALS_OF_PATIENCE):
                kept = await self._lane.store.renew([f.claim for f in flights])
        except (DatabaseError, TimeoutError) as error:
            if isinstance(error, Locked) and len(flights) > 1:
                await self._renew_others(flights, interval)
                return
            reason = str(error) or "no answer"
            self._telemetry.log.warning("lease.renewal_delayed", lane=self._lane.name, error=reason)
            self._lose(f for f in flights if f.until <= self._monotonic())
        else:
            for flight in flights:
                flight.until = max(flight.until, asked + self._lane.lease_seconds)
            self._lose(f for f in flights if f.claim.id not in kept)

    async def _renew_others(self, flights: Sequence[Flight], interval: float) -> None:
        """Who has one row open keeps that one waiting, and no other that is being sent."""
        sending = [f for f in flights if f.settlement is None]
        half = len(sending) // 2 if len(sending) == len(flights) else 0
        await asyncio.gather(*(self._renew(f, interval) for f in (sending[:half], sending[half:]) if f))

    def _lose(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            # A settled row is not renewed either; that is the good end, not a loss.
            if flight.settlement is None:
                self._lost(flight)
