"""A rate, and how much of it may be used at once."""

from __future__ import annotations

import time

from homing.engine.model import Monotonic


class TokenBucket:
    """`per_second` tokens flow in, up to `burst`; one is taken for each call."""

    def __init__(self, per_second: float, burst: float, monotonic: Monotonic = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._monotonic = monotonic
        self._tokens = burst
        self._filled = monotonic()

    def take(self) -> float:
        """0.0 when a token was there; else the seconds until there is one, and nothing is taken."""
        now = self._monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        if self._tokens < 1:
            return (1 - self._tokens) / self._per_second
        self._tokens -= 1
        return 0.0
