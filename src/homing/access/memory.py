"""What is kept in memory for seconds: rows that were looked up, and that somebody was seen."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from homing.engine.coalesce import Batched, Coalescer
from homing.engine.model import Monotonic
from homing.errors import DatabaseError, Unreachable

Value = TypeVar("Value")

#: Seconds. What is revoked anywhere is refused everywhere within 5.
KEPT = 2.0
#: Seconds between two writes of when a key or a session was last used.
SEEN_GAP = 60.0
_MOST_KEPT = 10_000


class Remembered(Generic[Value]):
    """Rows by a text, each at most `keeps` seconds old; those that miss together share one query."""

    def __init__(
        self,
        load: Callable[[Sequence[str]], Awaitable[Sequence[Value]]],
        *,
        keeps: float = KEPT,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._load = Batched(load)
        self._keeps, self._monotonic = keeps, monotonic
        #: Oldest first; with the moment at which its load began.
        self._entries: dict[str, tuple[float, Value]] = {}

    async def get(self, key: str, *, in_outage: float = 0.0) -> Value:
        """While the database is away, what was known `in_outage` seconds ago may do."""
        began = self._monotonic()
        known = self._entries.get(key)
        if known is not None and began - known[0] < self._keeps:
            return known[1]
        try:
            value = await self._load(key)
        except Unreachable:
            if known is not None and began - known[0] < in_outage:
                return known[1]
            raise
        self.forget(key)
        self._entries[key] = (began, value)
        if len(self._entries) > _MOST_KEPT:
            del self._entries[next(iter(self._entries))]
        return value

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)


class LastSeen:
    """Notes that a key or a session was used: at most once a minute each, many by one statement."""

    def __init__(
        self, write: Callable[[Sequence[str]], Awaitable[object]], monotonic: Monotonic = time.monotonic
    ) -> None:
        self._write, self._monotonic = write, monotonic
        self._noted: dict[str, float] = {}
        self._waiting: Coalescer[str] = Coalescer(self._flush)

    def note(self, key: str) -> None:
        now = self._monotonic()
        if now - self._noted.get(key, -SEEN_GAP) < SEEN_GAP:
            return
        if len(self._noted) > _MOST_KEPT:
            self._noted.clear()
        self._noted[key] = now
        self._waiting.put(key)

    async def drained(self) -> None:
        await self._waiting.drained()

    async def _flush(self, keys: Sequence[str]) -> None:
        try:
            await self._write(keys)
        except DatabaseError:
            # The next use says it again.
            for key in keys:
                self._noted.pop(key, None)
