"""The only seams that the loop knows: a lane, and the store of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from homing.engine.model import Claim, Outcome, Settlement
from homing.engine.policy import Policy

Item = TypeVar("Item")


class Store(Protocol[Item]):
    """Rows of one lane. Every time in it is the database's; every write names the fence."""

    async def claim(self, limit: int) -> list[Claim[Item]]:
        """Take what is due, in the lane's order, for one lease."""

    async def settle(self, batch: Sequence[tuple[Claim[Item], Settlement]]) -> set[int]:
        """Write the settlements of those claims that are still ours; the ids that were."""

    async def confirm(self, claims: Sequence[Claim[Item]]) -> set[int]:
        """The ids of claims that were settled and not claimed since: ours, when we tried to settle them."""

    async def renew(self, claims: Sequence[Claim[Item]]) -> set[int]:
        """Prolong the leases that are still ours; the ids that were."""

    async def release(self, claims: Sequence[Claim[Item]]) -> set[int]:
        """Give claims back as if they had never been taken."""

    async def rescue(self, limit: int) -> int:
        """Make rows whose lease is over due again, uncharged and behind the others; how many."""

    async def claim_lost(self, limit: int) -> list[Claim[Item]]:
        """Claim rows whose lease is over and that were rescued too often to go on uncharged."""

    async def sweep(self, limit: int) -> Mapping[str, int]:
        """End what needs no attempt to end: expired, exhausted; how many, by new state."""


class Lane(Protocol[Item]):
    """One contract: its rows, its policy, and the effect of one attempt."""

    @property
    def name(self) -> str: ...

    @property
    def store(self) -> Store[Item]: ...

    @property
    def lease_seconds(self) -> float: ...

    def policy_of(self, claim: Claim[Item]) -> Policy:
        """How persistent to be with this one."""

    async def attempt(self, claim: Claim[Item]) -> Outcome:
        """Cause the effect once. What goes wrong out there comes back as a value."""

    async def available(self) -> bool:
        """Whether attempts make sense now: False while every way out is broken."""

    def describe(self, claim: Claim[Item], settlement: Settlement | None) -> Mapping[str, Any]:
        """The lane's own fields for the log line of an attempt; no address, no body."""
