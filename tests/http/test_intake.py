"""Of bodies no more is read than who asks may send, of all together what fits, and large ones by turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.types import Message, Receive, Scope, Send
from prometheus_client import CollectorRegistry
from tests.http.door import Door, opened_door, url_with_tables

from homing.access.scopes import KNOWN
from homing.http.access import OPEN
from homing.http.guard import READING
from homing.http.intake import Intake
from homing.telemetry import Telemetry

MIB = 1 << 20
#: Routes that read a body of somebody who is not known yet, and how many bytes of it.
READ_BEFORE = {
    "/login": 16 * 1024,
    "/unsubscribe": 16 * 1024,
    "/confirm": 16 * 1024,
    "/subscriptions/{id}": 16 * 1024,
    "/api/dispatch/process": 4 * 1024,
}
KINDS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
CONTINUE = b"HTTP/1.1 100 Continue\r\n"


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with opened_door(url_with_tables(tmp_path), api_intake_mib=16) as door:
        yield door


# ── one ──────────────────────────────────────────────────────────────────────────────────────────


def changing(door: Door) -> Iterator[tuple[str, str, HTTPRouteHandler]]:
    for route in door.app.routes:
        assert isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items():
            if method not in READING:
                yield method, route.path_format, handler


async def first_line(door: Door, method: str, path: str, length: int | None, *fields: str) -> bytes:
    """What is said to who asks whether to go on with a body: nobody says so before the body is read."""
    host, _, port = door.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    size = f"Content-Length: {length}" if length is not None else "Transfer-Encoding: chunked"
    head = [f"{method} {path} HTTP/1.1", f"Host: {host}", size, "Expect: 100-continue"]
    writer.write("\r\n".join([*head, *fields, "", ""]).encode())
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize("bearer", [None, "hom_nobody_knows_this"])
async def test_a_body_is_read_for_who_may_ask_and_else_for_few_routes(door: Door, bearer: str | None) -> None:
    await door.key()
    given = [f"Authorization: Bearer {bearer}"] if bearer else []
    walked = set()
    for method, path, _ in changing(door):
        walked.add(path)
        for kind in KINDS:
            fields = [f"Content-Type: {kind}", "Sec-Fetch-Site: same-origin", *given]
            line = await first_line(
                door, method, path.replace("{id}", "1"), READ_BEFORE.get(path, 0) + 1, *fields
            )
            assert line != CONTINUE, (method, path, kind)
    assert walked > READ_BEFORE.keys()


async def test_these_read_as_much_as_they_need(door: Door) -> None:
    """Otherwise the test before would prove nothing."""
    await door.key()
    for method, path, _ in changing(door):
        if path in READ_BEFORE:
            kind = KINDS[0] if path.startswith("/api/") else KINDS[1]
            fields = [f"Content-Type: {kind}", "Sec-Fetch-Site: same-origin", "Authorization: Bearer x"]
            line = await first_line(door, method, path.replace("{id}", "1"), READ_BEFORE[path], *fields)
            assert line == CONTINUE, (method, path)


@pytest.mark.parametrize("kind", KINDS)
async def test_of_a_key_that_any_route_takes_little_is_read(door: Door, kind: str) -> None:
    key = await door.key("ops")
    fields = [f"Content-Type: {kind}", "Sec-Fetch-Site: same-origin", f"Authorization: Bearer {key}"]
    walked = 0
    for method, path, handler in changing(door):
        if handler.opt.get("scope") == KNOWN:
            walked += 1
            most = 16 * 1024 if path.startswith("/api/") else 64 * 1024
            line = await first_line(door, method, path.replace("{id}", "1"), most + 1, *fields)
            assert line != CONTINUE, (method, path)
    assert walked > 4


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_read_of_a_key_that_may_not(door: Door, kind: str) -> None:
    """In chunks: nobody says before how many."""
    key = await door.key("ops")
    fields = [f"Content-Type: {kind}", "Sec-Fetch-Site: same-origin", f"Authorization: Bearer {key}"]
    walked = 0
    for method, path, handler in changing(door):
        if path not in OPEN and handler.opt["scope"] not in {KNOWN, "ops"}:
            walked += 1
            line = await first_line(door, method, path.replace("{id}", "1"), None, *fields)
            assert line.startswith(b"HTTP/1.1 403 "), (method, path, line)
    assert walked > 20


async def test_a_query_line_of_any_characters_fits(door: Door) -> None:
    key = await door.key()
    line = "".join(rf"\u{ord(letter):04x}" for letter in "status:dead ".ljust(2000))
    body = f'{{"verb": "requeue", "query": "{line}"}}'
    answer = await door.ask("POST", "/api/bulk", key, content=body, headers={"Content-Type": KINDS[0]})
    assert answer.status_code == 200


async def test_a_message_of_the_router_may_have_4_kib(door: Door) -> None:
    await door.key()
    body = {"messageId": "x" * 4096}
    answer = await door.ask("POST", "/api/dispatch/process", "somebody", json=body)
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "the body is larger than 4 KiB; send it in several requests"
    answer = await door.ask("POST", "/api/dispatch/process", "somebody", json={"messageId": "x"})
    assert answer.status_code == 401


# ── all ──────────────────────────────────────────────────────────────────────────────────────────


def mail(size: int, key: str) -> bytes:
    text = "a" * 100
    padding = b" " * (size - 200)
    body = msgspec.json.encode(
        {"to": "ann@example.org", "subject": "Hi", "text": text, "idempotencyKey": key}
    )
    return padding + body


class Upload:
    """One request that is sent in parts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def begin(cls, door: Door, key: str, part: bytes, length: int | None) -> Upload:
        host, _, port = door.address.removeprefix("http://").partition(":")
        upload = cls(*await asyncio.open_connection(host, int(port)))
        size = f"Content-Length: {length}" if length is not None else "Transfer-Encoding: chunked"
        head = f"POST /api/mail HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n{size}\r\n"
        upload._writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode())
        await upload.send(part)
        return upload

    async def send(self, part: bytes) -> None:
        self._writer.write(part)
        await self._writer.drain()

    def leave(self) -> None:
        self._writer.close()

    async def answer(self) -> bytes:
        """Its head."""
        answer = await self._reader.readuntil(b"\r\n\r\n")
        self._writer.close()
        return answer


def chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)


def sampled(door: Door, name: str, **labels: str) -> float:
    return door.homing.telemetry.registry.get_sample_value(name, labels) or 0.0


async def until_held(door: Door, size: int) -> None:
    async with asyncio.timeout(60):
        while sampled(door, "homing_http_intake_bytes") != size:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["announced", "in chunks"])
async def test_what_does_not_fit_waits_outside(door: Door, *, is_chunked: bool) -> None:
    """The first is on its way and holds its share; the next is told to come back; small ones go in."""
    key = await door.key()
    body = mail(10 * MIB, "first")
    half = 9 * MIB
    if is_chunked:
        first = await Upload.begin(door, key, chunk(body[:half]), None)
    else:
        first = await Upload.begin(door, key, body[:half], len(body))
    await until_held(door, half)

    for again in (await refused(door, key), await refused(door, key, in_chunks=True)):
        assert again.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 2\r\n" in again
    assert sampled(door, "homing_http_refused_total", reason="intake") == 2
    small = await door.ask(
        "POST", "/api/mail", key, content=mail(1000, "small"), headers={"Content-Type": KINDS[0]}
    )
    assert small.status_code == 201

    await first.send(chunk(body[half:]) + b"0\r\n\r\n" if is_chunked else body[half:])
    assert (await first.answer()).startswith(b"HTTP/1.1 201 ")
    await until_held(door, 0)
    second = mail(10 * MIB, "second")
    assert (await (await Upload.begin(door, key, second, len(second))).answer()).startswith(b"HTTP/1.1 201 ")
    # A busy server is no fault of ours that the log should tell of.
    assert not door.log.all("http.failed")


async def refused(door: Door, key: str, *, in_chunks: bool = False) -> bytes:
    body = mail(10 * MIB, "second")
    given = (chunk(body) + b"0\r\n\r\n", None) if in_chunks else (body, len(body))
    return await (await Upload.begin(door, key, *given)).answer()


async def test_who_leaves_gives_its_share_back(door: Door) -> None:
    key = await door.key()
    body = mail(10 * MIB, "first")
    upload = await Upload.begin(door, key, body[:MIB], len(body))
    await until_held(door, MIB)
    upload.leave()
    await until_held(door, 0)
    assert not door.log.all("http.failed")


async def test_what_is_announced_and_not_sent_holds_nothing(door: Door) -> None:
    key = await door.key()
    begun = [await Upload.begin(door, key, b" " * MIB, 10 * MIB) for _ in range(4)]
    await until_held(door, 4 * MIB)
    body = mail(10 * MIB, "beside")
    assert (await (await Upload.begin(door, key, body, len(body))).answer()).startswith(b"HTTP/1.1 201 ")
    for upload in begun:
        upload.leave()


async def test_one_key_leaves_room_for_a_body_of_another(tmp_path: Path) -> None:
    async with opened_door(url_with_tables(tmp_path), api_intake_mib=32) as door:
        greedy, other = await door.key(), await door.key()
        begun = await Upload.begin(door, greedy, b" " * 15 * MIB, 16 * MIB)
        await until_held(door, 15 * MIB)
        assert (await refused(door, greedy)).startswith(b"HTTP/1.1 503 ")
        body = mail(16 * MIB, "other")
        assert (await (await Upload.begin(door, other, body, len(body))).answer()).startswith(
            b"HTTP/1.1 201 "
        )
        begun.leave()


# ── large ones in turns ──────────────────────────────────────────────────────────────────────────


class Work:
    """What happens to bodies behind an intake: each is worked on until the test says that it is done."""

    def __init__(self) -> None:
        self._intake = Intake(64 * MIB, Telemetry(registry=CollectorRegistry())).bound(self._work)
        self.at_work: list[str] = []
        self._done: dict[str, asyncio.Event] = {}
        self._reader = asyncio.Event()

    async def ask(self, name: str, size: int) -> None:
        async def send(message: Message) -> None:
            await self._reader.wait()

        head = [(b"content-length", b"%d" % size)]
        request = {"type": "http.request", "body": bytes(size), "more_body": False}
        scope: Any = {"type": "http", "headers": head, "path": name}
        await self._intake(scope, one(request), send)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        name = scope["path"]
        self.at_work.append(name)
        await self._done.setdefault(name, asyncio.Event()).wait()
        self.at_work.remove(name)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def finish(self, name: str) -> None:
        self._done[name].set()

    def read_answers(self) -> None:
        self._reader.set()


def one(message: Any) -> Receive:
    async def receive() -> Any:
        return message

    return receive


async def settled(until: Callable[[], bool]) -> int:
    """Rounds of the event loop until then."""
    async with asyncio.timeout(60):
        for rounds in count():
            if until():
                return rounds
            await asyncio.sleep(0)
    raise AssertionError


async def test_large_bodies_are_worked_on_one_at_a_time() -> None:
    """Also where nobody reads the answers."""
    work = Work()
    async with asyncio.TaskGroup() as group:
        for name in ("first", "second"):
            group.create_task(work.ask(name, 2 * MIB))
        group.create_task(work.ask("of a medium size", MIB))
        await settled(lambda: len(work.at_work) == 2)
        assert work.at_work == ["first", "of a medium size"]
        work.finish("first")
        # Nobody asked for anything small: the next need not rest.
        assert await settled(lambda: "second" in work.at_work) < 10
        for name in list(work.at_work):
            work.finish(name)
        work.read_answers()


async def test_small_requests_have_most_of_the_time_beside_large_bodies() -> None:
    work, loop = Work(), asyncio.get_running_loop()
    work.read_answers()
    async with asyncio.TaskGroup() as group:
        for name in ("first", "second"):
            group.create_task(work.ask(name, 2 * MIB))
        await settled(lambda: work.at_work == ["first"])
        began = loop.time()
        group.create_task(work.ask("small", 1000))
        await settled(lambda: work.at_work == ["first", "small"])
        await asyncio.sleep(0.05)
        work.finish("first")
        ended = loop.time()
        work.finish("small")
        await settled(lambda: work.at_work == ["second"])
        # A timer may be early by a millisecond; on a busy machine all of it may take long.
        assert loop.time() - ended > min(2.9 * (ended - began), 0.9)
        work.finish("second")
