"""The broker of a chaos run, seen from beside: what waits, who reads, and how to take it away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import AMQPError
from msgspec import Struct

from homing.testing.components.rabbitmq import RabbitMqServer

#: Seconds; a broker that is being started may take a connection and not answer.
_PATIENCE = 5.0


class Crowd(Struct, frozen=True):
    """A queue at one moment."""

    #: Those that wait; what somebody has received and not acknowledged is not among them.
    messages: int
    readers: int


class ChaosBroker:
    """A private RabbitMQ and its queues."""

    def __init__(self, server: RabbitMqServer, *queues: str) -> None:
        self.url = server.url
        self.queues = queues
        self._server = server

    async def look(self, queue: str) -> Crowd | None:
        """None when there is no such queue, or the broker is away."""
        try:
            async with asyncio.timeout(_PATIENCE), _channel(self.url) as channel:
                declared = (await channel.declare_queue(queue, passive=True)).declaration_result
                return Crowd(declared.message_count or 0, declared.consumer_count or 0)
        except (AMQPError, OSError, TimeoutError):
            return None

    async def delete(self, queue: str) -> None:
        """With all that is in it, and under the hands of those who read it."""
        await delete_queue(self.url, queue)

    async def stop(self, *, immediate: bool) -> None:
        await asyncio.to_thread(self._server.stop, immediate=immediate)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)


async def delete_queue(url: str, queue: str) -> int:
    """How many messages were in it."""
    async with _channel(url) as channel:
        return (await channel.queue_delete(queue)).message_count or 0


@asynccontextmanager
async def _channel(url: str) -> AsyncIterator[AbstractChannel]:
    connection = await aio_pika.connect(url)
    async with connection:
        yield await connection.channel()
