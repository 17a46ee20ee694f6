"""`homing chaos notifications`: workers die beside another program that writes to the same file.

The other program makes all rows, by plain SQL in transactions of its own, and does what operators do by hand
(`notification_writer.py`). The workers are real processes; some are killed, some told to stop, all replaced.
What must hold of it is in `notification_checker.py`.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.app import opened
from homing.errors import DatabaseError
from homing.proof.chaos import notification_writer
from homing.proof.chaos.checker import Verdict
from homing.proof.chaos.email_sink import EmailSinkProcess, SinkPlan
from homing.proof.chaos.notification_checker import Blow, NotificationEvidence, check_notifications
from homing.proof.chaos.notification_table import NotificationTable
from homing.proof.chaos.notification_testimony import Diary, read_diary, read_workers
from homing.proof.chaos.notification_writer import WriterPlan
from homing.proof.chaos.processes import Tail, WorkerProcess, read_events, worker_environment
from homing.proof.chaos.run import Crew, FaultPlan
from homing.proof.chaos.table import Held
from homing.proof.chaos.waiting import TICK, until
from homing.settings import load_settings

Journal: TypeAlias = Literal["wal", "delete"]

_BEFORE = 0.1
#: Workers look once a second, and may all be starting.
_RECOVERY_SLACK = 15.0
#: Much longer than anything takes, on a machine that has many other things to do.
_PATIENCE = 120.0
_STANDSTILL = 90.0


class NotificationPlan(FaultPlan, frozen=True, kw_only=True):
    notifications: int = 20_000
    workers: int = 2
    #: Of the kills, every other one leaves its locks to their time; else an operator takes them away.
    kills: int = 12
    waits_for_locks: bool = True
    #: Workers that are told to stop.
    stops: int = 4
    #: Seconds between two blows: a worker takes one or two to start, and should have worked before it dies.
    pause: float = 2.0
    #: How often the other program holds its lock, and for how long.
    holds: int = 8
    shortest_hold: float = 1.0
    longest_hold: float = 3.0
    #: How many addresses the sink refuses at first. Who is refused twice has used up all attempts.
    refuse: float = 0.15
    leaving: float = 0.01
    #: Milliseconds until who was refused is tried again.
    retry_ms: int = 1500
    connections: int = 10
    #: Rows that one worker holds.
    batch: int = 60
    #: Seconds of a lock: the least that the contract allows.
    lock_ttl: int = 30
    #: Seconds that the other program may be kept waiting: drivers give up after five, as a rule.
    wait_limit: float = 5.0
    journal: Journal = "wal"

    @property
    def seconds(self) -> float:
        """In which the other program makes its rows; about as long as the blows take."""
        return (self.kills + self.stops + 1) * self.pause + self.holds * self.longest_hold / 2

    @property
    def burst(self) -> int:
        """Made before each blow, so that there is something to hit."""
        return max(self.workers * self.batch, self.notifications // 200)

    @property
    def paced(self) -> int:
        """What is made in an even flow."""
        return max(self.notifications // 4, self.notifications - (self.kills + self.stops) * self.burst)

    @property
    def sink_delay(self) -> float:
        """So slow that the workers have mail in flight, and so fast that they keep up."""
        return min(0.1, max(0.02, self.workers * self.connections * self.seconds / self.notifications / 3))


class NotificationProgress(Struct, frozen=True):
    """Where a run is."""

    total: int
    ended: int
    now: str


class NotificationReport(Struct, frozen=True):
    plan: NotificationPlan
    verdict: Verdict
    seconds: float


Tell = Callable[[NotificationProgress], None]


async def run_notifications(
    plan: NotificationPlan, database_url: str, folder: Path, *, tell: Tell = lambda _: None
) -> NotificationReport:
    """Run the plan on an empty database; `folder` gets the logs."""
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        await _make_tables(plan, database_url)
        sink_plan = SinkPlan(str(folder / "contacts.jsonl"), plan.sink_delay, plan.refuse, plan.seed)
        sink = EmailSinkProcess(folder, sink_plan)
        stack.callback(sink.close)
        table = NotificationTable(database_url)
        stack.push_async_callback(table.close)
        writer = OtherProgram(plan, database_url, folder)
        stack.callback(writer.close)
        crew = Crew(plan, folder, _environment(plan, database_url, sink.url), "open_events")
        stack.callback(crew.close)
        scene = Scene(table, sink, writer, crew, folder)
        evidence = await NotificationRun(plan, scene, tell).to_the_end()
    return NotificationReport(plan, check_notifications(evidence), round(time.monotonic() - started, 1))


async def _make_tables(plan: NotificationPlan, database_url: str) -> None:
    if (path := file_of(database_url)) is not None:
        _make_file(path, plan.journal)
    settings = load_settings({"database_url": database_url, "mail_url": "memory://"}, environ={})
    async with opened(settings, makes_file=True) as homing:
        await homing.migrate()


def _make_file(path: str, journal: Journal) -> None:
    """The file is the other program's before it is ours, and so is the way in which it is written to."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("CREATE TABLE polls (poll_id INTEGER PRIMARY KEY, polled_at TEXT)")
        connection.commit()


def file_of(database_url: str) -> str | None:
    """The SQLite file that a URL names."""
    scheme, _, path = database_url.partition(":///")
    return path.partition("?")[0] if scheme == "sqlite" else None


def _environment(plan: NotificationPlan, database_url: str, mail_url: str) -> dict[str, str]:
    return worker_environment(
        database_url, mail_url,
        homing_mail_connections=plan.connections, homing_notify_batch=plan.batch,
        homing_notify_rate_per_second=0, homing_notify_lock_ttl_seconds=plan.lock_ttl,
        # One call of the sink is one attempt; who was refused waits for a while, and may be put back then.
        homing_notify_send_retries_ms=0, homing_notify_max_attempts=2,
        homing_notify_retry_schedule_ms=plan.retry_ms,
    )  # fmt: skip


class OtherProgram:
    """`notification_writer.py` as a process, started by its path: nothing of Homing comes with it."""

    def __init__(self, plan: NotificationPlan, database_url: str, folder: Path) -> None:
        self._diary, file = folder / "diary.jsonl", folder / "writer.json"
        file.write_bytes(msgspec.json.encode(asdict(_orders(plan, database_url, self._diary))))
        program = Path(notification_writer.__file__)
        with (folder / "writer.log").open("wb") as stderr:
            # A session of its own: Ctrl-C is for us, and we end our children ourselves.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
                [sys.executable, str(program), str(file)], cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
            )  # fmt: skip
        self._tail = Tail(self._diary)
        self._kinds: set[str] = set()

    async def until(self, kind: str) -> None:
        """Wait for an entry in the diary."""

        async def is_there() -> bool:
            self._kinds |= {msgspec.json.decode(line)["kind"] for line in self._tail.lines()}
            return kind in self._kinds or self._process.poll() is not None

        if not await until(is_there, _PATIENCE) or kind not in self._kinds:
            raise RuntimeError(f"the other program has not come to {kind!r} ({self._process.poll()})")

    def burst(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    async def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        await self.until("ended")

    def diary(self) -> Diary:
        return read_diary(Tail(self._diary).lines())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _orders(plan: NotificationPlan, database_url: str, diary: Path) -> WriterPlan:
    return WriterPlan(
        database=file_of(database_url) or database_url, diary=str(diary), seed=plan.seed,
        notifications=plan.paced, at_first=int(plan.paced * _BEFORE), seconds=plan.seconds, burst=plan.burst,
        leaving=plan.leaving, holds=plan.holds, shortest_hold=plan.shortest_hold,
        longest_hold=plan.longest_hold, lock_ttl=plan.lock_ttl,
    )  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """Who takes part, and where the logs are."""

    table: NotificationTable
    sink: EmailSinkProcess
    writer: OtherProgram
    crew: Crew
    folder: Path


class NotificationRun:
    def __init__(self, plan: NotificationPlan, scene: Scene, tell: Tell) -> None:
        self._plan, self._tell = plan, tell
        self._table, self._sink, self._writer = scene.table, scene.sink, scene.writer
        self._crew, self._folder = scene.crew, scene.folder
        self._random = random.Random(plan.seed)  # noqa: S311 - a fault need not be unguessable
        self._open = plan.notifications
        self._now = "starting"
        self._watches: set[asyncio.Task[None]] = set()
        self.blows: list[Blow] = []

    async def to_the_end(self) -> NotificationEvidence:
        await self._writer.until("begun")
        keeping = asyncio.create_task(self._keep_watch())
        try:
            await self._strike()
            self._now = "draining"
            await self._writer.until("all_made")
            self._sink.hurry()
            await asyncio.gather(*self._watches)
            await self._drain()
        finally:
            await _called_off(keeping)
        await self._writer.end()
        await self._crew.dismiss()
        return await self._evidence()

    async def _evidence(self) -> NotificationEvidence:
        plan, logs = self._plan, sorted(self._folder.glob("worker-*.log"))
        return NotificationEvidence(
            await self._table.ends(), self._sink.contacts(), self.blows,
            read_workers(event for log in logs for event in read_events(log)), self._writer.diary(),
            self._crew.deserters, kills=plan.kills, stops=plan.stops, holds=plan.holds, batch=plan.batch,
            wait_limit=plan.wait_limit, recovery_limit=plan.lock_ttl + _RECOVERY_SLACK,
        )  # fmt: skip

    # ── blows ────────────────────────────────────────────────────────────────────────────────────

    async def _strike(self) -> None:
        stops = set(self._random.sample(range(self._plan.kills + self._plan.stops), self._plan.stops))
        kills = 0
        for number in range(self._plan.kills + self._plan.stops):
            self._now = "working"
            await asyncio.sleep(self._plan.pause * self._random.uniform(0.5, 1.5))
            if number in stops:
                await self._stop(await self._busy_worker())
                continue
            await self._kill_one(clears=not (self._plan.waits_for_locks and kills % 2))
            kills += 1

    async def _kill_one(self, *, clears: bool) -> None:
        """Until one was hit with something in flight: between our look and the blow it may have finished."""
        before = len(self.blows)
        while not any(blow.held for blow in self.blows[before:]):
            self.blows.append(await self._kill(await self._busy_worker(), clears=clears))
        index = len(self.blows) - 1
        if not clears:
            self._watches.add(asyncio.create_task(self._time_takeover(index)))

    async def _kill(self, victim: WorkerProcess, *, clears: bool) -> Blow:
        self._now = "kill"
        victim.kill()
        # The locks of the dead stay as they are until their time is over, which is long after this look.
        held = await self._held(victim.owner)
        if clears:
            await self._table.clear_locks(victim.owner)
        return Blow("kill", tuple(held), cleared=clears)

    async def _time_takeover(self, index: int) -> None:
        blow, killed = self.blows[index], time.monotonic()
        owner = blow.held[0].owner
        await until(lambda: self._holds_nothing(owner), self._plan.lock_ttl + _PATIENCE)
        self.blows[index] = replace(blow, recovery=time.monotonic() - killed)

    async def _stop(self, victim: WorkerProcess) -> None:
        self._now = "stop"
        code = await victim.end()
        held = tuple(await self._held(victim.owner))
        self.blows.append(Blow("stop", held, exit_code=code if code is not None else -1))

    async def _busy_worker(self) -> WorkerProcess:
        """Somebody who has something in flight, after there is something to do."""
        self._writer.burst()
        found: list[WorkerProcess] = []

        async def somebody_works() -> bool:
            owners = {held.owner for held in await self._held()}
            found[:] = [worker for worker in self._crew.at_work() if worker.owner in owners]
            return bool(found)

        if not await until(somebody_works, _PATIENCE):
            raise RuntimeError("no worker has had anything to do")
        return self._random.choice(found)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    async def _held(self, owner: str | None = None) -> list[Held]:
        while True:
            with suppress(DatabaseError):
                return await self._table.held(owner)
            await asyncio.sleep(TICK)

    async def _holds_nothing(self, owner: str) -> bool:
        return not await self._held(owner)

    async def _keep_watch(self) -> None:
        """Replace those whom we have ended, and say how far it is."""
        while True:
            self._crew.muster()
            with suppress(DatabaseError):
                self._open = await self._table.open_rows()
            self._tell(NotificationProgress(self._plan.notifications, self._ended, self._now))
            await asyncio.sleep(TICK * 4)

    @property
    def _ended(self) -> int:
        return max(0, self._plan.notifications - self._open)

    async def _drain(self) -> None:
        """Until nothing is open, or nothing moves any more: the checker says what was left."""
        self._open = await self._table.open_rows()
        least, since = self._open, time.monotonic()
        while self._open and time.monotonic() - since < _STANDSTILL:
            await asyncio.sleep(TICK)
            if self._open < least:
                least, since = self._open, time.monotonic()


async def _called_off(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
