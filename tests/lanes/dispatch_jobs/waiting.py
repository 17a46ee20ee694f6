"""Waiting for what comes about by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from homing.testing.http_sink import Answer, SinkRequest


async def until(condition: Callable[[], bool | Awaitable[bool]], patience: float = 60.0) -> None:
    """Look again and again until it is so."""
    async with asyncio.timeout(patience):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


class Crowd:
    """The most requests that were there at the same time.

    They stay for long until enough have met, so that also slow ones do, and then they are quick.
    """

    def __init__(self, seconds: float = 0.15, *, enough: int = 1000) -> None:
        self._seconds = seconds
        self._there = 0
        self.enough = enough
        self.peak = 0

    def __call__(self, _: SinkRequest) -> Answer:
        self._there += 1
        self.peak = max(self.peak, self._there)
        stays = self._seconds if self.peak < self.enough else 0.05
        # A little before the answer goes out, so that none is counted twice.
        asyncio.get_running_loop().call_later(stays - 0.02, self._leave)
        return Answer(delay=stays)

    def _leave(self) -> None:
        self._there -= 1
