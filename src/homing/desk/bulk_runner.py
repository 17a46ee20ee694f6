"""Does bulk runs: takes one up, does it batch by batch, and leaves it so that another process can go on.

Before a batch is done it is written down which messages it means. Whoever takes the run up after a crash
looks which of them are still in a state for the verb: the others were changed before it, and are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from homing.access.audit import Entry, Outcome
from homing.db import Row
from homing.desk.bulk import CHANNEL, BulkRun, BulkRuns, RunState, run_of
from homing.engine.model import Monotonic
from homing.errors import DatabaseError, HomingError, Refused
from homing.messages.model import LaneDesk, LaneName, Verb, Wanted
from homing.telemetry import Telemetry

Result = TypeVar("Result")

#: Messages that one statement changes. Larger ones hold their locks for too long; smaller ones cost more than
#: they spare, for on a busy machine each waits for its turn, however small it is.
_FIRST_BATCH, _SMALLEST_BATCH, _LARGEST_BATCH = 1000, 500, 2000
_LONG, _QUICK = 0.5, 0.15
#: After each a pause of this share of its time, for whoever delivers: a file has one lock for all writers.
_PAUSE, _LONGEST_REST = 0.5, 0.5
LEASE_SECONDS: Final = 15.0
#: How often a process looks for runs that nobody has, and how soon one that is looking notices a stop.
_LONGEST_PAUSE = 1.0
_NOTICED_WITHIN = 0.3
#: Seconds between two looks whether whoever ordered a run still may.
_RIGHTS_EVERY = 2.0
#: So often in a row a run is tried again when a database is away, each time later.
_MOST_TROUBLES = 20
_LONGEST_DELAY = 60.0
#: A run that ends a group of jobs in their order begins with the last, so that none is sent meanwhile.
_FROM_THE_END: Final[frozenset[Verb]] = frozenset({"cancel"})
_LONGEST_ERROR = 500

_encode = msgspec.json.Encoder().encode


class Batch(Struct, frozen=True):
    """What is being done: the messages after the cursor up to this one, so many when they were looked for."""

    lane: LaneName
    last: int
    size: int
    #: None are known where an older version has begun it.
    numbers: Sequence[int] = ()


class Progress(Struct, frozen=True):
    """Where a run stands."""

    #: By lane, the last number that is done with.
    after: dict[LaneName, int] = {}
    #: Lanes that nothing is left of.
    over: tuple[LaneName, ...] = ()
    batch: Batch | None = None


class Tally(Struct, frozen=True):
    """What a batch came to."""

    done: int = 0
    skipped: int = 0
    failed: int = 0
    error: str | None = None
    #: Which were done, as far as that is known.
    changed: Sequence[int] = ()

    def plus(self, other: Tally) -> Tally:
        return Tally(
            self.done + other.done,
            self.skipped + other.skipped,
            self.failed + other.failed,
            self.error or other.error,
            (*self.changed, *other.changed),
        )


class _Ended(Exception):
    """Nothing more is to be done here: the run was stopped or taken over, or this process ends."""


class Pace:
    """How large the next batch is, and how long the pause before it, by how long the last one took."""

    def __init__(self, pause: float, monotonic: Monotonic) -> None:
        self._pause, self._monotonic = pause, monotonic
        self._began = monotonic()
        self.batch = _FIRST_BATCH

    def begin(self) -> None:
        self._began = self._monotonic()

    def end(self) -> float:
        """Seconds to rest."""
        took = self._monotonic() - self._began
        if took > _LONG:
            self.batch = max(_SMALLEST_BATCH, self.batch // 2)
        elif took < _QUICK:
            self.batch = min(_LARGEST_BATCH, self.batch * 2)
        return min(took * self._pause, _LONGEST_REST)


class BulkRunner:
    """One run at a time. Every process that serves or works has one; a lease keeps them apart."""

    def __init__(
        self,
        runs: BulkRuns,
        telemetry: Telemetry,
        *,
        owner: str,
        lease_seconds: float = LEASE_SECONDS,
        pause: float = _PAUSE,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._runs, self._telemetry = runs, telemetry
        self._owner, self._lease_seconds = owner, lease_seconds
        self._pause, self._monotonic = pause, monotonic
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until it is told to stop."""
        self._runs.database.listen(CHANNEL, self._woken.set)
        await self.see_through(None)

    async def see_through(self, id: int | None) -> None:
        """Do this run, or any, whenever nobody else does; until it is told to stop."""
        while not self._stopping.is_set():
            if not await self._guarded(id):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), _LONGEST_PAUSE)
            self._woken.clear()

    def stop(self) -> None:
        """After the batch that is under way."""
        self._stopping.set()
        self._woken.set()

    async def _guarded(self, id: int | None) -> bool:
        try:
            return await self.once(id)
        except DatabaseError as error:
            self._telemetry.log.warning("bulk.unavailable", error=str(error))
        except Exception as bug:  # noqa: BLE001 - a run that we cannot read must not end a process that delivers
            self._telemetry.crashed("bulk.crashed", bug)
        return False

    async def once(self, id: int | None = None) -> bool:
        """Take up a run, or this one, and do it to its end; whether there was one."""
        # A claim takes the write lock of an SQLite file; a look takes none.
        if not await self._runs.run("waiting", id=id):
            return False
        given = {"id": id, "owner": self._owner, "lease_seconds": self._lease_seconds}
        rows = await self._runs.run("claim", **given)
        if rows:
            await self._carry(_Hold(self._runs, rows[0], self._lease_seconds, self._stopping))
        return bool(rows)

    async def _carry(self, hold: _Hold) -> None:
        try:
            async with hold.kept():
                await _Walk(hold, Pace(self._pause, self._monotonic)).to_the_end()
            await self._finish(hold, "done")
        except _Ended:
            await self._leave(hold)
        except HomingError as error:
            # What a database refuses it would refuse again.
            if isinstance(error, DatabaseError) and not isinstance(error, Refused):
                await self._put_off(hold, error)
            else:
                await self._finish(hold, "failed", str(error))
        except Exception as bug:  # noqa: BLE001 - it is told in the run itself, where somebody looks for it
            self._telemetry.crashed("bulk.crashed", bug, run=hold.run.id)
            await self._finish(hold, "failed", f"a bug: {type(bug).__name__}; the log has more")

    async def _leave(self, hold: _Hold) -> None:
        """Stopped by a person, and so at its end; or left to another process, which begins at once."""
        if hold.is_cancelled or hold.objection is not None:
            await self._finish(hold, "cancelled", hold.objection)
        elif hold.is_ours:
            await hold.write("release", delay=0.0, error=None)

    async def _put_off(self, hold: _Hold, error: DatabaseError) -> None:
        if hold.troubles >= _MOST_TROUBLES:
            await self._finish(hold, "failed", str(error))
            return
        delay = min(_LONGEST_DELAY, 2.0**hold.troubles)
        self._telemetry.log.warning("bulk.put_off", run=hold.run.id, seconds=delay, error=str(error))
        await hold.write("release", delay=delay, error=str(error)[:_LONGEST_ERROR])

    async def _finish(self, hold: _Hold, state: RunState, error: str | None = None) -> None:
        """With its entry in the audit log, in one transaction: what it came to is told once."""
        if not await hold.write("renew"):
            return
        before = await self._runs.existing(hold.run.id)
        ended = "cancelled" if before.state == "cancelled" else state
        rows = await hold.finish(ended, error, _obituary(before, ended, error))
        if rows:
            run = run_of(rows[0])
            self._telemetry.log.info(
                "bulk.ended", run=run.id, verb=run.verb, state=run.state, done=run.done, skipped=run.skipped,
                failed=run.failed, seconds=round(run.seconds, 3),
            )  # fmt: skip


def _obituary(run: BulkRun, state: str, error: str | None) -> Entry:
    figures = {"total": run.total, "done": run.done, "skipped": run.skipped, "failed": run.failed}
    told = {"verb": run.verb, "query": run.query, "state": state, **figures, "seconds": round(run.seconds, 1)}
    detail = {**told, "error": error} if error is not None else told
    return Entry(run.created_by, "bulk.end", f"bulk_{run.id}", None, detail, _outcome(state, error))


def _outcome(state: str, error: str | None) -> Outcome:
    """One that somebody stopped has no error; one that was not allowed any more has."""
    if state == "failed":
        return "failed"
    return "refused" if state == "cancelled" and error is not None else "done"


class _Hold:
    """A run that is ours until its lease ends."""

    def __init__(self, runs: BulkRuns, row: Row, lease_seconds: float, stopping: asyncio.Event) -> None:
        self.runs, self.run = runs, run_of(row)
        self.troubles: int = row["troubles"]
        self.progress = msgspec.json.decode(row["progress"], type=Progress)
        self.is_cancelled = self.run.state == "cancelled"
        self.is_ours = True
        #: Why whoever ordered it may not any more.
        self.objection: str | None = None
        self._fence: int = row["fence"]
        self._lease_seconds = lease_seconds
        self._stopping = stopping
        self._over = asyncio.Event()

    async def write(self, name: str, **values: Any) -> Sequence[Row]:
        """A fenced statement about this run."""
        given = {"id": self.run.id, "fence": self._fence, "lease_seconds": self._lease_seconds, **values}
        return await self.runs.run(name, **given)

    async def note(self, name: str, **values: Any) -> None:
        """Write down how it stands; raises when that was the last to be done here."""
        self._heed(await self.write(name, **values))
        self.require_going_on()

    async def finish(self, state: str, error: str | None, entry: Entry) -> Sequence[Row]:
        return await self.runs.finish(self.run.id, self._fence, state, error, entry)

    @property
    def is_going_on(self) -> bool:
        is_stopped = self.is_cancelled or self.objection is not None or self._stopping.is_set()
        return self.is_ours and not is_stopped

    def require_going_on(self) -> None:
        if not self.is_going_on:
            raise _Ended

    async def rest(self, seconds: float) -> None:
        """A stop does not wait for it."""
        with suppress(_Ended):
            await self.look(asyncio.sleep(seconds))

    async def look(self, work: Awaitable[Result]) -> Result:
        """Wait for what only reads: a stop does not wait for it."""
        looking = asyncio.ensure_future(work)
        stops = [asyncio.ensure_future(event.wait()) for event in (self._over, self._stopping)]
        try:
            await asyncio.wait({looking, *stops}, return_when=asyncio.FIRST_COMPLETED)
            if not looking.done():
                raise _Ended
            return looking.result()
        finally:
            for task in (looking, *stops):
                task.cancel()
            await asyncio.gather(looking, *stops, return_exceptions=True)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """The lease is renewed meanwhile, and it is noticed when somebody stops the run."""
        await self._ask_for_right()
        self.require_going_on()
        keeping = [asyncio.create_task(one) for one in (self._keep(), self._keep_asking())]
        try:
            yield
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def _keep(self) -> None:
        renewed = time.monotonic()
        while not self._over.is_set():
            await asyncio.sleep(_NOTICED_WITHIN)
            is_time = time.monotonic() - renewed > self._lease_seconds / 3
            # While the database is away nothing is known; the walk finds out by itself.
            with suppress(DatabaseError):
                self._heed(await self.write("renew" if is_time else "standing"))
                renewed = time.monotonic() if is_time else renewed

    async def _keep_asking(self) -> None:
        while not self._over.is_set():
            await asyncio.sleep(_RIGHTS_EVERY)
            with suppress(DatabaseError):
                await self._ask_for_right()

    async def _ask_for_right(self) -> None:
        self.objection = await self.runs.objection_to(self.run)
        if self.objection is not None:
            self._over.set()

    def _heed(self, rows: Sequence[Row]) -> None:
        self.is_ours = bool(rows)
        self.is_cancelled = self.is_cancelled or bool(rows and rows[0]["state"] == "cancelled")
        if self.is_cancelled or not self.is_ours:
            self._over.set()


class _Walk:
    """Through all that a run means, lane by lane."""

    def __init__(self, hold: _Hold, pace: Pace) -> None:
        self._hold, self._pace = hold, pace
        self._verb = hold.run.verb
        self._from_the_end = self._verb in _FROM_THE_END

    async def to_the_end(self) -> None:
        hold = self._hold
        plan = hold.runs.plan_of(hold.run)
        if hold.run.state == "counting":
            counted = await hold.look(hold.runs.count_of(hold.run))
            await hold.note("counted", total=counted.total, is_estimate=counted.is_estimate)
        for name, wanted in plan.items():
            if name not in hold.progress.over:
                await self._lane(hold.runs.lanes[name], wanted)

    async def _lane(self, lane: LaneDesk, wanted: Wanted) -> None:
        self._pace.begin()
        numbers, tally = await self._first(lane, wanted)
        while True:
            # One statement for both: what the last batch came to, and what the next will be.
            await self._note(lane, numbers, tally)
            if not numbers:
                return
            await self._hold.rest(self._pace.end())
            self._hold.require_going_on()
            self._pace.begin()
            tally = await self._act(lane, numbers)
            self._advance(lane, numbers[-1])
            numbers = await self._numbers(lane, wanted, self._pace.batch)

    async def _first(self, lane: LaneDesk, wanted: Wanted) -> tuple[Sequence[int], Tally]:
        """The first batch; of one that was begun before a crash what is left, and which were changed."""
        begun = self._hold.progress.batch
        if begun is None or begun.lane != lane.name:
            return await self._numbers(lane, wanted, self._pace.batch), Tally()
        numbers = await self._numbers(lane, wanted, begun.size)
        self._hold.require_going_on()
        left = [n for n in numbers if (n >= begun.last if self._from_the_end else n <= begun.last)]
        changed = set(begun.numbers).difference(left)
        tally = Tally(done=begun.size - len(left), changed=tuple(changed))
        if not left:
            self._advance(lane, begun.last)
            return await self._numbers(lane, wanted, self._pace.batch), tally
        return left, tally

    async def _numbers(self, lane: LaneDesk, wanted: Wanted, limit: int) -> Sequence[int]:
        after = self._hold.progress.after.get(lane.name)
        looking = lane.numbers(wanted, after=after, limit=limit, newest_first=self._from_the_end)
        try:
            return await self._hold.look(looking)
        except _Ended:
            # What the last batch came to is not lost with it.
            return []

    def _advance(self, lane: LaneDesk, last: int) -> None:
        progress = self._hold.progress
        after = {**progress.after, lane.name: last}
        self._hold.progress = msgspec.structs.replace(progress, after=after, batch=None)

    async def _note(self, lane: LaneDesk, numbers: Sequence[int], tally: Tally) -> None:
        hold = self._hold
        if numbers:
            batch = Batch(lane.name, numbers[-1], len(numbers), numbers)
            hold.progress = msgspec.structs.replace(hold.progress, batch=batch)
        elif hold.is_going_on:
            over = (*hold.progress.over, lane.name)
            hold.progress = msgspec.structs.replace(hold.progress, over=over)
        progress = _encode(hold.progress).decode()
        told = {**msgspec.structs.asdict(tally), "changed": _encode(tally.changed).decode()}
        await hold.note("advance", progress=progress, lane=lane.name, **told)

    async def _act(self, lane: LaneDesk, numbers: Sequence[int]) -> Tally:
        try:
            changed = await lane.act(self._verb, numbers)
        except Refused as error:
            if len(numbers) == 1:
                return Tally(failed=1, error=str(error)[:_LONGEST_ERROR])
            # One row that its database does not take must not hold up the others.
            half = len(numbers) // 2
            first = await self._act(lane, numbers[:half])
            return first.plus(await self._act(lane, numbers[half:]))
        return Tally(done=len(changed), skipped=len(numbers) - len(changed), changed=changed)
