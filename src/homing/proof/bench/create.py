"""POST /api/mail over HTTP, against the same endpoint that checks the mail, forgets it and says yes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import msgspec
from litestar import Litestar, Request, Response, post
from msgspec import Struct

from homing.app import Homing
from homing.http.app import build_app
from homing.http.server import serving
from homing.lanes.mail_outbox.api import CreatedMail
from homing.lanes.mail_outbox.orders import MailRequest, order_of
from homing.proof.bench.child import in_child
from homing.proof.bench.homing_worker import settings_for
from homing.proof.bench.measure import Budget, Series
from homing.proof.bench.sample_mails import sample_mail
from homing.proof.bench.servers import fresh_database, postgres
from homing.strict_json import decode, require_json
from homing.telemetry import Telemetry

Step = Callable[[str], None]

_WARM_UP = 500


class CreateJob(Struct, frozen=True):
    #: None for the endpoint without a database.
    postgres_url: str | None
    requests: int
    connections: int


class LoadJob(Struct, frozen=True):
    port: int
    requests: int
    connections: int


class Load(Struct, frozen=True):
    requests: int
    seconds: float


class CreateTable(Struct, frozen=True):
    without_database: Series
    with_database: Series
    ratio: Series
    budgets: tuple[Budget, ...]


async def create(
    requests: int, connections: int, rounds: int, step: Step, *, postgres_url: str | None = None
) -> CreateTable:
    bare, homing = [], []
    with postgres(postgres_url) as server:
        for number in range(1, rounds + 1):
            step(f"round {number} of {rounds}: without a database")
            bare.append(await _rate(CreateJob(None, requests, connections)))
            step(f"round {number} of {rounds}: Homing")
            with fresh_database(server) as url:
                homing.append(await _rate(CreateJob(url, requests, connections)))
    without, with_ = Series(tuple(bare)), Series(tuple(homing))
    ratio = with_.over(without)
    budget = Budget("create, of the endpoint without database", ratio.median, 0.4, "least")
    return CreateTable(without, with_, ratio, (budget,))


async def _rate(job: CreateJob) -> float:
    load = await in_child(f"{__name__}:serve_under_load", job, Load)
    return load.requests / load.seconds


async def serve_under_load(job: CreateJob) -> Load:
    """In a process of its own, which serves; the load comes from another one."""
    async with AsyncExitStack() as stack:
        if job.postgres_url is None:
            application = without_database()
        else:
            homing = Homing(settings_for(job.postgres_url, 25))
            stack.push_async_callback(homing.close)
            await homing.migrate()
            application = homing.asgi()
        address = await stack.enter_async_context(serving(application, "127.0.0.1", 0))
        port = int(address.rpartition(":")[2])
        await in_child(f"{__name__}:press", LoadJob(port, _WARM_UP, job.connections), Load)
        return await in_child(f"{__name__}:press", LoadJob(port, job.requests, job.connections), Load)


def without_database() -> Litestar:
    """The real handler's steps, but for the one that writes."""
    numbers = itertools.count(1)

    @post("/api/mail")
    async def answer(body: bytes, request: Request[Any, Any, Any]) -> Response[Any]:
        require_json(request.headers.get("content-type"))
        order_of(decode(body, MailRequest))
        return Response(CreatedMail(f"outbox_{next(numbers)}", "queued", "created"), status_code=201)

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
        (await loop.create_connection(lambda: _Client(numbers), "127.0.0.1", job.port))[1]
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

    def __init__(self, numbers: Any) -> None:
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
            self.transport.write(_request(number))

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


def _request(number: int) -> bytes:
    mail = sample_mail(number)
    body = msgspec.json.encode({"to": mail.to, "subject": mail.subject, "text": mail.text})
    head = "POST /api/mail HTTP/1.1\r\nhost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
    return f"{head}{len(body)}\r\n\r\n".encode() + body


def _content_length(head: bytes) -> int:
    lower = head.lower()
    start = lower.index(b"content-length:") + len(b"content-length:")
    return int(lower[start:].split(b"\r\n", 1)[0])
