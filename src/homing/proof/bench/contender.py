"""One of those who deliver the same things, and how one round of it is measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import asyncpg
from msgspec import Struct

from homing.errors import HomingError
from homing.proof.bench.child import load
from homing.proof.bench.sample_mails import settle_down

#: Everybody may keep this many SMTP connections.
CONNECTIONS = 20


class Job(Struct, frozen=True):
    """What one contender of the mail race has to do in one round."""

    #: `module:name` of the contender.
    contender: str
    mails: int
    smtp_port: int
    #: A database of its own, empty.
    postgres_url: str


class Round(Struct, frozen=True):
    """From the first claim to the last settlement."""

    delivered: int
    seconds: float
    #: Of the delivering process; the servers' is not in it.
    cpu_seconds: float
    #: Transactions that PostgreSQL committed meanwhile.
    transactions: int

    @property
    def rate(self) -> float:
        return self.delivered / self.seconds


class Contender(Protocol):
    async def prepare(self) -> None:
        """Put the work in and open what is needed: not measured."""

    async def deliver(self) -> int:
        """Deliver them all; returns when the last one is settled."""

    async def close(self) -> None: ...


async def run_round(job: Job) -> Round:
    """In a process of its own."""
    return await measure(load(job.contender)(job), job.contender, job.mails, job.postgres_url)


async def measure(
    contender: Contender,
    name: str,
    expected: int,
    postgres_url: str,
    cpu_seconds: Callable[[], float] = time.process_time,
) -> Round:
    await contender.prepare()
    await settle_down(postgres_url)
    before = await _transactions(postgres_url)
    started, cpu = time.perf_counter(), cpu_seconds()
    delivered = await contender.deliver()
    seconds, cpu_used = time.perf_counter() - started, cpu_seconds() - cpu
    await contender.close()
    if delivered != expected:
        raise HomingError(f"{name} delivered {delivered} of {expected}")
    return Round(delivered, seconds, cpu_used, await _transactions(postgres_url) - before)


async def _transactions(url: str) -> int:
    """What the server has counted; a connection's share is complete when it has flushed it or is gone."""
    connection = await asyncpg.connect(url)
    try:
        for _attempt in range(100):
            if not await connection.fetchval(_OTHERS_ACTIVE):
                break
            await asyncio.sleep(0.02)
        count: int = await connection.fetchval(_COMMITTED)
    finally:
        await connection.close()
    return count


_OTHERS_ACTIVE = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND state <> 'idle'
"""
_COMMITTED = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
