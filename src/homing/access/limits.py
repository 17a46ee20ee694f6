"""How often a key may ask: a bucket for each, in each process."""

from __future__ import annotations

import math
import time

from msgspec import Struct

from homing.engine.model import Monotonic
from homing.engine.token_bucket import TokenBucket

#: A bucket holds what flows in within this time.
_WINDOW = 2.0
_MOST_BUCKETS = 10_000


class Allowance(Struct, frozen=True):
    """What is left, and for how long to wait where nothing is."""

    quota: int
    left: int
    retry_after: float = 0.0

    @property
    def headers(self) -> dict[str, str]:
        """As the IETF's draft names them."""
        return {
            "RateLimit-Policy": f'"key";q={self.quota};w={math.ceil(_WINDOW)}',
            "RateLimit": f'"key";r={self.left};t={max(1, math.ceil(self.retry_after))}',
        }


class RateLimits:
    """`per_second` is for keys that name no rate of their own; 0: no limit."""

    def __init__(self, per_second: float = 0.0, monotonic: Monotonic = time.monotonic) -> None:
        self._per_second, self._monotonic = per_second, monotonic
        self._buckets: dict[tuple[str, float], TokenBucket] = {}

    def take(self, id: str, per_second: float | None) -> Allowance | None:
        """One request of a key; None where there is no limit."""
        rate = per_second or self._per_second
        if not rate:
            return None
        quota = max(1, math.ceil(rate * _WINDOW))
        bucket = self._bucket(id, rate, quota)
        wait = bucket.take()
        return Allowance(quota, int(bucket.level()), wait)

    def _bucket(self, id: str, rate: float, quota: int) -> TokenBucket:
        known = self._buckets.get((id, rate))
        if known is None:
            if len(self._buckets) > _MOST_BUCKETS:
                self._buckets.clear()
            known = self._buckets[id, rate] = TokenBucket(rate, quota, self._monotonic)
        return known
