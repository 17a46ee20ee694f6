"""A process at work, inside of the test, as `homing work` runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from homing.app import Homing
from homing.service import Stop, run
from homing.workers.model import LaneReport, WorkerView


@asynccontextmanager
async def at_work(homing: Homing, lanes: Sequence[str], *, api: bool = False) -> AsyncIterator[str]:
    """Its address, where it serves."""
    stop, ready = Stop(), asyncio.get_running_loop().create_future()
    service = asyncio.create_task(run(homing, stop, api=api, work=lanes, ready=ready.set_result))
    await asyncio.wait({service, ready}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield ready.result() if ready.done() else ""
    finally:
        stop.ask()
        await service


async def only_worker(homing: Homing) -> WorkerView:
    (worker,) = await homing.fleet.workers()
    return worker


async def lane_report(homing: Homing, lane: str) -> LaneReport:
    worker = await only_worker(homing)
    return next(report for report in worker.report.lanes if report.lane == lane)
