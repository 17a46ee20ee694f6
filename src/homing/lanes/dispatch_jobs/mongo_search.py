"""Finds jobs on MongoDB: the same pages in the same order as in SQL, by the indexes of the same names.

Which index a search begins with is said wherever one is known to be right: the server would try several and
remember what was quickest for other values.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from homing.db import Query, instant
from homing.db.mongo import Columns, Session
from homing.errors import Unreachable
from homing.lanes.dispatch_jobs import search
from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.mongo_documents import JOBS, Given, rows
from homing.lanes.dispatch_jobs.search import (
    JOBS_FIRST,
    UNCLASSIFIED,
    Direction,
    JobSearch,
    Place,
    TooSlow,
    Window,
)

#: To choose what a search begins with, so many are counted of each.
_ENOUGH_TO_CHOOSE = 1000
_TOOK_TOO_LONG = 50
_METADATA_INDEX = "idx_metadata_key_value"
_DEAD_INDEX = "homing_job_dead"
_EQUAL = ("status", "source", "type", "group_id", "external_id")
#: By the columns that are asked for: the index whose order serves the page. For others the server chooses.
_INDEXES: Mapping[frozenset[str], str] = {
    frozenset(): "idx_dispatch_created",
    frozenset({"status"}): "idx_dispatch_status",
    frozenset({"source"}): "idx_dispatch_source",
    frozenset({"type"}): "idx_dispatch_type",
    frozenset({"source", "status"}): "homing_job_source_status",
}
_RARE = {"external_id": "idx_dispatch_external_id", "group_id": "idx_dispatch_group_id"}


class MongoJobSearch(JobSearch):
    async def first(self, filter: Filter) -> int:
        """Which entry of the metadata a search begins with, or `JOBS_FIRST`: whatever has fewest."""
        on_jobs = bool(_on_jobs(filter))
        if not filter.metadata or (len(filter.metadata) == 1 and not on_jobs):
            return 0
        numbers: list[int] = [*range(len(filter.metadata)), *([JOBS_FIRST] if on_jobs else [])]
        counts = {n: await self._how_many(filter, n) for n in numbers}
        return min(numbers, key=lambda n: counts[n])

    async def _how_many(self, filter: Filter, first: int) -> int:
        alone = (
            Filter(**{name: getattr(filter, name) for name in (*_EQUAL, "error_class", *_TIMES)})
            if first == JOBS_FIRST
            else Filter(metadata=(filter.metadata[first],))
        )
        return await self.count(alone, 0, _ENOUGH_TO_CHOOSE)

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
        conditions = [
            *_conditions(filter, first),
            *([_beyond(filter, first, after, direction)] if after else []),
        ]
        sign = -1 if direction == "DESC" else 1
        steps: list[dict[str, Any]] = [
            {"$match": {"$and": conditions} if conditions else {}},
            {"$sort": dict.fromkeys(_order(filter, first), sign)},
            *([{"$skip": offset}] if offset else []),
            {"$limit": limit},
            {"$project": {"created_at": 1}},
        ]
        found = await self._ask(steps, _hint(filter, first), search.LONGEST_SEARCH)
        return [_place(row) for row in found]

    async def window(
        self, filter: Filter, first: int, also: Any, *, after: Place | None, window: int, limit: int
    ) -> Window:
        conditions = [
            *_conditions(filter, first),
            *([_beyond(filter, first, after, "DESC")] if after else []),
        ]
        looked: list[dict[str, Any]] = [
            {"$match": {"$and": conditions} if conditions else {}},
            {"$sort": dict.fromkeys(_order(filter, first), -1)},
            {"$limit": window},
        ]
        matching: list[dict[str, Any]] = [
            {"$match": {"$and": also}},
            {"$limit": limit},
            {"$project": {"created_at": 1}},
        ]
        hint = _hint(filter, first)
        places = [_place(row) for row in await self._ask([*looked, *matching], hint, search.LONGEST_SEARCH)]
        if len(places) == limit:
            return Window(places, None, window)
        last = {"_id": None, "id": {"$last": "$_id"}, "at": {"$last": "$created_at"}, "count": {"$sum": 1}}
        ends = await self._ask([*looked, {"$group": last}], hint, search.LONGEST_SEARCH)
        count = int(ends[0]["count"]) if ends else 0
        end = Place(ends[0]["at"].isoformat(), ends[0]["id"]) if count == window else None
        return Window(places, end, count)

    async def count(self, filter: Filter, first: int, most: int) -> int:
        conditions = _conditions(filter, first)
        steps: list[dict[str, Any]] = [
            {"$match": {"$and": conditions} if conditions else {}},
            {"$limit": max(most, 1)},
            {"$count": "count"},
        ]
        found = await self._ask(steps, _hint(filter, first), search.LONGEST_SEARCH)
        return min(int(found[0]["count"]), most) if found else 0

    async def _estimate(self, filter: Filter) -> int:
        """The server keeps no statistics but the number of all: else it stays at "more than are counted"."""
        if not filter.is_empty:
            return search.MOST_COUNTED + 1
        rows_ = await self._database.fetch(_ALL, {})
        return int(rows_[0]["count"])

    async def _ask(self, steps: list[dict[str, Any]], hint: str | None, longest: float) -> Any:
        given = {"steps": steps, "hint": hint, "longest": longest}
        try:
            return await self._database.fetch(_SEARCH, given)
        except Unreachable as error:
            if getattr(error.__cause__, "code", None) == _TOOK_TOO_LONG:
                raise TooSlow("this takes too long with so many jobs; add another filter") from None
            raise


def _place(row: Any) -> Place:
    return Place(row["created_at"].isoformat(), row["_id"])


async def _search(session: Session, given: Given) -> list[Columns]:
    hint = {"hint": given["hint"]} if given["hint"] else {}
    longest = max(1, round(given["longest"] * 1000))
    return rows(await session.aggregate(JOBS, given["steps"], maxTimeMS=longest, **hint))


async def _all(session: Session, _given: Given) -> list[Columns]:
    return rows([{"count": await session.collection(JOBS).estimated_document_count()}])


_SEARCH = Query("search", "", (), False, _search)
_ALL = Query("estimate", "", (), False, _all)


# ── what is looked for ───────────────────────────────────────────────────────────────────────────

_TIMES = {"created_after": "$gte", "created_before": "$lte"}


def _on_jobs(filter: Filter) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {name: getattr(filter, name)} for name in _EQUAL if getattr(filter, name) is not None
    ]
    if filter.error_class is not None:
        wanted = None if filter.error_class == UNCLASSIFIED else filter.error_class
        found.append({"status": "ERROR", "error_class": wanted})
    for name, sign in _TIMES.items():
        if (moment := getattr(filter, name)) is not None:
            found.append({"created_at": {sign: moment}})
    return found


def _conditions(filter: Filter, first: int) -> list[dict[str, Any]]:
    entries = [_entry(*pair) for pair in filter.metadata]
    begun = [entries.pop(first)] if entries and first != JOBS_FIRST else []
    # Said twice not, an entry is only a condition: the index is entered by the first one alone.
    others = [{"$nor": [{"metadata": {"$not": entry["metadata"]}}]} for entry in entries]
    return [*begun, *_on_jobs(filter), *others]


def _entry(key: str, value: str) -> dict[str, Any]:
    return {"metadata": {"$elemMatch": {"k": key, "v": value}}}


def _by_id(filter: Filter, first: int) -> bool:
    return filter.error_class is not None or bool(filter.metadata and first != JOBS_FIRST)


def _order(filter: Filter, first: int) -> tuple[str, ...]:
    return ("_id",) if _by_id(filter, first) else ("created_at", "_id")


def _beyond(filter: Filter, first: int, after: Place, direction: Direction) -> dict[str, Any]:
    sign = "$lt" if direction == "DESC" else "$gt"
    if _by_id(filter, first):
        return {"_id": {sign: after.id}}
    at: datetime | None = instant(after.at)
    later = {"$or": [{"created_at": {sign: at}}, {"created_at": at, "_id": {sign: after.id}}]}
    # The first of the two gives the index its end, the second only sorts out those of the same moment.
    return {"$and": [{"created_at": {f"{sign}e": at}}, later]}


def _hint(filter: Filter, first: int) -> str | None:
    if filter.metadata and first != JOBS_FIRST:
        return _METADATA_INDEX
    if filter.error_class is not None:
        return _DEAD_INDEX
    for name, index in _RARE.items():
        if getattr(filter, name) is not None:
            return index
    return _INDEXES.get(frozenset(name for name in _EQUAL if getattr(filter, name) is not None))
