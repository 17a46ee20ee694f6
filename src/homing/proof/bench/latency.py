"""From an order to the mail at the peer, one at a time, while nothing else is going on.

An in-process wake-up: whoever orders is the worker (`homing up`). A NOTIFY wake-up: the worker is another
process (`homing work`) that PostgreSQL tells. The clock stops when the peer has the whole mail.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from homing.app import Homing
from homing.errors import HomingError
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.orders import MailOrders
from homing.lanes.mail_outbox.outbox import new_token
from homing.proof.bench.child import in_child
from homing.proof.bench.homing_worker import settings_for
from homing.proof.bench.measure import Budget, percentile
from homing.proof.bench.sample_mails import SENDER, sample_mail
from homing.proof.bench.servers import fresh_database, postgres
from homing.testing.smtp_sink import SinkMail, SinkSettings, SmtpSink

Step = Callable[[str], None]

#: Long enough that the worker sleeps again and the next NOTIFY need not wait for its turn.
_PAUSE = (0.06, 0.12)
_PATIENCE = 30.0
_WARM_UP = 20


class LatencyJob(Struct, frozen=True):
    postgres_url: str
    samples: int
    #: Whether the worker is another process.
    notify: bool


class Latencies(Struct, frozen=True):
    milliseconds: tuple[float, ...]


class Wake(Struct, frozen=True):
    name: str
    p50: float
    p90: float
    p99: float
    longest: float


class LatencyTable(Struct, frozen=True):
    wakes: tuple[Wake, ...]
    budgets: tuple[Budget, ...]


async def latency(samples: int, step: Step, *, postgres_url: str | None = None) -> LatencyTable:
    wakes, found = [], []
    with postgres(postgres_url) as server:
        for name, notify in (("in process", False), ("NOTIFY", True)):
            step(f"{name}: {samples} mails, one at a time")
            with fresh_database(server) as url:
                job = LatencyJob(url, samples, notify)
                ms = (await in_child(f"{__name__}:time_mails", job, Latencies)).milliseconds
            p50, p90, p99 = (percentile(ms, share) for share in (0.5, 0.9, 0.99))
            wakes.append(Wake(name, p50, p90, p99, max(ms)))
            found.append(Budget(f"{name} wake-up, p50", p50, 10, "most", unit=" ms"))
            found.append(Budget(f"{name} wake-up, p99", p99, 50, "most", unit=" ms"))
    return LatencyTable(tuple(wakes), tuple(found))


async def time_mails(job: LatencyJob) -> Latencies:
    """In a process of its own, which orders the mails and takes them in."""
    arrivals: asyncio.Queue[float] = asyncio.Queue()

    def arrived(_mail: SinkMail) -> None:
        arrivals.put_nowait(time.perf_counter())

    async with SmtpSink(SinkSettings(keep_data=False, keep_mails=False), on_mail=arrived) as sink:
        homing = Homing(settings_for(job.postgres_url, sink.port))
        await homing.migrate()
        working = _in_another_process(homing) if job.notify else _in_this_process(homing)
        async with working:
            orders = MailOrders(homing.outbox, homing.telemetry)
            # The first ones open connections and prepare statements.
            for number in range(_WARM_UP):
                await _time_one(orders, number, arrivals)
            times = [await _time_one(orders, number, arrivals) for number in range(job.samples)]
        await homing.close()
    return Latencies(tuple(seconds * 1000 for seconds in times))


async def _time_one(orders: MailOrders, number: int, arrivals: asyncio.Queue[float]) -> float:
    # Random, so that no sample keeps step with a worker that looks at regular intervals.
    await asyncio.sleep(random.uniform(*_PAUSE))  # noqa: S311 - no secret
    mail = sample_mail(number)
    order = NewMail(
        token=new_token(), from_address=SENDER, to_address=mail.to, subject=mail.subject, text_body=mail.text
    )
    started = time.perf_counter()
    await orders.place(order)
    async with asyncio.timeout(_PATIENCE):
        return await arrivals.get() - started


@asynccontextmanager
async def _in_this_process(homing: Homing) -> AsyncIterator[None]:
    worker = homing.mail.worker()
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working
        await homing.mail.deliverer.drain(5)


@asynccontextmanager
async def _in_another_process(homing: Homing) -> AsyncIterator[None]:
    settings = homing.settings
    ours = {"HOMING_DATABASE_URL": settings.database_url, "HOMING_MAIL_URL": settings.mail_url}
    others = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOMING_", "DISPATCH_"))
    }
    environment = {**others, **ours, "HOMING_LOG_FORMAT": "json"}
    command = (sys.executable, "-m", "homing", "work")
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=sys.stderr.fileno())
    try:
        yield
        if process.returncode is not None:
            raise HomingError(f"`homing work` ended with {process.returncode}")
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
