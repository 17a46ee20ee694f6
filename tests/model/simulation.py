"""Several workers with the real engine, on virtual time, with faults by seed.

    python -m tests.model.simulation --seeds 10000      # a night's run
    python -m tests.model.simulation --first 4711 --seeds 1 --verbose

A run is a function of its seed: whatever fails is printed with it and can be replayed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry
from tests.model.checker import check, doubles
from tests.model.virtual_time import Process, VirtualLoop, run_virtually
from tests.model.world import CALM, Event, History, SimulatedLane, Weather, World

from homing.engine.deliver import Deliverer
from homing.engine.maintenance import Maintenance
from homing.engine.policy import Exponential, Policy
from homing.engine.worker import Worker
from homing.telemetry import Telemetry

#: Virtual seconds after which a run that has not ended never will.
_HORIZON = 3600.0


@dataclass(frozen=True)
class Plan:
    """A run before its seed fills in the details. Rates are per process and virtual second."""

    workers: int = 3
    rows: int = 30
    seconds: float = 20.0
    lease: float = 4.0
    slots: int = 12
    concurrency: int = 4
    grace: float = 60.0
    weather: Weather = CALM
    crashes: float = 0.0
    pauses: float = 0.0
    restarts: float = 0.0
    clock_steps: float = 0.0
    operator: float = 0.0
    fenced: bool = True
    #: Kill the process that comes to the n-th point where anybody waits for the outside.
    crash_at: int | None = None


@dataclass(frozen=True)
class Run:
    """What came of it."""

    seed: int
    violations: list[str]
    events: list[Event]
    awaits: int
    seconds: float

    def count(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)

    @property
    def doubles(self) -> int:
        return doubles(self.events)


class _Node:
    """One process of Homing, as `service.run` puts it together."""

    def __init__(self, name: str, world: World, plan: Plan, policy: Policy, telemetry: Telemetry) -> None:
        self.process = Process(name, world.loop)
        self.name = name
        # Every process has a clock of its own, and none agrees with the database's.
        offset = world.rand.uniform(0, 10_000)

        def monotonic() -> float:
            return world.loop.time() + offset

        lane = SimulatedLane(world, name, policy)
        self.deliverer = Deliverer(
            lane,
            telemetry,
            concurrency=plan.concurrency,
            slots=plan.slots,
            monotonic=monotonic,
            rand=world.rand.random,
        )
        self.worker = Worker(self.deliverer, telemetry)
        maintenance = Maintenance(lane, telemetry, world.rand.random, monotonic)
        self._working = self.process.spawn(self.worker.run())
        self._maintaining = self.process.spawn(maintenance.run())

    async def stop(self, grace: float) -> None:
        """SIGTERM."""
        self.process.call(self.worker.stop)
        await self.process.spawn(self._leave(grace))

    async def _leave(self, grace: float) -> None:
        await self._working
        await self.deliverer.drain(grace)
        self._maintaining.cancel()


class Simulation:
    def __init__(self, plan: Plan, seed: int, loop: VirtualLoop) -> None:
        self._plan = plan
        self._loop = loop
        self._rand = random.Random(seed)
        policy = Policy(5, Exponential(0.5, 4.0, 0.2), max_deferrals=4, shortest_deferral=0.2)
        self.world = World(loop, self._rand, plan.lease, policy.max_attempts, fenced=plan.fenced)
        self.world.at_await = self._at_await
        self._policy = policy
        self._telemetry = Telemetry(_BugLog(self.world.history), CollectorRegistry())
        self._nodes: list[_Node] = []
        self._started = 0
        self.awaits = 0

    # ── the run ──────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        plan = self._plan
        self.world.weather = plan.weather
        for _ in range(plan.workers):
            self._start()
        for _ in range(plan.rows):
            self.world.insert(self._rand.uniform(0, plan.seconds / 2))
        await self._play_faults(self._loop.time() + plan.seconds)
        self.world.weather = replace(plan.weather, **_NO_FAULTS)
        await self._until_ended()
        await asyncio.gather(*(node.stop(plan.grace) for node in self._nodes))

    async def _until_ended(self) -> None:
        while True:
            if self.world.ended() or self._loop.time() >= _HORIZON:
                return
            await asyncio.sleep(1.0)

    def _start(self) -> None:
        self._started += 1
        name = f"p{self._started}"
        self._nodes.append(_Node(name, self.world, self._plan, self._policy, self._telemetry))

    # ── faults ───────────────────────────────────────────────────────────────────────────────────

    async def _play_faults(self, until: float) -> None:
        plan = self._plan
        acts: list[tuple[float, Callable[[], None]]] = [
            (plan.crashes, self._crash),
            (plan.pauses, self._pause),
            (plan.restarts, self._restart),
            (plan.clock_steps, self._step_clock),
            (plan.operator, self._operate),
        ]
        while self._loop.time() < until:
            await asyncio.sleep(self._rand.uniform(0.05, 0.45))
            for rate, act in acts:
                if self._rand.random() < rate * 0.25 * len(self._nodes):
                    act()

    def _any_node(self) -> _Node | None:
        awake = [node for node in self._nodes if not node.process.paused]
        return self._rand.choice(awake) if awake else None

    def _crash(self) -> None:
        if (node := self._any_node()) is not None:
            self._kill(node)

    def _kill(self, node: _Node) -> None:
        self.world.history.strike(node.name)
        self._nodes.remove(node)
        node.process.kill()
        self._loop.call_later(self._rand.uniform(0, 3), self._start)

    def _pause(self) -> None:
        """Stopped for up to three leases, as by SIGSTOP or a machine that swaps."""
        if (node := self._any_node()) is None:
            return
        self.world.history.strike(node.name)
        node.process.pause()
        self._loop.call_later(self._rand.uniform(0.1, 3) * self._plan.lease, self._resume, node)

    def _resume(self, node: _Node) -> None:
        self.world.history.strike(node.name)
        node.process.resume()

    def _restart(self) -> None:
        """A rolling deployment: one leaves in peace, another takes its place."""
        if (node := self._any_node()) is not None:
            self._nodes.remove(node)
            self._loop.create_task(node.stop(self._plan.grace))
            self._start()

    def _step_clock(self) -> None:
        """The database's clock is set, in either direction."""
        self.world.history.strike_all()
        self.world.clock_step += self._rand.uniform(-2, 2) * self._plan.lease

    def _operate(self) -> None:
        """Somebody requeues or cancels, and a hint wakes a worker."""
        number = self._rand.choice(list(self.world.rows))
        self._rand.choice((self.world.requeue, self.world.cancel))(number)
        if (node := self._any_node()) is not None:
            node.worker.wake()

    def _at_await(self, process: Process) -> None:
        number, self.awaits = self.awaits, self.awaits + 1
        if number == self._plan.crash_at:
            self._kill(next(node for node in self._nodes if node.process is process))


class _BugLog:
    """Only a logged exception matters: the engine takes it for a bug, and so do we."""

    def __init__(self, history: History) -> None:
        self._history = history

    def info(self, _event: str, **_fields: Any) -> None:
        pass

    warning = info

    def error(self, event: str, **fields: Any) -> None:
        self._history.bugs.append(f"{event} {fields}: {sys.exc_info()[1]!r}")


#: The receiver keeps its ways, but nothing breaks any more: now everything has to end.
_NO_FAULTS: dict[str, float] = dict.fromkeys(
    ("statement_fails", "commit_unknown", "statement_hangs", "slow_send", "reply_lost"), 0.0
)


def simulate(plan: Plan, seed: int) -> Run:
    async def main(loop: VirtualLoop) -> Run:
        simulation = Simulation(plan, seed, loop)
        await simulation.run()
        world = simulation.world
        return Run(seed, check(world), world.history.events, simulation.awaits, loop.time())

    return run_virtually(main)


def plan_of(seed: int) -> Plan:
    """Each seed has its own mixture: some are calm, some have one kind of fault, some all at once."""
    rand = random.Random(seed * 7919 + 1)

    def rate(most: float, often: float = 0.5) -> float:
        return rand.uniform(0, most) if rand.random() < often else 0.0

    weather = Weather(
        statement_fails=rate(0.2),
        commit_unknown=rate(0.1),
        statement_hangs=rate(0.02, 0.3),
        slow_send=rate(0.15),
        reply_lost=rate(0.1),
        refused=rate(0.05),
        deferred=rate(0.4),
        busy=rate(0.3, 0.3),
        skipped=rate(0.05, 0.2),
        # A round trip is at most three latencies, and has to fit into a third of the shortest lease.
        latency=rand.choice((0.001, 0.01, 0.1)),
        send_seconds=rand.choice((0.05, 0.5, 3.0)),
    )
    return Plan(
        workers=rand.randint(1, 4),
        rows=rand.randint(5, 40),
        seconds=rand.uniform(5, 25),
        lease=rand.choice((1.5, 4.0, 10.0)),
        slots=rand.choice((3, 12, 40)),
        concurrency=rand.choice((1, 4, 16)),
        weather=weather,
        crashes=rate(0.15),
        pauses=rate(0.15),
        restarts=rate(0.1, 0.3),
        clock_steps=rate(0.05, 0.2),
        operator=rate(0.5, 0.3),
    )


def main() -> None:
    given = _options()
    totals = Counter[str]()
    for seed in range(given.first, given.first + given.seeds):
        run = simulate(plan_of(seed), seed)
        totals.update(_figures(run))
        if run.violations or given.verbose:
            _show(run, verbose=given.verbose)
    sys.stdout.write(" ".join(f"{name}={totals[name]}" for name in totals) + "\n")
    sys.exit(1 if totals["violations"] else 0)


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description="simulate deliveries with faults, by seed")
    options.add_argument("--seeds", type=int, default=300)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--verbose", action="store_true", help="print what happened, event by event")
    return options.parse_args()


def _figures(run: Run) -> dict[str, int]:
    kinds = ("insert", "claim", "attempt", "accept", "settle", "stale", "rescue", "release", "struck")
    figures = {kind: run.count(kind) for kind in kinds}
    return {"runs": 1, **figures, "doubles": run.doubles, "violations": len(run.violations)}


def _show(run: Run, *, verbose: bool) -> None:
    lines = [str(plan_of(run.seed)), *map(_line, run.events)] if verbose else []
    lines += [f"seed {run.seed}: {violation}" for violation in run.violations]
    sys.stdout.write("\n".join(lines) + "\n")


def _line(event: Event) -> str:
    about = f"{event.at:9.3f} {event.kind:8} row {event.id} claim {event.fence} {event.process}"
    return f"{about} {event.what or ''}"


if __name__ == "__main__":
    main()
