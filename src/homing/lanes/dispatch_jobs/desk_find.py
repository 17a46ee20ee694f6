"""Finds jobs for the desk: by the indexes of the search, one state at a time, or in a bounded look.

The jobs of one state lie in order, those of two do not: so each state is a stream of its own, and the streams
are merged. All of them go on from the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from homing.db import Row
from homing.db.conditions import Conditions, readable
from homing.db.looking import FIRST_WINDOW, SCATTERED, WINDOW, Stream, look
from homing.lanes.dispatch_jobs.desk_conditions import (
    PHASES,
    TABLE,
    conditions,
    is_by_id,
    lead_of,
    left_over,
    states_of,
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
        states = states_of(wanted)
        if len(states) == len(PHASES):
            streams = [await self._stream(wanted, None, after, limit)]
        else:
            streams = [await self._stream(wanted, state, after, limit) for state in states]
        return await self._joined(streams, limit)

    async def _place(self, number: int) -> Place:
        """Where a job stands. One that is gone stood where its id says."""
        rows = await self._search.rows([number])
        at = rows[0]["created_at"] if rows else time_of(number)
        return Place(at if isinstance(at, str) else at.isoformat(), number)

    async def _stream(self, wanted: Wanted, state: str | None, after: Place | None, limit: int) -> _Some:
        lead = lead_of(wanted, state)
        also = self._also(wanted, state)
        if also is not None:
            found = await self._look_through(lead, also, after, limit)
            ended = found.end is not None and wanted.since is not None and _is_before(found.end, wanted.since)
            return replace(found, end=None) if ended else found
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

    def _also(self, wanted: Wanted, state: str | None) -> Any:
        """What no index serves, in the words of the database; None when nothing is left over."""
        found = left_over(wanted, state, self._jobs.database.dialect)
        return found if found.texts else None

    async def _joined(self, streams: Sequence[_Some], limit: int) -> FoundJobs:
        """The newest of all streams, down to where the first of them ended that goes on."""
        horizon = max((one.end.id for one in streams if one.end is not None), default=None)
        places = sorted((place for one in streams for place in one.places), key=lambda place: -place.id)
        if len(streams) == 1:
            places = list(streams[0].places)
        elif horizon is not None:
            places = [place for place in places if place.id >= horizon]
        chosen = places[:limit]
        following = chosen[-1].id if len(places) > limit else horizon
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


def _is_before(place: Place, moment: datetime) -> bool:
    at = readable(place.at)
    return at is not None and at < moment


_KEYS = ("o.external_id = :key", "o.idempotency_key = :key")
