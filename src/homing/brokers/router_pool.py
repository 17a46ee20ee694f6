"""A pool: so many messages at once, those of a group one after the other, and no more than it can hold."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from homing.brokers.base import Message
from homing.brokers.pointer import MessagePointer, Task, task_of
from homing.brokers.router_config import PoolConfig
from homing.brokers.router_reader import Reader
from homing.engine.model import Monotonic
from homing.engine.token_bucket import TokenBucket

#: What waits in a pool at the least, and how much for each that is processed at once.
_SHORTEST_BUFFER, _BUFFER_PER_WORKER = 50, 2


class Delivery:
    """A message on its way through the router."""

    __slots__ = ("group", "handed_out", "pointer", "reader", "trace")

    def __init__(self, pointer: MessagePointer, message: Message, reader: Reader) -> None:
        self.pointer = pointer
        self.reader = reader
        self.trace = message.trace
        #: It, and whatever else the broker handed out meanwhile that shares its fate.
        self.handed_out: list[tuple[Reader, Message]] = [(reader, message)]
        #: One that names no group is alone in its own.
        self.group: str | Task = pointer.message_group_id or message.group or task_of(pointer)

    @property
    def ids(self) -> set[str]:
        return {message.id for _, message in self.handed_out}


class Done(Struct, frozen=True, gc=False):
    """There is nothing more to do."""


class Later(Struct, frozen=True, gc=False):
    """It stays in its queue, hidden for so many seconds."""

    delay: float


class Pool:
    """`work` is called with each delivery; `give_back` with those that must wait for an earlier one."""

    def __init__(
        self,
        config: PoolConfig,
        work: Callable[[Pool, Delivery], Awaitable[Done | Later]],
        give_back: Callable[[Sequence[Delivery], float], None],
        made_room: Callable[[], None],
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self.config = config
        self._work = work
        self._give_back = give_back
        self._made_room = made_room
        self._monotonic = monotonic
        #: What waits, by group. A group that is being processed stays here while it does.
        self._groups: dict[str | Task, deque[Delivery]] = {}
        #: Groups that have something to do and nobody who does it, in the order of their turn.
        self._turns: deque[str | Task] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._buffered = 0
        self._timer: asyncio.TimerHandle | None = None
        self._rate = self._make_rate()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = False
        #: The most that were processed at the same time.
        self.peak = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def buffered(self) -> int:
        """Those that wait for their turn."""
        return self._buffered

    @property
    def room(self) -> int:
        most = max(_SHORTEST_BUFFER, _BUFFER_PER_WORKER * self.config.concurrency)
        return max(0, most - self._buffered - len(self._running))

    def resize(self, config: PoolConfig) -> None:
        """Takes effect with the next message; what is being processed is left alone."""
        if config == self.config:
            return
        renewed = config.rate_limit_per_minute != self.config.rate_limit_per_minute
        self.config = config
        if renewed:
            self._rate = self._make_rate()
            self._forget_timer()
        self._start()
        self._made_room()

    def _make_rate(self) -> TokenBucket | None:
        """Spread over the minute: after a quiet time at most what belongs to one second comes at once."""
        limit = self.config.rate_limit_per_minute
        if limit is None:
            return None
        return TokenBucket(limit / 60, max(1.0, limit / 60), self._monotonic)

    def put(self, delivery: Delivery) -> bool:
        """False when it does not fit."""
        if self._stopped or not self.room:
            return False
        group = delivery.group
        if group in self._groups:
            self._groups[group].append(delivery)
        else:
            self._groups[group] = deque([delivery])
            self._turns.append(group)
        self._buffered += 1
        self._idle.clear()
        self._start()
        return True

    # ── processing ───────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        while self._turns and len(self._running) < self.config.concurrency and not self._stopped:
            if self._rate is not None and (wait := self._rate.take()) > 0:
                self._start_in(wait)
                return
            group = self._turns.popleft()
            delivery = self._groups[group].popleft()
            self._buffered -= 1
            task = asyncio.get_running_loop().create_task(self._run(group, delivery))
            self._running.add(task)
            task.add_done_callback(self._ended)
            self.peak = max(self.peak, len(self._running))

    def _start_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._start_again)

    def _start_again(self) -> None:
        self._timer = None
        self._start()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run(self, group: str | Task, delivery: Delivery) -> None:
        fate: Done | Later = Later(0.0)
        try:
            fate = await self._work(self, delivery)
        finally:
            self._go_on(group, fate)

    def _go_on(self, group: str | Task, fate: Done | Later) -> None:
        waiting = self._groups[group]
        if isinstance(fate, Later) and waiting:
            # They come after it, so they come again after it.
            self._buffered -= len(waiting)
            self._give_back(list(waiting), fate.delay)
            waiting.clear()
        if waiting:
            self._turns.append(group)
        else:
            del self._groups[group]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()
        if not self._running and not self._buffered:
            self._idle.set()
        self._made_room()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    async def idle(self) -> None:
        """Returns when nothing is processed and nothing waits."""
        await self._idle.wait()

    def stop(self) -> None:
        """Begin nothing more, and give back what has not begun."""
        self._stopped = True
        self._forget_timer()
        waiting = [delivery for group in self._groups.values() for delivery in group]
        for group in self._groups.values():
            group.clear()
        for name in self._turns:
            del self._groups[name]
        self._turns.clear()
        self._buffered = 0
        if waiting:
            self._give_back(waiting, 0.0)
        if not self._running:
            self._idle.set()

    def resume(self) -> None:
        """After a `stop`: begin again with what comes."""
        self._stopped = False

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()
