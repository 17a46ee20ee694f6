"""What a benchmark finds out: series of values, and whether a budget is met."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from msgspec import Struct


class Series(Struct, frozen=True):
    """The same thing measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        """From the lowest to the highest, as a share of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0

    def over(self, other: Series) -> Series:
        """Ratios round by round: what slows a round down slows both of its sides down."""
        return Series(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


class Budget(Struct, frozen=True):
    """A promise of the design, and what was measured of it."""

    what: str
    measured: float
    bound: float
    at: Literal["least", "most"]
    #: Better than the bound, and not yet a promise.
    goal: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.reaches(self.bound)

    def reaches(self, value: float) -> bool:
        return self.measured >= value if self.at == "least" else self.measured <= value
