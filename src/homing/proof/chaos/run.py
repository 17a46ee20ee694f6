"""One run: faults side by side while workers are at work, then the drain.

What is delivered, and what must hold of it, is for the lanes to say (`mail.py`, `jobs.py`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from homing.errors import DatabaseError
from homing.proof.chaos.checker import ClaimKey, Fault, FaultKind, Testimony, Verdict, read_testimony
from homing.proof.chaos.processes import WorkerProcess, read_events
from homing.proof.chaos.table import Held
from homing.proof.chaos.waiting import TICK, until

#: Seconds between two kills: a worker takes one or two to start, and should have worked before it dies.
_KILL_PAUSE = (0.4, 1.6)
_RESTART_PAUSE = (2.0, 5.0)
#: The share of the time in which a worker works although it is killed again and again.
_SHARE_AT_WORK = 0.5
#: A rescue comes round five times per lease, and after a kill the workers may all be starting.
_START_SLACK = 4.0
_STARTS_IN_A_RECOVERY = 3
_LAST_STATEMENT = 0.1
#: Without any progress for this long, a drain will not end.
_STANDSTILL = 60.0


class FaultPlan(Struct, frozen=True, kw_only=True):
    """What is done to whom. The lanes add what is delivered meanwhile."""

    workers: int = 4
    #: Kills that must hit a worker with something in flight.
    kills: int = 50
    stops: int = 3
    restarts: int = 0
    lease: float = 5.0
    seed: int = 0

    def answer_delay(self, messages: int, at_once: int) -> float:
        """Slow enough that something is left when the last fault comes; a worker sends `at_once`."""
        seconds = 2 * max(
            self.kills * sum(_KILL_PAUSE) / 2,
            self.stops * self.lease * 1.5 + (_START_SLACK if self.stops else 0.0),
            self.restarts * sum(_RESTART_PAUSE) / 2,
        )
        return min(2.0, max(0.02, self.workers * at_once * _SHARE_AT_WORK * seconds / messages))

    def recovery_limit(self, slowest_start: float) -> float | None:
        """A busy machine may take longer than the slack for a start, and then for all else as well."""
        if self.restarts:
            return None
        return self.lease * 1.2 + max(_START_SLACK, _STARTS_IN_A_RECOVERY * slowest_start)


class Progress(Struct, frozen=True):
    """Where a run is."""

    total: int
    ended: int
    kills: int
    hits: int
    stops: int
    restarts: int


class ChaosReport(Struct, frozen=True):
    plan: FaultPlan
    verdict: Verdict
    seconds: float


Tell = Callable[[Progress], None]
Restart = Callable[[], None]


class Watched(Protocol):
    """The lane's table, seen from beside."""

    async def held(self, owner: str | None = None) -> list[Held]: ...

    async def fences(self) -> Mapping[int, int]:
        """Of each row its `claim_seq`."""

    async def open_rows(self) -> int: ...


class Crew:
    """The workers: as many as planned, each replaced when we have killed it."""

    def __init__(self, plan: FaultPlan, folder: Path, environment: Mapping[str, str], lane: str) -> None:
        self._plan = plan
        self._folder = folder
        self._environment = environment
        self._command = ["work", lane]
        self._started = 0
        self._starting: dict[WorkerProcess, float] = {}
        #: Seconds that a worker took from its start until it was at work, at the most.
        self.slowest_start = 0.0
        self.deserters: list[str] = []
        self.workers: list[WorkerProcess] = []
        self.muster()

    def muster(self) -> None:
        """Bring the crew back to its number."""
        self._time_starts()
        for worker in [w for w in self.workers if w.exit_code is not None]:
            self.workers.remove(worker)
            # One that could not reach the database when it started has not begun to work.
            if not worker.ended_by_us and (worker.ready or not self._plan.restarts):
                self.deserters.append(f"{worker.name}: {worker.exit_code}")
        while len(self.workers) < self._plan.workers:
            self._started += 1
            name = f"worker-{self._started:03d}"
            worker = WorkerProcess(self._folder, name, self._environment, self._command)
            self._starting[worker] = time.monotonic()
            self.workers.append(worker)

    def _time_starts(self) -> None:
        for worker in [worker for worker in self._starting if worker.ready]:
            self.slowest_start = max(self.slowest_start, time.monotonic() - self._starting.pop(worker))

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


class Run:
    """`arrived` says what the receiver has by now and how often, in the words of `Held.mark`.

    `hurry` tells the receiver that it need not take its time any more.
    """

    def __init__(
        self,
        plan: FaultPlan,
        total: int,
        table: Watched,
        arrived: Callable[[], Mapping[str, int]],
        crew: Crew,
        *,
        hurry: Callable[[], None],
        restart: Restart | None,
        tell: Tell,
    ) -> None:
        self._plan, self._total, self._table = plan, total, table
        self._arrived, self._crew = arrived, crew
        self._hurry, self._restart, self._tell = hurry, restart, tell
        self._random = random.Random(plan.seed)  # noqa: S311 - a fault need not be unguessable
        self.faults: list[Fault] = []
        self._arrived_before: dict[str, int] = {}
        self._open = total
        self._watches: set[asyncio.Task[None]] = set()

    async def to_the_end(self) -> None:
        keeping = asyncio.create_task(self._keep_watch())
        try:
            await asyncio.gather(self._kill_workers(), self._stop_workers(), self._restart_postgres())
            self._hurry()
            await asyncio.gather(*self._watches)
            await self._drain()
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
        await self._crew.dismiss()

    # ── faults ───────────────────────────────────────────────────────────────────────────────────

    async def _kill_workers(self) -> None:
        while self._count("kill", hit=True) < self._plan.kills and self._open:
            await asyncio.sleep(self._random.uniform(*_KILL_PAUSE))
            if victims := self._crew.at_work():
                await self._kill(self._random.choice(victims))

    async def _kill(self, victim: WorkerProcess) -> None:
        before = await self._held(victim.owner)
        victim.kill()
        killed = time.monotonic()
        # What it held is at rest now: nobody touches these rows before their leases end, which may be soon.
        after = [*await self._held(victim.owner), *await self._lost_already(before)]
        fault = Fault("kill", tuple(after), self._accepted(after))
        self._note(fault)
        if fault.hit:
            self._watch(self._time_recovery(len(self.faults) - 1, victim.owner, killed))

    async def _lost_already(self, before: Sequence[Held]) -> list[Held]:
        """What others took over before we could look, on a machine that is slow."""
        over = await self._taken_over(before)
        return [held for held in before if (held.id, held.claim_seq) in over]

    async def _time_recovery(self, index: int, owner: str, killed: float) -> None:
        await until(lambda: self._holds_nothing(owner))
        self.faults[index] = replace(self.faults[index], recovery=time.monotonic() - killed)

    async def _stop_workers(self) -> None:
        while self._count("stop", hit=True) < self._plan.stops and self._open:
            await asyncio.sleep(self._random.uniform(*_KILL_PAUSE))
            if len(victims := self._crew.at_work()) > 1 or (victims and self._plan.workers == 1):
                await self._stop(self._random.choice(victims))

    async def _stop(self, victim: WorkerProcess) -> None:
        """Hold a worker until others have its rows, then let it go on in the belief that they are its own."""
        victim.pause()
        # What it had sent to the database before goes through without it.
        await asyncio.sleep(_LAST_STATEMENT)
        held = await self._held(victim.owner)
        accepted = self._accepted(held)
        # In SQLite a worker may be stopped while it holds the lock that everybody else needs.
        await until(lambda: self._holds_nothing(victim.owner), self._plan.lease * 3)
        stale = await self._taken_over(held)
        self._note(Fault("stop", tuple(held), accepted, stale))
        victim.resume()

    async def _taken_over(self, held: Sequence[Held]) -> tuple[ClaimKey, ...]:
        """Of what was held, the claims that are over, and not by a settlement that the stop cut short."""
        fences = await self._fences()
        return tuple((h.id, h.claim_seq) for h in held if fences[h.id] > h.claim_seq)

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

    async def _fences(self) -> Mapping[int, int]:
        while True:
            with suppress(DatabaseError):
                return await self._table.fences()
            await asyncio.sleep(TICK)

    def _accepted(self, held: Sequence[Held]) -> int:
        """How many arrived under the claim that ends here, and not under one before."""
        arrived = self._arrived()
        now = {h.mark: arrived[h.mark] for h in held if h.mark in arrived}
        news = sum(count > self._arrived_before.get(mark, 0) for mark, count in now.items())
        self._arrived_before |= now
        return news

    def _count(self, kind: FaultKind, *, hit: bool = False) -> int:
        return sum(fault.kind == kind and (fault.hit or not hit) for fault in self.faults)

    def _note(self, fault: Fault) -> None:
        self.faults.append(fault)

    def _watch(self, work: Coroutine[None, None, None]) -> None:
        self._watches.add(asyncio.create_task(work))

    async def _keep_watch(self) -> None:
        """Replace the dead, and say how far it is."""
        while True:
            self._crew.muster()
            with suppress(DatabaseError):
                self._open = await self._table.open_rows()
            self._tell(self._progress())
            await asyncio.sleep(TICK * 4)

    def _progress(self) -> Progress:
        return Progress(
            total=self._total,
            ended=self._total - self._open,
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
