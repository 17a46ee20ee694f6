"""One exchange on the wire: what is written, how answers are cut up, and what spoils a connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.senders.peers import until
from tests.senders.webhook_peers import post, sender_for

from homing import __version__
from homing.senders.webhook import WebhookRequest, WebhookResult
from homing.testing.http_sink import Answer, HttpSink

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def raw(data: bytes, **more: Any) -> Any:
    return lambda _: Answer(raw=data, **more)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, Callable[[], Awaitable[tuple[Any, Any]]]]]:
    """A receiver that does by hand what the test says: its URL, and how to get the next one's streams."""
    accepted: asyncio.Queue[tuple[Any, Any]] = asyncio.Queue()
    writers = []

    async def accept() -> tuple[Any, Any]:
        async with asyncio.timeout(10):
            reader, writer = await accepted.get()
        writers.append(writer)
        return reader, writer

    server = await asyncio.start_server(lambda *streams: accepted.put_nowait(streams), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", accept
    finally:
        server.close()
        while not accepted.empty():
            await accept()
        for writer in writers:
            writer.close()


class TestRequest:
    @pytest.mark.clause("JOB-07")
    async def test_every_byte_of_it(self) -> None:
        headers = (("X-B", " b\t"), ("x-a", "Zoë"), ("Accept", "application/json"), ("Content-Type", "a/b"))
        async with listening() as (url, accept), sender_for() as sender:
            send = asyncio.create_task(sender.send(WebhookRequest(f"{url}/p?q=1?", headers, b"body")))
            reader, writer = await accept()
            expected = (
                f"POST /p?q=1? HTTP/1.1\r\nHost: {url[7:]}\r\nContent-Length: 4\r\n"
                f"Accept-Encoding: identity\r\nUser-Agent: Homing/{__version__}\r\n"
                "X-B:  b\t\r\nx-a: Zoë\r\nAccept: application/json\r\nContent-Type: a/b\r\n\r\nbody"
            ).encode()
            assert await reader.readexactly(len(expected)) == expected
            writer.write(OK)
            assert (await send).status == 200

    @pytest.mark.parametrize("path", ["/?", "/a?", "/a??", "/a/?&", "/%", "//", "/a//?//"])
    async def test_odd_paths(self, path: str) -> None:
        async with HttpSink() as sink, sender_for() as sender:
            await sender.send(post(sink.url + path))
            assert sink.requests[0].path == path

    @pytest.mark.parametrize(
        ("url", "host"),
        [
            ("http://[::1]:{port}/", "[::1]:{port}"),
            ("http://LOCALHOST:{port}/", "localhost:{port}"),
        ],
    )
    async def test_the_host_as_it_is_written(self, url: str, host: str) -> None:
        address = "::1" if "[" in url else "127.0.0.1"
        async with HttpSink(host=address) as sink, sender_for() as sender:
            assert (await sender.send(post(url.format(port=sink.port)))).status == 200
            assert sink.requests[0].header("host") == host.format(port=sink.port)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("X-Odd", "a\rb"), ("X-Odd", "a\x7f"), ("X-Odd", "a\x1fb"), ("X-Odd", "\ud800"), ("", "a"),
            ("X Odd", "a"), ("X-Odd:", "a"), ("X-Odd\r\nX-Evil", "a"), ("X-Ödd", "a"), ("X-Odd\0", "a"),
            # What is left out of every request is no excuse either.
            ("Host", "a\r\nX-Evil: 1"),
        ],
    )  # fmt: skip
    async def test_what_no_header_may_contain(self, name: str, value: str) -> None:
        async with HttpSink() as sink, sender_for() as sender:
            result = await sender.send(post(sink.url, headers={name: value}))
            assert (result.status, result.error_code, result.unknown) == (None, "invalid_request", False)
            assert "header" in result.message
            assert sink.connected == 0

    async def test_a_large_body_waits_for_its_reader(self) -> None:
        body = bytes(range(256)) * 40_000
        async with listening() as (url, accept), sender_for() as sender:
            send = asyncio.create_task(sender.send(post(url, body)))
            reader, writer = await accept()
            await asyncio.sleep(0.05)
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(body)) == body
            writer.write(OK)
            assert (await send).status == 200


#: Answers that are good, and what is made of them.
GOOD: dict[str, tuple[bytes, int, str]] = {
    "with a length": (OK, 200, "ok"),
    "chunked": (CHUNKED + b"2\r\nok\r\n1;ext=1\r\n!\r\n0\r\n\r\n", 200, "ok!"),
    "with headers after it": (CHUNKED + b"2\r\nok\r\n0\r\nX-After: 1\r\nX-More: 2\r\n\r\n", 200, "ok"),
    "with spaces after a size": (CHUNKED + b"2 \r\nok\r\n0\r\n\r\n", 200, "ok"),
    "without a body": (b"HTTP/1.1 204 No Content\r\nX-Empty:\r\n\r\n", 204, ""),
    "without a body, of no length": (b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, ""),
    "without a reason": (b"HTTP/1.1 500\r\nContent-Length: 1\r\n\r\nx", 500, "x"),
    "of bare line feeds": (b"HTTP/1.1 200 OK\nX-A: b\nContent-Length: 2\n\nok", 200, "ok"),
    "with a folded header": (b"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
    "with empty lines before it": (b"\r\n\r\n" + OK, 200, "ok"),
    "after others that were none": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK, 200, "ok",
    ),
    "of HTTP/1.0 that keeps": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, "ok",
    ),
}  # fmt: skip


class TestAnswers:
    @pytest.mark.parametrize("pieces", ["whole", "by the byte"])
    @pytest.mark.parametrize("kind", GOOD)
    async def test_good_ones_however_they_are_cut_up(self, kind: str, pieces: str) -> None:
        answer, status, body = GOOD[kind]
        script = raw(answer, drip=None if pieces == "whole" else 0.0)
        async with HttpSink(script) as sink, sender_for() as sender:
            results = [await sender.send(post(sink.url)) for _ in range(3)]
            assert {(r.status, r.error_code, r.body) for r in results} == {(status, None, body)}
            assert len({r.headers for r in results}) == 1
            assert "X-After" not in dict(results[0].headers)
            assert (sink.count, sink.connected) == (3, 1)

    @pytest.mark.parametrize(
        "answer",
        [
            CHUNKED + b"zz\r\nhello\r\n",
            CHUNKED + b"fffffffffffffffff\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
            b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/3.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ],
    )
    async def test_bad_ones_however_they_are_cut_up(self, answer: bytes) -> None:
        for drip in (None, 0.0):
            async with HttpSink(raw(answer, drip=drip)) as sink, sender_for() as sender:
                result = await sender.send(post(sink.url))
                assert (result.status, result.error_code, result.unknown) == (None, "protocol_error", True)
                assert result.message == "the answer is not valid HTTP"
                await until(lambda: not sink.connections, "the connection to be closed")

    @pytest.mark.parametrize(("count", "code"), [(255, None), (256, "protocol_error")])
    async def test_how_many_headers_there_may_be(self, count: int, code: str | None) -> None:
        many = tuple((f"X-{number}", "v") for number in range(count))
        async with HttpSink(lambda _: Answer(headers=many)) as sink, sender_for() as sender:
            assert (await sender.send(post(sink.url))).error_code == code

    @pytest.mark.parametrize(("size", "code"), [(3_000, None), (7_000, "protocol_error")])
    async def test_how_long_headers_may_be(self, size: int, code: str | None) -> None:
        long = tuple((f"X-{number}", "v" * size) for number in range(10))
        answer = Answer(headers=long, body=b"b" * 100_000)
        async with HttpSink(lambda _: answer) as sink, sender_for() as sender:
            assert (await sender.send(post(sink.url))).error_code == code

    @pytest.mark.parametrize("endless", [b"2;" + b"x" * 50_000, b"0\r\nX-After: " + b"x" * 50_000])
    async def test_what_is_no_body_has_a_measure_too(self, endless: bytes) -> None:
        async with HttpSink(raw(CHUNKED + endless, endless=b"x" * 50_000)) as sink, sender_for() as sender:
            result = await sender.send(post(sink.url))
            assert (result.status, result.error_code, result.body) == (200, None, "")
            await until(lambda: not sink.connections, "the rest to be abandoned")

    async def test_said_to_come_too_often(self) -> None:
        """The answer behind a hundred 1xx may be read or not; the connection is none the worse for it."""
        delays = b"HTTP/1.1 102 Processing\r\n\r\n"
        async with HttpSink(raw(delays * 100 + OK)) as sink, sender_for() as sender:
            for _ in range(3):
                assert (await sender.send(post(sink.url))).status == 200
            assert sink.connected == 1
            sink.script = raw(delays, endless=delays)
            result = await sender.send(post(sink.url, timeout=0.3))
            assert (result.status, result.error_code, result.unknown) == (None, "timeout", True)

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok and more",
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
            OK + b"HTTP",
            OK + b"\x00",
            OK + OK,
        ],
    )
    async def test_what_is_not_used_again(self, answer: bytes) -> None:
        async with HttpSink(raw(answer)) as sink, sender_for() as sender:
            for number in range(1, 4):
                result = await sender.send(post(sink.url))
                assert (result.status, result.error_code, result.body) == (200, None, "ok")
                await until(lambda: not sink.connections, "the connection to be closed")
                assert sink.connected == number

    @pytest.mark.parametrize(
        "head",
        [
            b"HTTP/1.1 204 No Content\r\nContent-Length: 19\r\n\r\n",
            b"HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\nContent-Length: 19\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\n\r\n",
        ],
    )
    async def test_a_body_where_there_is_none_answers_no_other_request(self, head: bytes) -> None:
        """It may come late, and look like an answer itself."""
        async with listening() as (url, accept), sender_for(connections_per_host=1) as sender:
            first, second = (asyncio.create_task(sender.send(post(url))) for _ in range(2))
            reader, writer = await accept()
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(head)
            answered = await first
            assert (answered.status, answered.error_code, answered.body) == (int(head[9:12]), None, "")
            assert await reader.read() == b"", "nothing else is asked there"
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            reader, other = await accept()
            await reader.readuntil(b"\r\n\r\n{}")
            other.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
            assert (await second).status == 500

    @pytest.mark.parametrize("coding", [b"", b"Transfer-Encoding: chunked, gzip\r\n", b"X-A: b\r\n"])
    async def test_a_body_that_ends_with_its_connection(self, coding: bytes) -> None:
        answer = raw(b"HTTP/1.1 200 OK\r\n" + coding + b"\r\nall of it", close=True)
        async with HttpSink(answer) as sink, sender_for() as sender:
            result = await sender.send(post(sink.url))
            assert (result.status, result.error_code, result.body) == (200, None, "all of it")

    async def test_a_reset_is_no_end_of_a_body(self) -> None:
        answer = raw(b"HTTP/1.1 200 OK\r\n\r\nhalf of", reset=True)
        async with HttpSink(answer) as sink, sender_for() as sender:
            result = await sender.send(post(sink.url))
            assert (result.status, result.error_code, result.unknown) == (200, "connection_lost", True)

    async def test_an_answer_before_the_request_was_read(self) -> None:
        async with listening() as (url, accept), sender_for() as sender:
            send = asyncio.create_task(sender.send(post(url, b"x" * 20_000_000)))
            reader, writer = await accept()
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            result = await send
            assert (result.status, result.error_code, result.body) == (413, None, "no")
            # Half a request is on its way there: nothing else may follow on that connection.
            again = asyncio.create_task(sender.send(post(url)))
            reader, other = await accept()
            await reader.readuntil(b"\r\n\r\n{}")
            other.write(OK)
            assert (await again).status == 200


class TestDeadlines:
    async def test_a_short_one_after_a_long_one(self) -> None:
        async with HttpSink({"/slow": Answer(silent=True)}) as sink, sender_for() as sender:
            for seconds in (30.0, 20.0, 40.0):
                assert (await sender.send(post(sink.url, timeout=seconds))).status == 200
            result = await sender.send(post(f"{sink.url}/slow", timeout=0.2))
            assert (result.error_code, sink.connected) == ("timeout", 1)
            assert 0.19 < result.seconds < 10

    async def test_a_long_one_after_a_short_one(self) -> None:
        """The timer of an answered request goes off in the middle of another, and hurts nobody."""
        async with HttpSink({"/late": Answer(delay=0.3)}) as sink, sender_for() as sender:
            # A busy machine may take longer than that, and then it has to be done again.
            while (await sender.send(post(sink.url, timeout=0.2))).status != 200:
                pass
            before = sink.connected
            result = await sender.send(post(f"{sink.url}/late", timeout=30))
            assert (result.status, sink.connected) == (200, before)

    async def test_one_that_is_over_sends_nothing(self) -> None:
        async with HttpSink() as sink, sender_for() as sender:
            assert (await sender.send(post(sink.url))).status == 200
            result = await sender.send(post(sink.url, timeout=0))
            assert (result.error_code, result.unknown, sink.count) == ("timeout", False, 1)


class TestUnknown:
    @pytest.mark.parametrize(("size", "unknown"), [(300, True), (60_000, True), (20_000_000, False)])
    async def test_whether_all_was_written(self, size: int, unknown: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/"
            async with sender_for() as sender:
                result: WebhookResult = await sender.send(post(url, b"x" * size, timeout=0.5))
        assert (result.error_code, result.unknown) == ("timeout", unknown)

    async def test_hung_up_in_the_middle_of_the_request(self) -> None:
        async with listening() as (url, accept), sender_for() as sender:
            send = asyncio.create_task(sender.send(post(url, b"x" * 20_000_000)))
            reader, writer = await accept()
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
            result = await send
            assert (result.status, result.error_code, result.unknown) == (None, "connection_lost", False)
