"""`amqp://` and `amqps://`: RabbitMQ, by aio-pika."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from aiormq.exceptions import ChannelNotFoundEntity

from homing.brokers.base import Depth, Publication, Queue
from homing.brokers.rabbitmq_consumer import RabbitConsumer, marks_of
from homing.brokers.rabbitmq_link import TROUBLE, Link, close_quietly, raw
from homing.brokers.rabbitmq_publisher import Letter, Publisher
from homing.brokers.rabbitmq_queues import declarations_of
from homing.engine.model import Failure
from homing.telemetry import Telemetry

_RPC_SECONDS = 5.0


def from_url(url: str, telemetry: Telemetry) -> RabbitBroker:
    return RabbitBroker(url, telemetry)


class RabbitBroker:
    """Two connections: one that publishes, one that consumes."""

    def __init__(self, url: str, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._publishing = Link(url, "publish", telemetry)
        self._consuming = Link(url, "consume", telemetry)
        self._publisher = Publisher(self._publishing, telemetry)
        self._consumers: list[RabbitConsumer] = []

    @property
    def name(self) -> str:
        return "rabbitmq"

    async def publish(self, queue: Queue, publications: Sequence[Publication]) -> Sequence[Failure | None]:
        return await self._publisher.publish(declarations_of(queue), [_letter(p) for p in publications])

    async def consume(self, queue: Queue, prefetch: int) -> RabbitConsumer:
        consumer = RabbitConsumer(self._consuming, self._publisher, queue, prefetch, self._telemetry)
        self._consumers = [*(one for one in self._consumers if not one.is_closed), consumer]
        return consumer

    async def find(self, named: str, among: Sequence[str]) -> str | None:
        return named if named in among else None

    async def depth(self, queue: Queue) -> int | None:
        found = await self.measure(queue)
        return None if found is None else found.waiting

    async def measure(self, queue: Queue) -> Depth | None:
        channel = await self._publishing.channel()
        if isinstance(channel, Failure):
            return None
        try:
            under = await raw(channel)
            declared = await under.queue_declare(queue.name, passive=True, timeout=_RPC_SECONDS)
        except ChannelNotFoundEntity:
            return Depth(0, consumers=0)
        except TROUBLE:
            return None
        finally:
            await close_quietly(channel)
        return Depth(declared.message_count or 0, consumers=declared.consumer_count)

    async def check(self) -> Failure | None:
        channel = await self._publishing.channel()
        if isinstance(channel, Failure):
            return channel
        await close_quietly(channel)
        return None

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        await self._publisher.close()
        await self._publishing.close()
        await self._consuming.close()


def _letter(publication: Publication) -> Letter:
    """With a name, by which it is known when the broker hands it out again."""
    return Letter(publication.body, marks_of(publication.group, publication.trace), uuid4().hex)
