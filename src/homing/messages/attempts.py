"""The attempts of a mail in its timeline: those that failed as they were kept, and the one that delivered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from homing.db import Row
from homing.db.conditions import readable, readable_or_never
from homing.messages.facts import code_of, message_of
from homing.messages.model import Step


def own_attempts(kept: Sequence[Row], created: datetime) -> list[Row]:
    """Those of this message: its number may have been another's, whose attempts ended before it was made."""
    return [row for row in kept if readable_or_never(row["ended_at"]) >= created]


def failed_attempts(kept: Sequence[Row]) -> list[Step]:
    before = [0, *(row["number"] for row in kept)]
    return [
        Step(
            at=_began(readable_or_never(row["ended_at"]), row["duration_millis"]),
            kind="attempt",
            title=_titled(row["number"], last),
            well=False,
            seconds=_seconds(row["duration_millis"]),
            error_class=row["code"],
            error=row["message"] or None,
            worker=row["worker"],
            unknown=bool(row["unknown"]),
        )
        for row, last in zip(kept, before, strict=False)
    ]


def _titled(number: int, last: int) -> str:
    """Who requeues a message gives it all attempts again: they are counted from the first."""
    return f"Attempt {number}" if number > last else f"Attempt {number}, after a requeue"


def delivered_attempt(row: Row, kept: Sequence[Row], number: int, ended: datetime) -> Step:
    """From the columns that a delivery writes; another program that delivers leaves them empty."""
    return Step(
        at=_began(ended, row["delivered_millis"]),
        kind="attempt",
        title=_titled(number, kept[-1]["number"] if kept else 0),
        well=True,
        seconds=_seconds(row["delivered_millis"]),
        worker=row["delivered_by"],
    )


def ended_after(kept: Sequence[Row], claimed: datetime) -> datetime:
    """When the last attempt of a message was over that was claimed then, and ended with it."""
    return max([claimed, *(readable_or_never(row["ended_at"]) for row in kept[-1:])])


def last_claim(row: Row, kept: Sequence[Row], failures: int) -> Step | None:
    """What the row alone says of its last claim; None when that is kept, or when there was none."""
    claimed = readable(row["last_attempt_at"])
    if claimed is None or tells_of(kept, claimed):
        return None
    code, told = code_of(row["last_error"]), message_of(row["last_error"])
    if failures and not kept:
        # An earlier version, or another program, made these attempts.
        title = f"Last attempt, of {failures}"
        return Step(claimed, "attempt", title, well=False, error_class=code, error=told)
    if row["rescue_count"] and row["defer_count"]:
        return Step(claimed, "deferred", "Deferred, or lost with its worker", unknown=True)
    if row["rescue_count"]:
        return Step(claimed, "lost", "Lost with its worker", unknown=True)
    if row["defer_count"]:
        return Step(claimed, "deferred", "Deferred", error_class=code, error=told)
    # Whether its attempt had begun is not kept: a worker that is told to stop at once breaks it off.
    return Step(
        claimed, "claimed", "Given back by a worker that was stopped; what had begun may have arrived"
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
