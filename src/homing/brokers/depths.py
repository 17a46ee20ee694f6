"""How much waits in the queues of the brokers: for the page and for `/metrics`, in a bounded time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from homing.brokers.base import Broker, Depth, Queue
from homing.engine.model import Monotonic
from homing.errors import DatabaseError
from homing.telemetry import Telemetry

#: An answer serves for so many seconds; nobody waits longer than so many for one.
_KEPT_FOR, _PATIENCE = 2.0, 2.0


class Watched(Struct, frozen=True):
    """A queue that this Homing reads or fills."""

    #: For people and labels.
    label: str
    lane: str
    broker: Broker
    queue: Queue
    holds_dead_letters: bool = False


class Measured(Struct, frozen=True):
    label: str
    lane: str
    #: memory, rabbitmq, sqs
    broker: str
    #: None when the broker does not tell, or is away.
    depth: Depth | None
    holds_dead_letters: bool = False


class QueueDepths:
    """Asked when somebody looks. A broker that is slow to answer is asked on, and the last answer serves."""

    def __init__(
        self,
        queues: Callable[[], Awaitable[Sequence[Watched]]],
        telemetry: Telemetry,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._queues = queues
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._last: Sequence[Measured] = ()
        self._next = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def look(self) -> Sequence[Measured]:
        if self._asking is None and self._monotonic() >= self._next:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            # Not cancelled when it is late: the clients of brokers take a cancellation badly.
            await asyncio.wait({self._asking}, timeout=_PATIENCE)
        return self._last

    async def refresh(self) -> None:
        """Bring the gauges up to date."""
        told = {one.label: _states(one.depth) for one in await self.look() if one.depth is not None}
        self._telemetry.queues_measured(told)

    async def close(self) -> None:
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=_PATIENCE)

    async def _ask(self) -> None:
        try:
            self._last = await asyncio.gather(*(_measure(one) for one in await self._queues()))
        except DatabaseError as error:
            # Which queues there are stands in the database.
            self._telemetry.log.warning("metrics.stale", error=str(error))
        except Exception as bug:  # noqa: BLE001 - whoever reads metrics gets the others
            self._telemetry.crashed("metrics.crashed", bug)
        finally:
            self._next = self._monotonic() + _KEPT_FOR
            self._asking = None


async def _measure(one: Watched) -> Measured:
    depth = await one.broker.measure(one.queue)
    return Measured(one.label, one.lane, one.broker.name, depth, one.holds_dead_letters)


def _states(depth: Depth) -> dict[str, int]:
    states = {"waiting": depth.waiting, "held": depth.held, "delayed": depth.delayed}
    return {state: count for state, count in states.items() if count is not None}
