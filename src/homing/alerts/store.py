"""The tables of alerts, always in the main database."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from homing.alerts.rules import Cause, Event, Kind
from homing.alerts.words import Told
from homing.db import Database, Row, instant, iso, load_queries

Way = Literal["mail", "webhook"]

_MOST_AT_ONCE = 100

_encode = msgspec.json.Encoder().encode
_ways = msgspec.json.Decoder(tuple[Way, ...]).decode


class Deaths(Struct, frozen=True):
    """Messages that died of the same."""

    cause: str
    facts: Mapping[str, Any]
    count: int


class Known(Struct, frozen=True):
    revision: int
    keys: frozenset[str]


class Moment(Struct, frozen=True):
    now: datetime
    #: How many alerts were raised in the last hour.
    told: int


class Waiting(Struct, frozen=True):
    """An alert that is still to become a mail or a webhook."""

    alert: Told
    #: By which it went, or is to go.
    ways: tuple[Way, ...]
    #: The messages that it became already.
    went: Mapping[Way, int]
    #: The part of its key that nobody can guess.
    token: str

    @property
    def left(self) -> tuple[Way, ...]:
        return tuple(way for way in self.ways if way not in self.went)


class AlertStore:
    def __init__(self, database: Database) -> None:
        self.database = database
        self._queries = load_queries(__package__ or "", database.dialect)

    async def run(self, name: str, **parameters: Any) -> Sequence[Row]:
        return await self.database.fetch(self._queries[name], parameters)

    # ── who looks ────────────────────────────────────────────────────────────────────────────────

    async def take_watch(self, holder: str, seconds: float) -> bool:
        """Read first: to write is left to one process, or to whoever follows it."""
        rows = await self.run("watch")
        if rows and rows[0]["held"] and rows[0]["holder"] != holder:
            return False
        return bool(await self.run("take_watch", holder=holder, seconds=seconds))

    async def leave_watch(self, holder: str) -> None:
        await self.run("leave_watch", holder=holder)

    # ── what is wrong ────────────────────────────────────────────────────────────────────────────

    async def moment(self) -> Moment:
        (row,) = await self.run("now")
        return Moment(_time(row["now"]), row["told"])

    async def causes(self, others: Sequence[str] = ()) -> dict[str, Cause]:
        """What is not quiet, and those that are named."""
        rows = await self.run("causes", causes=_encode(others).decode())
        return {row["cause"]: cause_of(row) for row in rows}

    async def open_dead(self, lane: str) -> frozenset[str]:
        """Of what messages of a lane die these days."""
        return frozenset(row["cause"] for row in await self.run("open_dead", prefix=f"dead:{lane}:"))

    async def count_deaths(self, batch: str, deaths: Sequence[Deaths]) -> None:
        await self.run("count_deaths", batch=batch, deaths=_encode(deaths).decode())

    async def seen(self, lane: str) -> Known | None:
        rows = await self.run("seen", lane=lane)
        return Known(rows[0]["revision"], frozenset(msgspec.json.decode(rows[0]["seen"]))) if rows else None

    async def note_seen(
        self, lane: str, revision: int, keys: Sequence[str], deaths: Sequence[Deaths]
    ) -> None:
        """One transaction; the number of the look is the batch, so that of two who looked one counts."""
        steps = [self._queries["count_deaths"], self._queries["note_seen"]]
        given = {
            "batch": f"{lane}:look:{revision}",
            "deaths": _encode(deaths).decode(),
            "lane": lane,
            "revision": revision,
            "seen": _encode(keys).decode(),
        }
        await self.database.fetch_all(steps, given)

    async def tell(self, cause: Cause, event: Event | None, ways: Sequence[str]) -> None:
        """Write a verdict, and the alert with it; nothing where somebody else was first."""
        await self.run(
            "tell",
            cause=cause.cause,
            kind=cause.kind,
            state=cause.state,
            since=self._moment(cause.since),
            facts=_encode(cause.facts).decode(),
            pending=cause.pending,
            level=cause.level,
            told=_encode({level: iso(at) for level, at in cause.told.items()}).decode(),
            revision=cause.revision,
            event=event,
            alert_facts=_encode(cause.facts).decode(),
            ways=_encode(ways).decode(),
        )

    async def tell_test(self, ways: Sequence[str]) -> int:
        (row,) = await self.run("tell_test", ways=_encode(ways).decode())
        return int(row["id"])

    async def forget(self) -> None:
        await self.run("forget")

    # ── what people are told ─────────────────────────────────────────────────────────────────────

    async def waiting(self, after: int, away: Collection[Way], working: Collection[Way]) -> list[Waiting]:
        """The next after an id, without those that wait for nothing but ways that are away."""
        given = {"away": _listed(away), "working": _listed(working)}
        rows = await self.run("waiting", after=after, limit=_MOST_AT_ONCE, **given)
        return [Waiting(told_of(row), _ways(row["ways"]), went_of(row), row["token"]) for row in rows]

    async def renew_token(self, id: int) -> None:
        """Its key was somebody else's: the next round comes with another one."""
        await self.run("renew_token", id=id, token=secrets.token_hex(16))

    async def note_ways(self, id: int, ways: Collection[Way], went: Mapping[Way, int]) -> bool:
        """By which ways it went; whether that were all, and nobody had noted it before."""
        given = {"mail_id": went.get("mail"), "job_id": went.get("webhook")}
        is_all = set(ways) <= set(went)
        rows = await self.run("note_ways", id=id, ways=_listed(ways), handed_over=is_all, **given)
        return bool(rows and rows[0]["handed_over"])

    def _moment(self, moment: datetime) -> datetime | str | None:
        return iso(moment) if self.database.dialect == "sqlite" else moment


def cause_of(row: Row) -> Cause:
    told: dict[str, str] = msgspec.json.decode(row["told"])
    kind: Kind = row["kind"]
    return Cause(
        cause=row["cause"],
        kind=kind,
        since=_time(row["since"]),
        state=row["state"],
        facts=msgspec.json.decode(row["facts"]),
        pending=row["pending"],
        level=row["level"],
        told={level: _time(at) for level, at in told.items()},
        silenced=bool(row["silenced"]),
        revision=row["revision"],
    )


def went_of(row: Row) -> dict[Way, int]:
    """The messages that an alert became."""
    became: dict[Way, int | None] = {"mail": row["mail_id"], "webhook": row["job_id"]}
    return {way: id for way, id in became.items() if id is not None}


def _listed(ways: Collection[Way]) -> str:
    return _encode(sorted(ways)).decode()


def told_of(row: Row) -> Told:
    return Told(
        row["id"],
        row["cause"],
        row["kind"],
        row["event"],
        msgspec.json.decode(row["facts"]),
        _time(row["at"]),
    )


def _time(value: datetime | str) -> datetime:
    moment = instant(value)
    if moment is None:
        raise TypeError("the column is NOT NULL")
    return moment
