"""Values by id, kept for seconds: a change made in any process is seen in all of them soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from homing.engine.coalesce import Batched

Value = TypeVar("Value")

Load = Callable[[Sequence[int]], Awaitable[Sequence[Value | None]]]


class Cache(Generic[Value]):
    """Callers that miss together share one load. An age counts from when the load began, not from its end.

    What is not there is remembered for a shorter time, so that something new is found soon.
    """

    def __init__(
        self,
        load: Load[Value],
        *,
        keeps: float,
        keeps_missing: float,
        size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load: Batched[int, Value | None] = Batched(load)
        self._keeps, self._keeps_missing, self._size = keeps, keeps_missing, size
        self._clock = clock
        #: In the order in which they were loaded, so that the oldest goes first.
        self._entries: dict[int, _Entry[Value]] = {}

    async def get(self, id: int) -> Value | None:
        entry = self._entries.get(id)
        if entry is None or not self._is_fresh(entry):
            entry = self._begin(id)
        # A caller that gives up must not take the load away from the others.
        return entry.task.result() if entry.task.done() else await asyncio.shield(entry.task)

    def forget(self, id: int) -> None:
        """Also what is being loaded: it may have been read before the change."""
        self._entries.pop(id, None)

    def _is_fresh(self, entry: _Entry[Value]) -> bool:
        missing = entry.task.done() and entry.task.result() is None
        return self._clock() - entry.began < (self._keeps_missing if missing else self._keeps)

    def _begin(self, id: int) -> _Entry[Value]:
        entry = _Entry(self._clock(), asyncio.get_running_loop().create_task(self._loaded(id)))
        self._entries.pop(id, None)
        self._entries[id] = entry
        if len(self._entries) > self._size:
            del self._entries[next(iter(self._entries))]
        entry.task.add_done_callback(lambda task: self._drop_failed(id, task))
        return entry

    async def _loaded(self, id: int) -> Value | None:
        return await self._load(id)

    def _drop_failed(self, id: int, task: asyncio.Task[Value | None]) -> None:
        entry = self._entries.get(id)
        if (task.cancelled() or task.exception()) and entry is not None and entry.task is task:
            del self._entries[id]


class _Entry(Generic[Value]):
    __slots__ = ("began", "task")

    def __init__(self, began: float, task: asyncio.Task[Value | None]) -> None:
        self.began = began
        self.task = task
