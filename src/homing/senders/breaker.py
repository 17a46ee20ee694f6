"""A breaker: after a few failures in a row, stop asking a target that is down.

closed ──(threshold failures in a row)──▶ open ──(cool-down over, probe succeeds)──▶ closed, on trial
                                           ▲  └──(probe fails: twice the cool-down)──┐
                                           └─────────────────────────────────────────┘

A failure is one that concerns the target as a whole, and never what a single message did wrong; who
owns the breaker decides which those are. It knows nothing of mail or HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from homing.engine.model import Monotonic


class Breaker:
    """Counts failures in a row, and says whether to go on.

    After a probe has succeeded the breaker is on trial: until a real success, a single failure opens
    it again, with the cool-down grown as if the probe had failed. A target that greets and then drops
    every message would otherwise cost a full count of attempts after each probe.
    """

    def __init__(
        self,
        monotonic: Monotonic,
        *,
        threshold: int = 5,
        cooldown: float = 1.0,
        longest: float = 60.0,
    ) -> None:
        self._monotonic = monotonic
        self._threshold = threshold
        self._first_cooldown = cooldown
        self._longest = longest
        self._cooldown = cooldown
        self._failures = 0
        self._open_until: float | None = None
        self._probing = False

    @property
    def closed(self) -> bool:
        """True while messages may go out."""
        return self._open_until is None

    @property
    def wait(self) -> float:
        """Seconds until it is time to probe; 0 when closed or due."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._monotonic())

    def succeeded(self) -> None:
        """The target did its work: whatever was counted is forgotten."""
        if self._failures or self._open_until is not None:
            self._failures = 0
            self._open_until = None
            self._cooldown = self._first_cooldown

    def failed(self) -> None:
        """The target could not be used. While open this says nothing new."""
        if self._open_until is not None:
            return
        self._failures += 1
        if self._failures >= self._threshold:
            self._open()

    def _open(self) -> None:
        self._open_until = self._monotonic() + self._cooldown
        self._cooldown = min(self._cooldown * 2, self._longest)

    async def available(self, probe: Callable[[], Awaitable[bool]]) -> bool:
        """True when closed. When the cool-down is over, one caller probes; the others are told no."""
        if self._open_until is None:
            return True
        if self._probing or self._monotonic() < self._open_until:
            return False
        self._probing = True
        try:
            reachable = await probe()
        finally:
            self._probing = False
        self._judge(reachable=reachable)
        return self._open_until is None

    def _judge(self, *, reachable: bool) -> None:
        # A message that was still under way may have closed the breaker in the meantime.
        if self._open_until is None:
            return
        if reachable:
            self._open_until = None
            self._failures = self._threshold - 1
        else:
            self._open()
