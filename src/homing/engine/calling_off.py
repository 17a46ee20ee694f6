"""Calling tasks off so that they really end."""

from __future__ import annotations

import asyncio
from typing import Any

#: Seconds after which a task that goes on is called off again.
_AGAIN_AFTER = 1.0


async def call_off(*tasks: asyncio.Task[Any]) -> None:
    """Until all have ended; what one of them raised is raised here.

    A cancellation that meets an answer can get lost on its way (`asyncio.wait_for` of Python 3.11, which
    drivers use): a loop that was called off only once would then go on for ever, and so would who waits.
    """
    going_on = set(tasks)
    while going_on:
        for task in going_on:
            task.cancel()
        _, going_on = await asyncio.wait(going_on, timeout=_AGAIN_AFTER)
    for task in tasks:
        if not task.cancelled():
            task.result()
