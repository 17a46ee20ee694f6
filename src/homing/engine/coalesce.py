"""Many small writes become few large ones, without waiting for company.

Whatever arrives while one flush is under way goes out with the next. A lone item is flushed at once;
under load a flush carries hundreds, and costs about as much as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from homing.errors import Unreachable

Entry = TypeVar("Entry")
Answer = TypeVar("Answer")


class Coalescer(Generic[Entry]):
    """Hands what was `put` to `flush`, in batches of at most `limit`, one flush at a time.

    `flush` owns its failures: it retries or resolves what it was given, and does not raise.
    """

    def __init__(self, flush: Callable[[Sequence[Entry]], Awaitable[None]], limit: int = 500) -> None:
        self._flush = flush
        self._limit = limit
        self._waiting: list[Entry] = []
        self._running: asyncio.Task[None] | None = None

    def put(self, entry: Entry) -> None:
        self._waiting.append(entry)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def drained(self) -> None:
        """Wait until nothing is waiting and nothing is being written."""
        while self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                await self._flush(batch)
        finally:
            self._running = None


class Batched(Generic[Entry, Answer]):
    """Calls that arrive together become one call with all of them; each caller gets its own answer.

    When a batch is refused, each of its entries is tried alone, so that a bad one fails alone. When the
    connection was lost nobody knows whether the batch took effect, and doing it again could do it twice.
    """

    def __init__(
        self, call: Callable[[Sequence[Entry]], Awaitable[Sequence[Answer]]], limit: int = 500
    ) -> None:
        self._call = call
        self._calls: Coalescer[tuple[Entry, asyncio.Future[Answer]]] = Coalescer(self._flush, limit)

    async def __call__(self, entry: Entry) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._calls.put((entry, answer))
        return await answer

    async def _flush(self, calls: Sequence[tuple[Entry, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._call([entry for entry, _ in calls])
        except Exception as error:  # noqa: BLE001 - it is handed to the callers, one by one
            await self._answer_alone(calls, error)
        else:
            for (_, future), answer in zip(calls, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def _answer_alone(
        self, calls: Sequence[tuple[Entry, asyncio.Future[Answer]]], error: Exception
    ) -> None:
        if len(calls) > 1 and not isinstance(error, Unreachable):
            for call in calls:
                await self._flush([call])
            return
        for _, future in calls:
            if not future.done():
                future.set_exception(error)
