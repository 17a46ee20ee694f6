"""What is pruned of dispatch jobs: jobs with all that is theirs; on PostgreSQL whole weeks of attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from homing.db import Database, Queries, Row, load_queries
from homing.db.pruning import PrunableRows
from homing.engine.prune import Ages, Found, Prunable, Window
from homing.errors import Conflict

LANE = "dispatch_jobs"
ENDED = ("COMPLETED", "ERROR", "CANCELLED")
ATTEMPTS = "attempts"

#: Whoever waits for the lock holds up those that come later: so long and no longer, and then again.
_LOCK_TIMEOUT_MILLISECONDS = 50
_TRIES, _BETWEEN_TRIES = 20, 0.1


def prunable_jobs(database: Database) -> list[Prunable]:
    jobs = JobRows(database, load_queries(__package__ or "", database.dialect), LANE, ENDED)
    if database.dialect != "postgres":
        return [jobs]
    # In a file of their own, for the other databases have no partitions.
    weeks = load_queries(__package__ or "", database.dialect, "weeks")
    rest = PrunableRows(database, weeks, LANE, (ATTEMPTS,), name="prune_rest", follows=ENDED)
    return [jobs, AttemptWeeks(database, weeks), rest]


class JobRows(PrunableRows):
    def _more(self, ages: Ages) -> Mapping[str, Any]:
        """Attempts that have an age of their own go with their week, and not with their job."""
        return {"with_attempts": ATTEMPTS not in ages}


class AttemptWeeks:
    """The partitions of `dispatch_attempt`, by their first id. One that is old altogether is dropped.

    With a default partition beside it none can be detached CONCURRENTLY. The lock that it takes instead is
    held for a moment, and waited for no longer; the drop, which takes longer, holds up nobody.
    """

    lane = LANE
    states: Sequence[str] = (ATTEMPTS,)
    follows: Sequence[str] = ENDED

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def window(self, ages: Ages, after: int, size: int) -> Window:  # noqa: ARG002 - weeks are few
        weeks = await self._weeks(ages, after)
        return Window(weeks[-1]["first"] if weeks else None, bool(weeks))

    async def survey(self, ages: Ages, after: int, until: int) -> list[Found]:
        weeks = [week for week in await self._weeks(ages, after) if week["first"] <= until]
        free = [week for week in weeks if not await self._is_needed(week)]
        return [Found(ATTEMPTS, sum(w["count"] for w in free), free[0]["began"])] if free else []

    async def candidates(self, ages: Ages, after: int, until: int, limit: int) -> list[int]:
        weeks = [week for week in (await self._weeks(ages, after))[:limit] if week["first"] <= until]
        return [week["first"] for week in weeks if not await self._is_needed(week)]

    async def prune(self, ages: Ages, ids: Sequence[int]) -> Mapping[str, int]:
        dropped = 0
        for week in await self._weeks(ages, 0):
            if week["first"] in ids and await self._detach(week["name"]):
                dropped += max(1, week["count"])
        await self._drop_detached()
        return {ATTEMPTS: dropped} if dropped else {}

    async def _weeks(self, ages: Ages, after: int) -> list[Row]:
        rows = await self._database.fetch(self._queries["prune_weeks"], {"seconds": ages[ATTEMPTS]})
        return [row for row in rows if row["first"] > after]

    async def _is_needed(self, week: Row) -> bool:
        bounds = {"first": week["first"], "bound": week["bound"]}
        return bool(await self._database.fetch(self._queries["prune_week_is_needed"], bounds))

    async def _detach(self, week: str) -> bool:
        """Under another name, which says that it may be dropped. `prune_weeks` only finds plain names."""
        for _ in range(_TRIES):
            try:
                await self._database.run_script(
                    f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MILLISECONDS};"
                    f"ALTER TABLE dispatch_attempt DETACH PARTITION {week};"
                    f"ALTER TABLE {week} RENAME TO homing_pruned_{week};"
                )
            except Conflict:
                await asyncio.sleep(_BETWEEN_TRIES)
            else:
                return True
        return False

    async def _drop_detached(self) -> None:
        for row in await self._database.fetch(self._queries["prune_detached"], {}):
            await self._database.run_script(f"DROP TABLE IF EXISTS {row['name']};")
