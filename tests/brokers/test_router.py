"""The router by itself: messages in, a mediator's answers, and what becomes of the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from uuid import uuid4

import pytest
from msgspec import structs
from tests.brokers.peers import LastMoments
from tests.brokers.routing import (
    OK,
    Mediator,
    Routing,
    pass_time,
    pointer,
    pools,
    routing,
    until,
)

from homing.brokers import router as router_module
from homing.brokers.base import Broker, Message, Publication, Queue
from homing.brokers.memory import MemoryBroker, MemoryConsumer
from homing.brokers.pointer import MessagePointer, encode_pointer
from homing.brokers.router import Mediated, queue_of
from homing.brokers.router_config import PoolConfig, QueueConfig, RouterConfig
from homing.brokers.router_reader import Reader
from homing.errors import Unreachable

LATER = Mediated(400, ack=False, delay_seconds=0.2)


async def nothing_left(bench: Routing) -> bool:
    consumer = await bench.broker.consume(Queue("jobs.fifo"), 10)
    try:
        return not await consumer.receive(10, 0.0) and not await bench.depth()
    finally:
        await consumer.close()


# ── what an answer means ─────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-12")
async def test_a_200_deletes_the_message() -> None:
    now = 0.0
    broker = MemoryBroker(f"memory://{uuid4().hex}", lambda: now)
    async with routing(broker=broker) as bench:
        await bench.send(pointer("a"))
        await until(lambda: bench.counted("P", "done") == 1)
        (reader,) = await _readers(bench)
        await until(lambda: reader.held == 0)
        now += 2 * bench.visibility
        assert await nothing_left(bench)
    assert bench.mediator.calls == {"a": 1}
    assert await bench.depth() == 0
    await broker.close()


@pytest.mark.clause("JOB-12")
async def test_a_400_leaves_the_message_for_as_long_as_it_says() -> None:
    times: list[float] = []

    def script(_: MessagePointer, call: int) -> Mediated:
        times.append(asyncio.get_running_loop().time())
        return OK if call == 3 else Mediated(400, ack=False, delay_seconds=0.3)

    async with routing(Mediator(script)) as bench:
        await bench.send(pointer("a"))
        await until(lambda: bench.counted("P", "done") == 1)
    assert len(times) == 3
    # Without the delay it would be hidden for half a minute.
    assert all(0.29 <= later - earlier < 25 for earlier, later in pairwise(times))
    assert bench.counted("P", "later") == 2


@pytest.mark.clause("JOB-12")
@pytest.mark.parametrize("answer", [Mediated(500), Mediated(401), Mediated(302), Mediated(None)])
async def test_any_other_answer_leaves_the_message_with_a_warning(
    answer: Mediated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "_AFTER_FAILURE", 0.1)
    mediator = Mediator(lambda _, call: answer if call == 1 else OK)
    async with routing(mediator) as bench:
        await bench.send(pointer("a"))
        await until(lambda: bench.counted("P", "done") == 1)
    assert mediator.calls == {"a": 2}
    (warning,) = bench.router.warnings
    assert (warning.kind, warning.queue) == ("mediation_failed", "jobs.fifo")
    assert [line["kind"] for line in bench.log.all("router.warned")] == ["mediation_failed"]


@pytest.mark.clause("JOB-12")
async def test_a_token_that_will_never_be_right_costs_its_message_and_not_the_group() -> None:
    refused = Mediated(401, message="the token is not that of this job", is_refused=True)
    mediator = Mediator(lambda one, _: refused if one.id == "bad" else OK)
    async with routing(mediator) as bench:
        await bench.send(pointer("bad", "g"), pointer("good", "g"))
        await until(lambda: bench.counted("P", "done") == 1)
        await until(lambda: nothing_left(bench))
    assert mediator.calls == {"bad": 1, "good": 1}
    assert bench.counted("P", "refused") == 1
    (warning,) = bench.router.warnings
    assert (warning.kind, warning.detail) == (
        "refused_token",
        "bad: HTTP 401 the token is not that of this job",
    )


async def test_a_200_that_does_not_acknowledge_leaves_the_message() -> None:
    mediator = Mediator(lambda _, call: Mediated(200, ack=False, delay_seconds=0.1) if call == 1 else OK)
    async with routing(mediator) as bench:
        await bench.send(pointer("a"))
        await until(lambda: bench.counted("P", "done") == 1)
    assert mediator.calls == {"a": 2}
    assert not bench.router.warnings


async def test_a_bug_in_the_mediator_costs_its_message_a_delay_and_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router_module, "_AFTER_FAILURE", 0.1)

    def script(one: MessagePointer, call: int) -> Mediated:
        if one.id == "bad" and call == 1:
            raise ValueError("the message of an exception may quote a body")
        return OK

    async with routing(Mediator(script)) as bench:
        await bench.send(pointer("bad"), pointer("good"))
        await until(lambda: bench.counted("P", "done") == 2)
    (crash,) = bench.log.all("router.mediation_crashed")
    assert "quote" not in str(crash)


# ── what comes in ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-12")
async def test_what_is_no_pointer_is_deleted_and_recorded() -> None:
    bad = [b"", b"{", b'{"id": 5}', b"[1]", b'{"id": "x", "poolCode": "P"}', b"\xff\xfe", b"null"]
    async with routing() as bench:
        await bench.send(*bad, pointer("a"))
        await until(lambda: bench.counted("P", "done") == 1)
        await until(lambda: bench.counted("", "malformed") == len(bad))
        await until(lambda: nothing_left(bench))
    assert [warning.kind for warning in bench.router.warnings] == ["malformed"] * len(bad)
    assert bench.mediator.calls == {"a": 1}


async def test_an_unknown_pool_is_served_by_the_default_pool_with_one_warning() -> None:
    async with routing() as bench:
        await bench.send(pointer("a", pool="ELSE"), pointer("b", pool="ELSE"), pointer("c", pool="OTHER"))
        await until(lambda: bench.counted("DEFAULT-POOL", "done") == 3)
    assert sorted(w.detail.split(";")[0] for w in bench.router.warnings) == [
        "there is no pool ELSE",
        "there is no pool OTHER",
    ]
    assert {s.code: s.concurrency for s in bench.router.status()} == {"P": 5, "DEFAULT-POOL": 20}


async def test_two_messages_for_one_task_are_not_processed_side_by_side() -> None:
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    async with routing(Mediator(lambda *_: wait())) as bench:
        await bench.send(pointer("a", "g"), pointer("a", "h"), pointer("b"))
        await until(lambda: bench.counted("P", "duplicate") == 1)
        go.set()
        await until(lambda: bench.counted("P", "done") == 2)
        await until(lambda: nothing_left(bench))
    assert bench.mediator.calls == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    "other",
    [
        {"mediation_target": "https://b.example/p"},
        {"auth_token": "forged"},
        {"auth_token": None},
    ],
)
@pytest.mark.parametrize("pool", ["P", "Q"])
async def test_two_tasks_with_one_id_are_both_processed(other: dict[str, str | None], pool: str) -> None:
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    first = pointer("1")
    second = structs.replace(first, pool_code=pool, **other)
    async with routing(Mediator(lambda *_: wait()), config=pools(P=5, Q=5)) as bench:
        # To the broker they are of different groups, so that both are in hand at once.
        await bench.send(first)
        await bench.broker.publish(
            queue_of("jobs.fifo", 30.0), [Publication(encode_pointer(second), "other", "d")]
        )
        await until(lambda: bench.mediator.calls["1"] == 2)
        go.set()
        await until(lambda: bench.counted("P", "done") + bench.counted("Q", "done") == 2)
        await until(lambda: nothing_left(bench))
    assert bench.counted("P", "duplicate") + bench.counted("Q", "duplicate") == 0


class Anonymous(MemoryBroker):
    """Has one name for all messages, as a broker that leaves names to those who publish may have."""

    async def consume(self, queue: Queue, prefetch: int) -> MemoryConsumer:
        return _Nameless(self.hall, queue, prefetch)


class _Nameless(MemoryConsumer):
    async def receive(self, limit: int, wait: float) -> list[Message]:
        return [structs.replace(one, id="") for one in await super().receive(limit, wait)]


@pytest.mark.parametrize("answer", [OK, LATER])
async def test_messages_that_share_a_name_are_all_told_of(answer: Mediated) -> None:
    broker = Anonymous(f"memory://{uuid4().hex}")
    go = asyncio.Event()

    async def wait(call: int) -> Mediated:
        await go.wait()
        return answer if call == 1 else OK

    async with routing(Mediator(lambda _, call: wait(call)), broker=broker) as bench:
        await bench.send(*(pointer("a", f"g{n}") for n in range(8)), pointer("b"))
        (reader,) = await _readers(bench)
        await until(lambda: reader.held == 9)
        go.set()
        await until(lambda: bench.counted("P", "done") >= 2)
        await until(lambda: reader.held == 0)
        await until(lambda: nothing_left(bench))
    assert answer is LATER or bench.mediator.calls == {"a": 1, "b": 1}
    await broker.close()


async def _readers(bench: Routing) -> list[Reader]:
    await until(lambda: bool(bench.router._readers))
    return list(bench.router._readers.values())


class Forgetful(MemoryBroker):
    """Hears no extension, as a broker behind a broken line would."""

    given = 0

    async def consume(self, queue: Queue, prefetch: int) -> MemoryConsumer:
        return _Deaf(self, queue, prefetch)

    def has_given(self, deliveries: int) -> bool:
        return self.given == deliveries


class _Deaf(MemoryConsumer):
    def __init__(self, broker: Forgetful, queue: Queue, prefetch: int) -> None:
        super().__init__(broker.hall, queue, prefetch)
        self._broker = broker

    async def receive(self, limit: int, wait: float) -> list[Message]:
        messages = await super().receive(limit, wait)
        self._broker.given += len(messages)
        return messages

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """Nobody hears it."""


async def test_a_message_that_comes_again_while_it_is_processed_is_processed_once_and_deleted() -> None:
    now = 0.0
    broker = Forgetful(f"memory://{uuid4().hex}", lambda: now)
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    async with routing(Mediator(lambda *_: wait()), broker=broker, wait=0.05) as bench:
        await bench.send(pointer("a"))
        await until(lambda: bench.mediator.running)
        for deliveries in (2, 3):
            now += bench.visibility + 1
            await until(partial(broker.has_given, deliveries))
        go.set()
        await until(lambda: bench.counted("P", "done") == 1)
        await until(lambda: nothing_left(bench))
    assert bench.mediator.calls == {"a": 1}, "and its last receipt is what it was deleted by"
    await broker.close()


@pytest.mark.clause("JOB-12")
async def test_a_message_is_kept_from_others_while_its_call_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()
    clock = LastMoments(monkeypatch)
    broker = MemoryBroker(f"memory://{uuid4().hex}", clock)

    async def wait() -> Mediated:
        await go.wait()
        return OK

    async with routing(Mediator(lambda *_: wait()), broker=broker, visibility=0.15) as bench:
        await bench.send(pointer("a"))
        await until(lambda: bench.mediator.running)
        other = await broker.consume(Queue("jobs.fifo"), 10)
        assert await clock.taken_by(other, within=3 * bench.visibility) == []
        go.set()
        await until(lambda: bench.counted("P", "done") == 1)
    await broker.close()


# ── order and parallelism ────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-12")
async def test_a_group_goes_in_order_and_groups_side_by_side_up_to_the_concurrency() -> None:
    async def work() -> Mediated:
        await asyncio.sleep(0.01)
        return OK

    mediator = Mediator(lambda *_: work())
    async with routing(mediator, config=pools(P=3)) as bench:
        await bench.send(*(pointer(f"{group}-{n:02}", group) for n in range(12) for group in "abcdef"))
        await until(lambda: bench.counted("P", "done") == 72)
    for group in "abcdef":
        of_group = [id for id in mediator.begun if id.startswith(group)]
        assert of_group == sorted(of_group)
    assert mediator.crowded == set()
    assert mediator.peak == 3
    assert bench.router.status()[0].peak == 3


@pytest.mark.clause("JOB-12")
async def test_what_comes_after_a_400_in_its_group_waits_for_it() -> None:
    mediator = Mediator(lambda one, call: LATER if one.id in {"g-1", "g-3"} and call < 3 else OK)
    async with routing(mediator) as bench:
        await bench.send(*(pointer(f"g-{n}", "g") for n in range(6)), pointer("h-0", "h"))
        await until(lambda: bench.counted("P", "done") == 7)
    ended_well = [id for id in mediator.begun if id.startswith("g") and id not in {"g-1", "g-3"}]
    assert ended_well == ["g-0", "g-2", "g-4", "g-5"]
    firsts = [id for n, id in enumerate(mediator.begun) if id not in mediator.begun[:n] and id[0] == "g"]
    assert firsts == sorted(firsts), "nobody overtook"
    assert [id for id in mediator.begun if id[0] == "g"] == [
        "g-0", "g-1", "g-1", "g-1", "g-2", "g-3", "g-3", "g-3", "g-4", "g-5",
    ]  # fmt: skip


async def test_what_does_not_fit_is_given_back_in_order_and_comes_again() -> None:
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    mediator = Mediator(lambda *_: wait())
    async with routing(mediator, config=pools(P=1)) as bench:
        await bench.send(*(pointer(f"{n:03}", f"g{n % 8}") for n in range(200)))
        await until(lambda: mediator.running)
        await until(lambda: bench.router.status()[0].buffered >= 40)
        await pass_time(0.2)
        status = bench.router.status()[0]
        assert status.buffered + status.running <= 50, "no more than the pool can hold"
        go.set()
        await until(lambda: bench.counted("P", "done") == 200)
    for group in range(8):
        of_group = [id for id in mediator.begun if int(id) % 8 == group]
        assert of_group == sorted(of_group)
    assert set(mediator.calls.values()) == {1}


async def test_a_full_pool_does_not_hold_up_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "_NO_ROOM", 1.0)
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    mediator = Mediator(lambda one, _: wait() if one.pool_code == "SLOW" else OK)
    async with routing(mediator, config=pools(SLOW=1, QUICK=5)) as bench:
        await bench.send(*(pointer(f"s{n}", pool="SLOW") for n in range(70)))
        await bench.send(*(pointer(f"q{n}", pool="QUICK") for n in range(20)))
        await until(lambda: bench.counted("QUICK", "done") == 20)
        assert bench.counted("SLOW", "no_room") > 0
        go.set()
        await until(lambda: bench.counted("SLOW", "done") == 70)
    assert set(mediator.calls.values()) == {1}


async def test_a_pool_begins_no_more_in_a_minute_than_its_rate() -> None:
    config = RouterConfig([QueueConfig("jobs.fifo")], [PoolConfig("P", 50, 1200)])
    async with routing(config=config) as bench:
        started = asyncio.get_running_loop().time()
        await bench.send(*(pointer(f"{n}") for n in range(32)))
        await until(lambda: bench.counted("P", "done") == 32)
        # Twenty at once, which is a second's worth, and the others one by one.
        assert asyncio.get_running_loop().time() - started >= 12 / 20 - 0.05


# ── configuration ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-13")
async def test_pools_grow_and_shrink_while_they_work() -> None:
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    mediator = Mediator(lambda *_: wait())
    async with routing(mediator, config=pools(P=2)) as bench:
        await bench.send(*(pointer(f"{n}") for n in range(12)))
        await until(lambda: len(mediator.running) == 2)
        bench.reconfigure(pools(P=7))
        await until(lambda: len(mediator.running) == 7)
        bench.reconfigure(pools(P=1))
        await until(lambda: bench.router.status()[0].concurrency == 1)
        assert len(mediator.running) == 7, "what has begun is left alone"
        go.set()
        await until(lambda: bench.counted("P", "done") == 12)
    assert mediator.peak == 7


@pytest.mark.clause("JOB-13")
async def test_a_queue_that_is_added_is_read_and_one_that_is_removed_is_drained() -> None:
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    mediator = Mediator(lambda one, _: wait() if one.id == "slow" else OK)
    async with routing(mediator, config=pools(queues=("one",), P=2)) as bench:
        await bench.send(pointer("slow"), queue="one")
        await until(lambda: mediator.running == {"slow"})
        bench.reconfigure(pools(queues=("two",), P=2))
        await bench.send(pointer("b"), queue="two")
        await until(lambda: "b" in mediator.ended)
        await bench.send(pointer("left"), queue="one")
        await pass_time(0.2)
        go.set()
        await until(lambda: "slow" in mediator.ended)
        await pass_time(0.1)
        # Nobody reads it any more; who was about to has given it back.
        await until(lambda: _has_one(bench, "one"))
    assert mediator.calls == {"slow": 1, "b": 1}


async def _has_one(bench: Routing, queue: str) -> bool:
    return await bench.depth(queue) == 1


async def test_a_pool_that_is_removed_ends_what_it_has() -> None:
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    mediator = Mediator(lambda one, _: wait() if one.pool_code == "OLD" and one.id < "5" else OK)
    async with routing(mediator, config=pools(P=1, OLD=1)) as bench:
        await bench.send(*(pointer(f"{n}", pool="OLD") for n in range(3)))
        await until(lambda: mediator.running)
        await until(lambda: bench.router.status()[1].buffered == 2)
        bench.reconfigure(pools(P=1))
        await until(lambda: len(bench.router.status()) == 1)
        await bench.send(pointer("7", pool="OLD"))
        await until(lambda: bench.counted("DEFAULT-POOL", "done") == 1)
        go.set()
        await until(lambda: len(mediator.ended) == 4)
        await until(lambda: nothing_left(bench))


@pytest.mark.parametrize("trouble", [Unreachable("the database is away"), ValueError("a bug")])
async def test_a_configuration_that_cannot_be_read_leaves_the_last_one(trouble: Exception) -> None:
    async with routing() as bench:
        await bench.send(pointer("a"))
        await until(lambda: bench.counted("P", "done") == 1)
        bench.trouble = trouble
        bench.router.wake()
        await until(lambda: bool(bench.log.all("router.unconfigured")))
        await bench.send(pointer("b"))
        await until(lambda: bench.counted("P", "done") == 2)


# ── the end ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_stop_ends_what_has_begun_and_gives_back_the_rest() -> None:
    go = asyncio.Event()

    async def wait() -> Mediated:
        await go.wait()
        return OK

    broker: Broker = MemoryBroker("memory://stopping")
    mediator = Mediator(lambda *_: wait())
    async with routing(mediator, broker=broker, config=pools(P=2)) as bench:
        await bench.send(*(pointer(f"{n}") for n in range(9)))
        await until(lambda: len(mediator.running) == 2 and bench.router.status()[0].buffered == 7)
        draining = asyncio.create_task(bench.router.drain(10))
        await until(lambda: bench.router.status()[0].buffered == 0)
        go.set()
        await draining
        assert len(mediator.ended) == 2
        assert await bench.depth() == 7
    await broker.close()


async def test_what_does_not_end_within_the_grace_time_is_called_off_and_given_back() -> None:
    async def wait() -> Mediated:
        await asyncio.Event().wait()
        return OK

    broker: Broker = MemoryBroker("memory://impatient")
    async with routing(Mediator(lambda *_: wait()), broker=broker) as bench:
        await bench.send(*(pointer(f"{n}") for n in range(3)))
        await until(lambda: len(bench.mediator.running) == 3)
        await bench.router.drain(0.05)
        assert bench.mediator.running == set()
        assert await bench.depth() == 3
    await broker.close()
