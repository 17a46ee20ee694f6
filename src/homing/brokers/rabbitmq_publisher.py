"""Publishing to RabbitMQ: many at once, each confirmed by the broker or failed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from aiormq import Channel as RawChannel
from aiormq.exceptions import DeliveryError, PublishError
from msgspec import Struct
from pamqp.commands import Basic

from homing.brokers.rabbitmq_link import TROUBLE, Channel, Link, close_quietly, raw
from homing.brokers.rabbitmq_queues import Declaration, Declarer
from homing.engine.model import Failure
from homing.telemetry import Telemetry

_PERSISTENT = 2
#: On their way at one time; more would only fill buffers.
_IN_FLIGHT = 2000
_CONFIRM_SECONDS = 10.0
_UNROUTABLE = Failure("broker_unroutable", "the queue is gone, and could not be made again")

_Results: TypeAlias = list[Failure | None]


class Letter(Struct, frozen=True, gc=False):
    """What goes over the wire."""

    body: bytes
    headers: Mapping[str, Any] | None = None
    message_id: str | None = None
    content_type: str | None = None


class Publisher:
    def __init__(self, link: Link, telemetry: Telemetry) -> None:
        self._link = link
        self._declarer = Declarer(link, telemetry)
        self._telemetry = telemetry
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()

    async def publish(self, declarations: Sequence[Declaration], letters: Sequence[Letter]) -> _Results:
        """To the last of the queues; the others are made with it."""
        results = await self._attempt(declarations, letters)
        returned = [index for index, result in enumerate(results) if result is _UNROUTABLE]
        if returned:
            self._declarer.forget(declarations[-1].name)
            again = await self._attempt(declarations, [letters[index] for index in returned])
            for index, result in zip(returned, again, strict=True):
                results[index] = result
        return results

    async def _attempt(self, declarations: Sequence[Declaration], letters: Sequence[Letter]) -> _Results:
        for declaration in declarations:
            if failure := await self._declarer.declare(declaration):
                return [failure] * len(letters)
        results: _Results = []
        for start in range(0, len(letters), _IN_FLIGHT):
            results += await self._send(declarations[-1].name, letters[start : start + _IN_FLIGHT])
        return results

    async def _send(self, queue: str, letters: Sequence[Letter]) -> _Results:
        channel = await self._ready()
        if isinstance(channel, Failure):
            return [channel] * len(letters)
        under = await raw(channel)
        tasks = [asyncio.ensure_future(_publish(under, queue, letter)) for letter in letters]
        try:
            _, late = await asyncio.wait(tasks, timeout=_CONFIRM_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
        if late:
            # What it would still confirm could not be told from what comes after.
            await asyncio.wait(late)
            await self._give_up(channel)
        return [self._result(task) for task in tasks]

    async def _ready(self) -> Channel | Failure:
        async with self._lock:
            if self._channel is not None and not self._channel.is_closed:
                return self._channel
            channel = await self._link.channel(confirms=True)
            self._channel = None if isinstance(channel, Failure) else channel
            return channel

    async def _give_up(self, channel: Channel) -> None:
        async with self._lock:
            if self._channel is channel:
                self._channel = None
        await close_quietly(channel)

    def _result(self, task: asyncio.Task[None]) -> Failure | None:
        if task.cancelled():
            return Failure("broker_unconfirmed", f"{self._link.address} did not confirm in time")
        error = task.exception()
        if error is None:
            return None
        if isinstance(error, PublishError):
            return _UNROUTABLE
        if isinstance(error, DeliveryError):
            return Failure("broker_unconfirmed", f"{self._link.address} did not take the message")
        if not isinstance(error, TROUBLE):
            self._telemetry.crashed("broker.publish_crashed", error, broker=self._link.address)
        return self._link.failure_of(error)

    async def close(self) -> None:
        if self._channel is not None:
            await close_quietly(self._channel)


async def _publish(channel: RawChannel, queue: str, letter: Letter) -> None:
    properties = Basic.Properties(
        delivery_mode=_PERSISTENT,
        content_type=letter.content_type,
        headers=dict(letter.headers) if letter.headers else None,
        message_id=letter.message_id,
    )
    await channel.basic_publish(
        letter.body, routing_key=queue, properties=properties, mandatory=True, wait=False
    )
