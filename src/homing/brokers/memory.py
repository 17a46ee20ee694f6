"""`memory://`: a broker inside one process, with the manners of SQS FIFO.

Whoever opens the same URL in one process meets in the same queues; when the last of them has closed, the
queues are gone. Nothing is lost by that: what matters is in the database.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterable, Sequence
from itertools import count, takewhile
from uuid import uuid4

from homing.brokers.base import Depth, Message, Publication, Queue
from homing.engine.model import Failure, Monotonic
from homing.tracing import Trace

#: As in SQS: so long a message with the same `dedup` is taken for the same one.
_DEDUP_SECONDS = 300.0

_OVER_LIMIT = "delivery_limit"


class _Entry:
    """A message in a queue, waiting or held."""

    __slots__ = ("body", "deliveries", "holder", "id", "line", "number", "reason", "token", "trace", "until")

    def __init__(
        self, number: int, line: _Line, body: bytes, reason: str | None, trace: Trace | None
    ) -> None:
        self.id = uuid4().hex
        self.number = number
        self.line = line
        self.body = body
        self.reason = reason
        self.trace = trace
        self.deliveries = 0
        #: Who received it; None while it waits or is delayed.
        self.holder: MemoryConsumer | None = None
        #: What the present holder has to show. Every hand-out has its own.
        self.token = 0
        #: When it is offered again, unless its holder says something before.
        self.until = 0.0

    def __lt__(self, other: _Entry) -> bool:
        return self.number < other.number


class _Line:
    """The messages of one group; one without a group is alone in its line.

    While one of them is held or delayed the others wait: that keeps the order.
    """

    __slots__ = ("group", "held", "is_offered", "place", "waiting")

    def __init__(self, place: _MemoryQueue, group: str | None) -> None:
        self.place = place
        self.group = group
        self.is_offered = False
        self.waiting: list[_Entry] = []
        self.held: set[_Entry] = set()


class _MemoryQueue:
    def __init__(self, monotonic: Monotonic) -> None:
        self._monotonic = monotonic
        self._numbers = count()
        self._tokens = count(1)
        self._groups: dict[str, _Line] = {}
        #: Lines that may be taken from, the one with the oldest message first.
        self._ready: list[tuple[int, _Line]] = []
        #: When held messages are to be offered again; an entry may be in it more than once.
        self._deadlines: list[tuple[float, _Entry]] = []
        self._seen: dict[str, float] = {}
        self._waiters: set[asyncio.Future[None]] = set()
        self.depth = 0

    # ── in ───────────────────────────────────────────────────────────────────────────────────────

    def put(self, publication: Publication, reason: str | None = None) -> None:
        if publication.dedup is not None and self._is_repeated(publication.dedup):
            return
        line = self._line(publication.group)
        entry = _Entry(next(self._numbers), line, publication.body, reason, publication.trace)
        self._wait_in(line, entry)

    def _is_repeated(self, dedup: str) -> bool:
        now = self._monotonic()
        # The oldest stand first, so that this ends at the first that still counts.
        for key in list(takewhile(lambda key: self._seen[key] + _DEDUP_SECONDS <= now, self._seen)):
            del self._seen[key]
        if dedup in self._seen:
            return True
        self._seen[dedup] = now
        return False

    def _line(self, group: str | None) -> _Line:
        if group is None:
            return _Line(self, None)
        if group not in self._groups:
            self._groups[group] = _Line(self, group)
        return self._groups[group]

    def _wait_in(self, line: _Line, entry: _Entry) -> None:
        heapq.heappush(line.waiting, entry)
        self.depth += 1
        self._offer(line)

    def _offer(self, line: _Line) -> None:
        if line.held or line.is_offered:
            return
        if line.waiting:
            line.is_offered = True
            heapq.heappush(self._ready, (line.waiting[0].number, line))
            self._wake()
        elif line.group is not None:
            del self._groups[line.group]

    # ── out ──────────────────────────────────────────────────────────────────────────────────────

    def take(self, limit: int, queue: Queue, holder: MemoryConsumer) -> tuple[list[_Entry], list[_Entry]]:
        """What is handed out now, and what came back too often and is handed out no more."""
        self._reveal()
        taken: list[_Entry] = []
        too_often: list[_Entry] = []
        while self._ready and len(taken) < limit:
            _, line = heapq.heappop(self._ready)
            line.is_offered = False
            for entry in self._take_from(line, limit - len(taken)):
                is_spent = queue.dead_letters is not None and entry.deliveries >= queue.delivery_limit
                (too_often if is_spent else taken).append(entry)
                if not is_spent:
                    self._hold(entry, queue.visibility, holder)
            self._offer(line)
        return taken, too_often

    def _take_from(self, line: _Line, limit: int) -> list[_Entry]:
        """Several of a group may go out together, as they do in SQS: their receiver sees the order."""
        entries = [heapq.heappop(line.waiting) for _ in range(min(limit, len(line.waiting)))]
        self.depth -= len(entries)
        return entries

    def _hold(self, entry: _Entry, seconds: float, holder: MemoryConsumer) -> None:
        entry.deliveries += 1
        entry.holder = holder
        entry.token = next(self._tokens)
        entry.line.held.add(entry)
        self.hide(entry, seconds)

    def hide(self, entry: _Entry, seconds: float) -> None:
        entry.until = self._monotonic() + seconds
        heapq.heappush(self._deadlines, (entry.until, entry))

    def measure(self) -> Depth:
        self._reveal()
        hidden = {entry for _, entry in self._deadlines if entry in entry.line.held}
        held = sum(entry.holder is not None for entry in hidden)
        return Depth(self.depth, held, len(hidden) - held)

    def _reveal(self) -> None:
        now = self._monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, entry = heapq.heappop(self._deadlines)
            if entry in entry.line.held and entry.until <= now:
                self.offer_again(entry)

    def offer_again(self, entry: _Entry) -> None:
        self.let_go(entry)
        entry.line.held.discard(entry)
        self._wait_in(entry.line, entry)

    def let_go(self, entry: _Entry) -> None:
        """Nobody has it any more, though it is not offered yet: the receipt is void."""
        if entry.holder is not None:
            entry.holder.held.discard(entry)
        entry.holder = None
        entry.token = 0
        self._wake()

    def remove(self, entry: _Entry) -> None:
        self.let_go(entry)
        entry.line.held.discard(entry)
        self._offer(entry.line)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────

    async def changed(self, seconds: float) -> None:
        """Wait until something was put, given back or revealed, or the time is over."""
        if self._deadlines:
            seconds = min(seconds, self._deadlines[0][0] - self._monotonic())
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait_for(waiter, max(seconds, 0.0))
        except TimeoutError:
            return
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


class _Hall:
    """The queues behind one URL, and how many have it open."""

    def __init__(self, monotonic: Monotonic) -> None:
        self._monotonic = monotonic
        self.queues: dict[str, _MemoryQueue] = {}
        self.users = 0

    def queue(self, name: str) -> _MemoryQueue:
        if name not in self.queues:
            self.queues[name] = _MemoryQueue(self._monotonic)
        return self.queues[name]


_halls: dict[str, _Hall] = {}


class MemoryBroker:
    """One of those who use the queues behind a URL."""

    def __init__(self, url: str = "memory://", monotonic: Monotonic = time.monotonic) -> None:
        self._url = url
        self.hall = _halls.setdefault(url, _Hall(monotonic))
        self.hall.users += 1
        self._is_open = True

    @property
    def name(self) -> str:
        return "memory"

    async def publish(self, queue: Queue, publications: Sequence[Publication]) -> Sequence[Failure | None]:
        place = self.hall.queue(queue.name)
        for publication in publications:
            place.put(publication)
        return [None] * len(publications)

    async def consume(self, queue: Queue, prefetch: int) -> MemoryConsumer:
        return MemoryConsumer(self.hall, queue, prefetch)

    async def find(self, named: str, among: Sequence[str]) -> str | None:
        return named if named in among else None

    async def depth(self, queue: Queue) -> int | None:
        return self.hall.queue(queue.name).depth

    async def measure(self, queue: Queue) -> Depth | None:
        place = self.hall.queues.get(queue.name)
        return Depth(0, 0, 0) if place is None else place.measure()

    async def check(self) -> Failure | None:
        return None

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self.hall.users -= 1
        if not self.hall.users:
            _halls.pop(self._url, None)


class MemoryConsumer:
    def __init__(self, hall: _Hall, queue: Queue, prefetch: int) -> None:
        self._hall = hall
        self._queue = queue
        self._prefetch = prefetch
        self.held: set[_Entry] = set()

    @property
    def _place(self) -> _MemoryQueue:
        """Looked up each time: the queue may have been deleted, and then it is made again."""
        return self._hall.queue(self._queue.name)

    async def receive(self, limit: int, wait: float) -> list[Message]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            messages = self._take(min(limit, self._prefetch - len(self.held)))
            left = deadline - loop.time()
            if messages or left <= 0:
                # Others of the same loop get their turn even when there is always something here.
                await asyncio.sleep(0)
                return messages
            await self._place.changed(left)

    def _take(self, limit: int) -> list[Message]:
        taken, too_often = self._place.take(limit, self._queue, self)
        for entry in too_often:
            self._to_dead_letters(entry, _OVER_LIMIT)
        self.held.update(taken)
        return [_message(entry) for entry in taken]

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        for entry in self._mine(messages):
            entry.line.place.remove(entry)

    async def give_back(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        for entry in self._mine(messages):
            place = entry.line.place
            if delay > 0:
                place.let_go(entry)
                place.hide(entry, delay)
            else:
                place.offer_again(entry)

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        for entry in self._mine(messages):
            entry.line.place.hide(entry, seconds)

    async def bury(self, message: Message, reason: str) -> None:
        for entry in self._mine([message]):
            entry.line.place.remove(entry)
            self._to_dead_letters(entry, reason)

    def _to_dead_letters(self, entry: _Entry, reason: str) -> None:
        if self._queue.dead_letters is not None:
            place = self._hall.queue(self._queue.dead_letters)
            place.put(Publication(entry.body, entry.line.group, trace=entry.trace), reason)

    def _mine(self, messages: Iterable[Message]) -> list[_Entry]:
        """Those that this consumer still holds, by the very receipts that it shows."""
        receipts = [message.receipt for message in messages]
        return [entry for entry, token in receipts if entry.holder is self and entry.token == token]

    async def rest(self) -> None:
        """Nothing is fetched that nobody asks for."""

    async def close(self) -> None:
        for entry in sorted(self.held):
            entry.line.place.offer_again(entry)


def _message(entry: _Entry) -> Message:
    return Message(
        entry.id,
        entry.body,
        entry.line.group,
        entry.deliveries,
        entry.reason,
        (entry, entry.token),
        entry.trace,
    )
