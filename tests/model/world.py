"""The world of a simulation: a database and a receiver that keep what they are told, and misbehave.

What a server does happens on the server's time, in nobody's process: a request that is under way when
its sender is stopped or killed may still take effect. Everything that happens is written down in a
`History`, which the checker reads afterwards.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from tests.model.virtual_time import PROCESS, Process, VirtualLoop

from homing.engine.model import (
    Bury,
    Claim,
    Complete,
    Delivered,
    Discard,
    Failure,
    Outcome,
    Reject,
    Retry,
    RetryIn,
    Settlement,
    Skip,
)
from homing.engine.policy import Policy
from homing.errors import Conflict, Unreachable

Result = TypeVar("Result")

#: The lanes rescue a row so often for free; after that a lost worker costs an attempt.
FREE_RESCUES = 3
#: How long a statement may hang before the driver gives it up.
STATEMENT_TIMEOUT = 8.0

EventKind = Literal[
    "insert", "requeue", "claim", "attempt", "accept", "answer", "settle", "stale", "release", "rescue",
    "struck",
]  # fmt: skip


class Event(NamedTuple):
    """`what` is the settlement or outcome where there is one; a struck claim had a fault in its way."""

    at: float
    kind: EventKind
    id: int
    fence: int
    process: str
    what: Any = None


class History:
    """What happened, in order, and who holds what."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.events: list[Event] = []
        #: Claims that have not ended yet, by process: what a fault of it would hit.
        self._held: dict[str, dict[tuple[int, int], None]] = {}
        #: What was logged as a bug of ours.
        self.bugs: list[str] = []

    def note(self, kind: EventKind, id: int, fence: int, process: str, what: Any = None) -> None:
        self.events.append(Event(self._loop.time(), kind, id, fence, process, what))

    def hold(self, id: int, fence: int, process: str) -> None:
        self._held.setdefault(process, {})[id, fence] = None

    def let_go(self, id: int, fence: int, process: str) -> None:
        self._held.get(process, {}).pop((id, fence), None)

    def strike(self, process: str) -> None:
        """A fault hits a process: whatever it holds may now be sent twice."""
        for row_id, fence in self._held.get(process, {}):
            self.note("struck", row_id, fence, process)

    def strike_all(self) -> None:
        for process in list(self._held):
            self.strike(process)


@dataclass
class Row:
    id: int
    due: float
    status: str = "queued"
    fence: int = 0
    attempts: int = 0
    deferrals: int = 0
    rescues: int = 0
    owner: str = ""
    lease_until: float = 0.0


@dataclass(frozen=True)
class Weather:
    """How often things go wrong, each from 0 to 1, and how slow they are. All calm by default."""

    statement_fails: float = 0.0
    commit_unknown: float = 0.0
    statement_hangs: float = 0.0
    slow_send: float = 0.0
    reply_lost: float = 0.0
    refused: float = 0.0
    deferred: float = 0.0
    busy: float = 0.0
    skipped: float = 0.0
    latency: float = 0.01
    send_seconds: float = 0.3


CALM = Weather()


@dataclass
class World:
    """What all processes share."""

    loop: VirtualLoop
    rand: random.Random
    lease: float
    max_attempts: int
    weather: Weather = CALM
    #: What a step of the database's clock has added.
    clock_step: float = 0.0
    rows: dict[int, Row] = field(default_factory=dict)
    #: Called at every point where a process waits for the outside; may kill it right there.
    at_await: Callable[[Process], None] = lambda _process: None
    #: A checker must notice when this is broken.
    fenced: bool = True

    def __post_init__(self) -> None:
        self.history = History(self.loop)

    def now(self) -> float:
        """The database's clock, which is not the clock of any process."""
        return self.loop.time() + 1_000_000.0 + self.clock_step

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rand.random() < probability

    def insert(self, delay: float = 0.0) -> int:
        number = len(self.rows) + 1
        self.rows[number] = Row(number, self.now() + delay)
        self.history.note("insert", number, 0, "")
        return number

    def requeue(self, id: int) -> None:
        row = self.rows[id]
        if row.status in {"failed", "expired", "cancelled"}:
            row.status, row.due = "queued", self.now()
            row.attempts = row.deferrals = row.rescues = 0
            self.history.note("requeue", id, row.fence, "")

    def cancel(self, id: int) -> None:
        if self.rows[id].status == "queued":
            self.rows[id].status = "cancelled"

    def ended(self) -> bool:
        return all(row.status not in {"queued", "dispatching"} for row in self.rows.values())


async def on_server(world: World, process: Process, seconds: float, effect: Callable[[], Result]) -> Result:
    """Ask a server for something and wait for the answer; a killed caller hears nothing any more."""
    world.at_await(process)
    answer: asyncio.Future[Result] = world.loop.create_future()

    def act() -> None:
        result = effect()
        if not answer.done():
            answer.set_result(result)

    # An empty context: what happens over there is held back by no pause over here.
    world.loop.call_later(seconds, act, context=contextvars.Context())
    result = await answer
    await asyncio.sleep(seconds)
    world.at_await(process)
    return result


def _current_process() -> Process:
    process = PROCESS.get()
    assert process is not None, "only processes talk to servers"
    return process


class SimulatedStore:
    """Implements `engine.lane.Store`, seen from one process."""

    def __init__(self, world: World, owner: str) -> None:
        self._world = world
        self._owner = owner

    # ── as a client ──────────────────────────────────────────────────────────────────────────────

    async def claim(self, limit: int) -> list[Claim[int]]:
        return await self._ask(lambda: self._claim(limit))

    async def settle(self, batch: Sequence[tuple[Claim[int], Settlement]]) -> set[int]:
        if not batch:
            return set()
        return await self._ask(lambda: {c.id for c, s in batch if self._settle(c, s)})

    async def confirm(self, claims: Sequence[Claim[int]]) -> set[int]:
        rows = self._world.rows
        return await self._ask(
            lambda: {
                c.id for c in claims if rows[c.id].fence == c.fence and rows[c.id].status != "dispatching"
            }
        )

    async def renew(self, claims: Sequence[Claim[int]]) -> set[int]:
        return await self._ask(lambda: {c.id for c in claims if self._renew(c)})

    async def release(self, claims: Sequence[Claim[int]]) -> set[int]:
        return await self._ask(lambda: {c.id for c in claims if self._release(c)})

    async def rescue(self, limit: int) -> int:
        return await self._ask(lambda: self._rescue(limit))

    async def claim_lost(self, limit: int) -> list[Claim[int]]:
        return await self._ask(lambda: self._claim_lost(limit))

    async def sweep(self, limit: int) -> Mapping[str, int]:
        return {}

    async def _ask(self, effect: Callable[[], Result]) -> Result:
        world, process = self._world, _current_process()
        weather = world.weather
        latency = weather.latency * (0.5 + world.rand.random())
        if world.chance(weather.statement_fails):
            world.history.strike(self._owner)
            await asyncio.sleep(latency)
            raise world.rand.choice((Unreachable, Conflict))("the statement was not run")
        if world.chance(weather.statement_hangs):
            await self._hang(effect)
        result = await on_server(world, process, latency, effect)
        if world.chance(weather.commit_unknown):
            world.history.strike(self._owner)
            raise Unreachable("the connection was lost after the commit")
        return result

    async def _hang(self, effect: Callable[[], object]) -> None:
        """Half of the requests that hang have been carried out."""
        world = self._world
        world.history.strike(self._owner)
        if world.chance(0.5):
            world.loop.call_later(STATEMENT_TIMEOUT / 2, effect, context=contextvars.Context())
        await asyncio.sleep(STATEMENT_TIMEOUT)
        world.history.strike(self._owner)
        raise Unreachable("the statement has timed out")

    # ── as the server ────────────────────────────────────────────────────────────────────────────

    def _claim(self, limit: int) -> list[Claim[int]]:
        now = self._world.now()
        due = [
            row
            for row in self._world.rows.values()
            if row.status == "queued" and row.due <= now and row.attempts < self._world.max_attempts
        ]
        due.sort(key=lambda row: (row.due, row.id))
        return [self._take(row) for row in due[:limit]]

    def _take(self, row: Row) -> Claim[int]:
        row.status, row.owner = "dispatching", self._owner
        row.fence += 1
        row.lease_until = self._world.now() + self._world.lease
        self._world.history.note("claim", row.id, row.fence, self._owner)
        self._world.history.hold(row.id, row.fence, self._owner)
        return Claim(row.id, row.fence, row.attempts, row.id, row.deferrals)

    def _is_mine(self, claim: Claim[int]) -> bool:
        row = self._world.rows[claim.id]
        return row.status == "dispatching" and (row.fence == claim.fence or not self._world.fenced)

    def _settle(self, claim: Claim[int], settlement: Settlement) -> bool:
        row = self._world.rows[claim.id]
        mine = self._is_mine(claim)
        self._world.history.note("settle" if mine else "stale", row.id, claim.fence, self._owner, settlement)
        self._world.history.let_go(row.id, claim.fence, self._owner)
        if mine:
            _write(row, settlement, self._world.now())
        return mine

    def _renew(self, claim: Claim[int]) -> bool:
        mine = self._is_mine(claim)
        if mine:
            self._world.rows[claim.id].lease_until = self._world.now() + self._world.lease
        return mine

    def _release(self, claim: Claim[int]) -> bool:
        mine = self._is_mine(claim)
        if mine:
            self._world.rows[claim.id].status = "queued"
            self._world.history.note("release", claim.id, claim.fence, self._owner)
        self._world.history.let_go(claim.id, claim.fence, self._owner)
        return mine

    def _lost(self, limit: int, *, free: bool) -> list[Row]:
        now = self._world.now()
        return [
            row
            for row in self._world.rows.values()
            if row.status == "dispatching" and row.lease_until < now and (row.rescues < FREE_RESCUES) is free
        ][:limit]

    def _rescue(self, limit: int) -> int:
        lost = self._lost(limit, free=True)
        for row in lost:
            row.status, row.due = "queued", self._world.now()
            row.rescues += 1
            self._world.history.note("rescue", row.id, row.fence, row.owner)
            row.fence += 1
        return len(lost)

    def _claim_lost(self, limit: int) -> list[Claim[int]]:
        lost = self._lost(limit, free=False)
        for row in lost:
            row.rescues += 1
        return [self._take(row) for row in lost]


def _write(row: Row, settlement: Settlement, now: float) -> None:
    charged = getattr(settlement, "charged", False)
    row.attempts += charged
    row.deferrals = row.deferrals + 1 if isinstance(settlement, RetryIn) and not charged else 0
    match settlement:
        case Complete():
            row.status = "sent"
        case RetryIn(delay=delay):
            row.status, row.due = "queued", now + delay
        case Bury():
            row.status = "failed"
        case Discard():
            row.status = "expired"


class SimulatedLane:
    """Implements `engine.lane.Lane`: an attempt sends the row's id to the receiver."""

    name = "simulated"

    def __init__(self, world: World, owner: str, policy: Policy) -> None:
        self.store = SimulatedStore(world, owner)
        self._policy = policy
        self.lease_seconds = world.lease
        self._world = world
        self._owner = owner

    def policy_of(self, _claim: Claim[int]) -> Policy:
        return self._policy

    async def attempt(self, claim: Claim[int]) -> Outcome:
        world = self._world
        world.history.note("attempt", claim.id, claim.fence, self._owner)
        seconds = world.weather.send_seconds * world.rand.random()
        if world.chance(world.weather.slow_send):
            seconds += world.lease * 2 * world.rand.random()
        outcome = await on_server(world, _current_process(), seconds / 2, lambda: self._receive(claim))
        world.history.note("answer", claim.id, claim.fence, self._owner, outcome)
        return outcome

    def _receive(self, claim: Claim[int]) -> Outcome:
        world, weather = self._world, self._world.weather
        if world.chance(weather.refused):
            return Reject(Failure("refused"))
        if world.chance(weather.skipped):
            return Skip(Failure("expired"))
        if world.chance(weather.busy):
            return Retry(Failure("busy"), charged=False)
        if world.chance(weather.deferred):
            return Retry(Failure("deferred"))
        world.history.note("accept", claim.id, claim.fence, self._owner)
        if world.chance(weather.reply_lost):
            world.history.note("struck", claim.id, claim.fence, self._owner)
            return Retry(Failure("timeout", "outcome unknown"))
        return Delivered()

    async def available(self) -> bool:
        return True

    def describe(self, claim: Claim[int], settlement: Settlement | None) -> Mapping[str, Any]:
        return {}
