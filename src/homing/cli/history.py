"""What `homing show` tells of the attempts of a mail, an email or a notification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table

from homing.cli.listener import printable
from homing.cli.options import print_table
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


async def history_of(homing: Homing, id: str) -> list[Tried]:
    """Of a message that is there."""
    detail = await homing.desk.show(id, may=lambda _scope: True)
    steps = detail.timeline if detail is not None else ()
    return [_tried(step) for step in steps if step.kind == "attempt"]


def _tried(step: Step) -> Tried:
    from homing.db import iso

    millis = round(step.seconds * 1000) if step.seconds is not None else None
    return Tried(
        iso(step.at) or "",
        step.title,
        bool(step.well),
        millis,
        step.worker,
        step.error_class,
        step.error,
        step.unknown,
    )


def print_runs(steps: Sequence[Step]) -> None:
    """What bulk runs did with it, a line each."""
    from homing.db import iso

    for step in steps:
        print_table(printable(f"{iso(step.at)}  {step.title}"))


_COLUMNS = (
    Column("attempt"),
    Column("at", whole=True),
    Column("result", whole=True),
    Column("ms", right=True, rank=1),
    Column("error"),
    Column("worker", rank=2),
)


def history_table(history: Sequence[Tried]) -> Table:
    return listing(_COLUMNS, [_row(one) for one in history])


def _row(one: Tried) -> tuple[str, ...]:
    doubt = " (it may have been sent)" if one.unknown else ""
    told = ": ".join(filter(None, (one.error_class, one.error))) + doubt
    millis = str(one.duration_millis) if one.duration_millis is not None else ""
    result = "delivered" if one.delivered else "failed"
    return one.title.removeprefix("Attempt "), one.at, result, millis, told, one.worker or ""
