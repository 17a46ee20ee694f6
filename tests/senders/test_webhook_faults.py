"""The webhook sender with receivers that misbehave: each time a value, in time, and nothing sent twice."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.senders.peers import until
from tests.senders.webhook_peers import post, sender_for

from homing.senders.webhook import WebhookResult
from homing.testing.http_sink import Answer, HttpSink, SinkRequest

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
#: A deadline that tests of silence wait for; the machine may be busy, so nothing else depends on it.
SHORT = 0.3


def always(answer: Answer) -> dict[str, Any]:
    return {"script": lambda _: answer}


def raw(data: bytes, **more: Any) -> dict[str, Any]:
    return always(Answer(raw=data, **more))


#: How a sink is made, and what the sender must say: status, error code, whether it may have been processed
#: (None where that depends on who is faster).
FAULTS: dict[str, tuple[dict[str, Any], tuple[int | None, str, bool | None]]] = {
    # Silence and slowness, in each phase.
    "silence": (always(Answer(silent=True)), (None, "timeout", True)),
    "a late answer": (always(Answer(delay=30)), (None, "timeout", True)),
    "headers that drip": (always(Answer(drip=0.05, body=b"x" * 99)), (None, "timeout", True)),
    "a body that stalls": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
        (200, "timeout", True),
    ),
    "headers without an end": (raw(b"HTTP/1.1 200 OK\r\nX-A: b\r\n"), (None, "timeout", True)),
    "a chunk without an end": (raw(CHUNKED + b"5\r\nhel"), (200, "timeout", True)),
    "1xx for ever": (raw(b"", endless=b"HTTP/1.1 100 Continue\r\n\r\n"), (None, "timeout", True)),
    # Hanging up, in each phase.
    "hung up at once": ({"on_connect": Answer(raw=b"", close=True)}, (None, "connection_lost", None)),
    "reset at once": ({"on_connect": Answer(raw=b"", reset=True)}, (None, "connection_lost", None)),
    "hung up unanswered": (raw(b"", close=True), (None, "connection_lost", True)),
    "reset unanswered": (raw(b"", reset=True), (None, "connection_lost", True)),
    "hung up in the headers": (raw(b"HTTP/1.1 200 OK\r\nCont", close=True), (None, "connection_lost", True)),
    "reset in the headers": (raw(b"HTTP/1.1 200 OK\r\nCont", reset=True), (None, "connection_lost", True)),
    "hung up in the body": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", close=True), (200, "connection_lost", True),
    ),
    "reset in the body": (
        raw(b"HTTP/1.1 500 Oh\r\nContent-Length: 9\r\n\r\nhalf", reset=True), (500, "connection_lost", True),
    ),
    "hung up in a chunk": (raw(CHUNKED + b"5\r\nhel", close=True), (200, "connection_lost", True)),
    # What is no HTTP.
    "garbage": (raw(b"\x00\x01\x02 hello\r\n\r\n"), (None, "protocol_error", True)),
    "another protocol": (raw(b"220 mail.example ESMTP\r\n"), (None, "protocol_error", True)),
    "HTTP/2": (raw(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"), (None, "protocol_error", True)),
    "HTTP/0.9": (raw(b"<html>hello</html>", close=True), (None, "protocol_error", True)),
    "TLS": (raw(b"\x15\x03\x01\x00\x02\x02\x46"), (None, "protocol_error", True)),
    "a status of two digits": (raw(b"HTTP/1.1 20 OK\r\n\r\n"), (None, "protocol_error", True)),
    "a status of four digits": (raw(b"HTTP/1.1 2000 OK\r\n\r\n"), (None, "protocol_error", True)),
    "a chunk of nonsense": (raw(CHUNKED + b"zz\r\nhello\r\n"), (None, "protocol_error", True)),
    "a chunk of nonsense after a good one": (
        raw(CHUNKED + b"2\r\nok\r\nzz\r\n", drip=0.001), (200, "protocol_error", True),
    ),
    "two lengths": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk"),
        (None, "protocol_error", True),
    ),
    "a negative length": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok"), (None, "protocol_error", True),
    ),
    "a NUL in a header": (raw(b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n"), (None, "protocol_error", True)),
    # Too much of it.
    "a header too long": (always(Answer(headers=(("X", "y" * 99_999),))), (None, "protocol_error", True)),
    "headers for ever": (
        raw(b"HTTP/1.1 200 OK\r\n", endless=b"X-A: b\r\n" * 50), (None, "protocol_error", True),
    ),
    "one header for ever": (
        raw(b"HTTP/1.1 200 OK\r\nX-A: ", endless=b"b" * 500), (None, "protocol_error", True),
    ),
    "a status line for ever": (raw(b"HTTP/1.1 200 ", endless=b"b" * 500), (None, "protocol_error", True)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_a_value(fault: str) -> None:
    settings, (status, code, unknown) = FAULTS[fault]
    patience = SHORT if code == "timeout" else 10.0
    async with HttpSink(**settings) as sink, sender_for() as sender:
        if code == "timeout":
            # On a connection that is open already the request is written at once, however busy we are.
            script, sink.script = sink.script, None
            assert (await sender.send(post(f"{sink.url}/"))).status == 200
            sink.script = script
        before = sink.count
        result = await sender.send(post(f"{sink.url}/", timeout=patience))
        assert (result.status, result.error_code) == (status, code)
        assert unknown in {None, result.unknown}
        assert result.message
        assert "127.0.0.1" not in result.message
        assert sink.count <= before + 1
        if code == "timeout":
            assert SHORT * 0.9 < result.seconds < SHORT + 10
        # The broken connection is gone: another request gets a fresh one, or fails on its own.
        await until(lambda: not sink.connections, "the connection to be closed")
        sink.script, sink.on_connect = None, None
        assert (await sender.send(post(f"{sink.url}/"))).status == 200


class TestAnswersThatCount:
    @pytest.mark.parametrize(
        "answer",
        [
            Answer(body=b"a" * 10_000_000),
            Answer(body=b"a" * 10_000_000, chunked=1000),
            Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", endless=b"a" * 9_999),
            Answer(raw=CHUNKED, endless=b"a\r\naaaaaaaaaa\r\n" * 99),
        ],
    )
    async def test_a_body_without_measure_is_left_unread(self, answer: Answer) -> None:
        async with HttpSink(lambda _: answer) as sink, sender_for() as sender:
            result = await sender.send(post(sink.url))
            assert (result.status, result.error_code, result.unknown) == (200, None, False)
            assert result.body == "a" * 4_993 + "… [cut]"
            await until(lambda: not sink.connections, "the rest to be abandoned")

    @pytest.mark.parametrize(
        "before",
        [
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 102 Processing\r\n\r\n" * 20,
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
        ],
    )
    async def test_1xx_is_no_answer(self, before: bytes) -> None:
        async with HttpSink(**raw(before + OK)) as sink, sender_for() as sender:
            for _ in range(3):
                result = await sender.send(post(sink.url))
                assert (result.status, result.body) == (200, "ok")
            assert (sink.count, sink.connected) == (3, 1)

    async def test_another_protocol_is_not_spoken(self) -> None:
        switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello"
        async with HttpSink(**raw(switch)) as sink, sender_for() as sender:
            result = await sender.send(post(sink.url))
            assert (result.status, result.error_code, result.body) == (101, None, "")
            await until(lambda: not sink.connections, "the connection to be closed")

    async def test_http_1_0_without_a_length(self) -> None:
        async with (
            HttpSink(**raw(b"HTTP/1.0 200 OK\r\n\r\nbody", close=True)) as sink,
            sender_for() as sender,
        ):
            result = await sender.send(post(sink.url))
            assert (result.status, result.body) == (200, "body")

    async def test_a_no_before_the_body_was_read(self) -> None:
        refusal = Answer(status=413, body=b"too large", close=True)
        async with HttpSink(on_head=refusal) as sink, sender_for() as sender:
            result = await sender.send(post(sink.url, b"x" * 1_000_000))
            # Where the reset overtakes the answer there is none to read.
            assert (result.status, result.error_code) in {(413, None), (None, "connection_lost")}
            assert sink.count == 0


class TestUnasked:
    async def test_what_came_while_nobody_asked_answers_nothing(self) -> None:
        async with HttpSink(lambda request: Answer(body=request.body)) as sink, sender_for() as sender:
            assert (await sender.send(post(sink.url, b"first"))).body == "first"
            sink.say(OK)
            await asyncio.sleep(0.01)
            assert (await sender.send(post(sink.url, b"second"))).body == "second"
            assert (sink.count, sink.connected) == (2, 2)

    async def test_a_receiver_that_speaks_first(self) -> None:
        """Its 200 is for nobody: where it is there before the request is, it counts for nothing."""
        async with (
            HttpSink(on_connect=Answer(raw=OK), on_head=Answer(silent=True)) as sink,
            sender_for() as sender,
        ):
            result = await sender.send(post(sink.url, timeout=SHORT))
            assert sink.count == 0
        # It may come after the request was written, too late to be told from an answer.
        assert result.error_code in {"timeout", "protocol_error"} or result.body == "ok"

    async def test_a_second_answer_is_not_taken_for_the_next_ones(self) -> None:
        def numbered(request: SinkRequest) -> Answer:
            name = request.body
            mine = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name)
            return Answer(raw=mine + OK)

        async with HttpSink(numbered) as sink, sender_for() as sender:
            for number in range(20):
                result = await sender.send(post(sink.url, b"answer %d" % number))
                assert result.body == f"answer {number}"
            assert sink.count == 20


class TestKeptConnections:
    async def test_one_that_the_receiver_closed_costs_nothing(self) -> None:
        async with HttpSink() as sink, sender_for() as sender:
            for number in range(1, 21):
                assert (await sender.send(post(sink.url))).status == 200
                assert sink.connected == number
                sink.hang_up()
                # Two turns of the loop: the end has arrived, but nobody has looked at the pool since.
                await asyncio.sleep(0.01)
            assert sink.count == 20

    async def test_closed_at_the_same_moment_nothing_is_sent_twice(self) -> None:
        """The receiver hangs up after every answer without saying so: sometimes it is too late to notice."""
        async with HttpSink(lambda _: Answer(raw=OK, close=True)) as sink, sender_for() as sender:
            results: dict[str, WebhookResult] = {}

            async def send(worker: int) -> None:
                for number in range(50):
                    name = f"{worker}-{number}"
                    results[name] = await sender.send(post(sink.url, name.encode()))

            await asyncio.gather(*map(send, range(8)))
            seen = Counter(request.body.decode() for request in sink.requests)
        assert set(seen.values()) == {1}
        for name, result in results.items():
            if result.status is None:
                assert result.error_code == "connection_lost"
            assert seen[name] == 1 or result.unknown
        assert sum(result.status == 200 for result in results.values()) >= 300

    async def test_a_post_is_never_repeated_by_the_library(self) -> None:
        async with HttpSink(**raw(b"", reset=True)) as sink, sender_for() as sender:
            sink.script = None
            assert (await sender.send(post(sink.url))).status == 200
            sink.script = lambda _: Answer(raw=b"", reset=True)
            result = await sender.send(post(sink.url))
            assert (result.error_code, result.unknown) == ("connection_lost", True)
            assert sink.count == 2


class TestDeadline:
    @pytest.mark.parametrize("total", [0.2, 0.5])
    async def test_it_is_the_sum_of_everything(self, total: float) -> None:
        """Bytes keep coming, so no single read ever takes long."""
        async with HttpSink(lambda _: Answer(drip=0.02, body=b"x" * 9_999)) as sink, sender_for() as sender:
            result = await sender.send(post(sink.url, timeout=total))
            assert (result.status, result.error_code) == (None, "timeout")
            assert result.message == f"no answer within {total:g} s"
            assert total * 0.9 <= result.seconds < total + 10

    async def test_of_a_dripping_body(self) -> None:
        headers = b"HTTP/1.1 202 Taken\r\nContent-Length: 9999\r\n\r\n"
        async with HttpSink(lambda _: Answer(raw=headers, endless=b"x")) as sink, sender_for() as sender:
            result = await sender.send(post(sink.url, timeout=SHORT))
            assert (result.status, result.error_code, result.unknown) == (202, "timeout", True)
            assert result.message == f"HTTP 202, but no complete answer within {SHORT:g} s"

    @pytest.mark.parametrize("left", [0.0, -1.0])
    async def test_none_left_is_not_no_limit(self, left: float) -> None:
        async with HttpSink(lambda _: Answer(silent=True)) as sink, sender_for() as sender:
            assert (await sender.send(post(sink.url, timeout=left))).error_code == "timeout"

    async def test_a_receiver_that_reads_nothing_holds_nothing(self) -> None:
        """The body gets stuck half-way; after the deadline neither connection nor memory is left behind."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            async with sender_for() as sender:
                url = f"http://127.0.0.1:{server.getsockname()[1]}/"
                before = open_sockets()
                result = await sender.send(post(url, b"x" * 50_000_000, timeout=SHORT))
                assert (result.error_code, result.unknown) == ("timeout", False)
                await until(lambda: open_sockets() <= before, "the socket to be closed")

    async def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        async with sender_for() as sender:
            result = await sender.send(post(f"http://127.0.0.1:{port}/"))
        assert (result.status, result.error_code, result.unknown) == (None, "connect_error", False)
        assert result.message == "cannot connect: connection refused"


def open_sockets() -> int:
    opened = 0
    for link in Path("/proc/self/fd").iterdir():
        # The list is open itself while it is read, and gone when it is looked at.
        with suppress(FileNotFoundError):
            opened += str(link.readlink()).startswith("socket:")
    return opened


PIECES = (
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 ", b"HTTP/1.0 500 Oh\r\n", b"HTTP/9.9 ", b"200", b"\n", b"\r",
    b"Content-Length: 5\r\n", b"Content-Length: ", b"9" * 20, b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: gzip\r\n", b"Connection: close\r\n", b"Upgrade: x\r\nConnection: upgrade\r\n",
    b"Retry-After: 1\r\n", b"Set-Cookie: a=b\r\n", b": \r\n", b"5\r\nhello\r\n", b"0\r\n\r\n",
    b"hello", b"\0", b"\xff\xfe", b"Location: http://127.0.0.1/\r\n", b" ", b"\t", b"x" * 9_000,
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"Expires: \xe9\r\n", b"-1", b"0x5\r\n", b"\x1f\x8b\x08", b"HTTP/1.1 101 Switch\r\n", b"Trailer: x\r\n",
)  # fmt: skip

HEADERS = tuple(piece for piece in PIECES if piece.endswith(b"\r\n") and b": " in piece and len(piece) > 9)


def _nonsense(chance: random.Random) -> bytes:
    """Bytes that begin like an answer more often than not, so that every part of the parser gets a share."""
    lines = chance.choices(HEADERS, k=chance.randrange(4))
    start = chance.choice([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.0 500 Oh\r\n", OK])
    middle = chance.choice([b"\r\n", b"\r\n", b"\r\n\r\n", b""])
    pieces = chance.choices(PIECES, k=chance.choice([0, 0, 1, 2, 9]))
    return start + b"".join(lines) + middle + b"".join(pieces) + chance.randbytes(chance.choice([0, 0, 5]))


@pytest.mark.slow
async def test_2000_answers_of_nonsense() -> None:
    chance = random.Random(42)
    answers = [Answer(raw=_nonsense(chance), close=True, reset=chance.random() < 0.1) for _ in range(2000)]
    outcomes: Counter[str] = Counter()

    def answer(request: SinkRequest) -> Answer:
        return answers[int(request.body)]

    async with HttpSink(answer, keep=False) as sink, sender_for() as sender:

        async def send(first: int) -> None:
            for number in range(first, 2000, 10):
                result = await sender.send(post(sink.url, b"%d" % number, timeout=20))
                outcomes[result.error_code or "answered"] += 1
                assert (result.status is None) <= (result.error_code is not None)
                assert len(result.body) <= 5_000
                str(result).encode()

        await asyncio.gather(*map(send, range(10)))
        assert sink.count == 2000
    assert outcomes.total() == 2000
    # All of them were looked at, and not only refused at the first byte.
    assert set(outcomes) <= {"answered", "protocol_error", "connection_lost"}
    assert min(outcomes["answered"], outcomes["protocol_error"], outcomes["connection_lost"]) > 50
