"""Figures that take their time: a page shows those at hand, and newer ones are made beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from homing.errors import DatabaseError

Value = TypeVar("Value")
#: Seconds that the first page waits for them.
_PATIENCE = 0.1


class Unhurried(Generic[Value]):
    def __init__(self, look: Callable[[], Awaitable[Value]]) -> None:
        self._look = look
        self._last: Value | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    async def at_hand(self) -> Value | None:
        """The newest that is known within a moment; None when nothing is, yet."""
        if self._is_closed:
            return self._last
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._refresh())
        await asyncio.wait({self._looking}, timeout=_PATIENCE)
        return self._last

    async def _refresh(self) -> None:
        try:
            self._last = await self._look()
        except DatabaseError:
            # The page tells of an outage by itself; what was known stays.
            return

    async def close(self) -> None:
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
