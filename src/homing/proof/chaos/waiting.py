"""Waiting for what other processes do, which nobody announces to us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

TICK = 0.05


async def until(condition: Callable[[], Awaitable[bool]], patience: float = float("inf")) -> bool:
    """Look again and again until it is so; False when the patience ended first."""
    deadline = time.monotonic() + patience
    while True:
        if await condition():
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(TICK)
