"""The first page: everybody is asked at once, and who does not answer is left out.

What is shown stands in `overview_model.py`, what is judged to need somebody in `attention.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from homing.db.backlog import Snapshot
from homing.db.lately import Lately
from homing.desk.attention import attention
from homing.desk.overview_model import (
    Attention,
    Hand,
    Hours,
    LaneView,
    OverviewView,
    Point,
    QueueDepth,
    Signs,
    TargetTrouble,
    Tempo,
)
from homing.desk.traffic import NOTHING, Bar, TrafficTable, quantile
from homing.engine.model import Monotonic
from homing.errors import DatabaseError
from homing.messages.model import LANES, PHASES, DeadGroup, LaneName, Phase
from homing.telemetry import ATTEMPT_BOUNDS, WAIT_BOUNDS, Totals

__all__ = [
    "STEPS",
    "Attention",
    "Hand",
    "Hours",
    "LaneView",
    "Overview",
    "OverviewView",
    "Point",
    "QueueDepth",
    "Sources",
    "TargetTrouble",
    "Tempo",
]

Answer = TypeVar("Answer")
Ask: TypeAlias = Callable[[], Awaitable[Answer]]
#: Whether somebody has a scope.
May: TypeAlias = Callable[[str], bool]

#: That of the page that shows queues.
QUEUES_SCOPE: Final = "router:read"

#: How long the steps of a chart are.
STEPS: Final[Mapping[Hours, timedelta]] = {3: timedelta(minutes=5), 24: timedelta(minutes=30)}

#: Whoever looks twice within so many seconds gets the same answer.
_REMEMBERED = 2.0
#: An answer that is made again, and takes its time, may have been for so many before.
_OLDEST = 10.0
#: What has not answered by then is left out, and the page says so.
_PATIENCE = 4.0
#: To group dead letters reads thousands of rows: it is done beside the page, and only now and then.
_GROUPED_FOR, _SHARE_FOR_GROUPING, _OLDEST_GROUPS = 10.0, 0.05, 600.0
#: Seconds that are waited for them: the first time, and when they are old.
_FIRST_GROUPS, _NEW_GROUPS = 0.5, 0.1
#: The age of a count is told in steps of so many seconds: who keeps the page open is told of every change.
_AGES = 5.0
_HOUR = timedelta(hours=1)


class Looked(Protocol):
    """A lane's backlog."""

    async def look(self) -> Snapshot: ...


def _everything(_scope: str) -> bool:
    return True


async def _nothing() -> Sequence[Any]:
    return ()


async def _unknown() -> None:
    return None


async def _none_paused() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Sources:
    """Where it is asked. What is left out is not known."""

    backlogs: Mapping[LaneName, Looked]
    #: Of each lane, the phase of each of its states.
    phases: Mapping[LaneName, Mapping[str, Phase]]
    traffic: TrafficTable
    dead: Ask[Sequence[DeadGroup]] = _nothing
    targets: Ask[Sequence[TargetTrouble]] = _nothing
    hands: Ask[Sequence[Hand] | None] = _unknown
    paused: Ask[Mapping[str, str]] = _none_paused
    queues: Ask[Sequence[QueueDepth]] = _nothing
    keeps_everything: bool = False
    #: Of each lane, how its scopes begin.
    scopes: Mapping[LaneName, str] = field(default_factory=dict)


class Overview:
    def __init__(self, sources: Sources, monotonic: Monotonic = time.monotonic) -> None:
        self._sources = sources
        self._dead = Lately(
            sources.dead,
            lambda took: max(_GROUPED_FOR, took / _SHARE_FOR_GROUPING),
            monotonic,
            oldest=_OLDEST_GROUPS,
        )
        self._lately = {
            hours: Lately(partial(self._ask, hours), lambda _took: _REMEMBERED, monotonic, oldest=_OLDEST)
            for hours in STEPS
        }

    async def look(self, now: datetime, hours: Hours = 3, *, may: May = _everything) -> OverviewView:
        """What whoever asks may see: everybody is asked for all, and each gets their own of it."""
        all_signs, notes = await self._lately[hours](now)
        signs = self._seen(all_signs, may)
        return OverviewView(signs.now, hours, tuple(signs.lanes), attention(signs), notes)

    def _seen(self, signs: Signs, may: May) -> Signs:
        hidden = {lane for lane, scope in self._sources.scopes.items() if not may(f"{scope}:read")}
        return replace(
            signs,
            lanes=[one for one in signs.lanes if one.lane not in hidden],
            dead=[group for group in signs.dead if group.lane not in hidden],
            targets=() if "dispatch_jobs" in hidden else signs.targets,
            queues=signs.queues if may(QUEUES_SCOPE) else (),
        )

    async def _ask(self, hours: Hours, now: datetime) -> tuple[Signs, tuple[str, ...]]:
        asked = _Asked()
        signs, lanes = await asyncio.gather(self._signs(asked, now), self._lanes(asked, now, hours))
        # After all others: SQLite answers one question after the other, and this is the longest.
        dead = await asked("the dead letters", self._dead_letters, ())
        return replace(signs, lanes=lanes, dead=dead), tuple(asked.notes)

    async def _dead_letters(self) -> Sequence[DeadGroup]:
        known = await self._dead.at_hand(_NEW_GROUPS if self._dead.has_answered else _FIRST_GROUPS)
        if known is None:
            raise TimeoutError
        return known.answer

    async def _signs(self, asked: _Asked, now: datetime) -> Signs:
        sources = self._sources
        found = await asyncio.gather(
            asked("the targets", sources.targets, ()),
            asked("the workers", sources.hands, None),
            asked("what is paused", sources.paused, {}),
            asked("the queues", sources.queues, ()),
        )
        return Signs(now, (), (), *found, sources.keeps_everything)

    async def _lanes(self, asked: _Asked, now: datetime, hours: Hours) -> tuple[LaneView, ...]:
        sources, begin, step = self._sources, _begin(now, hours), STEPS[hours]
        looks = [
            asked(f"the backlog of {lane}", backlog.look, None) for lane, backlog in sources.backlogs.items()
        ]
        series, hour, *snapshots = await asyncio.gather(
            asked("the traffic", lambda: sources.traffic.series(begin, step), {}),
            # Another process's clock may be ahead.
            asked("the last hour", lambda: sources.traffic.totals(now - _HOUR, now + _HOUR), {}),
            *looks,
        )
        known = dict(zip(sources.backlogs, snapshots, strict=True))
        return tuple(
            self._lane(lane, known[lane], hour.get(lane, NOTHING), points_of(lane, series, begin, step, now))
            for lane in LANES
            if lane in known
        )

    def _lane(
        self, lane: LaneName, snapshot: Snapshot | None, hour: Totals, series: tuple[Point, ...]
    ) -> LaneView:
        known = snapshot or Snapshot({}, 0.0)
        of_state = self._sources.phases[lane]
        phases = {
            phase: sum(count for state, count in known.counts.items() if of_state.get(state) == phase)
            for phase in PHASES
        }
        at_least = {*known.at_least, *(of_state[state] for state in known.at_least if state in of_state)}
        return LaneView(
            lane, known.counts, phases, known.oldest_due, tempo(hour), series,
            known.age // _AGES * _AGES, tuple(sorted(at_least)),
        )  # fmt: skip


def tempo(hour: Totals) -> Tempo:
    attempts = hour.delivered + hour.retried + hour.dead
    return Tempo(
        attempts,
        hour.delivered,
        hour.retried,
        hour.dead,
        hour.delivered / attempts if attempts else None,
        quantile(ATTEMPT_BOUNDS, hour.attempts, 0.5),
        quantile(ATTEMPT_BOUNDS, hour.attempts, 0.95),
        quantile(WAIT_BOUNDS, hour.waits, 0.5),
        quantile(WAIT_BOUNDS, hour.waits, 0.95),
    )


def _begin(now: datetime, hours: Hours) -> datetime:
    """Where a chart begins: at a whole step, so that its points stay where they are."""
    step = int(STEPS[hours].total_seconds())
    last = int(now.timestamp()) // step * step
    return datetime.fromtimestamp(last + step - hours * 3600, UTC)


def points_of(
    lane: LaneName, series: Mapping[tuple[str, int], Bar], begin: datetime, step: timedelta, now: datetime
) -> tuple[Point, ...]:
    points = []
    at = begin
    while at <= now:
        bar = series.get((lane, int(at.timestamp())), Bar())
        points.append(Point(at, bar.delivered, bar.retried, bar.dead))
        at += step
    return tuple(points)


class _Asked:
    """Asks; who does not answer is noted, and is no reason to show nothing."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def __call__(self, what: str, ask: Ask[Answer], otherwise: Any) -> Any:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await ask()
        except (DatabaseError, TimeoutError):
            self.notes.append(f"{what[0].upper()}{what[1:]} could not be asked for just now.")
            return otherwise
