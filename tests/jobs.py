"""A Homing with a receiver on loopback, and plain SQL on its tables, as another program would use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client import CollectorRegistry
from tests.outbox import LogLines
from tests.tables import Tables

from homing.app import Homing
from homing.engine.deliver import Deliverer
from homing.engine.model import Claim, Settlement
from homing.lanes.dispatch_jobs.job import OPEN, Job, NewJob
from homing.lanes.dispatch_jobs.jobs import DispatchJobs, Ordered
from homing.lanes.dispatch_jobs.lane import DispatchJobsLane
from homing.lanes.dispatch_jobs.target import target_of
from homing.settings import load_settings
from homing.telemetry import Telemetry, make_logger

#: What time brings nearer, by table.
_TIMES = {
    "dispatch_job": ("next_attempt_at", "lease_expires_at", "expires_at", "scheduled_for"),
    "homing_target": ("paused_until", "open_until", "endpoint_until", "well_at", "tokens_at"),
}


class JobBench:
    """What a test of the lane holds in its hands."""

    def __init__(self, homing: Homing, log: LogLines) -> None:
        self.homing = homing
        self.log = log

    @property
    def jobs(self) -> DispatchJobs:
        return self.homing.jobs

    @property
    def lane(self) -> DispatchJobsLane:
        assert isinstance(self.homing.webhooks.lane, DispatchJobsLane)
        return self.homing.webhooks.lane

    @property
    def deliverer(self) -> Deliverer:
        return self.homing.webhooks.deliverer

    @property
    def tables(self) -> Tables:
        return Tables(self.homing.jobs_database)

    async def sql(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """Run plain SQL with `:name` parameters, outside of everything Homing knows."""
        return await self.tables.sql(statement, **parameters)

    async def create(self, url: str, count: int = 1, **columns: Any) -> list[int]:
        """Jobs as the API would store them."""
        return [ordered.id for ordered in await self.order([job(url, **columns) for _ in range(count)])]

    async def order(self, jobs: Sequence[NewJob]) -> list[Ordered]:
        return await self.jobs.enqueue(jobs)

    async def row(self, id: int) -> dict[str, Any]:
        found = await self.jobs.get(id)
        assert found is not None
        return dict(found)

    async def states(self, ids: Sequence[int]) -> list[str]:
        return [(await self.row(id))["status"] for id in ids]

    async def attempts(self, id: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.jobs.attempts(id)]

    async def run_batch(self, limit: int = 100) -> dict[int, Settlement | None]:
        """Claim what is due and wait for its end."""
        settled = await self.deliverer.settled(await self.deliverer.run_batch(limit))
        await self.jobs.judged()
        return settled

    async def claim(self, limit: int = 100) -> list[Claim[Job]]:
        return await self.jobs.claim(limit)

    async def make_due(self) -> None:
        """What waits for its next attempt need not be waited for."""
        now = await self.tables.now()
        for status in OPEN:
            await self.tables.change("dispatch_job", {"next_attempt_at": now}, status=status)

    async def change(self, id: int, **columns: Any) -> None:
        """As somebody with a database console would."""
        await self.tables.change("dispatch_job", columns, id=id)

    async def pass_time(self, seconds: float, *, only: int | None = None) -> None:
        """Let time pass for all rows, or one job: whatever they wait for is that much nearer."""
        if only is not None:
            await self.tables.shift("dispatch_job", _TIMES["dispatch_job"], seconds, id=only)
        else:
            for table, columns in _TIMES.items():
                await self.tables.shift(table, columns, seconds)
        self.forget_targets()

    def time(self, moment: datetime) -> Any:
        """A time as the queries of this database take it."""
        return self.tables.time(moment)

    def forget_targets(self) -> None:
        """What this process heard of targets counts by its own clock, which cannot be turned."""
        for gate in self.lane._targets._gates.values():
            gate.closed_until = 0.0
        self.lane._targets._closings.clear()

    async def target(self, name: str) -> dict[str, Any]:
        await self.jobs.judged()
        (row,) = await self.jobs.run("target", target=name)
        return dict(row)

    async def attempts_add_up(self) -> None:
        """However a job went: each attempt that it counts is a row, numbered in turn."""
        counted = await self.tables.rows("dispatch_job")
        rows = await self.tables.rows("dispatch_attempt")
        numbers = {row["id"]: list[int]() for row in counted}
        for row in rows:
            numbers[row["dispatch_job_id"]].append(row["attempt_number"])
        expected = {row["id"]: list(range(1, row["attempt_count"] + 1)) for row in counted}
        assert {id: sorted(found) for id, found in numbers.items()} == expected

    async def run_until_idle(self, rounds: int = 100) -> None:
        """Deliver, due or not, until nothing is open."""
        for _ in range(rounds):
            await self.run_batch()
            counts = await self.jobs.counts()
            if not counts["PENDING"] + counts["FAILED"] + counts["IN_PROGRESS"]:
                return
            await self.make_due()
        raise AssertionError("jobs are still open")


def job(url: str, **columns: Any) -> NewJob:
    values: Mapping[str, Any] = {
        "source": "order-service",
        "type": "order.created",
        "payload": '{"orderId":"12345","amount":99.99}',
        **columns,
    }
    return NewJob(target_url=url, target=target_of(url, values.get("credentials_id")), **values)


@asynccontextmanager
async def job_bench(database_url: str, **settings: Any) -> AsyncIterator[JobBench]:
    log = LogLines()
    telemetry = Telemetry(make_logger("json", 0, log.stream), CollectorRegistry())
    with TemporaryDirectory(prefix="homing-jobs-") as folder:
        urls = database_urls(database_url, folder)
        chosen = {**urls, "encryption_key": "A" * 43 + "=", **settings}
        homing = Homing(load_settings(chosen, environ={}), telemetry)
        try:
            await homing.migrate()
            yield JobBench(homing, log)
        finally:
            await homing.webhooks.deliverer.drain(5)
            await homing.close()


def database_urls(jobs_url: str, folder: str) -> dict[str, str]:
    """The settings for jobs in this database. What is not a job has no place in MongoDB."""
    if not jobs_url.startswith("mongodb"):
        return {"database_url": jobs_url}
    return {"database_url": f"sqlite:///{folder}/homing.db", "jobs_database_url": jobs_url}


@asynccontextmanager
async def job_benches(database_url: str, count: int, **settings: Any) -> AsyncIterator[list[JobBench]]:
    """As many as if they were processes of their own: connections, targets and the owner's name."""
    async with AsyncExitStack() as stack:
        benches = []
        for number in range(count):
            opened = await stack.enter_async_context(job_bench(database_url, **settings))
            opened.jobs._parameters = {**opened.jobs._parameters, "owner": f"process-{number}"}
            benches.append(opened)
        yield benches


async def eventually(condition: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.01)
