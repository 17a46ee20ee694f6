"""The attempts of a mail in its timeline: those that failed as they were kept, and the one that delivered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from homing.db import Row
from homing.db.conditions import readable, readable_or_never
from homing.messages.model import Step


def failed_attempts(kept: Sequence[Row]) -> list[Step]:
    return [
        Step(
            at=_began(readable_or_never(row["ended_at"]), row["duration_millis"]),
            kind="attempt",
            title=f"Attempt {row['number']}",
            well=False,
            seconds=_seconds(row["duration_millis"]),
            error_class=row["code"],
            error=row["message"] or None,
            worker=row["worker"],
        )
        for row in kept
    ]


def delivered_attempt(row: Row, number: int, ended: datetime) -> Step:
    """From the columns that a delivery writes; another program that delivers leaves them empty."""
    return Step(
        at=_began(ended, row["delivered_millis"]),
        kind="attempt",
        title=f"Attempt {number}",
        well=True,
        seconds=_seconds(row["delivered_millis"]),
        worker=row["delivered_by"],
    )


def tells_of(kept: Sequence[Row], attempted: datetime) -> bool:
    """Whether the attempt of that time is among them: it is written after its row, in one transaction."""
    last = readable(kept[-1]["ended_at"]) if kept else None
    return last is not None and last >= attempted


def _seconds(millis: int | None) -> float | None:
    return millis / 1000 if millis is not None else None


def _began(ended: datetime, millis: int | None) -> datetime:
    try:
        return ended - timedelta(milliseconds=millis or 0)
    except OverflowError:
        # Another program may have written any time, such as the first of all.
        return ended
