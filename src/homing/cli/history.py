"""What `homing show` tells of a message's attempts, of claims that left none, and of bulk runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table

from homing.cli.tables import Column, listing

if TYPE_CHECKING:
    from homing.app import Homing
    from homing.messages.model import Step


class Tried(Struct, frozen=True, rename="camel"):
    """One attempt."""

    at: str
    title: str
    delivered: bool
    duration_millis: int | None
    worker: str | None
    error_class: str | None
    error: str | None
    #: No answer came: it may have been taken all the same.
    unknown: bool


class Claimed(Struct, frozen=True, rename="camel"):
    """A claim that left no attempt: of now, deferred, given back, or lost with its worker."""

    at: str
    title: str
    worker: str | None
    #: It may have been sent all the same.
    unknown: bool


class Changed(Struct, frozen=True, rename="camel"):
    """A bulk run changed it."""

    at: str
    title: str
    run: int | None


class Story(Struct, frozen=True, rename="camel"):
    """Each in the order of time. Names as in the JSON of `homing show`."""

    history: Sequence[Tried]
    claims: Sequence[Claimed]
    bulk_runs: Sequence[Changed]

    @property
    def beside(self) -> list[tuple[str, str, str]]:
        """What is no attempt: when, what and by whom."""
        claims = [(one.at, f"{one.title}{_DOUBT if one.unknown else ''}", one.worker) for one in self.claims]
        runs = [(one.at, one.title, None) for one in self.bulk_runs]
        return [(at, title, worker or "") for at, title, worker in (*claims, *runs)]


_CLAIMS = frozenset({"claimed", "deferred", "lost"})
_DOUBT = " (it may have been sent)"


async def story_of(homing: Homing, id: str) -> Story:
    """Of a message that is there."""
    detail = await homing.desk.show(id, may=lambda _scope: True)
    steps = detail.timeline if detail is not None else ()
    return Story(
        [_tried(step) for step in steps if step.kind == "attempt"],
        [_claimed(step) for step in steps if step.kind in _CLAIMS],
        [Changed(_time(step), step.title, step.bulk_run) for step in steps if step.kind == "bulk"],
    )


def _claimed(step: Step) -> Claimed:
    return Claimed(_time(step), step.title, step.worker, step.unknown)


def _time(step: Step) -> str:
    from homing.db import iso

    return iso(step.at) or ""


def _tried(step: Step) -> Tried:
    millis = round(step.seconds * 1000) if step.seconds is not None else None
    return Tried(
        _time(step),
        step.title,
        bool(step.well),
        millis,
        step.worker,
        step.error_class,
        step.error,
        step.unknown,
    )


_COLUMNS = (
    Column("attempt"),
    Column("at", whole=True),
    Column("result", whole=True),
    Column("ms", right=True, rank=1),
    Column("what happened"),
    Column("worker", rank=2),
)


def story_table(story: Story) -> Table | None:
    """All of it in one table, in the order of time; None where there is nothing."""
    rows = [
        *(("", at, "", "", told, worker) for at, told, worker in story.beside),
        *map(_row, story.history),
    ]
    # Stable: of the same moment a claim comes before the attempt that followed it.
    return listing(_COLUMNS, sorted(rows, key=lambda row: row[1])) if rows else None


def _row(one: Tried) -> tuple[str, ...]:
    doubt = _DOUBT if one.unknown else ""
    told = ": ".join(filter(None, (one.error_class, one.error))) + doubt
    millis = str(one.duration_millis) if one.duration_millis is not None else ""
    result = "delivered" if one.delivered else "failed"
    return one.title.removeprefix("Attempt "), one.at, result, millis, told, one.worker or ""
