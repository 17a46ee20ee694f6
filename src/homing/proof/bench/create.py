"""Creates over HTTP, against the same endpoints that check what they are sent, forget it and say yes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from litestar import Litestar, Request, Response, post
from msgspec import Struct
from msgspec.structs import replace

from homing.app import Homing
from homing.http.app import build_app
from homing.http.server import serving
from homing.lanes.dispatch_jobs.jobs import Ordered
from homing.lanes.dispatch_jobs.orders import Rules, read_order
from homing.lanes.dispatch_jobs.view import JobView, echoed
from homing.lanes.mail_outbox.api import CreatedMail
from homing.lanes.mail_outbox.orders import MailRequest, order_of
from homing.proof.bench.child import in_child
from homing.proof.bench.measure import Budget, Series
from homing.proof.bench.sample_jobs import sample_payload
from homing.proof.bench.sample_mails import sample_mail
from homing.proof.bench.servers import fresh_database, postgres
from homing.proof.bench.webhook_homing import webhook_settings
from homing.senders.egress import EgressGuard
from homing.strict_json import decode, require_json
from homing.telemetry import Telemetry

Step = Callable[[str], None]

_WARM_UP = 500


class Creation(Struct, frozen=True):
    """What one lane offers to create."""

    path: str
    #: The n-th request.
    order: Callable[[int], dict[str, Any]]
    #: The real handler's steps, but for the one that writes; the number stands for the id.
    reply: Callable[[bytes, int], Struct]


class CreateJob(Struct, frozen=True):
    lane: str
    #: None for the endpoint without a database.
    postgres_url: str | None
    requests: int
    connections: int


class LoadJob(Struct, frozen=True):
    lane: str
    port: int
    requests: int
    connections: int


class Load(Struct, frozen=True):
    requests: int
    seconds: float


class CreateLine(Struct, frozen=True):
    lane: str
    without_database: Series
    with_database: Series
    ratio: Series


class CreateTable(Struct, frozen=True):
    lines: tuple[CreateLine, ...]
    budgets: tuple[Budget, ...]


async def create(
    lanes: Sequence[str],
    requests: int,
    connections: int,
    rounds: int,
    step: Step,
    *,
    postgres_url: str | None = None,
) -> CreateTable:
    rates: dict[str, tuple[list[float], list[float]]] = {lane: ([], []) for lane in lanes}
    with postgres(postgres_url) as server:
        for number in range(1, rounds + 1):
            for lane, (bare, homing) in rates.items():
                step(f"round {number} of {rounds}: {lane} without a database")
                bare.append(await _rate(CreateJob(lane, None, requests, connections)))
                step(f"round {number} of {rounds}: {lane}")
                with fresh_database(server) as url:
                    homing.append(await _rate(CreateJob(lane, url, requests, connections)))
    lines = [
        _line(lane, Series(tuple(bare)), Series(tuple(homing))) for lane, (bare, homing) in rates.items()
    ]
    return CreateTable(tuple(lines), tuple(_budget(line) for line in lines))


def _line(lane: str, bare: Series, homing: Series) -> CreateLine:
    return CreateLine(lane, bare, homing, homing.over(bare))


def _budget(line: CreateLine) -> Budget:
    what = f"create in {line.lane}, of the endpoint without database"
    return Budget(what, line.ratio.median, 0.4, "least")


async def _rate(job: CreateJob) -> float:
    load = await in_child(f"{__name__}:serve_under_load", job, Load)
    return load.requests / load.seconds


async def serve_under_load(job: CreateJob) -> Load:
    """In a process of its own, which serves; the load comes from another one."""
    async with AsyncExitStack() as stack:
        if job.postgres_url is None:
            application = without_database(CREATIONS[job.lane])
        else:
            homing = Homing(webhook_settings(job.postgres_url))
            stack.push_async_callback(homing.close)
            await homing.migrate()
            application = homing.asgi()
        address = await stack.enter_async_context(serving(application, "127.0.0.1", 0))
        port = int(address.rpartition(":")[2])
        load = LoadJob(job.lane, port, job.requests, job.connections)
        await in_child(f"{__name__}:press", replace(load, requests=_WARM_UP), Load)
        return await in_child(f"{__name__}:press", load, Load)


def without_database(creation: Creation) -> Litestar:
    """The real handler's steps, but for the one that writes."""
    numbers = itertools.count(1)

    @post(creation.path)
    async def answer(body: bytes, request: Request[Any, Any, Any]) -> Response[Any]:
        require_json(request.headers.get("content-type"))
        return Response(creation.reply(body, next(numbers)), status_code=201)

    health = {"telemetry": Telemetry(), "check_ready": _well, "refresh_gauges": _well}
    return build_app([answer], health, Telemetry(), static=False)


async def _well() -> None:
    """There is nothing that could be unwell."""


# ── the load ─────────────────────────────────────────────────────────────────────────────────────


async def press(job: LoadJob) -> Load:
    """In a process of its own: keep-alive connections, each with one request under way."""
    loop = asyncio.get_running_loop()
    numbers = iter(range(job.requests))
    clients = [
        (await loop.create_connection(lambda: _Client(CREATIONS[job.lane], numbers), "127.0.0.1", job.port))[
            1
        ]
        for _ in range(job.connections)
    ]
    started = time.perf_counter()
    for client in clients:
        client.next()
    await asyncio.gather(*(client.ended for client in clients))
    seconds = time.perf_counter() - started
    for client in clients:
        client.transport.close()
    return Load(sum(client.answered for client in clients), seconds)


class _Client(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, creation: Creation, numbers: Any) -> None:
        self._creation = creation
        self._numbers = numbers
        self._buffer = b""
        self.answered = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def next(self) -> None:
        number = next(self._numbers, None)
        if number is None:
            self.ended.set_result(None)
        else:
            self.transport.write(_request(self._creation, number))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank or len(body) < _content_length(head):
            return
        self._buffer = b""
        if not head.startswith(b"HTTP/1.1 201"):
            self.ended.set_exception(ConnectionError(f"the server said {head!r} {body!r}"))
            return
        self.answered += 1
        self.next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("the server hung up"))


def _request(creation: Creation, number: int) -> bytes:
    body = msgspec.json.encode(creation.order(number))
    head = f"POST {creation.path} HTTP/1.1\r\nhost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _content_length(head: bytes) -> int:
    lower = head.lower()
    start = lower.index(b"content-length:") + len(b"content-length:")
    return int(lower[start:].split(b"\r\n", 1)[0])


# ── what is created ──────────────────────────────────────────────────────────────────────────────


def _mail_order(number: int) -> dict[str, Any]:
    mail = sample_mail(number)
    return {"to": mail.to, "subject": mail.subject, "text": mail.text}


def _mail_reply(body: bytes, number: int) -> CreatedMail:
    order_of(decode(body, MailRequest))
    return CreatedMail(f"outbox_{number}", "queued", "created")


def _job_order(number: int) -> dict[str, Any]:
    return {
        "source": "order-service",
        "type": "order.shipped",
        "targetUrl": "https://example.org/webhooks/orders",
        "payload": sample_payload(number),
        "metadata": {"tenantId": "acme-corp", "orderId": str(number)},
    }


def _job_reply(body: bytes, number: int) -> JobView:
    order = read_order(body, _RULES)
    return echoed(order, Ordered("created", number, "PENDING", datetime.now(UTC)))


_RULES = Rules(EgressGuard().url_refusal)
CREATIONS: Mapping[str, Creation] = {
    "mail_outbox": Creation("/api/mail", _mail_order, _mail_reply),
    "dispatch_jobs": Creation("/api/dispatch/jobs", _job_order, _job_reply),
}
