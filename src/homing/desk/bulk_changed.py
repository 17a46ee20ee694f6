"""The messages that a bulk run has changed, as they are now: its line may fit none of them any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

from homing.desk.bulk import BulkRun, BulkRuns
from homing.desk.desk import merged
from homing.errors import DatabaseError
from homing.messages.model import LaneName, Seen, Summary

#: A run means what was there when it was ordered, to the millisecond.
_A_MOMENT: Final = timedelta(milliseconds=1)


async def newest_changed(runs: BulkRuns, run: BulkRun, *, limit: int) -> list[Summary]:
    """Newest first; those that were deleted since are left out."""
    found = await asyncio.gather(*(_of_lane(runs, run, name, limit) for name in run.lanes))
    return merged(dict(zip(run.lanes, found, strict=True)), limit)


async def _of_lane(runs: BulkRuns, run: BulkRun, name: LaneName, limit: int) -> Seen:
    found: list[Summary | None] = []
    # How the run itself went is shown all the same.
    with suppress(DatabaseError):
        rows = await runs.run("changed", id=run.id, lane=name, limit=limit)
        found = await asyncio.gather(*(_row(runs, run, name, row["number"]) for row in rows))
    return Seen([row for row in found if row is not None], next=None)


async def _row(runs: BulkRuns, run: BulkRun, name: LaneName, number: int) -> Summary | None:
    """Unless it is gone. A table that was emptied gives its numbers out again."""
    detail = await runs.lanes[name].show(number)
    if detail is None or detail.summary.created_at > run.created_at + _A_MOMENT:
        return None
    return detail.summary
