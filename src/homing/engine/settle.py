"""Writing down how claims ended: in batches, patiently, and only what is still ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from msgspec.structs import replace

from homing.engine.coalesce import Coalescer
from homing.engine.flight import Flight
from homing.engine.lane import Lane
from homing.engine.model import Bury, Claim, Complete, Discard, Failure, RetryIn, Settlement
from homing.errors import Conflict, DatabaseError, Locked, Refused, Unreachable
from homing.telemetry import Attempted, Telemetry
from homing.tracing import trace_id_of

_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
#: So many rows of refused batches are tried at a time.
_ASIDE = 2


class Settler:
    """Takes flights that have a settlement; tells `landed` of each when it was written, or refused."""

    def __init__(
        self, lane: Lane[Any], telemetry: Telemetry, landed: Callable[[Flight, Settlement | None], None]
    ) -> None:
        self._lane = lane
        self._telemetry = telemetry
        self._landed = landed
        self._flights: Coalescer[Flight] = Coalescer(self._flush)
        self.put = self._flights.put
        #: Rows of a batch that was refused, each on its own.
        self._alone: set[asyncio.Task[None]] = set()
        #: Each may wait for a lock on a connection that all others need, too.
        self._turns = asyncio.Semaphore(_ASIDE)

    async def drained(self) -> None:
        """Wait until everything that was put is written, or refused."""
        await self._flights.drained()
        while self._alone:
            await asyncio.wait(set(self._alone))

    async def _flush(self, flights: Sequence[Flight], *, is_aside: bool = False) -> None:
        settled = await self._settle_patiently(_batch_of(flights), is_aside=is_aside)
        if settled is not None:
            self._land(flights, settled)
            return
        # A row that cannot be written goes on trying by itself, and holds up nobody.
        for flight in flights:
            task = asyncio.get_running_loop().create_task(self._flush([flight], is_aside=True))
            self._alone.add(task)
            task.add_done_callback(self._alone.discard)

    def _land(self, flights: Sequence[Flight], settled: set[int]) -> None:
        # One batch may hold two claims of a row that came back to us; only the younger can have taken effect.
        claims = sorted((flight.claim for flight in flights), key=lambda claim: claim.fence)
        youngest = {claim.id: claim.fence for claim in claims if claim.id in settled}
        with self._telemetry.together():
            for flight in flights:
                took_effect = youngest.get(flight.claim.id) == flight.claim.fence
                self._tell(flight, took_effect=took_effect)
                self._landed(flight, flight.settlement if took_effect else None)

    def _tell(self, flight: Flight, *, took_effect: bool) -> None:
        try:
            self._telemetry.attempted(_attempted(self._lane, flight, took_effect=took_effect))
        except Exception as bug:  # noqa: BLE001 - what cannot be told of an attempt must not hold up the others
            self._telemetry.crashed("settle.crashed", bug, lane=self._lane.name, rows=1)

    async def _settle_patiently(
        self, batch: Sequence[tuple[Claim[Any], Settlement]], *, is_aside: bool
    ) -> set[int] | None:
        """Settle, also when the database is away for a while: what was sent must not be forgotten.

        The fence makes it safe to try again, and to be late: a row that was taken over is not touched.
        None when the database refuses it, or somebody has a row of it open: then each row is tried by itself,
        aside from the others, and at last without the words of the other side.
        """
        pause = _PAUSE
        while True:
            async with self._turns if is_aside else nullcontext():
                answer = await self._try_to_settle(batch, first=pause == _PAUSE and not is_aside)
            if isinstance(answer, set):
                return answer
            refused = isinstance(answer, Refused) or not isinstance(answer, DatabaseError)
            # An odd error that stays may be one row's fault; an outage is nobody's.
            odd = pause >= _LONGEST_PAUSE and not isinstance(answer, Unreachable | Conflict)
            if not is_aside and (refused or odd or isinstance(answer, Locked)):
                return None
            if refused:
                batch = [(claim, _bare(settlement)) for claim, settlement in batch]
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _try_to_settle(
        self, batch: Sequence[tuple[Claim[Any], Settlement]], *, first: bool
    ) -> set[int] | Exception:
        """The ids that were settled, or what went wrong."""
        store = self._lane.store
        try:
            settled = await store.settle(batch)
            # An earlier try may have been written though its answer was lost.
            return settled if first else settled | await store.confirm([claim for claim, _ in batch])
        except DatabaseError as error:
            self._telemetry.log.warning(
                "settle.delayed", lane=self._lane.name, rows=len(batch), error=str(error)
            )
            return error
        except Exception as bug:  # noqa: BLE001 - a settlement that cannot be written must not hold up the others
            self._telemetry.crashed("settle.crashed", bug, lane=self._lane.name, rows=len(batch))
            return bug


def _batch_of(flights: Sequence[Flight]) -> list[tuple[Claim[Any], Settlement]]:
    return [(f.claim, f.settlement) for f in flights if f.settlement is not None]


def _bare(settlement: Settlement) -> Settlement:
    """The same end, told in our own words only: those a database takes."""
    bare = replace(settlement, report=None)
    return bare if isinstance(bare, Complete) else replace(bare, failure=Failure(bare.failure.code))


_SETTLEMENT_WORDS: dict[type, str] = {RetryIn: "retry_in", Bury: "bury", Discard: "discard"}


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
        since_created=flight.latency,
        trace_id=claim.traceparent and trace_id_of(claim.traceparent),
        error_code=failure.code if failure else None,
        error=failure.message if failure else None,
        retry_in=round(settlement.delay, 3) if isinstance(settlement, RetryIn) else None,
        charged=getattr(settlement, "charged", False),
        fields=lane.describe(claim, settlement),
    )
