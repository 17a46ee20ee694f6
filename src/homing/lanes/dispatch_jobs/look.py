"""A look at jobs, for people: one with what it waits for, the latest, and targets that are held back."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.jobs import MOST_HELD_BACK, DispatchJobs
from homing.lanes.dispatch_jobs.search import open_search
from homing.lanes.dispatch_jobs.target_desk import TargetView, target_view
from homing.lanes.dispatch_jobs.view import Attempt, JobSummary, JobView, attempted, listed, shown


def host_of(url: str) -> str:
    """Host and port, which is enough to know a target by. Another program may have written the column."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return "not a URL"


def without_query(url: str) -> str:
    """A query often holds a token of the receiver's."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "not a URL"
    shown = urlunsplit((parts.scheme, host_of(url), parts.path, "", ""))
    return f"{shown}?…" if parts.query else shown


async def find_job(jobs: DispatchJobs, id: int) -> JobView | None:
    row = await jobs.get(id)
    if row is None:
        return None
    heads = [] if row["ready"] else await jobs.run("group_head", group_id=row["group_id"])
    return shown(row, heads[0] if heads else None)


async def attempts_of(jobs: DispatchJobs, id: int) -> list[Attempt]:
    return [attempted(row) for row in await jobs.attempts(id)]


async def latest(jobs: DispatchJobs, count: int) -> list[JobSummary]:
    search = open_search(jobs)
    places = await search.places(Filter(), 0, limit=count)
    return [listed(row) for row in await search.rows([place.id for place in places])]


async def held_targets(jobs: DispatchJobs) -> Sequence[TargetView]:
    """Targets that are paused or whose breaker is open, half or whole, or where one URL keeps failing."""
    rows = await jobs.run("held_targets", most=MOST_HELD_BACK)
    return [target_view(row) for row in rows]
