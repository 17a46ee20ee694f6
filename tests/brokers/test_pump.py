"""The pump: many at once and never too many, nothing lost by bugs, outages or a stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from tests.brokers.peers import LastMoments, receive, texts, until

from homing.brokers.base import Message, Queue
from homing.brokers.memory import MemoryBroker, MemoryConsumer
from homing.brokers.pump import BuryIt, Done, GiveBack, Handle, Pump, Verdict
from homing.telemetry import Telemetry


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker(f"memory://{uuid4().hex}")
    yield broker
    await broker.close()


QUEUE = Queue("work", dead_letters="dead")


@asynccontextmanager
async def pumping(
    broker: MemoryBroker, handle: Handle, prefetch: int = 10, queue: Queue = QUEUE
) -> AsyncIterator[Pump]:
    pump = Pump(broker, queue, handle, Telemetry(), prefetch=prefetch, wait=0.2)
    running = asyncio.create_task(pump.run())
    try:
        yield pump
    finally:
        pump.stop()
        await running
        await pump.drain(0)


async def test_each_verdict_is_told_to_the_broker(broker: MemoryBroker) -> None:
    verdicts: dict[bytes, Verdict] = {
        b"done": Done(),
        b"dead": BuryIt("no JSON"),
        b"late": GiveBack(0.2),
    }
    seen: list[tuple[bytes, int]] = []

    async def handle(message: Message) -> Verdict:
        seen.append((message.body, message.deliveries))
        return verdicts[message.body] if message.deliveries == 1 else Done()

    await broker.publish(QUEUE, texts("done", "dead", "late"))
    async with pumping(broker, handle):
        await until(_seen(seen, 4))
    assert seen == [(b"done", 1), (b"dead", 1), (b"late", 1), (b"late", 2)]
    [dead] = await receive(await broker.consume(Queue("dead"), 1), 1)
    assert (dead.body, dead.reason) == (b"dead", "no JSON")
    assert await broker.depth(QUEUE) == 0


async def test_a_drain_that_is_called_off_for_a_shorter_one_leaves_nothing_behind(
    broker: MemoryBroker,
) -> None:
    async def handle(_message: Message) -> Verdict:
        await asyncio.sleep(3600)
        return Done()

    others = asyncio.all_tasks()
    await broker.publish(QUEUE, texts("a"))
    pump = Pump(broker, QUEUE, handle, Telemetry(), wait=0.2)
    running = asyncio.create_task(pump.run())
    await until(lambda: _is(pump.in_flight == 1))
    patient = asyncio.create_task(pump.drain(3600, after=asyncio.sleep(3600)))
    await running
    patient.cancel()
    await asyncio.wait({patient})
    await pump.drain(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == others
    assert await broker.depth(QUEUE) == 1, "given back"


async def _is(condition: bool) -> bool:
    return condition


async def test_as_many_run_at_once_as_are_allowed_and_no_more(broker: MemoryBroker) -> None:
    running = most = done = 0

    async def handle(message: Message) -> Verdict:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        done += 1
        return Done()

    await broker.publish(QUEUE, texts(*map(str, range(60))))

    async def all_done() -> bool:
        return done == 60

    async with pumping(broker, handle, prefetch=7):
        await until(all_done)
    assert most == 7


async def test_a_bug_in_a_handler_costs_its_message_time_and_the_others_nothing(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.brokers.pump._DELAY_AFTER_A_BUG", 0.1)
    seen: list[tuple[bytes, int]] = []

    async def handle(message: Message) -> Verdict:
        seen.append((message.body, message.deliveries))
        if message.body == b"bad" and message.deliveries < 3:
            raise ValueError("to nobody@example.com")
        return Done()

    await broker.publish(QUEUE, texts("bad", "good", "fine"))
    async with pumping(broker, handle):
        await until(_seen(seen, 5))
    assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"fine", 1), (b"good", 1)]


async def test_a_long_handler_keeps_its_message_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue("long", visibility=0.15)
    seen: list[tuple[bytes, int]] = []
    may_end = asyncio.Event()
    clock = LastMoments(monkeypatch)
    broker = MemoryBroker(f"memory://{uuid4().hex}", clock)

    async def handle(message: Message) -> Verdict:
        seen.append((message.body, message.deliveries))
        await may_end.wait()
        return Done()

    await broker.publish(queue, texts("long"))
    async with pumping(broker, handle, queue=queue):
        other = await broker.consume(queue, 1)
        await until(_seen(seen, 1))
        assert await clock.taken_by(other, within=3 * queue.visibility) == []
        may_end.set()
    assert seen == [(b"long", 1)]
    clock.now += 1
    assert await other.receive(1, 0) == []
    await broker.close()


async def test_a_stop_lets_handlers_end_and_gives_back_what_does_not(broker: MemoryBroker) -> None:
    started: list[bytes] = []
    may_end = asyncio.Event()

    async def handle(message: Message) -> Verdict:
        started.append(message.body)
        await (may_end.wait() if message.body == b"quick" else asyncio.Event().wait())
        return Done()

    await broker.publish(QUEUE, texts("quick", "endless"))
    pump = Pump(broker, QUEUE, handle, Telemetry(), prefetch=2, wait=600)
    running = asyncio.create_task(pump.run())
    await until(_seen(started, 2))
    await broker.publish(QUEUE, texts("not begun"))
    pump.stop()
    await asyncio.wait_for(running, 60)
    may_end.set()
    await until(lambda: _is(pump.in_flight == 1))
    await pump.drain(0.05)
    assert pump.in_flight == 0
    left = await receive(await broker.consume(QUEUE, 10), 2)
    told = sorted((message.body, message.deliveries) for message in left)
    assert told == [(b"endless", 2), (b"not begun", 1)]


async def test_a_consumer_that_breaks_is_asked_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.brokers.pump._AFTER_A_BUG", 0.01)
    seen: list[bytes] = []
    failures = 2
    receive_well = MemoryConsumer.receive

    async def receive_badly(self: MemoryConsumer, limit: int, wait: float) -> list[Message]:
        nonlocal failures
        if failures:
            failures -= 1
            raise KeyError("an answer that we did not expect")
        return await receive_well(self, limit, wait)

    async def handle(message: Message) -> Verdict:
        seen.append(message.body)
        return Done()

    monkeypatch.setattr(MemoryConsumer, "receive", receive_badly)
    await broker.publish(QUEUE, texts("in the end"))
    async with pumping(broker, handle):
        await until(_seen(seen, 1))
    assert failures == 0


async def test_acknowledgements_go_out_together(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    acknowledge = MemoryConsumer.acknowledge

    async def slowly(self: MemoryConsumer, messages: Sequence[Message]) -> None:
        batches.append(len(messages))
        await asyncio.sleep(0.01)
        await acknowledge(self, messages)

    async def handle(message: Message) -> Verdict:
        return Done()

    monkeypatch.setattr(MemoryConsumer, "acknowledge", slowly)
    await broker.publish(QUEUE, texts(*map(str, range(200))))

    async def all_told() -> bool:
        return sum(batches) == 200

    async with pumping(broker, handle, prefetch=100):
        await until(all_told)
    assert len(batches) < 20


def _seen(seen: Sequence[object], count: int) -> Callable[[], Awaitable[bool]]:
    async def enough() -> bool:
        return len(seen) >= count

    return enough
