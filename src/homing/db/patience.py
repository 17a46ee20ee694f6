"""Waiting for a lock that another process holds for longer than the database itself waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from homing.errors import Conflict

Result = TypeVar("Result")

#: How often it is waited for; each time for as long as the database waits.
_TRIES = 4
_FIRST_PAUSE = 0.25


def _nobody(_sentence: str) -> None: ...


class Patience(Struct, frozen=True):
    """Of whoever keeps others waiting while it waits: short tries, and pauses in which the others go on."""

    tries: int = 25
    longest_pause: float = 5.0
    #: Takes a sentence for a person, after each try that led to nothing but the last.
    tell: Callable[[str], None] = _nobody

    async def hold(self, what: str, work: Callable[[], Awaitable[Result]]) -> Result:
        pause = _FIRST_PAUSE
        for number in range(1, self.tries):
            try:
                return await work()
            except Conflict:
                self.tell(f"{what} waits: another program holds what it needs (try {number} of {self.tries})")
                await asyncio.sleep(pause)
                pause = min(2 * pause, self.longest_pause)
        return await work()


async def patiently(work: Callable[[], Awaitable[Result]]) -> Result:
    """Another program may hold its lock for seconds, or a fan-out to very many; nothing was written then."""
    for _ in range(_TRIES - 1):
        try:
            return await work()
        except Conflict:
            continue
    return await work()
