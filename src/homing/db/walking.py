"""A walk through all rows that are meant, in the order of their ids, for whoever changes them on the way.

It reads the same streams as a look (`looking.py`), a window at a time: no statement of it takes long, however
few of the rows are meant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from homing.db.conditions import Conditions, is_one_of, select
from homing.db.database import Database, Row
from homing.db.looking import Stream, Table
from homing.db.queries import Dialect, Query, parse_queries

#: Rows that one statement looks through, and that one counts where an index answers the whole question.
WINDOW: Final = 20_000
#: … where they lie far apart.
SCATTERED: Final = 5_000
_COUNTED_AT_ONCE: Final = 50_000
_LARGEST: Final = 2**63 - 1


class Walk(Struct, frozen=True):
    database: Database
    table: Table
    #: Only its ordered conditions are used; none of them: the whole table.
    stream: Stream
    #: What else has to be so.
    also: Conditions
    newest_first: bool = False

    async def numbers(self, after: int | None, limit: int) -> list[int]:
        """Ids of the next rows beyond that one; fewer than asked for say nothing, none is the end."""
        window = self._window if self.also.texts else limit
        place = self._beginning if after is None else after
        while True:
            rows = await self._fetch(self._found(window, limit), place)
            if rows:
                return [row["id"] for row in rows]
            seen = (await self._fetch(self._seen(window), place))[0]
            if seen["looked"] < window:
                return []
            place = seen["last"]

    async def count(self, most: int, seconds: float) -> tuple[int, bool]:
        """How many there are, and whether there may be more: beyond `most`, or than there was time for."""
        deadline = time.monotonic() + seconds
        place, counted = self._beginning, 0
        while True:
            window = self._window if self.also.texts else min(most - counted, _COUNTED_AT_ONCE)
            seen = (await self._fetch(self._seen(window), place))[0]
            counted += seen["found"] or 0
            if seen["looked"] < window:
                return min(counted, most), counted > most
            if counted >= most or time.monotonic() > deadline:
                return min(counted, most), True
            place = seen["last"]

    # ── statements ───────────────────────────────────────────────────────────────────────────────

    @property
    def _window(self) -> int:
        return SCATTERED if self.stream.ordered else WINDOW

    @property
    def _beginning(self) -> int:
        return _LARGEST if self.newest_first else -_LARGEST - 1

    @property
    def _direction(self) -> str:
        return "DESC" if self.newest_first else "ASC"

    def _found(self, window: int, limit: int) -> str:
        inner = self._windowed(self.table.columns, window)
        return select("o.id", f"({inner}) AS o", self.also.texts, f"o.id {self._direction}", limit)

    def _seen(self, window: int) -> str:
        """How many rows a window has, how many of them are meant, and where it ends."""
        columns = self.table.columns if self.also.texts else f"{self.table.key} AS id"
        meant = f"CASE WHEN {' AND '.join(self.also.texts)} THEN 1 ELSE 0 END" if self.also.texts else "1"
        last = "min" if self.newest_first else "max"
        figures = f"count(*) AS looked, sum({meant}) AS found, {last}(o.id) AS last"
        return select(figures, f"({self._windowed(columns, window)}) AS o")

    def _windowed(self, columns: str, window: int) -> str:
        """Limits are written as numbers: a plan for any limit would be one for half of the table."""
        parts = [self._part(columns, one, window) for one in self.stream.ordered or ("",)]
        if len(parts) == 1:
            return parts[0]
        merged = " UNION ALL ".join(select("*", f"({part}) AS o") for part in parts)
        return select("*", f"({merged}) AS o", (), f"o.id {self._direction}", window)

    def _part(self, columns: str, condition: str, window: int) -> str:
        key, sign = self.table.key, "<" if self.newest_first else ">"
        found = (*((condition,) if condition else ()), f"{key} {sign} :place")
        return select(columns, self.table.source, found, f"{key} {self._direction}", window)

    async def _fetch(self, text: str, place: int) -> Sequence[Row]:
        values: dict[str, Any] = {**self.also.values, "place": place}
        return await self.database.fetch(_query(text, self.database.dialect), values)


def walk_of(
    database: Database,
    table: Table,
    states: Sequence[str],
    others: Conditions,
    *,
    column: str,
    in_order: Callable[[str], str | None],
    unique: Sequence[str],
    newest_first: bool = False,
) -> Walk:
    """Through the rows of some states, by whatever index serves that.

    `in_order` is the condition by which an index gives the rows of a state in the order of ids, or None;
    `unique` are columns with an index of their own.
    """
    keys = tuple(text for text in others.texts if text.startswith(tuple(f"{name} = " for name in unique)))
    each = tuple(text for state in states if (text := in_order(state)) is not None)
    if not keys and len(each) == len(states):
        return Walk(database, table, Stream(each), others, newest_first)
    also = Conditions((is_one_of(column, states), *(text for text in others.texts if text not in keys)))
    return Walk(database, table, Stream(keys), also + Conditions((), others.values), newest_first)


def counted_up_to(table: Table, conditions: Sequence[str], most: int, dialect: Dialect) -> Query:
    """How many rows there are by conditions that exclude each other; no more than `most` are read."""
    parts = [select("1 AS one", table.source, (condition,), limit=most) for condition in conditions]
    together = " UNION ALL ".join(select("*", f"({part}) AS o") for part in parts)
    few = select("*", f"({together}) AS o", limit=most)
    return _query(select("count(*) AS count", f"({few}) AS o"), dialect)


@lru_cache(maxsize=1024)
def _query(text: str, dialect: Dialect) -> Query:
    return next(parse_queries(f"-- name: walk\n{text}", dialect))
