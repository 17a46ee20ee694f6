"""The webhook sender with receivers that behave: what goes out, and what is kept of what comes back."""

from __future__ import annotations

import asyncio
import gzip
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from tests.senders.peers import until
from tests.senders.webhook_peers import Names, guard, post, sender_for

from homing import __version__
from homing.senders.webhook import WebhookRequest, WebhookResult
from homing.senders.webhook_answer import parse_retry_after
from homing.testing.http_sink import Answer, HttpSink, Script

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


async def answer_of(
    script: Script | dict[str, Answer], headers: dict[str, str] | None = None
) -> WebhookResult:
    """What the sender makes of one answer."""
    async with HttpSink(script) as sink, sender_for(clock=lambda: NOW) as sender:
        result: WebhookResult = await sender.send(post(f"{sink.url}/", headers=headers))
        return result


class TestRequest:
    @pytest.mark.clause("JOB-07")
    async def test_it_arrives_byte_for_byte(self) -> None:
        headers = (
            ("Authorization", "Bearer sk_live_abc123"),
            ("X-FLOWCATALYST-SIGNATURE", "a1b2c3"),
            ("X-FLOWCATALYST-TIMESTAMP", "2025-10-04T14:30:45.123Z"),
            ("Content-Type", "application/vnd.acme+json; charset=utf-8"),
            ("webhook-id", "msg_1"),
            ("X-Custom", "one"),
            ("X-Custom", "two"),
        )
        body = '{"orderId":"12345","name":"Zoë"}\n\0'.encode()
        async with HttpSink() as sink, sender_for() as sender:
            result = await sender.send(WebhookRequest(f"{sink.url}/hook", headers, body))
            (request,) = sink.requests
        assert (result.status, result.error_code, result.message) == (200, None, "HTTP 200")
        assert (request.method, request.path, request.body) == ("POST", "/hook", body)
        host = f"127.0.0.1:{sink.port}"
        assert set(request.headers) == {
            *headers,
            ("Host", host),
            ("Content-Length", str(len(body))),
            ("Accept", "*/*"),
            ("Accept-Encoding", "identity"),
            ("User-Agent", f"Homing/{__version__}"),
        }
        # Names keep their spelling and values of one name their order.
        assert [pair for pair in request.headers if pair in headers] == list(headers)

    @pytest.mark.parametrize(
        "path",
        ["/a%2Fb/../c;d?x=%zz&y=1&y=%20", "/", "/?a=b", "/~x//y/./z", "/%7Euser", "/a?b?c=/d", "/'\"<>|"],
    )
    async def test_the_path_is_left_as_it_was_given(self, path: str) -> None:
        async with HttpSink() as sink, sender_for() as sender:
            await sender.send(post(sink.url + path))
            assert sink.requests[0].path == path

    async def test_a_url_without_a_path(self) -> None:
        async with HttpSink() as sink, sender_for() as sender:
            await sender.send(post(sink.url))
            await sender.send(post(f"{sink.url}?a=1"))
            assert [request.path for request in sink.requests] == ["/", "/?a=1"]

    @pytest.mark.parametrize("size", [0, 1, 300, 65_536, 1_048_576, 5_000_000])
    async def test_bodies_of_every_size(self, size: int) -> None:
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        async with HttpSink() as sink, sender_for() as sender:
            assert (await sender.send(post(sink.url, body))).status == 200
            assert sink.requests[0].body == body
            assert sink.requests[0].header("content-length") == str(size)

    async def test_a_caller_cannot_frame_the_message(self) -> None:
        forbidden = {
            "Host": "evil.example", "Content-Length": "0", "transfer-encoding": "chunked",
            "CONNECTION": "close", "Expect": "100-continue", "Accept-Encoding": "gzip",
            "Upgrade": "h2c", "TE": "trailers",
        }  # fmt: skip
        async with HttpSink() as sink, sender_for() as sender:
            assert (await sender.send(post(sink.url, b"whole", headers=forbidden))).status == 200
            (request,) = sink.requests
            assert request.body == b"whole"
            assert not set(forbidden.items()) & set(request.headers)
            assert sum(name.lower() in {"host", "content-length"} for name, _ in request.headers) == 2

    @pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
    async def test_a_header_that_cannot_be_written_sends_nothing(self, value: str) -> None:
        async with HttpSink() as sink, sender_for() as sender:
            result = await sender.send(post(sink.url, headers={"X-Odd": value}))
            assert (result.error_code, result.unknown) == ("invalid_request", False)
            assert "could not be sent" in result.message
            assert sink.count == 0
            # The sender is none the worse for it.
            assert (await sender.send(post(sink.url))).status == 200

    def test_it_does_not_show_what_it_holds(self) -> None:
        request = post("https://example.com/?token=canary", b"canary", headers={"X-Api-Key": "canary"})
        assert repr(request) == str(request) == "<WebhookRequest of 6 bytes>"

    async def test_a_callers_user_agent_goes_first(self) -> None:
        async with HttpSink() as sink, sender_for() as sender:
            await sender.send(post(sink.url, headers={"user-agent": "Acme/1"}))
            assert [v for n, v in sink.requests[0].headers if n.lower() == "user-agent"] == ["Acme/1"]

    async def test_proxies_of_the_environment_have_no_say(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with HttpSink() as proxy, HttpSink() as sink, sender_for() as sender:
            for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            assert (await sender.send(post(sink.url))).status == 200
            assert (proxy.connected, sink.count) == (0, 1)

    @pytest.mark.parametrize(
        ("url", "code"),
        [
            ("ftp://example.com/", "invalid_url"),
            ("http://user:pass@127.0.0.1/", "invalid_url"),
            ("http://127.1/", "invalid_url"),
            ("http://10.0.0.1/", "egress_refused"),
            ("http://169.254.169.254/latest/meta-data/", "egress_refused"),
        ],
    )
    async def test_what_may_not_be_sent_to(self, url: str, code: str) -> None:
        watched = guard()
        async with sender_for(watched) as sender:
            result = await sender.send(post(url))
        assert (result.status, result.error_code, result.unknown) == (None, code, False)
        assert result.message
        assert watched.opened == 0

    async def test_ports_of_other_protocols(self) -> None:
        watched = guard(allow_http=False)
        async with sender_for(watched) as sender:
            result = await sender.send(post("https://127.0.0.1:25/"))
        assert (result.status, result.error_code, result.unknown) == (None, "egress_refused", False)
        assert watched.opened == 0

    @pytest.mark.clause("JOB-24")
    async def test_https_only_unless_told_otherwise(self) -> None:
        async with HttpSink() as sink, sender_for(guard(allow_http=False)) as sender:
            result = await sender.send(post(sink.url))
            assert result.error_code == "invalid_url"
            assert "HOMING_ALLOW_HTTP" in result.message
            assert sink.connected == 0


class TestConnections:
    async def test_they_are_kept(self) -> None:
        async with HttpSink() as sink, sender_for() as sender:
            for _ in range(10):
                assert (await sender.send(post(sink.url))).status == 200
            assert (sink.count, sink.connected) == (10, 1)

    async def test_no_more_than_allowed_to_one_host(self) -> None:
        async with (
            HttpSink(lambda _: Answer(delay=0.05)) as sink,
            sender_for(connections_per_host=2) as sender,
        ):
            results = await asyncio.gather(*(sender.send(post(sink.url)) for _ in range(8)))
            assert {result.status for result in results} == {200}
            assert sink.connected == 2

    async def test_waiting_for_one_counts(self) -> None:
        async with (
            HttpSink(lambda _: Answer(silent=True)) as sink,
            sender_for(connections_per_host=1) as sender,
        ):
            first = asyncio.create_task(sender.send(post(sink.url, timeout=60)))
            await sink.received(1)
            result = await sender.send(post(sink.url, timeout=0.1))
            assert (result.error_code, result.unknown) == ("timeout", False)
            assert result.message == "no connection within 0.1 s"
            sink.hang_up()
            assert (await first).error_code == "connection_lost"
            assert sink.count == 1

    async def test_idle_ones_do_not_add_up(self) -> None:
        # Every name is a receiver of its own to the pool, as thousands of customers are.
        names = Names({f"c{n}.example": ("127.0.0.1",) for n in range(60)})
        async with HttpSink() as sink, sender_for(lookup=names, connections=10) as sender:
            for number in range(60):
                url = f"http://c{number}.example:{sink.port}/"
                assert (await sender.send(post(url))).status == 200
            await until(lambda: len(sink.connections) <= 12, "the surplus to be closed")

    async def test_what_is_under_way_ends_when_the_sender_closes(self) -> None:
        async with HttpSink(lambda _: Answer(silent=True)) as sink, sender_for() as sender:
            sends = [asyncio.create_task(sender.send(post(sink.url))) for _ in range(3)]
            await sink.received(3)
            await sender.close()
            for result in await asyncio.gather(*sends):
                assert (result.error_code, result.unknown) == ("connection_lost", True)
            after = await sender.send(post(sink.url))
            assert (after.error_code, after.message) == ("connection_lost", "the sender is closing")

    async def test_closing_ends_the_wait_for_a_connection(self) -> None:
        async with (
            HttpSink(lambda _: Answer(silent=True)) as sink,
            sender_for(connections_per_host=1) as sender,
        ):
            first = asyncio.create_task(sender.send(post(sink.url)))
            await sink.received(1)
            second = asyncio.create_task(sender.send(post(sink.url)))
            await asyncio.sleep(0.01)
            await sender.close()
            assert (await first).error_code == (await second).error_code == "connection_lost"

    async def test_a_sender_that_was_never_used_closes(self) -> None:
        async with sender_for():
            pass

    async def test_cancelling_drops_the_connection_and_nothing_else(self) -> None:
        async with HttpSink({"/slow": Answer(silent=True)}) as sink, sender_for() as sender:
            send = asyncio.create_task(sender.send(post(f"{sink.url}/slow")))
            await sink.received(1)
            send.cancel()
            with pytest.raises(asyncio.CancelledError):
                await send
            await until(lambda: not sink.connections, "the connection to be dropped")
            assert (await sender.send(post(sink.url))).status == 200


class TestAnswer:
    @pytest.mark.parametrize("status", [200, 201, 202, 204, 400, 401, 404, 410, 429, 500, 502, 503, 599, 999])
    async def test_statuses(self, status: int) -> None:
        result = await answer_of({"/": Answer(status=status, body=b"" if status == 204 else b"words")})
        assert (result.status, result.error_code) == (status, None)
        assert result.message == f"HTTP {status}"
        assert result.body == ("" if status == 204 else "words")
        assert not result.unknown
        assert 0 < result.seconds < 5

    @pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
    async def test_redirects_are_never_followed(self, status: int) -> None:
        async with HttpSink() as elsewhere:
            location = (("Location", f"{elsewhere.url}/stolen"),)
            async with (
                HttpSink({"/": Answer(status=status, headers=location)}) as sink,
                sender_for() as sender,
            ):
                result = await sender.send(post(sink.url))
                assert (sink.count, elsewhere.connected) == (1, 0)
        assert (result.status, result.error_code) == (status, None)
        assert result.message == f"HTTP {status}; redirects are not followed: update the target URL"
        assert ("Location", f"{elsewhere.url}/stolen") in result.headers

    @pytest.mark.clause("JOB-04")
    @pytest.mark.parametrize("size", [4_999, 5_000, 5_001, 65_535, 65_536, 65_537, 1_000_000])
    async def test_5000_characters_are_kept(self, size: int) -> None:
        result = await answer_of({"/": Answer(body=("ä" * size).encode())})
        assert (result.status, result.error_code) == (200, None)
        if size <= 5_000:
            assert result.body == "ä" * size
        else:
            assert len(result.body) == 5_000
            assert result.body.lstrip("ä") == "… [cut]"

    async def test_chunked(self) -> None:
        result = await answer_of({"/": Answer(body=b"0123456789", chunked=3)})
        assert (result.status, result.body) == (200, "0123456789")

    async def test_what_is_no_text_does_no_harm(self) -> None:
        result = await answer_of({"/": Answer(body=b"a\0b\x1b[31m\xff\xed\xa0\x80\x7f\tc\r\n")})
        assert result.body == "a�b�[31m�����\tc\r\n"
        result.body.encode()

    async def test_a_gzip_bomb_is_not_inflated(self) -> None:
        bomb = gzip.compress(gzip.compress(b"0" * 50_000_000))
        result = await answer_of({"/": Answer(headers=(("Content-Encoding", "gzip"),), body=bomb)})
        assert (result.status, result.error_code) == (200, None)
        assert len(result.body) <= 5_000
        assert ("Content-Encoding", "gzip") in result.headers

    async def test_secrets_in_headers_are_not_kept(self) -> None:
        secret = {
            "Set-Cookie": "sid=canary", "set-cookie": "b=canary", "Authorization": "Bearer canary",
            "X-Api-Key": "canary", "X-Auth-Token": "canary", "Client-Secret": "canary", "Cookie": "canary",
            "WWW-Authenticate": "canary", "X-Session-Id": "canary", "X-Password": "canary",
        }  # fmt: skip
        harmless = {"X-Request-Id": "r-1", "Server": "nginx", "Retry-After": "7"}
        result = await answer_of({"/": Answer(headers=tuple((secret | harmless).items()))})
        assert "canary" not in str(result)
        kept = {name.lower(): value for name, value in result.headers}
        assert kept == {
            **{name.lower(): "[redacted]" for name in secret},
            **{name.lower(): value for name, value in harmless.items()},
            "content-length": "0",
        }

    async def test_a_receiver_that_repeats_our_secrets_puts_them_nowhere(self) -> None:
        def echo(request: object) -> Answer:
            text = f"you sent {request}".encode()
            return Answer(status=500, headers=(("X-Echo", "Bearer sk_live_canary"),), body=text)

        ours = {"Authorization": "Bearer sk_live_canary", "X-Api-Key": "key-canary"}
        result = await answer_of(echo, ours)
        assert "you sent" in result.body
        assert "Bearer [redacted]" in result.body
        assert ("X-Echo", "Bearer [redacted]") in result.headers
        assert "canary" not in str(result)

    async def test_headers_are_few_and_short(self) -> None:
        many = (("X-Long", "v" * 2_000), *((f"X-{n}", "v") for n in range(100)))
        result = await answer_of({"/": Answer(headers=many)})
        assert len(result.headers) == 50
        assert result.headers[0] == ("X-Long", "v" * 499 + "…")

    async def test_headers_that_are_no_utf8(self) -> None:
        raw = b"HTTP/1.1 200 OK\r\nX-Odd: caf\xe9 \xff\x80 \xc3\xa9\r\nContent-Length: 0\r\n\r\n"
        result = await answer_of({"/": Answer(raw=raw)})
        assert result.headers[0] == ("X-Odd", "caf� �� é")
        str(result).encode()

    @pytest.mark.clause("JOB-20")
    @pytest.mark.parametrize("status", [429, 503])
    async def test_retry_after(self, status: int) -> None:
        result = await answer_of({"/": Answer(status=status, headers=(("retry-after", "120"),))})
        assert (result.status, result.retry_after) == (status, 120.0)

    async def test_retry_after_of_an_answer_that_broke_off(self) -> None:
        raw = b"HTTP/1.1 429 Slow Down\r\nRetry-After: 9\r\nContent-Length: 10\r\n\r\nhalf"
        result = await answer_of({"/": Answer(raw=raw, close=True)})
        assert (result.status, result.error_code, result.retry_after) == (429, "connection_lost", 9.0)


@pytest.mark.clause("JOB-20")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("1", 1.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        ("3600", 3600.0),
        ("3601", 3600.0),
        ("999999999999", 3600.0),
        ("Wed, 04 Mar 2026 12:01:30 GMT", 90.0),
        ("Wednesday, 04-Mar-26 12:01:30 GMT", 90.0),
        ("Wed Mar  4 12:01:30 2026", 90.0),
        (format_datetime(NOW), 0.0),
        ("Wed, 04 Mar 2026 11:00:00 GMT", 0.0),
        ("Wed, 04 Mar 2027 12:00:00 GMT", 3600.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0),
        ("", None),
        ("-1", None),
        ("+5", None),
        ("soon", None),
        ("NaN", None),
        ("inf", None),
        ("1e3", None),
        ("0x10", None),
        ("12 seconds", None),
        ("१२", None),
        ("9" * 400, None),
        ("Wed, 99 Mar 2026 12:01:30 GMT", None),
        ("Wed, 04 Mar 99999 12:01:30 GMT", None),
        ("2026-03-04T12:01:30Z", None),
    ],
)
def test_retry_after_as_written(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds
