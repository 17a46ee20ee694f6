"""The sentence that the product is built on.

    claim what is due and mark it mine until t → attempt the effect → decide → settle, if it is still mine

A `Deliverer` holds what one process has claimed of one lane. Three ways drive it: a polling worker
(`worker.py`), `run_batch` (an HTTP trigger, a cron line), and, for a broker's message, `take`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from homing.engine.coalesce import Coalescer
from homing.engine.lane import Lane
from homing.engine.model import (
    Bury,
    Claim,
    Complete,
    Discard,
    Failure,
    Monotonic,
    Outcome,
    Rand,
    Retry,
    RetryIn,
    Settlement,
)
from homing.engine.policy import decide
from homing.errors import Conflict, DatabaseError, Unreachable
from homing.telemetry import Attempted, Telemetry

#: A lease is renewed when a third of it has passed: two renewals may fail before it is lost.
_RENEWALS_PER_LEASE = 3
_SETTLE_PAUSE, _LONGEST_SETTLE_PAUSE = 0.05, 2.0
#: Seconds that a stop waits for settlements when the grace time is over.
_LAST_SETTLE = 2.0
#: A stop does not wait longer for a database that is silent.
_LONGEST_RELEASE = 5.0


class Flight:
    """One claim on its way. The only thing here that changes: it is where the time is kept."""

    __slots__ = ("claim", "outcome", "seconds", "settlement", "task", "until", "watcher")

    def __init__(self, claim: Claim[Any], until: float) -> None:
        self.claim = claim
        #: When the lease ends, by our monotonic clock; counted from before the claim was asked for.
        self.until = until
        self.task: asyncio.Task[None] | None = None
        self.outcome: Outcome | None = None
        self.settlement: Settlement | None = None
        self.seconds = 0.0
        #: Resolved with the settlement, or with None when the lease was lost or given back.
        self.watcher: asyncio.Future[Settlement | None] | None = None


class Deliverer:
    """Attempts claims, a bounded number at a time, keeps their leases alive and settles them in batches."""

    def __init__(
        self,
        lane: Lane[Any],
        telemetry: Telemetry,
        *,
        concurrency: int,
        slots: int,
        monotonic: Monotonic = time.monotonic,
        rand: Rand = random.random,
    ) -> None:
        self.lane = lane
        self._telemetry = telemetry
        self._concurrency = concurrency
        self._slots = slots
        self._monotonic = monotonic
        self._rand = rand
        self._flights: dict[int, Flight] = {}
        self._waiting: deque[Flight] = deque()
        self._running = 0
        self._closing = False
        self._settling: Coalescer[Flight] = Coalescer(self._flush)
        self._room = asyncio.Event()
        self._room.set()
        self._heartbeat: asyncio.Task[None] | None = None
        self._in_flight = telemetry.in_flight.labels(lane.name)

    # ── claim ────────────────────────────────────────────────────────────────────────────────────

    @property
    def free(self) -> int:
        """How many more claims fit."""
        return self._slots - len(self._flights)

    async def claim(self, limit: int) -> list[Claim[Any]]:
        """Claim what is due and start on it."""
        asked = self._monotonic()
        claims = await self.lane.store.claim(limit)
        self._telemetry.claimed(self.lane.name, len(claims), self._monotonic() - asked)
        self.take(claims, until=asked + self.lane.lease_seconds)
        return claims

    async def run_batch(self, limit: int) -> list[Claim[Any]]:
        """Claim one batch, if there is a way out at all; `settled` tells what became of it."""
        return await self.claim(limit) if await self.lane.available() else []

    def take(self, claims: Iterable[Claim[Any]], until: float) -> None:
        """Start on claims, as far as the concurrency allows; the others wait for their turn."""
        for claim in claims:
            # Our own lease may have ended unnoticed, and the row come back to us.
            if (stale := self._flights.get(claim.id)) is not None and stale.settlement is None:
                self._lose(stale)
            flight = self._flights[claim.id] = Flight(claim, until)
            self._waiting.append(flight)
        self._start_waiting()
        self._note_room()
        if self._flights and self._heartbeat is None:
            self._heartbeat = asyncio.get_running_loop().create_task(self._renew_leases())

    # ── attempt, decide ──────────────────────────────────────────────────────────────────────────

    def _start_waiting(self) -> None:
        create_task = asyncio.get_running_loop().create_task
        while self._waiting and self._running < self._concurrency:
            flight = self._waiting.popleft()
            self._running += 1
            flight.task = create_task(self._deliver(flight))
            # Not a `finally` of the task: one that is cancelled before its first step has none.
            flight.task.add_done_callback(partial(self._make_way, flight))

    def _make_way(self, flight: Flight, _task: asyncio.Task[None]) -> None:
        self._running -= 1
        flight.task = None
        self._start_waiting()

    async def _deliver(self, flight: Flight) -> None:
        # A process that was stopped for longer than its lease finds out here, before it sends.
        if (started := self._monotonic()) >= flight.until:
            self._lose(flight)
            return
        flight.outcome = await self._attempt(flight.claim)
        flight.seconds = self._monotonic() - started
        flight.settlement = decide(self.lane.policy, flight.claim, flight.outcome, self._rand)
        self._settling.put(flight)

    async def _attempt(self, claim: Claim[Any]) -> Outcome:
        """What happened. An exception is a bug of ours, and costs an attempt: it cannot go on for ever."""
        try:
            return await self.lane.attempt(claim)
        except Exception as bug:  # noqa: BLE001 - it is reported, and charged
            self._telemetry.crashed("delivery.crashed", bug, lane=self.lane.name, id=claim.id)
            return Retry(Failure("internal_error", type(bug).__name__))

    # ── settle ───────────────────────────────────────────────────────────────────────────────────

    async def _flush(self, flights: Sequence[Flight]) -> None:
        batch = [(f.claim, f.settlement) for f in flights if f.settlement is not None]
        settled = await self._settle_patiently(batch)
        for flight in flights:
            self._land(flight, took_effect=flight.claim.id in settled)

    async def _settle_patiently(self, batch: Sequence[tuple[Claim[Any], Settlement]]) -> set[int]:
        """Settle, also when the database is away for a while: what was sent must not be forgotten.

        The fence makes it safe to try again, and to be late: a row that was taken over is not touched.
        What the database refuses is tried row by row, and at last without the words of the other side.
        """
        pause = _SETTLE_PAUSE
        while True:
            try:
                return await self.lane.store.settle(batch)
            except (Unreachable, Conflict) as error:
                self._note_delay(len(batch), str(error))
            except Exception as refused:  # noqa: BLE001 - a bad value of one row must not hold up the others
                self._note_delay(len(batch), type(refused).__name__)
                if len(batch) > 1:
                    settled = [await self._settle_patiently([one]) for one in batch]
                    return set().union(*settled)
                batch = [(claim, _bare(settlement)) for claim, settlement in batch]
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_SETTLE_PAUSE)

    def _note_delay(self, rows: int, error: str) -> None:
        self._telemetry.log.warning("settle.delayed", lane=self.lane.name, rows=rows, error=error)

    def _land(self, flight: Flight, *, took_effect: bool) -> None:
        self._telemetry.attempted(_attempted(self.lane, flight, took_effect=took_effect))
        self._forget(flight, flight.settlement if took_effect else None)

    def _forget(self, flight: Flight, settlement: Settlement | None) -> None:
        if self._flights.get(flight.claim.id) is flight:
            del self._flights[flight.claim.id]
        if flight.watcher is not None and not flight.watcher.done():
            flight.watcher.set_result(settlement)
        self._note_room()

    def _note_room(self) -> None:
        self._in_flight.set(len(self._flights))
        # Small claims cost as much as large ones: a worker waits until a fifth of its slots are free.
        if self._closing or self.free >= max(1, self._slots // 5):
            self._room.set()
        else:
            self._room.clear()

    async def has_room(self) -> None:
        """Wait until it is worth claiming again, or until nothing is to be claimed any more."""
        await self._room.wait()

    def claim_no_more(self) -> None:
        self._closing = True
        self._note_room()

    async def settled(self, claims: Iterable[Claim[Any]]) -> dict[int, Settlement | None]:
        """Wait for claims of ours to end; None for one whose lease was lost or given back."""
        flights = [flight for c in claims if (flight := self._flights.get(c.id)) is not None]
        for flight in flights:
            if flight.watcher is None:
                flight.watcher = asyncio.get_running_loop().create_future()
        return {f.claim.id: await f.watcher for f in flights if f.watcher is not None}

    async def finished(self) -> None:
        """Wait until everything that was taken on has ended."""
        while self._flights:
            await self.settled([flight.claim for flight in self._flights.values()])

    # ── renew ────────────────────────────────────────────────────────────────────────────────────

    async def _renew_leases(self) -> None:
        pause = interval = self.lane.lease_seconds / _RENEWALS_PER_LEASE
        while self._flights:
            await asyncio.sleep(pause)
            started = self._monotonic()
            await self._renew_once(interval)
            pause = max(0.0, interval - (self._monotonic() - started))
        self._heartbeat = None

    async def _renew_once(self, patience: float) -> None:
        flights = list(self._flights.values())
        asked = self._monotonic()
        try:
            # One statement that hangs must not keep the next renewal from coming in time.
            async with asyncio.timeout(patience):
                kept = await self.lane.store.renew([f.claim for f in flights])
        except (DatabaseError, TimeoutError) as error:
            reason = str(error) or "no answer"
            self._telemetry.log.warning("lease.renewal_delayed", lane=self.lane.name, error=reason)
            kept = {f.claim.id for f in flights if f.until > self._monotonic()}
        else:
            for flight in flights:
                flight.until = asked + self.lane.lease_seconds
        for flight in flights:
            # A settled row is not renewed either; that is the good end, not a loss.
            if flight.claim.id not in kept and flight.settlement is None:
                self._lose(flight)

    def _lose(self, flight: Flight) -> None:
        """Another worker has the row, or may have: stop what can still be stopped, write nothing."""
        if self._flights.get(flight.claim.id) is not flight:
            return
        self._telemetry.lease_lost(self.lane.name, flight.claim.id, flight.claim.fence)
        self._withdraw(flight)
        self._forget(flight, None)

    def _withdraw(self, flight: Flight) -> None:
        if flight.task is not None:
            if flight.task is not asyncio.current_task():
                flight.task.cancel()
        elif flight in self._waiting:
            self._waiting.remove(flight)

    # ── release ──────────────────────────────────────────────────────────────────────────────────

    async def drain(self, grace: float) -> None:
        """Finish what has begun, within the grace time; give back everything else, uncharged."""
        deadline = self._monotonic() + grace
        await self._release(self._take_all_waiting())
        await self._finish(deadline)
        late = [f for f in self._flights.values() if f.settlement is None]
        for flight in late:
            self._withdraw(flight)
        await self._release(late)
        # What was sent must not be forgotten, also when the end is to be immediate.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SETTLE):
                await self._settling.drained()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def _take_all_waiting(self) -> list[Flight]:
        flights = list(self._waiting)
        self._waiting.clear()
        return flights

    async def _finish(self, deadline: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, deadline - self._monotonic())):
                while tasks := [f.task for f in self._flights.values() if f.task is not None]:
                    await asyncio.wait(tasks)
                await self._settling.drained()
        except TimeoutError:
            self._telemetry.log.warning("drain.grace_over", lane=self.lane.name, in_flight=len(self._flights))

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


def _attempted(lane: Lane[Any], flight: Flight, *, took_effect: bool) -> Attempted:
    claim, settlement = flight.claim, flight.settlement
    failure: Failure | None = getattr(settlement, "failure", None)
    return Attempted(
        lane=lane.name,
        id=claim.id,
        claim_seq=claim.fence,
        attempt=claim.attempts + 1,
        outcome=type(flight.outcome).__name__.lower(),
        settlement=_SETTLEMENT_WORDS.get(type(settlement), "complete"),
        settled=took_effect,
        seconds=flight.seconds,
        error_code=failure.code if failure else None,
        error=failure.message if failure else None,
        retry_in=round(settlement.delay, 3) if isinstance(settlement, RetryIn) else None,
        charged=getattr(settlement, "charged", False),
        fields=lane.describe(claim, settlement),
    )


def _bare(settlement: Settlement) -> Settlement:
    """The same end, told in our own words only: those a database takes."""
    bare = replace(settlement, report=None)
    return bare if isinstance(bare, Complete) else replace(bare, failure=Failure(bare.failure.code))


_SETTLEMENT_WORDS: dict[type, str] = {RetryIn: "retry_in", Bury: "bury", Discard: "discard"}
