"""One job processed because somebody asks for it: what `POST /api/dispatch/process` does.

The question is a hint. The row says whether there is anything to do, and whoever asks is told to ask again
(400) or not to (200).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from msgspec import Struct

from homing.db import Row
from homing.engine.coalesce import Batched
from homing.engine.deliver import Deliverer
from homing.engine.model import Bury, Claim, Complete, Discard, Monotonic, RetryIn, Settlement
from homing.lanes.dispatch_jobs.job import OPEN, Job
from homing.lanes.dispatch_jobs.jobs import DispatchJobs

#: So many earlier jobs of its group are processed before one that comes too soon.
_MOST_BEFORE = 20
#: A holder is usually done long before its lease is over, and a target may be resumed at any time.
_ASK_HOLDER, _ASK_TARGET = 10.0, 60.0
#: When a limit of the target leaves no room; somebody else is done soon.
_ASK_SOON = 1.0
#: What a queue can hide, with some to spare; who waits longer is told so again.
_LONGEST_DELAY = 11 * 3600


class ProcessReply(Struct, frozen=True, rename="camel"):
    """`ack`: there is nothing more to do. Else it is worth asking again after `delaySeconds`."""

    ack: bool
    message: str
    delay_seconds: int = 0


STATUS: Mapping[bool, int] = {True: 200, False: 400}
UNKNOWN = ProcessReply(ack=True, message="there is no such job")


class Processing:
    """`window` is how long a message may be silent before it counts as lost; None where there is no queue."""

    def __init__(
        self,
        jobs: DispatchJobs,
        deliverer: Deliverer,
        *,
        window: float | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._deliverer = deliverer
        self._window = window
        self._monotonic = monotonic
        #: Those who ask at the same time share one statement, and its commit.
        self._claim: Batched[int, Claim[Job] | None] = Batched(jobs.claim_these)

    async def __call__(self, id: int) -> ProcessReply:
        reply = await self._process(id)
        if not reply.ack and self._window is not None:
            delay = float(reply.delay_seconds)
            await self._jobs.run("seen_in_queue", id=id, delay=delay, window=self._window)
        return reply

    async def _process(self, id: int) -> ProcessReply:
        for _ in range(_MOST_BEFORE):
            answer = await self._attempt(id)
            if isinstance(answer, ProcessReply):
                return answer
            # It is not its turn. A queue may have lost the message of the one before, or brought this one
            # sooner; asking again later would then hold up its whole group. So that one goes first.
            before = await self._head(answer)
            if before in {None, id}:
                continue
            first = await self._attempt(before)
            if isinstance(first, ProcessReply) and not first.ack:
                return _later(first.delay_seconds, f"an earlier job of its group waits: {first.message}")
        return _later(_ASK_SOON, "earlier jobs of its group come first")

    async def _head(self, group_id: str) -> int | None:
        rows = await self._jobs.run("group_head", group_id=group_id)
        return rows[0]["id"] if rows else None

    async def _attempt(self, id: int) -> ProcessReply | str:
        """What became of it; or its group, when others of that come first."""
        if self._deliverer.closing:
            return _later(_ASK_SOON, "this process is stopping")
        if self._deliverer.paused:
            return _later(_ASK_HOLDER, "dispatch jobs are paused here")
        asked = self._monotonic()
        claim = await self._claim(id)
        if claim is not None:
            return await self._deliver(claim, asked)
        row = await self._hold_up(id)
        if row is not None and _is_limited(row):
            claim = await self._jobs.claim_one_limited(id)
            if claim is not None:
                return await self._deliver(claim, asked)
            row = await self._hold_up(id)
        return _held_up(row)

    async def _hold_up(self, id: int) -> Row | None:
        rows = await self._jobs.run("hold_up", id=id)
        return rows[0] if rows else None

    async def _deliver(self, claim: Claim[Job], asked: float) -> ProcessReply:
        self._deliverer.take([claim], until=asked + self._deliverer.lane.lease_seconds)
        settlements = await self._deliverer.settled([claim])
        return _settled(settlements.get(claim.id))


def _is_limited(row: Row) -> bool:
    """Nothing but a limit of its target can be what stands in the way."""
    is_free = row["ready"] and row["status"] in OPEN and not row["due_in"] and not row["closed_for"]
    return bool(row["limited"] and is_free)


def _held_up(row: Row | None) -> ProcessReply | str:
    if row is None:
        return UNKNOWN
    if row["status"] not in OPEN:
        return _taken_or_ended(row)
    if not row["ready"]:
        group: str = row["group_id"]
        return group
    return _waiting(row)


def _taken_or_ended(row: Row) -> ProcessReply:
    if row["status"] != "IN_PROGRESS":
        return ProcessReply(ack=True, message=f"it is {row['status']} already")
    lease = max(row["leased_for"] or 0.0, _ASK_SOON)
    return _later(min(lease, _ASK_HOLDER), "it is being processed")


def _waiting(row: Row) -> ProcessReply:
    if row["due_in"]:
        return _later(row["due_in"], "it is not due yet")
    if row["closed_for"]:
        return _later(min(row["closed_for"], _ASK_TARGET), "its target is paused, or keeps failing")
    return _later(_ASK_SOON, "its target takes no more at the moment")


def _settled(settlement: Settlement | None) -> ProcessReply:
    match settlement:
        case Complete():
            return ProcessReply(ack=True, message="delivered")
        case RetryIn(delay=delay, failure=failure):
            return _later(delay, f"failed: {failure.message or failure.code}")
        case Bury(failure=failure) | Discard(failure=failure):
            return ProcessReply(ack=True, message=f"ended in ERROR: {failure.message or failure.code}")
        case None:
            return _later(_ASK_SOON, "it was given back, or another process has it")


def _later(seconds: float, message: str) -> ProcessReply:
    return ProcessReply(
        ack=False, message=message, delay_seconds=min(max(1, math.ceil(seconds)), _LONGEST_DELAY)
    )
