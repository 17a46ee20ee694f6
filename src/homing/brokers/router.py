"""The message router: from queues to pools, and from there to whoever can process a message.

It has no tables and remembers nothing. A message points to a task, the mediator is asked to do it, and by
what the mediator answers the message is deleted (200) or shows up again (400: after as long as it says).
One whose token our own endpoint refuses is deleted as well: it would hold up its group for ever.
Everything else leaves the message where it is, with a warning: a message too many does no harm, since the
one who does the task knows whether it is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from msgspec import Struct

from homing.brokers.base import Broker, Message, Queue
from homing.brokers.pointer import Malformed, MessagePointer, Task, decode_pointer, task_of
from homing.brokers.router_config import (
    DEFAULT_POOL,
    DEFAULT_POOL_CONCURRENCY,
    PoolConfig,
    QueueConfig,
    RouterConfig,
)
from homing.brokers.router_pool import Delivery, Done, Later, Pool
from homing.brokers.router_reader import BATCH, Reader
from homing.db.plain import plain
from homing.errors import DatabaseError
from homing.telemetry import Telemetry

#: How long one call waits for messages. A stop waits for such a call, so that it brings nothing that is lost.
LONG_POLL = 5.0
#: A change of the configuration is seen after so long, also where nobody announced it.
CONFIG_EVERY = 2.0
#: What a mediator that says nothing of a delay, or fails, is spared.
_AFTER_FAILURE = 30.0
#: What does not fit comes again soon, but not before what stands behind it was seen: that may be for another
#: pool, which has room.
_NO_ROOM = 5.0
#: SQS hides a message for twelve hours at most; what must wait longer comes, and is told to wait again.
_LONGEST_DELAY = 11 * 3600.0
#: A queue's messages may come back for days; who ends them is the database.
_DELIVERY_LIMIT = 1000
_MOST_WARNINGS = 200
_LONGEST_WARNING = 500
#: Seconds that a stop waits for what was called off.
_LAST_CALLS = 2.0


class Mediated(Struct, frozen=True, gc=False):
    """What the mediator said. None for the status: nothing came back."""

    status: int | None
    #: False beside a 200: not yet.
    ack: bool = True
    delay_seconds: float | None = None
    #: For the log; nothing secret in it.
    message: str = ""
    #: Its token is wrong and stays so: the message is deleted, and says so in a warning.
    is_refused: bool = False


Mediate: TypeAlias = Callable[[MessagePointer], Awaitable[Mediated]]
WarningKind: TypeAlias = Literal["malformed", "unknown_pool", "mediation_failed", "refused_token"]


class RouterWarning(Struct, frozen=True, rename="camel"):
    at: datetime
    kind: WarningKind
    queue: str
    detail: str


class PoolStatus(Struct, frozen=True, rename="camel"):
    code: str
    concurrency: int
    running: int
    buffered: int
    #: The most that it ran at once since it was made.
    peak: int


class Router:
    """One process's router. `configure` is asked for the configuration again and again."""

    def __init__(
        self,
        broker: Broker,
        mediate: Mediate,
        configure: Callable[[], Awaitable[RouterConfig]],
        telemetry: Telemetry,
        *,
        visibility: float = 30.0,
        wait: float = LONG_POLL,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._broker = broker
        self._mediate = mediate
        self._configure = configure
        self._telemetry = telemetry
        self._visibility = visibility
        self._wait = wait
        self._clock = clock
        self._config: RouterConfig | None = None
        self._pools: dict[str, Pool] = {}
        #: Those that the configuration no longer has, until they are empty.
        self._leaving: set[Pool] = set()
        self._readers: dict[_ReaderKey, Reader] = {}
        self._reading: set[asyncio.Task[None]] = set()
        #: By their task: two messages for one task are not processed side by side.
        self._in_flight: dict[Task, Delivery] = {}
        self._unknown_pools: set[str] = set()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._stopping = False
        self._paused = False
        #: The last things that somebody should look at.
        self.warnings: deque[RouterWarning] = deque(maxlen=_MOST_WARNINGS)

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """The configuration may have changed: look now."""
        self._changed.set()

    def stop(self) -> None:
        """Receive nothing more; `run` returns soon after, and `drain` ends what has begun."""
        self._stopping = True
        self._changed.set()
        for reader in self._readers.values():
            reader.stop()

    async def pause(self) -> None:
        """Receive nothing until `resume`. What is processed comes to its end, what waits is given back."""
        self._paused = True
        for reader in self._readers.values():
            reader.pause()
        for pool in (*self._pools.values(), *self._leaving):
            pool.stop()

    async def resume(self) -> None:
        self._paused = False
        for pool in self._pools.values():
            pool.resume()
        for reader in self._readers.values():
            reader.resume()
        self._note_room()

    async def run(self) -> None:
        while not self._stopping:
            self._changed.clear()
            await self._reconfigure()
            with suppress(TimeoutError):
                async with asyncio.timeout(CONFIG_EVERY):
                    await self._changed.wait()

    async def drain(self, grace: float) -> None:
        """Give back what has not begun, let the rest end within the grace time, call off what does not."""
        self.stop()
        pools = [*self._pools.values(), *self._leaving]
        for pool in pools:
            pool.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(pool.idle() for pool in pools))
        for pool in pools:
            pool.cancel()
        if self._reading:
            await asyncio.wait(self._reading, timeout=self._wait + _LAST_CALLS)
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    def status(self) -> list[PoolStatus]:
        return [
            PoolStatus(pool.config.code, pool.config.concurrency, pool.running, pool.buffered, pool.peak)
            for pool in self._pools.values()
        ]

    # ── configuration ────────────────────────────────────────────────────────────────────────────

    async def _reconfigure(self) -> None:
        try:
            config = await self._configure()
        except DatabaseError as error:
            # The last one holds on: what is in the queues has nothing to do with it.
            self._telemetry.log.warning("router.unconfigured", error=str(error))
            return
        except Exception as bug:  # noqa: BLE001 - a configuration that we cannot read must not end the router
            self._telemetry.crashed("router.unconfigured", bug)
            return
        if config != self._config and not self._stopping:
            self._apply(config)

    def _apply(self, config: RouterConfig) -> None:
        self._config = config
        self._unknown_pools.clear()
        self._apply_pools({pool.code: pool for pool in config.processing_pools})
        self._apply_queues(_reader_keys(config))
        self._note_room()
        self._telemetry.log.info(
            "router.configured",
            queues=[queue.label for queue in config.queues],
            pools={pool.code: pool.concurrency for pool in config.processing_pools},
        )

    def _apply_pools(self, wanted: Mapping[str, PoolConfig]) -> None:
        for code in self._pools.keys() - wanted.keys() - {DEFAULT_POOL}:
            self._leave(self._pools.pop(code))
        for code, config in wanted.items():
            if code in self._pools:
                self._pools[code].resize(config)
            else:
                self._pools[code] = self._make_pool(config)

    def _make_pool(self, config: PoolConfig) -> Pool:
        pool = Pool(config, self._work, self._return, self._note_room)
        self._telemetry.router_pool(config.code, lambda: self._running_in(config.code))
        if self._paused:
            pool.stop()
        return pool

    def _running_in(self, code: str) -> int:
        return self._pools[code].running if code in self._pools else 0

    def _leave(self, pool: Pool) -> None:
        """It gets nothing more, and what it has comes to its end."""
        self._leaving.add(pool)
        leaving = asyncio.get_running_loop().create_task(pool.idle())
        leaving.add_done_callback(lambda _: self._leaving.discard(pool))
        self._reading.add(leaving)
        leaving.add_done_callback(self._reading.discard)

    def _apply_queues(self, wanted: Mapping[_ReaderKey, QueueConfig]) -> None:
        for key in self._readers.keys() - wanted.keys():
            # It ends by itself when all that it holds is told of.
            self._readers.pop(key).stop()
        for key in wanted.keys() - self._readers.keys():
            reader = self._readers[key] = self._make_reader(key, wanted[key])
            if self._paused:
                reader.pause()
            reading = asyncio.get_running_loop().create_task(reader.run())
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)

    def _make_reader(self, key: _ReaderKey, config: QueueConfig) -> Reader:
        return Reader(
            self._broker,
            queue_of(config.queue_uri, self._visibility),
            label=config.label,
            prefetch=key.prefetch,
            route=self._route,
            has_room=self._has_room.wait,
            telemetry=self._telemetry,
            wait=self._wait,
        )

    # ── in ───────────────────────────────────────────────────────────────────────────────────────

    def _route(self, reader: Reader, messages: Sequence[Message]) -> int:
        """How many were taken in, or are done with already."""
        refused: set[tuple[str, str | Task]] = set()
        taken_in = sum(self._take_in(reader, message, refused) for message in messages)
        self._note_room()
        return taken_in

    def _take_in(self, reader: Reader, message: Message, refused: set[tuple[str, str | Task]]) -> bool:
        pointer = decode_pointer(message.body)
        if isinstance(pointer, Malformed):
            self._warn("malformed", reader, f"message {message.id}: {pointer.reason}")
            self._count("", "malformed")
            reader.done(message)
        elif (known := self._in_flight.get(task_of(pointer))) is not None:
            self._meet_again(known, reader, message)
        else:
            return self._put(Delivery(pointer, message, reader), refused)
        return True

    def _put(self, delivery: Delivery, refused: set[tuple[str, str | Task]]) -> bool:
        """Where one of a group did not fit, those after it in the batch do not go in before it."""
        pool = self._pool_for(delivery)
        key = (pool.config.code, delivery.group)
        self._in_flight[task_of(delivery.pointer)] = delivery
        if key not in refused and pool.put(delivery):
            return True
        refused.add(key)
        self._count(pool.config.code, "no_room")
        self._end(delivery, Later(0.0 if self._stopping or self._paused else _NO_ROOM))
        return False

    def _pool_for(self, delivery: Delivery) -> Pool:
        code = delivery.pointer.pool_code
        pool = self._pools.get(code)
        if pool is not None:
            return pool
        if code not in self._unknown_pools and len(self._unknown_pools) < _MOST_WARNINGS:
            self._unknown_pools.add(code)
            self._warn("unknown_pool", delivery.reader, f"there is no pool {code}; {DEFAULT_POOL} serves it")
        if DEFAULT_POOL not in self._pools:
            self._pools[DEFAULT_POOL] = self._make_pool(PoolConfig(DEFAULT_POOL, DEFAULT_POOL_CONCURRENCY))
        return self._pools[DEFAULT_POOL]

    def _meet_again(self, known: Delivery, reader: Reader, message: Message) -> None:
        if message.id not in known.ids and message.deliveries == 1:
            # Another message for a task that is at hand: one of them is enough.
            self._count(known.pointer.pool_code, "duplicate")
            reader.done(message)
            return
        # It may be the same message, which the broker had thought lost; then only its new receipt counts. It
        # may be another one as well, since not every message has a name of its own. So both are told of.
        known.handed_out.append((reader, message))

    def _note_room(self) -> None:
        if not self._pools or any(pool.room >= BATCH for pool in self._pools.values()):
            self._has_room.set()
        else:
            self._has_room.clear()

    # ── process ──────────────────────────────────────────────────────────────────────────────────

    async def _work(self, pool: Pool, delivery: Delivery) -> Done | Later:
        fate: Done | Later = Later(0.0)
        try:
            with self._telemetry.tracing.mediating(pool.config.code, delivery.trace):
                answer = await self._mediate(delivery.pointer)
            fate = self._judge(pool, delivery, answer)
        except Exception as bug:  # noqa: BLE001 - a bug costs this message a delay, and the others nothing
            self._telemetry.crashed("router.mediation_crashed", bug, pool=pool.config.code)
            self._count(pool.config.code, "failed")
            fate = Later(_AFTER_FAILURE)
        finally:
            self._end(delivery, fate)
        return fate

    def _judge(self, pool: Pool, delivery: Delivery, answer: Mediated) -> Done | Later:
        code = pool.config.code
        if answer.is_refused:
            self._count(code, "refused")
            self._warn("refused_token", delivery.reader, _said(delivery, answer))
            return Done()
        if answer.status == 200 and answer.ack:
            self._count(code, "done")
            return Done()
        delay = _AFTER_FAILURE if answer.delay_seconds is None else answer.delay_seconds
        if answer.status in {200, 400}:
            self._count(code, "later")
            return Later(min(max(delay, 0.0), _LONGEST_DELAY))
        self._count(code, "failed")
        self._warn("mediation_failed", delivery.reader, _said(delivery, answer))
        return Later(_AFTER_FAILURE)

    def _return(self, deliveries: Sequence[Delivery], delay: float) -> None:
        for delivery in deliveries:
            self._end(delivery, Later(delay))

    def _end(self, delivery: Delivery, fate: Done | Later) -> None:
        self._in_flight.pop(task_of(delivery.pointer), None)
        for reader, message in delivery.handed_out:
            if isinstance(fate, Done):
                reader.done(message)
            else:
                reader.later(message, fate.delay)

    # ── tell ─────────────────────────────────────────────────────────────────────────────────────

    def _count(self, pool: str, outcome: str) -> None:
        # Codes come from messages: whoever can write to a queue must not fill the memory of Prometheus.
        self._telemetry.routed(pool if pool in self._pools else "", outcome)

    def _warn(self, kind: WarningKind, reader: Reader, detail: str) -> None:
        # Parts of it are words of a message, or of another server: they go into a database, and onto a page.
        told = plain(detail, _LONGEST_WARNING)
        self.warnings.append(RouterWarning(self._clock(), kind, reader.label, told))
        self._telemetry.log.warning("router.warned", kind=kind, queue=reader.label, detail=told)


def _said(delivery: Delivery, answer: Mediated) -> str:
    said = "no answer" if answer.status is None else f"HTTP {answer.status}"
    return f"{delivery.pointer.id}: {said} {answer.message}".rstrip()


def queue_of(uri: str, visibility: float) -> Queue:
    """The same for who sends and who reads: a broker may refuse a queue that is described differently."""
    return Queue(uri, delivery_limit=_DELIVERY_LIMIT, visibility=visibility)


class _ReaderKey(Struct, frozen=True):
    """What makes a reader another one."""

    queue_uri: str
    connection: int
    prefetch: int


def _reader_keys(config: RouterConfig) -> dict[_ReaderKey, QueueConfig]:
    """As many messages in hand as the pools can hold: what a pool cannot take is for other processes."""
    prefetch = max(100, 2 * sum(pool.concurrency for pool in config.processing_pools))
    return {
        _ReaderKey(queue.queue_uri, number, prefetch): queue
        for queue in config.queues
        for number in range(queue.connections or config.connections)
    }
