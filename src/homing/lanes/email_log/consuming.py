"""From a message to a mail: read it, claim the row that it names, send, settle; only then acknowledge."""

from __future__ import annotations

import asyncio
import time

from homing.brokers.base import Message
from homing.brokers.pump import BuryIt, Done, GiveBack, Verdict
from homing.engine.coalesce import Batched
from homing.engine.deliver import Deliverer
from homing.engine.model import Claim, Monotonic
from homing.errors import DatabaseError, Refused
from homing.lanes.email_log.email import Dropped, Email, Held
from homing.lanes.email_log.lane import SendLane
from homing.lanes.email_log.queues import Hint, Unreadable, read_hint
from homing.telemetry import Telemetry

#: Between two questions to a way out that is broken, or to a database that is away.
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: So long a claim waits for others while there is much to do: together they are one statement.
_HOLD_SECONDS = 0.01


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
        self._claim: Batched[Hint, Claim[Email] | Dropped | Held] = Batched(lane.store.claim_these)
        self._asking = asyncio.Lock()
        self._in_hand = 0
        self._gathering: asyncio.Future[None] | None = None

    async def __call__(self, message: Message) -> Verdict:
        self._in_hand += 1
        try:
            return await self._handle(message)
        finally:
            self._in_hand -= 1

    @property
    def _holds_off(self) -> bool:
        return self._deliverer.closing or self._deliverer.paused

    async def _handle(self, message: Message) -> Verdict:
        hint = read_hint(message.body, redelivered=message.deliveries > 1)
        if isinstance(hint, Unreadable):
            return self._bury(message, hint.reason)
        await self._way_out()
        await self._company()
        asked = self._monotonic()
        try:
            claim = await self._claim_patiently(hint)
        except Refused as error:
            return self._bury(message, f"the database does not take it: {error}")
        match claim:
            case None:
                return GiveBack()
            case Held(seconds=seconds):
                return GiveBack(seconds)
            case Dropped(reason=reason):
                self._telemetry.log.info("email.dropped", EmailId=hint.EmailId, Reason=reason)
                return Done()
            case Claim():
                return await self._deliver(claim, asked + self._lane.lease_seconds)

    def _bury(self, message: Message, reason: str) -> Verdict:
        self._telemetry.log.warning("email.unreadable", message=message.id, reason=reason)
        return BuryIt(reason)

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
            while not (self._holds_off or await self._lane.available()):
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _company(self) -> None:
        """A lone message waits for nobody; of many, all go on at the same time."""
        if self._in_hand == 1:
            return
        if self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.create_future()
            loop.call_later(_HOLD_SECONDS, self._go_on, self._gathering)
        # Shielded: whoever is called off must not call off the others.
        await asyncio.shield(self._gathering)

    def _go_on(self, gathering: asyncio.Future[None]) -> None:
        self._gathering = None
        gathering.set_result(None)

    async def _claim_patiently(self, hint: Hint) -> Claim[Email] | Dropped | Held | None:
        """None when a stop or a pause came first. What the database refuses for ever is raised."""
        pause = _PAUSE
        while not self._holds_off:
            try:
                return await self._claim(hint)
            except Refused:
                raise
            except DatabaseError as error:
                self._telemetry.log.warning("claim.failed", lane=self._lane.name, error=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return None
