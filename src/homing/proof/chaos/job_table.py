"""What `dispatch_job` and `dispatch_attempt` say, read from beside."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from homing.db.database import instant
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.proof.chaos.table import Observer

_HELD = "SELECT id, claim_seq, locked_by FROM dispatch_job WHERE status = 'IN_PROGRESS'"
_FENCES = "SELECT id, claim_seq FROM dispatch_job"
_OPEN = "SELECT count(*) AS count FROM dispatch_job WHERE status IN ('PENDING', 'FAILED', 'IN_PROGRESS')"
_ENDS = (
    "SELECT id, status, claim_seq, attempt_count, rescue_count, completed_at FROM dispatch_job ORDER BY id"
)
_ATTEMPTS = """
SELECT dispatch_job_id, attempt_number, status, response_code, error_class, attempted_at, completed_at
FROM dispatch_attempt ORDER BY dispatch_job_id, attempt_number, id
"""
_CROWDED = """
SELECT group_id FROM dispatch_job
WHERE ordering = 'group' AND status = 'IN_PROGRESS' GROUP BY group_id HAVING count(*) > 1
"""


class JobEnd(Struct, frozen=True):
    """A job after the run."""

    id: int
    status: str
    claim_seq: int
    attempt_count: int
    rescue_count: int
    #: Unix time.
    completed: float | None


class AttemptRow(Struct, frozen=True):
    job: int
    number: int
    status: str
    response_code: int | None
    error_class: str | None
    #: Unix times.
    begun: float
    ended: float


class JobTable(Observer):
    """An observer of `dispatch_job`."""

    def __init__(self, url: str) -> None:
        super().__init__(url, held=_HELD, fences=_FENCES, open_rows=_OPEN)

    def mark(self, row: Sequence[Any]) -> str:
        return text_of(row[0])

    async def ends(self) -> list[JobEnd]:
        return [
            JobEnd(id, status, claim_seq, attempts, rescues, _unix(completed))
            for id, status, claim_seq, attempts, rescues, completed in await self.read(_ENDS)
        ]

    async def attempts(self) -> list[AttemptRow]:
        return [
            AttemptRow(job, number, status, code, error, _unix(begun) or 0.0, _unix(ended) or 0.0)
            for job, number, status, code, error, begun, ended in await self.read(_ATTEMPTS)
        ]

    async def crowded_groups(self) -> list[str]:
        """Ordered groups of which more than one job is in flight at this moment."""
        return [row[0] for row in await self.read(_CROWDED)]


def _unix(value: datetime | str | None) -> float | None:
    moment = instant(value)
    return None if moment is None else moment.timestamp()
