"""Jobs through a broker: created over HTTP, taken from the queue by the router, delivered once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.jobs import JobBench, job_bench
from tests.lanes.dispatch_jobs.waiting import Crowd, until

from homing.brokers.base import Publication, Queue
from homing.brokers.open import open_broker
from homing.brokers.pointer import MessagePointer, encode_pointer
from homing.brokers.router import queue_of
from homing.db import iso
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.service import Stop, run
from homing.telemetry import Telemetry
from homing.testing.http_sink import Answer, HttpSink, SinkRequest

OPEN = ("PENDING", "FAILED", "IN_PROGRESS")
SOON = timedelta(seconds=1000)


#: Each broker with a real database, and each database with a real broker.
EVERYWHERE = pytest.mark.parametrize(
    ("database", "broker"),
    [("sqlite", "memory"), ("sqlite", "sqs"), ("postgres", "sqs"), ("postgres", "rabbitmq")],
)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def database_url(request: pytest.FixtureRequest, database: str) -> str:
    url: str = request.getfixturevalue(f"{database}_url")
    return url


@pytest.fixture
def broker_url(request: pytest.FixtureRequest, broker: str) -> str:
    if broker == "memory":
        return f"memory://{uuid4().hex}"
    url: str = request.getfixturevalue(f"{broker}_url")
    return url


@pytest.fixture
def queue() -> str:
    return f"jobs-{uuid4().hex}.fifo"


class Running:
    """One process of Homing, as `homing up` runs it."""

    def __init__(self, lane: JobBench, client: httpx.AsyncClient) -> None:
        self.lane = lane
        self.client = client

    async def create(self, url: str, **fields: Any) -> str:
        body = {"source": "s", "type": "t", "targetUrl": url, "payload": "{}", **fields}
        created = await self.client.post("/api/dispatch/jobs", json=body)
        assert created.status_code == 201, created.text
        id: str = created.json()["id"]
        return id

    async def create_many(self, url: str, count: int) -> None:
        body = {"source": "s", "type": "t", "targetUrl": url, "payload": "{}"}
        created = await self.client.post("/api/dispatch/jobs/batch", json=[body] * count)
        assert created.json()["created"] == count

    async def all_ended(self) -> bool:
        counts = await self.lane.jobs.counts()
        return not sum(counts[state] for state in OPEN)

    def attempted(self, lane: str) -> list[dict[str, Any]]:
        return [line for line in self.lane.log.all("delivery.attempted") if line["lane"] == lane]

    async def depth(self, queue: str) -> int:
        broker = self.lane.homing.jobs_broker
        assert broker is not None
        return await broker.depth(queue_of(queue, 30.0)) or 0


@asynccontextmanager
async def running(
    database_url: str, broker_url: str, queue: str, *, api: bool = True, work: bool = True, **settings: Any
) -> AsyncIterator[Running]:
    options = {
        "jobs_broker_url": broker_url, "jobs_queue": queue, "port": 0, "jobs_backoff_base_seconds": 1.0,
        **settings,
    }  # fmt: skip
    async with job_bench(database_url, **options) as lane:
        stop, ready = Stop(), asyncio.get_running_loop().create_future()
        lanes = ("dispatch_jobs",) if work else ()
        service = asyncio.create_task(run(lane.homing, stop, api=api, work=lanes, ready=ready.set_result))
        try:
            async with httpx.AsyncClient(base_url=await ready or "http://127.0.0.1") as client:
                yield Running(lane, client)
        finally:
            stop.ask()
            await service


def delivered(sink: HttpSink) -> Counter[str | None]:
    return Counter(request.header("webhook-id") for request in sink.requests)


# ── the whole way ────────────────────────────────────────────────────────────────────────────────


@EVERYWHERE
@pytest.mark.clause("JOB-10", "JOB-11", "JOB-12", "JOB-13")
async def test_created_jobs_are_delivered_once_through_the_queue(
    database_url: str, broker_url: str, queue: str
) -> None:
    async with HttpSink() as sink, running(database_url, broker_url, queue) as homing:
        ids = [await homing.create(sink.url) for _ in range(20)]
        await until(homing.all_ended)
        assert delivered(sink) == Counter(ids)
        await until(lambda: _is_empty(homing, queue))
        # Told when it is written: a moment after the table and the queue say so.
        await until(
            lambda: len(homing.attempted("dispatch_jobs")) == len(homing.attempted("dispatch_queue")) == 20
        )


async def _is_empty(homing: Running, queue: str) -> bool:
    return await homing.depth(queue) == 0


@EVERYWHERE
@pytest.mark.clause("JOB-10", "JOB-12")
async def test_the_mediator_calls_the_process_endpoint_over_http(
    database_url: str, broker_url: str, queue: str
) -> None:
    """One process serves the API, and another one, which routes, calls it."""
    settings: dict[str, Any] = {"jobs_mediation": "http"}
    async with (
        HttpSink() as sink,
        running(database_url, broker_url, queue, work=False, **settings) as api,
        running(
            database_url, broker_url, queue, api=False, **settings,
            jobs_process_url=f"{str(api.client.base_url).rstrip('/')}/api/dispatch/process",
        ),
    ):  # fmt: skip
        ids = [await api.create(sink.url) for _ in range(10)]
        await until(api.all_ended)
        assert delivered(sink) == Counter(ids)
        # It was the API's process that sent them, and it tells so when that is written.
        await until(lambda: len(api.attempted("dispatch_jobs")) == 10)


@EVERYWHERE
@pytest.mark.clause("JOB-10", "JOB-11", "JOB-12")
async def test_a_failed_job_stays_in_its_queue_and_is_tried_again_when_it_is_due(
    database_url: str, broker_url: str, queue: str
) -> None:
    times: list[float] = []

    def script(request: SinkRequest) -> Answer | None:
        times.append(request.at)
        return Answer(status=500) if len(times) < 3 else None

    async with HttpSink(script) as sink, running(database_url, broker_url, queue) as homing:
        id = await homing.create(sink.url, retryStrategy="fixed")
        await until(homing.all_ended)
        job = (await homing.client.get(f"/api/dispatch/jobs/{id}")).json()
        assert (job["status"], job["attemptCount"]) == ("COMPLETED", 3)
        # One message did it all.
        await until(lambda: len(homing.attempted("dispatch_queue")) == 1)
    # Half a minute, if it were forgotten in its queue.
    assert all(0.95 <= later - earlier < 25 for earlier, later in pairwise(times))


@EVERYWHERE
@pytest.mark.clause("JOB-12")
async def test_ordered_groups_stay_in_order_though_some_attempts_fail(
    database_url: str, broker_url: str, queue: str
) -> None:
    seen: list[tuple[str, int]] = []

    def script(request: SinkRequest) -> Answer | None:
        fails = int(request.body.split(b"-")[1]) % 5 == 2 and request.body.decode() not in tried
        tried.add(request.body.decode())
        seen.append((request.body.decode(), 500 if fails else 200))
        return Answer(status=500) if fails else None

    tried: set[str] = set()
    async with HttpSink(script) as sink, running(database_url, broker_url, queue) as homing:
        for n in range(8):
            for group in "abc":
                await homing.create(
                    sink.url, groupId=group, ordering="group", payload=f"{group}-{n}", retryStrategy="fixed"
                )
        await until(homing.all_ended)
    for group in "abc":
        accepted = [body for body, status in seen if status == 200 and body.startswith(group)]
        assert accepted == [f"{group}-{n}" for n in range(8)]


@EVERYWHERE
@pytest.mark.clause("JOB-12", "JOB-13")
async def test_the_pool_really_runs_its_concurrency_and_a_change_is_taken_up(
    database_url: str, broker_url: str, queue: str
) -> None:
    crowd = Crowd(1.2, enough=5)
    async with HttpSink(crowd) as sink, running(database_url, broker_url, queue) as homing:
        await homing.create_many(sink.url, 25)
        await until(homing.all_ended)
        assert crowd.peak == 5
        config = (await homing.client.get("/api/config")).json()
        config["processingPools"][0]["concurrency"] = 12
        assert (await homing.client.put("/api/config", json=config)).status_code == 200
        await until(lambda: _concurrency(homing) == 12)
        crowd.enough = 12
        await homing.create_many(sink.url, 60)
        await until(homing.all_ended)
    assert crowd.peak == 12


def _concurrency(homing: Running) -> int:
    router = homing.lane.homing.router
    assert router is not None
    return router.status()[0].concurrency


@pytest.mark.clause("JOB-13")
async def test_a_change_reaches_a_router_in_another_process(database_url: str, queue: str) -> None:
    broker = f"memory://{uuid4().hex}"
    async with (
        running(database_url, broker, queue, work=False) as api,
        running(database_url, broker, queue, api=False) as worker,
    ):
        config = {
            "queues": [{"queueUri": queue}],
            "processingPools": [{"code": "DISPATCH-POOL", "concurrency": 9}],
        }
        await until(lambda: bool(worker.lane.log.all("router.configured")))
        assert (await api.client.put("/api/config", json=config)).status_code == 200
        await until(lambda: _concurrency(worker) == 9)


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────


@EVERYWHERE
@pytest.mark.clause("JOB-10", "JOB-12")
async def test_many_messages_for_one_job_send_it_once(database_url: str, broker_url: str, queue: str) -> None:
    async with HttpSink(Crowd()) as sink, running(database_url, broker_url, queue) as homing:
        ids = [await homing.create(sink.url) for _ in range(5)]
        await until(lambda: len(sink.requests) == 5)
        await _send(homing, queue, [_again(homing, id, n) for id in ids for n in range(4)])
        await until(homing.all_ended)
        await until(lambda: _is_empty(homing, queue))
        await until(lambda: _routed(homing) >= 25)
        assert delivered(sink) == Counter(ids)


def _routed(homing: Running) -> float:
    found = homing.lane.homing.telemetry.registry.get_sample_value
    labels = [{"pool": "DISPATCH-POOL", "outcome": outcome} for outcome in ("done", "duplicate")]
    return sum(found("homing_router_messages_total", one) or 0.0 for one in labels)


def _again(homing: Running, id: str, number: int) -> tuple[MessagePointer, str]:
    lane = homing.lane.homing
    pointer = MessagePointer(
        id=id,
        pool_code="DISPATCH-POOL",
        mediation_target=lane.process_url,
        message_group_id=f"{id}-{number}",
        auth_token=lane.process_tokens.token(id),
    )
    return pointer, f"{id}-again-{number}"


async def _send(homing: Running, queue: str, pointers: list[tuple[MessagePointer, str]]) -> None:
    broker = homing.lane.homing.jobs_broker
    assert broker is not None
    publications = [
        Publication(encode_pointer(pointer), pointer.message_group_id, dedup) for pointer, dedup in pointers
    ]
    assert not any(await broker.publish(queue_of(queue, 30.0), publications))


@pytest.mark.parametrize("mediation", ["direct", "http"])
async def test_a_message_with_a_wrong_token_sends_nothing_and_holds_up_nobody(
    database_url: str, queue: str, mediation: str
) -> None:
    settings: dict[str, Any] = {"jobs_requeue_seconds": 3600.0, "jobs_mediation": mediation}
    url = f"memory://{uuid4().hex}"
    async with HttpSink() as sink, running(database_url, url, queue, **settings) as homing:
        # Not due from the start: it would be sent before it could be put off.
        (id,) = await homing.lane.create(sink.url, scheduled_for=iso(datetime.now(UTC) + SOON))
        forged = MessagePointer(
            id=text_of(id),
            pool_code="DISPATCH-POOL",
            mediation_target=homing.lane.homing.process_url,
            message_group_id="order-1",
            auth_token="0" * 64,
        )
        await _send(homing, queue, [(forged, "forged")])
        await until(lambda: bool(homing.lane.log.all("router.warned")))
        (warned,) = homing.lane.log.all("router.warned")
        assert (warned["kind"], "HTTP 401" in warned["detail"]) == ("refused_token", True)
        assert sink.requests == []
        other = await homing.create(sink.url, groupId="order-1", ordering="group")
        await until(lambda: delivered(sink) == Counter([other]))
        assert await homing.lane.states([id]) == ["PENDING"]


async def test_a_forged_message_does_not_take_the_real_one_with_it(database_url: str, queue: str) -> None:
    url = f"memory://{uuid4().hex}"
    settings: dict[str, Any] = {"jobs_requeue_seconds": 3600.0}
    async with (
        HttpSink(lambda _: Answer(delay=2.0)) as peer,
        HttpSink() as sink,
        running(database_url, url, queue, **settings) as homing,
    ):
        # Not due from the start: it would be sent before it could be put off.
        (id,) = await homing.lane.create(sink.url, scheduled_for=iso(datetime.now(UTC) + SOON))
        forged = MessagePointer(
            id=text_of(id), pool_code="OTHER", mediation_target=peer.url, message_group_id="z", auth_token="x"
        )
        await _send(homing, queue, [(forged, "forged")])
        await until(lambda: len(peer.requests) == 1)
        await homing.lane.pass_time(SOON.total_seconds(), only=id)
        await _send(homing, queue, [_again(homing, text_of(id), 1)])
        await until(homing.all_ended)
        assert delivered(sink) == Counter([text_of(id)])


@pytest.mark.clause("JOB-13")
async def test_a_job_that_names_no_queue_is_delivered_though_the_default_is_no_longer_read(
    database_url: str, queue: str
) -> None:
    url = f"memory://{uuid4().hex}"
    async with HttpSink() as sink, running(database_url, url, queue) as homing:
        config = {
            "queues": [{"queueUri": "first.fifo"}, {"queueUri": "second.fifo"}],
            "processingPools": [{"code": "DISPATCH-POOL"}],
        }
        assert (await homing.client.put("/api/config", json=config)).status_code == 200
        ids = [await homing.create(sink.url), await homing.create(sink.url, queueUrl="second.fifo")]
        await until(homing.all_ended)
        assert delivered(sink) == Counter(ids)


async def test_a_message_that_names_another_address_is_sent_by_the_rules_for_webhooks(
    database_url: str, queue: str
) -> None:
    """Whoever can write to a queue must not be able to reach what is inside."""
    url = f"memory://{uuid4().hex}"
    async with HttpSink() as sink, running(database_url, url, queue, allow_http=False) as homing:
        elsewhere = MessagePointer(id="x", pool_code="DISPATCH-POOL", mediation_target=sink.url)
        await _send(homing, queue, [(elsewhere, "elsewhere")])
        await until(lambda: bool(homing.lane.log.all("router.warned")))
        assert sink.requests == []


@pytest.mark.clause("JOB-11")
async def test_a_lost_message_is_sent_again(database_url: str, queue: str) -> None:
    url = f"memory://{uuid4().hex}"
    settings: dict[str, Any] = {"jobs_requeue_seconds": 1.0}
    async with HttpSink() as sink, running(database_url, url, queue, work=False, **settings) as api:
        await api.create(sink.url)
        await until(lambda: _is_there(api, queue))
        broker = api.lane.homing.jobs_broker
        assert broker is not None
        thief = await broker.consume(Queue(queue), 10)
        await thief.acknowledge(await thief.receive(10, 5.0))
        await thief.close()
        async with running(database_url, url, queue, api=False, **settings) as worker:
            await until(worker.all_ended)
        assert len(sink.requests) == 1


async def _is_there(homing: Running, queue: str) -> bool:
    # On a slow machine it may be taken for lost before we look, and be there twice.
    return await homing.depth(queue) >= 1


@EVERYWHERE
async def test_a_stop_leaves_nothing_behind_that_somebody_else_could_not_do(
    database_url: str, broker_url: str, queue: str
) -> None:
    async with HttpSink(lambda _: Answer(delay=0.3)) as sink, _kept_open(broker_url):
        async with running(database_url, broker_url, queue) as homing:
            ids = [await homing.create(sink.url) for _ in range(25)]
            await until(lambda: len(sink.requests) >= 5)
        assert "IN_PROGRESS" not in await _states(database_url)
        async with running(database_url, broker_url, queue) as homing:
            await until(homing.all_ended)
        assert delivered(sink) == Counter(ids), "each once, though the first of them stopped in between"


@asynccontextmanager
async def _kept_open(broker_url: str) -> AsyncIterator[None]:
    """The queues of `memory://` live as long as somebody has it open."""
    broker = open_broker(broker_url, Telemetry())
    yield
    await broker.close()


async def _states(database_url: str) -> list[str]:
    async with job_bench(database_url) as lane:
        return [row["status"] for row in await lane.tables.rows("dispatch_job")]
