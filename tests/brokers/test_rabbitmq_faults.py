"""RabbitMQ that stops, dies, resets, blocks and forgets: failures are values, and all heals by itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import uuid4

import aio_pika
import pytest
from prometheus_client import CollectorRegistry
from tests.brokers.peers import bodies, receive, texts, until
from tests.brokers.routing import OK, Mediator, pointer, pools, routing
from tests.brokers.routing import until as until_so
from tests.outbox import LogLines

from homing.brokers.base import Broker, Message, Publication, Queue
from homing.brokers.open import open_broker
from homing.brokers.pointer import encode_pointer
from homing.brokers.pump import Done, Pump, Verdict
from homing.brokers.rabbitmq_consumer import RabbitConsumer
from homing.brokers.router import Mediated
from homing.telemetry import Telemetry, make_logger
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


async def more_is_confirmed(load: Load, seconds: float = 60.0) -> None:
    before = len(load.confirmed)

    async def grows() -> bool:
        return len(load.confirmed) > before + 100

    await until(grows, seconds)


@pytest.mark.timeout(240)
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
        await until(load.all_arrived, 60)
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
    queue = a_queue()
    async with (
        TcpProxy("127.0.0.1", port_of(rabbitmq_url)) as proxy,
        opened(f"amqp://guest:guest@127.0.0.1:{proxy.port}//") as broker,
    ):
        assert await broker.publish(queue, texts("first")) == [None]
        monkeypatch.setattr("homing.brokers.rabbitmq_publisher._CONFIRM_SECONDS", 0.5)
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


@pytest.mark.timeout(240)
async def test_of_two_consumers_both_receive_again_after_the_queue_was_deleted_under_load(
    rabbitmq_url: str,
) -> None:
    """The broker may forget one beside the other, and hand messages to it that never arrive."""
    queue = a_queue()
    async with (
        opened(rabbitmq_url) as publisher,
        opened(rabbitmq_url) as one,
        opened(rabbitmq_url) as two,
        under_load(publisher, one, queue) as first,
        pumping(two, queue) as second,
    ):
        for _ in range(3):
            await both_receive(first.arrived, second)
            await delete(rabbitmq_url, queue.name)
            await more_is_confirmed(first)
            await both_receive(first.arrived, second)
        first.stop()

        async def is_empty() -> bool:
            return await publisher.depth(queue) == 0

        await until(is_empty)


async def both_receive(one: Counter[bytes], two: Counter[bytes]) -> None:
    before = one.total(), two.total()

    async def do_both() -> bool:
        return one.total() > before[0] and two.total() > before[1]

    await until(do_both)


@asynccontextmanager
async def pumping(broker: Broker, queue: Queue) -> AsyncIterator[Counter[bytes]]:
    arrived: Counter[bytes] = Counter()

    async def handle(message: Message) -> Verdict:
        arrived[message.body] += 1
        return Done()

    pump = Pump(broker, queue, handle, Telemetry(), prefetch=50, wait=0.5)
    running = asyncio.create_task(pump.run())
    try:
        yield arrived
    finally:
        pump.stop()
        await running
        await pump.drain(1)


async def test_an_idle_consumer_begins_anew_and_loses_nothing_by_it(
    rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.brokers.rabbitmq_consumer._WATCH_SECONDS", 0.1)
    queue = a_queue()
    async with opened(rabbitmq_url) as broker:
        consumer = await broker.consume(queue, 10)
        assert isinstance(consumer, RabbitConsumer)
        sessions = set()

        async def renewed() -> bool:
            sessions.add(consumer._session)
            return len(sessions - {None}) >= 3

        await until(renewed)
        await broker.publish(queue, texts("one", "two"))
        held = await receive(consumer, 2)
        session = consumer._session
        # While it has something in hand it stays: to begin anew would give that to others.
        with pytest.raises(TimeoutError):
            await until(lambda: _is_another(consumer, session), 1.5)
        await consumer.acknowledge(held)
        await until(lambda: _is_another(consumer, session))
        assert await broker.depth(queue) == 0


async def _is_another(consumer: RabbitConsumer, session: object) -> bool:
    return consumer._session is not session


async def test_what_comes_while_an_idle_consumer_asks_is_not_taken_from_its_holder(
    rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.brokers.rabbitmq_consumer._WATCH_SECONDS", 0.1)
    queue = a_queue()
    async with opened(rabbitmq_url) as broker:
        consumer = await broker.consume(queue, 10)
        assert isinstance(consumer, RabbitConsumer)
        asked, held = 0, []

        async def ask(session: object) -> bool:
            nonlocal asked
            asked += 1
            if asked == 3:
                await broker.publish(queue, texts("late"))
                held.extend(await receive(consumer, 1))
            return False

        monkeypatch.setattr(consumer, "_is_passed_over", ask)

        async def was_asked() -> bool:
            return asked > 6

        await until(was_asked)
        assert [message.deliveries for message in held] == [1]
        await consumer.acknowledge(held)
        assert await consumer.receive(1, 0.5) == [], "it was handed out once"


async def test_messages_without_a_name_are_told_apart(rabbitmq_url: str) -> None:
    queue = a_queue()
    async with opened(rabbitmq_url) as broker:
        await broker.publish(queue, [])
        await publish_nameless(rabbitmq_url, queue.name, 5)
        consumer = await broker.consume(queue, 10)
        messages = await receive(consumer, 5)
        assert len({message.id for message in messages}) == 5
        await consumer.give_back(messages[:1], 0.1)
        (again,) = await receive(consumer, 1)
        assert again.id == messages[0].id, "once it is named it keeps its name"


async def publish_nameless(url: str, queue: str, count: int, body: bytes = b"x") -> None:
    """As a program does that sets nothing but the body."""
    async with await aio_pika.connect(url) as connection:
        exchange = (await connection.channel()).default_exchange
        for _ in range(count):
            await exchange.publish(aio_pika.Message(body), queue)


async def test_a_router_settles_all_messages_without_a_name(rabbitmq_url: str) -> None:
    name = f"nameless-{uuid4().hex}"
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    mediator = Mediator(lambda *_: wait())
    async with (
        opened(rabbitmq_url) as broker,
        routing(mediator, broker=broker, config=pools(queues=(name,), P=5)) as bench,
    ):
        await bench.send(pointer("0"), queue=name)
        await publish_nameless(rabbitmq_url, name, 40, encode_pointer(pointer("7")))
        await until_so(lambda: bench.counted("P", "duplicate") == 39)
        go.set()
        await until_so(lambda: bench.counted("P", "done") == 2)
        (reader,) = bench.router._readers.values()
        assert isinstance(reader._consumer, RabbitConsumer)
        session = reader._consumer._session
        await until_so(lambda: session is not None and not session.open)


async def test_a_queue_that_cannot_be_is_asked_for_seldom_and_crashes_nothing(rabbitmq_url: str) -> None:
    lines = LogLines()
    telemetry = Telemetry(make_logger("json", 0, lines.stream), CollectorRegistry())
    broker = open_broker(rabbitmq_url, telemetry)
    try:
        for name in ("b" * 300, "amq.reserved"):
            [failure] = await broker.publish(Queue(name), texts("x"))
            assert failure is not None
            assert failure.code == "broker_refused"
            await broker.consume(Queue(name), 1)
        await until_so(lambda: len(lines.all("broker.consumer_lost")) >= 8)
        asked = [datetime.fromisoformat(line["time"]) for line in lines.all("broker.consumer_lost")]
        assert (asked[-1] - asked[0]).total_seconds() > 0.5, "each pause is twice as long as the last"
        assert not lines.all("broker.consumer_crashed")
    finally:
        await broker.close()


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
    queue = a_queue()
    async with opened(private_rabbitmq.url) as broker:
        assert not any(await broker.publish(queue, texts(*map(str, range(20)))))
        monkeypatch.setattr("homing.brokers.rabbitmq_publisher._CONFIRM_SECONDS", 0.5)
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
