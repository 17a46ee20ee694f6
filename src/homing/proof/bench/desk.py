"""How fast the operator's desk answers over millions of messages: pages, query lines, alerts, a bulk run.

The application is the real one, in a process of its own, on a real port.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import platform
import re
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from homing import service
from homing.app import Homing
from homing.db import Database, Query
from homing.errors import HomingError
from homing.proof.bench.child import in_child
from homing.proof.bench.desk_paths import EVERYBODY, paths_of
from homing.proof.bench.desk_sample import INCIDENT, USUAL, fill
from homing.proof.bench.measure import Budget, percentile
from homing.proof.bench.sample_mails import settle_down
from homing.proof.bench.servers import fresh_database, postgres
from homing.settings import Settings, load_settings
from homing.telemetry import Telemetry

Step = Callable[[str], None]

LONGEST_MS: Final = 300.0
#: Messages that a bulk run requeues, and the seconds that it may take.
REQUEUED, LONGEST_RUN = 100_000, 60.0
REQUESTS: Final = 40
#: A usual day, and an incident.
SHAPES: Final = (USUAL, INCIDENT)
#: Processes that are started only for the first answer of every page.
FRESH: Final = 3
_TIMEOUT = 120.0
#: Looks of the alerts, after the first.
_LOOKS = 20
#: Of what messages die, as if it had just happened: from now on every look asks what is left of each.
_DEATHS = """
INSERT INTO homing_job_death (message_id, error)
SELECT id, error_class FROM dispatch_job WHERE status = 'ERROR' LIMIT 5000;
INSERT INTO homing_mail_death (message_id, error)
SELECT id, last_error FROM mail_outbox WHERE status = 'failed' LIMIT 5000;
"""


class DeskJob(Struct, frozen=True):
    database_url: str
    paths: tuple[str, ...]
    #: Of each page, after the first.
    requests: int = 0
    #: Whether all dead jobs are requeued at last.
    requeues: bool = False


class PageTime(Struct, frozen=True):
    """Milliseconds from the request to the last byte of its answer."""

    path: str
    first: float
    others: tuple[float, ...] = ()


class PageCost(Struct, frozen=True):
    path: str
    p50_ms: float
    p95_ms: float
    longest_ms: float
    #: The slowest first answer of a process that has just begun.
    first_ms: float


class BulkCost(Struct, frozen=True):
    requeued: int
    seconds: float


class DeskTimes(Struct, frozen=True):
    """What one process was measured with."""

    pages: tuple[PageTime, ...]
    #: Milliseconds of each look of the alerts.
    looks: tuple[float, ...] = ()
    bulk: BulkCost | None = None


class DeskLine(Struct, frozen=True):
    database: str
    messages: int
    #: Of a hundred of them, how many are not sent yet.
    waiting: int
    filled_in: float
    pages: tuple[PageCost, ...]
    #: Whether something is wrong: one look, of all lanes.
    alerts_p95_ms: float
    bulk: BulkCost


class DeskTable(Struct, frozen=True):
    machine: str
    lines: tuple[DeskLine, ...]
    budgets: tuple[Budget, ...]


class DeskPlan(Struct, frozen=True):
    #: On PostgreSQL, and on SQLite; 0 leaves one out.
    messages: int = 5_000_000
    in_file: int = 1_000_000
    #: Of a hundred messages, how many wait: each is a database of its own.
    waiting: tuple[int, ...] = SHAPES
    #: For each page.
    requests: int = REQUESTS
    fresh: int = FRESH


async def desk(plan: DeskPlan, step: Step, *, postgres_url: str | None = None) -> DeskTable:
    lines: list[DeskLine] = []
    if plan.messages:
        with postgres(postgres_url) as server:
            for waiting in plan.waiting:
                with fresh_database(server) as url:
                    lines.append(await _line(url, plan.messages, waiting, plan, step))
    for waiting in plan.waiting if plan.in_file else ():
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{Path(folder) / 'desk.db'}"
            lines.append(await _line(url, plan.in_file, waiting, plan, step))
    return DeskTable(machine(), tuple(lines), tuple(budget for line in lines for budget in budgets(line)))


async def _line(url: str, messages: int, waiting: int, plan: DeskPlan, step: Step) -> DeskLine:
    step(f"filling in {messages:,} messages, {waiting} % of them waiting")
    began = time.perf_counter()
    version, paths = await make(url, messages, waiting)
    filled_in = time.perf_counter() - began
    step(f"{version}: first answers")
    fresh = [await _times(DeskJob(url, paths)) for _ in range(plan.fresh)]
    step(f"{version}: pages, alerts and a bulk run")
    times = await _times(DeskJob(url, paths, plan.requests, requeues=True))
    assert times.bulk is not None, "it was asked for"
    pages, looks = tuple(costs([*fresh, times])), percentile(times.looks, 0.95)
    return DeskLine(version, messages, waiting, filled_in, pages, looks, times.bulk)


async def _times(job: DeskJob) -> DeskTimes:
    return await in_child(f"{__name__}:measure", job, DeskTimes)


def costs(times: Sequence[DeskTimes]) -> Iterable[PageCost]:
    """The last of them asked often, the others once."""
    first: dict[str, float] = {}
    for page in (page for one in times for page in one.pages):
        first[page.path] = max(page.first, first.get(page.path, 0.0))
    for page in times[-1].pages:
        p50, p95 = percentile(page.others, 0.5), percentile(page.others, 0.95)
        yield PageCost(page.path, p50, p95, max(page.others), first[page.path])


def latest(line: DeskLine) -> PageCost:
    """The slowest of all first answers: for the eye, since what was promised is a percentile."""
    return max(line.pages, key=lambda page: page.first_ms)


def budgets(line: DeskLine) -> list[Budget]:
    slowest = max(line.pages, key=lambda page: page.p95_ms)
    run = line.bulk.seconds * REQUEUED / max(1, line.bulk.requeued)
    at_most: list[tuple[str, float, float, str]] = [
        (f"slowest page, p95 ({slowest.path})", slowest.p95_ms, LONGEST_MS, " ms"),
        (f"requeueing {REQUEUED:,}", run, LONGEST_RUN, " s"),
    ]
    return [
        Budget(f"{line.database}, {line.waiting} % waiting: {what}", measured, bound, "most", unit=unit)
        for what, measured, bound, unit in at_most
    ]


def machine() -> str:
    model = platform.processor() or platform.machine()
    names = Path("/proc/cpuinfo")
    if names.exists() and (found := re.search(r"^model name\s*:\s*(.+)$", names.read_text(), re.MULTILINE)):
        model = found[1]
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}"


# ── in the data ──────────────────────────────────────────────────────────────────────────────────


async def make(url: str, messages: int, waiting: int = USUAL) -> tuple[str, tuple[str, ...]]:
    """Fill a database; what it calls itself, and what is asked of it."""
    homing = Homing(_settings(url), Telemetry())
    try:
        await homing.migrate()
        await fill(homing.database, messages, waiting)
        version = await _version(homing.database)
        paths = tuple(await paths_of(homing))
    finally:
        await homing.close()
    if version.startswith("PostgreSQL"):
        await settle_down(url)
    return version, paths


async def _version(database: Database) -> str:
    if database.dialect == "sqlite":
        return f"SQLite {sqlite3.sqlite_version}"
    (row,) = await database.fetch(Query("version", "SHOW server_version", (), False), {})
    return f"PostgreSQL {str(row['server_version']).split()[0]}"


def _settings(url: str) -> Settings:
    flags = {
        "database_url": url,
        "mail_url": "memory://",
        "encryption_key": "A" * 43 + "=",
        "host": "127.0.0.1",
        "port": 0,
        "api_rate_per_second": 0.0,
    }
    return load_settings(flags, environ={})


# ── in a process of its own ──────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _served(url: str) -> AsyncIterator[tuple[Homing, str]]:
    """A process as `homing serve` runs it: nobody works on the lanes, so that nothing changes meanwhile."""
    homing, stop = Homing(_settings(url)), service.Stop()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(service.run(homing, stop, api=True, work=[], ready=address.set_result))
    try:
        waited: set[asyncio.Future[Any]] = {running, address}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield homing, address.result()
    finally:
        stop.ask()
        await running
        await homing.close()


async def measure(job: DeskJob) -> DeskTimes:
    async with _served(job.database_url) as (homing, address):
        pages = await asyncio.to_thread(_ask, address, job.paths, job.requests)
        if not job.requeues:
            return DeskTimes(tuple(pages))
        return DeskTimes(tuple(pages), await _look_for_trouble(homing), await _requeue_the_dead(homing))


def _ask(address: str, paths: Sequence[str], requests: int) -> list[PageTime]:
    """In turns, so that no page finds only its own rows in the cache of the database."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_TIMEOUT)
    first = {path: _timed(connection, path) for path in paths}
    others: dict[str, list[float]] = {path: [] for path in paths}
    for _ in range(requests):
        for path in paths:
            others[path].append(_timed(connection, path))
    connection.close()
    return [PageTime(path, first[path], tuple(others[path])) for path in paths]


def _timed(connection: http.client.HTTPConnection, path: str) -> float:
    began = time.perf_counter()
    connection.request("GET", path, headers={"Accept": "text/html, */*"})
    answer = connection.getresponse()
    answer.read()
    if answer.status != http.client.OK:
        raise HomingError(f"GET {path} was answered with {answer.status}")
    return (time.perf_counter() - began) * 1000


async def _look_for_trouble(homing: Homing) -> tuple[float, ...]:
    """The first takes up what died; each after it looks what has become of that, and of all else."""
    await homing.database.run_script(_DEATHS)
    times = []
    for _ in range(_LOOKS + 1):
        began = time.perf_counter()
        await homing.alerts_part.watch.round()
        times.append((time.perf_counter() - began) * 1000)
    return tuple(times[1:])


async def _requeue_the_dead(homing: Homing) -> BulkCost:
    """From the order to the last row."""
    began = time.perf_counter()
    run = await homing.bulk.runs.start("lane:dispatch_jobs status:dead", "requeue", EVERYBODY)
    while not run.is_over:
        await asyncio.sleep(0.1)
        run = await homing.bulk.runs.existing(run.id)
    if run.state != "done":
        raise HomingError(f"the bulk run ended as {run.state}: {run.last_error}")
    return BulkCost(run.done, time.perf_counter() - began)
