"""Jobs' messages: sent when a job is created, when it is due, when they were lost; and in the right form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
from tests.jobs import JobBench, job_bench
from tests.lanes.dispatch_jobs.waiting import until

from homing.brokers.base import Message, Publication, Queue
from homing.brokers.memory import MemoryBroker
from homing.brokers.pointer import MessagePointer, decode_pointer
from homing.brokers.router_config import PoolConfig, QueueConfig, RouterConfig
from homing.db import iso
from homing.engine.model import Failure
from homing.errors import SettingsError
from homing.http.server import serving
from homing.lanes.dispatch_jobs.queueing import QueueingLane
from homing.lanes.dispatch_jobs.tsid import number_of, text_of
from homing.service import Stop, run
from homing.testing.http_sink import HttpSink

URL = "https://partner.example/hooks"
QUEUE = "flow-catalyst-dispatch.fifo"
WINDOW = 100.0


class Watched(MemoryBroker):
    """Notes down what is published, and is away when it is told to be."""

    def __init__(self) -> None:
        super().__init__(f"memory://{uuid4().hex}")
        self.published: list[tuple[str, Publication]] = []
        self.batches: list[int] = []
        self.away = False

    async def publish(self, queue: Queue, publications: Sequence[Publication]) -> Sequence[Failure | None]:
        if self.away:
            return [Failure("broker_unavailable", "it is away")] * len(publications)
        self.batches.append(len(publications))
        self.published += [(queue.name, publication) for publication in publications]
        return await super().publish(queue, publications)

    @property
    def pointers(self) -> list[MessagePointer]:
        found = [decode_pointer(publication.body) for _, publication in self.published]
        assert all(isinstance(one, MessagePointer) for one in found)
        return [one for one in found if isinstance(one, MessagePointer)]


class QueueBench:
    def __init__(self, lane: JobBench, broker: Watched) -> None:
        self.lane = lane
        self.broker = broker

    async def publish(self) -> int:
        """One round of the stage that sends."""
        line = self.lane.homing.queueing
        assert line is not None
        claims = await line.deliverer.run_batch(1000)
        await line.deliverer.settled(claims)
        return len(claims)

    async def pass_time(self, seconds: float) -> None:
        await self.lane.pass_time(seconds)
        await self.lane.tables.shift("dispatch_job", ["queue_at"], seconds)


@asynccontextmanager
async def queue_bench(database_url: str, **settings: Any) -> AsyncIterator[QueueBench]:
    broker = Watched()
    options = {"jobs_broker_url": f"memory://{uuid4().hex}", "jobs_requeue_seconds": WINDOW, **settings}
    async with job_bench(database_url, **options) as lane:
        assert lane.homing.queueing is not None
        queueing = lane.homing.queueing.lane
        assert isinstance(queueing, QueueingLane)
        queueing._broker = broker
        yield QueueBench(lane, broker)
    await broker.close()


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[QueueBench]:
    async with queue_bench(database_url) as opened:
        yield opened


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-11")
async def test_a_created_job_is_saved_and_its_pointer_sent_once(bench: QueueBench) -> None:
    (id,) = await bench.lane.create(URL)
    assert await bench.publish() == 1
    assert await bench.publish() == 0
    ((queue, publication),) = bench.broker.published
    (sent,) = bench.broker.pointers
    assert queue == QUEUE
    assert (sent.id, sent.pool_code, sent.mediation_type) == (text_of(id), "DISPATCH-POOL", "HTTP")
    assert sent.mediation_target == "http://127.0.0.1:8080/api/dispatch/process"
    assert (sent.message_group_id, publication.group) == (text_of(id), text_of(id))
    assert publication.dedup == f"{text_of(id)}-1"
    assert bench.lane.homing.process_tokens.accepts(sent.id, sent.auth_token or "")
    assert (await bench.lane.states([id])) == ["PENDING"]


@pytest.mark.clause("JOB-11")
async def test_ordered_jobs_share_a_group_and_go_in_order_and_others_do_not(bench: QueueBench) -> None:
    ordered = await bench.lane.create(URL, 30, group_id="order-1", ordering="group")
    loose = await bench.lane.create(URL, 2, group_id="order-1")
    await bench.publish()
    sent = bench.broker.pointers
    assert [number_of(one.id) for one in sent if one.message_group_id == "order-1"] == ordered
    assert {one.message_group_id for one in sent if number_of(one.id) in loose} == {text_of(i) for i in loose}


@pytest.mark.clause("JOB-11")
async def test_many_jobs_are_sent_in_few_calls(bench: QueueBench) -> None:
    await bench.lane.create(URL, 500)
    await bench.publish()
    assert sum(bench.broker.batches) == 500
    assert len(bench.broker.batches) <= 3


@pytest.mark.clause("JOB-11")
async def test_what_is_scheduled_is_sent_when_it_is_due(bench: QueueBench) -> None:
    later = iso(datetime.now(UTC) + timedelta(seconds=60))
    (id,) = await bench.lane.create(URL, scheduled_for=later)
    assert await bench.publish() == 0
    await bench.pass_time(61)
    assert await bench.publish() == 1
    assert [one.id for one in bench.broker.pointers] == [text_of(id)]


@pytest.mark.clause("JOB-11")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_job_of_another_program_is_sent_as_well(
    request: pytest.FixtureRequest, database: str
) -> None:
    async with queue_bench(request.getfixturevalue(f"{database}_url")) as bench:
        row = {"source": "s", "type": "t", "target_url": URL, "payload": "{}"}
        await bench.lane.tables.insert("dispatch_job", row)
        assert await bench.publish() == 1


@pytest.mark.clause("JOB-01", "JOB-11")
async def test_a_job_goes_to_the_queue_that_it_names_if_that_is_known(bench: QueueBench) -> None:
    await bench.lane.homing.router_configs.put(
        RouterConfig([QueueConfig(QUEUE), QueueConfig("http://sqs/0/other.fifo")], [PoolConfig("P")])
    )
    await bench.lane.create(URL, queue_url="http://sqs/0/other.fifo")
    await bench.lane.create(URL, queue_url="http://sqs/0/mistyped.fifo")
    await bench.publish()
    assert sorted(queue for queue, _ in bench.broker.published) == [QUEUE, "http://sqs/0/other.fifo"]


@pytest.mark.clause("JOB-01", "JOB-11")
async def test_a_job_goes_to_a_queue_that_is_read_when_the_default_is_not(bench: QueueBench) -> None:
    await bench.lane.homing.router_configs.put(
        RouterConfig([QueueConfig("one.fifo"), QueueConfig("two.fifo")], [PoolConfig("P")])
    )
    for queue_url in (None, QUEUE, "two.fifo", "mistyped.fifo"):
        await bench.lane.create(URL, queue_url=queue_url)
    await bench.publish()
    assert sorted(queue for queue, _ in bench.broker.published) == ["one.fifo"] * 3 + ["two.fifo"]


async def test_an_empty_configuration_of_a_time_without_a_broker_is_the_default(bench: QueueBench) -> None:
    configs = bench.lane.homing.router_configs
    await configs.put(RouterConfig([], []))
    config = await configs.read()
    assert [queue.queue_uri for queue in config.queues] == [QUEUE]
    assert [pool.code for pool in config.processing_pools] == ["DISPATCH-POOL"]


async def test_a_default_queue_that_the_broker_cannot_have_is_a_mistake_in_the_settings(
    database_url: str,
) -> None:
    settings = {"jobs_broker_url": "sqs://127.0.0.1:1", "jobs_queue": "not.a.name"}
    with pytest.raises(SettingsError, match="HOMING_JOBS_QUEUE: must have a name of at most 80"):
        async with job_bench(database_url, **settings):
            pass


@pytest.mark.clause("JOB-01")
async def test_a_job_that_names_an_unknown_queue_is_refused_where_there_is_a_broker(
    database_url: str,
) -> None:
    body = {
        "source": "s",
        "type": "t",
        "targetUrl": URL,
        "payload": "{}",
        "queueUrl": "http://sqs/0/typo.fifo",
    }
    for settings, status in (({"jobs_broker_url": f"memory://{uuid4().hex}"}, 400), ({}, 201)):
        async with (
            job_bench(database_url, **settings) as lane,
            serving(lane.homing.asgi(), "127.0.0.1", 0) as address,
            httpx.AsyncClient(base_url=address) as client,
        ):
            answer = await client.post("/api/dispatch/jobs", json=body)
            assert answer.status_code == status, answer.text
            batch = (
                await client.post("/api/dispatch/jobs/batch", json=[body, {**body, "queueUrl": QUEUE}])
            ).json()
            assert [item["verdict"] for item in batch["items"]] == [
                "invalid" if settings else "created",
                "created",
            ]


# ── what was not taken, or lost ──────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-11")
async def test_what_a_broker_does_not_take_is_sent_when_it_is_back(bench: QueueBench) -> None:
    ids = await bench.lane.create(URL, 3)
    bench.broker.away = True
    assert await bench.publish() == 3
    assert await bench.publish() == 0, "and nobody is asked meanwhile"
    assert await bench.lane.states(ids) == ["PENDING"] * 3
    bench.broker.away = False
    await bench.pass_time(3)
    lane = bench.lane.homing.queueing.lane if bench.lane.homing.queueing else None
    await until(lambda: lane is not None and lane.available())
    assert await bench.publish() == 3
    assert sorted(one.id for one in bench.broker.pointers) == [text_of(id) for id in ids]
    assert {p.dedup for _, p in bench.broker.published} == {f"{text_of(id)}-2" for id in ids}


@pytest.mark.clause("JOB-11")
async def test_what_is_not_heard_of_is_sent_again_once_per_window_that_doubles(bench: QueueBench) -> None:
    (id,) = await bench.lane.create(URL)
    sent = []
    for _ in range(8):
        sent.append(await bench.publish())
        await bench.pass_time(WINDOW + 1)
    assert sent == [1, 1, 0, 1, 0, 0, 0, 1]
    assert [p.dedup for _, p in bench.broker.published] == [f"{text_of(id)}-{n}" for n in (1, 2, 3, 4)]


@pytest.mark.clause("JOB-11")
async def test_a_failed_job_whose_message_vanished_is_sent_after_its_next_attempt_was_due(
    bench: QueueBench,
) -> None:
    (id,) = await bench.lane.create(URL)
    await bench.publish()
    await bench.lane.change(id, status="FAILED", attempt_count=1)
    await bench.lane.pass_time(-500, only=id)
    await bench.pass_time(WINDOW + 1)
    assert await bench.publish() == 0, "it waits in its queue until it is due"
    await bench.pass_time(401)
    assert await bench.publish() == 0, "and is given a window then"
    await bench.pass_time(WINDOW)
    assert await bench.publish() == 1


async def test_what_ended_or_is_under_way_is_not_sent(bench: QueueBench) -> None:
    ids = await bench.lane.create(URL, 4)
    for id, state in zip(ids, ("COMPLETED", "ERROR", "CANCELLED", "IN_PROGRESS"), strict=True):
        await bench.lane.change(id, status=state)
    assert await bench.publish() == 0


async def test_a_requeued_job_is_sent_at_once_under_a_new_number(bench: QueueBench) -> None:
    (id,) = await bench.lane.create(URL)
    await bench.publish()
    await bench.lane.change(id, status="ERROR")
    assert await bench.lane.jobs.requeue([id]) == [id]
    assert await bench.publish() == 1
    assert [p.dedup for _, p in bench.broker.published] == [f"{text_of(id)}-1", f"{text_of(id)}-2"]


@pytest.mark.clause("JOB-11")
async def test_many_who_send_at_the_same_time_send_each_once(database_url: str) -> None:
    async with (
        queue_bench(database_url) as one,
        queue_bench(database_url) as two,
        queue_bench(database_url) as three,
    ):
        ids = await one.lane.create(URL, 300)
        benches = (one, two, three)
        while any(await asyncio.gather(*(bench.publish() for bench in benches))):
            pass
        sent = [pointer.id for bench in benches for pointer in bench.broker.pointers]
        assert sorted(sent) == [text_of(id) for id in ids]


async def test_a_stop_before_the_broker_was_asked_sends_it_later(bench: QueueBench) -> None:
    (id,) = await bench.lane.create(URL)
    line = bench.lane.homing.queueing
    assert line is not None
    claims = await line.lane.store.claim(10)
    assert [claim.id for claim in claims] == [id]
    assert await line.lane.store.release(claims) == {id}
    assert await bench.publish() == 1


async def test_without_a_broker_nothing_is_sent_and_jobs_are_polled(database_url: str) -> None:
    async with job_bench(database_url) as lane, HttpSink() as sink:
        assert lane.homing.queueing is None
        assert lane.homing.router is None
        (id,) = await lane.create(sink.url)
        await lane.run_batch()
        assert await lane.states([id]) == ["COMPLETED"]


# ── as it runs ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-11")
async def test_an_api_sends_the_message_of_what_it_creates(database_url: str) -> None:
    """`homing serve`: it works on nothing, but what it creates must be known to those who do."""
    settings = {"jobs_broker_url": f"memory://{uuid4().hex}", "port": 0}
    async with job_bench(database_url, **settings) as lane:
        stop, ready = Stop(), asyncio.get_running_loop().create_future()
        running = asyncio.create_task(run(lane.homing, stop, api=True, work=(), ready=ready.set_result))
        address = await ready
        body = {"source": "s", "type": "t", "targetUrl": URL, "payload": "{}"}
        async with httpx.AsyncClient(base_url=address) as client:
            created = await client.post("/api/dispatch/jobs", json=body)
            assert created.status_code == 201
            batch = await client.post("/api/dispatch/jobs/batch", json=[body] * 20)
            assert batch.json()["created"] == 20
        assert lane.homing.jobs_broker is not None
        consumer = await lane.homing.jobs_broker.consume(Queue(QUEUE), 100)
        messages: list[Message] = []
        while len(messages) < 21:
            messages += await consumer.receive(10, 5.0)
        pointers = [decode_pointer(message.body) for message in messages]
        assert all(isinstance(one, MessagePointer) for one in pointers)
        ids = {one.id for one in pointers if isinstance(one, MessagePointer)}
        assert ids == {created.json()["id"], *(item["id"] for item in batch.json()["items"])}
        (first, *_) = [one for one in pointers if isinstance(one, MessagePointer)]
        assert first.mediation_target == f"{address}/api/dispatch/process"
        await consumer.close()
        stop.ask()
        await running


# ── by name or by URL ────────────────────────────────────────────────────────────────────────────


def url_of(sqs_url: str, queue: str, *, host: str = "127.0.0.1", account: str = "000000000000") -> str:
    return f"http://{host}:{urlsplit(sqs_url).port}/{account}/{queue}"


@pytest.mark.clause("JOB-32", "JOB-01")
@pytest.mark.parametrize("is_there", [True, False])
async def test_a_queue_is_named_by_its_url_or_its_name(
    sqlite_url: str, sqs_url: str, *, is_there: bool
) -> None:
    queue, other = (f"q-{uuid4().hex[:12]}.fifo" for _ in range(2))
    settings = {"jobs_broker_url": sqs_url, "jobs_queue": queue}
    async with (
        job_bench(sqlite_url, **settings) as lane,
        serving(lane.homing.asgi(), "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):

        async def create(queue_url: str | None) -> int:
            body = {"source": "s", "type": "t", "targetUrl": URL, "payload": "{}", "queueUrl": queue_url}
            return (await client.post("/api/dispatch/jobs", json=body)).status_code

        broker = lane.homing.jobs_broker
        assert broker is not None
        if is_there:
            assert await broker.measure(Queue(queue)) is not None
        elsewhere = ["http://127.0.0.1:1/000000000000/" + queue, url_of(sqs_url, other)]
        elsewhere += [f"http://127.0.0.1:99999/0/{queue}", f"http://[/0/{queue}", f"/{queue}"]
        if is_there:
            elsewhere.append(url_of(sqs_url, queue, account="111111111111"))
        ours = [queue, url_of(sqs_url, queue), url_of(sqs_url, queue, host="localhost")]
        assert [await create(one) for one in ours] == [201] * 3
        assert [await create(one) for one in elsewhere] == [400] * len(elsewhere)
        # Named by its URL in the configuration, and by its name in the settings and the jobs.
        config = {
            "queues": [{"queueUri": url_of(sqs_url, other)}, {"queueUri": url_of(sqs_url, queue)}],
            "processingPools": [{"code": "DISPATCH-POOL"}],
        }
        assert (await client.put("/api/config", json=config)).status_code == 200
        assert [await create(one) for one in (*ours, None)] == [201] * 4
        assert await create(other) == 201
        line = lane.homing.queueing
        assert line is not None
        await line.deliverer.settled(await line.deliverer.run_batch(100))
        waiting = [await broker.depth(Queue(one)) for one in (queue, other)]
        assert waiting == [7, 1]
