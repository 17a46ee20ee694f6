"""Reading a queue of RabbitMQ, through every loss of connection, channel and queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from aiormq import Channel as RawChannel
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from homing.brokers.base import Message, Queue
from homing.brokers.rabbitmq_link import TROUBLE, Channel, Link, close_quietly, raw
from homing.brokers.rabbitmq_publisher import Letter, Publisher
from homing.brokers.rabbitmq_queues import Declaration, Declarer, declarations_of, delay_of
from homing.engine.model import Failure
from homing.telemetry import Telemetry
from homing.tracing import TRACEPARENT, TRACESTATE, Trace, read_trace

GROUP = "x-homing-group"
REASON = "x-homing-reason"
#: How often it was handed out before it was delayed: a delayed message is a new one to the broker.
DELIVERIES = "x-homing-deliveries"

_OVER_LIMIT = "delivery_limit"
_RPC_SECONDS = 5.0
#: After a channel was lost while the connection stands, as when a queue is deleted again and again; twice as
#: long each time that no queue could be read in between, since what is refused now is refused in a moment.
_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE = 5.0
#: So long without a message, and so often in a row, is suspicious while messages wait in the queue.
_WATCH_SECONDS = 2.0
_SUSPICIONS = 2
#: So often in a row without a message and with none in hand, a consumer subscribes anew.
_SILENCES = 3
#: Longer than it takes to give up a channel that does not close.
_CLOSING_SECONDS = 3.0


class _Session:
    """One channel, and what was delivered on it. What is not settled on it the broker gives to others."""

    def __init__(self, channel: Channel, under: RawChannel) -> None:
        self.channel = channel
        self.under = under
        self.name = uuid4().hex
        self.ended = asyncio.Event()
        #: By which the broker knows that it is to deliver here; None while it is not.
        self.subscription: str | None = None
        #: Delivered and not settled, in the order of their tags.
        self.open: dict[int, Message] = {}
        #: How many were delivered on it.
        self.heard = 0

    def settle(self, tags: Iterable[int]) -> tuple[int | None, list[int]]:
        """Take them as settled: the tag up to which all are, and the others."""
        settled = {tag for tag in tags if tag in self.open}
        upto = None
        for tag in self.open:
            if tag not in settled:
                break
            upto = tag
        rest = sorted(tag for tag in settled if upto is None or tag > upto)
        for tag in settled:
            del self.open[tag]
        return upto, rest


class RabbitConsumer:
    """Holds the queue open in the background; `receive` takes what has arrived."""

    def __init__(
        self, link: Link, publisher: Publisher, queue: Queue, prefetch: int, telemetry: Telemetry
    ) -> None:
        self._link = link
        self._publisher = publisher
        self._declarer = Declarer(link, telemetry)
        self._queue = queue
        self._prefetch = prefetch
        self._telemetry = telemetry
        self._session: _Session | None = None
        self._arrived: deque[Message] = deque()
        self._news = asyncio.Event()
        #: How often in a row the queue could not be read.
        self._refusals = 0
        self._closing = False
        #: Not set while it is at rest.
        self._awake = asyncio.Event()
        self._awake.set()
        self._running = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_closed(self) -> bool:
        return self._running.done()

    # ── staying connected ────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while not self._closing:
            try:
                await self._listen()
            except TROUBLE as error:
                failure = self._link.failure_of(error)
                self._telemetry.log.warning(
                    "broker.consumer_lost", queue=self._queue.name, error=failure.message
                )
            except Exception as bug:  # noqa: BLE001 - without this loop nothing would be received ever again
                self._telemetry.crashed("broker.consumer_crashed", bug, queue=self._queue.name)
            if not self._closing:
                await asyncio.sleep(max(self._link.pause, self._pause()))
                await self._awake.wait()

    def _pause(self) -> float:
        return min(_PAUSE_SECONDS * 2.0 ** min(self._refusals - 1, 10), _LONGEST_PAUSE)

    async def _listen(self) -> None:
        """Until the channel, the connection or the queue is gone."""
        self._refusals += 1
        channel = await self._opened()
        if isinstance(channel, Failure):
            self._note(channel)
            return
        session = _Session(channel, await raw(channel))
        channel.close_callbacks.add(partial(_end, session))
        session.under.on_consumer_cancel_callbacks.add(partial(_end, session))
        try:
            await session.under.basic_qos(prefetch_count=self._prefetch, timeout=_RPC_SECONDS)
            self._session = session
            await self._subscribe(session)
            self._refusals = 1
            is_lost = await self._watch(session)
            if is_lost and not self._closing:
                self._telemetry.log.warning("broker.consumer_lost", queue=self._queue.name)
        finally:
            self._forget(session)
            self._declarer.forget(self._queue.name)
            await close_quietly(channel)

    async def _subscribe(self, session: _Session) -> None:
        session.subscription = uuid4().hex
        await session.under.basic_consume(
            self._queue.name,
            partial(self._take, session),
            consumer_tag=session.subscription,
            timeout=_RPC_SECONDS,
        )

    def _note(self, failure: Failure) -> None:
        if self._link.pause:
            # An outage is no refusal, and the link has said it.
            self._refusals = 0
        else:
            self._telemetry.log.warning("broker.consumer_lost", queue=self._queue.name, error=failure.message)

    async def _watch(self, session: _Session) -> bool:
        """Until the session has ended or is found dead, which is a loss; or until it is time for a new one.

        A queue that is deleted and made again at the same moment takes its consumers with it, and RabbitMQ
        3.10 tells them nothing. So whoever hears nothing for a while asks whether there was something. Beside
        another consumer that is well the answer says nothing, and what was meant for us waits at a channel
        that nobody serves: so whoever hears nothing and holds nothing begins anew.
        """
        silences = suspicions = 0
        while not session.ended.is_set():
            if not self._awake.is_set() and not session.open:
                # At rest, with nothing in hand: there is no use in a channel.
                return False
            if self._awake.is_set() and session.subscription is None:
                await self._subscribe(session)
            heard = session.heard
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_SECONDS):
                    await session.ended.wait()
            if not self._awake.is_set():
                silences = suspicions = 0
                continue
            is_silent = session.heard == heard
            suspicions = suspicions + 1 if is_silent and await self._is_passed_over(session) else 0
            # Looked at after the question: what came meanwhile may be in somebody's hands.
            silences = silences + 1 if session.heard == heard and not session.open else 0
            if suspicions >= _SUSPICIONS and session.heard == heard:
                return True
            if silences >= _SILENCES:
                return False
        return True

    async def _is_passed_over(self, session: _Session) -> bool:
        """Messages wait, and we have room for them; or nobody reads the queue, not even we."""
        if session.ended.is_set():
            return False
        asked = await session.under.queue_declare(self._queue.name, passive=True, timeout=_RPC_SECONDS)
        has_room = len(session.open) < self._prefetch
        return asked.consumer_count == 0 or (has_room and bool(asked.message_count))

    async def _opened(self) -> Channel | Failure:
        for declaration in declarations_of(self._queue):
            if failure := await self._declarer.declare(declaration):
                return failure
        return await self._link.channel()

    def _forget(self, session: _Session) -> None:
        """What it brought belongs to others now, also what nobody has asked for yet."""
        if self._session is session:
            self._session = None
        self._arrived.clear()
        session.open.clear()

    async def _take(self, session: _Session, delivered: DeliveredMessage) -> None:
        if session is not self._session:
            return
        message = _message(session, delivered)
        session.open[message.receipt[1]] = message
        session.heard += 1
        if not self._awake.is_set():
            # It was on its way when the rest began.
            await self._return(session, [message])
            return
        self._arrived.append(message)
        self._news.set()

    # ── the seam ─────────────────────────────────────────────────────────────────────────────────

    async def receive(self, limit: int, wait: float) -> list[Message]:
        self._awake.set()
        try:
            async with asyncio.timeout(wait):
                while not self._arrived or limit <= 0:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return []
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        session = self._session
        if session is None:
            return
        upto, rest = session.settle(_tags(session, messages))
        # Losing the channel here means that they come again; then the database says that they are done.
        with suppress(*TROUBLE):
            if upto is not None:
                await session.under.basic_ack(upto, multiple=True, wait=False)
            for tag in rest:
                await session.under.basic_ack(tag, wait=False)

    async def give_back(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        session = self._session
        if session is None:
            return
        mine = [session.open[tag] for tag in _tags(session, messages)]
        if delay > 0:
            await self._delay(mine, delay)
        else:
            await self._return(session, mine)

    async def _return(self, session: _Session, messages: Sequence[Message]) -> None:
        tags = sorted(message.receipt[1] for message in messages)
        session.settle(tags)
        with suppress(*TROUBLE):
            for tag in tags:
                # Not a nack: from RabbitMQ 4.3 on that one does not count as a delivery, and so never ends.
                await session.under.basic_reject(tag, requeue=True, wait=False)

    async def _delay(self, messages: Sequence[Message], delay: float) -> None:
        """Moved to a queue in which they wait, and only then acknowledged here."""
        spent = [message for message in messages if self._is_spent(message)]
        for message in spent:
            await self.bury(message, _OVER_LIMIT)
        waiting = [message for message in messages if not self._is_spent(message)]
        letters = [_letter(message, {DELIVERIES: message.deliveries}) for message in waiting]
        await self._move(waiting, letters, [delay_of(self._queue, delay)])

    def _is_spent(self, message: Message) -> bool:
        return self._queue.dead_letters is not None and message.deliveries >= self._queue.delivery_limit

    async def _move(
        self, messages: Sequence[Message], letters: Sequence[Letter], to: Sequence[Declaration]
    ) -> None:
        results = await self._publisher.publish(to, letters)
        moved = [message for message, result in zip(messages, results, strict=True) if result is None]
        await self.acknowledge(moved)
        if len(moved) < len(messages):
            await self.give_back([m for m, result in zip(messages, results, strict=True) if result])

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """Nothing to do: a message is ours as long as the channel lives."""

    async def bury(self, message: Message, reason: str) -> None:
        session = self._session
        if session is None or not _tags(session, [message]):
            return
        if self._queue.dead_letters is None:
            await self.acknowledge([message])
            return
        letter = _letter(message, {REASON: reason})
        await self._move(
            [message], [letter], declarations_of(Queue(self._queue.dead_letters, kind=self._queue.kind))
        )

    async def rest(self) -> None:
        self._awake.clear()
        session = self._session
        if session is None:
            return
        subscription, session.subscription = session.subscription, None
        try:
            if subscription is not None:
                await session.under.basic_cancel(subscription, timeout=_RPC_SECONDS)
        except TROUBLE:
            # It may be delivered to still; without its channel everything goes back.
            session.ended.set()
        unasked = list(self._arrived)
        self._arrived.clear()
        await self.give_back(unasked)

    async def close(self) -> None:
        """Closing the channel gives back whatever was not settled on it."""
        self._closing = True
        # Not by cancelling alone: the client loses a cancellation that comes while it waits for an answer.
        while not self._running.done():
            if self._session is not None:
                self._session.ended.set()
            else:
                self._running.cancel()
            await asyncio.wait({self._running}, timeout=_CLOSING_SECONDS)


def _end(session: _Session, *_: object) -> None:
    session.ended.set()


def _tags(session: _Session, messages: Iterable[Message]) -> list[int]:
    """Those that came on this very channel and are not settled. All others are no longer ours."""
    return [
        message.receipt[1]
        for message in messages
        if message.receipt[0] is session and message.receipt[1] in session.open
    ]


def _message(session: _Session, delivered: DeliveredMessage) -> Message:
    assert isinstance(delivered.delivery, Basic.Deliver), "only consumers call this"
    properties = delivered.header.properties
    headers: dict[str, Any] = dict(properties.headers or {})
    # A classic queue does not count, and says no more than that it is not the first time.
    here = max(_count(headers.get("x-delivery-count")), int(bool(delivered.delivery.redelivered)))
    earlier = _count(headers.get(DELIVERIES)) + here
    tag = delivered.delivery.delivery_tag
    return Message(
        # Others may publish without a name; then it has one of its own on this channel.
        id=properties.message_id or f"{session.name}-{tag}",
        body=delivered.body,
        group=_text(headers.get(GROUP)),
        deliveries=1 + earlier,
        reason=_text(headers.get(REASON)) or _death(headers.get("x-death")),
        receipt=(session, tag),
        trace=read_trace(_text(headers.get(TRACEPARENT)), _text(headers.get(TRACESTATE))),
        content_type=properties.content_type,
    )


def _count(value: object) -> int:
    """Headers are anybody's, and may hold anything."""
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _death(deaths: object) -> str | None:
    """The broker's own reason for the last death, if the broker has buried it."""
    latest = deaths[0] if isinstance(deaths, list) and deaths else None
    reason = _text(latest.get("reason")) if isinstance(latest, dict) else None
    # Expiry is how a delayed message comes back to life.
    return None if reason == "expired" else reason


def _letter(message: Message, headers: dict[str, Any]) -> Letter:
    marks = {**marks_of(message.group, message.trace), **headers}
    return Letter(message.body, marks, message.id, message.content_type)


def marks_of(group: str | None, trace: Trace | None) -> dict[str, Any]:
    """What a message says of itself beside its body."""
    named = {GROUP: group} if group is not None else {}
    return named if trace is None else {**named, **dict(trace.headers)}
