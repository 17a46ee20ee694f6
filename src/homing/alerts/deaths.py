"""What died since the last look: taken up once each, whatever crashes in between."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from homing.alerts.store import AlertStore, Deaths
from homing.db import Database, Dialect, Queries, load_queries
from homing.engine.likeness import code_like
from homing.errors import Refused
from homing.messages.searched import fetch_by_index
from homing.senders.addresses import CONTROL

#: So many are counted in one step, and so many steps are made in one round.
_BATCH, _STEPS = 5000, 20
#: Of a lane that notes no deaths, so many of the newest dead are looked at, each known by its id and this.
_NEWEST = 1000
_TRIED = "@"
UNCLASSIFIED = "unclassified"
#: Of a lane so many words are told apart, whatever other programs write; all others go by one.
_MOST_WORDS = 50
VARIOUS = "various"
#: It is part of a key, of a subject and of a command.
_LONGEST_WORD = 100


class Feed(Protocol):
    async def take_up(self) -> None: ...


class NotedDeaths:
    """Of a lane that notes who dies in a table of its own: marked there, counted here, deleted there."""

    def __init__(
        self,
        lane: str,
        table: str,
        database: Database,
        store: AlertStore,
        name_of: Callable[[int], str],
    ) -> None:
        self._lane, self._database, self._store, self._name_of = lane, database, store, name_of
        self._queries = _noted_in(table, lane, database.dialect)

    async def take_up(self) -> None:
        for _ in range(_STEPS):
            (row,) = await self._database.fetch(self._queries["has_deaths"], {})
            if not row["some"]:
                return
            await self._step()

    async def _step(self) -> None:
        given = {"batch": f"{self._lane}:{secrets.token_hex(8)}", "limit": _BATCH}
        queries = [self._queries["mark_deaths"], self._queries["marked_deaths"]]
        _, rows = await self._database.fetch_all(queries, given)
        for batch, group in groupby(rows, key=lambda row: str(row["batch"])):
            await self._count(batch, [self._deaths(row) for row in group])
            await self._database.fetch(self._queries["drop_deaths"], {"batch": batch})

    async def _count(self, batch: str, deaths: Sequence[Deaths]) -> None:
        open_causes = await self._store.open_dead(self._lane)
        try:
            await self._store.count_deaths(batch, bounded(self._lane, deaths, open_causes))
        except Refused:
            # A word that we cannot write down must not hold up all that die after it.
            await self._store.count_deaths(batch, [together(self._lane, deaths, UNCLASSIFIED)])

    def _deaths(self, row: Any) -> Deaths:
        return deaths_of(self._lane, row["error"], row["count"], self._name_of(row["example"]))


def _noted_in(table: str, lane: str, dialect: Dialect) -> Queries:
    if dialect == "mongodb":
        # There is no such table: jobs note it in their own documents.
        return load_queries(f"homing.lanes.{lane}", dialect)
    return load_queries(__package__ or "", dialect, "deaths", deaths=table)


class FoundDeaths:
    """Of a lane whose table is another program's: the newest dead, but those that were there before."""

    def __init__(self, lane: str, database: Database, store: AlertStore) -> None:
        self._lane, self._database, self._store = lane, database, store
        self._query = load_queries(f"homing.lanes.{lane}", database.dialect, "alerts")["newest_dead"]

    async def take_up(self) -> None:
        rows = await fetch_by_index(self._database, self._query, {"limit": _NEWEST})
        # One that was requeued and died again was tried at another time.
        found = {f"{row['id']}{_TRIED}{row['last_attempt_at']}": row for row in rows}
        known = await self._store.seen(self._lane)
        if known is None:
            # What lay there before anybody looked is no news.
            await self._store.note_seen(self._lane, 0, list(found), [])
            return
        if found.keys() != known.keys:
            # With more dead than are looked at, older ones move up when those before them go: no news either.
            first = min(map(_id_in, known.keys)) if len(known.keys) >= _NEWEST else 0
            fresh = [row for key, row in found.items() if key not in known.keys and row["id"] >= first]
            await self._note(known.revision, list(found), self._deaths(fresh))

    async def _note(self, revision: int, keys: Sequence[str], deaths: Sequence[Deaths]) -> None:
        open_causes = await self._store.open_dead(self._lane)
        try:
            await self._store.note_seen(self._lane, revision, keys, bounded(self._lane, deaths, open_causes))
        except Refused:
            unclassified = [together(self._lane, deaths, UNCLASSIFIED)] if deaths else []
            await self._store.note_seen(self._lane, revision, keys, unclassified)

    def _deaths(self, rows: Sequence[Any]) -> list[Deaths]:
        codes = {row["id"]: _code(row["error"]) for row in rows}
        newest = {codes[row["id"]]: row["id"] for row in reversed(rows)}
        return [
            deaths_of(self._lane, code, count, f"notification_{newest[code]}")
            for code, count in Counter(codes.values()).items()
        ]


def _id_in(key: str) -> int:
    return int(key.partition(_TRIED)[0])


def deaths_of(lane: str, error: str | None, count: int, example: str) -> Deaths:
    word = word_of(error)
    return Deaths(f"dead:{lane}:{word}", {"lane": lane, "error": word, "example": example}, count)


def word_of(error: str | None) -> str:
    """A short line, which is the same for errors that say the same; a number alone is a word, too."""
    line = " ".join(CONTROL.sub(" ", error or "").split())
    like = code_like(line)
    told = like if any(sign.isalnum() for sign in like) else line
    return told[:_LONGEST_WORD].rstrip() or UNCLASSIFIED


def bounded(lane: str, deaths: Sequence[Deaths], open_causes: frozenset[str]) -> list[Deaths]:
    """One for each cause; beyond so many causes, open ones included, the rest together."""
    room = _MOST_WORDS - len(open_causes)
    counted: dict[str, Deaths] = {}
    for given in deaths:
        is_fresh = given.cause not in open_causes and given.cause not in counted
        one = together(lane, [given], VARIOUS) if is_fresh and room <= 0 else given
        room -= is_fresh
        before = counted.get(one.cause)
        counted[one.cause] = one if before is None else replace(one, count=one.count + before.count)
    return list(counted.values())


def together(lane: str, deaths: Sequence[Deaths], word: str) -> Deaths:
    count, example = sum(one.count for one in deaths), deaths[-1].facts["example"]
    return deaths_of(lane, word, count, example)


def _code(error: str | None) -> str:
    """Another program may have written what is no JSON."""
    try:
        found: Mapping[str, Any] = msgspec.json.decode(error or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return UNCLASSIFIED
    return str(found.get("code") or UNCLASSIFIED)
