"""What is looked at, every few seconds: cheap questions that an index answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from homing.alerts.rules import LEVELS, Cause, Seen, Terms, enough
from homing.db import Database, load_queries

#: A claim looks at as many targets at most.
_MOST_HEADS = 100_000
_MOST_TARGETS = 200
#: Of so many causes of death it is asked in a round; the others end with their cool-down.
_MOST_LOOKED_FOR = 20
_LONGEST_ERROR = 200
#: Seconds: a lane may be looked after by a command that is run every few minutes, and by no worker.
_UNCLAIMED = 300.0
JOBS = "homing.lanes.dispatch_jobs"

_encode = msgspec.json.Encoder().encode


class Eye(Protocol):
    """Looks at one kind of causes. What it does not see is not so any more."""

    #: How the causes that it looks at begin.
    covers: str

    async def look(self, open_causes: Sequence[Cause]) -> Sequence[Seen]: ...


class BacklogEye:
    """Whether the oldest message that is due has waited too long."""

    def __init__(self, lane: str, oldest_due: Callable[[], Awaitable[float]], terms: Terms) -> None:
        self.covers = f"backlog:{lane}"
        self._lane, self._oldest_due, self._limit = lane, oldest_due, terms.backlog_age

    async def look(self, _open_causes: Sequence[Cause]) -> Sequence[Seen]:
        age = await self._oldest_due()
        if age <= self._limit:
            return []
        facts = {"lane": self._lane, "age": round(age), "limit": self._limit}
        return [Seen(self.covers, "backlog", age, facts)]


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
            "error": (row["last_error"] or "")[:_LONGEST_ERROR],
            "paused": bool(row["paused"]),
        }
        return Seen(f"{self.covers}{row['target']}", "target", row["failures"], facts)


class Crew(Struct, frozen=True):
    """Who works, as far as the register of workers knows."""

    #: Lanes that somebody takes from now, and those that were paused by hand.
    lanes: frozenset[str]
    paused: frozenset[str]
    #: Workers that fell silent without a word lately, and when they were last heard of.
    lost: Mapping[str, str]


class IdleEye:
    """Whether nobody takes from a lane though something is due in it."""

    covers = "idle:"

    def __init__(
        self,
        oldest_due: Mapping[str, Callable[[], Awaitable[float]]],
        crew: Callable[[], Awaitable[Crew]],
        terms: Terms,
    ) -> None:
        self._oldest_due, self._crew = oldest_due, crew
        self._limit = min(_UNCLAIMED, terms.backlog_age)

    async def look(self, _open_causes: Sequence[Cause]) -> Sequence[Seen]:
        crew = await self._crew()
        free = [lane for lane in self._oldest_due if lane not in crew.lanes | crew.paused]
        ages = {lane: await self._oldest_due[lane]() for lane in free}
        return [
            Seen(f"{self.covers}{lane}", "idle", age, {"lane": lane, "age": round(age)})
            for lane, age in ages.items()
            if age > self._limit
        ]


class DeadEye:
    """Whether what people were told of as given up is still there, or was requeued, cancelled or pruned."""

    covers = "dead:"

    def __init__(self, are_left: Callable[[str, str], Awaitable[bool]]) -> None:
        self._are_left = are_left

    async def look(self, open_causes: Sequence[Cause]) -> Sequence[Seen]:
        told = [cause for cause in open_causes if cause.state == "firing" and not cause.pending]
        return [
            Seen(cause.cause, "dead", 0.0, cause.facts)
            for cause in told[:_MOST_LOOKED_FOR]
            if not await self._are_left(str(cause.facts.get("lane")), str(cause.facts.get("error")))
        ]


class WorkerEye:
    """Which workers fell silent without having said that they end."""

    covers = "worker:"

    def __init__(self, crew: Callable[[], Awaitable[Crew]]) -> None:
        self._crew = crew

    async def look(self, _open_causes: Sequence[Cause]) -> Sequence[Seen]:
        lost = (await self._crew()).lost
        return [
            Seen(f"{self.covers}{name}", "worker", 1.0, {"worker": name, "seenAt": at})
            for name, at in lost.items()
        ]


def mails_due(database: Database) -> Callable[[], Awaitable[float]]:
    """The age of the oldest mail that is due; alerts are not counted."""
    query = load_queries("homing.lanes.mail_outbox", database.dialect, "alerts")["oldest_due"]

    async def oldest() -> float:
        return _age(await database.fetch(query, {}))

    return oldest


def jobs_due(database: Database, alert_target: str) -> Callable[[], Awaitable[float]]:
    """The age of the oldest job that could be sent now; alerts are not counted."""
    query = load_queries(JOBS, database.dialect, "alerts")["oldest_due"]

    async def oldest() -> float:
        return _age(await database.fetch(query, {"alert_target": alert_target, "most": _MOST_HEADS}))

    return oldest


def _age(rows: Sequence[Any]) -> float:
    return max(0.0, rows[0]["age"] or 0.0) if rows else 0.0
