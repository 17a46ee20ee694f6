"""TLS of the webhook sender: certificates are checked, and nothing older than 1.2 is spoken."""

from __future__ import annotations

import ssl
import warnings
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from tests.senders.webhook_peers import Names, guard, post, sender_for

from homing.senders.webhook import WebhookResult, tls_context
from homing.testing.http_sink import Answer, HttpSink

NAMES = Names({"receiver.example": ("127.0.0.1",), "other.example": ("127.0.0.1",)})


class Authority:
    def __init__(self, directory: Path) -> None:
        self._authority = trustme.CA()
        self.cafile = directory / "authority.pem"
        self._authority.cert_pem.write_to_path(self.cafile)

    def server(self, *names: str, expired: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        end = datetime(2020, 1, 1, tzinfo=UTC) if expired else None
        self._authority.issue_cert(*names, not_after=end).configure_cert(context)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def send(
    server: ssl.SSLContext,
    authority: Authority,
    host: str = "receiver.example",
    context: ssl.SSLContext | None = None,
) -> WebhookResult:
    """What came of a POST to a receiver with this context; it must get nothing if TLS fails."""
    context = tls_context(str(authority.cafile)) if context is None else context
    async with (
        HttpSink(tls=server) as sink,
        sender_for(guard(allow_http=False), ssl_context=context, lookup=NAMES) as sender,
    ):
        result: WebhookResult = await sender.send(post(f"https://{host}:{sink.port}/"))
        assert sink.count == (1 if result.status == 200 else 0)
        return result


def _only_1_1(context: ssl.SSLContext) -> ssl.SSLContext:
    with warnings.catch_warnings():
        # Asking for an old version is what this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def assert_refused(result: WebhookResult, reason: str) -> None:
    assert (result.status, result.error_code, result.unknown) == (None, "tls_error", False)
    assert reason in result.message


class TestCertificates:
    @pytest.mark.parametrize("host", ["receiver.example", "127.0.0.1"])
    async def test_a_good_one(self, authority: Authority, host: str) -> None:
        result = await send(authority.server(host), authority, host)
        assert (result.status, result.error_code) == (200, None)

    async def test_of_an_authority_nobody_knows(self, authority: Authority, tmp_path: Path) -> None:
        stranger = Authority(tmp_path).server("receiver.example")
        assert_refused(await send(stranger, authority), "certificate is not to be trusted: unable to get")

    async def test_that_vouches_for_itself(self, authority: Authority) -> None:
        # The authority's own certificate, shown as a server's.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        own = trustme.CA()
        with own.private_key_pem.tempfile() as key, own.cert_pem.tempfile() as certificate:
            context.load_cert_chain(certificate, key)
        assert_refused(await send(context, authority), "certificate is not to be trusted: self")

    async def test_that_has_expired(self, authority: Authority) -> None:
        expired = authority.server("receiver.example", expired=True)
        assert_refused(await send(expired, authority), "certificate has expired")

    async def test_with_another_name(self, authority: Authority) -> None:
        other = authority.server("other.example")
        assert_refused(await send(other, authority), "not valid for 'receiver.example'")
        assert (await send(other, authority, "other.example")).status == 200

    async def test_a_name_is_not_vouched_for_by_its_address(self, authority: Authority) -> None:
        assert_refused(await send(authority.server("127.0.0.1"), authority), "not valid for")

    async def test_the_systems_authorities_are_asked_without_a_context(self, authority: Authority) -> None:
        server = authority.server("127.0.0.1")
        async with HttpSink(tls=server) as sink, sender_for() as sender:
            result = await sender.send(post(f"https://127.0.0.1:{sink.port}/"))
            assert_refused(result, "certificate is not to be trusted")
            assert sink.count == 0


class TestProtocol:
    async def test_1_1_is_refused(self, authority: Authority) -> None:
        old = _only_1_1(authority.server("receiver.example"))
        assert_refused(await send(old, authority), "TLS failed")
        # The receiver is not to blame: it does speak with whoever takes an old version.
        lax = _only_1_1(tls_context(str(authority.cafile)))
        assert (await send(old, authority, context=lax)).status == 200

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    async def test_newer_ones_are_spoken(self, authority: Authority, version: ssl.TLSVersion) -> None:
        server = authority.server("receiver.example")
        server.minimum_version = server.maximum_version = version
        assert (await send(server, authority)).status == 200

    def test_the_context_is_strict(self) -> None:
        context = tls_context()
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)

    async def test_a_receiver_without_tls(self, authority: Authority) -> None:
        context = tls_context(str(authority.cafile))
        for answer in (
            Answer(raw=b"HTTP/1.1 400 Bad\r\n\r\n"),
            Answer(raw=b"", close=True),
            Answer(silent=True),
        ):
            async with (
                HttpSink(on_connect=answer) as sink,
                sender_for(ssl_context=context, lookup=NAMES) as sender,
            ):
                result = await sender.send(post(f"https://receiver.example:{sink.port}/", timeout=0.5))
                assert (result.status, result.unknown) == (None, False)
                assert result.error_code in {"tls_error", "connect_error", "connection_lost", "timeout"}
                assert sink.count == 0


class TestConnections:
    async def test_they_are_kept(self, authority: Authority) -> None:
        context = tls_context(str(authority.cafile))
        server = authority.server("receiver.example")
        async with HttpSink(tls=server) as sink, sender_for(ssl_context=context, lookup=NAMES) as sender:
            url = f"https://receiver.example:{sink.port}/"
            for size in (300, 1_000_000, 0, 300):
                assert (await sender.send(post(url, b"x" * size))).status == 200
            assert (sink.count, sink.connected) == (4, 1)
            assert [len(request.body) for request in sink.requests] == [300, 1_000_000, 0, 300]

    @pytest.mark.parametrize("answer", [Answer(raw=b"", close=True), Answer(raw=b"", reset=True)])
    async def test_lost_after_the_last_byte(self, authority: Authority, answer: Answer) -> None:
        context = tls_context(str(authority.cafile))
        server = authority.server("receiver.example")
        async with (
            HttpSink(lambda _: answer, tls=server) as sink,
            sender_for(ssl_context=context, lookup=NAMES) as sender,
        ):
            result = await sender.send(post(f"https://receiver.example:{sink.port}/"))
            assert (result.status, result.error_code, result.unknown) == (None, "connection_lost", True)
            assert sink.count == 1

    async def test_a_wrong_certificate_for_one_name_says_nothing_of_another(
        self, authority: Authority
    ) -> None:
        context = tls_context(str(authority.cafile))
        server = authority.server("receiver.example")
        async with HttpSink(tls=server) as sink, sender_for(ssl_context=context, lookup=NAMES) as sender:
            good, bad = (f"https://{name}.example:{sink.port}/" for name in ("receiver", "other"))
            for _ in range(3):
                assert (await sender.send(post(good))).status == 200
                assert_refused(await sender.send(post(bad)), "not valid for 'other.example'")
            assert sink.count == 3
