"""Waiting for a lock that another process holds for longer than the database itself waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from homing.errors import Conflict

Result = TypeVar("Result")

#: How often it is waited for; each time for as long as the database waits.
_TRIES = 4


async def patiently(work: Callable[[], Awaitable[Result]]) -> Result:
    """Another program may hold its lock for seconds, or a fan-out to very many; nothing was written then."""
    for _ in range(_TRIES - 1):
        try:
            return await work()
        except Conflict:
            continue
    return await work()
