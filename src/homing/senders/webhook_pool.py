"""The connections of the webhook sender: kept for the next request, and never too many.

Whoever finds none free waits for his turn. Origins take turns, so that a busy one keeps nobody out, and a
connection that becomes free goes to whoever waits for it, not to whoever comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from homing.senders.webhook_connect import Connector
from homing.senders.webhook_failure import CLOSING, Failure, lost, no_connection
from homing.senders.webhook_head import Origin
from homing.senders.webhook_protocol import Connection, Deadline

#: Seconds a connection may idle; servers commonly hang up after a minute or more.
_KEEP_ALIVE = 20.0
_SWEEP = 5.0
#: Seconds to wait for the system to close sockets; it takes a turn of the loop.
_GOODBYE = 1.0
_UNUSED = lost(None)

#: Gets a connection, or None: leave to open one.
_Waiter: TypeAlias = asyncio.Future[Connection | None]


class _Shelf:
    """The connections to one origin."""

    __slots__ = ("idle", "open", "waiting")

    def __init__(self) -> None:
        #: The one that was used last is the last, and is used first.
        self.idle: list[Connection] = []
        #: How many there are: idle, busy, or being opened.
        self.open = 0
        #: In the order of their coming.
        self.waiting: dict[_Waiter, None] = {}


class ConnectionPool:
    def __init__(
        self, connector: Connector, *, per_origin: int, total: int, monotonic: Callable[[], float]
    ) -> None:
        self._connector = connector
        self._per_origin = per_origin
        self._total = total
        self._monotonic = monotonic
        self._shelves: dict[Origin, _Shelf] = {}
        self._open = 0
        #: Idle ones of all origins, the oldest first.
        self._idle: dict[Connection, None] = {}
        #: Origins that somebody waits for; whose turn is next comes first.
        self._turns: dict[_Shelf, None] = {}
        self._live: set[Connection] = set()
        self._sockets: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        #: The deadlines of those who wait for a connection: to bring them forward ends the wait.
        self._waits: set[asyncio.Timeout] = set()
        self._closed = False
        self._empty = asyncio.Event()

    # For the sender

    def take(self, origin: Origin) -> Connection | None:
        """A kept connection, if there is one. Ask at once: it may end at any await."""
        shelf = self._shelves.get(origin)
        while shelf is not None and shelf.idle:
            connection = shelf.idle[-1]
            if self._monotonic() - connection.since < _KEEP_ALIVE and connection.is_silent():
                shelf.idle.pop()
                del self._idle[connection]
                return connection
            connection.close(_UNUSED)
        return None

    async def open(self, origin: Origin, deadline: Deadline) -> Connection | Failure:
        """A connection that another one hands over, or a new one, or why there is none."""
        if self._closed:
            return CLOSING
        try:
            async with asyncio.timeout_at(deadline.at) as wait:
                self._waits.add(wait)
                try:
                    return await self._next(origin) or await self._new(origin)
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            return self._late(deadline)

    def _late(self, deadline: Deadline) -> Failure:
        return CLOSING if self._closed else no_connection(deadline.seconds)

    async def close(self) -> None:
        """End what is under way, and what waits."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now)
        for connection in list(self._live):
            connection.close(CLOSING)
        await self._all_closed()

    async def _all_closed(self) -> None:
        if self._sockets:
            self._empty.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self._empty.wait()

    # For connections

    def closed(self, connection: Connection) -> None:
        self._sockets.discard(connection)
        if not self._sockets:
            self._empty.set()

    def release(self, connection: Connection) -> None:
        shelf = self._shelves[connection.origin]
        waiter = None
        if self._turns and not self._is_needed_elsewhere(shelf):
            waiter = self._pick(shelf)
        if waiter is not None:
            self._hand_over(connection, shelf, waiter)
        elif self._turns and self._is_needed_elsewhere(shelf):
            connection.close(_UNUSED)
        else:
            self._shelve(shelf, connection)

    def _hand_over(self, connection: Connection, shelf: _Shelf, waiter: _Waiter) -> None:
        if connection.is_silent():
            waiter.set_result(connection)
        else:
            # The receiver is hanging up, so the place is worth more than the connection.
            self._enter(shelf)
            waiter.set_result(None)
            connection.close(_UNUSED)

    def gone(self, connection: Connection) -> None:
        if connection not in self._live:
            return
        self._live.discard(connection)
        shelf = self._shelves[connection.origin]
        if connection in self._idle:
            del self._idle[connection]
            shelf.idle.remove(connection)
        self._leave(connection.origin, shelf)

    # Idle ones

    def _shelve(self, shelf: _Shelf, connection: Connection) -> None:
        connection.since = self._monotonic()
        shelf.idle.append(connection)
        self._idle[connection] = None
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    def _sweep(self) -> None:
        """Close what has idled for too long."""
        before = self._monotonic() - _KEEP_ALIVE
        while self._idle and (oldest := next(iter(self._idle))).since <= before:
            oldest.close(_UNUSED)
        self._sweeper = None
        if self._idle:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    # Room for more

    async def _new(self, origin: Origin) -> Connection | Failure:
        """Open a connection in the room that was made for it."""
        opened: Connection | Failure | None = None
        try:
            opened = await self._connector.connect(origin, self)
        finally:
            if isinstance(opened, Connection) and opened.end is None:
                self._live.add(opened)
                self._sockets.add(opened)
            else:
                self._leave(origin, self._shelves[origin])
        return opened

    async def _next(self, origin: Origin) -> Connection | None:
        """Wait for a connection to be handed over (it comes) or for room to open one (None)."""
        shelf = self._shelves.get(origin)
        if shelf is None:
            shelf = self._shelves[origin] = _Shelf()
        if shelf.open < self._per_origin and self._has_room():
            self._enter(shelf)
            return None
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        shelf.waiting[waiter] = None
        self._turns.setdefault(shelf)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._withdraw(origin, shelf, waiter)
            raise

    def _has_room(self) -> bool:
        if self._open >= self._total and self._idle:
            next(iter(self._idle)).close(_UNUSED)
        return self._open < self._total

    def _enter(self, shelf: _Shelf) -> None:
        shelf.open += 1
        self._open += 1

    def _leave(self, origin: Origin, shelf: _Shelf) -> None:
        shelf.open -= 1
        self._open -= 1
        self._forget(origin, shelf)
        for candidate in list(self._turns):
            waiter = self._pick(candidate) if candidate.open < self._per_origin else None
            if waiter is not None:
                self._enter(candidate)
                waiter.set_result(None)
                return

    def _forget(self, origin: Origin, shelf: _Shelf) -> None:
        if not shelf.open and not shelf.waiting:
            self._shelves.pop(origin, None)

    # Turns

    def _is_needed_elsewhere(self, shelf: _Shelf) -> bool:
        """Whether an origin whose turn comes earlier waits for nothing but room."""
        if self._open < self._total:
            return False
        for candidate in self._turns:
            if candidate is shelf:
                return False
            if candidate.open < self._per_origin:
                return True
        return False

    def _pick(self, shelf: _Shelf) -> _Waiter | None:
        """Whose turn it is at an origin; its next turn comes after those of all others."""
        self._turns.pop(shelf, None)
        picked: _Waiter | None = None
        while shelf.waiting and picked is None:
            first = next(iter(shelf.waiting))
            del shelf.waiting[first]
            picked = None if first.done() else first
        if shelf.waiting:
            self._turns[shelf] = None
        return picked

    def _withdraw(self, origin: Origin, shelf: _Shelf, waiter: _Waiter) -> None:
        """Give up a place; what had been handed over meanwhile goes to the next."""
        shelf.waiting.pop(waiter, None)
        if not shelf.waiting:
            self._turns.pop(shelf, None)
        if waiter.cancelled() or not waiter.done():
            self._forget(origin, shelf)
            return
        connection = waiter.result()
        if connection is None:
            self._leave(origin, shelf)
        elif connection.end is None:
            self.release(connection)
