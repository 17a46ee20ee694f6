"""What people ask of alerts: what is wrong, what was told, be silent for a while, and try it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from homing.alerts.causes import facts_in, kind_of, lane_of, require_possible
from homing.alerts.post import Post, Ways
from homing.alerts.rules import Event, Kind, State
from homing.alerts.store import AlertStore, cause_of, told_of, went_of
from homing.alerts.words import words_of
from homing.db import Row, instant
from homing.errors import DatabaseError, InvalidRequest

_LONGEST_SILENCE = 365 * 86400.0
_MOST_FIRING = 200
_MOST_KNOWN = 1000
_WAITS = "waits, its database does not answer; it goes when that is back"
_BARRED = "cannot go by it; the log says why"


class AlertView(Struct, frozen=True, rename="camel"):
    """Something that people were told."""

    id: int
    cause: str
    kind: Kind
    event: Event
    title: str
    #: A path of the desk.
    link: str
    at: datetime
    #: By which it went, or is to go.
    ways: tuple[str, ...]
    silenced_until: datetime | None = None
    mail_id: int | None = None
    job_id: int | None = None
    #: Ways whose database did not answer when it was to go.
    waits: tuple[str, ...] = ()

    @property
    def lane(self) -> str | None:
        return lane_of(self.cause)

    @property
    def went(self) -> tuple[str, ...]:
        return tuple(way for way in self.ways if way not in self.waits)


class CauseView(Struct, frozen=True, rename="camel"):
    """Something that is wrong now, or that is silenced."""

    cause: str
    kind: Kind
    state: State
    title: str
    link: str
    since: datetime
    silenced_until: datetime | None = None
    silenced_by: str | None = None

    @property
    def lane(self) -> str | None:
        return lane_of(self.cause)


class Alerts:
    def __init__(
        self,
        store: AlertStore,
        post: Post,
        look: Callable[[], Awaitable[None]],
        trouble: Callable[[], Awaitable[str | None]],
    ) -> None:
        self._store, self._post, self._trouble = store, post, trouble
        #: One round of the watch, for whoever does not want to wait for the next.
        self.look = look

    @property
    def ways(self) -> Ways:
        return self._post.ways

    async def recent(self, limit: int = 10) -> Sequence[AlertView]:
        """Newest first."""
        return [_alert(row) for row in await self._store.run("recent", limit=limit)]

    async def get(self, id: int) -> AlertView | None:
        rows = await self._store.run("get", id=id)
        return _alert(rows[0]) if rows else None

    async def firing(self) -> Sequence[CauseView]:
        """What is wrong now, the oldest first."""
        return [_cause(row) for row in await self._store.run("firing", limit=_MOST_FIRING)]

    async def silenced(self) -> Sequence[CauseView]:
        return [_cause(row) for row in await self._store.run("silenced", limit=_MOST_FIRING)]

    async def known(self) -> Sequence[str]:
        """Causes that something was ever wrong with, as far as is remembered; those of now first."""
        recent = [one.cause for one in await self.recent(_MOST_KNOWN) if one.kind != "test"]
        silenced = await self._store.run("silenced", limit=_MOST_FIRING)
        seen = [row["cause"] for row in silenced if _is_seen(row)]
        return [*dict.fromkeys([*(one.cause for one in await self.firing()), *recent, *seen])]

    async def silence(self, cause: str, seconds: float, *, by: str) -> CauseView:
        """Nobody is told of it for so long; what happens meanwhile is told of afterwards. 0 ends it."""
        kind = kind_of(cause)
        if not 0 <= seconds <= _LONGEST_SILENCE:
            raise InvalidRequest("seconds: a silence lasts from 0, which ends it, to a year", "seconds")
        if seconds:
            # One that was begun can be ended, whatever it is called.
            require_possible(cause)
        rows = await self._store.run("silence", cause=cause, kind=kind, seconds=float(seconds), by=by)
        return _cause(rows[0])

    async def test(self) -> AlertView:
        """An alert by every way there is, at once; `troubles_of` it are those by which it did not go."""
        if not self.ways.all:
            raise InvalidRequest(
                "alerts go nowhere but to the page: set HOMING_ALERT_MAIL_TO or HOMING_ALERT_WEBHOOK_URL"
            )
        if (trouble := await self._trouble()) is not None:
            raise InvalidRequest(trouble)
        id = await self._store.tell_test(self.ways.all)
        await self._post.hand_over()
        found = await self.get(id)
        if found is None:
            raise DatabaseError("the test was pruned before it could be looked at")
        return found

    def troubles_of(self, test: AlertView) -> list[str]:
        """The ways that are set and by which a test did not go, and why."""
        missed = [way for way in self.ways.all if way not in test.went]
        return [f"{way}: {_WAITS if way in test.waits else _BARRED}" for way in missed]


def _alert(row: Row) -> AlertView:
    told = told_of(row)
    words = words_of(told.kind, told.event, told.facts)
    ways, went = tuple(msgspec.json.decode(row["ways"])), went_of(row)
    return AlertView(
        told.id, told.cause, told.kind, told.event, words.title, words.link, told.at, ways,
        instant(row["silenced_until"]), row["mail_id"], row["job_id"],
        tuple(way for way in ways if way not in went),
    )  # fmt: skip


def _is_seen(row: Row) -> bool:
    """One that was silenced before anything happened has no facts."""
    return bool(cause_of(row).facts)


def _cause(row: Row) -> CauseView:
    cause = cause_of(row)
    # How many are dead is of now; where that is not known, how many nobody or somebody was told of.
    count = cause.facts.get("dead") or cause.pending or cause.facts.get("count", 0)
    facts = {**facts_in(cause.cause), **cause.facts, "count": count}
    words = words_of(cause.kind, "again" if cause.level else "fired", facts)
    title = words.title if cause.facts else f"Not seen so far: {cause.cause}"
    silenced = instant(row["silenced_until"]) if cause.silenced else None
    return CauseView(
        cause.cause, cause.kind, cause.state, title, words.link, cause.since, silenced,
        row["silenced_by"] if silenced else None,
    )  # fmt: skip
