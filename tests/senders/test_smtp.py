"""The SMTP sender against aiosmtpd, and against a sink that misbehaves in every way we know of."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from email import message_from_bytes, policy
from typing import Any

import pytest
from msgspec.structs import replace
from tests.senders.peers import QUICK, AiosmtpdPeer, aiosmtpd_peer, mail, sender_to, until

from homing.errors import SettingsError
from homing.senders.breaker import Breaker
from homing.senders.mail import SendErrorCode, SendResult
from homing.senders.smtp import Limits, Relay, SmtpSender
from homing.senders.smtp_protocol import LONGEST_REPLY
from homing.testing import smtp_sink
from homing.testing.components.smtp import SmtpSink as PostfixSink
from homing.testing.smtp_sink import (
    Act,
    Faults,
    Script,
    SinkSettings,
    SmtpSink,
    Stage,
    drop,
    raw,
    reply,
    split_reply,
    stall,
)


def answers(**acts: Act) -> Script:
    """The same answer to every command of a stage."""
    return lambda stage, _argument: acts.get(stage)


def once(stage: Stage, *acts: Act | None) -> Script:
    """The acts in turn, then the usual answers."""
    left = list(acts)
    return lambda current, _argument: left.pop(0) if current == stage and left else None


async def attempt(
    sink: SmtpSink, *recipients: str, limits: Limits | None = None, **changes: Any
) -> SendResult:
    """One mail by a sender of its own."""
    sender = sender_to(sink, limits=limits)
    try:
        return await sender.send(mail(*recipients, **changes))
    finally:
        await sender.close()


def code_of(result: SendResult) -> SendErrorCode | None:
    return result.error.code if result.error is not None else None


class TestRelayUrl:
    def test_defaults_demand_starttls(self) -> None:
        relay = Relay.from_url("smtp://mail.example")
        assert (relay.host, relay.port, relay.tls, relay.user) == ("mail.example", 587, "starttls", None)

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"])
    def test_loopback_needs_no_tls(self, host: str) -> None:
        assert Relay.from_url(f"smtp://{host}").tls == "none"
        assert Relay.from_url(f"smtp://{host}?tls=starttls").tls == "starttls"
        assert Relay.from_url(f"smtp://user:password@{host}?tls=none").tls == "none"
        assert Relay.from_url("smtp://10.0.0.5?tls=none").tls == "none"

    def test_smtps(self) -> None:
        relay = Relay.from_url("smtps://mail.example")
        assert (relay.port, relay.tls) == (465, "implicit")

    def test_everything_given(self) -> None:
        relay = Relay.from_url(
            "smtp://a%40b.example:p%3A%2F%40@mail.example:2525"
            "?tls=starttls&timeout=5&connections=3&cafile=/ca.pem&hello=me.example"
        )
        assert (relay.user, relay.password, relay.port) == ("a@b.example", "p:/@", 2525)
        assert (relay.tls, relay.timeout, relay.connections) == ("starttls", 5.0, 3)
        assert (relay.cafile, relay.hello) == ("/ca.pem", "me.example")
        assert "p:/@" not in repr(relay)

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("http://mail.example", "must begin with smtp:// or smtps://"),
            ("smtp://", "names no host"),
            ("smtp://user:SECRET@:25", "names no host"),
            ("smtp://user:SECRET@mail.example:port", "port that is no number"),
            ("smtp://user:SECRET@mail.example:99999", "port that is no number"),
            ("smtp://user:SEC/RET@mail.example", "write it as smtp://user:password@host:port"),
            ("smtp://user:SEC#RET@mail.example", "write it as smtp://user:password@host:port"),
            ("smtp://user:12?SECRET@mail.example", "unknown option"),
            ("smtp://user:SECRET@[mail", "cannot be read"),
            ("smtp://user@mail.example", "both a user and a password"),
            ("smtp://:SECRET@mail.example", "both a user and a password"),
            ("smtp://user:SECRET%00@mail.example", "NUL"),
            ("smtp://user:SECRET@mail.example/path", "no option"),
            ("smtp://user:SECRET@mail.example?tsl=none", "did you mean 'tls'"),
            ("smtp://user:SECRET@mail.example?tls=yes", "none, opportunistic and starttls"),
            ("smtp://user:SECRET@mail.example?tls=none&tls=none", "twice"),
            ("smtp://user:SECRET@mail.example?tls=opportunistic", "use tls=starttls"),
            ("smtp://user:SECRET@mail.example?tls=none", "use tls=starttls"),
            ("smtp://user:SECRET@10.0.0.5?tls=none", "use tls=starttls"),
            ("smtps://user:SECRET@mail.example?tls=none", "leave the option tls out"),
            ("smtp://user:SECRET@mail.example?timeout=soon", "a number from 0.05 to 600"),
            ("smtp://user:SECRET@mail.example?timeout=nan", "a number from 0.05 to 600"),
            ("smtp://user:SECRET@mail.example?connections=0", "a whole number from 1 to 1000"),
            ("smtp://user:SECRET@mail.example?connections=1.5", "a whole number from 1 to 1000"),
            ("smtp://user:SECRET@mail.example?hello=a%20b", "host name"),
        ],
    )
    def test_a_bad_url_is_explained_and_no_secret_shown(self, url: str, says: str) -> None:
        with pytest.raises(SettingsError) as caught:
            Relay.from_url(url)
        assert says in str(caught.value)
        assert "SEC" not in str(caught.value)
        assert "RET" not in str(caught.value)

    def test_a_missing_cafile_is_told_at_start(self, tmp_path: Any) -> None:
        with pytest.raises(SettingsError, match="cafile"):
            SmtpSender(Relay.from_url(f"smtps://mail.example?cafile={tmp_path}/none.pem"))

    async def test_the_url_says_how_many_connections(self) -> None:
        async with SmtpSink(SinkSettings(delay=0.05)) as sink:
            sender = sender_to(f"{sink.url}?connections=3")
            await asyncio.gather(*[sender.send(mail(number=n)) for n in range(12)])
            assert sink.connected == 3
            await sender.close()

    async def test_hello_is_what_the_relay_is_told(self) -> None:
        async with SmtpSink() as sink:
            sender = sender_to(f"{sink.url}?hello=me.example")
            await sender.send(mail())
            await sender.close()
            assert sink.commands[0] == "EHLO me.example"


@pytest.fixture(scope="module")
def aiosmtpd() -> Iterator[AiosmtpdPeer]:
    with aiosmtpd_peer(enable_SMTPUTF8=True) as peer:
        yield peer


class TestAgainstAiosmtpd:
    async def test_a_mail_arrives_as_it_was_written(self, aiosmtpd: AiosmtpdPeer) -> None:
        sender = sender_to(f"smtp://127.0.0.1:{aiosmtpd.port}")
        result = await sender.send(mail("ann@example.org", "bob@bücher.example", subject="Grüße"))
        await sender.close()
        assert result.status == "sent"
        assert {v.status for v in result.verdicts.values()} == {"accepted"}
        envelope = aiosmtpd.envelopes[-1]
        assert envelope.mail_from == "no-reply@example.org"
        assert envelope.rcpt_tos == ["ann@example.org", "bob@xn--bcher-kva.example"]
        parsed = message_from_bytes(aiosmtpd.contents[-1], policy=policy.default)
        assert parsed["Subject"] == "Grüße"
        assert parsed.get_content().replace("\r\n", "\n") == "A line.\n.\n..two dots\nEnd.\n"

    @pytest.mark.clause("OUT-08")
    async def test_one_refused_recipient_fails_no_other(self, aiosmtpd: AiosmtpdPeer) -> None:
        sender = sender_to(f"smtp://127.0.0.1:{aiosmtpd.port}")
        result = await sender.send(mail("ann@example.org", "nobody@example.org"))
        await sender.close()
        assert result.status == "failed"
        assert result.verdicts["ann@example.org"].status == "accepted"
        refused = result.verdicts["nobody@example.org"]
        assert (refused.status, refused.code, refused.enhanced) == ("rejected", 550, "5.1.1")
        assert code_of(result) is SendErrorCode.INVALID_RECIPIENT
        assert aiosmtpd.envelopes[-1].rcpt_tos == ["ann@example.org"]

    async def test_many_mails_over_few_connections(self, aiosmtpd: AiosmtpdPeer) -> None:
        before = len(aiosmtpd.envelopes)
        sender = sender_to(f"smtp://127.0.0.1:{aiosmtpd.port}", connections=3)
        results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(60)])
        await sender.close()
        assert {result.status for result in results} == {"sent"}
        ids = {message_from_bytes(content)["Message-ID"] for content in aiosmtpd.contents[before:]}
        assert ids == {f"<m{n}@example.org>" for n in range(60)}

    async def test_smtputf8_is_used_where_an_address_needs_it(self, aiosmtpd: AiosmtpdPeer) -> None:
        sender = sender_to(f"smtp://127.0.0.1:{aiosmtpd.port}")
        result = await sender.send(mail("jürgen@example.org"))
        await sender.close()
        assert result.status == "sent"
        assert "SMTPUTF8" in aiosmtpd.envelopes[-1].mail_options
        assert aiosmtpd.envelopes[-1].rcpt_tos == ["jürgen@example.org"]

    async def test_a_second_mail_after_one_that_nobody_took(self, aiosmtpd: AiosmtpdPeer) -> None:
        sender = sender_to(f"smtp://127.0.0.1:{aiosmtpd.port}")
        first = await sender.send(mail("nobody@example.org"))
        second = await sender.send(mail("ann@example.org"))
        await sender.close()
        assert (first.status, second.status) == ("failed", "sent")


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the sink receives, piece by piece."""
    seen: list[bytes] = []
    receive = smtp_sink._Session.data_received

    def record(session: Any, data: bytes) -> None:
        seen.append(data)
        receive(session, data)

    monkeypatch.setattr(smtp_sink._Session, "data_received", record)
    return seen


class TestPipelining:
    async def test_an_envelope_is_one_segment(self, segments: list[bytes]) -> None:
        async with SmtpSink() as sink:
            assert (await attempt(sink, "a@example.org", "b@example.org")).status == "sent"
        envelope = next(s for s in segments if s.startswith(b"MAIL"))
        assert envelope == (
            b"MAIL FROM:<no-reply@example.org>\r\n"
            b"RCPT TO:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n"
        )

    async def test_a_busy_connection_needs_one_round_trip_a_mail(self, segments: list[bytes]) -> None:
        async with SmtpSink() as sink:
            sender = sender_to(sink, connections=1)
            results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(10)])
            await sender.close()
        assert {result.status for result in results} == {"sent"}
        chained = [s for s in segments if b"\r\n.\r\nMAIL FROM" in s]
        assert len(chained) == 9
        assert all(s.endswith(b"DATA\r\n") for s in chained)

    async def test_without_pipelining_one_command_at_a_time(self, segments: list[bytes]) -> None:
        async with SmtpSink(SinkSettings(pipelining=False)) as sink:
            sender = sender_to(sink, connections=1)
            results = await asyncio.gather(*[sender.send(mail("a@b.example", number=n)) for n in range(3)])
            await sender.close()
            assert {result.status for result in results} == {"sent"}
            assert len(sink.mails) == 3
        commands = [s for s in segments if s[:4] in {b"MAIL", b"RCPT", b"DATA"}]
        assert all(s.count(b"\r\n") == 1 for s in commands)
        assert not any(b".\r\nMAIL" in s for s in segments)

    @pytest.mark.parametrize("pipelining", [True, False])
    async def test_a_refused_envelope_is_reset_before_the_next(self, *, pipelining: bool) -> None:
        script = once("rcpt", reply("550 5.1.1 no"))
        async with SmtpSink(SinkSettings(script=script, pipelining=pipelining)) as sink:
            sender = sender_to(sink, connections=1)
            first, second = await asyncio.gather(
                sender.send(mail("gone@example.org", number=1)),
                sender.send(mail("ann@example.org", number=2)),
            )
            await sender.close()
            assert (first.status, second.status) == ("failed", "sent")
            assert sink.connected == 1
            assert "RSET" in sink.commands

    @pytest.mark.parametrize("answer", ["554 5.5.1 nobody there", "250 2.0.0 taken, for nobody"])
    async def test_354_for_nobody_gets_an_empty_message(self, answer: str) -> None:
        acts = [reply("550 5.1.1 no"), reply("354 go ahead anyway"), reply(answer)]
        script = lambda stage, _: acts.pop(0) if stage in {"rcpt", "data", "dot"} and acts else None  # noqa: E731  (a line says it best)
        async with SmtpSink(SinkSettings(script=script)) as sink:
            sender = sender_to(sink, connections=1)
            first, second = await asyncio.gather(
                sender.send(mail("gone@example.org")), sender.send(mail("ann@example.org", number=2))
            )
            await sender.close()
            assert (first.status, code_of(first)) == ("failed", SendErrorCode.INVALID_RECIPIENT)
            assert second.status == "sent"
            assert [m.message_id for m in sink.mails] == ["<m2@example.org>"]
            assert sink.connected == 1

    async def test_large_mails_in_a_row(self) -> None:
        async with SmtpSink() as sink:
            sender = sender_to(sink, connections=2)
            text = "0123456789abcde\n" * 100_000
            results = await asyncio.gather(*[sender.send(mail(number=n, text=text)) for n in range(6)])
            await sender.close()
            assert {result.status for result in results} == {"sent"}
            assert all(m.data.count(b"0123456789abcde\r\n") == 100_000 for m in sink.mails)


async def test_mails_in_a_row_to_postfix(postfix_sink: PostfixSink) -> None:
    """A peer in C that offers PIPELINING and knows the rules: `smtp-sink` of Postfix."""
    sender = sender_to(postfix_sink.url, connections=4)
    several = ("ann@example.org", "bob@example.org")
    results = await asyncio.gather(*[sender.send(mail(*several, number=n)) for n in range(500)])
    await sender.close()
    assert {result.status for result in results} == {"sent"}
    assert all(set(result.verdicts) == set(several) for result in results)


class TestVerdicts:
    async def verdict(self, answer: str, stage: Stage = "rcpt", **settings: Any) -> SendResult:
        async with SmtpSink(SinkSettings(script=answers(**{stage: reply(answer)}), **settings)) as sink:
            return await attempt(sink, "ann@example.org")

    @pytest.mark.parametrize(
        ("answer", "status", "code"),
        [
            ("550 5.1.1 no such user", "failed", SendErrorCode.INVALID_RECIPIENT),
            ("551 user not local", "failed", SendErrorCode.INVALID_RECIPIENT),
            ("553 bad name", "failed", SendErrorCode.INVALID_RECIPIENT),
            ("550 5.7.1 blocked by policy", "failed", SendErrorCode.PROVIDER_ERROR),
            ("552 5.2.2 mailbox full", "failed", SendErrorCode.PROVIDER_ERROR),
            ("554 no", "failed", SendErrorCode.PROVIDER_ERROR),
            ("450 4.2.0 greylisted", "retryable", SendErrorCode.PROVIDER_ERROR),
            ("451 4.7.1 slow down", "retryable", SendErrorCode.RATE_LIMITED),
            ("452 4.3.1 disk full", "retryable", SendErrorCode.PROVIDER_ERROR),
            ("530 5.7.0 authenticate first", "retryable", SendErrorCode.UNAUTHORIZED),
        ],
    )
    @pytest.mark.clause("OUT-12")
    async def test_of_a_recipient(self, answer: str, status: str, code: SendErrorCode) -> None:
        result = await self.verdict(answer)
        assert (result.status, code_of(result)) == (status, code)
        assert result.attempted
        assert result.verdicts["ann@example.org"].code == int(answer[:3])

    @pytest.mark.parametrize("stage", ["mail", "data", "dot"])
    @pytest.mark.parametrize(
        ("answer", "status", "verdict"),
        [("451 4.3.0 later", "retryable", "deferred"), ("554 5.6.0 never", "failed", "rejected")],
    )
    async def test_of_the_whole_mail(self, stage: Stage, answer: str, status: str, verdict: str) -> None:
        result = await self.verdict(answer, stage)
        assert (result.status, code_of(result)) == (status, SendErrorCode.PROVIDER_ERROR)
        assert result.verdicts["ann@example.org"].status == verdict

    async def test_550_after_the_message_is_not_about_the_address(self) -> None:
        assert code_of(await self.verdict("550 looks like spam", "dot")) is SendErrorCode.PROVIDER_ERROR

    async def test_the_enhanced_code_holds_where_it_is_offered(self) -> None:
        assert (await self.verdict("450 5.1.1 no such user")).status == "failed"
        assert (await self.verdict("550 4.7.1 try later")).status == "retryable"
        assert (await self.verdict("450 5.1.1 no such user", enhanced=False)).status == "retryable"

    async def test_an_address_is_no_enhanced_code(self) -> None:
        result = await self.verdict("550 4.3.2.1 is on our list")
        assert result.status == "failed"
        assert result.verdicts["ann@example.org"].enhanced is None

    async def test_text_is_one_clean_line_without_addresses(self) -> None:
        text = "550-5.1.1 <ann@example.org>: unknown\x07\r\n550 5.1.1 ask bob.b@example.com " + "x" * 300
        result = await self.verdict(text)
        shown = result.verdicts["ann@example.org"].text
        assert shown is not None
        assert shown.startswith("<a***@example.org>: unknown  ask b***@example.com xxx")
        assert len(shown) == 200
        assert result.error is not None
        assert "ann@" not in result.error.message

    async def test_a_wait_that_is_asked_for_is_passed_on(self) -> None:
        assert (await self.verdict("450 4.2.0 greylisted, try again in 5 minutes")).retry_after == 300
        assert (await self.verdict("450 4.2.0 greylisted for 120 seconds")).retry_after == 120
        assert (await self.verdict("450 4.2.0 greylisted")).retry_after is None
        assert (await self.verdict("450 4.2.0 come back in 90 hours")).retry_after == 3600

    async def test_mixed_recipients(self) -> None:
        said = {"a@e.org": None, "b@e.org": reply("450 4.2.1 busy"), "c@e.org": reply("550 5.1.1 no")}
        async with SmtpSink(script=lambda stage, who: said[who] if stage == "rcpt" else None) as sink:
            result = await attempt(sink, *said)
            assert sink.mails[0].recipients == ("a@e.org",)
        assert result.status == "retryable"
        assert [result.verdicts[who].status for who in said] == ["accepted", "deferred", "rejected"]
        assert code_of(result) is SendErrorCode.PROVIDER_ERROR

    async def test_a_refused_message_is_a_verdict_only_for_those_accepted(self) -> None:
        said = {("rcpt", "c@e.org"): reply("550 5.1.1 no"), ("dot", "a@e.org"): reply("451 4.3.0 later")}
        script: Script = lambda stage, who: said.get((stage, who))  # noqa: E731  (a line says it best)
        async with SmtpSink(script=script) as sink:
            result = await attempt(sink, "a@e.org", "c@e.org")
        assert [v.status for v in result.verdicts.values()] == ["rejected", "deferred"]
        assert result.status == "retryable"

    async def test_the_relays_name_for_the_mail(self) -> None:
        result = await self.verdict("250 2.0.0 Ok: queued as 4XyZ12", "dot")
        assert (result.status, result.provider, result.provider_message_id) == ("sent", "smtp", "4XyZ12")

    @pytest.mark.clause("NTF-11")
    async def test_a_relay_that_tells_no_name_knows_the_mail_by_its_message_id(self) -> None:
        result = await self.verdict("250 2.0.0 Ok", "dot")
        assert (result.status, result.provider_message_id) == ("sent", "<m1@example.org>")

    async def test_replies_of_several_lines(self) -> None:
        many = "250-2.1.5 one\r\n250-2.1.5 two\r\n250 2.1.5 three"
        result = await self.verdict(many, "dot")
        assert result.verdicts["ann@example.org"].text == "one two three"
        assert result.verdicts["ann@example.org"].enhanced == "2.1.5"

    @pytest.mark.parametrize("stage", ["mail", "rcpt", "dot"])
    async def test_replies_in_single_bytes(self, stage: Stage) -> None:
        script = answers(**{stage: split_reply("250-first\r\n250 second")})
        async with SmtpSink(script=script) as sink:
            assert (await attempt(sink)).status == "sent"


class TestBeforeAnythingIsSent:
    """Nothing is written to the relay, or nothing of this mail."""

    async def test_too_large_for_the_relay(self) -> None:
        async with SmtpSink(SinkSettings(size=5000)) as sink:
            small, large = await attempt(sink), await attempt(sink, text="x" * 60 + "\n" * 5000)
            assert small.status == "sent"
            assert (large.status, code_of(large)) == ("failed", SendErrorCode.VALIDATION_ERROR)
            assert len([c for c in sink.commands if c.startswith("MAIL")]) == 1
            assert next(c for c in sink.commands if c.startswith("MAIL")).endswith(
                f"SIZE={len(sink.mails[0].data)}"
            )

    async def test_bad_addresses_fail_alone(self) -> None:
        async with SmtpSink() as sink:
            result = await attempt(sink, "ann@example.org", "x@y>\r\nRCPT TO:<z@example.org", to=())
            assert sink.mails[0].recipients == ("ann@example.org",)
        assert result.status == "failed"
        assert code_of(result) is SendErrorCode.INVALID_RECIPIENT
        assert [v.status for v in result.verdicts.values()] == ["rejected", "accepted"]

    async def test_an_address_given_twice_gets_it_once(self) -> None:
        async with SmtpSink() as sink:
            assert (await attempt(sink, "ann@example.org", "ann@example.org")).status == "sent"
            assert sink.mails[0].recipients == ("ann@example.org",)

    async def test_nobody_to_send_to(self) -> None:
        async with SmtpSink() as sink:
            only_bad = await attempt(sink, "no address", to=())
            nobody = await attempt(sink, recipients=(), to=())
            bad_sender = await attempt(sink, sender="nonsense")
            assert sink.connected == 0
        assert (only_bad.status, code_of(only_bad)) == ("failed", SendErrorCode.INVALID_RECIPIENT)
        assert (nobody.status, code_of(nobody)) == ("failed", SendErrorCode.VALIDATION_ERROR)
        assert (bad_sender.status, code_of(bad_sender)) == ("failed", SendErrorCode.VALIDATION_ERROR)

    async def test_what_cannot_be_assembled_fails_for_good(self) -> None:
        async with SmtpSink() as sink:
            result = await attempt(sink, subject="Hi\r\nBcc: x@example.org")
            assert sink.connected == 0
        assert (result.status, code_of(result)) == ("failed", SendErrorCode.VALIDATION_ERROR)

    async def test_smtputf8_not_offered(self) -> None:
        async with SmtpSink(SinkSettings(smtputf8=False)) as sink:
            both = await attempt(sink, "jürgen@example.org", "ann@example.org", to=("ann@example.org",))
            header = await attempt(sink, "ann@example.org", to=("jürgen@example.org",))
            assert [m.recipients for m in sink.mails] == [("ann@example.org",)]
        assert both.verdicts["jürgen@example.org"].status == "rejected"
        assert both.verdicts["ann@example.org"].status == "accepted"
        assert (both.status, code_of(both)) == ("failed", SendErrorCode.INVALID_RECIPIENT)
        assert (header.status, code_of(header)) == ("failed", SendErrorCode.VALIDATION_ERROR)

    async def test_smtputf8_offered_and_not_needed(self) -> None:
        async with SmtpSink() as sink:
            await attempt(sink, "ann@bücher.example")
            assert not any("SMTPUTF8" in command for command in sink.commands)

    @pytest.mark.parametrize("ending", ["\n.\n", "\r.\r", "\n.\r\n", "\r\n.\r\n", "\r.\r\n"])
    async def test_no_second_mail_is_smuggled_in(self, ending: str) -> None:
        smuggled = f"hello{ending}MAIL FROM:<a@evil.example>\r\nRCPT TO:<v@example.org>\r\nDATA\r\nhi{ending}"
        async with SmtpSink(SinkSettings(smuggling=True)) as sink:
            assert (await attempt(sink, text=smuggled)).status == "sent"
            assert [m.sender for m in sink.mails] == ["no-reply@example.org"]


@pytest.mark.clause("OUT-06")
class TestBusyRelay:
    """421 and 454 before a recipient was accepted: this mail was not looked at."""

    @pytest.mark.parametrize(
        "script",
        [
            answers(greeting=reply("421 4.3.2 too busy", drop=True)),
            answers(ehlo=reply("421 4.3.2 too busy", drop=True)),
            answers(mail=reply("421 4.3.2 too busy", drop=True)),
            answers(rcpt=reply("421 4.3.2 too busy", drop=True)),
            answers(mail=reply("454 4.7.0 too busy")),
            answers(rcpt=reply("454 4.7.0 too busy")),
        ],
    )
    async def test_costs_no_attempt(self, script: Script) -> None:
        async with SmtpSink(script=script) as sink:
            result = await attempt(sink)
        assert (result.status, result.attempted, result.unknown) == ("retryable", False, False)
        assert code_of(result) is SendErrorCode.RATE_LIMITED

    @pytest.mark.parametrize("stage", ["data", "dot"])
    async def test_after_an_accepted_recipient_it_is_an_attempt(self, stage: Stage) -> None:
        async with SmtpSink(script=answers(**{stage: reply("421 4.3.2 busy", drop=True)})) as sink:
            result = await attempt(sink)
        assert (result.status, result.attempted) == ("retryable", True)
        assert code_of(result) is SendErrorCode.RATE_LIMITED
        assert result.verdicts["ann@example.org"].status == "deferred"

    async def test_421_between_two_recipients(self) -> None:
        script = once("rcpt", None, reply("421 4.3.2 busy", drop=True))
        async with SmtpSink(script=script) as sink:
            result = await attempt(sink, "a@e.org", "b@e.org", "c@e.org")
        assert [v.status for v in result.verdicts.values()] == ["deferred"] * 3
        assert (result.status, result.attempted) == ("retryable", True)

    async def test_a_421_on_a_used_connection_is_its_end_not_the_mails(self) -> None:
        script = once("mail", None, reply("421 4.4.2 you rested too long", drop=True))
        async with SmtpSink(script=script) as sink:
            sender = sender_to(sink)
            assert (await sender.send(mail())).status == "sent"
            assert (await sender.send(mail(number=2))).status == "sent"
            await sender.close()
            assert sink.connected == 2

    async def test_a_mail_chained_behind_a_421_moves_on(self) -> None:
        script = once("dot", None, reply("421 4.3.2 busy", drop=True))
        async with SmtpSink(script=script) as sink:
            sender = sender_to(sink, connections=1)
            results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(4)])
            await sender.close()
            assert [r.status for r in results] == ["sent", "retryable", "sent", "sent"]
            assert sorted(m.message_id or "" for m in sink.mails) == [
                f"<m{n}@example.org>" for n in (0, 2, 3)
            ]


class TestNetwork:
    async def test_nobody_listens(self, unused_tcp_port: int) -> None:
        sender = sender_to(f"smtp://127.0.0.1:{unused_tcp_port}")
        result = await sender.send(mail())
        await sender.close()
        assert (result.status, result.attempted, result.unknown) == ("retryable", True, False)
        assert code_of(result) is SendErrorCode.NETWORK_ERROR
        assert result.verdicts == {}

    @pytest.mark.parametrize("stage", ["greeting", "ehlo", "mail", "rcpt", "data"])
    @pytest.mark.parametrize("act", [drop(), stall(), raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")])
    async def test_before_the_last_byte(self, stage: Stage, act: Act) -> None:
        async with SmtpSink(script=answers(**{stage: act})) as sink:
            sender = sender_to(f"{sink.url}?timeout=0.4", limits=QUICK)
            result = await sender.send(mail())
            await sender.close()
        assert (result.status, result.attempted, result.unknown) == ("retryable", True, False)
        assert code_of(result) is SendErrorCode.NETWORK_ERROR

    @pytest.mark.parametrize(
        "act",
        [
            drop(accept=True),
            stall(accept=True),
            raw(b"\x16\x03\x01 what\r\n"),
            reply("354 what"),
            raw(b"250-a\r\n251 b\r\n"),
            raw(b"250-" + b"x" * 9000),
            raw((b"250-" + b"x" * 1000 + b"\r\n") * (LONGEST_REPLY // 1000 + 1)),
        ],
    )
    async def test_after_the_last_byte_it_is_unknown(self, act: Act) -> None:
        async with SmtpSink(script=answers(dot=act)) as sink:
            # Only the end is impatient: what comes before must not fail on a busy machine.
            result = await attempt(sink, limits=replace(QUICK, command=30, deadline=60))
        assert (result.status, result.attempted, result.unknown) == ("retryable", True, True)
        assert code_of(result) is SendErrorCode.UNKNOWN
        assert result.verdicts == {}

    async def test_who_was_refused_before_the_loss_stays_refused(self) -> None:
        said: dict[tuple[str, str], Act] = {
            ("rcpt", "b@e.org"): reply("550 5.1.1 no"),
            ("dot", "a@e.org"): drop(),
        }
        script: Script = lambda stage, who: said.get((stage, who))  # noqa: E731  (a line says it best)
        async with SmtpSink(script=script) as sink:
            result = await attempt(sink, "a@e.org", "b@e.org")
        assert (result.status, result.unknown) == ("retryable", True)
        assert {who: v.status for who, v in result.verdicts.items()} == {"b@e.org": "rejected"}

    async def test_lost_in_the_middle_of_a_body_is_not_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def hang_up_in_data(session: Any, data: bytes) -> None:
            if session._in_data:
                session.abort()
            else:
                receive(session, data)

        receive = smtp_sink._Session.data_received
        monkeypatch.setattr(smtp_sink._Session, "data_received", hang_up_in_data)
        async with SmtpSink() as sink:
            result = await attempt(sink, text="x" * 70 + "\n" + ("y" * 70 + "\n") * 500_000)
        assert (result.status, result.unknown) == ("retryable", False)
        assert code_of(result) is SendErrorCode.NETWORK_ERROR

    async def test_chained_mails_move_when_the_one_before_is_lost(self) -> None:
        script = once("dot", None, drop(accept=True))
        async with SmtpSink(script=script) as sink:
            sender = sender_to(sink, connections=1)
            results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(5)])
            await sender.close()
            assert [r.status for r in results] == ["sent", "retryable", "sent", "sent", "sent"]
            assert results[1].unknown
            assert sorted(m.message_id or "" for m in sink.mails) == [f"<m{n}@example.org>" for n in range(5)]

    async def test_a_chained_mail_does_not_wait_for_ever(self) -> None:
        # The second connection is slow to come, so the second mail is chained on the first.
        greet = once("greeting", None, reply("220 hello", delay=0.05))
        hang = once("dot", stall())
        async with SmtpSink(script=lambda stage, who: greet(stage, who) or hang(stage, who)) as sink:
            sender = sender_to(sink, connections=2, limits=Limits(chain=0.1, quit=0.1))
            first = asyncio.create_task(sender.send(mail(number=1)))
            second = asyncio.create_task(sender.send(mail(number=2)))
            assert (await second).status == "sent"
            assert not first.done()
            assert len([c for c in sink.commands if c.startswith("MAIL")]) == 2
            await sender.close()
            assert (await first).unknown

    async def test_recalled_answers_are_never_mistaken(self) -> None:
        # The answer comes after the chained mail was taken back, and with it the answers to that one.
        script = once("dot", reply("250 2.0.0 late", delay=0.3))
        async with SmtpSink(script=script) as sink:
            sender = sender_to(sink, connections=2, limits=Limits(chain=0.1))
            results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(3)])
            again = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(3, 6)])
            await sender.close()
            assert [r.status for r in [*results, *again]] == ["sent"] * 6
            assert sorted(m.message_id or "" for m in sink.mails) == [f"<m{n}@example.org>" for n in range(6)]

    async def test_a_stale_connection_is_replaced_within_the_attempt(self) -> None:
        script = once("mail", None, drop())
        async with SmtpSink(script=script) as sink:
            sender = sender_to(sink)
            assert (await sender.send(mail(number=1))).status == "sent"
            assert (await sender.send(mail(number=2))).status == "sent"
            await sender.close()
            assert sink.connected == 2
            assert [m.message_id for m in sink.mails] == ["<m1@example.org>", "<m2@example.org>"]

    async def test_but_only_once(self) -> None:
        script = once("mail", None, drop(), drop())
        async with SmtpSink(script=script) as sink:
            sender = sender_to(sink)
            await sender.send(mail(number=1))
            result = await sender.send(mail(number=2))
            await sender.close()
            assert code_of(result) is SendErrorCode.NETWORK_ERROR
            assert sink.connected == 2

    async def test_a_resting_connection_that_was_closed_is_not_used(self) -> None:
        async with SmtpSink() as sink:
            sender = sender_to(sink)
            await sender.send(mail(number=1))
            sink.hang_up()
            assert (await sender.send(mail(number=2))).status == "sent"
            await sender.close()
            assert len(sink.mails) == 2

    async def test_words_out_of_turn_end_a_resting_connection(self) -> None:
        async with SmtpSink() as sink:
            sender = sender_to(sink)
            await sender.send(mail(number=1))
            session = next(iter(sink.sessions))
            session._transport.write(b"250 2.0.0 one more for you\r\n")
            await until(lambda: not sink.sessions, "the connection to be closed")
            assert (await sender.send(mail(number=2))).status == "sent"
            await sender.close()

    async def test_the_deadline_holds_for_a_mail_that_waits(self) -> None:
        async with SmtpSink(script=answers(dot=stall())) as sink:
            limits = replace(QUICK, deadline=1.2, dot=0.7, command=5)
            sender = sender_to(sink, connections=1, limits=limits)
            results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(8)])
            await sender.close()
        assert results[0].unknown
        waited = results[-1]
        assert (waited.status, waited.attempted, waited.unknown) == ("retryable", False, False)


class TestLogin:
    SETTINGS = SinkSettings(users={"ann": "s3cret"})

    async def send_as(self, sink: SmtpSink, login: str, **options: Any) -> SendResult:
        sender = sender_to(f"smtp://{login}127.0.0.1:{sink.port}", **options)
        result = await sender.send(mail())
        await sender.close()
        return result

    async def test_accepted(self) -> None:
        async with SmtpSink(self.SETTINGS) as sink:
            assert (await self.send_as(sink, "ann:s3cret@")).status == "sent"

    async def test_refused_is_the_operators_fault(self) -> None:
        async with SmtpSink(self.SETTINGS) as sink:
            result = await self.send_as(sink, "ann:wrong@")
        assert (result.status, result.attempted) == ("retryable", True)
        assert code_of(result) is SendErrorCode.UNAUTHORIZED
        assert result.verdicts == {}
        assert result.error is not None
        assert "wrong" not in result.error.message

    async def test_missing(self) -> None:
        async with SmtpSink(self.SETTINGS) as sink:
            result = await self.send_as(sink, "")
        assert (result.status, code_of(result)) == ("retryable", SendErrorCode.UNAUTHORIZED)

    async def test_not_offered(self) -> None:
        async with SmtpSink() as sink:
            result = await self.send_as(sink, "ann:s3cret@")
            assert not any("AUTH" in command for command in sink.commands)
        assert (result.status, code_of(result)) == ("retryable", SendErrorCode.UNAUTHORIZED)

    async def test_not_possible_at_the_moment(self) -> None:
        settings = replace(self.SETTINGS, script=answers(auth=reply("454 4.7.0 try again")))
        async with SmtpSink(settings) as sink:
            result = await self.send_as(sink, "ann:s3cret@")
        assert (result.attempted, code_of(result)) == (False, SendErrorCode.RATE_LIMITED)

    async def test_a_wrong_password_does_not_burn_the_backlog(self) -> None:
        async with SmtpSink(self.SETTINGS) as sink:
            sender = sender_to(f"smtp://ann:wrong@127.0.0.1:{sink.port}", connections=4)
            results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(50)])
            await sender.close()
        assert sum(result.attempted for result in results) == 5


class TestPool:
    async def test_connections_are_opened_as_needed(self) -> None:
        async with SmtpSink() as sink:
            sender = sender_to(sink)
            for number in range(10):
                await sender.send(mail(number=number))
            assert sink.connected == 1
            await sender.close()

    async def test_no_more_than_allowed(self) -> None:
        async with SmtpSink(SinkSettings(delay=0.01)) as sink:
            sender = sender_to(sink, connections=4)
            most = 0

            async def one(number: int) -> SendResult:
                nonlocal most
                result = await sender.send(mail(number=number))
                most = max(most, len(sink.sessions))
                return result

            results = await asyncio.gather(*[one(n) for n in range(80)])
            await sender.close()
            assert {r.status for r in results} == {"sent"}
            assert most == 4

    async def test_a_relay_that_wants_fewer_gets_fewer(self) -> None:
        async with SmtpSink(SinkSettings(delay=0.01, max_connections=2)) as sink:
            sender = sender_to(sink, connections=6, limits=Limits(crowded=0.2))
            await sender.send(mail(number=0))
            results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(1, 60)])
            await sender.close()
            assert {r.status for r in results} == {"sent"}
            assert len(sink.mails) == 60

    async def test_a_connection_is_replaced_after_its_share(self) -> None:
        async with SmtpSink() as sink:
            sender = sender_to(sink, connections=1, limits=Limits(mails_per_connection=10))
            results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(35)])
            await sender.close()
            assert {r.status for r in results} == {"sent"}
            assert sink.connected == 4
            assert sink.commands.count("QUIT") == 4

    async def test_a_resting_connection_is_closed(self) -> None:
        async with SmtpSink() as sink:
            sender = sender_to(sink, limits=Limits(idle=0.1))
            await sender.send(mail())
            await until(lambda: not sink.sessions, "the idle connection to be closed")
            assert sink.commands[-1] == "QUIT"
            assert (await sender.send(mail())).status == "sent"
            await sender.close()

    async def test_close_says_goodbye(self) -> None:
        async with SmtpSink() as sink:
            sender = sender_to(sink)
            await sender.send(mail())
            await sender.close()
            assert sink.commands[-1] == "QUIT"
            result = await sender.send(mail())
            assert (result.status, result.attempted) == ("retryable", False)

    async def test_close_gives_back_what_waits_and_cuts_what_hangs(self) -> None:
        async with SmtpSink(script=answers(dot=stall())) as sink:
            sender = sender_to(sink, connections=1, limits=Limits(quit=0.1))
            sends = [asyncio.create_task(sender.send(mail(number=n))) for n in range(4)]
            await until(lambda: any(c == "DATA" for c in sink.commands), "the first mail to be under way")
            await until(lambda: not any(s._in_data for s in sink.sessions), "its body to be in")
            await sender.close()
            results = await asyncio.gather(*sends)
        assert results[0].unknown
        assert [(r.attempted, r.unknown) for r in results[1:]] == [(False, False)] * 3

    async def test_close_while_connecting(self) -> None:
        async with SmtpSink(script=answers(greeting=stall())) as sink:
            sender = sender_to(sink)
            sending = asyncio.create_task(sender.send(mail()))
            await until(lambda: sink.connected, "the connection")
            await sender.close()
            result = await sending
        assert (result.status, result.attempted) == ("retryable", False)


class TestCancelling:
    async def test_a_mail_that_waits_is_never_sent(self) -> None:
        async with SmtpSink(script=once("dot", reply("250 2.0.0 ok", delay=0.1))) as sink:
            sender = sender_to(sink, connections=1)
            sends = [asyncio.create_task(sender.send(mail(number=n))) for n in range(5)]
            await until(lambda: "DATA" in sink.commands, "the first mail to be under way")
            sends[4].cancel()
            await asyncio.gather(*sends, return_exceptions=True)
            assert sends[4].cancelled()
            assert (await sender.send(mail(number=9))).status == "sent"
            await sender.close()
            assert "<m4@example.org>" not in [m.message_id for m in sink.mails]

    @pytest.mark.parametrize("stage", ["mail", "dot"])
    async def test_a_mail_under_way_ends_its_connection(self, stage: Stage) -> None:
        async with SmtpSink(script=once(stage, stall())) as sink:
            sender = sender_to(sink, connections=1)
            first = asyncio.create_task(sender.send(mail(number=1)))
            await until(lambda: sink.sessions and next(iter(sink.sessions))._held, "the stall")
            second = asyncio.create_task(sender.send(mail(number=2)))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).status == "sent"
            assert first.cancelled()
            assert sink.connected == 2
            await sender.close()

    async def test_a_body_does_not_follow_a_cancelled_envelope(self) -> None:
        async with SmtpSink(script=once("data", reply("354 go", delay=0.05))) as sink:
            sender = sender_to(sink)
            sending = asyncio.create_task(sender.send(mail()))
            await until(lambda: "DATA" in sink.commands, "the envelope")
            sending.cancel()
            await until(lambda: not sink.sessions, "the connection to be closed")
            await sender.close()
            assert sink.mails == []

    async def test_a_chained_mail(self) -> None:
        async with SmtpSink(script=once("dot", reply("250 2.0.0 ok", delay=0.2))) as sink:
            sender = sender_to(sink, connections=1)
            first = asyncio.create_task(sender.send(mail(number=1)))
            second = asyncio.create_task(sender.send(mail(number=2)))
            await until(lambda: any(s._held for s in sink.sessions), "the first body")
            second.cancel()
            assert (await first).status == "sent"
            assert (await sender.send(mail(number=3))).status == "sent"
            await sender.close()
            assert [m.message_id for m in sink.mails] == ["<m1@example.org>", "<m3@example.org>"]


@pytest.mark.clause("OUT-06")
class TestBreaking:
    async def test_an_outage_costs_five_attempts_and_no_more(self, unused_tcp_port: int) -> None:
        sender = sender_to(f"smtp://127.0.0.1:{unused_tcp_port}", breaker=Breaker(lambda: 0.0))
        results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(100)])
        assert {r.status for r in results} == {"retryable"}
        assert sum(r.attempted for r in results) == 5
        assert not await sender.available()
        later = await sender.send(mail())
        assert (later.status, later.attempted) == ("retryable", False)
        assert later.error is not None
        assert "cannot connect" in later.error.message
        await sender.close()

    async def test_it_goes_on_when_the_relay_is_back(self) -> None:
        now = 0.0
        down = True
        script: Script = lambda stage, _: reply("421 4.3.2 down", drop=True) if down else None  # noqa: E731  (a line says it best)
        async with SmtpSink(script=script) as sink:
            breaker = Breaker(lambda: now)
            sender = sender_to(sink, breaker=breaker)
            results = [await sender.send(mail(number=n)) for n in range(5)]
            assert not any(r.attempted for r in results)
            assert not await sender.available()
            now = 1.1
            assert not await sender.available()
            down, now = False, 2.0
            assert not await sender.available()
            now = 3.2
            assert await sender.available()
            assert "NOOP" in sink.commands
            probes = sink.connected
            assert (await sender.send(mail())).status == "sent"
            assert sink.connected == probes
            await sender.close()

    async def test_sending_probes_too(self) -> None:
        now = 0.0
        script = once("greeting", *[reply("421 4.3.2 down", drop=True)] * 5)
        async with SmtpSink(script=script) as sink:
            sender = sender_to(sink, breaker=Breaker(lambda: now))
            for number in range(5):
                await sender.send(mail(number=number))
            assert not (await sender.send(mail())).attempted
            now = 1.1
            assert (await sender.send(mail())).status == "sent"
            await sender.close()

    async def test_refused_mails_do_not_count(self) -> None:
        async with SmtpSink(script=answers(rcpt=reply("550 5.1.1 no"))) as sink:
            sender = sender_to(sink)
            results = [await sender.send(mail(number=n)) for n in range(10)]
            assert {r.status for r in results} == {"failed"}
            assert await sender.available()
            await sender.close()


async def test_nothing_is_lost_or_doubled_by_chance_faults() -> None:
    """Every mail ends up in the sink at least once, and twice only where the result was unknown."""
    faults = Faults(
        defer_rcpt=0.05,
        defer_dot=0.05,
        drop_before_dot=0.03,
        drop_after_dot=0.03,
        busy=0.03,
        reject_rcpt=0.02,
    )
    async with SmtpSink(faults=faults, seed=7) as sink:
        # The breaker has its own tests; here it would only turn attempts into waiting.
        sender = sender_to(sink, connections=5, breaker=Breaker(lambda: 0.0, threshold=10**9))
        outcomes = dict(enumerate(await _deliver_all(sender, 400)))
        await sender.close()
        taken = [m.message_id for m in sink.mails]
    for number, results in outcomes.items():
        copies = taken.count(f"<m{number}@example.org>")
        unknown = sum(result.unknown for result in results)
        assert unknown <= sum(result.status != "sent" for result in results)
        assert copies == unknown + (results[-1].status == "sent")


async def _deliver_all(sender: SmtpSender, count: int) -> list[list[SendResult]]:
    async def deliver(number: int) -> list[SendResult]:
        results = [await sender.send(mail(number=number))]
        while results[-1].status == "retryable":
            results.append(await sender.send(mail(number=number)))
        return results

    return await asyncio.gather(*[deliver(n) for n in range(count)])


async def test_the_log_of_the_sink_has_every_mail(tmp_path: Any) -> None:
    log = tmp_path / "accepted.jsonl"
    async with SmtpSink(log=log) as sink:
        sender = sender_to(sink)
        await asyncio.gather(*[sender.send(mail(number=n)) for n in range(20)])
        await sender.close()
    lines = log.read_text().splitlines()
    assert len(lines) == 20
    assert '{"from":"no-reply@example.org","to":["ann@example.org"],"message_id":"<m3@example.org>"}' in lines


async def test_the_sink_as_a_process_of_its_own(tmp_path: Any) -> None:
    log = tmp_path / "accepted.jsonl"
    command = [sys.executable, "-m", "homing.testing.smtp_sink", "--log", str(log), "--defer-dot", "0.2"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    sender = sender_to(url)
    results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(50)])
    await sender.close()
    process.terminate()
    await process.wait()
    sent = [result for result in results if result.status == "sent"]
    assert 0 < len(sent) < 50
    assert len(log.read_text().splitlines()) == len(sent)
