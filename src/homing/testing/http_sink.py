"""A receiver of webhooks that takes them in and can misbehave in every way a receiver does.

    async with HttpSink() as sink:
        ... POST to sink.url ...
        (request,) = await sink.received(1)
        assert request.header("webhook-id") == "msg_1"

What it answers is scripted: an `Answer` for each path, or a function of the request that returns an
`Answer`, or None for the usual 200.

    HttpSink({"/slow": Answer(drip=1.0, body=b"thank you")})
    HttpSink(lambda request: Answer(status=500) if b"bad" in request.body else None)

`python -m homing.testing.http_sink --port 0 --record got.jsonl` runs one as a process of its own; it
prints its URL and appends a line for each request before it answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import socket
import ssl
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import blake2b, sha256
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias, cast

import msgspec
from msgspec import Struct


class Answer(Struct, frozen=True, kw_only=True):
    """What the sink does about a request. Without any field set: an empty 200."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    #: Send the body in chunks of some bytes, without a length.
    chunked: int | None = None
    #: Exactly these bytes in place of status, headers and body; they need not be HTTP at all.
    raw: bytes | None = None
    #: Seconds before the first byte.
    delay: float = 0.0
    #: Seconds between any two bytes, each in a segment of its own.
    drip: float | None = None
    #: After all that, these bytes over and over, until the other side has enough.
    endless: bytes = b""
    #: Hang up at the end.
    close: bool = False
    #: Hang up at the end by a reset, as a crashed machine would.
    reset: bool = False
    #: Never answer, and keep the connection.
    silent: bool = False


class SinkRequest(Struct, frozen=True):
    """A request as it was received."""

    method: str
    path: str
    #: In the order and the spelling in which they came.
    headers: tuple[tuple[str, str], ...]
    body: bytes
    #: Unix time of its last byte.
    at: float
    #: Which connection it came on, counted from 1.
    connection: int

    def header(self, name: str) -> str | None:
        wanted = name.lower()
        return next((value for given, value in self.headers if given.lower() == wanted), None)


Script: TypeAlias = Callable[[SinkRequest], Answer | None]


class Faults(Struct, frozen=True, kw_only=True):
    """Misbehaviour that is the same in every run with the same seed, for benchmarks and chaos."""

    #: How many of the requests get a 500, from 0 to 1. The webhook-id and how often it came decide.
    fail: float = 0.0
    seed: int = 0
    #: Seconds before every answer.
    latency: float = 0.0
    #: Paths that begin with this get their answer byte by byte.
    drip_path: str | None = None
    drip_interval: float = 1.0

    def script(self) -> Script:
        seen: Counter[str] = Counter()

        def answer(request: SinkRequest) -> Answer | None:
            if self.drip_path is not None and request.path.startswith(self.drip_path):
                return Answer(drip=self.drip_interval, body=b"." * 100)
            status = 500 if self.fail and self._fails(request, seen) else 200
            return Answer(status=status, delay=self.latency) if self.latency or status != 200 else None

        return answer

    def _fails(self, request: SinkRequest, seen: Counter[str]) -> bool:
        key = request.header("webhook-id") or request.path
        seen[key] += 1
        digest = blake2b(f"{self.seed}:{key}:{seen[key]}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.fail * 2**64


class HttpSink:
    """A server on a free loopback port.

    `on_connect` is done as soon as somebody connects, `on_head` as soon as a request's headers are
    there, its body unread. `record` names a file that gets one JSON line for each request, before it is
    answered, with the body's hash, or the body itself with `record_bodies`. Without `keep` requests are
    only counted.
    """

    def __init__(
        self,
        script: Script | Mapping[str, Answer] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        on_connect: Answer | None = None,
        on_head: Answer | None = None,
        record: Path | None = None,
        record_bodies: bool = False,
        keep: bool = True,
    ) -> None:
        self.host, self.port = host, port
        self.script = _by_path(script) if isinstance(script, Mapping) else script
        self.on_connect, self.on_head = on_connect, on_head
        self.requests: list[SinkRequest] = []
        #: How many requests came so far, kept or not.
        self.count = 0
        #: How many connections were made so far.
        self.connected = 0
        self.connections: set[_Connection] = set()
        self.keep = keep
        self._tls = tls
        self._record_path, self._record_bodies = record, record_bodies
        self._record: int | None = None
        self._server: asyncio.Server | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    @property
    def needs_requests(self) -> bool:
        """Whether anybody looks at requests, or it is enough to count them."""
        return self.keep or self.script is not None or self._record is not None

    async def start(self) -> None:
        if self._record_path is not None:
            self._record = os.open(self._record_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), self.host, self.port, ssl=self._tls, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.hang_up()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        if self._record is not None:
            os.close(self._record)
            self._record = None

    def say(self, data: bytes) -> None:
        """Write these bytes to everybody who is connected, unasked."""
        for connection in self.connections:
            connection.write(data)

    def hang_up(self) -> None:
        """Cut every connection that is open now."""
        for connection in list(self.connections):
            connection.abort()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def received(self, count: int, *, timeout: float = 60.0) -> list[SinkRequest]:  # noqa: ASYNC109 - says how long a test waits
        """Wait until so many requests came; all that came."""
        if self.count < count:
            arrival = asyncio.get_running_loop().create_future()
            self._waiting.append((count, arrival))
            async with asyncio.timeout(timeout):
                await arrival
        return self.requests

    def take(self, request: SinkRequest) -> Answer | None:
        answer = None if self.script is None else self.script(request)
        if self._record is not None:
            os.write(self._record, self._line(request, 200 if answer is None else answer.status))
        if self.keep:
            self.requests.append(request)
        return answer

    def counted(self) -> None:
        self.count += 1
        for entry in [entry for entry in self._waiting if entry[0] <= self.count]:
            self._waiting.remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)

    def _line(self, request: SinkRequest, status: int) -> bytes:
        entry = {
            "time": request.at,
            "path": request.path,
            "webhook_id": request.header("webhook-id"),
            "status": status,
            "sha256": sha256(request.body).hexdigest(),
        }
        if self._record_bodies:
            entry["body"] = request.body.decode("utf-8", "replace")
        return msgspec.json.encode(entry) + b"\n"


def _by_path(answers: Mapping[str, Answer]) -> Script:
    return lambda request: answers.get(request.path.partition("?")[0])


_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_UNUSUAL = re.compile(rb"\r\n(transfer-encoding|expect|connection):", re.IGNORECASE)
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Close at once and drop what is unsent, which the other side sees as a reset.
_NO_LINGER = struct.pack("ii", 1, 0)


class _Connection(asyncio.Protocol):
    """One connection: requests in order, each answered before the next is looked at."""

    def __init__(self, sink: HttpSink) -> None:
        self._sink = sink
        self._buffer = b""
        #: True while an answer is on its way: delayed, dripping, endless or never.
        self._held = False
        #: True once the headers of a request were looked at whose body is still coming.
        self._in_body = False
        self._paused = False
        #: The other side said that it has no more requests.
        self._is_last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._sink.connections.add(self)
        self._sink.connected += 1
        self._number = self._sink.connected
        if self._sink.on_connect is not None:
            self._answer(self._sink.on_connect)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._sink.connections.discard(self)
        self._held = True

    def abort(self) -> None:
        self._transport.abort()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    # Requests

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        self._work()

    def _work(self) -> None:
        while self._buffer and not self._held and self._step():
            pass

    def _step(self) -> bool:
        """Take one request off the buffer; False when it is not all there yet."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = self._buffer[:end]
        if not self._in_body and not self._begin(head):
            return False
        length = _LENGTH.search(head)
        after = end + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) < after:
            return False
        body, self._buffer = self._buffer[end + 4 : after], self._buffer[after:]
        self._in_body = False
        self._take(head, body)
        return True

    def _begin(self, head: bytes) -> bool:
        """Look at a request's headers, once; False when that was the end of it."""
        self._in_body = True
        if self._sink.on_head is not None:
            self._answer(self._sink.on_head)
            return False
        return self._begin_unusually(head) if _UNUSUAL.search(head) else True

    def _begin_unusually(self, head: bytes) -> bool:
        small = head.lower()
        self._is_last = b"\r\nconnection: close" in small
        if b"\r\ntransfer-encoding:" in small:
            self._answer(Answer(status=411, close=True))
            return False
        if b"\r\nexpect: 100-continue" in small:
            self._transport.write(_CONTINUE)
        return True

    def _take(self, head: bytes, body: bytes) -> None:
        answer = None
        if self._sink.needs_requests:
            answer = self._sink.take(_request(head, body, self._number))
        if answer is not None:
            self._answer(answer)
        elif self._is_last:
            self._answer(Answer(close=True))
        else:
            self._transport.write(_OK)
        self._sink.counted()

    # Answers

    def _answer(self, answer: Answer) -> None:
        self._held = True
        if answer.delay:
            asyncio.get_running_loop().call_later(answer.delay, self._perform, answer)
        else:
            self._perform(answer)

    def _perform(self, answer: Answer) -> None:
        if answer.silent or self._transport.is_closing():
            return
        data = _wire(answer)
        if answer.drip is None:
            self._transport.write(data)
            self._finish(answer)
        else:
            self._drip(answer, data)

    def _drip(self, answer: Answer, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if not data:
            self._finish(answer)
            return
        self._transport.write(data[:1])
        asyncio.get_running_loop().call_later(answer.drip or 0.0, self._drip, answer, data[1:])

    def _finish(self, answer: Answer) -> None:
        if answer.endless:
            self._pour(answer.endless)
        elif answer.reset:
            self._reset()
        elif answer.close:
            self._transport.close()
        else:
            self._held = False
            # A script's answer may come while the rest of the buffer waits for it.
            asyncio.get_running_loop().call_soon(self._work)

    def _pour(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if not self._paused:
            self._transport.write(data)
        asyncio.get_running_loop().call_later(0.001, self._pour, data)

    def _reset(self) -> None:
        peer = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()


def _request(head: bytes, body: bytes, connection: int) -> SinkRequest:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    pairs = (line.partition(":") for line in lines)
    headers = tuple((name, value.strip()) for name, _, value in pairs)
    return SinkRequest(method, rest.rpartition(" ")[0], headers, body, time.time(), connection)


def _wire(answer: Answer) -> bytes:
    if answer.raw is not None:
        return answer.raw
    lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    if answer.chunked is not None:
        lines.append("Transfer-Encoding: chunked")
    elif answer.status not in {204, 304} and not answer.endless:
        lines.append(f"Content-Length: {len(answer.body)}")
    if answer.close:
        lines.append("Connection: close")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + (answer.body if answer.chunked is None else _chunks(answer.body, answer.chunked))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unheard Of"


def _chunks(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])


# A process of its own


async def _serve(sink: HttpSink) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with sink:
        sys.stdout.write(f"{sink.url}\n")
        sys.stdout.flush()
        await stopped.wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m homing.testing.http_sink", description="Takes webhooks.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--record", type=Path, help="a file that gets one JSON line for each request")
    parser.add_argument("--record-bodies", action="store_true", help="write bodies into it, too")
    parser.add_argument("--fail", type=float, default=0.0, help="how many requests get a 500, from 0 to 1")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before every answer")
    parser.add_argument("--drip-path", help="paths that begin with this are answered byte by byte")
    parser.add_argument("--drip-interval", type=float, default=1.0, help="seconds between these bytes")
    return parser.parse_args()


def main() -> None:
    options = vars(_options())
    faults = Faults(**{name: options[name] for name in Faults.__struct_fields__})
    sink = HttpSink(
        faults.script() if faults != Faults(seed=faults.seed) else None,
        host=options["host"],
        port=options["port"],
        record=options["record"],
        record_bodies=options["record_bodies"],
        keep=False,
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(sink))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - there is none on Windows

        return uvloop.new_event_loop
    return None


if __name__ == "__main__":
    main()
