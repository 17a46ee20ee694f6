"""What a client takes of the server before anybody knows who it is, measured at real sockets."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from msgspec import Struct
from tests.http.door import url_with_tables
from tests.http.test_access_processes import homing, port_of
from tests.outbox import LogLines, bench

from homing.app import Homing
from homing.http.connection import LARGEST_HEAD, LARGEST_URL, MOST_HEADERS, Limits
from homing.http.server import serving

MIB = 1 << 20
HEAD = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
#: A form that is read before anybody is known.
LOGIN = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: same-origin\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n"
)
CHUNKED = LOGIN + b"Transfer-Encoding: chunked\r\n\r\n"
EVENTS = b"GET /events?topic=messages HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
STATIC = b"GET /static/homing.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Place(Struct):
    homing: Homing
    log: LogLines
    address: str

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    def refused(self, reason: str) -> float:
        return self._sample("homing_http_refused_total", {"reason": reason})

    @property
    def connections(self) -> float:
        return self._sample("homing_http_connections", {})

    @property
    def unread(self) -> float:
        return self._sample("homing_http_unread_bytes", {})

    def _sample(self, name: str, labels: dict[str, str]) -> float:
        return self.homing.telemetry.registry.get_sample_value(name, labels) or 0.0

    async def live(self) -> int:
        async with httpx.AsyncClient(base_url=self.address) as client:
            return (await client.get("/health/live")).status_code


@asynccontextmanager
async def place(folder: Path, limits: Limits, made: Callable[[Homing], Litestar]) -> AsyncIterator[Place]:
    async with (
        bench(url_with_tables(folder)) as lane,
        serving(made(lane.homing), "127.0.0.1", 0, limits) as address,
    ):
        yield Place(lane.homing, lane.log, address)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


# ── heads ────────────────────────────────────────────────────────────────────────────────────────


def pieces(*given: bytes | Iterator[bytes]) -> Iterator[bytes]:
    for piece in given:
        yield from (piece,) if isinstance(piece, bytes) else piece


def endless(piece: bytes) -> Iterator[bytes]:
    return repeat(piece, 64 * MIB // len(piece))


#: What never ends, and what is said of it.
ENDLESS: dict[str, tuple[Callable[[], Iterator[bytes]], int]] = {
    "many fields": (lambda: pieces(HEAD, endless(b"x-more: m\r\n" * 1000)), 431),
    "one field's value": (lambda: pieces(HEAD, b"x-more: ", endless(b"m" * 8192)), 431),
    "one field's name": (lambda: pieces(HEAD, endless(b"m" * 8192)), 431),
    "fields behind the body": (
        lambda: pieces(CHUNKED, b"1\r\na\r\n0\r\n", endless(b"x-more: m\r\n" * 1000)),
        431,
    ),
    "an extension of a chunk": (lambda: pieces(CHUNKED, b"1;", endless(b"m" * 8192)), 431),
    "lines before the request": (lambda: endless(b"\r\n" * 4096), 431),
    "the URL": (lambda: pieces(b"GET /", endless(b"m" * 8192)), 414),
    "the query": (lambda: pieces(b"GET /health/live?q=", endless(b"m" * 8192)), 414),
}


@pytest.mark.parametrize("made", [Homing.asgi, Homing.metrics_asgi], ids=["api", "metrics"])
@pytest.mark.parametrize("name", ENDLESS)
async def test_what_never_ends_is_refused_after_64_kib(
    tmp_path: Path, made: Callable[[Homing], Litestar], name: str
) -> None:
    given, status = ENDLESS[name]
    async with place(tmp_path, Limits(), made) as there:
        taken, answer = await told(there, given())
        assert taken < 8 * MIB
        # Who goes on sending may be told of the end before it has read what was said.
        assert not answer or answer.startswith(b"HTTP/1.1 %d " % status)
        await until(lambda: there.connections == 0)
        assert there.refused("long_url" if status == 414 else "large_head") == 1
        assert await there.live() == 200


async def told(there: Place, given: Iterator[bytes]) -> tuple[int, bytes]:
    """How much was taken of what was given, and the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
    taken, answer = 0, b""
    with suppress(ConnectionError):
        for piece in given:
            writer.write(piece)
            await writer.drain()
            taken += len(piece)
    with suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    return taken, answer


@pytest.mark.parametrize("made", [Homing.asgi, Homing.metrics_asgi], ids=["api", "metrics"])
async def test_a_head_is_taken_up_to_its_limits_and_refused_beyond(
    tmp_path: Path, made: Callable[[Homing], Litestar]
) -> None:
    fields = b"".join(b"x-%d: m\r\n" % n for n in range(MOST_HEADERS - 2))
    last = b"Connection: close\r\n"
    room = LARGEST_HEAD - len(HEAD) - len(b"x-m: \r\n") - len(last)
    path = b"/health/live?q="
    url = b"GET " + path + b"m" * (LARGEST_URL - len(path)) + b"%b HTTP/1.1\r\nHost: 127.0.0.1\r\n" + last
    cases = [
        (HEAD + fields + last, 200),
        (HEAD + fields + b"x-more: m\r\n" + last, 431),
        (HEAD + b"x-m: " + b"m" * room + b"\r\n" + last, 200),
        (HEAD + b"x-m: " + b"m" * (room + 64) + b"\r\n" + last, 431),
        (url % b"", 200),
        (url % b"m", 414),
    ]
    async with place(tmp_path, Limits(), made) as there:
        for request, status in cases:
            _, answer = await told(there, pieces(request + b"\r\n"))
            assert answer.startswith(b"HTTP/1.1 %d " % status), (status, request[:80])
            if status != 200:
                body = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])
                assert body["error"]["code"] == "INVALID_REQUEST"


@post("/told", status_code=200)
async def told_fields(request: Request[Any, Any, Any]) -> list[str]:
    """As whoever asks for a field after the body was read sees it."""
    await request.body()
    return request.headers.getall("x-forwarded-for", []) + request.headers.getall("authorization", [])


async def test_fields_behind_a_body_count_and_are_not_read(tmp_path: Path) -> None:
    head = (
        b"POST /told HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    )
    behind = b"X-Forwarded-For: 198.51.100.9\r\nAuthorization: Bearer x\r\n"
    more = b"x-more: m\r\n" * (MOST_HEADERS - 6)

    def made(homing: Homing) -> Litestar:
        return Litestar([told_fields], state=State({"telemetry": homing.telemetry, "closing": []}))

    async with place(tmp_path, Limits(), made) as there:
        _, answer = await told(there, pieces(head + behind + more + b"\r\n"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert msgspec.json.decode(answer.partition(b"\r\n\r\n")[2]) == ["192.0.2.7"]
        _, answer = await told(there, pieces(head + behind + more + b"x-more: m\r\n\r\n"))
        assert answer.startswith(b"HTTP/1.1 431 ")


async def test_an_answer_is_not_taken_for_that_to_the_request_before(tmp_path: Path) -> None:
    async with place(tmp_path, Limits(), Homing.asgi) as there:
        _, answer = await told(there, pieces(HEAD + b"\r\n" + HEAD + b"x-m: m\r\n" * 100 + b"\r\n"))
        assert b" 431 " not in answer
        assert there.refused("large_head") == 1


async def test_requests_that_nobody_waits_for_are_taken_up_to_a_number(tmp_path: Path) -> None:
    async with place(tmp_path, Limits(), Homing.asgi) as there:
        _, answer = await told(
            there, pieces(HEAD + b"\r\n", (HEAD + b"\r\n") * 15, HEAD + b"Connection: close\r\n\r\n")
        )
        assert answer.count(b"HTTP/1.1 200 ") == 17
        await told(there, pieces((HEAD + b"\r\n") * 1000))
        assert there.refused("crowded") == 1


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


SLOW: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "half a head": (HEAD, b"HTTP/1.1 408 "),
    "half a body": (LOGIN + b"Content-Length: 9\r\n\r\nname", b"HTTP/1.1 408 "),
    "half a chunk": (CHUNKED + b"9\r\nname", b"HTTP/1.1 408 "),
    "lines before the request": (b"\r\n", b""),
}


@pytest.mark.parametrize("name", SLOW)
async def test_who_does_not_go_on_is_given_up(tmp_path: Path, name: str) -> None:
    given, expected = SLOW[name]
    async with place(tmp_path, Limits(header_seconds=2), Homing.asgi) as there:
        _, answer = await told(there, pieces(given))
        assert answer.startswith(expected)
        assert bool(answer) == bool(expected)
        assert there.refused("slow") == 1
        await until(lambda: there.connections == 0)


async def test_a_byte_now_and_then_buys_no_time(tmp_path: Path) -> None:
    async with place(tmp_path, Limits(header_seconds=2), Homing.asgi) as there, AsyncExitStack() as held:
        _, writer = await connected(there, held, HEAD)
        async with asyncio.timeout(60):
            while not there.refused("slow"):
                writer.write(b"x: y\r\n")
                await asyncio.sleep(0.2)
        await until(lambda: there.connections == 0)


async def test_a_connection_that_nobody_uses_is_closed(tmp_path: Path) -> None:
    async with place(tmp_path, Limits(idle_seconds=1), Homing.asgi) as there:
        began = time.monotonic()
        _, answer = await told(there, pieces(HEAD + b"\r\n"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        # uvicorn by itself waits for five.
        assert time.monotonic() - began < 4
        assert there.refused("slow") == 0


async def test_who_leaves_in_the_middle_is_nobodys_fault(tmp_path: Path) -> None:
    """A line of the log for each would be an attack of its own."""
    async with place(tmp_path, Limits(), Homing.asgi) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        writer.write(LOGIN + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\nname")
        assert (await reader.readline()).startswith(b"HTTP/1.1 100 ")
        writer.close()
        await until(lambda: there.connections == 0)
        assert not there.log.all("http.failed")


async def test_who_does_not_read_is_given_up(tmp_path: Path) -> None:
    """Static files need no key; what is not read of them stays in memory."""
    async with place(tmp_path, Limits(header_seconds=2), Homing.asgi) as there:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", there.port))
            async with asyncio.timeout(60):
                while not there.refused("slow"):
                    with suppress(BlockingIOError, ConnectionError):
                        client.send(STATIC)
                    await asyncio.sleep(0.005)
        await until(lambda: there.connections == 0)


LARGE = 16 * MIB


@get("/large", sync_to_thread=False)
def large() -> Response[bytes]:
    return Response(bytes(LARGE), media_type="application/octet-stream")


def with_large_answers(homing: Homing) -> Litestar:
    return Litestar([large], state=State({"telemetry": homing.telemetry}))


async def test_answers_that_nobody_reads_have_a_budget_of_bytes(tmp_path: Path) -> None:
    """Sixty of 7 MB took 600 MiB for ten seconds. Who reads gets his whole."""
    asks = b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    limits = Limits(unread_bytes=3 * LARGE)
    async with place(tmp_path, limits, with_large_answers) as there, AsyncExitStack() as held:
        loop, clients = asyncio.get_running_loop(), []
        for _ in range(12):
            client = held.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", there.port))
            await loop.sock_sendall(client, asks)
            clients.append(client)
            await until(lambda: there.connections + there.refused("unread") == len(clients))
            assert there.unread <= limits.unread_bytes
        # The system takes some of each for itself.
        await until(lambda: there.refused("unread") >= 8)
        assert LARGE < there.unread <= limits.unread_bytes
        async with httpx.AsyncClient(base_url=there.address, timeout=60) as reader:
            assert (await reader.get("/large")).content == bytes(LARGE)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────


async def test_one_address_has_its_share_of_connections_and_is_still_served(tmp_path: Path) -> None:
    async with (
        place(tmp_path, Limits(connections_per_address=8), Homing.asgi) as there,
        AsyncExitStack() as held,
    ):
        for _ in range(50):
            await connected(there, held, HEAD)
            assert there.connections <= 9
        assert await there.live() == 200
        assert there.refused("crowded") >= 42


async def test_who_is_served_makes_no_room_for_who_comes_later(tmp_path: Path) -> None:
    async with (
        place(tmp_path, Limits(connections_per_address=4), Homing.asgi) as there,
        AsyncExitStack() as held,
    ):
        served = [(await connected(there, held, EVENTS))[0] for _ in range(4)]
        assert [await reader.readline() for reader in served] == [b"HTTP/1.1 200 OK\r\n"] * 4
        _, answer = await told(there, pieces(HEAD + b"\r\n"))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in answer
        assert not any(reader.at_eof() for reader in served)
        await until(lambda: there.connections == 4)


async def test_a_server_may_open_as_many_files_as_it_may_ask_for(tmp_path: Path) -> None:
    """A shell gives 1,024 and would give more; more than 65,536 are of no use."""
    url = url_with_tables(tmp_path)
    async with homing(url, "serve", "--port", "0", files="256:1024") as process:
        await port_of(process)
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (1024, 1024)


async def connected(
    there: Place, held: AsyncExitStack, given: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
    held.callback(writer.close)
    writer.write(given)
    return reader, writer
