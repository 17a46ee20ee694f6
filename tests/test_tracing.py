"""OpenTelemetry is told what every lane does, and a message takes along the trace that it was put in with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry
from tests.outbox import LogLines
from tests.tables import Tables

from homing.app import Homing
from homing.brokers.base import Queue
from homing.http.server import serving
from homing.lines import Line
from homing.senders.mail import Verdict
from homing.senders.memory import MemorySender
from homing.settings import load_settings
from homing.telemetry import Telemetry, make_logger
from homing.testing.http_sink import Answer, HttpSink
from homing.tracing import Tracing, read_trace
from homing.tracing.spans import Spans, make_provider

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": "rojo=1"}
UNSAMPLED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"}
NOBODY: Mapping[str, str] = {}
SEAT = {"termId": "2027-1", "campusCode": "NB", "indexNumber": "09214"}


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "migrated_postgres_url"
    url: str = request.getfixturevalue(name)
    return url


class Told:
    """A Homing that is served, and what OpenTelemetry was told of it."""

    def __init__(self, homing: Homing, client: httpx.AsyncClient, log: LogLines) -> None:
        self.homing = homing
        self.client = client
        self.log = log
        self.exporter = InMemorySpanExporter()

    async def put_in(self, path: str, caller: Mapping[str, str], /, **body: Any) -> Any:
        response = await self.client.post(path, json=body, headers=caller)
        assert response.is_success, response.text
        return response.json()

    async def job(self, url: str, caller: Mapping[str, str] = NOBODY, /, **fields: Any) -> str:
        body = {"source": "shop", "type": "order.created", "payload": "{}", "targetUrl": url, **fields}
        created = await self.put_in("/api/dispatch/jobs", caller, **body)
        id: str = created["id"]
        return id

    async def work(self, line: Line) -> None:
        await line.deliverer.settled(await line.deliverer.run_batch(100))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found

    async def stored(self, table: str) -> list[str | None]:
        return [row["traceparent"] for row in await Tables(self.homing.database).rows(table)]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return self.log.all("delivery.attempted")


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def traceparent(span: ReadableSpan) -> str:
    context = span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def linked(span: ReadableSpan) -> list[str]:
    return [f"{link.context.trace_id:032x}-{link.context.span_id:016x}" for link in span.links]


def place(span: ReadableSpan) -> str:
    """As a link names it."""
    return traceparent(span)[3:-3]


@asynccontextmanager
async def told(
    database_url: str, *, spans: bool = True, sample: float = 1.0, **flags: Any
) -> AsyncIterator[Told]:
    log, provider = LogLines(), make_provider(sample)
    tracing = Tracing(Spans(provider)) if spans else Tracing()
    telemetry = Telemetry(make_logger("json", 10, log.stream), CollectorRegistry(), tracing)
    given = {"encryption_key": "A" * 43 + "=", "mail_url": "memory://", "template_dir": "nowhere", **flags}
    homing = Homing(load_settings({**given, "database_url": database_url}, environ={}), telemetry)
    try:
        await homing.migrate()
        async with (
            serving(homing.asgi(), "127.0.0.1", 0) as address,
            httpx.AsyncClient(base_url=address, timeout=30) as client,
        ):
            homing.ground.address = address
            found = Told(homing, client, log)
            provider.add_span_processor(SimpleSpanProcessor(found.exporter))
            yield found
    finally:
        for line in homing.lines.values():
            await line.drain(5)
        await homing.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.02)


# ── every lane ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-25")
async def test_a_webhook_is_told_from_the_request_to_the_receiver(database_url: str) -> None:
    async with told(database_url) as homing, HttpSink() as sink:
        await homing.job(f"{sink.url}/hooks?key=secret", CALLER)
        await homing.work(homing.homing.webhooks)
        (request,) = await sink.received(1)
        create, process = homing.span("create dispatch_jobs"), homing.span("process dispatch_jobs")
        receive, settle = homing.span("receive dispatch_jobs"), homing.span("settle dispatch_jobs")
        # In the caller's trace it is put in; what follows has traces of its own, and links to that place.
        assert create.parent is not None
        assert (trace_id(create), f"{create.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)
        assert await homing.stored("dispatch_job") == [traceparent(create)]
        assert linked(process) == linked(receive) == [place(create)]
        assert linked(settle) == [place(process)]
        assert len({trace_id(span) for span in (create, receive, process, settle)}) == 4
        assert process.parent is None
        # The receiver goes on from the attempt.
        assert request.header("traceparent") == traceparent(process)
        assert (create.kind, receive.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert (process.kind, settle.kind) == (SpanKind.CLIENT, SpanKind.CLIENT)


@pytest.mark.clause("JOB-25")
async def test_what_is_said_of_an_attempt(sqlite_url: str) -> None:
    async with told(sqlite_url) as homing, HttpSink(lambda _: Answer(status=503)) as sink:
        id = await homing.job(f"{sink.url}/hooks?key=secret", maxRetries=3)
        await homing.work(homing.homing.webhooks)
        tables = Tables(homing.homing.database)
        await tables.change("dispatch_job", {"next_attempt_at": "2020-01-01T00:00:00.000Z"})
        await homing.work(homing.homing.webhooks)
        first, second = homing.spans("process dispatch_jobs")
        host, _, port = sink.url.removeprefix("http://").partition(":")
        assert dict(second.attributes or {}) == {
            "messaging.system": "homing",
            "messaging.destination.name": "dispatch_jobs",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": id,
            "homing.attempt": 2,
            "homing.outcome": "retry",
            "http.request.method": "POST",
            "http.request.resend_count": 1,
            "http.response.status_code": 503,
            "server.address": host,
            "server.port": int(port),
            "url.scheme": "http",
            "error.type": "http_503",
        }
        assert (first.attributes or {}).get("http.request.resend_count") is None
        assert second.status.status_code == StatusCode.ERROR
        # Nothing of the other side's words, and nothing of the URL.
        assert not second.status.description
        assert not second.events
        assert "secret" not in second.to_json()


async def test_mails_are_told(database_url: str) -> None:
    async with told(database_url) as homing:
        sender = homing.homing.sender
        assert isinstance(sender, MemorySender)
        sender.answer("bo@example.org", Verdict("rejected", 550, "5.1.1", "nobody of that name"))
        mail = {"subject": "Hi", "text": "Hello."}
        many = [{"to": f"{name}@example.org", **mail} for name in ("ann", "bo")]
        response = await homing.client.post("/api/mail", json=many, headers=CALLER)
        assert response.json()["created"] == 2
        await homing.work(homing.homing.mail)
        create, receive = homing.span("create mail_outbox"), homing.span("receive mail_outbox")
        assert (create.attributes or {})["messaging.batch.message_count"] == 2
        assert await homing.stored("mail_outbox") == [traceparent(create)] * 2
        assert linked(receive) == [place(create)] * 2
        attempts = homing.spans("process mail_outbox")
        assert [linked(span) for span in attempts] == [[place(create)]] * 2
        outcomes = {(span.attributes or {})["homing.outcome"]: span for span in attempts}
        assert set(outcomes) == {"delivered", "reject"}
        assert outcomes["delivered"].status.status_code == StatusCode.UNSET
        assert "error.type" in (outcomes["reject"].attributes or {})
        settled = [link for span in homing.spans("settle mail_outbox") for link in linked(span)]
        assert sorted(settled) == sorted(place(span) for span in attempts)
        # No mail tells its readers of our traces, and no span of its readers.
        assert all(
            "trace" not in name.lower() for _, mail_sent in sender.delivered for name, _ in mail_sent.headers
        )
        assert "example.org" not in "".join(span.to_json() for span in homing.exporter.get_finished_spans())
        # By the log both are found: where it was put in, and the attempt.
        assert {line["trace_id"] for line in homing.attempts} == {TRACE_ID}
        assert {line["attempt_trace_id"] for line in homing.attempts} == set(map(trace_id, attempts))


async def test_emails_are_told_in_both_stages(database_url: str) -> None:
    async with told(database_url, email_broker_url=f"memory://{uuid4().hex}") as homing:
        await homing.put_in("/api/emails", CALLER, to="ann@example.org", subject="Hi", body="Hello.")
        await homing.work(homing.homing.email_schedule)
        feed = homing.homing.email_send.worker()
        running = asyncio.create_task(feed.run())
        await until(lambda: _is(len(homing.spans("settle email_log:send")) == 1))
        feed.stop()
        await running
        create = homing.span("create email_log")
        assert await homing.stored("email_log") == [traceparent(create)]
        publish, process = homing.span("send email_log:schedule"), homing.span("process email_log:send")
        assert linked(publish) == linked(process) == [place(create)]
        assert (publish.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)


async def test_notifications_are_told(database_url: str) -> None:
    async with told(database_url) as homing:
        await homing.put_in("/api/notifications/subscriptions", NOBODY, **SEAT, email="ann@example.org")
        await Tables(homing.homing.database).change("subscriptions", {"status": "active"})
        flip = {**SEAT, "statusBefore": "Closed", "statusAfter": "Open"}
        await homing.put_in("/api/notifications/events", CALLER, **flip)
        await homing.work(homing.homing.notify)
        (event,) = await Tables(homing.homing.database).rows("open_events")
        assert event["trace_id"] == TRACE_ID
        assert trace_id(homing.span("create open_events")) == TRACE_ID
        # The table has room for the trace alone.
        (link,) = linked(homing.span("process open_events"))
        assert link.startswith(TRACE_ID)
        assert homing.attempts[-1]["trace_id"] == homing.attempts[-1]["traceId"] == TRACE_ID


async def _is(fact: bool) -> bool:
    return fact


async def test_a_dead_letter_belongs_to_the_trace_of_its_job(sqlite_url: str) -> None:
    async with HttpSink(lambda _: Answer(status=410)) as sink:
        url = f"{sink.url}/dead"
        async with told(sqlite_url, spans=False, jobs_dead_letter_url=url) as homing:
            await homing.job(f"{sink.url}/hooks", CALLER)
            await homing.work(homing.homing.webhooks)
            await homing.homing.webhooks.maintenance.once()
            await homing.work(homing.homing.webhooks)
            job, letter = await sink.received(2)
            assert (job.path, letter.path) == ("/hooks", "/dead")
            assert {name: letter.header(name) for name in CALLER} == CALLER


# ── through brokers ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("broker", ["memory", "rabbitmq", "sqs"])
async def test_a_message_takes_its_trace_along(
    request: pytest.FixtureRequest, sqlite_url: str, broker: str
) -> None:
    url = f"memory://{uuid4().hex}" if broker == "memory" else request.getfixturevalue(f"{broker}_url")
    queue = f"jobs-{uuid4().hex}.fifo"
    async with told(sqlite_url, jobs_broker_url=url, jobs_queue=queue) as homing:
        await homing.job("http://127.0.0.1:9/hooks", CALLER)
        queueing, jobs_broker = homing.homing.queueing, homing.homing.jobs_broker
        assert queueing is not None
        assert jobs_broker is not None
        await homing.work(queueing)
        consumer = await jobs_broker.consume(Queue(queue), 1)
        (message,) = await _received(consumer)
        sent = homing.span("send dispatch_queue")
        assert sent.kind == SpanKind.PRODUCER
        assert linked(sent) == [place(homing.span("create dispatch_jobs"))]
        assert message.trace is not None
        assert message.trace.traceparent == traceparent(sent)
        # Given back with a delay it is another message to RabbitMQ; the trace stays.
        await consumer.give_back([message], 1.0)
        (again,) = await _received(consumer)
        assert again.trace == message.trace
        await consumer.acknowledge([again])
        await consumer.close()


async def _received(consumer: Any) -> Sequence[Any]:
    async with asyncio.timeout(60):
        while not (found := await consumer.receive(1, 1.0)):
            pass
    return list(found)


async def test_the_router_passes_the_trace_on_to_the_mediator(sqlite_url: str) -> None:
    """Over HTTP, as to any other program; here to our own endpoint."""
    broker = f"memory://{uuid4().hex}"
    async with (
        told(sqlite_url, jobs_broker_url=broker, jobs_mediation="http") as homing,
        HttpSink() as sink,
    ):
        await homing.job(f"{sink.url}/hooks", CALLER)
        queueing, router = homing.homing.queueing, homing.homing.router
        assert queueing is not None
        assert router is not None
        await homing.work(queueing)
        running = asyncio.create_task(router.run())
        await sink.received(1)
        await until(lambda: _is(bool(homing.spans("process DISPATCH-POOL"))))
        router.stop()
        await router.drain(5)
        await running
        mediated = homing.span("process DISPATCH-POOL")
        assert linked(mediated) == [place(homing.span("send dispatch_queue"))]


# ── without spans ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("database", ["sqlite", "postgres", "mongodb"])
async def test_without_spans_what_came_is_passed_on(
    request: pytest.FixtureRequest, sqlite_url: str, database: str
) -> None:
    jobs_url = None if database == "sqlite" else request.getfixturevalue(f"migrated_{database}_url")
    async with told(sqlite_url, spans=False, jobs_database_url=jobs_url) as homing, HttpSink() as sink:
        await homing.job(f"{sink.url}/hooks", CALLER)
        await homing.job(f"{sink.url}/hooks", {"traceparent": "nonsense", "tracestate": "a=1"})
        await homing.work(homing.homing.webhooks)
        requests = await sink.received(2)
        assert sorted((r.header("traceparent") or "", r.header("tracestate") or "") for r in requests) == [
            ("", ""),
            (CALLER["traceparent"], CALLER["tracestate"]),
        ]
        assert sorted(line.get("trace_id", "") for line in homing.attempts) == ["", TRACE_ID]
        assert not homing.exporter.get_finished_spans()


@pytest.mark.parametrize("spans", [False, True])
async def test_a_traceparent_of_ones_own_wins(sqlite_url: str, spans: bool) -> None:
    own = f"00-{'a' * 32}-{'b' * 16}-00"
    async with told(sqlite_url, spans=spans) as homing, HttpSink() as sink:
        await homing.job(f"{sink.url}/hooks", CALLER, headers={"Traceparent": own})
        await homing.work(homing.homing.webhooks)
        (request,) = await sink.received(1)
        assert [value for name, value in request.headers if name.lower() == "traceparent"] == [own]
        assert request.header("tracestate") is None


async def test_a_row_of_another_program_has_its_trace(database_url: str) -> None:
    """Good or nonsense: it is sent."""
    async with told(database_url) as homing:
        for text in (CALLER["traceparent"], "nonsense", "00-" + "x" * 5000, None):
            values = {
                "to_address": "ann@example.org",
                "subject": "Hi",
                "text_body": "Hi",
                "traceparent": text,
            }
            await Tables(homing.homing.database).insert("mail_outbox", values)
        await homing.work(homing.homing.mail)
        assert (await homing.homing.outbox.counts())["sent"] == 4
        attempts = homing.spans("process mail_outbox")
        assert sorted(linked(span) for span in attempts) == [[], [], [], [f"{TRACE_ID}-{SPAN_ID}"]]


@pytest.mark.parametrize("spans", [True, False])
@pytest.mark.parametrize("url", ["https://shop.example:99999/hooks", "https://[nonsense]/hooks"])
async def test_an_address_that_is_none_ends_as_it_does_without_spans(
    database_url: str, url: str, spans: bool
) -> None:
    """As another program wrote it: to tell of an attempt must not change what came of it."""
    async with told(database_url, spans=spans) as homing:
        job = {"source": "shop", "type": "order.created", "target_url": url, "payload": "{}"}
        await Tables(homing.homing.database).insert("dispatch_job", job)
        await homing.work(homing.homing.webhooks)
        (ended,) = await Tables(homing.homing.database).rows("dispatch_job")
        assert (ended["status"], ended["error_class"]) == ("ERROR", "invalid_url")
        assert homing.log.all("delivery.crashed") == []


async def test_a_repeated_order_may_come_in_another_trace(database_url: str) -> None:
    async with told(database_url) as homing:
        for _ in range(2):
            await homing.job("https://example.org/hooks", idempotencyKey="one")
        assert len(homing.spans("create dispatch_jobs")) == 2
        assert len(await homing.stored("dispatch_job")) == 1


# ── which are told ───────────────────────────────────────────────────────────────────────────────


async def test_who_put_it_in_has_decided(sqlite_url: str) -> None:
    """Where nobody has, the share does; what is not told of passes on what came."""
    async with told(sqlite_url, sample=0.0) as homing, HttpSink() as sink:
        for caller in (CALLER, UNSAMPLED, NOBODY):
            await homing.job(f"{sink.url}/hooks", caller)
            await homing.work(homing.homing.webhooks)
        sampled, unsampled, nobody = [
            read_trace(request.header("traceparent")) for request in await sink.received(3)
        ]
        assert len(homing.spans("process dispatch_jobs")) == 1
        assert sampled is not None
        assert sampled.is_sampled
        assert unsampled is not None
        assert (unsampled.trace_id, unsampled.is_sampled) == (TRACE_ID, False)
        assert nobody is not None
        assert not nobody.is_sampled


async def test_an_attempt_that_was_called_off_is_told(sqlite_url: str) -> None:
    async with told(sqlite_url) as homing, HttpSink(lambda _: Answer(silent=True)) as sink:
        await homing.job(f"{sink.url}/hooks")
        await homing.homing.webhooks.deliverer.run_batch(10)
        await sink.received(1)
        await homing.homing.webhooks.drain(0)
        attributes = homing.span("process dispatch_jobs").attributes or {}
        assert (attributes["homing.outcome"], attributes["error.type"]) == ("called_off", "called_off")
