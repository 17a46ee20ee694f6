"""One slow target never starves the others: what the healthy ones wait, alone and beside as many that drip.

Every target is a loopback address of its own. A healthy one answers at once; a slow one sends its answer a
byte a second, until the job's three seconds are over. All jobs are in the table before the first is due, and
a worker (`homing work dispatch_jobs`, settings at their defaults) waits for them: start-up is in no figure.
A latency is the product's own `duration_millis`, from the moment a job was due until it was settled.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from homing.app import Homing, opened
from homing.db import Query
from homing.errors import HomingError
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.jobs import CHANNEL
from homing.lanes.dispatch_jobs.target import target_of
from homing.proof.bench.measure import Budget, Series, percentile
from homing.proof.bench.sample_jobs import BEARER_TOKEN, SIGNING_SECRET, sample_payload
from homing.proof.bench.sample_mails import settle_down
from homing.proof.bench.servers import fresh_database, postgres
from homing.proof.chaos.processes import WorkerProcess, worker_environment
from homing.proof.chaos.waiting import until
from homing.settings import load_settings
from homing.testing.components.processes import free_port
from homing.testing.http_sink import Answer, HttpSink

Step = Callable[[str], None]

HEALTHY, SLOW = "healthy", "slow"
#: Variants: over how many seconds the jobs become due.
ARRIVALS = {"all at once": 0.0, "over 5 s": 5.0}

_KEY = base64.b64encode(bytes(32)).decode()
_DEADLINE = 3.0
_DRIP = Answer(drip=1.0, body=b"." * 100)
_AT_ONCE = 1000
#: The time that is left for making the jobs before the first is due.
_LEAD, _JOBS_PER_SECOND = 2.0, 2000
_PATIENCE = 120.0

_WAITING = "SELECT count(*) AS count FROM dispatch_job WHERE source = 'healthy' AND status <> 'COMPLETED'"
_LATENCIES = "SELECT duration_millis, attempt_count FROM dispatch_job WHERE source = 'healthy'"
_TIMED_OUT = "SELECT sum(attempt_count) AS count FROM dispatch_job WHERE source = 'slow'"


class FairnessPlan(Struct, frozen=True):
    #: Of each kind.
    targets: int = 200
    jobs_per_target: int = 25
    #: Jobs that the worker holds at once, as by default.
    slots: int = 2000

    @property
    def jobs(self) -> int:
        return self.targets * self.jobs_per_target


class Arrival(Struct, frozen=True):
    """The jobs of one run: which, for whom, and when they become due."""

    plan: FairnessPlan
    kinds: Sequence[str]
    port: int
    start: datetime
    spread: float

    def due(self, number: int) -> str:
        return (self.start + timedelta(seconds=self.spread * number / self.plan.jobs)).isoformat()

    def url(self, kind: str, number: int) -> str:
        return f"http://{_address(kind, number % self.plan.targets)}:{self.port}/hook"


class Waits(Struct, frozen=True):
    """What the healthy jobs of one run waited, in seconds."""

    p50: float
    p95: float
    longest: float
    #: Attempts at slow targets that ended meanwhile.
    timed_out: int = 0


class FairnessLine(Struct, frozen=True):
    """One variant, over all rounds."""

    arrival: str
    alone: Series
    beside: Series
    #: Round by round, p95 beside the slow ones over p95 alone.
    ratio: Series
    timed_out: Series


class FairnessTable(Struct, frozen=True):
    jobs: int
    targets: int
    lines: tuple[FairnessLine, ...]
    budgets: tuple[Budget, ...]


async def fairness(
    plan: FairnessPlan, rounds: int, step: Step, *, postgres_url: str | None = None
) -> FairnessTable:
    """Pairs of runs in turns; each has a database and a worker of its own."""
    with postgres(postgres_url) as server:
        waits: dict[tuple[str, str], list[Waits]] = {}
        for number, arrival, kinds in _schedule(rounds):
            step(f"round {number}: {arrival}, {' and '.join(kinds)}")
            with fresh_database(server) as url:
                found = await _one_run(plan, url, kinds, ARRIVALS[arrival])
            waits.setdefault((arrival, kinds[-1]), []).append(found)
    lines = tuple(_line(a, waits[a, HEALTHY], waits[a, SLOW]) for a in ARRIVALS)
    return FairnessTable(plan.jobs, plan.targets, lines, tuple(_budget(line) for line in lines))


def _schedule(rounds: int) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for number in range(1, rounds + 1):
        for arrival in ARRIVALS:
            pair = ((HEALTHY,), (HEALTHY, SLOW))
            # Now one goes first and now the other, so that neither always finds the warmer machine.
            for kinds in pair if number % 2 else pair[::-1]:
                yield number, arrival, kinds


def _line(arrival: str, alone: Sequence[Waits], beside: Sequence[Waits]) -> FairnessLine:
    p95_alone, p95_beside = (Series(tuple(w.p95 for w in runs)) for runs in (alone, beside))
    timed_out = Series(tuple(float(w.timed_out) for w in beside))
    return FairnessLine(arrival, p95_alone, p95_beside, p95_beside.over(p95_alone), timed_out)


def _budget(line: FairnessLine) -> Budget:
    what = f"p95 of the healthy beside the slow over alone, {line.arrival}"
    return Budget(what, line.ratio.median, 1.25, "most")


# ── one run ──────────────────────────────────────────────────────────────────────────────────────


async def _one_run(plan: FairnessPlan, url: str, kinds: Sequence[str], spread: float) -> Waits:
    settings = load_settings(
        {"database_url": url, "mail_url": "memory://", "encryption_key": _KEY}, environ={}
    )
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="homing-bench-")))
        homing = await stack.enter_async_context(opened(settings))
        await homing.migrate()
        port = await stack.enter_async_context(_sinks(plan, kinds))
        worker = WorkerProcess(folder, "worker", _environment(plan, url), ["work", "dispatch_jobs"])
        stack.callback(worker.kill)
        await worker.until_ready()
        start = datetime.now(UTC) + timedelta(seconds=_LEAD + len(kinds) * plan.jobs / _JOBS_PER_SECOND)
        await _fill(homing, Arrival(plan, kinds, port, start, spread))
        await _until(start)
        homing.database.announce(CHANNEL)
        return await _watch(homing, worker)


def _environment(plan: FairnessPlan, database_url: str) -> dict[str, str]:
    return worker_environment(
        database_url, "memory://", homing_encryption_key=_KEY, homing_jobs_batch=plan.slots
    )


async def _until(moment: datetime) -> None:
    left = (moment - datetime.now(UTC)).total_seconds()
    if left < 0:
        raise HomingError("making the jobs took too long: this machine is too busy to measure anything")
    await asyncio.sleep(left)


async def _watch(homing: Homing, worker: WorkerProcess) -> Waits:
    async def all_settled() -> bool:
        return await _count(homing, _WAITING) == 0 or worker.exit_code is not None

    if not await until(all_settled, _PATIENCE) or worker.exit_code is not None:
        raise HomingError(f"{await _count(homing, _WAITING)} healthy jobs were not delivered")
    rows = await homing.database.fetch(_query(_LATENCIES), {})
    if repeated := sum(row["attempt_count"] != 1 for row in rows):
        raise HomingError(f"{repeated} healthy jobs needed more than one attempt")
    seconds = [row["duration_millis"] / 1000 for row in rows]
    p50, p95 = percentile(seconds, 0.5), percentile(seconds, 0.95)
    return Waits(p50, p95, max(seconds), await _count(homing, _TIMED_OUT))


async def _count(homing: Homing, sql: str) -> int:
    return (await homing.database.fetch(_query(sql), {}))[0]["count"] or 0


def _query(sql: str) -> Query:
    return Query("observe", sql, (), writes=False)


# ── jobs and targets ─────────────────────────────────────────────────────────────────────────────


async def _fill(homing: Homing, arrival: Arrival) -> None:
    request = CreateCredentials(
        bearer_token=BEARER_TOKEN, signing_secret=SIGNING_SECRET, allowed_targets=("*",)
    )
    credentials: int = (await homing.credentials.create(request)).row["id"]
    numbers = range(arrival.plan.jobs)
    jobs = [_job(arrival, kind, number, credentials) for number in numbers for kind in arrival.kinds]
    for first in range(0, len(jobs), _AT_ONCE):
        await homing.jobs.enqueue(jobs[first : first + _AT_ONCE])
    await settle_down(homing.settings.database_url)


def _job(arrival: Arrival, kind: str, number: int, credentials: int) -> NewJob:
    url = arrival.url(kind, number)
    return NewJob(
        source=kind,
        type="order.shipped",
        target_url=url,
        target=target_of(url, credentials),
        payload=sample_payload(number),
        credentials_id=credentials,
        timeout_seconds=_DEADLINE,
        scheduled_for=arrival.due(number),
    )


def _address(kind: str, number: int) -> str:
    """Neighbours by number, so that neither kind comes first in any order of names."""
    return f"127.{10 + number // 250}.{1 + number % 250}.{1 if kind == HEALTHY else 2}"


@asynccontextmanager
async def _sinks(plan: FairnessPlan, kinds: Sequence[str]) -> AsyncIterator[int]:
    """A listener for every target, all on one port, in this process, which has nothing else to do."""
    port = free_port()
    async with AsyncExitStack() as stack:
        for kind in kinds:
            script = (lambda _request: _DRIP) if kind == SLOW else None
            for number in range(plan.targets):
                sink = HttpSink(script, host=_address(kind, number), port=port, keep=False)
                await stack.enter_async_context(sink)
        yield port
