"""A pause: nothing more is claimed, what has begun ends, nothing is lost; on real databases and brokers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.emails import EmailBench, email_bench, until
from tests.jobs import job_bench
from tests.outbox import Bench, bench
from tests.workers.running import at_work, lane_report, only_worker

from homing.app import Homing
from homing.brokers.base import Broker, Publication, Queue
from homing.brokers.open import open_broker
from homing.lanes.mail_outbox.dispatching import DispatchRequest
from homing.senders.mail import MailMessage, SendResult
from homing.senders.memory import MemorySender
from homing.service import Stop, dispatch_once, drain_once
from homing.telemetry import Telemetry
from homing.testing.http_sink import HttpSink

#: Long enough for several looks of whoever would claim.
QUIET = 0.2


class Slow:
    """Holds every mail until the test lets it go."""

    def __init__(self, sender: MemorySender, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = asyncio.Event()
        self.begun = 0
        self._send = sender.send
        monkeypatch.setattr(sender, "send", self._wait)

    async def _wait(self, message: MailMessage) -> SendResult:
        self.begun += 1
        await self.go.wait()
        return await self._send(message)


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[Bench]:
    async with bench(database_url, mail_connections=1, mail_batch=10, port=0) as opened:
        yield opened


async def paused(homing: Homing, lane: str, *, is_on: bool = True) -> None:
    """Wait until the process says that it has heard of it."""

    async def is_so() -> bool:
        return (await lane_report(homing, lane)).paused == is_on

    await until(is_so)


async def all_sent(lane: Bench, count: int) -> bool:
    return (await lane.outbox.counts())["sent"] == count


# ── the database ─────────────────────────────────────────────────────────────────────────────────


async def test_a_paused_lane_is_left_alone_until_it_is_resumed(lane: Bench) -> None:
    async with at_work(lane.homing, ["mail_outbox"]):
        await lane.insert()
        await until(lambda: all_sent(lane, 1))
        await lane.homing.fleet.pause("lane", "mail_outbox", by="cli:eve", reason="the relay is moved")
        await paused(lane.homing, "mail_outbox")
        await lane.insert(3)
        await asyncio.sleep(QUIET)
        assert (await lane.outbox.counts())["queued"] == 3
        assert (await only_worker(lane.homing)).state == "running", "only this lane rests"
        await lane.homing.fleet.resume("lane", "mail_outbox")
        await until(lambda: all_sent(lane, 4))
        await paused(lane.homing, "mail_outbox", is_on=False)
    told = [line["event"] for line in lane.log.all() if line["event"].startswith("worker.")]
    assert told == ["worker.paused", "worker.resumed"]
    assert (await only_worker(lane.homing)).state == "stopped"


async def test_another_process_is_heard(database_url: str) -> None:
    """Its own connection: on PostgreSQL it announces a pause, on SQLite it is found by looking."""
    async with (
        bench(database_url) as lane,
        bench(database_url) as other,
        at_work(lane.homing, ["mail_outbox"]),
    ):
        await other.homing.fleet.pause("worker", lane.homing.ground.owner, by="cli:eve")
        await paused(other.homing, "mail_outbox")
        assert (await only_worker(other.homing)).state == "paused"
        assert (await only_worker(other.homing)).pause is not None
        await other.insert()
        await other.homing.fleet.resume("worker", lane.homing.ground.owner)
        await until(lambda: all_sent(other, 1))


async def test_a_pause_outlives_a_restart(lane: Bench) -> None:
    await lane.homing.fleet.pause("lane", "mail_outbox", by="cli:eve")
    await lane.insert(2)
    async with at_work(lane.homing, ["mail_outbox"]):
        await paused(lane.homing, "mail_outbox")
        await asyncio.sleep(QUIET)
        assert (await lane.outbox.counts())["queued"] == 2
        assert not lane.sender.messages
        await lane.homing.fleet.resume("lane", "mail_outbox")
        await until(lambda: all_sent(lane, 2))


async def test_what_has_begun_ends_and_the_rest_is_given_back(
    lane: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(lane.sender, monkeypatch)
    await lane.insert(10)
    async with at_work(lane.homing, ["mail_outbox"]):
        at_once = lane.homing.ground.mails_at_once
        await until(lambda: _is(slow.begun == at_once))
        assert lane.homing.mail.deliverer.free == 0
        await lane.homing.fleet.pause("lane", "mail_outbox", by="cli:eve")
        await paused(lane.homing, "mail_outbox")
        counts = await lane.outbox.counts()
        assert (counts["queued"], counts["dispatching"]) == (10 - at_once, at_once)
        slow.go.set()
        await until(lambda: all_sent(lane, at_once))
        report = await lane_report(lane.homing, "mail_outbox")
        assert report.slots == 10
        rows = await lane.sql("SELECT retry_count, rescue_count FROM mail_outbox WHERE status = 'queued'")
        assert rows == [{"retry_count": 0, "rescue_count": 0}] * (10 - at_once), "and costs them nothing"
        await lane.homing.fleet.resume("lane", "mail_outbox")
        await until(lambda: all_sent(lane, 10))
    assert len(lane.sender.messages) == 10


async def _is(met: bool) -> bool:
    return met


@pytest.mark.clause("API-09")
async def test_the_trigger_of_a_paused_lane_sends_nothing_and_says_so(lane: Bench) -> None:
    await lane.homing.fleet.pause("lane", "mail_outbox", by="cli:eve")
    async with (
        at_work(lane.homing, ["mail_outbox"], api=True) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        await paused(lane.homing, "mail_outbox")
        nothing = {"dispatched": 0, "maxAttempts": 5, "items": []}
        assert (await client.post("/internal/dispatch")).json() == nothing
        await lane.insert(2)
        reply = await client.post("/internal/dispatch", json={"batchSize": 1, "wait": True})
        assert reply.status_code == 200
        held = {"due": 2, "reason": "the lane mail_outbox is paused"}
        assert reply.json() == {**nothing, "held": held}
        assert (await lane.outbox.counts())["queued"] == 2


async def test_working_once_goes_through_a_pause(lane: Bench) -> None:
    await lane.homing.fleet.pause("lane", "mail_outbox", by="cli:eve")
    await lane.insert(2)
    assert (
        await dispatch_once(lane.homing, Stop(), DispatchRequest(batch_size=1, wait=True))
    ).dispatched == 1
    assert await drain_once(lane.homing, Stop(), ["mail_outbox"]) == 1
    assert (await lane.outbox.counts())["sent"] == 2


async def test_a_database_that_does_not_answer_stops_nobody_and_is_told_of_once(lane: Bench) -> None:
    async with at_work(lane.homing, ["mail_outbox"]):
        await lane.homing.database.run_script("ALTER TABLE homing_pause RENAME TO homing_away")
        await until(lambda: _is(bool(lane.log.all("worker.unheard"))))
        for _ in range(3):
            lane.homing.database.announce("homing_pause")
            await asyncio.sleep(0.05)
        await lane.insert()
        await until(lambda: all_sent(lane, 1))
        assert len(lane.log.all("worker.unheard")) == 1
        await lane.homing.database.run_script("ALTER TABLE homing_away RENAME TO homing_pause")
        await lane.homing.fleet.pause("lane", "mail_outbox", by="cli:eve")
        await paused(lane.homing, "mail_outbox")


async def test_who_only_serves_is_seen_too(lane: Bench) -> None:
    async with at_work(lane.homing, [], api=True) as address:
        worker = await only_worker(lane.homing)
        assert (worker.serves, worker.lanes, worker.state) == (True, (), "running")
        async with httpx.AsyncClient(base_url=address) as client:
            assert (await client.get("/health/live")).status_code == 200


# ── brokers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def http_sink() -> AsyncIterator[HttpSink]:
    async with HttpSink() as sink:
        yield sink


@pytest.fixture(params=["memory", "rabbitmq", "sqs"])
def broker_url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def emails(sqlite_url: str, broker_url: str) -> AsyncIterator[EmailBench]:
    prefix = f"pause-{uuid4().hex}"
    async with email_bench(
        sqlite_url, email_broker_url=broker_url, email_queue_prefix=prefix, mail_connections=1
    ) as opened:
        yield opened


async def all_emails_sent(lane: EmailBench, count: int) -> bool:
    return (await lane.emails.counts())["Sent"] == count


async def test_a_paused_sender_gives_back_what_it_has_fetched_and_loses_nothing(
    emails: EmailBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(emails.sender, monkeypatch)
    broker, queue = emails.homing.email_broker, emails.queues.send
    at_once = emails.homing.ground.mails_at_once
    await emails.insert(12)
    await emails.schedule()
    async with at_work(emails.homing, ["email_log:send"]):
        await until(lambda: _is(slow.begun == at_once))
        await emails.homing.fleet.pause("lane", "email_log:send", by="cli:eve")
        # As many may wait before that, of which it would still take some.
        await paused(emails.homing, "email_log:send")
        await until(lambda: _waits(broker, queue, 12 - at_once))
        slow.go.set()
        await until(lambda: all_emails_sent(emails, at_once))
        await asyncio.sleep(QUIET)
        assert await _waits(broker, queue, 12 - at_once), "nothing turns in circles"
        await emails.homing.fleet.resume("lane", "email_log:send")
        await until(lambda: all_emails_sent(emails, 12))
    assert len(emails.sender.messages) == 12


async def _waits(broker: Broker, queue: Queue, count: int) -> bool:
    depth = await broker.measure(queue)
    return depth is not None and depth.waiting == count


async def test_a_consumer_at_rest_leaves_messages_to_others_until_it_is_asked(broker_url: str) -> None:
    broker = open_broker(broker_url, Telemetry())
    queue = Queue(f"rest-{uuid4().hex}")
    try:
        first = await broker.consume(queue, 10)
        await published(broker, queue, b"1", b"2")
        (held,) = await received(first, 1)
        await first.rest()
        second = await broker.consume(queue, 10)
        (other,) = await received(second, 1)
        assert {held.body, other.body} == {b"1", b"2"}
        await second.acknowledge([other])
        await second.close()
        await published(broker, queue, b"3")
        await first.acknowledge([held])
        assert [message.body for message in await received(first, 1)] == [b"3"]
    finally:
        await broker.close()


async def published(broker: Broker, queue: Queue, *bodies: bytes) -> None:
    """Each once: on a busy machine a broker may be slow to take the first."""
    for body in bodies:
        async with asyncio.timeout(60):
            while (await broker.publish(queue, [Publication(body)]))[0] is not None:
                await asyncio.sleep(0.2)


async def received(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await consumer.receive(1, 5.0)
    return found


async def test_a_paused_router_takes_nothing_and_goes_on_where_it_was(
    sqlite_url: str, broker_url: str, http_sink: HttpSink
) -> None:
    queue = f"jobs-{uuid4().hex}.fifo"
    options = {"jobs_broker_url": broker_url, "jobs_queue": queue, "port": 0}
    async with (
        job_bench(sqlite_url, **options) as jobs,
        at_work(jobs.homing, ["dispatch_jobs"], api=True) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        await create(client, http_sink.url)
        await until(lambda: _is(len(http_sink.requests) == 1))
        await jobs.homing.fleet.pause("lane", "dispatch_jobs", by="cli:eve")
        await paused(jobs.homing, "dispatch_jobs")
        ids = {await create(client, http_sink.url) for _ in range(3)}
        await asyncio.sleep(QUIET)
        assert len(http_sink.requests) == 1
        # Its message is in somebody else's hands from then on, so it is not put into our queue for a while.
        other = await create(client, http_sink.url)
        asked = await client.post(
            "/api/dispatch/process",
            json={"messageId": other},
            headers={"Authorization": f"Bearer {jobs.homing.process_tokens.token(other)}"},
        )
        assert (asked.status_code, asked.json()["ack"]) == (400, False), (
            "also a router of somebody else's waits"
        )
        assert "paused" in asked.json()["message"]
        await jobs.homing.fleet.resume("lane", "dispatch_jobs")
        await until(lambda: _is(len(http_sink.requests) >= 4))
    sent = Counter(str(request.header("webhook-id")) for request in http_sink.requests)
    assert set(sent.values()) == {1}
    assert {id.rpartition("_")[2] for id in sent} > ids


async def create(client: httpx.AsyncClient, url: str) -> str:
    body = {"source": "s", "type": "t", "targetUrl": url, "payload": "{}"}
    created = await client.post("/api/dispatch/jobs", json=body)
    assert created.status_code == 201, created.text
    id: str = created.json()["id"]
    return id
