"""The loop of a simple consumer: receive, handle, tell the broker what came of it.

A message is handled by a task of its own, as many at once as `prefetch` says. While a handler runs the broker
is told again and again that the message is still ours. A handler that raises has a bug: the message is given
back with a delay, and all others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from msgspec import Struct

from homing.brokers.base import Broker, Consumer, Message, Queue
from homing.engine.calling_off import call_off
from homing.engine.coalesce import Coalescer
from homing.telemetry import Telemetry

#: How long one call waits for messages. A consumer that closes waits for such a call at the most.
_WAIT_SECONDS = 5.0
#: Two extensions may fail before somebody else sees the message.
_EXTENSIONS_PER_VISIBILITY = 3
#: After a bug of ours, so that it does not turn in circles at full speed.
_AFTER_A_BUG = 1.0
#: A message whose handler has a bug: time to mend it, before the delivery limit ends it.
_DELAY_AFTER_A_BUG = 10.0


class Done(Struct, frozen=True, gc=False):
    """Acknowledge it: there is nothing more to do."""


class GiveBack(Struct, frozen=True, gc=False):
    """To be handed out again after `delay` seconds."""

    delay: float = 0.0


class BuryIt(Struct, frozen=True, gc=False):
    """To the dead letters."""

    reason: str


_Result = TypeVar("_Result")

Verdict: TypeAlias = Done | GiveBack | BuryIt
Handle: TypeAlias = Callable[[Message], Awaitable[Verdict]]


class Pump:
    """Feeds `handle` from one queue until it is told to stop."""

    def __init__(
        self,
        broker: Broker,
        queue: Queue,
        handle: Handle,
        telemetry: Telemetry,
        *,
        prefetch: int = 50,
        name: str | None = None,
        wait: float = _WAIT_SECONDS,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._handle = handle
        self._telemetry = telemetry
        self._prefetch = prefetch
        self._name = name or queue.name
        self._wait = wait
        self._consumer: Consumer | None = None
        self._handling: dict[asyncio.Task[None], Message] = {}
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._stopping = asyncio.Event()
        #: Set while nothing is to be received: it pauses, or has stopped.
        self._held_up = asyncio.Event()
        self._resumed = asyncio.Event()
        #: Acknowledgements go out together, as many as came while the last ones were on their way.
        self._settled: Coalescer[tuple[Message, Verdict]] = Coalescer(self._settle)

    @property
    def in_flight(self) -> int:
        """How many messages are being handled."""
        return len(self._handling)

    def stop(self) -> None:
        """Receive nothing more; `run` returns soon after."""
        self._stopping.set()
        self._held_up.set()
        self._resumed.set()

    def pause(self) -> None:
        """Receive nothing until `resume`; what is being handled comes to its end."""
        self._resumed.clear()
        self._held_up.set()

    def resume(self) -> None:
        if not self._stopping.is_set():
            self._held_up.clear()
            self._resumed.set()

    async def run(self) -> None:
        """Until `stop`. An outage of the broker does not end it, nor does a bug."""
        keeping = asyncio.create_task(self._keep())
        try:
            while not self._stopping.is_set():
                await self._turn()
        finally:
            await call_off(keeping)

    async def drain(self, grace: float, *, after: Awaitable[None] | None = None) -> None:
        """After `stop`: let the handlers come to their end for `grace` seconds, then give back the rest.

        These seconds begin when `after` has ended: what the handlers wait for.
        """
        self.stop()
        keeping = asyncio.create_task(self._keep())
        try:
            if after is not None:
                await after
            await self._end_handlers(grace)
        finally:
            # Also when somebody insists, and this drain is called off for a shorter one.
            keeping.cancel()
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.close()

    async def _end_handlers(self, grace: float) -> None:
        if self._handling:
            await asyncio.wait(set(self._handling), timeout=grace)
        for task in list(self._handling):
            task.cancel()
        if self._handling:
            await asyncio.wait(set(self._handling))
        await self._settled.drained()

    # ── receiving ────────────────────────────────────────────────────────────────────────────────

    async def _turn(self) -> None:
        try:
            if self._held_up.is_set():
                await self._rest()
            elif not self._has_room.is_set():
                await self._unless(self._held_up, self._has_room.wait())
            else:
                for message in await self._unless(self._held_up, self._receive()) or ():
                    self._start(message)
        except Exception as bug:  # noqa: BLE001 - one bad answer must not end the consumer for all messages
            self._telemetry.crashed("broker.receive_crashed", bug, consumer=self._name)
            await self._unless(self._stopping, asyncio.sleep(_AFTER_A_BUG))

    async def _rest(self) -> None:
        """What was fetched ahead goes to others meanwhile."""
        if self._consumer is not None:
            await self._consumer.rest()
        await self._resumed.wait()

    async def _receive(self) -> list[Message]:
        if self._consumer is None:
            self._consumer = await self._broker.consume(self._queue, self._prefetch)
        return await self._consumer.receive(self._prefetch - len(self._handling), self._wait)

    async def _unless(self, event: asyncio.Event, work: Awaitable[_Result]) -> _Result | None:
        working = asyncio.ensure_future(work)
        happened = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({working, happened}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            happened.cancel()
            working.cancel()
        return None if working.cancelled() or not working.done() else working.result()

    # ── handling ─────────────────────────────────────────────────────────────────────────────────

    def _start(self, message: Message) -> None:
        task = asyncio.get_running_loop().create_task(self._run_one(message))
        self._handling[task] = message
        task.add_done_callback(self._ended)
        if len(self._handling) >= self._prefetch:
            self._has_room.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._handling[task]
        self._has_room.set()

    async def _run_one(self, message: Message) -> None:
        try:
            verdict = await self._handle(message)
        except asyncio.CancelledError:
            verdict = GiveBack()
        except Exception as bug:  # noqa: BLE001 - it is this handler's bug, and the others' messages go on
            self._telemetry.crashed("broker.handler_crashed", bug, consumer=self._name, message=message.id)
            verdict = GiveBack(_DELAY_AFTER_A_BUG)
        self._settled.put((message, verdict))

    async def _keep(self) -> None:
        """Tell the broker that what is being handled is still ours."""
        interval = self._queue.visibility / _EXTENSIONS_PER_VISIBILITY
        while True:
            await asyncio.sleep(interval)
            messages = list(self._handling.values())
            if not messages or self._consumer is None:
                continue
            try:
                await self._consumer.extend(messages, self._queue.visibility)
            except Exception as bug:  # noqa: BLE001 - without it the next extension would never come
                self._telemetry.crashed("broker.extend_crashed", bug, consumer=self._name)

    # ── telling the broker ───────────────────────────────────────────────────────────────────────

    async def _settle(self, settled: Sequence[tuple[Message, Verdict]]) -> None:
        try:
            await self._tell(settled)
        except Exception as bug:  # noqa: BLE001 - they come again, and that is the whole damage
            self._telemetry.crashed("broker.settle_crashed", bug, consumer=self._name)

    async def _tell(self, settled: Sequence[tuple[Message, Verdict]]) -> None:
        assert self._consumer is not None, "what is settled was received"
        if done := [message for message, verdict in settled if isinstance(verdict, Done)]:
            await self._consumer.acknowledge(done)
        for delay, messages in _by_delay(settled).items():
            await self._consumer.give_back(messages, delay)
        for message, verdict in settled:
            if isinstance(verdict, BuryIt):
                await self._consumer.bury(message, verdict.reason)


def _by_delay(settled: Sequence[tuple[Message, Verdict]]) -> dict[float, list[Message]]:
    found: dict[float, list[Message]] = {}
    for message, verdict in settled:
        if isinstance(verdict, GiveBack):
            found.setdefault(verdict.delay, []).append(message)
    return found
