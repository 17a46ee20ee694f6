"""RabbitMQ that stops, dies, resets, blocks and forgets: failures are values, and all heals by itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import aio_pika
import pytest
from tests.brokers.peers import bodies, receive, texts, until

from homing.brokers.base import Broker, Publication, Queue
from homing.brokers.open import open_broker
from homing.brokers.pump import Done, Pump, Verdict
from homing.brokers.rabbitmq_consumer import RabbitConsumer
from homing.telemetry import Telemetry
from homing.testing.components.rabbitmq import RabbitMqServer
from homing.testing.tcp_proxy import Fault, TcpProxy

pytestmark = pytest.mark.slow

OUTAGES: dict[str, Callable[[RabbitMqServer], None]] = {
    "stopped": lambda server: server.stop(),
    "halted": lambda server: server.stop(immediate=True),
    "killed": lambda server: server.kill(),
}


def a_queue() -> Queue:
    name = f"fault-{uuid4().hex}"
    return Queue(name, dead_letters=f"{name}-dead", delivery_limit=50)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Broker]:
    broker = open_broker(url, Telemetry())
    try:
        yield broker
    finally:
        await broker.close()


class Load:
    """Publishes until it is told to stop, and counts what was confirmed; a pump counts what arrives."""

    def __init__(self, publisher: Broker, consumer: Broker, queue: Queue) -> None:
        self._publisher = publisher
        self._queue = queue
        self._stopped = False
        self._began = time.monotonic()
        self.confirmed: set[bytes] = set()
        self.failed: set[bytes] = set()
        self.arrived: Counter[bytes] = Counter()
        self.pump = Pump(consumer, queue, self._handle, Telemetry(), prefetch=50, wait=0.5)

    async def _handle(self, message: object) -> Verdict:
        self.arrived[getattr(message, "body", b"")] += 1
        return Done()

    async def publish(self) -> None:
        number = 0
        while not self._stopped:
            batch = [f"{number + n}".encode() for n in range(20)]
            number += 20
            results = await self._publisher.publish(self._queue, [Publication(body) for body in batch])
            for body, result in zip(batch, results, strict=True):
                (self.failed if result else self.confirmed).add(body)
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._stopped = True

    async def is_settled(self) -> bool:
        """The queue is as old as it takes the broker to have it written down."""
        return time.monotonic() > self._began + 2

    async def all_arrived(self) -> bool:
        return self.confirmed <= self.arrived.keys()


@asynccontextmanager
async def under_load(publisher: Broker, consumer: Broker, queue: Queue) -> AsyncIterator[Load]:
    load = Load(publisher, consumer, queue)
    publishing, pumping = asyncio.create_task(load.publish()), asyncio.create_task(load.pump.run())
    try:
        yield load
    finally:
        load.stop()
        await publishing
        load.pump.stop()
        await pumping
        await load.pump.drain(1)


async def more_is_confirmed(load: Load, seconds: float = 40.0) -> None:
    before = len(load.confirmed)

    async def grows() -> bool:
        return len(load.confirmed) > before + 100

    await until(grows, seconds)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("outage", OUTAGES)
async def test_an_outage_under_load_loses_nothing_that_was_confirmed(
    private_rabbitmq: RabbitMqServer, outage: str
) -> None:
    queue = a_queue()
    async with (
        opened(private_rabbitmq.url) as publisher,
        opened(private_rabbitmq.url) as consumer,
        under_load(publisher, consumer, queue) as load,
    ):
        await more_is_confirmed(load)
        # RabbitMQ 3.10 never finds the leader of a queue again that was made right before a crash.
        await until(load.is_settled)
        await asyncio.to_thread(OUTAGES[outage], private_rabbitmq)
        assert await publisher.check() is not None

        async def has_failed() -> bool:
            return bool(load.failed)

        await until(has_failed)
        await asyncio.to_thread(private_rabbitmq.start)
        await more_is_confirmed(load)
        load.stop()
        await until(load.all_arrived, 40)
        again = [body for body, count in load.arrived.items() if count > 1]
        # Only what was received and not yet acknowledged comes twice.
        assert len(again) <= 50 + 50


async def test_connections_that_are_reset_are_made_again(rabbitmq_url: str) -> None:
    queue = a_queue()
    async with (
        TcpProxy("127.0.0.1", port_of(rabbitmq_url)) as proxy,
        opened(f"amqp://guest:guest@127.0.0.1:{proxy.port}//") as broker,
        under_load(broker, broker, queue) as load,
    ):
        for _ in range(3):
            await more_is_confirmed(load)
            proxy.reset_all()
        await more_is_confirmed(load)
        load.stop()
        await until(load.all_arrived)


async def test_confirmations_that_never_come_are_failures_and_not_silence(
    rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.brokers.rabbitmq_publisher._CONFIRM_SECONDS", 0.5)
    queue = a_queue()
    async with (
        TcpProxy("127.0.0.1", port_of(rabbitmq_url)) as proxy,
        opened(f"amqp://guest:guest@127.0.0.1:{proxy.port}//") as broker,
    ):
        assert await broker.publish(queue, texts("first")) == [None]
        proxy.to_client = Fault(blackhole=True)
        results = await broker.publish(queue, texts("a", "b", "c"))
        assert [result and result.code for result in results] == ["broker_unconfirmed"] * 3
        proxy.heal()

        async def is_confirmed() -> bool:
            return await broker.publish(queue, texts("later")) == [None]

        await until(is_confirmed)


async def test_a_broker_that_is_away_is_answered_for_at_once(private_rabbitmq: RabbitMqServer) -> None:
    async with opened("amqp://user:hunter2@127.0.0.1:1//") as broker:
        [failure] = await broker.publish(a_queue(), texts("x"))
        assert failure is not None
        assert failure.code == "broker_unreachable"
        assert "hunter2" not in failure.message
        assert await broker.depth(a_queue()) is None
        consumer = await broker.consume(a_queue(), 1)
        assert await consumer.receive(1, 0.2) == []


async def test_a_wrong_password_is_told_without_the_password(rabbitmq_url: str) -> None:
    async with opened(f"amqp://guest:hunter2@127.0.0.1:{port_of(rabbitmq_url)}//") as broker:
        failure = await broker.check()
        assert failure is not None
        assert failure.code == "broker_refused"
        assert "refuses this user" in failure.message
        assert "hunter2" not in failure.message


async def test_a_queue_deleted_under_load_is_made_again(rabbitmq_url: str) -> None:
    queue = a_queue()
    async with (
        opened(rabbitmq_url) as publisher,
        opened(rabbitmq_url) as consumer,
        under_load(publisher, consumer, queue) as load,
    ):
        await more_is_confirmed(load)
        await delete(rabbitmq_url, queue.name)
        await more_is_confirmed(load)
        # What was in the queue is gone with it; what comes after arrives.
        later = set(load.confirmed)
        await more_is_confirmed(load)
        load.stop()

        async def the_later_arrived() -> bool:
            return load.confirmed - later <= load.arrived.keys()

        await until(the_later_arrived)


async def test_a_queue_that_others_made_otherwise_is_used_as_it_is(rabbitmq_url: str) -> None:
    queue = a_queue()
    async with await aio_pika.connect(rabbitmq_url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(queue.name, durable=True, arguments={"x-max-length": 1000})
    async with opened(rabbitmq_url) as broker:
        assert await broker.publish(queue, texts("one", "two")) == [None, None]
        consumer = await broker.consume(queue, 10)
        messages = await receive(consumer, 2)
        assert bodies(messages) == [b"one", b"two"]
        await consumer.bury(messages[0], "unreadable")
        await consumer.acknowledge(messages[1:])
        assert queue.dead_letters
        [dead] = await receive(await broker.consume(Queue(queue.dead_letters), 1), 1)
        assert dead.reason == "unreadable"


async def test_a_channel_error_costs_the_channel_and_not_the_consumer(rabbitmq_url: str) -> None:
    queue = a_queue()
    async with opened(rabbitmq_url) as broker:
        consumer = await broker.consume(queue, 10)
        await broker.publish(queue, texts("one"))
        await receive(consumer, 1)
        # Acknowledging what was never handed out is an error, and ends the channel.
        assert isinstance(consumer, RabbitConsumer)
        assert consumer._session is not None
        await consumer._session.under.basic_ack(4711)
        [again] = await receive(consumer, 1)
        assert (again.body, again.deliveries) == (b"one", 2)


async def test_publishers_that_are_blocked_fail_while_consumers_go_on(
    private_rabbitmq: RabbitMqServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.brokers.rabbitmq_publisher._CONFIRM_SECONDS", 0.5)
    queue = a_queue()
    async with opened(private_rabbitmq.url) as broker:
        await broker.publish(queue, texts(*map(str, range(20))))
        consumer = await broker.consume(queue, 5)
        await asyncio.to_thread(private_rabbitmq.block_publishers, blocked=True)
        try:

            async def is_blocked() -> bool:
                return await broker.publish(queue, texts("blocked")) != [None]

            # The broker takes one more from each connection before it stops reading.
            await until(is_blocked)
            for _ in range(4):
                await consumer.acknowledge(await receive(consumer, 5))
        finally:
            await asyncio.to_thread(private_rabbitmq.block_publishers, blocked=False)

        async def is_confirmed() -> bool:
            return await broker.publish(queue, texts("later")) == [None]

        await until(is_confirmed)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].strip("/"))


async def delete(url: str, queue: str) -> None:
    async with await aio_pika.connect(url) as connection:
        await (await connection.channel()).queue_delete(queue)
