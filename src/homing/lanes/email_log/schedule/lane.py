"""The lane whose effect is a publish: one attempt is one message that the broker has confirmed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from homing.brokers.base import Broker, Publication
from homing.db import Row
from homing.engine.coalesce import Batched
from homing.engine.model import Claim, Delivered, Failure, Monotonic, Outcome, Retry, Settlement
from homing.engine.policy import Fixed, Policy
from homing.lanes.email_log.email import Due
from homing.lanes.email_log.queues import Death, Hint, Queues, encode
from homing.lanes.email_log.schedule.due import DueEmails
from homing.telemetry import Telemetry

#: A publish costs no attempt, however often it fails; the wait doubles from a second to a minute.
_POLICY = Policy(2**31, Fixed(1.0), max_deferrals=2**31)
#: A broker in memory is no place for a backlog: what waits there would be lost with the process.
_MOST_IN_MEMORY = 1000
#: After a publish that failed, the broker is asked how it is at most this often.
_CHECK_EVERY = 1.0


class ScheduleLane:
    name = "email_log:schedule"

    def __init__(
        self,
        emails: DueEmails,
        broker: Broker,
        queues: Queues,
        telemetry: Telemetry,
        *,
        lease_seconds: float,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self.store = emails
        self.lease_seconds = lease_seconds
        self._broker = broker
        self._queue = queues.send
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._publish: Batched[Publication, Failure | None] = Batched(self._publish_all)
        self._failing = False
        self._next_check = 0.0

    def policy_of(self, _claim: Claim[Due]) -> Policy:
        return _POLICY

    async def attempt(self, claim: Claim[Due]) -> Outcome:
        trace = self._telemetry.tracing.outgoing(claim.traceparent)
        hint = encode(Hint(claim.id, claim.item.message_key))
        try:
            failure = await self._publish(Publication(hint, trace=trace))
        except asyncio.CancelledError:
            # A consumer has taken the row, so the message is out; or a stop did not wait for the answer.
            self._tell(claim, "called_off")
            raise
        self._tell(claim, failure.code if failure is not None else None)
        if failure is None:
            return Delivered()
        self._failing = True
        return Retry(failure, charged=False)

    def _tell(self, claim: Claim[Due], reason: str | None) -> None:
        # A failed attempt came before, whoever made it.
        again = claim.attempts > 0
        self._telemetry.email_scheduled(
            claim.id, claim.attempts, claim.item.due_at, reason=reason, again=again
        )

    async def _publish_all(self, publications: Sequence[Publication]) -> Sequence[Failure | None]:
        return await self._broker.publish(self._queue, publications)

    async def available(self) -> bool:
        """Whether the broker takes messages. While it is away rows stay as they are, and due."""
        if self._broker.name == "memory":
            return (await self._broker.depth(self._queue) or 0) < _MOST_IN_MEMORY
        if self._failing and self._monotonic() >= self._next_check:
            self._next_check = self._monotonic() + _CHECK_EVERY
            self._failing = await self._broker.check() is not None
        return not self._failing

    def describe(self, claim: Claim[Due], settlement: Settlement | None) -> Mapping[str, Any]:  # noqa: ARG002 - as every lane is asked
        return {"EmailId": claim.id}


class Obituaries:
    """Tells the dead letter queue of emails that were given up."""

    def __init__(self, broker: Broker, queues: Queues) -> None:
        self._broker = broker
        self._queue = queues.dead_letters

    async def __call__(self, rows: Sequence[Row]) -> list[bool]:
        letters = [Publication(encode(_death(row))) for row in rows]
        failures = await self._broker.publish(self._queue, letters)
        return [failure is None for failure in failures]


def _death(row: Row) -> Death:
    return Death(row["id"], row["message_key"], row["attempt_count"], row["dead_reason"])
