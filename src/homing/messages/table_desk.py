"""A lane whose messages are the rows of one table: found, counted, walked through and acted on alike.

The lane says how its rows lie, what a line asks of them (`Layout`), and how one is shown.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, Generic, Protocol, TypeVar

from homing.db import Database, Dialect, Row
from homing.db.conditions import Conditions, is_one_of, written
from homing.db.looking import Stream, first_after, look
from homing.db.queries import Queries, parse_queries
from homing.db.walking import Walk, counted_up_to
from homing.messages.asking import Layout, number_of, states_of
from homing.messages.dead import MOST_CODES, cause_of, groups_of
from homing.messages.model import DeadGroup, LaneName, Seen, Summary, Verb, Wanted
from homing.messages.searched import Searched

#: So many of the newest dead are looked at, and of these so many read. They lie far apart: at 5,000,000
#: messages twenty thousand of them took seconds, before they were in memory.
MOST_LOOKED_AT: Final = 3_000
MOST_READ: Final = 500


class Rows(Protocol):
    """The store of a lane, as far as a desk needs it."""

    database: Database

    async def counts(self) -> Mapping[str, int]: ...

    async def oldest_due(self) -> float: ...

    async def requeue(self, ids: Sequence[int]) -> list[int]: ...

    async def cancel(self, ids: Sequence[int]) -> list[int]: ...

    async def send_now(self, ids: Sequence[int]) -> list[int]: ...


Store = TypeVar("Store", bound=Rows)


@cache
def dead_queries(package: str, dialect: Dialect) -> Queries:
    """The same for all lanes; the fragments in them are a lane's own."""
    own = files(package).joinpath(f"desk_dead_{dialect}.sql").read_text(encoding="utf-8")
    shared = files(__package__ or "").joinpath("dead_by_text.sql").read_text(encoding="utf-8")
    return {query.name: query for query in parse_queries(f"{shared}\n{own}", dialect)}


class TableDesk(Searched, Generic[Store]):
    name: LaneName
    scope: str
    from_states: Mapping[Verb, tuple[str, ...]]
    _layout: Layout

    def __init__(self, rows: Store, package: str) -> None:
        super().__init__(rows.database, dead_queries(package, rows.database.dialect))
        self._rows = rows

    # ── what the lane says ───────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def _summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Of rows with the columns of the table."""

    def _words(self, text: str) -> str:
        """What a person reads, of what is written of an error."""
        return text

    # ── one ──────────────────────────────────────────────────────────────────────────────────────

    def number(self, id: str) -> int | None:
        return number_of(self._layout.prefix, id)

    def _id_of(self, number: int) -> str:
        return f"{self._layout.prefix}{number}"

    # ── many ─────────────────────────────────────────────────────────────────────────────────────

    async def counts(self) -> Mapping[str, int]:
        return await self._rows.counts()

    async def oldest_due(self) -> float:
        return await self._rows.oldest_due()

    async def act(self, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        rows = self._rows
        verbs = {"requeue": rows.requeue, "cancel": rows.cancel, "send_now": rows.send_now}
        return await verbs[verb](numbers)

    async def _find(self, wanted: Wanted, *, before: int | None, limit: int) -> Seen:
        states, others = states_of(self.phases, wanted), self._others(wanted)
        if not states or others is None:
            return Seen((), None)
        if wanted.until is not None and before is None:
            before = await first_after(self._database, self._layout.table, wanted.until)
        stream, also = self._stream(wanted, states, others)
        seen = await look(
            self._database, self._layout.table, stream, also, before=before, limit=limit, since=wanted.since
        )
        return Seen(await self._summaries(seen.rows), seen.next, seen.looked_at)

    def _others(self, wanted: Wanted) -> Conditions | None:
        return self._layout.others(wanted, self._database.dialect)

    def _stream_of(self, state: str) -> Stream:
        return self._layout.stream_of(self._database.dialect, state)

    def _stream(self, wanted: Wanted, states: Sequence[str], others: Conditions) -> tuple[Stream, Conditions]:
        """By which index the rows are read, and what is left to be looked for among them."""
        asked = Conditions(
            () if len(states) == len(self.phases) else (is_one_of(self._layout.state, states),)
        )
        if wanted.id is not None:
            named = self._layout.named(wanted.id)
            texts = named.where.texts
            stream = Stream(texts) if named.is_unique else Stream((), texts, texts[0])
            return stream, asked + others + Conditions((), named.where.values)
        streams = [self._stream_of(state) for state in states]
        if Stream() in streams:
            # Nearly all of them: the newest are soon found among all.
            return Stream(), asked + others
        ordered = tuple(text for one in streams for text in one.ordered)
        unordered = tuple(text for one in streams for text in one.unordered)
        return Stream(ordered, unordered, asked.texts[0]), others

    def _walk(self, wanted: Wanted, *, newest_first: bool) -> Walk | None:
        """By whatever index is in the order of ids; where none is, through the whole table."""
        states, others = states_of(self.phases, wanted), self._others(wanted)
        if not states or others is None:
            return None
        streams = [self._stream_of(state) for state in states]
        if wanted.id is None and all(one.ordered and not one.unordered for one in streams):
            ordered = Stream(tuple(text for one in streams for text in one.ordered))
            return Walk(self._database, self._layout.table, ordered, others, newest_first)
        also = Conditions((is_one_of(self._layout.state, states),)) + others
        stream = Stream()
        if wanted.id is not None:
            named = self._layout.named(wanted.id)
            stream = Stream(named.where.texts) if named.is_unique else Stream()
            also += Conditions((), named.where.values) if named.is_unique else named.where
        return Walk(self._database, self._layout.table, stream, also, newest_first)

    async def _count_states(self, states: Sequence[str], most: int) -> int:
        if self._database.dialect == "postgres":
            return await self._count_entries(states, most)
        counts = await self.counts()
        return sum(counts.get(state, 0) for state in states)

    async def _count_entries(self, states: Sequence[str], most: int) -> int:
        """There is no tally by states, and an incident may have millions in one of them."""
        conditions = [text for state in states for text in self._each(state)]
        query = counted_up_to(self._layout.table, conditions, most + 1, self._database.dialect)
        (row,) = await self._by_index(query, {})
        return int(row["count"])

    def _each(self, state: str) -> tuple[str, ...]:
        stream = self._stream_of(state)
        return (*stream.ordered, *stream.unordered) or (is_one_of(self._layout.state, (state,)),)

    async def dead_groups(self) -> Sequence[DeadGroup]:
        """No index is by error: the newest dead are told apart by what is written of them."""
        rows = await self._ask("dead_codes", most=MOST_LOOKED_AT, codes=MOST_CODES)
        causes = [
            cause_of(row, is_lower_bound=row["looked"] >= MOST_LOOKED_AT, words=self._words) for row in rows
        ]
        said: dict[str | None, list[str]] = defaultdict(list)
        for row in await self._ask("dead_words", most=MOST_READ) if rows else ():
            said[row["code"]].append(self._words(written(row["text"] or "")))
        return groups_of(self.name, causes, said, id_of=self._id_of)
