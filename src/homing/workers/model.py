"""What is known of a process."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct

#: What a process says of itself; and `lost`, which others say of it when it has been silent for too long.
Own = Literal["running", "paused", "stopping", "stopped"]
State = Literal["running", "paused", "stopping", "stopped", "lost"]
Scope = Literal["worker", "lane"]


class LaneReport(Struct, frozen=True, rename="camel"):
    """A lane, or a stage of one, in one process."""

    lane: str
    #: Claimed and not yet settled.
    in_flight: int
    slots: int
    #: Since the process began.
    claimed: int
    delivered: int
    paused: bool = False

    @property
    def otherwise(self) -> int:
        """What ended and was not delivered: it is tried again, was given up, or was given back."""
        return max(0, self.claimed - self.delivered - self.in_flight)


class PoolReport(Struct, frozen=True, rename="camel"):
    code: str
    concurrency: int
    running: int
    buffered: int
    #: The most that it ran at once.
    peak: int


class WarningReport(Struct, frozen=True, rename="camel"):
    at: datetime
    kind: str
    queue: str
    detail: str


class Report(Struct, frozen=True, rename="camel"):
    lanes: tuple[LaneReport, ...] = ()
    #: Of the router, where it runs.
    pools: tuple[PoolReport, ...] = ()
    #: The last things that the router wants a person to look at, newest first.
    warnings: tuple[WarningReport, ...] = ()
    #: Which broker and queue its settings name, by lane; without a password.
    brokers: Mapping[str, str] = {}


class Identity(Struct, frozen=True):
    """What stays the same as long as a process lives."""

    #: As in `locked_by` of what it has claimed.
    name: str
    host: str
    pid: int
    version: str
    boot: str
    #: What it works on; nothing, when it only serves.
    lanes: tuple[str, ...]
    serves: bool


class Pause(Struct, frozen=True, rename="camel"):
    scope: Scope
    name: str
    reason: str | None
    asked_by: str
    asked_at: datetime


class WorkerView(Struct, frozen=True, rename="camel"):
    name: str
    host: str
    pid: int
    version: str
    state: State
    lanes: tuple[str, ...]
    serves: bool
    started_at: datetime
    seen_at: datetime
    silent_seconds: float
    report: Report
    #: That of this very process; lanes may be paused besides.
    pause: Pause | None = None

    @property
    def is_gone(self) -> bool:
        """Nobody is there any more who could finish what it holds."""
        return self.state in {"lost", "stopped"}


def is_paused(worker: str, lane: str, pauses: frozenset[tuple[str, str]]) -> bool:
    """Whether a process is to claim nothing of a lane: a stage is paused with its lane."""
    asked: tuple[tuple[Scope, str], ...] = (
        ("worker", worker), ("lane", lane), ("lane", lane.partition(":")[0]),
    )  # fmt: skip
    return not pauses.isdisjoint(asked)
