"""Charts as plain SVG: stacked bars over time. Words stand beside them in html, so that they never shrink."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

HEIGHT = 100.0
_STEP = 10.0
_WIDTH_OF_BAR = 8.0
#: What is there is seen, however little it is beside the rest.
_LEAST = 1.5


class PointLike(Protocol):
    @property
    def at(self) -> datetime: ...
    @property
    def delivered(self) -> int: ...
    @property
    def retried(self) -> int: ...
    @property
    def dead(self) -> int: ...


class Slice(Struct, frozen=True):
    tone: str
    x: float
    y: float
    width: float
    height: float


class Bar(Struct, frozen=True):
    at: datetime
    delivered: int
    retried: int
    dead: int
    slices: tuple[Slice, ...]


class Chart(Struct, frozen=True):
    width: float
    height: float
    bars: tuple[Bar, ...]
    #: Of the highest bar.
    most: int
    delivered: int
    retried: int
    dead: int

    @property
    def is_empty(self) -> bool:
        return self.most == 0


def chart_of(points: Sequence[PointLike]) -> Chart:
    most = max((_total(point) for point in points), default=0)
    bars = tuple(_bar(point, place, most) for place, point in enumerate(points))
    return Chart(
        max(1, len(points)) * _STEP,
        HEIGHT,
        bars,
        most,
        sum(point.delivered for point in points),
        sum(point.retried for point in points),
        sum(point.dead for point in points),
    )


def _total(point: PointLike) -> int:
    return point.delivered + point.retried + point.dead


def _bar(point: PointLike, place: int, most: int) -> Bar:
    """From the ground up: what arrived, what is tried again, what was given up."""
    slices, ground = [], HEIGHT
    for tone, amount in (("delivered", point.delivered), ("retried", point.retried), ("failed", point.dead)):
        if amount:
            height = max(_LEAST, amount / most * HEIGHT)
            ground = max(0.0, ground - height)
            slices.append(Slice(tone, place * _STEP + 1, round(ground, 2), _WIDTH_OF_BAR, round(height, 2)))
    return Bar(point.at, point.delivered, point.retried, point.dead, tuple(slices))
