"""The same router on every broker: what it promises holds on real ones."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from tests.brokers.peers import Peer
from tests.brokers.routing import OK, Mediator, pointer, pools, routing, until

from homing.brokers.base import Queue
from homing.brokers.pointer import MessagePointer
from homing.brokers.router import Mediated


def new_queue() -> str:
    return f"router-{uuid4().hex}.fifo"


async def settled(peer: Peer, queue: str) -> bool:
    """Nothing waits in the queue; what was deleted does not come again."""
    return await peer.open().depth(Queue(queue, delivery_limit=1000)) == 0


@pytest.mark.clause("JOB-12")
async def test_a_200_deletes_and_a_400_comes_again_after_its_delay(peer: Peer) -> None:
    queue = new_queue()
    times: dict[str, list[float]] = {}

    def script(one: MessagePointer, call: int) -> Mediated:
        times.setdefault(one.id, []).append(asyncio.get_running_loop().time())
        return Mediated(400, ack=False, delay_seconds=1.0) if one.id == "again" and call == 1 else OK

    async with routing(Mediator(script), broker=peer.open(), config=pools(queues=(queue,), P=5)) as bench:
        await bench.send(pointer("again"), *(pointer(f"{n}") for n in range(25)), queue=queue)
        await until(lambda: bench.counted("P", "done") == 26)
        await until(lambda: settled(peer, queue))
    assert {id: len(at) for id, at in times.items()} == {"again": 2, **{f"{n}": 1 for n in range(25)}}
    # Without the delay it would be hidden for half a minute.
    assert 0.9 <= times["again"][1] - times["again"][0] < 25


@pytest.mark.clause("JOB-12", "JOB-13")
async def test_groups_go_in_order_and_side_by_side(peer: Peer) -> None:
    queue = new_queue()

    crowded = asyncio.Event()

    async def work() -> Mediated:
        # However slowly they come: so many are under way at once, or nothing goes on.
        if len(mediator.running) == 4:
            crowded.set()
        await crowded.wait()
        await asyncio.sleep(0.02)
        return OK

    mediator = Mediator(lambda *_: work())
    async with routing(mediator, broker=peer.open(), config=pools(queues=(queue,), P=4)) as bench:
        await bench.send(
            *(pointer(f"{group}-{n:02}", group) for n in range(6) for group in "abcdefgh"), queue=queue
        )
        await until(lambda: bench.counted("P", "done") == 48)
        await until(lambda: settled(peer, queue))
    for group in "abcdefgh":
        of_group = [id for id in mediator.begun if id.startswith(group)]
        assert of_group == [f"{group}-{n:02}" for n in range(6)]
    assert mediator.crowded == set()
    assert mediator.peak == 4


@pytest.mark.clause("JOB-12")
async def test_a_group_keeps_its_order_behind_a_400(ordered_peer: Peer) -> None:
    queue = new_queue()
    late = Mediated(400, ack=False, delay_seconds=1.0)
    mediator = Mediator(lambda one, call: late if one.id == "g-1" and call == 1 else OK)
    config = pools(queues=(queue,), P=4)
    async with routing(mediator, broker=ordered_peer.open(), config=config) as bench:
        await bench.send(*(pointer(f"g-{n}", "g") for n in range(15)), queue=queue)
        await until(lambda: bench.counted("P", "done") == 15)
    assert mediator.begun == ["g-0", "g-1", "g-1", *(f"g-{n}" for n in range(2, 15))]


@pytest.mark.clause("JOB-12")
async def test_a_call_that_takes_longer_than_the_queue_hides_is_made_once(ordered_peer: Peer) -> None:
    queue = new_queue()
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    config = pools(queues=(queue,), P=4)
    broker, other = ordered_peer.open(), ordered_peer.open()
    async with routing(Mediator(lambda *_: wait()), broker=broker, config=config, visibility=3) as bench:
        await bench.send(pointer("a"), queue=queue)
        await until(lambda: bench.mediator.running)
        consumer = await other.consume(Queue(queue, delivery_limit=1000, visibility=3), 10)
        assert await consumer.receive(10, 4.0) == [], "longer than it is hidden"
        go.set()
        await until(lambda: bench.counted("P", "done") == 1)
        await consumer.close()
    assert bench.mediator.calls == {"a": 1}


async def test_two_routers_on_one_queue_share_the_messages_and_keep_groups_in_order(
    ordered_peer: Peer,
) -> None:
    queue = new_queue()

    async def work() -> Mediated:
        await asyncio.sleep(0.01)
        return OK

    mediator = Mediator(lambda *_: work())
    config = pools(queues=(queue,), P=3)
    async with (
        routing(mediator, broker=ordered_peer.open(), config=config) as one,
        routing(mediator, broker=ordered_peer.open(), config=config) as two,
    ):
        await one.send(
            *(pointer(f"{group}-{n:02}", group) for n in range(10) for group in "abcdef"), queue=queue
        )
        await until(lambda: one.counted("P", "done") + two.counted("P", "done") == 60)
    for group in "abcdef":
        assert [id for id in mediator.begun if id.startswith(group)] == [f"{group}-{n:02}" for n in range(10)]
    assert mediator.crowded == set()


async def test_a_queue_that_was_deleted_is_made_again_and_read(peer: Peer) -> None:
    queue = new_queue()
    async with routing(broker=peer.open(), config=pools(queues=(queue,), P=4)) as bench:
        await bench.send(pointer("a"), queue=queue)
        await until(lambda: bench.counted("P", "done") == 1)
        await peer.delete(Queue(queue, delivery_limit=1000))

        async def arrives() -> bool:
            # Who publishes may find the queue gone as well; a sweep does so again.
            await bench.send(pointer(uuid4().hex), queue=queue)
            await asyncio.sleep(0.2)
            return bench.counted("P", "done") > 1

        await until(arrives)
