"""TLS: checked, required where it was asked for, and never given up quietly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.senders.peers import QUICK, Certificates, aiosmtpd_peer, mail, sender_to

from homing.senders.mail import SendErrorCode, SendResult
from homing.testing.smtp_sink import SinkSettings, SmtpSink, drop, raw, reply, stall


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


async def send_to(url: str, **options: Any) -> SendResult:
    sender = sender_to(url, **options)
    try:
        return await sender.send(mail())
    finally:
        await sender.close()


def assert_failed_closed(result: SendResult, sink: SmtpSink) -> None:
    assert (result.status, result.unknown, result.verdicts) == ("retryable", False, {})
    assert result.error is not None
    assert result.error.code is SendErrorCode.NETWORK_ERROR
    assert sink.mails == []
    assert not any(command.startswith(("MAIL", "AUTH")) for command in sink.commands)


Url = Callable[[int], str]


@pytest.fixture(params=["starttls", "implicit"])
def tls_peer(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[tuple[Any, str]]:
    """A server of aiosmtpd behind TLS, with a login, and the URL it is reached by."""
    context = certificates.server("localhost", "127.0.0.1")
    options = f"cafile={certificates.cafile}"
    if request.param == "implicit":
        with aiosmtpd_peer(implicit_tls=context, login=True, auth_require_tls=False) as peer:
            yield peer, f"smtps://LOGIN@127.0.0.1:{peer.port}?{options}"
    else:
        with aiosmtpd_peer(tls_context=context, require_starttls=True, login=True) as peer:
            yield peer, f"smtp://LOGIN@127.0.0.1:{peer.port}?tls=starttls&{options}"


class TestAgainstAiosmtpd:
    async def test_login_and_delivery(self, tls_peer: tuple[Any, str]) -> None:
        peer, url = tls_peer
        result = await send_to(url.replace("LOGIN", "ann:s3cret%3A%2F%40"))
        assert result.status == "sent"
        assert peer.envelopes[0].rcpt_tos == ["ann@example.org"]
        assert b"A line.\r\n" in peer.contents[0]

    async def test_a_wrong_password(self, tls_peer: tuple[Any, str]) -> None:
        peer, url = tls_peer
        result = await send_to(url.replace("LOGIN", "ann:wrong"))
        assert result.error is not None
        assert (result.status, result.error.code) == ("retryable", SendErrorCode.UNAUTHORIZED)
        assert peer.envelopes == []

    async def test_an_authority_that_we_do_not_know(self, tls_peer: tuple[Any, str]) -> None:
        peer, url = tls_peer
        result = await send_to(
            url.replace("LOGIN", "ann:s3cret%3A%2F%40").partition("cafile=")[0].rstrip("?&")
        )
        assert result.error is not None
        assert result.error.code is SendErrorCode.NETWORK_ERROR
        assert "certificate is not to be trusted" in result.error.message
        assert peer.envelopes == []


class TestStartTls:
    @pytest.fixture
    def settings(self, certificates: Certificates) -> SinkSettings:
        return SinkSettings(tls=certificates.server("127.0.0.1"))

    @pytest.fixture
    def query(self, certificates: Certificates) -> str:
        return f"?tls=starttls&cafile={certificates.cafile}"

    async def test_pipelined_mails_over_tls(self, settings: SinkSettings, query: str) -> None:
        async with SmtpSink(settings) as sink:
            sender = sender_to(sink.url + query, connections=1)
            results = [await sender.send(mail(number=n)) for n in range(3)]
            await sender.close()
            assert {r.status for r in results} == {"sent"}
            # Asked again after the handshake: what was offered in the clear counts for nothing.
            assert [c.partition(" ")[0] for c in sink.commands[:3]] == ["EHLO", "STARTTLS", "EHLO"]

    async def test_stripped_it_fails_closed(self, settings: SinkSettings, query: str) -> None:
        async with SmtpSink(replace(settings, offer_starttls=False)) as sink:
            result = await send_to(sink.url + query)
            assert_failed_closed(result, sink)
            assert result.error is not None
            assert "offers no STARTTLS" in result.error.message

    async def test_stripped_it_sends_no_password(self, settings: SinkSettings, query: str) -> None:
        settings = replace(settings, offer_starttls=False, users={"ann": "s3cret"})
        async with SmtpSink(settings) as sink:
            url = f"smtp://ann:s3cret@127.0.0.1:{sink.port}{query}"
            assert_failed_closed(await send_to(url), sink)

    @pytest.mark.parametrize("act", [reply("502 5.5.1 not today"), drop(), stall()])
    async def test_refused_or_broken_it_fails_closed(
        self, settings: SinkSettings, query: str, act: Any
    ) -> None:
        script = lambda stage, _: act if stage == "starttls" else None  # noqa: E731  (a line says it best)
        async with SmtpSink(replace(settings, script=script)) as sink:
            result = await send_to(f"{sink.url}{query}&timeout=0.4", limits=QUICK)
            assert sink.mails == []
            assert (result.status, result.unknown) == ("retryable", False)
            assert not any(command.startswith("MAIL") for command in sink.commands)

    async def test_454_is_a_busy_relay(self, settings: SinkSettings, query: str) -> None:
        script = lambda stage, _: reply("454 4.7.0 no TLS") if stage == "starttls" else None  # noqa: E731  (as above)
        async with SmtpSink(replace(settings, script=script)) as sink:
            result = await send_to(sink.url + query)
            assert sink.mails == []
        assert (result.status, result.attempted) == ("retryable", False)

    async def test_the_name_on_the_certificate_must_fit(self, certificates: Certificates, query: str) -> None:
        settings = SinkSettings(tls=certificates.server("mail.other.example"))
        async with SmtpSink(settings) as sink:
            assert_failed_closed(await send_to(sink.url + query), sink)

    async def test_what_was_said_before_tls_counts_for_nothing(
        self, settings: SinkSettings, query: str
    ) -> None:
        # Somebody in the middle adds an EHLO reply of their own behind the 220, in the clear.
        injected = b"220 go ahead\r\n250-evil.example\r\n250 AUTH PLAIN\r\n"
        script = lambda stage, _: raw(injected) if stage == "starttls" else None  # noqa: E731  (as above)
        async with SmtpSink(
            replace(settings, script=script, users={"ann": "s3cret"}, smtputf8=False)
        ) as sink:
            url = f"smtp://ann:s3cret@127.0.0.1:{sink.port}{query}"
            result = await send_to(url)
            assert result.status == "sent"
            # The lie was dropped: we asked again, and the login followed the answer to that.
            said = [c.partition(" ")[0] for c in sink.commands[:5]]
            assert said == ["EHLO", "STARTTLS", "EHLO", "AUTH", "MAIL"]

    async def test_opportunistic_takes_what_there_is(self, settings: SinkSettings) -> None:
        async with SmtpSink(settings) as with_tls, SmtpSink() as without:
            assert (await send_to(f"{with_tls.url}?tls=opportunistic")).status == "sent"
            assert "STARTTLS" in with_tls.commands
            assert (await send_to(f"{without.url}?tls=opportunistic")).status == "sent"


class TestImplicit:
    async def test_mails_in_a_row(self, certificates: Certificates) -> None:
        async with SmtpSink(SinkSettings(tls=certificates.server("127.0.0.1"), implicit_tls=True)) as sink:
            sender = sender_to(f"{sink.url}?cafile={certificates.cafile}", connections=1)
            text = "0123456789abcde\n" * 50_000
            results = [await sender.send(mail(number=n, text=text)) for n in range(3)]
            await sender.close()
            assert {r.status for r in results} == {"sent"}
            assert sink.connected == 1

    async def test_the_name_on_the_certificate_must_fit(self, certificates: Certificates) -> None:
        settings = SinkSettings(tls=certificates.server("mail.other.example"), implicit_tls=True)
        async with SmtpSink(settings) as sink:
            assert_failed_closed(await send_to(f"{sink.url}?cafile={certificates.cafile}"), sink)

    async def test_a_peer_without_tls(self, certificates: Certificates) -> None:
        async with SmtpSink() as sink:
            result = await send_to(f"smtps://127.0.0.1:{sink.port}?cafile={certificates.cafile}&timeout=1")
            assert_failed_closed(result, sink)

    async def test_lost_after_the_last_byte(self, certificates: Certificates) -> None:
        script = lambda stage, _: drop(accept=True) if stage == "dot" else None  # noqa: E731  (a line says it best)
        context = certificates.server("127.0.0.1")
        async with SmtpSink(SinkSettings(tls=context, implicit_tls=True, script=script)) as sink:
            result = await send_to(f"{sink.url}?cafile={certificates.cafile}")
            assert (result.status, result.unknown) == ("retryable", True)


def test_certificates_are_files(certificates: Certificates) -> None:
    assert Path(certificates.cafile).read_text().startswith("-----BEGIN CERTIFICATE-----")
