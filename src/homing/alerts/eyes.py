"""What is looked at, every few seconds: cheap questions that an index answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from homing.alerts.rules import LEVELS, Cause, Seen, Terms, enough
from homing.db import Database, iso, load_queries
from homing.db.backlog import HeldBack
from homing.messages.model import HowMany
from homing.senders.addresses import CONTROL
from homing.workers.fleet import Fleet

#: For how many seconds the oldest message of a lane has been due.
OldestDue = Callable[[], Awaitable[float]]
#: How many messages of a lane are dead of an error; None where that is not known.
Left = Callable[[str, str], Awaitable[HowMany | None]]

#: What a lane's targets keep back.
AskHeldBack = Callable[[], Awaitable[HeldBack]]

_MOST_TARGETS = 200
#: An alert names so many targets.
_MOST_NAMED = 5
#: Of so many causes of death it is asked in a round, of those first that would be told of.
_MOST_LOOKED_FOR = 20
_LONGEST_ERROR = 200
#: Seconds: a lane may be looked after by a command that is run every few minutes, and by no worker.
_UNCLAIMED = 300.0
#: Seconds; whoever was lost before is on no page any more.
_LOST_IS_NEWS = 4 * 3600.0
JOBS = "homing.lanes.dispatch_jobs"

_encode = msgspec.json.Encoder().encode


class Eye(Protocol):
    """Looks at one kind of causes. What it does not see is not so any more."""

    #: How the causes that it looks at begin.
    covers: str

    async def look(self, open_causes: Sequence[Cause]) -> Sequence[Seen]: ...


class BacklogEye:
    """Whether the oldest message that is due has waited too long."""

    def __init__(
        self, lane: str, oldest_due: OldestDue, terms: Terms, held_back: AskHeldBack | None = None
    ) -> None:
        self.covers = f"backlog:{lane}"
        self._lane, self._oldest_due, self._limit = lane, oldest_due, terms.backlog_age
        self._held_back = held_back

    async def look(self, _open_causes: Sequence[Cause]) -> Sequence[Seen]:
        age = await self._oldest_due()
        if age <= self._limit:
            return []
        facts = {
            "lane": self._lane,
            "age": round(age),
            "limit": self._limit,
            **await self._facts_of_targets(),
        }
        return [Seen(self.covers, "backlog", age, facts)]

    async def _facts_of_targets(self) -> dict[str, Any]:
        held = await self._held_back() if self._held_back is not None else HeldBack()
        if not held.targets:
            return {}
        facts: dict[str, Any] = {
            "heldBack": held.count,
            "heldBackSince": held.since,
            "targets": held.places[:_MOST_NAMED],
        }
        return {**facts, "heldBackOrMore": True} if held.is_lower_bound else facts


class TargetEye:
    """Which targets keep failing. The one that alerts themselves go to is not among them."""

    covers = "target:"

    def __init__(self, database: Database, terms: Terms, alert_target: str) -> None:
        self._database, self._terms, self._alert_target = database, terms, alert_target
        self._query = load_queries(JOBS, database.dialect, "alerts")["failing_targets"]

    async def look(self, open_causes: Sequence[Cause]) -> Sequence[Seen]:
        told = [cause.cause.removeprefix(self.covers) for cause in open_causes]
        rows = await self._database.fetch(
            self._query,
            {
                "least": enough(self._terms, LEVELS[0]),
                "told": _encode(told).decode(),
                "alert_target": self._alert_target,
                "most": _MOST_TARGETS + len(told),
            },
        )
        return [self._seen(row) for row in rows if row["failures"]]

    def _seen(self, row: Any) -> Seen:
        facts = {
            "lane": "dispatch_jobs",
            "target": row["target"],
            "failures": row["failures"],
            "threshold": self._terms.target_failures,
            # Its database may take what the one of alerts does not.
            "error": CONTROL.sub(" ", row["last_error"] or "")[:_LONGEST_ERROR],
            "paused": bool(row["paused"]),
        }
        return Seen(f"{self.covers}{row['target']}", "target", row["failures"], facts)


class IdleEye:
    """Whether nobody takes from a lane though something is due in it, and nobody has paused it by hand."""

    def __init__(self, lane: str, oldest_due: OldestDue, fleet: Fleet, terms: Terms) -> None:
        self.covers = f"idle:{lane}"
        self._lane, self._oldest_due, self._fleet = lane, oldest_due, fleet
        self._limit = min(_UNCLAIMED, terms.backlog_age)

    async def look(self, _open_causes: Sequence[Cause]) -> Sequence[Seen]:
        age = await self._oldest_due()
        if age <= self._limit:
            return []
        crew = await self._fleet.crew(self._lane)
        if crew.pause is not None or not crew.is_idle:
            return []
        return [Seen(self.covers, "idle", age, {"lane": self._lane, "age": round(age)})]


class DeadEye:
    """How much of what was given up is still there, and was not requeued, cancelled or pruned."""

    covers = "dead:"

    def __init__(self, left: Left) -> None:
        self._left = left

    async def look(self, open_causes: Sequence[Cause]) -> Sequence[Seen]:
        first = sorted(open_causes, key=lambda cause: not cause.pending)[:_MOST_LOOKED_FOR]
        asked = [(cause, await self._left(*map(str, _lane_and_error(cause)))) for cause in first]
        return [_seen_dead(cause, left) for cause, left in asked if left is not None]


def _lane_and_error(cause: Cause) -> tuple[Any, Any]:
    return cause.facts.get("lane"), cause.facts.get("error")


def _seen_dead(cause: Cause, left: HowMany) -> Seen:
    known = {name: value for name, value in cause.facts.items() if name != "deadOrMore"}
    more = {"deadOrMore": True} if left.is_lower_bound else {}
    return Seen(cause.cause, "dead", left.number, {**known, "dead": left.number, **more})


class WorkerEye:
    """Which workers fell silent without having said that they end."""

    covers = "worker:"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def look(self, _open_causes: Sequence[Cause]) -> Sequence[Seen]:
        return [
            Seen(f"{self.covers}{one.name}", "worker", 1.0, {"worker": one.name, "seenAt": iso(one.seen_at)})
            for one in await self._fleet.workers()
            if one.state == "lost" and one.silent_seconds < _LOST_IS_NEWS
        ]
