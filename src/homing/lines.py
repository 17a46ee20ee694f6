"""A line is one lane at work in one process: what attempts, what looks after it, what wakes it."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from homing.brokers.base import Broker, Queue
from homing.brokers.pump import Pump, Verdict
from homing.db import Database
from homing.db.backlog import Backlog, Counted
from homing.engine.deliver import Deliverer, Party, Weigh
from homing.engine.lane import Lane
from homing.engine.maintenance import Maintenance
from homing.engine.room import Room
from homing.engine.traced import traced
from homing.engine.worker import Worker
from homing.telemetry import Telemetry

#: What is done with one message for a deliverer.
Handle = Callable[[Any], Awaitable[Verdict]]
#: After the deliverer has come to its end, what was received is acknowledged or given back within this time.
_LAST_ACKNOWLEDGEMENTS = 10.0
#: So often in a row a queue must look empty, this many seconds apart, before it is.
_LOOKS, _BETWEEN_LOOKS = 4, 0.1


class Feed:
    """What a line takes from a broker's queue; in the place of a worker, which takes from the database."""

    def __init__(
        self,
        broker: Broker,
        queue: Queue,
        handle: Handle,
        telemetry: Telemetry,
        *,
        prefetch: int,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._may_send = may_send
        self._handle = handle
        self._handled = 0
        self._pump = Pump(broker, queue, self._count, telemetry, prefetch=prefetch)

    async def _count(self, message: Any) -> Verdict:
        verdict = await self._handle(message)
        self._handled += 1
        return verdict

    async def run(self) -> None:
        await self._pump.run()

    def wake(self) -> None:
        """A broker wakes whoever waits for it."""

    def pause(self) -> None:
        self._pump.pause()

    def resume(self) -> None:
        self._pump.resume()

    def stop(self) -> None:
        self._pump.stop()

    async def drain(self) -> int:
        """Until nothing waits in the queue or is under way, or nothing can be sent; how many came."""
        running = asyncio.create_task(self._pump.run())
        looks = 0
        while looks < _LOOKS and not running.done():
            await asyncio.sleep(_BETWEEN_LOOKS)
            looks = looks + 1 if await self._is_quiet() else 0
        self.stop()
        await running
        return self._handled

    async def _is_quiet(self) -> bool:
        if not self._may_send():
            return True
        return not self._pump.in_flight and not await self._broker.depth(self._queue)

    async def finish(self, deliverer: Awaitable[None] | None = None) -> None:
        """When the deliverer has come to its end: tell the broker of everything that was received."""
        await self._pump.drain(_LAST_ACKNOWLEDGEMENTS, after=deliverer)


class Line:
    def __init__(
        self,
        lane: Lane[Any],
        rows: Counted,
        database: Database,
        telemetry: Telemetry,
        *,
        channel: str,
        concurrency: int,
        slots: int,
        room: Room | None = None,
        weigh: Weigh | None = None,
        party: Party | None = None,
        longest_pause: float = 1.0,
        counted_as: str | None = None,
    ) -> None:
        self.lane = lane
        self.deliverer = Deliverer(
            traced(lane, telemetry.tracing),
            telemetry,
            concurrency=concurrency,
            slots=slots,
            room=room,
            weigh=weigh,
            party=party,
        )
        self.maintenance = Maintenance(lane, telemetry)
        self.backlog = Backlog(counted_as or lane.name, rows, telemetry)
        self._database = database
        self._telemetry = telemetry
        self._channel = channel
        self._longest_pause = longest_pause
        #: Makes what feeds the line, where that is a broker's queue.
        self.open_feed: Callable[[], Feed] | None = None
        self._feed: Feed | None = None
        self._worker: Worker | None = None

    def worker(self) -> Worker | Feed:
        _tune(self._database)
        if self.open_feed is not None:
            self._feed = self.open_feed()
            return self._feed
        self._worker = Worker(self.deliverer, self._telemetry, longest_pause=self._longest_pause)
        self._database.listen(self._channel, self._worker.wake)
        return self._worker

    @property
    def name(self) -> str:
        return self.lane.name

    async def pause(self) -> None:
        """Claim nothing more until `resume`. What has begun comes to its end, the rest is given back."""
        # First the queue, so that what is given back to it does not come here again.
        if self._feed is not None:
            self._feed.pause()
        self.deliverer.paused = True
        await self.deliverer.give_back_waiting()

    async def resume(self) -> None:
        self.deliverer.paused = False
        if self._feed is not None:
            self._feed.resume()
        if self._worker is not None:
            self._worker.wake()

    def claim_no_more(self) -> None:
        """The process is stopping, or has done what it was asked to."""
        self.deliverer.claim_no_more()
        if self._feed is not None:
            self._feed.stop()

    async def drain(self, grace: float) -> None:
        """Finish what has begun, within the grace time; give back everything else."""
        ending = self.deliverer.drain(grace)
        # Messages are kept from others while their rows are under way: whoever gets one whose row is still
        # locked drops it.
        await (self._feed.finish(ending) if self._feed is not None else ending)


def _tune(database: Database) -> None:
    """What makes the interpreter fit for a worker."""
    # What is in flight is large and rarely in cycles, and the collector would walk through it again and
    # again: with these figures it takes a tenth less of a webhook's time, and memory stays flat all the same.
    _raise_file_limit()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    if database.dialect == "sqlite":
        # Its thread asks for the interpreter's lock with every row it reads, and may wait this long for
        # it. Measured: a tenth of the usual interval delivers an eighth more mails; less costs again.
        sys.setswitchinterval(0.0005)


def _raise_file_limit() -> None:
    """A thousand webhooks at once are a thousand files, and the usual soft limit is about as much."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - Windows has none

        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
