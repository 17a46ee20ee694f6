"""Dead letters: jobs that ended in ERROR, by what they died of."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from homing.db import Row, iso
from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.search import JobSearch, Place
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.lanes.dispatch_jobs.view import JobSummary, listed

#: Of each error class so many of the newest are looked at.
MOST_COUNTED = 5000
_MOST_CLASSES = 200
_MOST_GROUPS = 500
#: Places of dead jobs are found by id alone.
_ANY_TIME = "1970-01-01T00:00:00+00:00"


class DeadGroup(Struct, frozen=True, rename="camel"):
    """Jobs of one source and type that died of the same."""

    error_class: str
    source: str
    type: str
    #: Among the newest 5,000 of the error class.
    count: int
    #: There are more of this error class than were looked at, so perhaps more of this group.
    count_is_lower_bound: bool
    newest_at: str | None
    example_id: str
    last_error: str | None


class DeadLetters(Struct, frozen=True):
    #: The largest first.
    groups: list[DeadGroup]
    #: With an errorClass: its jobs, newest first.
    items: list[JobSummary]
    #: What to give as `before` to go on with the items; null at the end.
    next: str | None


class DeadJobs:
    def __init__(self, jobs: DispatchJobs, search: JobSearch) -> None:
        self._jobs = jobs
        self._search = search

    async def look(self, filter: Filter, *, before: int | None = None, size: int = 20) -> DeadLetters:
        groups = [_group(row) for row in await self._groups(filter)]
        if filter.error_class is None:
            return DeadLetters(groups, [], None)
        chosen = [group for group in groups if group.error_class == filter.error_class]
        after = Place(_ANY_TIME, before) if before is not None else None
        places = await self._search.places(filter, 0, after=after, limit=size + 1)
        items = [listed(row) for row in await self._search.rows([place.id for place in places[:size]])]
        return DeadLetters(chosen, items, text_of(places[size - 1].id) if len(places) > size else None)

    async def _groups(self, filter: Filter) -> Sequence[Row]:
        return await self._jobs.run(
            "dead_groups",
            source=filter.source,
            type=filter.type,
            most=MOST_COUNTED,
            classes=_MOST_CLASSES,
            groups=_MOST_GROUPS,
        )


def _group(row: Row) -> DeadGroup:
    return DeadGroup(
        row["error_class"],
        row["source"],
        row["type"],
        row["count"],
        row["of_class"] >= MOST_COUNTED,
        iso(row["completed_at"]) or iso(row["created_at"]),
        text_of(row["id"]),
        row["last_error"],
    )
