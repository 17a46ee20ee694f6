"""`homing serve` under siege: it stays below 512 MiB, loses nothing, and goes on serving everybody else.

Who attacks has an address of its own. Who behaves well asks from another, at a steady pace, before the attack
and during it.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import asynccontextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import httpx
import pytest
from msgspec import Struct
from tests.conftest import IN_FULL, make_tables
from tests.http.test_access_processes import desk, homing, port_of
from tests.tables import Tables

from homing.access.keys import KeyOrder
from homing.app import MIGRATED
from homing.db import connect

MIB = 1 << 20
LIMIT = 512 * MIB
WELL_BEHAVED, HOSTILE = "127.0.0.2", "127.0.0.3"
#: How many files it may open, and no more for the asking.
FILES = "1024:1024"
#: For so many seconds it is calm, and then it is not, unless one attack takes longer.
LONG = 10.0 if IN_FULL else 1.0
#: Seconds between two requests of a client that behaves well.
PACE = 0.05
CLIENTS = 4
JSON = {"Content-Type": "application/json"}


class Besieged(Struct):
    url: str
    pid: int
    port: int
    key: str
    #: Idempotency keys of the mails that were answered with 201.
    taken: list[str]

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def peak(self) -> int:
        """The most memory that the process ever held."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) << 10


Attack: TypeAlias = Callable[[Besieged], Coroutine[Any, Any, None]]


@pytest.fixture
async def besieged(database_url: str) -> AsyncIterator[Besieged]:
    make_tables(database_url, MIGRATED)
    async with desk(database_url) as access:
        issued = await access.keys.create(
            KeyOrder("test", ["mail:write", "emails:write", "jobs:write"]), by="cli:test"
        )
    async with homing(database_url, "serve", "--port", "0", files=FILES) as process:
        yield Besieged(database_url, process.pid, await port_of(process), issued.key, [])


# ── who behaves well ─────────────────────────────────────────────────────────────────────────────


class Served(Struct):
    asked: int = 0
    taken: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        return self.taken / self.asked

    @property
    def rate(self) -> float:
        return self.taken / self.seconds


async def serve_others(besieged: Besieged, until: Callable[[], bool]) -> Served:
    """Clients that put mails in at a steady pace, each waiting for its answer."""
    served, began = Served(), time.monotonic()
    async with asking(besieged, WELL_BEHAVED) as client:
        await asyncio.gather(*(_put_mails(besieged, client, served, until) for _ in range(CLIENTS)))
    served.seconds = time.monotonic() - began
    return served


async def _put_mails(
    besieged: Besieged, client: httpx.AsyncClient, served: Served, until: Callable[[], bool]
) -> None:
    while not until():
        asked = time.monotonic()
        served.asked += 1
        if await put_mail(besieged, client):
            served.taken += 1
        await asyncio.sleep(max(0.0, asked + PACE - time.monotonic()))


async def put_mail(besieged: Besieged, client: httpx.AsyncClient, attachments: bytes = b"[]") -> bool:
    """Whether it was taken. The body is made without work that would keep others of this process waiting."""
    key = uuid4().hex
    body = b'{"to":"ann@example.com","subject":"hello","text":"hello","idempotencyKey":"%s","attachments":%s}'
    with suppress(httpx.TransportError):
        answer = await client.post("/api/mail", content=body % (key.encode(), attachments), headers=JSON)
        assert answer.status_code in {201, 503}, answer.text
        if answer.status_code == 201:
            besieged.taken.append(key)
            return True
    return False


@asynccontextmanager
async def asking(besieged: Besieged, address: str) -> AsyncIterator[httpx.AsyncClient]:
    # A connection for each request: one that is open already does not notice that nobody else gets in.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=limits)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{besieged.port}", headers=besieged.bearer, transport=transport, timeout=60
    ) as client:
        yield client


# ── who does not ─────────────────────────────────────────────────────────────────────────────────


async def endless_headers(besieged: Besieged) -> None:
    """64 MiB of header lines on each of four connections."""
    lines = b"x-more: m\r\n" * 6000

    async def send(_: int) -> None:
        with suppress(ConnectionError):
            _reader, writer = await _connected(besieged)
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            for _ in range(64 * MIB // len(lines)):
                writer.write(lines)
                await writer.drain()
            writer.close()

    await asyncio.gather(*map(send, range(4)))


async def slow_headers(besieged: Besieged) -> None:
    """1,100 requests that are never finished."""
    held = []
    for _ in range(1100):
        with suppress(ConnectionError):
            _, writer = await _connected(besieged)
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            held.append(writer)
    await asyncio.sleep(LONG)
    for writer in held:
        writer.close()


async def large_bodies(besieged: Besieged) -> None:
    """25 bodies of 16 MiB at once, for somebody's token and for a key that may write jobs."""
    body = b'{"jobs": [' + b" " * (16 * MIB - 100) + b"]}"

    async def send(n: int) -> None:
        # `hom_…` is somebody's token, too, for a route that asks for the token of a message.
        path = "/api/dispatch/process" if n % 2 else "/api/dispatch/jobs/batch"
        async with asking(besieged, HOSTILE) as client:
            with suppress(httpx.TransportError):
                answer = await client.post(path, content=body, headers=JSON)
                assert answer.status_code < 500 or answer.status_code == 503, answer.text

    await asyncio.gather(*map(send, range(25)))


async def large_attachments(besieged: Besieged) -> None:
    """Mails with 10 MB attachments, ten at a time, and emails."""
    content = base64.b64encode(b"a" * 10_000_000)
    attachments = b'[{"filename":"a.bin","content":"%s"}]' % content
    email = b'{"to":"ann@example.com","subject":"hello","body":"hello","messageKey":"%s","attachments":%s}'

    async def send(n: int) -> None:
        async with asking(besieged, HOSTILE) as client:
            if n % 2:
                await put_mail(besieged, client, attachments)
                return
            body = email % (uuid4().hex.encode(), attachments)
            with suppress(httpx.TransportError):
                answer = await client.post("/api/emails", content=body, headers=JSON)
                assert answer.status_code in {202, 503}, answer.text

    await asyncio.gather(*map(send, range(10)))


async def _connected(besieged: Besieged) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", besieged.port, local_addr=(HOSTILE, 0))


# ── the siege ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def attackers() -> Iterator[Executor]:
    """In a process of their own: they are not to wait for each other with those who behave well."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(int).result()
        yield pool


@pytest.mark.slow
@pytest.mark.parametrize("attack", [endless_headers, slow_headers, large_bodies, large_attachments])
async def test_an_attack_costs_little_memory_no_mail_and_nobody_elses_requests(
    besieged: Besieged, attackers: Executor, attack: Attack
) -> None:
    calm = await serve_others(besieged, asyncio.ensure_future(asyncio.sleep(LONG)).done)
    attacking = asyncio.get_running_loop().run_in_executor(attackers, for_long, attack, besieged)
    beside = await serve_others(besieged, attacking.done)
    assert besieged.peak() < LIMIT, f"{besieged.peak() >> 20} MiB"
    assert calm.share == 1.0
    assert beside.share >= 0.9
    # In a run of all tests other tests take their share of the machine.
    assert beside.rate >= 0.9 * calm.rate or not IN_FULL, f"{beside} beside {calm}"
    assert await keys_in(besieged.url) >= {*besieged.taken, *await attacking}


def for_long(attack: Attack, besieged: Besieged) -> list[str]:
    """The idempotency keys of the mails that the attack put in."""
    besieged.taken.clear()
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        asyncio.run(attack(besieged))
    return besieged.taken


async def keys_in(url: str) -> set[str]:
    database = connect(url)
    try:
        rows = await Tables(database).sql("SELECT idempotency_key FROM mail_outbox")
        return {row["idempotency_key"] for row in rows}
    finally:
        await database.close()
