"""The sentence that the product is built on.

    claim what is due and mark it mine until t → attempt the effect → decide → settle, if it is still mine

A `Deliverer` holds what one process has claimed of one lane. Three ways drive it: a polling worker
(`worker.py`), `run_batch` (an HTTP trigger, a cron line), and, for a broker's message, `take`. How
settlements are written stands in `settle.py`, how leases are kept in `renew.py`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from homing.engine.flight import Flight
from homing.engine.lane import Lane
from homing.engine.model import (
    Claim,
    Complete,
    Failure,
    Monotonic,
    Outcome,
    Rand,
    Reject,
    Retry,
    Settlement,
)
from homing.engine.policy import decide
from homing.engine.renew import Renewer
from homing.engine.room import Room
from homing.engine.settle import Settler
from homing.errors import DatabaseError, Refused
from homing.telemetry import Telemetry, stack_trace

#: Seconds that a stop waits for settlements when the grace time is over.
_LAST_SETTLE = 2.0
#: A stop does not wait longer for a database that is silent.
_LONGEST_RELEASE = 5.0
#: Bytes of a message that is attempted however little room there is. One that is larger, and does not fit
#: into the room either, would end the process before anybody took it.
LARGEST = 128 * 1024 * 1024
#: The size of a large message, where the claim could only guess.
Weigh: TypeAlias = Callable[[Claim[Any]], Awaitable[int]]
#: With whom a large message shares what it may take of the room.
Party: TypeAlias = Callable[[Claim[Any]], str]


class Deliverer:
    """Attempts claims, a bounded number at a time, keeps their leases alive and settles them in batches."""

    def __init__(
        self,
        lane: Lane[Any],
        telemetry: Telemetry,
        *,
        concurrency: int,
        slots: int,
        room: Room | None = None,
        weigh: Weigh | None = None,
        party: Party | None = None,
        monotonic: Monotonic = time.monotonic,
        rand: Rand = random.random,
    ) -> None:
        self.lane = lane
        self._telemetry = telemetry
        self._concurrency = concurrency
        self._slots = slots
        self._large = room or Room(sys.maxsize)
        self._weigh = weigh
        self._party = party
        self._monotonic = monotonic
        self._rand = rand
        self._flights: dict[int, Flight] = {}
        self._waiting: deque[Flight] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._settler = Settler(lane, telemetry, self._forget)
        self._renewer = Renewer(lane, telemetry, self._flights, self._lose, monotonic)
        #: The process is stopping: nothing more is claimed.
        self.closing = False
        #: Somebody wants nothing more to be claimed for a while; what a person orders at once goes through.
        self.paused = False
        #: Since the process began.
        self.claimed = self.delivered = 0
        self._room = asyncio.Event()
        self._room.set()
        self._ended = asyncio.Event()
        # Asked for when somebody looks, which is rarer than a flight.
        telemetry.in_flight.labels(lane.name).set_function(lambda: len(self._flights))

    # ── claim ────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, limit: int) -> list[Claim[Any]]:
        """Claim what is due and start on it."""
        asked = self._monotonic()
        claims = await self.lane.store.claim(limit)
        self._telemetry.claimed(self.lane.name, len(claims), self._monotonic() - asked)
        self.take(claims, until=asked + self.lane.lease_seconds)
        return claims

    async def run_batch(self, limit: int) -> list[Claim[Any]]:
        """Claim one batch, if there is a way out at all; `settled` tells what became of it."""
        # In this order: asking the other side may take a while, and a stop may come meanwhile.
        if not await self.lane.available() or self.closing:
            return []
        return await self.claim(limit)

    def take(self, claims: Iterable[Claim[Any]], until: float) -> None:
        """Start on claims, as far as the concurrency allows; the others wait for their turn."""
        now = self._monotonic()
        for claim in claims:
            self.claimed += 1
            # Our own lease may have ended unnoticed, and the row come back to us.
            if (stale := self._flights.get(claim.id)) is not None and stale.settlement is None:
                self._lose(stale)
            flight = self._flights[claim.id] = Flight(claim, until, now)
            self._waiting.append(flight)
        self._start_runners()
        self._note_room()
        if self._flights:
            self._renewer.start()

    # ── attempt, decide ──────────────────────────────────────────────────────────────────────────

    def _start_runners(self) -> None:
        """One runner serves many flights in turn: a task for each would cost more than its log line."""
        wanted = min(len(self._waiting), self._concurrency - len(self._runners))
        for _ in range(wanted):
            runner = asyncio.get_running_loop().create_task(self._run())
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _run(self) -> None:
        me = asyncio.current_task()
        while self._waiting:
            flight = self._waiting.popleft()
            flight.task = me
            try:
                if flight.claim.size:
                    await self._deliver_large(flight)
                else:
                    await self._deliver(flight)
            except asyncio.CancelledError:
                if not flight.called_off or flight.task is None:
                    raise
                # Only this attempt was called off, not the runner.
                flight.task.uncancel()
            finally:
                flight.task = None

    async def _deliver_large(self, flight: Flight) -> None:
        claim = flight.claim
        size = claim.size
        try:
            size = await self._weigh(claim) if self._weigh is not None else size
        except Refused:
            # More than the database can write out.
            size = sys.maxsize + 1
        except DatabaseError:
            # That is away for the attempt, too, which tells of it.
            pass
        if size > (most := max(self._large.limit, LARGEST)):
            self._conclude(flight, _too_large(most), self._monotonic())
            return
        async with self._large.take(self._party(claim) if self._party else self.lane.name, size):
            await self._deliver(flight)

    async def _deliver(self, flight: Flight) -> None:
        # A process that was stopped for longer than its lease finds out here, before it sends.
        if (started := self._monotonic()) >= flight.until:
            self._lose(flight)
            return
        self._conclude(flight, await self._attempt(flight.claim), started)

    def _conclude(self, flight: Flight, outcome: Outcome, started: float) -> None:
        flight.ended(outcome, started, self._monotonic())
        policy = self.lane.policy_of(flight.claim)
        flight.settlement = decide(policy, flight.claim, outcome, self._rand, flight.millis)
        self._settler.put(flight)

    async def _attempt(self, claim: Claim[Any]) -> Outcome:
        """What happened. An exception is a bug of ours, and costs an attempt: it cannot go on for ever."""
        try:
            return await self.lane.attempt(claim)
        except DatabaseError as error:
            # Our own database was away: that says nothing of the message, and costs it nothing.
            return Retry(Failure("database_error", str(error)), charged=False)
        except Exception as bug:  # noqa: BLE001 - the one place between a bug and the loop
            self._telemetry.crashed("delivery.crashed", bug, lane=self.lane.name, id=claim.id)
            return Retry(Failure("internal_error", type(bug).__name__, stack_trace(bug)))

    # ── the end of a flight ──────────────────────────────────────────────────────────────────────

    def _lose(self, flight: Flight) -> None:
        """Another worker has the row, or may have: stop what can still be stopped, write nothing."""
        if self._flights.get(flight.claim.id) is flight:
            self._telemetry.lease_lost(self.lane.name, flight.claim.id, flight.claim.fence)
            self._withdraw(flight)
            self._forget(flight, None)

    def _withdraw(self, flight: Flight) -> None:
        if flight.task is None and flight in self._waiting:
            self._waiting.remove(flight)
        flight.call_off()

    def _forget(self, flight: Flight, settlement: Settlement | None) -> None:
        if self._flights.get(flight.claim.id) is flight:
            del self._flights[flight.claim.id]
        if isinstance(settlement, Complete):
            self.delivered += 1
        if flight.watcher is not None and not flight.watcher.done():
            flight.watcher.set_result(settlement)
        self._ended.set()
        self._note_room()

    async def settled(self, claims: Iterable[Claim[Any]]) -> dict[int, Settlement | None]:
        """Wait for claims of ours to end; None for one whose lease was lost or given back."""
        watched = {c.id: flight.watch() for c in claims if (flight := self._flights.get(c.id)) is not None}
        # Shielded: whoever gives up waiting must not end the wait of the others.
        return {id: await asyncio.shield(watcher) for id, watcher in watched.items()}

    async def progressed(self) -> None:
        """Wait until something that was taken on has ended."""
        self._ended.clear()
        if self._flights:
            await self._ended.wait()

    async def finished(self) -> None:
        """Wait until everything that was taken on has ended."""
        while self._flights:
            await self.settled([flight.claim for flight in self._flights.values()])

    # ── room for more ────────────────────────────────────────────────────────────────────────────

    @property
    def idle(self) -> bool:
        return not self._flights

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def free(self) -> int:
        """How many more claims fit."""
        return self._slots - len(self._flights)

    def _note_room(self) -> None:
        # Small claims cost as much as large ones: a worker waits until a fifth of its slots are free.
        if self.closing or self.free >= max(1, self._slots // 5):
            self._room.set()
        else:
            self._room.clear()

    async def has_room(self) -> None:
        """Wait until it is worth claiming again, or until nothing is to be claimed any more."""
        await self._room.wait()

    def claim_no_more(self) -> None:
        self.closing = True
        self._note_room()

    # ── release ──────────────────────────────────────────────────────────────────────────────────

    async def drain(self, grace: float) -> None:
        """Finish what has begun, within the grace time; give back everything else, uncharged."""
        deadline = self._monotonic() + grace
        await self.give_back_waiting()
        await self._finish(deadline, at_once=not grace)
        late = [f for f in self._flights.values() if f.settlement is None]
        for flight in late:
            self._withdraw(flight)
        await self._release(late)
        # What was sent must not be forgotten, also when the end is to be immediate.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SETTLE):
                await self._settler.drained()
        self._renewer.stop()

    async def give_back_waiting(self) -> None:
        """What was claimed and has not begun, uncharged."""
        waiting = list(self._waiting)
        self._waiting.clear()
        await self._release(waiting)

    async def _finish(self, deadline: float, *, at_once: bool) -> None:
        try:
            async with asyncio.timeout(max(0.0, deadline - self._monotonic())):
                while self._runners:
                    await asyncio.wait(self._runners)
                await self._settler.drained()
        except TimeoutError:
            log, facts = self._telemetry.log, {"lane": self.lane.name, "in_flight": len(self._flights)}
            if at_once:
                log.warning("drain.stopped_now", **facts)
            else:
                log.warning("drain.grace_over", **facts)

    async def _release(self, flights: Sequence[Flight]) -> None:
        if flights:
            try:
                async with asyncio.timeout(_LONGEST_RELEASE):
                    await self.lane.store.release([f.claim for f in flights])
            except (DatabaseError, TimeoutError) as error:
                # Their leases end by themselves, and a rescue costs them nothing.
                reason = str(error) or "no answer"
                self._telemetry.log.warning("release.failed", lane=self.lane.name, error=reason)
        for flight in flights:
            self._forget(flight, None)


def _too_large(most: int) -> Outcome:
    size = f"it has more than {most // 2**20} MiB"
    hint = "send a link to what is so large, or raise HOMING_BYTES_AT_ONCE"
    return Reject(Failure("message_too_large", f"{size}; {hint}"))
