"""What bulk runs did with one message: for its timeline."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from homing.db import Database, Row, instant, load_queries
from homing.messages.model import LaneName, Step, Verb

#: Runs that are looked at, the newest first: each costs a jump in an index.
_MOST_RUNS: Final = 1000
_TITLES: Final[dict[Verb, str]] = {
    "requeue": "Requeued",
    "cancel": "Cancelled",
    "send_now": "Made due at once",
}


class Done(Struct, frozen=True):
    """A message was changed by a run."""

    run: int
    verb: Verb
    created_by: str
    lanes: tuple[LaneName, ...]
    at: datetime


class BulkStory:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = load_queries(__package__ or "", database.dialect, "bulk")

    async def of(self, lane: LaneName, number: int, *, readable: AbstractSet[LaneName]) -> list[Step]:
        """Who ordered a run is told to those who may read all that it is about, as its own page does."""
        given = {"lane": lane, "number": number, "most": _MOST_RUNS}
        found = [_done(row) for row in await self._database.fetch(self._queries["of_message"], given)]
        return [_step(one, is_named=readable >= set(one.lanes)) for one in found]


def _done(row: Row) -> Done:
    plain = {name: row[name] for name in ("run", "verb", "created_by")}
    lanes = msgspec.json.decode(row["lanes"])
    return msgspec.convert({**plain, "lanes": lanes, "at": instant(row["at"])}, Done)


def _step(done: Done, *, is_named: bool) -> Step:
    who = f" of {done.created_by}" if is_named else ""
    title = f"{_TITLES[done.verb]} by bulk run {done.run}{who}"
    return Step(done.at, "bulk", title, bulk_run=done.run if is_named else None)
