"""Waiting for what comes about by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from homing.testing.http_sink import Answer, SinkRequest


async def until(condition: Callable[[], bool | Awaitable[bool]], patience: float = 20.0) -> None:
    """Look again and again until it is so."""
    async with asyncio.timeout(patience):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


class Crowd:
    """The most requests that were there at the same time."""

    def __init__(self, seconds: float = 0.15) -> None:
        self._seconds = seconds
        self._there = 0
        self.peak = 0

    def __call__(self, _: SinkRequest) -> Answer:
        self._there += 1
        self.peak = max(self.peak, self._there)
        # A little before the answer goes out, so that none is counted twice.
        asyncio.get_running_loop().call_later(self._seconds - 0.02, self._leave)
        return Answer(delay=self._seconds)

    def _leave(self) -> None:
        self._there -= 1
