"""An answer that serves for a while, for all who ask. What takes long is asked for beside whoever looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, ParamSpec, TypeVar

from msgspec import Struct

from homing.engine.model import Monotonic

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

#: Who looks again while an answer that takes more seconds than this is made gets the last one.
_LONGEST_WAIT = 0.05
_OLDEST_ANSWER = 60.0
#: An answer that is made in a second may have been for so many seconds before it is waited for again.
_AGE_FOR_A_SECOND = 100.0
#: What took no longer than that will hardly take so many seconds the next time.
_SURELY_SOON = 1.0
#: Counting may take this share of the database's time, no more.
_SHARE_FOR_COUNTING = 0.05


class Known(Struct, Generic[Answer], frozen=True):
    """The last answer, and for how many seconds it has been known."""

    answer: Answer
    age: float


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
        if self._last is not None and self._monotonic() < self._next:
            return self._last[0]
        asking = self._under_way(*given, **named)
        if self._last is not None and self._serves_meanwhile:
            return self._last[0]
        # Shielded: whoever gives up waiting must not end the wait of the others.
        return await asyncio.shield(asking)

    async def at_hand(
        self, patience: float, *given: Given.args, **named: Given.kwargs
    ) -> Known[Answer] | None:
        """For who cannot wait: a new answer if it comes within so many seconds, else the last, however old.

        None: there was none yet. The new one is made all the same, for the next who asks.
        """
        if self._last is None or self._monotonic() >= self._next:
            asking = self._under_way(*given, **named)
            await asyncio.wait({asking}, timeout=self._patience(patience))
            if asking.done():
                asking.result()
        if self._last is None:
            return None
        return Known(self._last[0], self._monotonic() - self._asked_at)

    @property
    def has_answered(self) -> bool:
        return self._last is not None

    @property
    def _serves_meanwhile(self) -> bool:
        """Whether the last answer will do while a new one is made: that takes its time, and it is not old.

        What is quickly made anew is old sooner: who looks once in half a minute gets what is, not what was.
        """
        oldest = min(self._oldest, self._took * _AGE_FOR_A_SECOND)
        is_young = self._monotonic() - self._asked_at < oldest
        return self._last is not None and self._took > _LONGEST_WAIT and is_young

    def _patience(self, patience: float) -> float:
        if self._last is not None and self._took <= _LONGEST_WAIT:
            return max(patience, _SURELY_SOON)
        return 0.0 if self._serves_meanwhile else patience

    def _under_way(self, *given: Given.args, **named: Given.kwargs) -> asyncio.Task[Answer]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._asked(*given, **named))
            self._asking.add_done_callback(_look_at)
        return self._asking

    async def _asked(self, *given: Given.args, **named: Given.kwargs) -> Answer:
        began = self._monotonic()
        answer = await self._ask(*given, **named)
        self._last, self._asked_at = (answer,), self._monotonic()
        self._took = self._asked_at - began
        self._next = self._asked_at + self._serves(self._took)
        return answer


def serves_for(took: float) -> float:
    """For how many seconds a count is good that took so long."""
    return took / _SHARE_FOR_COUNTING


def _look_at(asking: asyncio.Task[Answer]) -> None:
    """Who waited for it was told what went wrong; where nobody did, the next look asks again."""
    if not asking.cancelled():
        asking.exception()
