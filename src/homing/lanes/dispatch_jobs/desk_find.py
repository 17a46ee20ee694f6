"""Finds jobs for the desk: by the indexes of the search, one state at a time, or in a bounded look.

The jobs of one state lie in order, those of two do not: so each state is a stream of its own, and the streams
are merged. All of them lie in the same order, and go on from the same place: by the time of creation and the
id, which is not the order of the ids alone, because a transaction may have begun long before it wrote; or by
id, where all of them are read by metadata or by an error class, whose indexes know no times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from homing.db import Row
from homing.db.conditions import Conditions, readable, readable_or_never
from homing.db.looking import FIRST_WINDOW, SCATTERED, WINDOW, Stream, look
from homing.lanes.dispatch_jobs.desk_conditions import (
    TABLE,
    Asked,
    asked_for,
    conditions,
    is_by_id,
    left_over,
)
from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.search import JobSearch, Place, open_search
from homing.lanes.dispatch_jobs.tsid import number_of, time_of
from homing.messages.model import Wanted


class FoundJobs(Struct, frozen=True):
    rows: Sequence[Row]
    next: int | None
    looked_at: int | None


class _Some(Struct, frozen=True):
    """A page of one stream."""

    places: Sequence[Place]
    #: Where it ends, if it goes on; None at its end.
    end: Place | None
    looked_at: int | None = None


def open_finder(jobs: DispatchJobs) -> JobFinder:
    """The one that belongs to the jobs' database."""
    if jobs.database.dialect != "mongodb":
        return JobFinder(jobs)
    from homing.lanes.dispatch_jobs.mongo_desk import MongoJobFinder  # noqa: PLC0415 - its driver is an extra

    return MongoJobFinder(jobs)


class JobFinder:
    def __init__(self, jobs: DispatchJobs) -> None:
        self._jobs = jobs
        self._search: JobSearch = open_search(jobs)

    async def find(self, wanted: Wanted, *, before: int | None, limit: int) -> FoundJobs:
        if wanted.id is not None:
            return await self._by_id(wanted, before, limit)
        after = await self._place(before) if before is not None else None
        asked = asked_for(wanted)
        streams = [await self._stream(one, after, limit) for one in asked]
        by_id = all(is_by_id(one.lead) for one in asked)
        return await self._joined(streams, limit, self._by_id_alone if by_id else self._by_time)

    def _by_id_alone(self, place: Place) -> Any:
        return place.id

    def _by_time(self, place: Place) -> Any:
        """As the database compares: SQLite has texts, of which another program may write any."""
        at = place.at if self._jobs.database.dialect == "sqlite" else readable_or_never(place.at)
        return at, place.id

    async def _place(self, number: int) -> Place:
        """Where a job stands. One that is gone stood where its id says."""
        rows = await self._search.rows([number])
        at = rows[0]["created_at"] if rows else time_of(number)
        return Place(at if isinstance(at, str) else at.isoformat(), number)

    async def _stream(self, asked: Asked, after: Place | None, limit: int) -> _Some:
        lead, also = asked.lead, self._also(asked)
        if also is not None:
            found = await self._look_through(lead, also, after, limit)
            return replace(found, end=None) if _has_ended(asked, found.end) else found
        places = await self._search.places(lead, 0, after=after, limit=limit + 1)
        more = len(places) > limit
        return _Some(places[:limit], places[limit - 1] if more else None)

    async def _look_through(self, lead: Filter, also: Any, after: Place | None, limit: int) -> _Some:
        lies_together = lead.status in {None, "COMPLETED"} and not is_by_id(lead)
        for window in (FIRST_WINDOW, WINDOW if lies_together else SCATTERED):
            seen = await self._search.window(lead, 0, also, after=after, window=window, limit=limit)
            if len(seen.places) == limit:
                return _Some(seen.places, seen.places[-1])
            if seen.end is None:
                break
        return _Some(seen.places, seen.end, seen.looked_at)

    def _also(self, asked: Asked) -> Any:
        """What no index serves, in the words of the database; None when nothing is left over."""
        found = left_over(asked, self._jobs.database.dialect)
        return found if found.texts else None

    async def _joined(self, streams: Sequence[_Some], limit: int, order: Callable[[Place], Any]) -> FoundJobs:
        """The newest of all streams, down to where the first of them ended that goes on."""
        horizon = max((one.end for one in streams if one.end is not None), key=order, default=None)
        places = sorted({place for one in streams for place in one.places}, key=order, reverse=True)
        if len(streams) == 1:
            places = list(streams[0].places)
        elif horizon is not None:
            places = [place for place in places if order(place) >= order(horizon)]
        chosen = places[:limit]
        last = chosen[-1] if len(places) > limit else horizon
        following = None if last is None else last.id
        looked = [one.looked_at for one in streams if one.looked_at is not None]
        rows = await self._search.rows([place.id for place in chosen])
        return FoundJobs(rows, following, sum(looked) if looked else None)

    async def _by_id(self, wanted: Wanted, before: int | None, limit: int) -> FoundJobs:
        """Those that an id, an external id or a key names, as far as the rest holds for them too."""
        ids = await self._named(wanted, before, limit)
        rows = await self._search.rows(ids)
        return FoundJobs(rows, ids[-1] if len(ids) == limit else None, None)

    async def _named(self, wanted: Wanted, before: int | None, limit: int) -> list[int]:
        database, id = self._jobs.database, wanted.id or ""
        rest = conditions(replace(wanted, id=None), database.dialect)
        if rest is None:
            return []
        number = number_of(id)
        values = {"key": id, "number": number}
        stream = (
            Stream((), _KEYS, f"({' OR '.join(_KEYS)})") if number is None else Stream(("o.id = :number",))
        )
        also = rest + Conditions((), values)
        seen = await look(database, TABLE, stream, also, before=before, limit=limit)
        if number is not None and not seen.rows and before is None:
            # What is written like an id may be somebody's key.
            stream = Stream((), _KEYS, f"({' OR '.join(_KEYS)})")
            seen = await look(database, TABLE, stream, also, before=before, limit=limit)
        return [row["id"] for row in seen.rows]


def _has_ended(asked: Asked, end: Place | None) -> bool:
    """Whether all others are older than what is asked for. Ids are of clocks that may be off."""
    since = asked.wanted.since
    at = readable(end.at) if end is not None else None
    if since is None or at is None:
        return False
    return since - at > (_CLOCKS_APART if is_by_id(asked.lead) else timedelta())


_CLOCKS_APART = timedelta(days=1)


_KEYS = ("o.external_id = :key", "o.idempotency_key = :key")
