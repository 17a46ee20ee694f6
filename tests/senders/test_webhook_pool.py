"""The connections of the webhook sender: shared, few, fairly given out, and all gone in the end."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.senders.peers import Certificates, until
from tests.senders.test_webhook_faults import open_sockets
from tests.senders.webhook_peers import Names, guard, post, sender_for

from homing.senders import webhook_connect
from homing.senders.webhook import WebhookSender, tls_context
from homing.testing.http_sink import Answer, HttpSink, SinkRequest

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def deaf_server(host: str) -> Iterator[int]:
    """A port where nobody answers: its queue is full, and whoever knocks is not heard."""
    with socket.create_server((host, 0), backlog=0) as server, ExitStack() as stack:
        for _ in range(4):
            knocking = stack.enter_context(socket.socket())
            knocking.setblocking(False)
            knocking.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def names(count: int) -> Names:
    return Names({f"c{number}.example": ("127.0.0.1",) for number in range(count)})


def assert_empty(sender: WebhookSender) -> None:
    """Nothing is open, nobody waits, and nothing is remembered of either."""
    pool = sender._pool
    assert (pool._open, pool._shelves, pool._idle, pool._turns) == (0, {}, {}, {})
    assert (pool._live, pool._sockets, pool._waits) == (set(), set(), set())


class TestIdle:
    async def test_the_last_one_used_is_used_first(self) -> None:
        async with HttpSink(lambda _: Answer(delay=0.02)) as sink, sender_for() as sender:
            await asyncio.gather(*(sender.send(post(sink.url)) for _ in range(5)))
            assert sink.connected == 5
            for _ in range(5):
                await sender.send(post(sink.url))
            # So the others are left alone, until they have idled for long enough to be closed.
            assert len({request.connection for request in sink.requests[5:]}) == 1

    async def test_none_is_used_after_20_seconds(self) -> None:
        clock = Clock()
        async with HttpSink() as sink, sender_for(monotonic=clock) as sender:
            await sender.send(post(sink.url))
            clock.now += 19.9
            await sender.send(post(sink.url))
            assert sink.connected == 1
            clock.now += 20.1
            await sender.send(post(sink.url))
            assert sink.connected == 2
            await until(lambda: len(sink.connections) == 1, "the old one to be closed")

    async def test_old_ones_are_closed_without_being_asked_for(self) -> None:
        clock = Clock()
        async with HttpSink() as sink, sender_for(monotonic=clock, lookup=names(3)) as sender:
            for number in range(3):
                await sender.send(post(f"http://c{number}.example:{sink.port}/"))
                clock.now += 8
            sender._pool._sweep()
            await until(lambda: len(sink.connections) == 2, "the oldest to be closed")
            clock.now += 20
            sender._pool._sweep()
            await until(lambda: not sink.connections, "all to be closed")
            assert_empty(sender)
            assert sender._pool._sweeper is None

    async def test_what_the_loop_has_not_seen_yet_is_seen(self) -> None:
        """The receiver hangs up right behind its answer, unannounced, and the next request is at hand."""
        async with HttpSink(lambda _: Answer(raw=OK, close=True)) as sink, sender_for() as sender:
            for _ in range(50):
                result = await sender.send(post(sink.url))
                assert (result.status, result.error_code) == (200, None)
            assert (sink.count, sink.connected) == (50, 50)

    async def test_nor_is_it_handed_over(self) -> None:
        script = Answer(raw=OK, close=True)
        async with (
            HttpSink(lambda _: script) as sink,
            sender_for(connections_per_host=2) as sender,
        ):
            results = await asyncio.gather(*(sender.send(post(sink.url)) for _ in range(50)))
            assert {(result.status, result.error_code) for result in results} == {(200, None)}
            assert sink.count == 50


class TestTurns:
    async def test_first_come_first_served(self) -> None:
        async with (
            HttpSink(lambda _: Answer(delay=0.002)) as sink,
            sender_for(connections_per_host=1) as sender,
        ):
            await asyncio.gather(*(sender.send(post(sink.url, b"%d" % n)) for n in range(20)))
            assert [int(request.body) for request in sink.requests] == list(range(20))
            assert sink.connected == 1

    async def test_no_more_than_allowed_in_all(self) -> None:
        most = 0

        def answer(_: SinkRequest) -> Answer:
            nonlocal most
            most = max(most, len(sink.connections))
            return Answer(delay=0.002)

        async with (
            HttpSink(answer) as sink,
            sender_for(lookup=names(20), connections=6, connections_per_host=3) as sender,
        ):
            urls = [f"http://c{n % 20}.example:{sink.port}/" for n in range(200)]
            results = await asyncio.gather(*(sender.send(post(url)) for url in urls))
            assert Counter(result.status for result in results) == {200: 200}
            # One that was given up to make room may still be closing.
            assert most <= 8
            await sender.close()
            assert_empty(sender)

    async def test_a_busy_origin_keeps_nobody_out(self) -> None:
        async with (
            HttpSink(lambda _: Answer(delay=0.005)) as sink,
            sender_for(lookup=names(2), connections=2, connections_per_host=2) as sender,
        ):
            busy, other = (f"http://c{n}.example:{sink.port}/" for n in range(2))
            crowd = [asyncio.create_task(sender.send(post(busy))) for _ in range(100)]
            await sink.received(2)
            result = await sender.send(post(other))
            assert result.status == 200
            assert sum(task.done() for task in crowd) < 20
            assert {answer.status for answer in await asyncio.gather(*crowd)} == {200}

    async def test_a_stuck_origin_keeps_nobody_out(self) -> None:
        def answer(request: SinkRequest) -> Answer | None:
            return Answer(silent=True) if request.path == "/stuck" else None

        async with (
            HttpSink(answer) as sink,
            sender_for(lookup=names(2), connections=4, connections_per_host=2) as sender,
        ):
            url = f"http://c0.example:{sink.port}/stuck"
            stuck = [asyncio.create_task(sender.send(post(url, timeout=30))) for _ in range(2)]
            await sink.received(2)
            waiting = [asyncio.create_task(sender.send(post(url, timeout=0.3))) for _ in range(18)]
            for _ in range(20):
                assert (await sender.send(post(f"http://c1.example:{sink.port}/"))).status == 200
            results = await asyncio.gather(*waiting)
            assert {(result.error_code, result.unknown) for result in results} == {("timeout", False)}
            assert {result.message for result in results} == {"no connection within 0.3 s"}
            sink.hang_up()
            for result in await asyncio.gather(*stuck):
                assert (result.error_code, result.unknown) == ("connection_lost", True)

    async def test_giving_up_passes_on_what_was_handed_over(self) -> None:
        async with (
            HttpSink({"/first": Answer(delay=0.3)}) as sink,
            sender_for(connections_per_host=1) as sender,
        ):
            first = asyncio.create_task(sender.send(post(f"{sink.url}/first")))
            await sink.received(1)
            second, third = (asyncio.create_task(sender.send(post(sink.url))) for _ in range(2))
            await asyncio.sleep(0)
            # It has got the connection by then, but has not run since.
            _after(sender._pool, "_hand_over", second.cancel)
            assert (await third).status == 200
            assert (first.done(), second.cancelled()) == (True, True)
            assert (sink.count, sink.connected) == (2, 1)

    async def test_a_wait_that_was_cancelled_leaves_no_trace(self) -> None:
        async with (
            HttpSink(lambda _: Answer(silent=True)) as sink,
            sender_for(connections_per_host=1) as sender,
        ):
            first = asyncio.create_task(sender.send(post(sink.url)))
            await sink.received(1)
            second = asyncio.create_task(sender.send(post(sink.url)))
            await asyncio.sleep(0.01)
            for task in (second, first):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert_empty_but_for_sockets(sender)
            await until(lambda: not sink.connections, "the connection to be closed")
            assert_empty(sender)

    async def test_cancelled_when_the_answer_was_there_already(self) -> None:
        """The connection has gone to the next request by then, and must not be torn from it."""
        async with (
            HttpSink(lambda _: Answer(delay=0.02)) as sink,
            sender_for(connections_per_host=1) as sender,
        ):
            first, second = (asyncio.create_task(sender.send(post(sink.url))) for _ in range(2))
            await sink.received(1)
            _after(sender._pool, "release", first.cancel)
            assert (await second).status == 200
            assert first.cancelled()
            assert (sink.count, sink.connected) == (2, 1)


def _after(pool: Any, name: str, then: Callable[[], object]) -> None:
    """Have something done as soon as a method has run."""
    method = getattr(pool, name)

    def both(*given: object) -> None:
        method(*given)
        then()

    setattr(pool, name, both)


def assert_empty_but_for_sockets(sender: WebhookSender) -> None:
    sender._pool._sockets.clear()
    assert_empty(sender)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_500_requests_in_a_crowd_of_every_kind(seed: int) -> None:
    """Whatever happens to whom, nobody is forgotten, and the places of all are free again."""
    chance = random.Random(seed)
    kinds = [
        *[Answer()] * 5, Answer(delay=0.01), Answer(close=True), Answer(raw=OK, close=True),
        Answer(raw=b"nonsense"), Answer(raw=b"", reset=True), Answer(raw=OK + OK), Answer(silent=True),
    ]  # fmt: skip
    async with (
        HttpSink(lambda _: chance.choice(kinds)) as sink,
        sender_for(lookup=names(8), connections=7, connections_per_host=3) as sender,
    ):
        tasks = []
        for number in range(500):
            url = f"http://c{chance.randrange(8)}.example:{sink.port}/"
            request = post(url, b"%d" % number, timeout=chance.choice([0.05, 0.2, 2]))
            tasks.append(asyncio.create_task(sender.send(request)))
            if chance.random() < 0.1:
                chance.choice(tasks).cancel()
            if chance.random() < 0.2:
                await asyncio.sleep(0.002)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        codes = Counter(
            "cancelled" if isinstance(result, BaseException) else result.error_code for result in results
        )
        assert set(codes) <= {None, "cancelled", "timeout", "connection_lost", "protocol_error"}
        assert codes[None] > 10
        assert len({request.body for request in sink.requests}) == sink.count
        pool = sender._pool
        assert pool._open == len(pool._live) == len(pool._idle) <= 7
        assert not pool._turns
        await sender.close()
        assert_empty(sender)


class TestConnecting:
    async def test_the_next_address_where_one_refuses(self) -> None:
        lookup = Names({"two.example": ("127.0.0.9", "127.0.0.1")})
        async with HttpSink() as sink, sender_for(lookup=lookup) as sender:
            for _ in range(4):
                # Every time a fresh connection, and the addresses take turns at being the first.
                assert (await sender.send(post(f"http://two.example:{sink.port}/"))).status == 200
                sink.hang_up()
                await until(lambda: not sink.connections, "the connection to be closed")
            assert sink.connected == 4

    async def test_a_dead_address_takes_no_more_than_its_share(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(webhook_connect, "CONNECT_TIMEOUT", 0.4)
        lookup = Names({"two.example": ("127.0.0.9", "127.0.0.1"), "dead.example": ("127.0.0.9",)})
        with deaf_server("127.0.0.9") as port:
            async with HttpSink(port=port) as sink, sender_for(lookup=lookup) as sender:
                for _ in range(2):
                    assert (await sender.send(post(f"http://two.example:{port}/"))).status == 200
                    sink.hang_up()
                    await asyncio.sleep(0.01)
                result = await sender.send(post(f"http://dead.example:{port}/"))
                assert (result.error_code, result.unknown) == ("timeout", False)
                assert result.message == "no connection within 0.4 s"
                assert 0.39 < result.seconds < 10
                assert_empty(sender)

    async def test_cancelled_while_connecting(self) -> None:
        with deaf_server("127.0.0.1") as port:
            async with sender_for() as sender:
                before = open_sockets()
                send = asyncio.create_task(sender.send(post(f"http://127.0.0.1:{port}/")))
                await until(lambda: open_sockets() > before, "the connection to be tried")
                send.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await send
                assert open_sockets() == before
                assert_empty(sender)

    @pytest.mark.parametrize("how", ["cancelled", "too late", "closed"])
    async def test_given_up_in_the_middle_of_a_handshake(self, how: str) -> None:
        async with HttpSink(on_connect=Answer(silent=True)) as sink, sender_for() as sender:
            before = open_sockets()
            request = post(f"https://127.0.0.1:{sink.port}/", timeout=0.2 if how == "too late" else 30)
            send = asyncio.create_task(sender.send(request))
            await until(lambda: sink.connected == 1, "the handshake to begin")
            if how == "cancelled":
                send.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await send
            else:
                if how == "closed":
                    await sender.close()
                code = {"closed": "connection_lost", "too late": "timeout"}[how]
                assert ((await send).error_code, (await send).unknown) == (code, False)
            await until(lambda: open_sockets() <= before, "the socket to be closed")
            assert_empty(sender)

    async def test_a_failed_one_leaves_its_place(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        async with sender_for(connections_per_host=1, connections=1) as sender:
            results = await asyncio.gather(
                *(sender.send(post(f"http://127.0.0.1:{port}/")) for _ in range(10))
            )
            assert {result.error_code for result in results} == {"connect_error"}
            assert_empty(sender)


class TestClosing:
    async def test_nothing_is_left_open(self, tmp_path: Path) -> None:
        authority = Certificates(tmp_path)
        context, server = tls_context(str(authority.cafile)), authority.server("127.0.0.1")
        before = open_sockets()
        async with (
            HttpSink(tls=server) as secure,
            HttpSink() as plain,
            sender_for(guard(), ssl_context=context) as sender,
        ):
            started = open_sockets()
            for url in (f"https://127.0.0.1:{secure.port}/", plain.url):
                await asyncio.gather(*(sender.send(post(url)) for _ in range(5)))
            assert open_sockets() > started
            await sender.close()
            assert_empty(sender)
            await until(lambda: open_sockets() <= started, "the sockets to be closed")
            # Twice is as good as once.
            await sender.close()
        await until(lambda: open_sockets() <= before, "the servers to be closed")
