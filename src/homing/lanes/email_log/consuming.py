"""From a message to a mail: read it, claim the row that it names, send, settle; only then acknowledge."""

from __future__ import annotations

import asyncio
import time

from homing.brokers.base import Message
from homing.brokers.pump import BuryIt, Done, GiveBack, Verdict
from homing.engine.coalesce import Batched
from homing.engine.deliver import Deliverer
from homing.engine.model import Claim, Monotonic
from homing.errors import DatabaseError
from homing.lanes.email_log.email import Dropped, Email
from homing.lanes.email_log.lane import SendLane
from homing.lanes.email_log.queues import Hint, Unreadable, read_hint
from homing.telemetry import Telemetry

#: Between two questions to a way out that is broken, or to a database that is away.
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class Consuming:
    """What is done with each message.

    While nothing can be sent, messages wait here and do not turn in circles: whoever gave them back would
    have them again at once, until the broker's delivery limit ends them.
    """

    def __init__(
        self,
        lane: SendLane,
        deliverer: Deliverer,
        telemetry: Telemetry,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._lane = lane
        self._deliverer = deliverer
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._claim: Batched[Hint, Claim[Email] | Dropped] = Batched(lane.store.claim_these)
        self._asking = asyncio.Lock()

    async def __call__(self, message: Message) -> Verdict:
        hint = read_hint(message.body)
        if isinstance(hint, Unreadable):
            self._telemetry.log.warning("email.unreadable", message=message.id, reason=hint.reason)
            return BuryIt(hint.reason)
        await self._way_out()
        asked = self._monotonic()
        claim = await self._claim_patiently(hint)
        if claim is None:
            return GiveBack()
        if isinstance(claim, Dropped):
            self._telemetry.log.info("email.dropped", EmailId=hint.EmailId, Reason=claim.reason)
            return Done()
        return await self._deliver(claim, asked + self._lane.lease_seconds)

    async def _deliver(self, claim: Claim[Email], until: float) -> Verdict:
        if self._deliverer.closing:
            # The stop came while the database answered; the row must be free before the message is.
            await self._lane.store.release([claim])
            return GiveBack()
        self._deliverer.take([claim], until)
        ended = await self._deliverer.settled([claim])
        # Given back or lost: the message comes again, and the row says what there is to do.
        return Done() if ended.get(claim.id) is not None else GiveBack()

    async def _way_out(self) -> None:
        """Wait while no mail can be sent; one of all who wait asks."""
        if self._lane.usable():
            return
        async with self._asking:
            pause = _PAUSE
            while not (self._deliverer.closing or await self._lane.available()):
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _claim_patiently(self, hint: Hint) -> Claim[Email] | Dropped | None:
        """None when a stop came first."""
        pause = _PAUSE
        while not self._deliverer.closing:
            try:
                return await self._claim(hint)
            except DatabaseError as error:
                self._telemetry.log.warning("claim.failed", lane=self._lane.name, error=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return None
