"""The stage that sends jobs' messages to their queues; to send one is an effect like any other.

A job is saved first, and what is saved says whether its message must still be sent. One that the broker did
not take goes out later, and so does that of a job that another program has put into the table. Who claims
a job here moves the time at which it is looked at again (`queue_at`). When the broker has confirmed, nothing
more is to be written: where no message is heard of for a while that time comes, and one is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from homing.brokers.base import Broker, Publication
from homing.brokers.pointer import MessagePointer, encode_pointer
from homing.brokers.router import queue_of
from homing.brokers.router_config import DISPATCH_POOL
from homing.db import Row
from homing.engine.coalesce import Batched
from homing.engine.model import (
    Claim,
    Delivered,
    Failure,
    Monotonic,
    Outcome,
    Retry,
    RetryIn,
    Settlement,
)
from homing.engine.policy import Fixed, Policy
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.router_store import RouterConfigs
from homing.lanes.dispatch_jobs.tokens import ProcessTokens
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.tracing import Tracing

NAME = "dispatch_queue"

#: A broker that is away is asked again after so long, however many messages wait for it.
_AFTER_FAILURE = 2.0
_MOST_COUNTED = 100_000

_encode = msgspec.json.Encoder().encode


class Unsent(Struct, frozen=True, gc=False):
    """A job whose message is to be sent."""

    queue_url: str | None
    ordered_group: str | None


class UnsentJobs:
    """The engine's store of this stage. The fence is the number of the message."""

    def __init__(self, jobs: DispatchJobs, window: float) -> None:
        self._jobs = jobs
        self._window = window

    async def claim(self, limit: int) -> list[Claim[Unsent]]:
        # A look takes no lock: nearly always there is nothing to send, and other programs want to write.
        if not (await self._jobs.run("unsent", limit=1))[0]["count"]:
            return []
        found = await self._jobs.run_together(
            ["postpone_unsent", "claim_unsent"], limit=limit, window=self._window
        )
        # By id, so that those of a group go into their queue as they were created.
        return [_claim(row) for row in sorted(found["claim_unsent"], key=lambda row: int(row["id"]))]

    async def settle(self, batch: Sequence[tuple[Claim[Unsent], Settlement]]) -> set[int]:
        refused = [
            {"id": claim.id, "fence": claim.fence, "delay": settlement.delay}
            for claim, settlement in batch
            if isinstance(settlement, RetryIn)
        ]
        taken = {claim.id for claim, settlement in batch if not isinstance(settlement, RetryIn)}
        return taken | await self._send_again(refused)

    async def _send_again(self, batch: list[dict[str, Any]]) -> set[int]:
        if not batch:
            return set()
        rows = await self._jobs.run("settle_unsent", batch=_encode(batch).decode())
        return {row["id"] for row in rows}

    async def confirm(self, claims: Sequence[Claim[Unsent]]) -> set[int]:
        return {claim.id for claim in claims}

    async def renew(self, claims: Sequence[Claim[Unsent]]) -> set[int]:
        # The window is long, and a message that goes out twice does nothing.
        return {claim.id for claim in claims}

    async def release(self, claims: Sequence[Claim[Unsent]]) -> set[int]:
        return await self._send_again([{"id": c.id, "fence": c.fence, "delay": 0.0} for c in claims])

    async def rescue(self, _limit: int) -> int:
        return 0

    async def claim_lost(self, _limit: int) -> list[Claim[Unsent]]:
        return []

    async def sweep(self, _limit: int) -> Mapping[str, int]:
        return {}

    async def counts(self) -> Mapping[str, int]:
        return {"unsent": (await self._jobs.run("unsent", limit=_MOST_COUNTED))[0]["count"]}

    async def oldest_due(self) -> float:
        age: float | None = (await self._jobs.run("unsent", limit=1))[0]["age"]
        return max(0.0, age or 0.0)


def _claim(row: Row) -> Claim[Unsent]:
    item = Unsent(row["queue_url"], row["ordered_group"])
    return Claim(row["id"], row["fence"], 0, item, traceparent=row["traceparent"])


class QueueingLane:
    name = NAME

    def __init__(
        self,
        store: UnsentJobs,
        broker: Broker,
        configs: RouterConfigs,
        tokens: Callable[[], ProcessTokens],
        *,
        default_queue: str,
        process_url: Callable[[], str],
        visibility: float,
        window: float,
        tracing: Tracing | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self.store = store
        self._tracing = tracing or Tracing()
        self.lease_seconds = window
        self._broker = broker
        self._configs = configs
        self._tokens = tokens
        self._default_queue = default_queue
        self._process_url = process_url
        self._visibility = visibility
        self._monotonic = monotonic
        # A broker that is away is no fault of a message, which waits as long as it takes.
        self._policy = Policy(1_000_000_000, Fixed(_AFTER_FAILURE), shortest_deferral=_AFTER_FAILURE)
        self._publish: Batched[tuple[str | None, Publication], Failure | None] = Batched(self._publish_all)
        self._broken_until = 0.0

    def policy_of(self, _claim: Claim[Unsent]) -> Policy:
        return self._policy

    async def available(self) -> bool:
        return self._monotonic() >= self._broken_until

    async def attempt(self, claim: Claim[Unsent]) -> Outcome:
        failure = await self._publish((claim.item.queue_url, self._publication(claim)))
        if failure is None:
            return Delivered()
        self._broken_until = self._monotonic() + _AFTER_FAILURE
        return Retry(failure)

    def _publication(self, claim: Claim[Unsent]) -> Publication:
        job = text_of(claim.id)
        # Of those that need no order each is a group of its own: all in one would go one by one.
        group = claim.item.ordered_group or job
        pointer = MessagePointer(
            id=job,
            pool_code=DISPATCH_POOL,
            mediation_target=self._process_url(),
            message_group_id=group,
            auth_token=self._tokens().token(job),
        )
        trace = self._tracing.outgoing(claim.traceparent)
        return Publication(encode_pointer(pointer), group, f"{job}-{claim.fence}", trace)

    async def _publish_all(
        self, entries: Sequence[tuple[str | None, Publication]]
    ) -> Sequence[Failure | None]:
        """One call per queue; the answers in the order of the entries."""
        known = [queue.queue_uri for queue in (await self._configs.recent()).queues]
        queues = {wanted: await self._queue_for(wanted, known) for wanted in {one for one, _ in entries}}
        by_queue: dict[str, list[int]] = {}
        for number, (wanted, _) in enumerate(entries):
            by_queue.setdefault(queues[wanted], []).append(number)
        answers: dict[int, Failure | None] = {}
        for queue, numbers in by_queue.items():
            told = await self._broker.publish(
                queue_of(queue, self._visibility), [entries[number][1] for number in numbers]
            )
            answers.update(zip(numbers, told, strict=True))
        return [answers[number] for number in range(len(entries))]

    async def _queue_for(self, named: str | None, known: Sequence[str]) -> str:
        """One that is read: that which the job names, else the default, else the first that there is."""
        for wanted in (named or self._default_queue, self._default_queue):
            if (queue := await self._broker.find(wanted, known)) is not None:
                return queue
        return known[0] if known else self._default_queue

    def describe(self, claim: Claim[Unsent], _settlement: Settlement | None) -> Mapping[str, Any]:
        return {"job": text_of(claim.id)}
