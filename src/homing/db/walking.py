"""A walk through all rows that are meant, in the order of their ids, for whoever changes them on the way.

It reads the same streams as a look (`looking.py`), a window at a time: no statement of it takes long, however
few of the rows are meant.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from homing.db.conditions import Conditions, select
from homing.db.database import Database, Row
from homing.db.looking import Stream, Table, query_of, windowed
from homing.db.queries import Dialect, Query

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

    def _found(self, window: int, limit: int) -> str:
        inner = self._windowed(self.table.columns, window)
        direction = "DESC" if self.newest_first else "ASC"
        return select("o.id", f"({inner}) AS o", self.also.texts, f"o.id {direction}", limit)

    def _seen(self, window: int) -> str:
        """How many rows a window has, how many of them are meant, and where it ends."""
        columns = self.table.columns if self.also.texts else f"{self.table.key} AS id"
        meant = f"CASE WHEN {' AND '.join(self.also.texts)} THEN 1 ELSE 0 END" if self.also.texts else "1"
        last = "min" if self.newest_first else "max"
        figures = f"count(*) AS looked, sum({meant}) AS found, {last}(o.id) AS last"
        return select(figures, f"({self._windowed(columns, window)}) AS o")

    def _windowed(self, columns: str, window: int) -> str:
        return windowed(self.table, self.stream, columns, window, newest_first=self.newest_first)

    async def _fetch(self, text: str, place: int) -> Sequence[Row]:
        values: dict[str, Any] = {**self.also.values, "place": place}
        return await self.database.fetch(query_of(text, self.database.dialect), values)


def counted_up_to(table: Table, conditions: Sequence[str], most: int, dialect: Dialect) -> Query:
    """How many rows there are by conditions that exclude each other; no more than `most` are read."""
    parts = [select("1 AS one", table.source, (condition,), limit=most) for condition in conditions]
    together = " UNION ALL ".join(select("*", f"({part}) AS o") for part in parts)
    few = select("*", f"({together}) AS o", limit=most)
    return query_of(select("count(*) AS count", f"({few}) AS o"), dialect)
