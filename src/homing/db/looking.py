"""A look at the rows of a table, newest first, at a price that does not grow with it.

Rows come as a *stream* in the order of their ids: the whole table by its key, or the rows of some states by a
small index. Where that index answers the whole question, just the page is read. What else is asked for is
looked for among the next rows of the stream, so many and no more, and the look says how many it were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from homing.db.conditions import Conditions, readable, select
from homing.db.database import Database, Row
from homing.db.queries import Dialect, Query, parse_queries

#: So many rows are looked through at most: 5 to 15 ms of CPU, at a million rows with bodies.
WINDOW: Final = 6_000
#: Of rows that an index picks from all over the table: each is on a page of its own.
SCATTERED: Final = 2_000
#: What is frequent is found among so many, for a fraction of that.
FIRST_WINDOW: Final = 1_000
#: Of rows without an order of their own, so many are sorted.
FEW: Final = 5_000
#: When so many in a row are older than what is asked for, all others are.
_OLD_ENOUGH: Final = 1_000
_LARGEST: Final = 2**63 - 1


class Table(Struct, frozen=True):
    """Where a lane's rows are. The alias of the table is `o` in every condition."""

    name: str
    #: Its key, as a condition names it.
    key: str
    created_at: str
    #: Those that can be shown or asked for, under their own names; the key is called `id` as well.
    columns: str

    @property
    def source(self) -> str:
        return f"{self.name} AS o"


class Stream(Struct, frozen=True):
    """Which rows, and how they are found in order."""

    #: Conditions that each have an index in the order of ids; none of them: the whole table.
    ordered: tuple[str, ...] = ()
    #: Conditions that have an index in another order, worth it when there are few such rows.
    unordered: tuple[str, ...] = ()
    #: The same in one condition, for when there are too many.
    instead: str | None = None


class Glimpse(Struct, frozen=True):
    rows: Sequence[Row]
    next: int | None
    looked_at: int | None


async def look(
    database: Database,
    table: Table,
    stream: Stream,
    also: Conditions,
    *,
    before: int | None,
    limit: int,
    since: datetime | None = None,
) -> Glimpse:
    """The next rows below the id `before`. `since` is among the conditions, and tells when to end."""
    most = SCATTERED if also.texts else limit
    chosen = await _with_few(database, table, stream, also.values, before=before, most=most)
    asked = _Asked(database, table, chosen.stream, also + chosen.also, before)
    if not asked.also.texts:
        rows = await asked.rows(limit, limit)
        return Glimpse(rows, rows[-1]["id"] if len(rows) == limit else None, None)
    widest = SCATTERED if chosen.stream.ordered else WINDOW
    for window in (FIRST_WINDOW, widest):
        rows = await asked.rows(window, limit)
        if len(rows) == limit:
            return Glimpse(rows, rows[-1]["id"], None)
    looked, last = await asked.end(widest)
    ends = looked < widest or (since is not None and await asked.is_older(last, since))
    return Glimpse(rows, None if ends else last, looked)


class _Chosen(Struct, frozen=True):
    stream: Stream
    also: Conditions = Conditions()


async def _with_few(
    database: Database,
    table: Table,
    stream: Stream,
    values: Mapping[str, Any],
    *,
    before: int | None,
    most: int,
) -> _Chosen:
    """Rows that lie in another order are found first, and are a part of the stream by their ids.

    Of these the next `most`: no more of the stream is looked at.
    """
    if not stream.unordered:
        return _Chosen(stream)
    ids: list[int] = []
    for condition in stream.unordered:
        text = select(f"{table.key} AS id", table.source, (condition,), limit=FEW + 1)
        ids += [row["id"] for row in await _fetch(database, text, values)]
    if len(ids) > FEW:
        return _Chosen(Stream(), Conditions((stream.instead,)) if stream.instead else Conditions())
    ahead = sorted({id for id in ids if before is None or id < before})
    few = Conditions((), {"few": json.dumps(ahead[-most:])})
    return _Chosen(Stream((*stream.ordered, f"{table.key} {_AMONG_FEW[database.dialect]}")), few)


_AMONG_FEW: Mapping[Dialect, str] = {
    "postgres": "= ANY (ARRAY(SELECT json_array_elements_text(:few::json)::bigint))",
    "sqlite": "IN (SELECT value FROM json_each(:few))",
}


class _Asked:
    """One look: what is asked for, of which rows, from where on."""

    def __init__(
        self, database: Database, table: Table, stream: Stream, also: Conditions, before: int | None
    ) -> None:
        self._database, self._table, self._stream, self.also = database, table, stream, also
        self._before = _LARGEST if before is None else before

    async def rows(self, window: int, limit: int) -> Sequence[Row]:
        inner = windowed(self._table, self._stream, self._table.columns, window)
        return await self._fetch(select("o.*", f"({inner}) AS o", self.also.texts, "o.id DESC", limit))

    async def end(self, window: int) -> tuple[int, int]:
        """How many rows there were, and the id of the last of them."""
        inner = windowed(self._table, self._stream, f"{self._table.key} AS id", window)
        text = select("count(*) AS looked, min(o.id) AS last", f"({inner}) AS o")
        row = (await self._fetch(text))[0]
        return row["looked"], row["last"] or 0

    async def is_older(self, last: int, since: datetime) -> bool:
        """Ids follow the time of creation, but for what others wrote: so not one row decides, but many."""
        times = await _times(self._database, self._table, last, _OLD_ENOUGH)
        return all(at < since for at in times)

    async def _fetch(self, text: str) -> Sequence[Row]:
        return await _fetch(self._database, text, {**self.also.values, "place": self._before})


def windowed(table: Table, stream: Stream, columns: str, window: int, *, newest_first: bool = True) -> str:
    """The next rows of a stream beyond the id `:place`.

    Limits are written as numbers: a plan for any limit would be one for half of the table.
    """
    sign, direction = ("<", "DESC") if newest_first else (">", "ASC")
    beyond = f"{table.key} {sign} :place"
    parts = [
        select(columns, table.source, tuple(filter(None, (one, beyond))), f"{table.key} {direction}", window)
        for one in stream.ordered or ("",)
    ]
    if len(parts) == 1:
        return parts[0]
    merged = " UNION ALL ".join(select("*", f"({part}) AS o") for part in parts)
    return select("*", f"({merged}) AS o", (), f"o.id {direction}", window)


async def first_after(database: Database, table: Table, moment: datetime) -> int | None:
    """An id from which on rows are newer than that: found by halves, as ids follow the time of creation.

    It lies a little behind, for rows that were not written in the order of their times.
    """
    # Apart: asked for together, SQLite reads the whole table.
    ends = [select(f"{which}({table.key})", table.source) for which in ("min", "max")]
    row = (await _fetch(database, f"SELECT ({ends[0]}) AS low, ({ends[1]}) AS high", {}))[0]
    if row["low"] is None:
        return None
    low, high = int(row["low"]), int(row["high"]) + 1
    while low < high:
        middle = (low + high) // 2
        if await _is_newer(database, table, middle, moment):
            high = middle
        else:
            low = middle + 1
    return min(low + _MARGIN, _LARGEST)


#: So many are asked at each step: a single row may have been written with any time.
_WITNESSES = 5
_MARGIN = 1_000


async def _is_newer(database: Database, table: Table, id: int, moment: datetime) -> bool:
    known = sorted(await _times(database, table, id, _WITNESSES))
    return not known or known[len(known) // 2] > moment


async def _times(database: Database, table: Table, id: int, many: int) -> list[datetime]:
    """When the next rows from an id on were created, as far as that can be read."""
    text = select(f"{table.created_at} AS at", table.source, (f"{table.key} >= :id",), table.key, many)
    rows = await _fetch(database, text, {"id": id})
    return [at for row in rows if (at := readable(row["at"])) is not None]


async def _fetch(database: Database, text: str, values: Mapping[str, Any]) -> Sequence[Row]:
    return await database.fetch(query_of(text, database.dialect), values)


@lru_cache(maxsize=1024)
def query_of(text: str, dialect: Dialect) -> Query:
    return next(parse_queries(f"-- name: look\n{text}", dialect))
