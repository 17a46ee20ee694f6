"""`homing chaos mail`: workers are killed and stopped and the database restarted while mails go out.

A sink in a process of its own answers slowly, so that the run lasts and every worker has mail in flight.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from homing.app import opened
from homing.errors import DatabaseError
from homing.proof.chaos.checker import (
    ClaimKey,
    Evidence,
    Fault,
    FaultKind,
    Testimony,
    Verdict,
    check,
    read_testimony,
)
from homing.proof.chaos.processes import SinkProcess, WorkerProcess, read_events, worker_environment
from homing.proof.chaos.table import Held, MailTable
from homing.proof.chaos.waiting import TICK, until
from homing.settings import load_settings

#: Seconds between two kills: a worker takes one or two to start, and should have worked before it dies.
_KILL_PAUSE = (0.4, 1.6)
_RESTART_PAUSE = (2.0, 5.0)
#: The share of the time in which a worker works although it is killed again and again.
_SHARE_AT_WORK = 0.5
#: A rescue comes round five times per lease, and after a kill the workers may all be starting.
_START_SLACK = 4.0
#: Without any progress for this long, a drain will not end.
_STANDSTILL = 60.0


class Plan(Struct, frozen=True):
    mails: int = 10_000
    workers: int = 4
    #: Kills that must hit a worker with mail in flight.
    kills: int = 50
    stops: int = 3
    restarts: int = 0
    lease: float = 5.0
    seed: int = 0
    connections: int = 10
    #: Rows that one worker holds: what it sends now, and as much again that waits.
    batch: int = 40

    @property
    def sink_delay(self) -> float:
        """Slow enough that mail is left when the last fault comes."""
        seconds = 2 * max(
            self.kills * sum(_KILL_PAUSE) / 2,
            self.stops * self.lease * 1.5,
            self.restarts * sum(_RESTART_PAUSE) / 2,
        )
        return min(2.0, max(0.02, self.workers * self.connections * _SHARE_AT_WORK * seconds / self.mails))

    @property
    def recovery_limit(self) -> float | None:
        return None if self.restarts else self.lease * 1.2 + _START_SLACK


class Progress(Struct, frozen=True):
    """Where a run is."""

    mails: int
    ended: int
    kills: int
    hits: int
    stops: int
    restarts: int


class ChaosReport(Struct, frozen=True):
    plan: Plan
    verdict: Verdict
    seconds: float


Tell = Callable[[Progress], None]
Restart = Callable[[], None]


async def run_mail(
    plan: Plan,
    database_url: str,
    folder: Path,
    *,
    tell: Tell = lambda _: None,
    restart: Restart | None = None,
) -> ChaosReport:
    """Run the plan on an empty database; `folder` gets the logs. `restart` crashes the database server."""
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        await _make_tables(database_url)
        table = MailTable(database_url)
        stack.push_async_callback(table.close)
        ordered = await table.fill(plan.mails)
        sink = SinkProcess(folder, delay=plan.sink_delay)
        stack.callback(sink.close)
        crew = _Crew(plan, database_url, sink.url, folder)
        stack.callback(crew.close)
        run = _Run(plan, table, sink, crew, restart=restart, tell=tell)
        deserters = await run.to_the_end()
        evidence = Evidence(
            ordered, await table.ends(), sink.deliveries(), run.faults, run.crew.testimony(), deserters,
            wanted_hits=plan.kills, recovery_limit=plan.recovery_limit,
        )  # fmt: skip
    return ChaosReport(plan, check(evidence), round(time.monotonic() - started, 1))


async def _make_tables(database_url: str) -> None:
    settings = load_settings({"database_url": database_url, "mail_url": "memory://"}, environ={})
    async with opened(settings, makes_file=True) as homing:
        await homing.migrate()


class _Crew:
    """The workers: as many as planned, each replaced when we have killed it."""

    def __init__(self, plan: Plan, database_url: str, mail_url: str, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._started = 0
        self.deserters: list[str] = []
        self._environment = worker_environment(
            database_url, mail_url,
            homing_mail_connections=plan.connections, homing_mail_batch=plan.batch,
            dispatch_lease_seconds=plan.lease,
            dispatch_backoff_base_seconds=1, dispatch_backoff_max_seconds=5,
        )  # fmt: skip
        self.workers: list[WorkerProcess] = []
        self.muster()

    def muster(self) -> None:
        """Bring the crew back to its number."""
        for worker in [w for w in self.workers if w.exit_code is not None]:
            self.workers.remove(worker)
            # One that could not reach the database when it started has not begun to work.
            if not worker.ended_by_us and (worker.ready or not self._plan.restarts):
                self.deserters.append(f"{worker.name}: {worker.exit_code}")
        while len(self.workers) < self._plan.workers:
            self._started += 1
            name = f"worker-{self._started:03d}"
            self.workers.append(WorkerProcess(self._folder, name, self._environment, ["work"]))

    def at_work(self) -> list[WorkerProcess]:
        return [w for w in self.workers if w.exit_code is None and not w.stopped and w.ready]

    async def dismiss(self) -> None:
        """End them in an orderly way, the last thing that a run asks of them."""
        for worker, code in zip(
            self.workers, await asyncio.gather(*(w.end() for w in self.workers)), strict=True
        ):
            if code != 0 and worker.ready:
                self.deserters.append(f"{worker.name}: {code} at the end")

    def testimony(self) -> Testimony:
        logs = sorted(self._folder.glob("worker-*.log"))
        return read_testimony(event for log in logs for event in read_events(log))

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()


class _Run:
    """One run: the faults side by side, then the drain."""

    def __init__(
        self,
        plan: Plan,
        table: MailTable,
        sink: SinkProcess,
        crew: _Crew,
        *,
        restart: Restart | None,
        tell: Tell,
    ) -> None:
        self._plan, self._table, self._sink = plan, table, sink
        self.crew = crew
        self._restart, self._tell = restart, tell
        self._random = random.Random(plan.seed)  # noqa: S311 - a fault need not be unguessable
        self.faults: list[Fault] = []
        self._open = plan.mails
        self._watches: set[asyncio.Task[None]] = set()

    async def to_the_end(self) -> list[str]:
        keeping = asyncio.create_task(self._keep_watch())
        try:
            await asyncio.gather(self._kill_workers(), self._stop_workers(), self._restart_postgres())
            await asyncio.gather(*self._watches)
            await self._drain()
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
        await self.crew.dismiss()
        return self.crew.deserters

    # ── faults ───────────────────────────────────────────────────────────────────────────────────

    async def _kill_workers(self) -> None:
        while self._count("kill", hit=True) < self._plan.kills and self._open:
            await asyncio.sleep(self._random.uniform(*_KILL_PAUSE))
            if victims := self.crew.at_work():
                await self._kill(self._random.choice(victims))

    async def _kill(self, victim: WorkerProcess) -> None:
        before = await self._held(victim.owner)
        victim.kill()
        killed = time.monotonic()
        # What it held is at rest now: nobody touches these rows before their leases end.
        after = await self._held(victim.owner)
        fault = Fault("kill", tuple(after) if before else (), self._accepted(after))
        self._note(fault)
        if fault.hit:
            self._watch(self._time_recovery(len(self.faults) - 1, victim.owner, killed))

    async def _time_recovery(self, index: int, owner: str, killed: float) -> None:
        await until(lambda: self._holds_nothing(owner))
        self.faults[index] = replace(self.faults[index], recovery=time.monotonic() - killed)

    async def _stop_workers(self) -> None:
        while self._count("stop", hit=True) < self._plan.stops and self._open:
            await asyncio.sleep(self._random.uniform(*_KILL_PAUSE))
            if len(victims := self.crew.at_work()) > 1 or (victims and self._plan.workers == 1):
                await self._stop(self._random.choice(victims))

    async def _stop(self, victim: WorkerProcess) -> None:
        """Hold a worker until others have its rows, then let it go on in the belief that they are its own."""
        victim.pause()
        held = await self._held(victim.owner)
        accepted = self._accepted(held)
        # In SQLite a worker may be stopped while it holds the lock that everybody else needs.
        await until(lambda: self._holds_nothing(victim.owner), self._plan.lease * 3)
        stale = await self._taken_over(held)
        self._note(Fault("stop", tuple(held), accepted, stale))
        victim.resume()

    async def _taken_over(self, held: list[Held]) -> tuple[ClaimKey, ...]:
        """Of what was held, the claims that no longer are; a settlement that the stop cut short is none."""
        ends = {end.id: end for end in await self._table.ends()}
        return tuple(
            (h.id, h.claim_seq)
            for h in held
            if ends[h.id].claim_seq > h.claim_seq or ends[h.id].status == "queued"
        )

    async def _restart_postgres(self) -> None:
        for _ in range(self._plan.restarts if self._restart else 0):
            await asyncio.sleep(self._random.uniform(*_RESTART_PAUSE))
            if not self._open or self._restart is None:
                return
            held = await self._held()
            await asyncio.to_thread(self._restart)
            self._note(Fault("restart-postgres", tuple(held)))

    async def _holds_nothing(self, owner: str) -> bool:
        return not await self._held(owner)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    async def _held(self, owner: str | None = None) -> list[Held]:
        while True:
            with suppress(DatabaseError):
                return await self._table.held(owner)
            await asyncio.sleep(TICK)

    def _accepted(self, held: list[Held]) -> int:
        arrived = self._sink.addresses()
        return sum(h.address in arrived for h in held)

    def _count(self, kind: FaultKind, *, hit: bool = False) -> int:
        return sum(fault.kind == kind and (fault.hit or not hit) for fault in self.faults)

    def _note(self, fault: Fault) -> None:
        self.faults.append(fault)

    def _watch(self, work: Coroutine[None, None, None]) -> None:
        self._watches.add(asyncio.create_task(work))

    async def _keep_watch(self) -> None:
        """Replace the dead, and say how far it is."""
        while True:
            self.crew.muster()
            with suppress(DatabaseError):
                self._open = await self._table.open_rows()
            self._tell(self._progress())
            await asyncio.sleep(TICK * 4)

    def _progress(self) -> Progress:
        return Progress(
            mails=self._plan.mails,
            ended=self._plan.mails - self._open,
            kills=self._count("kill"),
            hits=self._count("kill", hit=True),
            stops=self._count("stop"),
            restarts=self._count("restart-postgres"),
        )

    async def _drain(self) -> None:
        """Until nothing is open, or nothing moves any more: the checker says what was left."""
        least, since = self._open, time.monotonic()
        while self._open and time.monotonic() - since < _STANDSTILL:
            await asyncio.sleep(TICK)
            if self._open < least:
                least, since = self._open, time.monotonic()
