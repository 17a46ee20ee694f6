"""A lane whose claims, attempts and settlements are told as spans. The engine does not notice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from homing.engine.lane import Lane, Store
from homing.engine.model import Claim, Failure, Outcome, Settlement
from homing.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from homing.tracing.spans import Spans

Item = TypeVar("Item")


def traced(lane: Lane[Item], tracing: Tracing) -> Lane[Item]:
    """The lane itself, where there is nobody to tell."""
    return lane if tracing.spans is None else TracedLane(lane, tracing.spans)


class TracedLane(Generic[Item]):
    def __init__(self, lane: Lane[Item], spans: Spans) -> None:
        self._lane = lane
        self._spans = spans
        #: The spans of attempts that are not written down yet.
        self._attempts: dict[tuple[int, int], SpanContext] = {}
        self.name = lane.name
        self.lease_seconds = lane.lease_seconds
        self.store: Store[Item] = _TracedStore(lane.store, lane.name, spans, self._attempts)
        self.policy_of = lane.policy_of
        self.available = lane.available

    async def attempt(self, claim: Claim[Item]) -> Outcome:
        with self._spans.attempting(self.name, claim.id, claim.attempts, claim.traceparent) as attempt:
            outcome = await self._lane.attempt(claim)
            failure: Failure | None = getattr(outcome, "failure", None)
            # It has its report where a settlement has it.
            like_a_settlement: Any = outcome
            attempt.ended(
                type(outcome).__name__.lower(),
                failure.code if failure is not None else None,
                self._lane.describe(claim, like_a_settlement),
            )
        if attempt.context.trace_flags.sampled:
            self._attempts[claim.id, claim.fence] = attempt.context
        return outcome

    def describe(self, claim: Claim[Item], settlement: Settlement | None) -> Mapping[str, Any]:
        """With the attempt's own trace: the log line leads to it."""
        fields = self._lane.describe(claim, settlement)
        context = self._attempts.pop((claim.id, claim.fence), None)
        return fields if context is None else {**fields, "attempt_trace_id": f"{context.trace_id:032x}"}


class _TracedStore(Generic[Item]):
    def __init__(
        self,
        store: Store[Item],
        lane: str,
        spans: Spans,
        attempts: Mapping[tuple[int, int], SpanContext],
    ) -> None:
        self._store, self._lane, self._spans, self._attempts = store, lane, spans, attempts
        self.confirm, self.renew, self.release = store.confirm, store.renew, store.release
        self.rescue, self.claim_lost, self.sweep = store.rescue, store.claim_lost, store.sweep

    async def claim(self, limit: int) -> list[Claim[Item]]:
        began = time.time_ns()
        claims = await self._store.claim(limit)
        # Most questions find nothing, and are not worth telling.
        if claims:
            self._spans.received(self._lane, began, [claim.traceparent for claim in claims])
        return claims

    async def settle(self, batch: Sequence[tuple[Claim[Item], Settlement]]) -> set[int]:
        keys = [(claim.id, claim.fence) for claim, _ in batch]
        attempts = [context for key in keys if (context := self._attempts.get(key)) is not None]
        if not attempts:
            return await self._store.settle(batch)
        with self._spans.settling(self._lane, len(batch), attempts):
            return await self._store.settle(batch)
