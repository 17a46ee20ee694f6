"""Cancels or requeues many jobs at once, chosen by a filter; without being told twice it only counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from homing.errors import InvalidRequest
from homing.lanes.dispatch_jobs.filters import Filter, FilterRequest, filter_of
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.search import Direction, JobSearch

Action = Literal["cancel", "requeue"]

_AT_ONCE = 1000

HINTS: Mapping[str, str] = {
    "": "the body must be a JSON object with a filter",
    "filter": 'it names what a search does, such as {"status": "ERROR"}',
    "limit": "it is from 1 to 100,000",
    "dryRun": "it is true, to count, or false, to act",
}


class JobBulkRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which jobs, and whether it is meant: `dryRun` is true unless it is said to be false."""

    filter: FilterRequest | None = None
    #: Instead of a filter: whatever is in a state that allows it.
    all: bool = False
    dry_run: bool = True
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000


class JobBulkReply(Struct, frozen=True, rename="camel"):
    #: Up to the limit; when there are more, the same request again goes on.
    matched: int
    changed: int
    more: bool
    dry_run: bool


class _Way(Struct, frozen=True):
    states: tuple[str, ...]
    #: An ordered group is cancelled from its end, so that none of it is sent meanwhile, and requeued from its
    #: beginning, so that it keeps its order.
    direction: Direction
    said: str


_WAYS: Mapping[Action, _Way] = {
    "cancel": _Way(("PENDING", "FAILED"), "DESC", "cancelled"),
    "requeue": _Way(("ERROR", "CANCELLED"), "ASC", "requeued"),
}


class BulkActions:
    def __init__(self, jobs: DispatchJobs, search: JobSearch) -> None:
        self._search = search
        self._acts: Mapping[Action, Callable[[Sequence[int]], Awaitable[Sequence[int]]]] = {
            "cancel": jobs.cancel,
            "requeue": jobs.requeue,
        }

    async def __call__(self, action: Action, request: JobBulkRequest) -> JobBulkReply:
        filters = _by_state(_WAYS[action], _chosen(request))
        if request.dry_run:
            return await self._count(filters, request.limit)
        return await self._act(action, filters, request.limit)

    async def _count(self, filters: Sequence[Filter], limit: int) -> JobBulkReply:
        matched = 0
        for filter in filters:
            first = await self._search.first(filter)
            matched += await self._search.count(filter, first, limit + 1 - matched)
        return JobBulkReply(min(matched, limit), 0, more=matched > limit, dry_run=True)

    async def _act(self, action: Action, filters: Sequence[Filter], limit: int) -> JobBulkReply:
        matched = changed = 0
        async for ids in self._batches(filters, _WAYS[action].direction):
            chosen = ids[: limit - matched]
            if chosen:
                matched += len(chosen)
                changed += len(await self._acts[action](chosen))
            if len(chosen) < len(ids):
                return JobBulkReply(matched, changed, more=True, dry_run=False)
        return JobBulkReply(matched, changed, more=False, dry_run=False)

    async def _batches(self, filters: Sequence[Filter], direction: Direction) -> AsyncIterator[list[int]]:
        """Ids of all that match, never one twice: what is changed on the way moves nothing behind it."""
        for filter in filters:
            first, last = await self._search.first(filter), None
            while places := await self._search.places(
                filter, first, after=last, limit=_AT_ONCE, direction=direction
            ):
                yield [place.id for place in places]
                last = places[-1]


def _chosen(request: JobBulkRequest) -> Filter:
    chosen = filter_of(request.filter or FilterRequest())
    if request.all and not chosen.is_empty:
        raise InvalidRequest("all: means every job; leave it out, or the filter", "all")
    if chosen.is_empty and not request.all:
        raise InvalidRequest(
            'filter: is empty, which would mean every job; name some, or say {"all": true}', "filter"
        )
    return chosen


def _by_state(way: _Way, chosen: Filter) -> list[Filter]:
    """One for each state, because the rows of a state lie in order, and those of two do not."""
    asked = chosen.status or ("ERROR" if chosen.error_class is not None else None)
    if asked is not None and asked not in way.states:
        raise InvalidRequest(
            f"filter.status: only jobs that are {' or '.join(way.states)} can be {way.said}", "filter.status"
        )
    states = way.states if asked is None else (asked,)
    return [msgspec.structs.replace(chosen, status=state) for state in states]
