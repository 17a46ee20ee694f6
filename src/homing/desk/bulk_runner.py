"""Does bulk runs: takes one up, does it batch by batch, and leaves it so that another process can go on.

Right before a batch is done it is written down which messages it means, and right after it what it came to.
Whoever takes the run up after a crash between the two looks where each of them stands: see `_take_up`.
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
    """What is being done."""

    lane: LaneName
    #: In the order of the run. None are known where an older version has begun it.
    numbers: Sequence[int] = ()


class Progress(Struct, frozen=True):
    """Where a run stands."""

    #: By lane, the last number that is done with.
    after: dict[LaneName, int] = {}
    #: Lanes that nothing is left of.
    over: tuple[LaneName, ...] = ()
    #: Written down while it is done; who holds the run has it only if another process began it.
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
            # No batch of ours stands in it: what was done is noted, and what was only begun was not done.
            await hold.write("release", delay=0.0, error=None, progress=_encode(hold.progress).decode())

    async def _put_off(self, hold: _Hold, error: DatabaseError) -> None:
        if hold.troubles >= _MOST_TROUBLES:
            await self._finish(hold, "failed", str(error))
            return
        delay = min(_LONGEST_DELAY, 2.0**hold.troubles)
        self._telemetry.log.warning("bulk.put_off", run=hold.run.id, seconds=delay, error=str(error))
        # Nobody knows whether a batch under way was done: it stays noted.
        await hold.write("release", delay=delay, error=str(error)[:_LONGEST_ERROR], progress=None)

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
        await self._take_up(lane, wanted)
        self._pace.begin()
        while numbers := await self._numbers(lane, wanted):
            await self._hold.rest(self._pace.end())
            await self._begin(lane, numbers)
            self._pace.begin()
            tally = await self._act(lane, numbers)
            await self._note(lane, tally, after={**self._hold.progress.after, lane.name: numbers[-1]})
        await self._note(lane, Tally(), over=(*self._hold.progress.over, lane.name))

    async def _take_up(self, lane: LaneDesk, wanted: Wanted) -> None:
        """What a process had begun that died before it could tell what came of it.

        What is in a state for the verb still is found again by the walk. The dead leave theirs only because
        somebody requeues them. What waited may have been delivered meanwhile: only what has been stopped was
        cancelled, and of what was to be sent now nobody can tell.
        """
        begun = self._hold.progress.batch
        if begun is None or begun.lane != lane.name:
            return
        gone = set(begun.numbers).difference(await self._found(lane, wanted, begun))
        if self._verb == "cancel":
            changed = gone.intersection(await self._found(lane, Wanted(phases=("stopped",)), begun))
        else:
            changed = gone if self._verb == "requeue" else set()
        tally = Tally(done=len(changed), skipped=len(gone) - len(changed), changed=sorted(changed))
        await self._note(lane, tally, batch=None)

    async def _found(self, lane: LaneDesk, wanted: Wanted, begun: Batch) -> set[int]:
        """The numbers of those that are meant, as far as the batch goes, and perhaps further."""
        found: set[int] = set()
        after = self._hold.progress.after.get(lane.name)
        while begun.numbers and (page := await self._look(lane, wanted, after, _LARGEST_BATCH)):
            found.update(page)
            after = page[-1]
            if after == begun.numbers[-1] or (after < begun.numbers[-1]) == self._from_the_end:
                break
        return found

    async def _numbers(self, lane: LaneDesk, wanted: Wanted) -> Sequence[int]:
        return await self._look(lane, wanted, self._hold.progress.after.get(lane.name), self._pace.batch)

    async def _look(self, lane: LaneDesk, wanted: Wanted, after: int | None, limit: int) -> Sequence[int]:
        looking = lane.numbers(wanted, after=after, limit=limit, newest_first=self._from_the_end)
        return await self._hold.look(looking)

    async def _begin(self, lane: LaneDesk, numbers: Sequence[int]) -> None:
        self._hold.require_going_on()
        progress = msgspec.structs.replace(self._hold.progress, batch=Batch(lane.name, numbers))
        await self._write(lane, progress, Tally())

    async def _note(self, lane: LaneDesk, tally: Tally, **progress: Any) -> None:
        self._hold.progress = msgspec.structs.replace(self._hold.progress, **progress)
        await self._write(lane, self._hold.progress, tally)

    async def _write(self, lane: LaneDesk, progress: Progress, tally: Tally) -> None:
        told = {**msgspec.structs.asdict(tally), "changed": _encode(tally.changed).decode()}
        await self._hold.note("advance", progress=_encode(progress).decode(), lane=lane.name, **told)

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
