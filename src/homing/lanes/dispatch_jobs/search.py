"""Finds jobs: the newest first, by any of the filters, at a price that does not grow with the table.

The rows of one filter lie in an index in the order in which they are shown, so that a page is read and
nothing is sorted. With metadata, or by an error class, they lie in the order of ids, which is the order of
creation too. A statement is put together from the conditions that are given: one with `:x IS NULL OR …` for
each would have one plan for all, and that plan would read the table.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from homing.db import Dialect, Query, Row, instant, iso
from homing.db.queries import parse_queries
from homing.errors import InvalidRequest, Unreachable
from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.jobs import DispatchJobs

#: So many are counted one by one, and served by page numbers: to skip more rows, one has to read them.
MOST_COUNTED: Final = 100_000
#: A search that takes longer than this is given up, and a count that takes longer is estimated.
LONGEST_SEARCH = 5.0
_GIVEN_UP = "57014"

Direction = Literal["ASC", "DESC"]
Purpose = Literal["read", "count", "estimate"]

#: The error class of dead jobs that have none: another program ended them.
UNCLASSIFIED: Final = "unclassified"

_CONDITIONS: Mapping[str, str] = {
    "status": "o.status = :status",
    "source": "o.source = :source",
    "type": "o.type = :type",
    "group_id": "o.group_id = :group_id",
    "external_id": "o.external_id = :external_id",
    # As a constant, which is what the index of dead jobs asks for.
    "error_class": "o.status = 'ERROR' AND o.error_class = :error_class",
    "created_after": "o.created_at >= :created_after",
    "created_before": "o.created_at <= :created_before",
}
_UNCLASSIFIED = "o.status = 'ERROR' AND o.error_class IS NULL"
_ENTRY = "{0}.meta_key = :key{1} AND {0}.meta_value = :value{1}"
# The same, written so that the order by value and id has to come from the index by key and value. In an order
# by id alone the index by id would do as well, and where a frequent value is an old one, it reads them all.
_ENTRY_IN_ORDER = "m.meta_key = :key{0} AND m.meta_value >= :value{0} AND m.meta_value <= :value{0}"
_ALSO = "EXISTS (SELECT 1 FROM dispatch_job_metadata AS m{0} WHERE m{0}.dispatch_job_id = {1} AND {2}{3})"
# Job by job in the order of the metadata: a join that begins with the jobs would read all that are newer.
# PostgreSQL is kept to it by the OFFSET, SQLite by CROSS JOIN.
_JOBS_OF_METADATA: Mapping[Dialect, str] = {
    "postgres": "dispatch_job_metadata AS m CROSS JOIN LATERAL "
    "(SELECT * FROM dispatch_job AS j WHERE j.id = m.dispatch_job_id OFFSET 0) AS o",
    "sqlite": "dispatch_job_metadata AS m CROSS JOIN dispatch_job AS o",
}
_METADATA_AND_JOBS = "dispatch_job_metadata AS m JOIN dispatch_job AS o ON o.id = m.dispatch_job_id"
_METADATA = "dispatch_job_metadata AS m"
#: A search by metadata and more that begins with the jobs, as against one of the entries.
JOBS_FIRST = -1
#: What conditions of a bounded look may name.
_LOOKED_THROUGH = "o.status, o.source, o.type, o.group_id, o.target, o.target_url, o.error_class"
_BY_TIME = ("o.created_at", "o.id")
# One plan for all values would suit none: some have a handful of rows, some half of the table.
_PLAN_FOR_THE_VALUES = Query(
    "plan_for_the_values",
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true),"
    " set_config('statement_timeout', $1, true)",
    ("longest",),
    writes=False,
)


class TooSlow(InvalidRequest):
    """The database was busy with it for too long."""


class Place(Struct, frozen=True):
    """Where a job stands among all: its time as the database wrote it, and its id."""

    at: str
    id: int


class Window(Struct, frozen=True):
    """What was found in a bounded look."""

    places: list[Place]
    #: Where the look ended, if there is more to look at; None when the page is full.
    end: Place | None
    looked_at: int


class Total(Struct, frozen=True):
    items: int
    is_estimate: bool

    def pages(self, size: int) -> int:
        """Those that can be asked for by number."""
        return math.ceil(min(self.items, MOST_COUNTED) / size)


class Found(Struct, frozen=True):
    """A page: rows of the query `listed_jobs`, and where the next page begins."""

    rows: Sequence[Row]
    page: int
    total: Total
    next: str | None


class Cursor(Struct, frozen=True, array_like=True):
    """What `next` holds. The total comes along: it was true for the first page, and is not counted again."""

    filter: str
    page: int
    at: str
    id: int
    total: int
    is_estimate: bool
    #: What the search began with; going on in another order would skip jobs.
    first: int

    @property
    def place(self) -> Place:
        return Place(self.at, self.id)


def open_search(jobs: DispatchJobs) -> JobSearch:
    """The search that belongs to the jobs' database."""
    if jobs.database.dialect != "mongodb":
        return JobSearch(jobs)
    from homing.lanes.dispatch_jobs.mongo_search import MongoJobSearch  # noqa: PLC0415 - its driver is an extra

    return MongoJobSearch(jobs)


class JobSearch:
    def __init__(self, jobs: DispatchJobs) -> None:
        self._jobs = jobs
        self._database = jobs.database
        self._dialect: Dialect = jobs.database.dialect

    async def page(
        self, filter: Filter, *, page: int = 0, size: int = 20, cursor: str | None = None
    ) -> Found:
        """By number, or from where the cursor of another page ended."""
        if page * size >= MOST_COUNTED:
            raise InvalidRequest(
                f"page: goes up to the {MOST_COUNTED:,}th job; to go on, give `next` of a page as cursor",
                "page",
            )
        begun = read_cursor(cursor, filter) if cursor is not None else await self._begin(filter, page)
        places = await self.places(
            filter,
            begun.first,
            after=begun.place if cursor is not None else None,
            limit=size + 1,
            offset=page * size if cursor is None else 0,
        )
        rows = await self.rows([place.id for place in places[:size]])
        following = _going_on(begun, places[size - 1]) if len(places) > size else None
        return Found(rows, begun.page, Total(begun.total, begun.is_estimate), following)

    async def _begin(self, filter: Filter, page: int) -> Cursor:
        first = await self.first(filter)
        total = await self.total(filter, first)
        return Cursor(_digest(filter), page, "", 0, total.items, total.is_estimate, first)

    async def first(self, filter: Filter) -> int:
        """Which entry of the metadata a search begins with, or `JOBS_FIRST`: whatever has fewest.

        The planner would choose as well, but from how many there are, not from how old they are.
        """
        conditions = _on_jobs(filter)
        if self._dialect == "sqlite" or not filter.metadata or not conditions:
            return 0
        entries = [_ENTRY.format("m", n) for n in range(len(filter.metadata))]
        parts = [_text("1", "dispatch_job AS o", conditions)]
        parts += [_text("1", "dispatch_job_metadata AS m", [entry]) for entry in entries]
        plan = await self._plan(" UNION ALL ".join(parts), filter)
        counts = [part["Plan Rows"] for part in plan["Plans"]]
        return counts.index(min(counts)) - 1

    async def places(
        self,
        filter: Filter,
        first: int,
        *,
        after: Place | None = None,
        limit: int,
        offset: int = 0,
        direction: Direction = "DESC",
    ) -> list[Place]:
        """Where the jobs stand that match, from there on."""
        chosen = _choice(filter, self._dialect, "read", first)
        conditions = [*chosen.conditions, *([_beyond(chosen, direction)] if after else [])]
        text = _text(
            chosen.keys, chosen.sources, conditions, _order(chosen, direction), "LIMIT :limit OFFSET :offset"
        )
        values = {**self._values(filter), "limit": limit, "offset": offset}
        if after:
            values |= {"after_id": after.id, "after_at": self._after(after)}
        rows = await self._fetch(text, values, LONGEST_SEARCH)
        return list(dict.fromkeys(map(_place, rows)))

    async def window(
        self, filter: Filter, first: int, also: Any, *, after: Place | None, window: int, limit: int
    ) -> Window:
        """Places of those among the next `window` jobs for which `also` holds: what no index serves.

        `also` is in the words of the database: conditions of SQL here.
        """
        chosen = _choice(filter, self._dialect, "read", first)
        inner = _window_text(chosen, is_later=after is not None, window=window)
        by = _BY_TIME if chosen.order[0] == _BY_TIME[0] else _BY_TIME[1:]
        values = {**self._values(filter), **also.values}
        if after:
            values |= {"after_id": after.id, "after_at": self._after(after)}
        newest = "ORDER BY " + ", ".join(f"{column} DESC" for column in by)
        text = _text("o.id, o.created_at", inner, also.texts, newest, f"LIMIT {limit:d}")
        places = [_place(row) for row in await self._fetch(text, values, LONGEST_SEARCH)]
        if len(places) == limit:
            return Window(places, None, window)
        oldest = "ORDER BY " + ", ".join(by)
        text = _text("o.id, o.created_at, count(*) OVER () AS looked", inner, (), oldest, "LIMIT 1")
        found = await self._fetch(text, values, LONGEST_SEARCH)
        looked = found[0]["looked"] if found else 0
        return Window(places, _place(found[0]) if looked == window else None, looked)

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        """Jobs as lists show them, in this order; those that are gone meanwhile are left out."""
        found = await self._jobs.run("listed_jobs", ids=msgspec.json.encode(ids).decode()) if ids else []
        by_id = {row["id"]: row for row in found}
        return [by_id[id] for id in ids if id in by_id]

    # ── how many ─────────────────────────────────────────────────────────────────────────────────

    async def total(self, filter: Filter, first: int) -> Total:
        try:
            counted = await self.count(filter, first, MOST_COUNTED + 1)
        except TooSlow:
            return Total(await self._estimate(filter), is_estimate=True)
        if counted <= MOST_COUNTED:
            return Total(counted, is_estimate=False)
        return Total(max(counted, await self._estimate(filter)), is_estimate=True)

    async def count(self, filter: Filter, first: int, most: int) -> int:
        """How many match, counted up to `most`."""
        chosen = _choice(filter, self._dialect, "count", first)
        # In order: an index serves it then, where the planner would read a part of the table and hope.
        found = _text("1", chosen.sources, chosen.conditions, _order(chosen, "DESC"), "LIMIT :most")
        text = _text("count(*) AS count", f"({found}) AS found")
        rows = await self._fetch(text, {**self._values(filter), "most": most}, LONGEST_SEARCH)
        return int(rows[0]["count"])

    async def _estimate(self, filter: Filter) -> int:
        """What the planner expects, from the statistics that PostgreSQL keeps of the table.

        SQLite keeps none: where no tally helps it stays at "more than are counted".
        """
        if self._dialect == "sqlite":
            if filter != Filter(status=filter.status):
                return MOST_COUNTED + 1
            counts = await self._jobs.counts()
            return sum(counts.values()) if filter.status is None else counts.get(filter.status, 0)
        chosen = _choice(filter, self._dialect, "estimate", 0)
        plan = await self._plan(_text("1", chosen.sources, chosen.conditions), filter)
        return int(plan["Plan Rows"])

    async def _plan(self, text: str, filter: Filter) -> Mapping[str, Any]:
        rows = await self._fetch(f"EXPLAIN (FORMAT JSON) {text}", self._values(filter), LONGEST_SEARCH)
        plan: Mapping[str, Any] = msgspec.json.decode(next(iter(rows[0])))[0]["Plan"]
        return plan

    # ── statements ───────────────────────────────────────────────────────────────────────────────

    async def _fetch(self, text: str, values: Mapping[str, Any], longest: float) -> Sequence[Row]:
        query = _query(text, self._dialect)
        if self._dialect == "sqlite":
            return await self._database.fetch(query, values)
        try:
            steps = [_PLAN_FOR_THE_VALUES, query]
            return (await self._database.fetch_all(steps, {**values, "longest": str(int(longest * 1000))}))[1]
        except Unreachable as error:
            if getattr(error.__cause__, "sqlstate", None) == _GIVEN_UP:
                raise TooSlow("this takes too long with so many jobs; add another filter") from None
            raise

    def _values(self, filter: Filter) -> dict[str, Any]:
        given = {name: getattr(filter, name) for name in _CONDITIONS if getattr(filter, name) is not None}
        values = {k: self._time(v, iso(v)) if isinstance(v, datetime) else v for k, v in given.items()}
        for n, (key, value) in enumerate(filter.metadata):
            values |= {f"key{n}": key, f"value{n}": value}
        return values

    def _after(self, place: Place) -> datetime | str | None:
        """In SQLite as it is written there, which need be no time."""
        return instant(place.at) if self._dialect == "postgres" else place.at

    def _time(self, moment: datetime | None, text: str | None) -> datetime | str | None:
        return moment if self._dialect == "postgres" else text


class _Choice(Struct, frozen=True):
    """Where matching rows come from, and which of them match."""

    sources: str
    conditions: tuple[str, ...]
    #: The columns that say the order, the last of them the id, and where the last page ended.
    order: tuple[str, ...]
    after: tuple[str, ...]
    #: A column that is the same for all; it only says which index is to be read.
    first_by: tuple[str, ...] = ()

    @property
    def keys(self) -> str:
        return f"{self.order[-1]} AS id, o.created_at"


@lru_cache(maxsize=4096)
def _query(text: str, dialect: Dialect) -> Query:
    return next(parse_queries(f"-- name: search\n{text}", dialect))


def _choice(filter: Filter, dialect: Dialect, purpose: Purpose, first: int) -> _Choice:
    conditions = _on_jobs(filter)
    if filter.metadata and first != JOBS_FIRST:
        return _choice_by_metadata(filter, dialect, purpose, first)
    fence = " OFFSET 0"  # PostgreSQL would turn it into a join, and begin with the metadata after all.
    entries = [_also(n, "o.id", fence) for n in range(len(filter.metadata))]
    if filter.error_class is not None:
        # Only the index of dead jobs has this order, so that the planner cannot choose the one by id instead:
        # it takes jobs without an error class for many, and they are nearly all not dead.
        first_by = ("o.error_class",) if filter.error_class == UNCLASSIFIED else ()
        return _Choice("dispatch_job AS o", (*conditions, *entries), ("o.id",), (":after_id",), first_by)
    order = ("o.created_at", "o.id")
    return _Choice("dispatch_job AS o", (*conditions, *entries), order, (":after_at", ":after_id"))


def _choice_by_metadata(filter: Filter, dialect: Dialect, purpose: Purpose, first: int) -> _Choice:
    on_jobs = _on_jobs(filter)
    others = [n for n in range(len(filter.metadata)) if n != first]
    conditions = (*(_also(n, "m.dispatch_job_id") for n in others), *on_jobs)
    entry = _ENTRY.format("m", first)
    plain = ("m.dispatch_job_id",), (":after_id",)
    if purpose == "estimate":
        return _Choice(_METADATA_AND_JOBS if on_jobs else _METADATA, (entry, *conditions), *plain)
    if not on_jobs and purpose == "count":
        sources = _METADATA
    else:
        sources = _JOBS_OF_METADATA[dialect]
        conditions += ("o.id = m.dispatch_job_id",) if dialect == "sqlite" else ()
    if others and not on_jobs:
        # The indexes of two entries lie in the order of ids, and are read side by side.
        return _Choice(sources, (entry, *conditions), *plain)
    order, after = ("m.meta_value", "m.dispatch_job_id"), (f":value{first}", ":after_id")
    return _Choice(sources, (_ENTRY_IN_ORDER.format(first), *conditions), order, after)


def _also(n: int, id: str, fence: str = "") -> str:
    return _ALSO.format(n, id, _ENTRY.format(f"m{n}", n), fence)


def _on_jobs(filter: Filter) -> tuple[str, ...]:
    return tuple(_condition(name, filter) for name in _CONDITIONS if getattr(filter, name) is not None)


def _condition(name: str, filter: Filter) -> str:
    is_without = name == "error_class" and filter.error_class == UNCLASSIFIED
    return _UNCLASSIFIED if is_without else _CONDITIONS[name]


def _order(chosen: _Choice, direction: Direction) -> str:
    return "ORDER BY " + ", ".join(f"{column} {direction}" for column in (*chosen.first_by, *chosen.order))


def _beyond(chosen: _Choice, direction: Direction) -> str:
    sign = "<" if direction == "DESC" else ">"
    return f"({', '.join(chosen.order)}) {sign} ({', '.join(chosen.after)})"


def _text(
    columns: str, sources: str, conditions: Sequence[str] = (), order: str = "", limit: str = ""
) -> str:
    where = ["WHERE", " AND ".join(conditions)] if conditions else []
    return " ".join(["SELECT", columns, "FROM", sources, *where, order, limit])


def _window_text(chosen: _Choice, *, is_later: bool, window: int) -> str:
    conditions = [*chosen.conditions, *([_beyond(chosen, "DESC")] if is_later else [])]
    columns = f"{chosen.keys}, {_LOOKED_THROUGH}"
    inner = _text(columns, chosen.sources, conditions, _order(chosen, "DESC"), f"LIMIT {window:d}")
    return f"({inner}) AS o"


def _place(row: Row) -> Place:
    return Place(_written(row["created_at"]), row["id"])


def _written(moment: datetime | str) -> str:
    """To the last digit: a cursor that is rounded would skip jobs or show them twice."""
    return moment if isinstance(moment, str) else moment.isoformat()


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────


def _going_on(begun: Cursor, last: Place) -> str:
    cursor = msgspec.structs.replace(begun, page=begun.page + 1, at=last.at, id=last.id)
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def read_cursor(text: str, filter: Filter) -> Cursor:
    cursor = _decoded(text)
    if cursor is None or not _is_possible(cursor):
        raise InvalidRequest("cursor: is none; take it from `next` of a page", "cursor")
    if cursor.filter != _digest(filter) or not JOBS_FIRST <= cursor.first < max(1, len(filter.metadata)):
        raise InvalidRequest(
            "cursor: belongs to a search by other filters; begin without it, or give the same filters",
            "cursor",
        )
    return cursor


def _is_possible(cursor: Cursor) -> bool:
    return 0 <= cursor.id < 2**63 and cursor.page >= 0 and cursor.total >= 0


def _decoded(text: str) -> Cursor | None:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = msgspec.json.decode(data, type=Cursor)
        instant(cursor.at)
    except (ValueError, msgspec.MsgspecError):
        return None
    return cursor


def _digest(filter: Filter) -> str:
    return hashlib.sha256(msgspec.json.encode(filter)).hexdigest()[:12]
