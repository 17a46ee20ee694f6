"""What people ask of alerts: what is wrong, what was told, be silent for a while, and try it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from homing.alerts.post import Post, Ways
from homing.alerts.rules import Event, Kind, State
from homing.alerts.store import AlertStore, cause_of, told_of
from homing.alerts.words import words_of
from homing.db import Row, instant
from homing.errors import DatabaseError, InvalidRequest
from homing.senders.addresses import CONTROL

_KINDS: tuple[Kind, ...] = ("dead", "target", "backlog", "idle", "worker")
_LONGEST_SILENCE = 365 * 86400.0
_LONGEST_CAUSE = 1000
_MOST_FIRING = 200


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
    ways: tuple[str, ...]
    silenced_until: datetime | None = None
    mail_id: int | None = None
    job_id: int | None = None


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

    async def silence(self, cause: str, seconds: float, *, by: str) -> CauseView:
        """Nobody is told of it for so long; what happens meanwhile is told of afterwards. 0 ends it."""
        kind = _kind_of(cause)
        if not 0 <= seconds <= _LONGEST_SILENCE:
            raise InvalidRequest("seconds: a silence lasts from 0, which ends it, to a year", "seconds")
        rows = await self._store.run("silence", cause=cause, kind=kind, seconds=float(seconds), by=by)
        return _cause(rows[0])

    async def test(self) -> AlertView:
        """An alert by every way there is, at once."""
        if not self.ways.all:
            raise InvalidRequest(
                "alerts go nowhere but to the page: set HOMING_ALERT_MAIL_TO or HOMING_ALERT_WEBHOOK_URL"
            )
        if (trouble := await self._trouble()) is not None:
            raise InvalidRequest(trouble)
        id = await self._store.tell_test(self.ways.all)
        await self._post.hand_over()
        found = await self.get(id)
        if found is None or (found.mail_id is None and found.job_id is None):
            raise DatabaseError("the test could not be handed over to its lanes; the log says why")
        return found


def _kind_of(cause: str) -> Kind:
    name = cause.partition(":")[0]
    if name not in _KINDS or len(cause) > _LONGEST_CAUSE or CONTROL.search(cause):
        raise InvalidRequest(
            "cause: write it as `homing alerts list` shows it, such as dead:mail_outbox:invalid_recipient",
            "cause",
        )
    return name


def _alert(row: Row) -> AlertView:
    told = told_of(row)
    words = words_of(told.kind, told.event, told.facts)
    return AlertView(
        told.id, told.cause, told.kind, told.event, words.title, words.link, told.at,
        tuple(msgspec.json.decode(row["ways"])), instant(row["silenced_until"]), row["mail_id"],
        row["job_id"],
    )  # fmt: skip


def _cause(row: Row) -> CauseView:
    cause = cause_of(row)
    count = cause.pending or cause.facts.get("count", 0)
    words = words_of(cause.kind, "again" if cause.level else "fired", {**cause.facts, "count": count})
    silenced = instant(row["silenced_until"]) if cause.silenced else None
    return CauseView(
        cause.cause, cause.kind, cause.state, words.title, words.link, cause.since, silenced,
        row["silenced_by"] if silenced else None,
    )  # fmt: skip
