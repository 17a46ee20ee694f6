"""Reads one queue for the router, and tells its broker what became of each message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from homing.brokers.base import Broker, Consumer, Message, Queue
from homing.engine.calling_off import call_off
from homing.engine.coalesce import Coalescer
from homing.telemetry import Telemetry

#: As many as SQS hands out at once.
BATCH = 10
#: Two extensions may fail before somebody else sees the message.
_EXTENSIONS_PER_VISIBILITY = 3
#: After a receive that came back at once with nothing, or with a bug of ours.
_PAUSE = 1.0
_AT_ONCE = 0.05
#: After a batch that was given back: what comes next may be for a pool that has room.
_AFTER_NO_ROOM = 0.05


class Reader:
    """One consumer. `route` takes in a batch and says how much of it; `has_room` is awaited before each."""

    def __init__(
        self,
        broker: Broker,
        queue: Queue,
        *,
        label: str,
        prefetch: int,
        route: Callable[[Reader, Sequence[Message]], int],
        has_room: Callable[[], Awaitable[object]],
        telemetry: Telemetry,
        wait: float,
    ) -> None:
        self.label = label
        self._broker = broker
        self._queue = queue
        self._prefetch = prefetch
        self._route = route
        self._has_room = has_room
        self._telemetry = telemetry
        self._wait = wait
        self._consumer: Consumer | None = None
        #: What was received and is not yet told of, by its identity: a broker's names may be anybody's.
        self._held: dict[int, Message] = {}
        self._told: Coalescer[tuple[Message, float | None]] = Coalescer(self._tell)
        self._stopping = asyncio.Event()
        #: Set while nothing is to be received: it pauses, or has stopped.
        self._held_up = asyncio.Event()
        self._resumed = asyncio.Event()
        self._nothing_held = asyncio.Event()
        self._nothing_held.set()

    @property
    def held(self) -> int:
        return len(self._held)

    # ── receiving ────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Until `stop`; then until all that it holds is told of. Neither an outage nor a bug ends it."""
        keeping = asyncio.create_task(self._keep())
        try:
            while not self._stopping.is_set():
                await (self._rest() if self._held_up.is_set() else self._unless_held_up(self._guarded_turn()))
            await self._nothing_held.wait()
        finally:
            await call_off(keeping)
            await self._close()

    def stop(self) -> None:
        self._stopping.set()
        self._held_up.set()
        self._resumed.set()

    def pause(self) -> None:
        """Receive nothing until `resume`."""
        self._resumed.clear()
        self._held_up.set()

    def resume(self) -> None:
        if not self._stopping.is_set():
            self._held_up.clear()
            self._resumed.set()

    async def _rest(self) -> None:
        """What was fetched ahead goes to others meanwhile."""
        try:
            if self._consumer is not None:
                await self._consumer.rest()
        except Exception as bug:  # noqa: BLE001 - one bad answer must not end the reading of a queue
            self._telemetry.crashed("router.receive_crashed", bug, queue=self.label)
        await self._resumed.wait()

    async def _guarded_turn(self) -> None:
        try:
            await self._turn()
        except Exception as bug:  # noqa: BLE001 - one bad answer must not end the reading of a queue
            self._telemetry.crashed("router.receive_crashed", bug, queue=self.label)
            await asyncio.sleep(_PAUSE)

    async def _turn(self) -> None:
        await self._has_room()
        loop = asyncio.get_running_loop()
        asked = loop.time()
        if self._consumer is None:
            self._consumer = await self._broker.consume(self._queue, self._prefetch)
        messages = await self._consumer.receive(BATCH, self._wait)
        for message in messages:
            self._held[id(message)] = message
        if messages:
            self._nothing_held.clear()
        taken_in = self._route(self, messages)
        if not messages and loop.time() - asked < _AT_ONCE:
            # The broker is away, or hands out no more: to ask again at once would go in circles.
            await asyncio.sleep(_PAUSE)
        elif not taken_in:
            await asyncio.sleep(_AFTER_NO_ROOM)

    async def _unless_held_up(self, work: Awaitable[None]) -> None:
        working = asyncio.ensure_future(work)
        held_up = asyncio.ensure_future(self._held_up.wait())
        try:
            await asyncio.wait({working, held_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            held_up.cancel()
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working

    # ── holding ──────────────────────────────────────────────────────────────────────────────────

    async def _keep(self) -> None:
        """Tell the broker that what waits here or is being processed is still ours."""
        interval = self._queue.visibility / _EXTENSIONS_PER_VISIBILITY
        while True:
            await asyncio.sleep(interval)
            if self._consumer is None or not self._held:
                continue
            try:
                await self._consumer.extend(list(self._held.values()), self._queue.visibility)
            except Exception as bug:  # noqa: BLE001 - without it the next extension would never come
                self._telemetry.crashed("router.extend_crashed", bug, queue=self.label)

    # ── telling ──────────────────────────────────────────────────────────────────────────────────

    def done(self, message: Message) -> None:
        """It is deleted."""
        self._told.put((message, None))

    def later(self, message: Message, delay: float) -> None:
        """It is to be seen again after so many seconds."""
        self._told.put((message, delay))

    async def _tell(self, told: Sequence[tuple[Message, float | None]]) -> None:
        try:
            await self._tell_broker(told)
        except Exception as bug:  # noqa: BLE001 - they come again, and that is the whole damage
            self._telemetry.crashed("router.tell_crashed", bug, queue=self.label)
        for message, _ in told:
            self._drop(message)

    async def _tell_broker(self, told: Sequence[tuple[Message, float | None]]) -> None:
        assert self._consumer is not None, "what is told of was received"
        if done := [message for message, delay in told if delay is None]:
            await self._consumer.acknowledge(done)
        by_delay: dict[float, list[Message]] = {}
        for message, delay in told:
            if delay is not None:
                by_delay.setdefault(delay, []).append(message)
        # The longest first: in a group the first to come back is then the one that the others wait for.
        for seconds in sorted(by_delay, reverse=True):
            await self._consumer.give_back(by_delay[seconds], seconds)

    def _drop(self, message: Message) -> None:
        self._held.pop(id(message), None)
        if not self._held:
            self._nothing_held.set()

    async def _close(self) -> None:
        await self._told.drained()
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.close()
