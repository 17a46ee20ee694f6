"""How many rows there are in which state, without looking at each of them.

`homing_tally` holds what triggers noted of a lane's table (its migration `tally` says why not of every one).
On PostgreSQL writers only append to it, so that none of them waits for another; `Tallies` sums up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from homing.db.database import Database, Row
from homing.db.lately import serves_for
from homing.db.queries import Dialect, load_queries
from homing.engine.model import Monotonic
from homing.errors import DatabaseError
from homing.telemetry import Telemetry

#: Seconds between two sums: by then a busy lane has appended some thousand rows.
_INTERVAL = 10.0
#: So many rows in one statement: whatever has piled up, no statement takes long.
_BATCH = 20_000
#: Up to this many are counted anew each time, which takes no longer than to remember them.
_FEW = 100_000
#: A large table is counted again after this many seconds; after more, where that takes long.
_REMEMBERED = 60.0
_LOWEST = -(2**63)


def by_state(rows: Iterable[Row], states: Sequence[str], rest: str) -> dict[str, int]:
    """From rows with `status` and `count`. Where there is a `total`, the state `rest` is what is left."""
    found: dict[str, int] = {}
    for row in rows:
        found[row["status"]] = found.get(row["status"], 0) + row["count"]
    counts = {state: found.get(state, 0) for state in states}
    if "total" in found:
        counts[rest] = 0
        counts[rest] = max(0, found["total"] - sum(counts.values()))
    return counts


class Tallies:
    """Sums up what was appended; any number of processes may run it, and one at a time does."""

    def __init__(self, database: Database, telemetry: Telemetry) -> None:
        self._database = database
        self._telemetry = telemetry

    async def run(self) -> None:
        while True:
            try:
                await self.fold()
            except DatabaseError as error:
                self._telemetry.log.warning("tally.delayed", error=str(error))
            await asyncio.sleep(_INTERVAL)

    async def fold(self) -> int:
        """How many rows became few. On SQLite there is one for each state, and nothing to do."""
        if self._database.dialect != "postgres":
            return 0
        query = load_queries("homing.db", "postgres", "tally")["fold"]
        folded, last = 0, _BATCH
        while last >= _BATCH:
            (row,) = await self._database.fetch(query, {"limit": _BATCH})
            last = row["folded"]
            folded += last
        return folded


async def recount(database: Database, lane: str, table: str) -> None:
    """Count all rows, and put the tally right: after a restore, or where rows were written without triggers.

    What others write meanwhile is in both figures or in neither: they are taken in one statement.
    """
    if database.dialect in _RECOUNT:
        await database.run_script(_RECOUNT[database.dialect].replace("TABLE", table).replace("LANE", lane))


_RECOUNT: dict[Dialect, str] = {
    "postgres": """
SELECT pg_advisory_xact_lock(hashtext('homing_tally'));
INSERT INTO homing_tally (lane, state, count)
SELECT 'LANE', 'total', counted - tallied
FROM (SELECT (SELECT count(*) FROM TABLE) AS counted,
             (SELECT coalesce(sum(count), 0) FROM homing_tally WHERE lane = 'LANE') AS tallied) AS both_counts
WHERE counted <> tallied;
""",
    "sqlite": """
UPDATE homing_tally
SET count = (SELECT count(*) FROM TABLE WHERE TABLE.status = homing_tally.state)
WHERE lane = 'LANE';
""",
}


class Base(Struct, frozen=True):
    """So many rows were counted up to this number."""

    known: int = 0
    upto: int = _LOWEST


class RunningTotal:
    """The size of a table that has no tally: what is above a number that was counted up to is counted now.

    Rows that are deleted below it, or whose insert was committed late, are noticed when all is counted again.
    """

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._base = Base()
        self._until = 0.0

    async def counted(self, count: Callable[[Base], Awaitable[Sequence[Row]]]) -> Sequence[Row]:
        """The rows of a query that counts from a base; it also says, as `upto`, how far it came."""
        began = self._monotonic()
        base = self._base if began < self._until else Base()
        rows = await count(base)
        if base == Base():
            self._remember({row["status"]: row["count"] for row in rows}, self._monotonic() - began)
        return [row for row in rows if row["status"] != "upto"]

    def _remember(self, found: Mapping[str, int], seconds: float) -> None:
        if found["total"] > _FEW:
            self._base = Base(found["total"], found["upto"])
            self._until = self._monotonic() + max(_REMEMBERED, serves_for(seconds))
