"""Claims and settlements per second on MongoDB, beside PostgreSQL doing the same in the same run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

from msgspec import Struct

from homing.db import Database, connect
from homing.db.migrate import load_migrations, migrate
from homing.engine.model import Claim, Complete
from homing.lanes.dispatch_jobs.job import Job, NewJob, Report
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.target import Targets, target_of
from homing.testing.components.mongodb import MongoDbServer
from homing.testing.components.postgres import PostgresServer

_PACKAGE = "homing.lanes.dispatch_jobs"
_TARGETS = 20
_AT_ONCE = 500
_REPORT = Report(0.05, 200, "thanks", {"server": "x"})


class Rate(Struct, frozen=True):
    """Jobs per second: put in, claimed, settled, and claimed and settled together."""

    creates: float
    claims: float
    settles: float
    both: float


class Compared(Struct, frozen=True):
    postgres: Rate
    mongodb: Rate
    #: Claims and settlements of MongoDB as a share of PostgreSQL's, the median of the rounds.
    ratio: float


async def compare(
    postgres: PostgresServer, mongodb: MongoDbServer, *, jobs: int = 5000, rounds: int = 3, workers: int = 4
) -> Compared:
    """Turn by turn, so that what else the machine does hits both."""
    found: list[tuple[Rate, Rate]] = []
    for _ in range(rounds):
        sql = await _measured(postgres.create_database, postgres.drop_database, jobs, workers)
        documents = await _measured(mongodb.create_database, mongodb.drop_database, jobs, workers)
        found.append((sql, documents))
    ratio = median(documents.both / sql.both for sql, documents in found)
    return Compared(_middle([one for one, _ in found]), _middle([one for _, one in found]), ratio)


def _middle(rates: Sequence[Rate]) -> Rate:
    return Rate(
        *(median(getattr(rate, name) for rate in rates) for name in ("creates", "claims", "settles", "both"))
    )


async def _measured(create: Callable[[], str], drop: Callable[[str], None], jobs: int, workers: int) -> Rate:
    url = create()
    databases = [connect(url) for _ in range(workers)]
    try:
        await migrate(databases[0], load_migrations([_PACKAGE], databases[0].dialect))
        return await _rate([_store(database, n) for n, database in enumerate(databases)], jobs)
    finally:
        for database in databases:
            await database.close()
        drop(url)


def _store(database: Database, number: int) -> DispatchJobs:
    targets = Targets(slots=10_000, connections=10_000)
    return DispatchJobs(database, targets, owner=f"bench-{number}", lease_seconds=60)


async def _rate(stores: Sequence[DispatchJobs], jobs: int) -> Rate:
    creating = await _seconds(lambda: _create(stores[0], jobs))
    claims: list[tuple[DispatchJobs, list[Claim[Job]]]] = []
    claiming = await _seconds(lambda: _together([_claim_all(store, claims) for store in stores]))
    settling = await _seconds(lambda: _together([_settle(store, batch) for store, batch in claims]))
    taken = sum(len(batch) for _, batch in claims)
    if taken != jobs:
        raise AssertionError(f"{taken} of {jobs} jobs were claimed, each once")
    return Rate(jobs / creating, jobs / claiming, jobs / settling, jobs / (claiming + settling))


async def _create(store: DispatchJobs, jobs: int) -> None:
    for start in range(0, jobs, _AT_ONCE):
        urls = [
            f"https://partner{n % _TARGETS}.example/hooks" for n in range(start, min(start + _AT_ONCE, jobs))
        ]
        await store.enqueue([_order(url) for url in urls])


def _order(url: str) -> NewJob:
    payload = '{"orderId":"12345","amount":99.99}'
    return NewJob(source="bench", type="order", target_url=url, target=target_of(url, None), payload=payload)


async def _claim_all(store: DispatchJobs, into: list[tuple[DispatchJobs, list[Claim[Job]]]]) -> None:
    while batch := await store.claim(_AT_ONCE):
        into.append((store, batch))


async def _settle(store: DispatchJobs, batch: Sequence[Claim[Job]]) -> None:
    await store.settle([(claim, Complete(_REPORT)) for claim in batch])


async def _together(work: Sequence[Awaitable[None]]) -> None:
    await asyncio.gather(*work)


async def _seconds(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began
