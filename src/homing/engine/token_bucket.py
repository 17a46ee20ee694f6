"""A rate, and how much of it may be used at once."""

from __future__ import annotations

import time

from homing.engine.model import Monotonic


class TokenBucket:
    """`per_second` tokens flow in, up to `burst`; calls take them out."""

    def __init__(self, per_second: float, burst: float, monotonic: Monotonic = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._monotonic = monotonic
        self._tokens = burst
        self._filled = monotonic()

    def take(self) -> float:
        """0.0 when a token was there; else the seconds until there is one, and nothing is taken."""
        if (tokens := self.level()) < 1:
            return (1 - tokens) / self._per_second
        self.spend(1)
        return 0.0

    def level(self) -> float:
        """How many tokens are there now."""
        now = self._monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        return self._tokens

    def spend(self, count: int) -> None:
        """Take several at once, of those that `level` told of."""
        self._tokens -= count
