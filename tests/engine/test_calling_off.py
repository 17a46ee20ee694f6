"""Called off, a task ends, also when a cancellation gets lost."""

from __future__ import annotations

import asyncio

import pytest
from tests.model.virtual_time import run_virtually

from homing.engine.calling_off import call_off


class Deaf:
    """A loop whose driver keeps some cancellations to itself."""

    def __init__(self, overhears: int) -> None:
        self.left = overhears

    async def run(self) -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if not self.left:
                    raise
                self.left -= 1


def test_who_overhears_it_is_called_off_again() -> None:
    async def scenario(_loop: asyncio.AbstractEventLoop) -> None:
        tasks = [asyncio.create_task(Deaf(overhears).run()) for overhears in (0, 1, 3)]
        await asyncio.sleep(1)
        await call_off(*tasks)
        assert all(task.cancelled() for task in tasks)

    run_virtually(scenario)


async def test_what_a_task_raised_is_raised() -> None:
    async def buggy() -> None:
        raise ZeroDivisionError

    task = asyncio.create_task(buggy())
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await call_off(task)


async def test_what_has_ended_is_no_matter() -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    await call_off(task)
    await call_off()
