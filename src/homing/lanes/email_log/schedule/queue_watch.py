"""What the scheduler sees of its queue, to find lost messages: that it is missing, or that none is ready."""

from __future__ import annotations

import time

from msgspec import Struct

from homing.brokers.base import Broker, Queue
from homing.engine.model import Monotonic

#: Two sightings have to be one lease apart, so more looks than a few in that time tell nothing new.
_LOOKS_PER_LEASE = 4


class Sighting(Struct, frozen=True):
    is_gone: bool
    #: No message is ready. A consumer may hold some.
    is_empty: bool
    #: Seconds since before the broker was asked.
    since: float


class QueueWatch:
    def __init__(
        self, broker: Broker, queue: Queue, *, lease_seconds: float, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._interval = lease_seconds / _LOOKS_PER_LEASE
        self._monotonic = monotonic
        self._next = float("-inf")

    async def look(self) -> Sighting | None:
        """None when it is not time yet. A broker that is away tells nothing."""
        asked = self._monotonic()
        if asked < self._next:
            return None
        self._next = asked + self._interval
        depth = await self._broker.measure(self._queue)
        return Sighting(
            is_gone=depth is not None and not depth.exists,
            is_empty=depth is not None and depth.exists and not depth.waiting,
            since=self._monotonic() - asked,
        )
