"""What the tests of brokers need to know of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import aio_pika
import pytest

from homing.brokers.base import Broker, Consumer, Message, Publication, Queue
from homing.brokers.memory import MemoryBroker, MemoryConsumer
from homing.brokers.open import open_broker
from homing.brokers.sqs import SqsBroker
from homing.telemetry import Telemetry


@dataclass
class Peer:
    """A broker that answers at a URL, and those who have it open in this test."""

    name: str
    url: str
    brokers: list[Broker] = field(default_factory=list)

    def open(self) -> Broker:
        broker = open_broker(self.url, Telemetry())
        self.brokers.append(broker)
        return broker

    def queue(self, *, fifo: bool = False, **options: Any) -> Queue:
        """A new one, with dead letters beside it."""
        end = ".fifo" if fifo and self.name == "sqs" else ""
        name = f"test-{uuid4().hex}"
        return Queue(name + end, dead_letters=f"{name}-dead{end}", **options)

    async def delete(self, queue: Queue) -> None:
        """As an administrator would."""
        if self.name == "rabbitmq":
            async with await aio_pika.connect(self.url) as connection:
                await (await connection.channel()).queue_delete(queue.name)
            return
        broker = self.open()
        if isinstance(broker, MemoryBroker):
            broker.hall.queues.pop(queue.name, None)
        elif isinstance(broker, SqsBroker):
            client = await broker._connection.client()
            await client.delete_queue(QueueUrl=await broker._queues.url(queue))

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.close()


class LastMoments:
    """The clock of a `MemoryBroker`: when it is told that somebody has a message, most of that time passes.

    So nobody's own pauses matter, and whoever does not tell it in full loses the message to others.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        extend = MemoryConsumer.extend

        async def told(consumer: MemoryConsumer, messages: Sequence[Message], seconds: float) -> None:
            await extend(consumer, messages, seconds)
            self.now += 0.9 * seconds

        monkeypatch.setattr(MemoryConsumer, "extend", told)

    def __call__(self) -> float:
        return self.now

    async def taken_by(self, other: Consumer, within: float) -> list[Message]:
        """What another one got until so much time had passed."""
        taken: list[Message] = []

        async def is_over() -> bool:
            taken.extend(await other.receive(10, 0.0))
            return self.now > within

        await until(is_over)
        return taken


def bodies(messages: Sequence[Message]) -> list[bytes]:
    return [message.body for message in messages]


def texts(*words: str) -> list[Publication]:
    return [Publication(word.encode()) for word in words]


async def receive(consumer: Consumer, count: int, seconds: float = 60.0) -> list[Message]:
    """So many messages, however many calls it takes."""
    found: list[Message] = []
    async with asyncio.timeout(seconds):
        while len(found) < count:
            found += await consumer.receive(count - len(found), 1.0)
    return found


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)
