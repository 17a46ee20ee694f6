"""What lanes do alike with many messages at once: dead letters by what they died of, walks for a bulk run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from homing.db import Database, Row, load_queries
from homing.db.conditions import is_one_of, readable
from homing.db.looking import Table
from homing.db.walking import counted_up_to
from homing.engine.likeness import code_like, likeness
from homing.messages.codes import escaped, told_apart
from homing.messages.model import LANES, DeadGroup, HowMany, LaneName, Wanted

#: Of a lane without an index by error so many of the newest dead are looked at, and of these so many read.
#: They lie far apart: at 5,000,000 messages twenty thousand of them took seconds, before they were in memory.
MOST_LOOKED_AT: Final = 3_000
MOST_READ: Final = 500
#: Of a lane with one, so many of each error are counted, and so many read.
MOST_COUNTED: Final = 20_000
MOST_READ_OF_EACH: Final = 100
#: Codes that are told apart by the database, and groups that are shown.
MOST_CODES: Final = 2_000
_MOST_GROUPS = 200
_MOST_KINDS = 5
_LONGEST_EXAMPLE = 500
#: So long may the codes of a group be together, for its query line to hold them.
_LONGEST_CODES: Final = 1_500


class Cause(Struct, frozen=True):
    """What the database tells of those that died of one code."""

    code: str | None
    count: int
    first_at: datetime | None
    last_at: datetime | None
    #: The number of the newest, and what is written of it.
    newest: int
    text: str
    is_lower_bound: bool


def cause_of(row: Row, *, is_lower_bound: bool, words: Callable[[str], str] = str) -> Cause:
    return Cause(
        None if row["code"] is None else told_apart(row["code"]),
        row["count"],
        readable(row["first_at"]),
        readable(row["last_at"]),
        row["newest"],
        words(row["text"] or ""),
        is_lower_bound,
    )


def groups_of(
    lane: LaneName,
    causes: Sequence[Cause],
    said: Mapping[str | None, Sequence[str]],
    *,
    id_of: Callable[[int], str],
    targets: Mapping[str | None, str] | None = None,
) -> list[DeadGroup]:
    """The largest first. Codes that another program wrote with numbers or names in them fall together."""
    groups = [
        replace(_group(lane, some, id_of), kinds=_kinds(said, some), target=_target(targets or {}, some))
        for some in _alike(causes)
    ]
    return sorted(groups, key=lambda group: (-group.count, group.error or "", group.codes))[:_MOST_GROUPS]


def _alike(causes: Sequence[Cause]) -> Iterable[Sequence[Cause]]:
    """Causes that are one group: their codes are alike, and fit into one query line.

    A group is requeued by its codes. A pattern instead of them could mean others, too.
    """
    by_code: dict[str | None, list[Cause]] = defaultdict(list)
    for cause in causes:
        by_code[cause.code].append(cause)
    alike: dict[str | None, list[Sequence[Cause]]] = defaultdict(list)
    for code, some in by_code.items():
        alike[None if code is None else code_like(code)].append(some)
    for several in alike.values():
        yield from _portions(sorted(several, key=lambda some: -sum(cause.count for cause in some)))


def _portions(several: Sequence[Sequence[Cause]]) -> Iterable[Sequence[Cause]]:
    portion: list[Cause] = []
    length = 0
    for of_one_code in several:
        needed = _length(of_one_code[0].code)
        if portion and length + needed > _LONGEST_CODES:
            yield portion
            portion, length = [], 0
        portion, length = [*portion, *of_one_code], length + needed
    yield portion


def _length(code: str | None) -> int:
    """Of a code in a query line, when it is quoted."""
    if code is None:
        return 0
    text = escaped(code)
    return len(' code:""') + len(text) + text.count('"') + text.count("\\")


def _kinds(said: Mapping[str | None, Sequence[str]], causes: Sequence[Cause]) -> tuple[tuple[str, int], ...]:
    found: Counter[str] = Counter()
    for code in {cause.code for cause in causes}:
        # Most say the same to the letter, so each text is looked at once.
        for text, count in Counter(said.get(code, ())).items():
            found[likeness(text)] += count
    return tuple(found.most_common(_MOST_KINDS))


def _target(targets: Mapping[str | None, str], causes: Sequence[Cause]) -> str | None:
    """That of the most frequent code."""
    return targets.get(max(causes, key=lambda cause: cause.count).code)


def _group(lane: LaneName, causes: Sequence[Cause], id_of: Callable[[int], str]) -> DeadGroup:
    newest = max(causes, key=lambda cause: cause.newest)
    codes = tuple(dict.fromkeys(cause.code for cause in causes if cause.code is not None))
    return DeadGroup(
        lane,
        _name(codes),
        sum(cause.count for cause in causes),
        min((cause.first_at for cause in causes if cause.first_at is not None), default=None),
        max((cause.last_at for cause in causes if cause.last_at is not None), default=None),
        newest.text[:_LONGEST_EXAMPLE],
        id_of(newest.newest),
        is_lower_bound=any(cause.is_lower_bound for cause in causes),
        codes=codes,
    )


def _name(codes: Sequence[str]) -> str | None:
    if not codes:
        return None
    return codes[0] if len(codes) == 1 else code_like(codes[0])


class Way(Protocol):
    """Through the messages that are meant."""

    async def numbers(self, after: int | None, limit: int) -> list[int]: ...

    async def count(self, most: int, seconds: float) -> tuple[int, bool]: ...


class Walked(ABC):
    """Counts the messages of a lane that are meant, and walks through them."""

    def __init__(self, database: Database, package: str) -> None:
        self._database = database
        self._dead_queries = load_queries(package, database.dialect, "desk_dead")

    @abstractmethod
    def _walk(self, wanted: Wanted, *, newest_first: bool) -> Way | None:
        """Through those that are meant; None when there can be none."""

    async def count(self, wanted: Wanted, *, most: int, seconds: float) -> HowMany:
        if replace(wanted, lanes=LANES, phases=(), states=()) == Wanted() and wanted.states:
            counted = await self._count_states(wanted.states, most)
            return HowMany(min(counted, most), counted > most)
        # What is counted when the time is over is rather the newest than the oldest.
        walk = self._walk(wanted, newest_first=True)
        return HowMany(*await walk.count(most, seconds)) if walk is not None else HowMany(0)

    @abstractmethod
    async def _count_states(self, states: Sequence[str], most: int) -> int:
        """Where nothing else is asked for; more than `most` need not be told apart."""

    async def numbers(
        self, wanted: Wanted, *, after: int | None, limit: int, newest_first: bool = False
    ) -> Sequence[int]:
        walk = self._walk(wanted, newest_first=newest_first)
        return await walk.numbers(after, limit) if walk is not None else []

    async def _ask(self, name: str, **parameters: Any) -> Sequence[Row]:
        query, by_index = self._dead_queries[name], self._dead_queries.get("by_index")
        if by_index is None:
            return await self._database.fetch(query, parameters)
        return (await self._database.fetch_all([by_index, query], parameters))[1]


class DeadByText(Walked):
    """Of a lane without an index by error: the newest dead are told apart by what is written of them."""

    name: LaneName
    #: Where they are, and the column of their state.
    _table: Table
    _status: str

    @abstractmethod
    async def counts(self) -> Mapping[str, int]: ...

    @abstractmethod
    def _id_of(self, number: int) -> str: ...

    async def _count_states(self, states: Sequence[str], most: int) -> int:
        if self._database.dialect == "postgres":
            return await self._count_entries([self._condition(state) for state in states], most)
        counts = await self.counts()
        return sum(counts.get(state, 0) for state in states)

    async def _count_entries(self, conditions: Sequence[str], most: int) -> int:
        """There is no tally by states, and an incident may have millions in one of them."""
        query = counted_up_to(self._table, conditions, most + 1, self._database.dialect)
        _set, (row,) = await self._database.fetch_all([self._dead_queries["by_index"], query], {})
        return int(row["count"])

    def _condition(self, state: str) -> str:
        """Of a state that an index has."""
        return is_one_of(self._status, (state,))

    def _words(self, text: str) -> str:
        """What a person reads, of what is written."""
        return text

    async def dead_groups(self) -> Sequence[DeadGroup]:
        rows = await self._ask("dead_codes", most=MOST_LOOKED_AT, codes=MOST_CODES)
        causes = [
            cause_of(row, is_lower_bound=row["looked"] >= MOST_LOOKED_AT, words=self._words) for row in rows
        ]
        said: dict[str | None, list[str]] = defaultdict(list)
        for row in await self._ask("dead_words", most=MOST_READ) if rows else ():
            said[row["code"]].append(self._words(row["text"] or ""))
        return groups_of(self.name, causes, said, id_of=self._id_of)
