"""How much a worker grows when a million mails are waiting."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import asyncpg
from msgspec import Struct

from homing.app import Homing
from homing.proof.bench.child import in_child
from homing.proof.bench.homing_worker import settings_for
from homing.proof.bench.measure import Budget
from homing.proof.bench.sample_mails import SENDER, sample_mail, settle_down
from homing.proof.bench.servers import fresh_database, postgres, smtp_sink

Step = Callable[[str], None]

_LOOK_EVERY = 0.02
_AT_ONCE = 100_000


class MemoryJob(Struct, frozen=True):
    postgres_url: str
    smtp_port: int
    backlog: int
    #: How many of them are delivered while we look.
    delivered: int


class Weight(Struct, frozen=True):
    """Resident memory of the worker, in MB."""

    empty: float
    #: The highest while it delivered.
    working: float
    backlog: int
    delivered: int


class MemoryTable(Struct, frozen=True):
    weight: Weight
    budgets: tuple[Budget, ...]


async def memory(backlog: int, delivered: int, step: Step, *, postgres_url: str | None = None) -> MemoryTable:
    with postgres(postgres_url) as server, smtp_sink() as sink, fresh_database(server) as url:
        step(f"{backlog:,} mails are put in, {delivered:,} delivered")
        job = MemoryJob(url, sink.port, backlog, delivered)
        weight = await in_child(f"{__name__}:weigh", job, Weight)
    growth = weight.working - weight.empty
    budget = Budget(f"growth with {backlog:,} mails waiting", growth, 20, "most", unit=" MB")
    return MemoryTable(weight, (budget,))


async def weigh(job: MemoryJob) -> Weight:
    """In a process of its own, which is the worker."""
    homing = Homing(settings_for(job.postgres_url, job.smtp_port))
    await homing.migrate()
    await homing.mail.worker().drain()
    empty = resident_mb()
    await _fill(job)
    worker = homing.mail.worker()
    working = asyncio.create_task(worker.run())
    highest, delivered = empty, 0
    while delivered < job.delivered:
        await asyncio.sleep(_LOOK_EVERY)
        highest = max(highest, resident_mb())
        delivered = _delivered(homing)
    worker.stop()
    await working
    await homing.mail.deliverer.drain(30)
    await homing.close()
    return Weight(empty, highest, job.backlog, delivered)


def _delivered(homing: Homing) -> int:
    """By the worker's own metrics."""
    labels = {"lane": "mail_outbox", "outcome": "delivered", "error_code": ""}
    return int(homing.telemetry.registry.get_sample_value("homing_attempts_total", labels) or 0)


def resident_mb() -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "Linux tells a process how much memory it has"
    return int(found[1]) / 1024


_ADD = """
INSERT INTO mail_outbox (from_address, to_address, subject, text_body, html_body)
SELECT $3, 'user' || n || '@example.org', 'Order ' || n || ' has shipped', $4, $5
FROM generate_series($1::bigint, $2::bigint) AS n
"""


async def _fill(job: MemoryJob) -> None:
    """The server makes the rows, so that they never pass through the process that is weighed."""
    mail = sample_mail(2)
    connection = await asyncpg.connect(job.postgres_url)
    try:
        for first in range(1, job.backlog + 1, _AT_ONCE):
            last = min(first + _AT_ONCE - 1, job.backlog)
            await connection.execute(_ADD, first, last, SENDER, mail.text, mail.html)
    finally:
        await connection.close()
    await settle_down(job.postgres_url)
