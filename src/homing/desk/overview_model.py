"""The first page as values: how each lane does, what is looked at for it, and what needs somebody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from homing.messages.model import DeadGroup, LaneName, Phase

Level = Literal["urgent", "soon", "note"]
#: How far a chart goes back.
Hours = Literal[3, 24]

# ── what is shown ────────────────────────────────────────────────────────────────────────────────


class Tempo(Struct, frozen=True, rename="camel"):
    """What became of the attempts of an hour."""

    attempts: int
    delivered: int
    retried: int
    dead: int
    #: From 0 to 1; None where nothing was attempted.
    success: float | None
    #: Seconds that an attempt took at most: the bound of a bucket, infinite past the last one.
    p50: float | None
    p95: float | None
    #: Seconds from a message's creation to its delivery.
    wait_p50: float | None
    wait_p95: float | None


class Point(Struct, frozen=True):
    at: datetime
    delivered: int
    retried: int
    dead: int


class LaneView(Struct, frozen=True, rename="camel"):
    lane: LaneName
    #: By the lane's own states.
    counts: Mapping[str, int]
    phases: Mapping[Phase, int]
    #: For how many seconds the oldest that is due has waited.
    oldest_due: float
    hour: Tempo
    #: From the oldest to the newest, without gaps.
    series: tuple[Point, ...]
    #: For how many seconds the counts have been known.
    age: float = 0.0
    #: States and phases that have more than is told: they are still being counted.
    at_least: tuple[str, ...] = ()


class Attention(Struct, frozen=True):
    """Something that somebody should look at, and where."""

    kind: str
    level: Level
    title: str
    detail: str
    link: str


class OverviewView(Struct, frozen=True):
    at: datetime
    hours: Hours
    lanes: tuple[LaneView, ...]
    #: The most urgent first.
    attention: tuple[Attention, ...]
    #: What could not be asked, in sentences.
    notes: tuple[str, ...] = ()


# ── what is looked at ────────────────────────────────────────────────────────────────────────────


class TargetTrouble(Struct, frozen=True):
    target: str
    #: Left alone because it kept failing; else paused by somebody.
    is_open: bool
    reason: str | None = None


class Hand(Struct, frozen=True):
    """A process that works, or did."""

    name: str
    is_lost: bool
    #: Stages are named with their lane: `email_log:send`.
    lanes: tuple[str, ...]
    silent_seconds: float = 0.0
    #: Who paused it, and why, in words.
    paused: str | None = None


class QueueDepth(Struct, frozen=True):
    name: str
    waiting: int
    #: Who reads it; None where the broker does not say.
    consumers: int | None = None


class Signs(Struct, frozen=True):
    """Everything that is judged."""

    now: datetime
    lanes: Sequence[LaneView] = ()
    dead: Sequence[DeadGroup] = ()
    targets: Sequence[TargetTrouble] = ()
    #: None: nobody knows who works.
    hands: Sequence[Hand] | None = None
    #: Lanes that somebody has paused, with who it was, and why.
    paused: Mapping[str, str] = {}
    queues: Sequence[QueueDepth] = ()
    keeps_everything: bool = False
