"""One event for very many subscribers: how long it takes, and how long everybody else waits for it.

In a process of its own. Another program, a thread with a connection of its own, writes one row after the
other meanwhile; and the loop, which has requests to answer, is asked for the time every few milliseconds.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime

import asyncpg
from msgspec import Struct

from homing.db import connect
from homing.db.migrate import load_migrations, migrate
from homing.errors import HomingError
from homing.lanes.open_events.fanout import Fanout, FlipRequest, flip_of
from homing.proof.bench.sample_mails import settle_down
from homing.proof.bench.sample_openings import fill_subscribers
from homing.proof.chaos.waiting import until
from homing.telemetry import Telemetry

_PAUSE = 0.005
_TOUCH = "UPDATE subscriptions SET locale = locale WHERE subscription_id = 1"


class FanoutJob(Struct, frozen=True):
    subscribers: int
    #: None is a SQLite file.
    postgres_url: str | None = None


class FannedOut(Struct, frozen=True):
    seconds: float
    #: The longest that the other program waited for a write, in seconds.
    waited: float
    #: The longest that the loop did not come round, in seconds.
    stalled: float


async def fan_out(job: FanoutJob) -> FannedOut:
    with tempfile.TemporaryDirectory(prefix="homing-bench-") as folder:
        path = f"{folder}/homing.db"
        url = job.postgres_url or f"sqlite:///{path}"
        database = connect(url)
        try:
            await migrate(database, load_migrations(["homing.lanes.open_events"], database.dialect))
            await fill_subscribers(database, job.subscribers)
            if job.postgres_url is not None:
                await settle_down(job.postgres_url)
            writes = _postgres_writes(url) if job.postgres_url else _sqlite_writes(path)
            return await _measured(Fanout(database, Telemetry()), job.subscribers, writes)
        finally:
            await database.close()


Writes = Callable[[threading.Event, list[float]], None]


async def _measured(fanout: Fanout, subscribers: int, writes: Writes) -> FannedOut:
    waits: list[float] = []
    with _beside(writes, waits):
        await until(lambda: _has_written(waits))
        waits.clear()
        stalls: list[float] = []
        watch = asyncio.create_task(_watch_loop(stalls))
        begun = time.perf_counter()
        reply = await fanout.record(flip_of(_flip(), datetime.now(UTC)))
        seconds = time.perf_counter() - begun
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
    if reply.notifications != subscribers:
        raise HomingError(f"{reply.notifications} of {subscribers} got a notification")
    return FannedOut(seconds, max(waits, default=0.0), max(stalls, default=0.0))


async def _has_written(waits: Sequence[float]) -> bool:
    return bool(waits)


def _flip() -> FlipRequest:
    return FlipRequest(
        term_id="20269", campus_code="NB", index_number="I1", status_before="Closed", status_after="Open"
    )


async def _watch_loop(stalls: list[float]) -> None:
    while True:
        asked = time.perf_counter()
        await asyncio.sleep(_PAUSE)
        # A timer of uvloop's may fire up to a millisecond early.
        stalls.append(max(0.0, time.perf_counter() - asked - _PAUSE))


# ── another program ──────────────────────────────────────────────────────────────────────────────


@contextmanager
def _beside(writes: Writes, waits: list[float]) -> Iterator[None]:
    """It goes on until it has written once more after us, so that there is always something to tell."""
    enough = threading.Event()
    thread = threading.Thread(target=writes, args=(enough, waits))
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def _sqlite_writes(path: str) -> Writes:
    def write(enough: threading.Event, waits: list[float]) -> None:
        with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
            last = False
            while not last:
                last, begun = enough.wait(_PAUSE), time.perf_counter()
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_TOUCH)
                connection.execute("COMMIT")
                waits.append(time.perf_counter() - begun)

    return write


def _postgres_writes(url: str) -> Writes:
    async def write(enough: threading.Event, waits: list[float]) -> None:
        connection = await asyncpg.connect(url)
        try:
            last = False
            while not last:
                await asyncio.sleep(_PAUSE)
                last, begun = enough.is_set(), time.perf_counter()
                await connection.execute(_TOUCH)
                waits.append(time.perf_counter() - begun)
        finally:
            await connection.close()

    return lambda enough, waits: asyncio.run(write(enough, waits))
