"""Bulk runs: one verb on all messages that a query line means. Here they are ordered, looked at and stopped.

A run is a row. Any process of Homing takes it up (`bulk_runner.py`), does it in short batches, and writes
down after each how far it came. It means what was there when it was ordered, so it comes to an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.access.audit import AuditLog, Entry, as_text
from homing.db import Database, Row, instant, load_queries
from homing.desk import query
from homing.errors import Forbidden, InvalidRequest, NotFound
from homing.messages.model import LANES, LaneDesk, LaneName, Phase, Verb, Wanted

RunState = Literal["counting", "running", "done", "cancelled", "failed"]
#: Whether somebody has a scope.
May = Callable[[str], bool]
#: What somebody may do now, by the name that the audit log has for them; None: they do not count any more.
Rights = Callable[[str], Awaitable[frozenset[str] | None]]

#: Announced when there is something to do or to stop.
CHANNEL: Final = "homing_bulk_run"
VERBS: Final[tuple[Verb, ...]] = ("requeue", "cancel", "send_now")
#: In a sentence: "cannot be …".
PARTICIPLES: Final[Mapping[Verb, str]] = {
    "requeue": "requeued",
    "cancel": "cancelled",
    "send_now": "sent now",
}
#: Of each lane so many are counted, within about so many seconds; beyond that the total says "at least".
#: A run has more time than somebody who looks at a page: what an index tells it counts to the last.
_FOR_A_LOOK: Final = (100_000, 0.1)
_FOR_A_RUN: Final = (1_000_000_000, 3.0)
#: Of whoever does something here, beside the scopes of the lanes.
_DESK = "desk:read"
_OPEN_STATES = frozenset({"counting", "running"})
_LAST = 2**63 - 1
#: SQLite writes times to the millisecond: what was made in the very same one is meant, too.
_A_MOMENT = timedelta(milliseconds=1)

_encode = msgspec.json.Encoder().encode


class Asker(Struct, frozen=True):
    """Who orders a run or stops one."""

    #: As the audit log names it.
    who: str
    may: May
    address: str | None = None


class Counted(Struct, frozen=True):
    """How many messages a verb would change."""

    total: int
    #: There are more, or counting took too long: the total is what is known of.
    is_estimate: bool
    lanes: Mapping[LaneName, int]


class BulkRun(Struct, frozen=True):
    """One run, as it stands."""

    id: int
    verb: Verb
    query: str
    lanes: tuple[LaneName, ...]
    created_by: str
    created_at: datetime
    state: RunState
    #: None until it is counted.
    total: int | None
    is_estimate: bool
    done: int
    #: Were in no state for it any more when their turn came.
    skipped: int
    #: Were refused by their database.
    failed: int
    #: When it began to act.
    started_at: datetime | None
    updated_at: datetime
    #: When the last of it was written down.
    finished_at: datetime | None
    last_error: str | None

    @property
    def is_over(self) -> bool:
        return self.state not in _OPEN_STATES

    @property
    def processed(self) -> int:
        return self.done + self.skipped + self.failed

    @property
    def share(self) -> float | None:
        """From 0 to 1; None while nobody knows."""
        if self.state == "done":
            return 1.0
        if self.total is None:
            return None
        return min(1.0, self.processed / self.total) if self.total else 1.0

    @property
    def seconds(self) -> float:
        """For how long it has been acting."""
        if self.started_at is None:
            return 0.0
        return max(0.0, ((self.finished_at or self.updated_at) - self.started_at).total_seconds())

    @property
    def speed(self) -> float | None:
        """Messages a second."""
        return self.processed / self.seconds if self.seconds and self.processed else None

    @property
    def seconds_left(self) -> float | None:
        if self.is_over or self.total is None or self.speed is None:
            return None
        return max(0, self.total - self.processed) / self.speed


_MOMENTS = ("created_at", "started_at", "updated_at", "finished_at")


def run_of(row: Row) -> BulkRun:
    plain = {name: row[name] for name in BulkRun.__struct_fields__}
    moments = {name: instant(row[name]) for name in _MOMENTS}
    lanes = msgspec.json.decode(row["lanes"])
    return msgspec.convert(
        {**plain, **moments, "lanes": lanes, "is_estimate": bool(row["is_estimate"])}, BulkRun
    )


class BulkRuns:
    def __init__(
        self,
        database: Database,
        lanes: Mapping[LaneName, LaneDesk],
        audit: AuditLog,
        rights: Rights,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.database, self.lanes, self.audit = database, lanes, audit
        self._queries = load_queries(__package__ or "", database.dialect, "bulk")
        self._rights, self._clock = rights, clock

    async def run(self, name: str, **parameters: Any) -> Sequence[Row]:
        """Run a query by name."""
        return await self.database.fetch(self._queries[name], parameters)

    # ── which ────────────────────────────────────────────────────────────────────────────────────

    def read(self, line: str) -> Wanted:
        """What a query line means; raises in words for whoever wrote it."""
        wanted = query.read(line, self._clock())
        if isinstance(wanted, query.Mistake):
            raise InvalidRequest(f"query: {wanted.message}", "query")
        if wanted == Wanted():
            raise InvalidRequest(
                "query: an empty line would mean every message; say at least lane: or status:", "query"
            )
        return wanted

    def plan(self, wanted: Wanted, verb: Verb) -> dict[LaneName, Wanted]:
        """For each lane that has such messages in a state for the verb: which of its messages."""
        found = {name: _narrowed(self.lanes[name], wanted, verb) for name in self._named(wanted)}
        return {name: one for name, one in found.items() if one is not None}

    def _named(self, wanted: Wanted) -> list[LaneName]:
        return [name for name in LANES if name in wanted.lanes and name in self.lanes]

    def _allowed_plan(self, wanted: Wanted, verb: Verb, may: May) -> dict[LaneName, Wanted]:
        plan = self.plan(wanted, verb)
        if not plan:
            raise InvalidRequest(f"query: this line names nothing that can be {PARTICIPLES[verb]}", "query")
        self._require_allowed(list(plan), may)
        return plan

    def _require_allowed(self, lanes: Sequence[LaneName], may: May) -> None:
        if not may(_DESK):
            raise Forbidden(f"this needs the scope {_DESK}")
        for name in lanes:
            _require(may, self.lanes[name].scope, name, several=len(lanes) > 1)

    async def objection_to(self, run: BulkRun) -> str | None:
        """Why a run may not go on: an order does not outlive the right to it."""
        scopes = await self._rights(run.created_by)
        if scopes is None:
            return f"{run.created_by}, who ordered it, was removed, or is revoked or expired"
        try:
            self._require_allowed(run.lanes, scopes.__contains__)
        except Forbidden as why:
            return f"{run.created_by}, who ordered it, may not any more: {why}"
        return None

    # ── how many ─────────────────────────────────────────────────────────────────────────────────

    async def count(self, wanted: Wanted, verb: Verb, may: May) -> Counted:
        """How many messages would be changed now."""
        return await self._count(self._allowed_plan(wanted, verb, may), *_FOR_A_LOOK)

    async def count_of(self, run: BulkRun) -> Counted:
        """Of a run that begins: without the bound of its time, which no index serves and few are beyond."""
        return await self._count(self._plan_of(run, self.read(run.query)), *_FOR_A_RUN)

    async def _count(self, plan: Mapping[LaneName, Wanted], most: int, seconds: float) -> Counted:
        asked = [self.lanes[name].count(one, most=most, seconds=seconds) for name, one in plan.items()]
        counts = dict(zip(plan, await asyncio.gather(*asked), strict=True))
        known = {name: count.number for name, count in counts.items()}
        return Counted(sum(known.values()), any(one.is_lower_bound for one in counts.values()), known)

    # ── what a run means ─────────────────────────────────────────────────────────────────────────

    def plan_of(self, run: BulkRun) -> dict[LaneName, Wanted]:
        """What its line says, of what was there when it was ordered."""
        wanted = self.read(run.query)
        bound = run.created_at + _A_MOMENT
        until = bound if wanted.until is None else min(wanted.until, bound)
        return self._plan_of(run, replace(wanted, until=until))

    def _plan_of(self, run: BulkRun, wanted: Wanted) -> dict[LaneName, Wanted]:
        """Of the lanes that were allowed then, whatever this version would make of the line."""
        return {name: one for name, one in self.plan(wanted, run.verb).items() if name in run.lanes}

    # ── order and stop: each with its entry in the audit log, or not at all ──────────────────────

    async def start(self, line: str, verb: Verb, asker: Asker) -> BulkRun:
        """Order a run; some process of Homing takes it up within a second."""
        wanted = self.read(line)
        # As it is now: `since:2h` means the same two hours also when another process reads it later.
        fixed = query.write(wanted)
        # Absolute times are longer: whoever is to take it up has to be able to read it.
        self.read(fixed)
        try:
            plan = self._allowed_plan(wanted, verb, asker.may)
        except Forbidden as why:
            refused = _entry(asker, "bulk.start", verb=verb, query=fixed, why=str(why))
            await self.audit.write(replace(refused, outcome="refused"))
            raise
        lanes = _encode(list(plan)).decode()
        entry = _entry(asker, "bulk.start", verb=verb, query=fixed, lanes=list(plan))
        given = {"verb": verb, "query": fixed, "lanes": lanes, "created_by": asker.who}
        rows = await self.run("create", **given, audit=as_text(entry))
        self.database.announce(CHANNEL)
        return run_of(rows[0])

    async def cancel(self, id: int, asker: Asker) -> BulkRun:
        """Stop it after the batch that is under way. What was done stays done."""
        run = await self.existing(id)
        try:
            self._require_allowed(run.lanes, asker.may)
        except Forbidden as why:
            refused = _entry(asker, "bulk.cancel", why=str(why))
            await self.audit.write(replace(refused, object=f"bulk_{id}", outcome="refused"))
            raise
        if await self.run("cancel", id=id, audit=as_text(_entry(asker, "bulk.cancel"))):
            self.database.announce(CHANNEL)
        return await self.existing(id)

    async def finish(self, id: int, fence: int, state: str, error: str | None, entry: Entry) -> Sequence[Row]:
        return await self.run("finish", id=id, fence=fence, state=state, error=error, audit=as_text(entry))

    # ── look ─────────────────────────────────────────────────────────────────────────────────────

    async def get(self, id: int) -> BulkRun | None:
        rows = await self.run("get", id=id)
        return run_of(rows[0]) if rows else None

    async def existing(self, id: int) -> BulkRun:
        run = await self.get(id)
        if run is None:
            raise NotFound(f"there is no bulk run {id}")
        return run

    async def readable(self, id: int, may: May) -> BulkRun:
        """The line of a run may name addresses: it is for who may read all its lanes."""
        run = await self.existing(id)
        for name in run.lanes:
            if not may(needed := f"{self.lanes[name].scope}:read"):
                raise Forbidden(f"this run is about {name}, which needs the scope {needed}")
        return run

    async def page(
        self, *, before: int | None = None, limit: int = 20, may: May = lambda _scope: True
    ) -> list[BulkRun]:
        """Newest first, those that one may read; `before` is the id that the last page ended with."""
        hidden = [name for name, lane in self.lanes.items() if not may(f"{lane.scope}:read")]
        given = {"before": _LAST if before is None else before, "hidden": _encode(hidden).decode()}
        rows = await self.run("page", **given, limit=limit)
        return [run_of(row) for row in rows]


def _entry(asker: Asker, action: str, **detail: Any) -> Entry:
    """Of a run whose number is known to the statement that writes it."""
    return Entry(asker.who, action, None, asker.address, detail or None)


def _narrowed(lane: LaneDesk, wanted: Wanted, verb: Verb) -> Wanted | None:
    """Of what is wanted, those messages of a lane that are in a state for the verb; None if none can be."""
    states = tuple(
        state for state in lane.from_states.get(verb, ()) if _is_meant(lane.phases[state], state, wanted)
    )
    if not states:
        return None
    return replace(wanted, lanes=(lane.name,), phases=(), states=states)


def _is_meant(phase: Phase, state: str, wanted: Wanted) -> bool:
    """Where a line names no status, all; but what somebody cancelled, or ended itself, only by name."""
    if wanted.phases or wanted.states:
        return state in wanted.states or phase in wanted.phases
    is_named = wanted.id is not None or state in {wanted.error, *wanted.codes}
    return phase != "stopped" or is_named


def _require(may: May, scope: str, lane: LaneName, *, several: bool) -> None:
    for needed in (f"{scope}:read", f"{scope}:operate"):
        if not may(needed):
            hint = "; name the lanes that are meant, such as lane:mail_outbox" if several else ""
            raise Forbidden(f"messages of {lane} are among these, which needs the scope {needed}{hint}")
