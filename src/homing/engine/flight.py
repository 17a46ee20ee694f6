"""One claim on its way through a process."""

from __future__ import annotations

import asyncio
from typing import Any

from homing.engine.model import Claim, Outcome, Settlement


class Flight:
    """The only thing in the engine that changes: here the time is kept and the end written down."""

    __slots__ = (
        "called_off", "claim", "latency", "outcome", "seconds", "settlement", "taken", "task", "until",
        "watcher",
    )  # fmt: skip

    def __init__(self, claim: Claim[Any], until: float, taken: float) -> None:
        self.claim = claim
        #: When it became ours, by our monotonic clock.
        self.taken = taken
        #: When the lease ends, by our monotonic clock; counted from before the claim was asked for.
        self.until = until
        #: Who attempts it, while somebody does.
        self.task: asyncio.Task[None] | None = None
        #: The attempt is to be given up: the row is, or may be, another worker's.
        self.called_off = False
        self.outcome: Outcome | None = None
        self.settlement: Settlement | None = None
        #: How long the attempt took.
        self.seconds = 0.0
        #: From the message's creation to the outcome.
        self.latency: float | None = None
        #: Resolved with the settlement, or with None when the lease was lost or given back.
        self.watcher: asyncio.Future[Settlement | None] | None = None

    def ended(self, outcome: Outcome, started: float, now: float) -> None:
        """The attempt is over."""
        self.outcome = outcome
        self.seconds = now - started
        if self.claim.age is not None:
            self.latency = self.claim.age + (now - self.taken)

    @property
    def millis(self) -> int:
        return round(self.seconds * 1000)

    def watch(self) -> asyncio.Future[Settlement | None]:
        if self.watcher is None:
            self.watcher = asyncio.get_running_loop().create_future()
        return self.watcher

    def call_off(self) -> None:
        self.called_off = True
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
