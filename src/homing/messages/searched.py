"""The messages of a lane that a line means: found, counted, and walked through for a bulk run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace

from homing.db import Database, Query, Row
from homing.db.queries import Queries
from homing.messages.asking import possible
from homing.messages.model import LANES, HowMany, Phase, Seen, Wanted

#: For the transaction: what is asked for lies in an index in the order that is asked for, and only the newest
#: of it are read. PostgreSQL does not know how old they are, and would rather read it all and sort.
BY_INDEX: Final = Query(
    "by_index",
    "SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true),"
    " set_config('enable_seqscan', 'off', true)",
    (),
    writes=False,
)


async def fetch_by_index(database: Database, query: Query, parameters: Mapping[str, Any]) -> Sequence[Row]:
    if database.dialect != "postgres":
        return await database.fetch(query, parameters)
    return (await database.fetch_all([BY_INDEX, query], parameters))[1]


class Way(Protocol):
    """Through the messages that are meant."""

    async def numbers(self, after: int | None, limit: int) -> list[int]: ...

    async def count(self, most: int, seconds: float) -> tuple[int, bool]: ...


class Searched(ABC):
    """Finds the messages of a lane that are meant, counts them, and walks through them."""

    phases: Mapping[str, Phase]

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    @abstractmethod
    def _walk(self, wanted: Wanted, *, newest_first: bool) -> Way | None:
        """Through those that are meant; None when there can be none."""

    @abstractmethod
    async def _find(self, wanted: Wanted, *, before: int | None, limit: int) -> Seen: ...

    async def find(self, wanted: Wanted, *, before: int | None, limit: int) -> Seen:
        found = possible(self._database.dialect, wanted)
        return await self._find(found, before=before, limit=limit) if found is not None else Seen((), None)

    def _way(self, wanted: Wanted, *, newest_first: bool) -> Way | None:
        found = possible(self._database.dialect, wanted)
        return self._walk(found, newest_first=newest_first) if found is not None else None

    async def count(self, wanted: Wanted, *, most: int, seconds: float) -> HowMany:
        states = [state for state in wanted.states if state in self.phases]
        if states and replace(wanted, lanes=LANES, states=()) == Wanted():
            counted = await self._count_states(states, most)
            return HowMany(min(counted, most), counted > most)
        # What is counted when the time is over is rather the newest than the oldest.
        walk = self._way(wanted, newest_first=True)
        return HowMany(*await walk.count(most, seconds)) if walk is not None else HowMany(0)

    @abstractmethod
    async def _count_states(self, states: Sequence[str], most: int) -> int:
        """Where nothing else is asked for; more than `most` need not be told apart."""

    async def numbers(
        self, wanted: Wanted, *, after: int | None, limit: int, newest_first: bool = False
    ) -> Sequence[int]:
        walk = self._way(wanted, newest_first=newest_first)
        return await walk.numbers(after, limit) if walk is not None else []

    async def _ask(self, name: str, **parameters: Any) -> Sequence[Row]:
        return await self._by_index(self._queries[name], parameters)

    async def _by_index(self, query: Query, parameters: Mapping[str, Any]) -> Sequence[Row]:
        return await fetch_by_index(self._database, query, parameters)
