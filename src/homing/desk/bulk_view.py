"""Bulk runs as JSON, for the API and the command line."""

from __future__ import annotations

from msgspec import Struct

from homing.db import iso
from homing.desk.bulk import BulkRun, Counted


class CountView(Struct, frozen=True, rename="camel"):
    """How many would be changed."""

    dry_run: bool
    total: int
    #: There are at least so many.
    is_estimate: bool
    lanes: dict[str, int]


class BulkView(Struct, frozen=True, rename="camel"):
    """One run, as it stands."""

    id: int
    verb: str
    query: str
    lanes: list[str]
    created_by: str
    created_at: str | None
    #: counting, running, done, cancelled or failed
    state: str
    #: Null until they are counted.
    total: int | None
    is_estimate: bool
    done: int
    #: Were in no state for it any more.
    skipped: int
    #: Were refused by their database.
    failed: int
    started_at: str | None
    updated_at: str | None
    finished_at: str | None
    last_error: str | None
    per_second: float | None
    seconds_left: float | None


def count_view(counted: Counted) -> CountView:
    lanes = {str(name): count for name, count in counted.lanes.items()}
    return CountView(dry_run=True, total=counted.total, is_estimate=counted.is_estimate, lanes=lanes)


def bulk_view(run: BulkRun) -> BulkView:
    return BulkView(
        run.id, run.verb, run.query, list(run.lanes), run.created_by, iso(run.created_at), run.state,
        run.total, run.is_estimate, run.done, run.skipped, run.failed, iso(run.started_at),
        iso(run.updated_at), iso(run.finished_at), run.last_error, run.speed, run.seconds_left,
    )  # fmt: skip
