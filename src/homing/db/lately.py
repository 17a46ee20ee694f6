"""An answer that serves for a while, for all who ask. What takes long is asked for beside whoever looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, ParamSpec, TypeVar

from homing.engine.model import Monotonic

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

#: Who looks again while an answer that takes more seconds than this is made gets the last one.
_LONGEST_WAIT = 0.05
_OLDEST_ANSWER = 60.0


class Lately(Generic[Given, Answer]):
    """`serves` says for how many seconds an answer is good, by how long it took to get.

    A last answer that is older than `oldest` seconds says little: then the new one is waited for.
    """

    def __init__(
        self,
        ask: Callable[Given, Awaitable[Answer]],
        serves: Callable[[float], float],
        monotonic: Monotonic = time.monotonic,
        *,
        oldest: float = _OLDEST_ANSWER,
    ) -> None:
        self._ask = ask
        self._serves = serves
        self._monotonic = monotonic
        self._oldest = oldest
        self._last: tuple[Answer] | None = None
        self._took, self._asked_at, self._next = 0.0, 0.0, 0.0
        self._asking: asyncio.Task[Answer] | None = None

    async def __call__(self, *given: Given.args, **named: Given.kwargs) -> Answer:
        now = self._monotonic()
        if self._last is not None and now < self._next:
            return self._last[0]
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._asked(*given, **named))
            self._asking.add_done_callback(_look_at)
        if self._last is not None and self._took > _LONGEST_WAIT and now - self._asked_at < self._oldest:
            return self._last[0]
        # Shielded: whoever gives up waiting must not end the wait of the others.
        return await asyncio.shield(self._asking)

    async def _asked(self, *given: Given.args, **named: Given.kwargs) -> Answer:
        began = self._monotonic()
        answer = await self._ask(*given, **named)
        self._last, self._asked_at = (answer,), self._monotonic()
        self._took = self._asked_at - began
        self._next = self._asked_at + self._serves(self._took)
        return answer


def _look_at(asking: asyncio.Task[Answer]) -> None:
    """Who waited for it was told what went wrong; where nobody did, the next look asks again."""
    if not asking.cancelled():
        asking.exception()
