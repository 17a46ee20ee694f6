"""What every broker does, by the one seam: in this process, on RabbitMQ and on SQS."""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import replace
from tests.brokers.peers import Peer, bodies, receive, texts, until

from homing.brokers.base import Consumer, Message, Publication, Queue


async def test_what_is_published_is_received_until_it_is_acknowledged(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    assert await broker.publish(queue, texts("one", "two", "three")) == [None, None, None]
    consumer = await broker.consume(queue, 10)
    messages = await receive(consumer, 3)
    assert sorted(bodies(messages)) == [b"one", b"three", b"two"]
    assert [message.deliveries for message in messages] == [1, 1, 1]
    assert len({message.id for message in messages}) == 3
    await consumer.acknowledge(messages)
    await consumer.close()
    again = await broker.consume(queue, 10)
    assert await again.receive(10, 1.0) == []
    assert await broker.depth(queue) == 0


async def test_an_empty_queue_keeps_whoever_asks_waiting_and_then_says_so(peer: Peer) -> None:
    consumer = await peer.open().consume(peer.queue(), 10)
    began = time.monotonic()
    assert await consumer.receive(10, 0.3) == []
    assert time.monotonic() - began >= 0.25


async def test_what_was_not_acknowledged_comes_to_another_when_its_consumer_closes(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, texts("kept", "done"))
    first = await broker.consume(queue, 10)
    messages = {message.body: message for message in await receive(first, 2)}
    await first.acknowledge([messages[b"done"]])
    await first.close()
    [again] = await receive(await broker.consume(queue, 10), 1)
    assert (again.body, again.deliveries) == (b"kept", 2)


async def test_a_broker_that_closes_gives_back_what_its_consumers_had(remote_peer: Peer) -> None:
    first, second, queue = remote_peer.open(), remote_peer.open(), remote_peer.queue()
    await first.publish(queue, texts("mine"))
    await receive(await first.consume(queue, 10), 1)
    await first.close()
    assert bodies(await receive(await second.consume(queue, 10), 1)) == [b"mine"]


@pytest.mark.slow
async def test_one_that_is_hidden_shows_again_when_its_time_is_over(ordered_peer: Peer) -> None:
    broker, queue = ordered_peer.open(), ordered_peer.queue(visibility=1.0)
    await broker.publish(queue, texts("late"))
    # Who gets it then has time enough for all that follows.
    patient = replace(queue, visibility=60.0)
    first, second = await broker.consume(queue, 10), await broker.consume(patient, 10)
    [stale] = await receive(first, 1)
    [fresh] = await receive(second, 1)
    assert (fresh.body, fresh.deliveries) == (b"late", stale.deliveries + 1)
    # Whoever had it first is too late to say anything of it.
    await first.acknowledge([stale])
    await first.give_back([stale])
    await first.extend([stale], 60)
    await first.bury(stale, "too late")
    assert await first.receive(10, 0.1) == []
    await second.give_back([fresh])
    [third] = await receive(first, 1)
    assert (third.body, third.deliveries) == (b"late", fresh.deliveries + 1)


@pytest.mark.slow
async def test_one_that_is_extended_stays_hidden(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue(visibility=2.0)
    await broker.publish(queue, texts("long"))
    first = await broker.consume(queue, 10)
    messages = await receive(first, 1)
    await first.extend(messages, 30)
    second = await broker.consume(queue, 10)
    assert await second.receive(10, 2.3) == []
    await first.acknowledge(messages)
    assert await second.receive(10, 0.2) == []


async def test_what_is_given_back_comes_again_at_once(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, texts("again"))
    consumer = await broker.consume(queue, 10)
    await consumer.give_back(await receive(consumer, 1))
    [message] = await receive(consumer, 1)
    assert (message.body, message.deliveries) == (b"again", 2)


@pytest.mark.slow
async def test_what_is_given_back_with_a_delay_comes_not_before_it(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, texts("later", "now"))
    consumer = await broker.consume(queue, 10)
    messages = {message.body: message for message in await receive(consumer, 2)}
    began = time.monotonic()
    await consumer.give_back([messages[b"later"]], 1.2)
    [message] = await receive(consumer, 1)
    assert time.monotonic() - began >= 1.1
    assert (message.body, message.deliveries) == (b"later", 2)
    assert message.reason is None
    await consumer.acknowledge([message, messages[b"now"]])
    assert await consumer.receive(10, 0.2) == []


async def test_what_is_buried_is_with_the_dead_letters_and_says_why(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, [Publication(b"\xff no JSON", group="g")])
    consumer = await broker.consume(queue, 10)
    await consumer.bury((await receive(consumer, 1))[0], "malformed: ünreadable\n")
    assert queue.dead_letters
    [dead] = await receive(await broker.consume(Queue(queue.dead_letters), 10), 1)
    assert (dead.body, dead.group) == (b"\xff no JSON", "g")
    assert dead.reason == "malformed: ünreadable\n"
    await consumer.close()
    assert await (await broker.consume(queue, 10)).receive(10, 0.3) == []


async def test_what_is_buried_without_dead_letters_is_gone(peer: Peer) -> None:
    broker, queue = peer.open(), Queue(peer.queue().name)
    await broker.publish(queue, texts("gone"))
    consumer = await broker.consume(queue, 10)
    await consumer.bury((await receive(consumer, 1))[0], "nobody wants it")
    await consumer.close()
    assert await (await broker.consume(queue, 10)).receive(10, 0.3) == []


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.2], ids=["at once", "delayed"])
async def test_a_message_is_handed_out_so_often_and_then_is_a_dead_letter(peer: Peer, delay: float) -> None:
    broker, queue = peer.open(), peer.queue(delivery_limit=3)
    await broker.publish(queue, texts("poison"))
    consumer = await broker.consume(queue, 10)
    counts = []
    for _ in range(3):
        [message] = await receive(consumer, 1)
        counts.append(message.deliveries)
        await consumer.give_back([message], delay)
    assert counts == [1, 2, 3]
    # SQS moves it when it is asked for the next time, not before.
    assert await consumer.receive(10, 1.3) == []
    assert queue.dead_letters
    [dead] = await receive(await broker.consume(Queue(queue.dead_letters), 10), 1)
    assert (dead.body, dead.reason) == (b"poison", "delivery_limit")


async def test_without_dead_letters_nothing_is_thrown_away(peer: Peer) -> None:
    broker, queue = peer.open(), Queue(peer.queue().name, delivery_limit=2)
    await broker.publish(queue, texts("kept"))
    consumer = await broker.consume(queue, 10)
    for expected in range(1, 6):
        [message] = await receive(consumer, 1)
        assert message.deliveries == expected
        await consumer.give_back([message])


async def test_groups_stay_in_order_and_do_not_wait_for_each_other(ordered_peer: Peer) -> None:
    broker, queue = ordered_peer.open(), ordered_peer.queue(fifo=True)
    sent = [Publication(f"{group}{number}".encode(), group) for number in range(4) for group in "abc"]
    await broker.publish(queue, sent)
    consumers = [await broker.consume(queue, 1) for _ in range(4)]
    first = [message for c in consumers[:3] for message in await receive(c, 1)]
    # One of each group is out, and nobody gets the next of it.
    assert sorted(bodies(first)) == [b"a0", b"b0", b"c0"]
    assert await consumers[3].receive(1, 1.0) == []
    # Whoever reads no more has to say so: what is fetched ahead for it is hidden from the others.
    await consumers[3].close()
    given = await _all_in_order(consumers[:3], first, count=12)
    for group in "abc":
        assert [body for body in given if body.startswith(group.encode())] == [
            f"{group}{number}".encode() for number in range(4)
        ]


async def _all_in_order(consumers: list[Consumer], first: list[Message], count: int) -> list[bytes]:
    given = bodies(first)
    holding = dict(zip(consumers, first, strict=True))
    for consumer, message in holding.items():
        await consumer.acknowledge([message])
    async with asyncio.timeout(60):
        while len(given) < count:
            for consumer in consumers:
                messages = await consumer.receive(1, 0.2)
                given += bodies(messages)
                await consumer.acknowledge(messages)
    return given


async def test_one_of_a_group_that_waits_holds_up_those_behind_it(ordered_peer: Peer) -> None:
    broker, queue = ordered_peer.open(), ordered_peer.queue(fifo=True)
    await broker.publish(queue, [Publication(body, "g") for body in (b"1", b"2")])
    consumer = await broker.consume(queue, 1)
    [message] = await receive(consumer, 1)
    assert (message.body, message.group) == (b"1", "g")
    await consumer.give_back([message], 1.0)
    given = []
    for _ in range(2):
        [message] = await receive(consumer, 1)
        given.append((message.body, message.deliveries))
        await consumer.acknowledge([message])
    assert given == [(b"1", 2), (b"2", 1)]


async def test_the_same_one_twice_is_one(ordered_peer: Peer) -> None:
    broker, queue = ordered_peer.open(), ordered_peer.queue(fifo=True)
    twice = [Publication(b"once", "g", dedup="d"), Publication(b"once", "g", dedup="d")]
    assert await broker.publish(queue, twice) == [None, None]
    assert await broker.publish(queue, twice[:1]) == [None]
    assert await broker.publish(queue, [Publication(b"other", "g", dedup="e")]) == [None]
    consumer = await broker.consume(queue, 10)
    assert bodies(await receive(consumer, 2)) == [b"once", b"other"]
    assert await consumer.receive(10, 0.2) == []


async def test_a_group_is_carried_also_where_it_means_nothing(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    odd = "a group of ünusual name, " + "long " * 40
    await broker.publish(queue, [Publication(b"x", group=odd)])
    [message] = await receive(await broker.consume(queue, 10), 1)
    assert message.group == odd


@pytest.mark.parametrize(
    "body",
    [b"", b"\x00\x01\xff\xfe", "Grüße 🕊 \u2028".encode(), b"base64:AAAA", b'{"EmailId": 1}', b"x" * 200_000],
    ids=["empty", "binary", "unicode", "looks encoded", "json", "large"],
)
async def test_bodies_arrive_as_they_were(peer: Peer, body: bytes) -> None:
    broker, queue = peer.open(), peer.queue()
    assert await broker.publish(queue, [Publication(body)]) == [None]
    assert bodies(await receive(await broker.consume(queue, 10), 1)) == [body]


@pytest.mark.slow
async def test_five_thousand_at_once_arrive_once_each_and_go_to_one_of_many(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    sent = [str(number) for number in range(5000)]
    assert not any(await broker.publish(queue, texts(*sent)))
    found: list[bytes] = []
    consumers = [await peer.open().consume(queue, 200) for _ in range(3)]

    async def drink(consumer: Consumer) -> int:
        mine = 0
        while len(found) < len(sent):
            messages = await consumer.receive(200, 0.5)
            found.extend(bodies(messages))
            mine += len(messages)
            await consumer.acknowledge(messages)
        return mine

    async with asyncio.timeout(150):
        shares = await asyncio.gather(*map(drink, consumers))
    assert sorted(found) == sorted(word.encode() for word in sent)
    assert all(shares), "each of them had some"


async def test_no_more_are_handed_out_than_may_be_held(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, texts(*map(str, range(30))))
    consumer = await broker.consume(queue, 7)
    held = await receive(consumer, 7)
    assert await consumer.receive(30, 0.3) == []
    await consumer.acknowledge(held[:4])
    held += await receive(consumer, 4)
    assert await consumer.receive(30, 0.3) == []
    await consumer.give_back(held[4:6])
    assert len(await receive(consumer, 2)) == 2
    assert len(set(bodies(held))) == 11


async def test_a_receipt_is_good_once(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, texts("one", "two"))
    consumer = await broker.consume(queue, 1)
    first = await receive(consumer, 1)
    await consumer.acknowledge(first)
    second = await receive(consumer, 1)
    for _ in range(3):
        await consumer.acknowledge(first)
        await consumer.give_back(first)
        await consumer.give_back(first, 1.0)
        await consumer.bury(first[0], "again")
    assert bodies(first) != bodies(second)
    await consumer.give_back(second)
    assert bodies(await receive(consumer, 1)) == bodies(second)
    assert queue.dead_letters
    assert await broker.depth(Queue(queue.dead_letters)) == 0


async def test_a_receipt_of_a_consumer_that_is_closed_has_no_effect(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, texts("one"))
    first = await broker.consume(queue, 1)
    stale = await receive(first, 1)
    await first.close()
    second = await broker.consume(queue, 1)
    fresh = await receive(second, 1)
    await first.acknowledge(stale)
    await second.give_back(fresh)
    assert bodies(await receive(second, 1)) == [b"one"]


async def test_the_depth_is_told(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    assert await broker.depth(queue) == 0
    await broker.publish(queue, texts(*map(str, range(25))))

    async def is_told() -> bool:
        return await broker.depth(queue) == 25

    await until(is_told)


async def test_what_is_in_a_queue_is_told_as_far_as_the_broker_knows(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, texts("one", "two", "three"))
    consumer = await peer.open().consume(queue, 1)
    await receive(consumer, 1)

    async def is_told() -> bool:
        depth = await broker.measure(queue)
        assert depth is not None
        return depth.waiting == 2 and depth.held in {1, None} and depth.consumers in {1, None}

    await until(is_told)


async def test_a_queue_that_was_deleted_is_made_again_by_who_publishes(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, texts("lost"))
    await peer.delete(queue)
    assert await broker.publish(queue, texts("one", "two")) == [None, None]
    found = await receive(await peer.open().consume(queue, 10), 2)
    assert sorted(bodies(found)) == [b"one", b"two"]


@pytest.mark.slow
async def test_a_queue_that_was_deleted_is_made_again_by_who_reads(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    consumer = await broker.consume(queue, 10)
    await broker.publish(queue, texts("before"))
    stale = await receive(consumer, 1)
    await peer.delete(queue)
    # Nobody publishes: the reader alone has to notice, and then others find the queue.
    assert await consumer.receive(10, 1.5) == []
    await consumer.acknowledge(stale)
    assert await peer.open().publish(queue, texts("after")) == [None]
    assert bodies(await receive(consumer, 1)) == [b"after"]


async def test_it_says_that_it_is_well(peer: Peer) -> None:
    broker = peer.open()
    assert await broker.check() is None
    assert broker.name == peer.name


async def test_closing_twice_does_no_harm(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    consumer = await broker.consume(queue, 1)
    await consumer.receive(1, 0.1)
    await consumer.close()
    await consumer.close()
    await broker.close()
    await broker.close()
