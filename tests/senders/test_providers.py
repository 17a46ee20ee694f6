"""The four providers: one suite for all, and what each says in its own words."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.senders.conformance import Clock, ProviderBench, ProviderConformance, code_of, full_mail
from tests.senders.peers import Certificates, mail

from homing.errors import SettingsError
from homing.senders.mail import Attachment, SendErrorCode, SendResult
from homing.senders.memory import MemorySender
from homing.senders.open import open_sender
from homing.senders.providers import PROVIDERS, ApiSender, check_provider, open_provider
from homing.senders.reliable import ReliableMailSender
from homing.testing.http_sink import Answer
from homing.testing.mail_providers import ProviderPeer, mailgun, postmark, provider_peer, sendgrid, ses

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
KEYS = {
    "sendgrid": sendgrid.KEY,
    "ses": ses.ACCESS_KEY,
    "postmark": postmark.KEY,
    "mailgun": mailgun.KEY,
}


def sender_to(
    peer: ProviderPeer, name: str, options: str = "", key: str | None = None, **more: Any
) -> ApiSender:
    """A sender to a provider on loopback, with options of its URL and perhaps another key."""
    url = f"{peer.url}&{options}" if options else peer.url
    api, account = PROVIDERS[name](url.replace(KEYS[name], key) if key else url)
    clock = {"monotonic": more["clock"]} if "clock" in more else {}
    return ApiSender(
        api, connections=account.connections or 20, cafile=account.cafile, **clock, **more.get("given", {})
    )


async def bench_of(name: str) -> AsyncIterator[ProviderBench]:
    async with provider_peer(name) as peer:
        bench = ProviderBench(peer, lambda options="", **more: sender_to(peer, name, options, **more))
        yield bench
        await bench.sender.close()


async def answered(bench: ProviderBench, status: int, body: bytes, *headers: tuple[str, str]) -> SendResult:
    bench.next(Answer(status=status, body=body, headers=headers))
    return await bench.sender.send(mail())


class TestSendGrid(ProviderConformance):
    @pytest.fixture
    async def bench(self) -> AsyncIterator[ProviderBench]:
        async for bench in bench_of("sendgrid"):
            yield bench

    @pytest.mark.parametrize(
        ("status", "body", "code"),
        [
            (
                400,
                b'{"errors":[{"message":"Bad","field":"personalizations.0.to.0.email"}]}',
                "invalid_recipient",
            ),
            (400, b'{"errors":[{"message":"Bad","field":"personalizations.0.bcc"}]}', "invalid_recipient"),
            (
                400,
                b'{"errors":[{"message":"The subject is required","field":"subject"}]}',
                "validation_error",
            ),
            (400, b"not json", "validation_error"),
            (400, b'{"errors":["text"]}', "validation_error"),
            (413, b"", "validation_error"),
        ],
    )
    async def test_a_refusal_names_what_is_wrong(
        self, bench: ProviderBench, status: int, body: bytes, code: str
    ) -> None:
        result = await answered(bench, status, body)
        assert (result.status, code_of(result)) == ("failed", SendErrorCode(code))

    async def test_a_limit_without_a_time_is_half_a_minute(self, bench: ProviderBench) -> None:
        result = await answered(bench, 429, b'{"errors":[{"field":null,"message":"too many requests"}]}')
        assert result.retry_after == 30
        # That is a guess of ours, so nobody else is held up by it.
        assert bench.sender.usable()

    async def test_a_limit_may_give_the_time_of_its_end(self, bench: ProviderBench) -> None:
        sender = bench.open(given={"clock": lambda: NOW})
        bench.next(Answer(status=429, headers=(("X-RateLimit-Reset", str(int(NOW.timestamp()) + 12)),)))
        result = await sender.send(mail())
        assert result.retry_after == 12
        assert not sender.usable()
        await sender.close()

    async def test_options_of_the_url(self, bench: ProviderBench) -> None:
        sender = bench.open("categories=seats+news&ip_pool=main")
        await sender.send(full_mail())
        options = bench.taken()[0].options
        assert (options["categories"], options["ip_pool_name"]) == (["seats", "news"], "main")
        assert options["reply_to_list"] == [{"email": "help@example.org"}]
        assert options["personalizations"][0]["cc"] == [{"email": "bob@example.org", "name": "Bob, B."}]
        await sender.close()

    async def test_the_sandbox_takes_and_sends_nothing(self, bench: ProviderBench) -> None:
        sender = bench.open("sandbox=true")
        assert (await sender.send(mail())).status == "sent"
        assert bench.taken() == []
        await sender.close()

    async def test_pictures_stand_in_the_html(self, bench: ProviderBench) -> None:
        logo = Attachment("logo.png", b"png", "image/png", "<logo>")
        await bench.sender.send(mail(html='<img src="cid:logo">', attachments=(logo,)))
        (entry,) = bench.taken()[0].options["attachments"]
        assert (entry["disposition"], entry["content_id"], entry["type"]) == ("inline", "logo", "image/png")

    async def test_a_header_twice_is_refused(self, bench: ProviderBench) -> None:
        result = await bench.sender.send(mail(headers=(("X-A", "1"), ("X-A", "2"))))
        assert code_of(result) is SendErrorCode.VALIDATION_ERROR


class TestPostmark(ProviderConformance):
    @pytest.fixture
    async def bench(self) -> AsyncIterator[ProviderBench]:
        async for bench in bench_of("postmark"):
            yield bench

    @pytest.mark.parametrize(
        ("error", "status", "code"),
        [
            (10, "retryable", "unauthorized"),
            (100, "retryable", "provider_error"),
            (300, "failed", "validation_error"),
            (400, "retryable", "unauthorized"),
            (401, "retryable", "unauthorized"),
            (402, "failed", "validation_error"),
            (405, "retryable", "unauthorized"),
            (406, "failed", "invalid_recipient"),
            (411, "failed", "validation_error"),
            (412, "retryable", "unauthorized"),
            (413, "retryable", "unauthorized"),
            (429, "retryable", "rate_limited"),
            (1235, "retryable", "unauthorized"),
            (9999, "failed", "provider_error"),
        ],
    )
    async def test_error_codes(self, bench: ProviderBench, error: int, status: str, code: str) -> None:
        result = await answered(bench, 422, b'{"ErrorCode":%d,"Message":"in words"}' % error)
        assert (result.status, code_of(result)) == (status, SendErrorCode(code))
        assert result.error is not None
        assert result.error.message == f"ErrorCode {error}: in words" or error == 9999

    async def test_a_300_about_a_recipient(self, bench: ProviderBench) -> None:
        body = b"""{"ErrorCode":300,"Message":"Invalid 'To' address: 'ann@example.org'."}"""
        result = await answered(bench, 422, body)
        assert code_of(result) is SendErrorCode.INVALID_RECIPIENT
        assert "ann@" not in str(result.error)

    async def test_options_of_the_url(self, bench: ProviderBench) -> None:
        sender = bench.open("stream=open-seats")
        await sender.send(full_mail())
        options = bench.taken()[0].options
        assert (options["MessageStream"], options["ReplyTo"]) == ("open-seats", "help@example.org")
        assert options["Cc"] == '"Bob, B." <bob@example.org>'
        assert bench.taken()[0].header("X-PM-KeepID") == "true"
        await sender.close()

    async def test_a_stream_that_is_not_there(self, bench: ProviderBench) -> None:
        sender = bench.open("stream=nowhere")
        assert code_of(await sender.send(mail())) is SendErrorCode.UNAUTHORIZED
        await sender.close()

    async def test_a_file_that_it_does_not_take(self, bench: ProviderBench) -> None:
        result = await bench.sender.send(mail(attachments=(Attachment("setup.exe", b"MZ"),)))
        assert code_of(result) is SendErrorCode.VALIDATION_ERROR


class TestMailgun(ProviderConformance):
    @pytest.fixture
    async def bench(self) -> AsyncIterator[ProviderBench]:
        async for bench in bench_of("mailgun"):
            yield bench

    @pytest.mark.parametrize(
        ("status", "body", "code"),
        [
            (400, b'{"message":"to parameter is not a valid address. please check"}', "invalid_recipient"),
            (400, b'{"message":"\'to\' parameter is not a valid address. check"}', "invalid_recipient"),
            (400, b'{"message":"from parameter is not a valid address"}', "validation_error"),
            (402, b'{"message":"Payment Required"}', "unauthorized"),
            (404, b'{"message":"Domain not found: mg.example.org"}', "unauthorized"),
            (413, b"", "validation_error"),
            (429, b'{"message":"Too many requests"}', "rate_limited"),
        ],
    )  # fmt: skip
    async def test_statuses(self, bench: ProviderBench, status: int, body: bytes, code: str) -> None:
        assert code_of(await answered(bench, status, body)) is SendErrorCode(code)

    async def test_options_of_the_url(self, bench: ProviderBench) -> None:
        sender = bench.open("tags=seats&sandbox=true")
        await sender.send(full_mail())
        (taken,) = bench.taken()
        assert taken.options == {"o:tag": "seats", "o:testmode": "yes"}
        assert taken.header("Reply-To") == "help@example.org"
        await sender.close()

    async def test_an_unverified_sender_is_ours_to_mend(self, bench: ProviderBench) -> None:
        """There is no such thing: the domain is in the URL, and any sender goes."""
        result = await bench.sender.send(mail(sender="Homing <a@unverified.example>"))
        assert result.status == "sent"

    async def test_no_field_can_be_smuggled_in(self, bench: ProviderBench) -> None:
        from homing.senders.mime import assemble
        from homing.senders.providers.mailgun import _boundary

        message = mail()
        boundary = _boundary(message.message_id, assemble(message))
        attack = f'x\r\n--{boundary}\r\nContent-Disposition: form-data; name="to"\r\n\r\neve@example.org'
        await bench.sender.send(mail(metadata={"term": attack, f'a"\r\n{attack}': 1}))
        assert bench.taken()[0].recipients == ("ann@example.org",)


class TestSes(ProviderConformance):
    @pytest.fixture
    async def bench(self) -> AsyncIterator[ProviderBench]:
        async for bench in bench_of("ses"):
            yield bench

    @pytest.mark.parametrize(
        ("kind", "http", "said", "status", "code"),
        [
            ("TooManyRequestsException", 429, "Maximum sending rate exceeded.", "retryable", "rate_limited"),
            ("ThrottlingException", 400, "Rate exceeded", "retryable", "rate_limited"),
            ("LimitExceededException", 400, "Daily message quota exceeded.", "retryable", "rate_limited"),
            ("AccountSuspendedException", 400, "", "retryable", "unauthorized"),
            ("SendingPausedException", 400, "Sending is paused.", "retryable", "provider_error"),
            ("MessageRejected", 400, "Email address is not verified.", "retryable", "unauthorized"),
            ("MessageRejected", 400, "Invalid content.", "failed", "validation_error"),
            ("MessageRejected", 400, "Address is on the suppression list.", "failed", "invalid_recipient"),
            ("MailFromDomainNotVerifiedException", 400, "", "retryable", "unauthorized"),
            ("NotFoundException", 404, "Configuration set <x> does not exist.", "retryable", "unauthorized"),
            ("BadRequestException", 400, "Missing final '@domain'", "failed", "invalid_recipient"),
            ("BadRequestException", 400, "Illegal tag", "failed", "validation_error"),
            ("AccessDeniedException", 403, "User is not authorized", "retryable", "unauthorized"),
            ("SignatureDoesNotMatch", 403, "", "retryable", "unauthorized"),
            ("ExpiredTokenException", 403, "", "retryable", "unauthorized"),
            ("RequestEntityTooLargeException", 413, "", "failed", "validation_error"),
            ("InternalFailure", 500, "", "retryable", "provider_error"),
        ],
    )
    async def test_kinds_of_errors(
        self, bench: ProviderBench, kind: str, http: int, said: str, status: str, code: str
    ) -> None:
        bench.next(ses.error(kind, said, http))
        result = await bench.sender.send(mail())
        assert (result.status, code_of(result)) == (status, SendErrorCode(code))

    async def test_the_kind_may_stand_in_the_body(self, bench: ProviderBench) -> None:
        body = b'{"__type":"com.amazonaws.sesv2#LimitExceededException","Message":"Daily quota"}'
        result = await answered(bench, 400, body)
        assert code_of(result) is SendErrorCode.RATE_LIMITED
        assert result.error is not None
        assert result.error.message == "LimitExceededException: Daily quota"

    async def test_options_of_the_url(self, bench: ProviderBench) -> None:
        sender = bench.open("configuration_set=outbound")
        await sender.send(full_mail())
        (taken,) = bench.taken()
        assert taken.options == {"ConfigurationSetName": "outbound"}
        # Tags take no colon.
        assert taken.told["dedupeKey"] == "0123456789abcdef0123456789abcdef01234567_7"
        # SES writes another Message-ID over ours.
        assert taken.header("X-Message-ID") == "<m1@example.org>"
        await sender.close()

    async def test_a_configuration_set_that_is_not_there(self, bench: ProviderBench) -> None:
        sender = bench.open("configuration_set=nowhere")
        assert code_of(await sender.send(mail())) is SendErrorCode.UNAUTHORIZED
        await sender.close()

    async def test_keys_of_the_environment(
        self, bench: ProviderBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ses.ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ses.KEY)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        sender = open_provider(f"ses://{ses.REGION}?{bench.peer.url.partition('?')[2]}")
        assert (await sender.send(mail())).status == "sent"
        await sender.close()

    async def test_no_keys_at_all(self, bench: ProviderBench, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        sender = open_provider(f"ses://{ses.REGION}?{bench.peer.url.partition('?')[2]}")
        result = await sender.send(mail())
        assert code_of(result) is SendErrorCode.UNAUTHORIZED
        assert "there are no AWS credentials" in str(result.error)
        assert bench.peer.sink.count == 0
        await sender.close()


class TestTls:
    async def test_certificates_are_checked(self, certificates: Certificates) -> None:
        async with provider_peer("sendgrid", tls=certificates.server("localhost", "127.0.0.1")) as peer:
            stranger = open_provider(peer.url)
            result = await stranger.send(mail())
            assert code_of(result) is SendErrorCode.NETWORK_ERROR
            assert "certificate" in str(result.error)
            friend = open_provider(f"{peer.url}&cafile={certificates.cafile}")
            assert (await friend.send(mail())).status == "sent"
            await stranger.close()
            await friend.close()


@pytest.fixture
def certificates(tmp_path: Any) -> Certificates:
    return Certificates(tmp_path)


class TestTogether:
    async def test_the_next_provider_takes_over(self) -> None:
        async with provider_peer("sendgrid") as first, provider_peer("mailgun") as second:
            first.desk.faults.append(Answer(status=429, headers=(("Retry-After", "60"),)))
            sender = open_sender(f"{first.url},{second.url}", database=None, connections=5)  # type: ignore[arg-type]  # no sender here needs one
            results = [await sender.send(mail(number=n)) for n in range(3)]
            assert [result.provider for result in results] == [f"mailgun:{mailgun.DOMAIN}"] * 3
            assert first.sink.count == 1
            await sender.close()

    @pytest.mark.clause("NTF-21")
    async def test_a_reliable_sender_waits_as_long_as_it_is_asked_to(self) -> None:
        async with provider_peer("sendgrid") as peer:
            clock = Clock()

            async def sleep(seconds: float) -> None:
                # A timer may fire a little early.
                clock.now += seconds - 0.01

            peer.desk.faults.append(Answer(status=429, headers=(("Retry-After", "3"),)))
            inner = sender_to(peer, "sendgrid", clock=clock)
            sender = ReliableMailSender(inner, jitter=0.0, rate_per_second=0, monotonic=clock, sleep=sleep)
            delivery = await sender.deliver(full_mail())
            assert [attempt.status for attempt in delivery.attempts] == ["retryable", "sent"]
            assert delivery.result.status == "sent"
            await sender.close()

    async def test_a_check_sends_nothing(self) -> None:
        for name in PROVIDERS:
            async with provider_peer(name) as peer:
                what, well, _ = await check_provider(peer.url)
                assert (name in what, well) == (True, True)
                bad = peer.url.replace(KEYS[name], "another")
                _, well, told = await check_provider(bad)
                assert not well
                assert "HOMING_MAIL_URL" in told
                assert "another" not in told
                assert peer.desk.mails == []


CANARY = "CANARY-s3cr3t"


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "endpoint"),
        [
            ("sendgrid://:SG.key@", "https://api.sendgrid.com/v3/mail/send"),
            ("sendgrid://SG.key@", "https://api.sendgrid.com/v3/mail/send"),
            ("sendgrid://SG.key@api.sendgrid.com", "https://api.sendgrid.com/v3/mail/send"),
            ("sendgrid://:SG.key@?region=eu", "https://api.eu.sendgrid.com/v3/mail/send"),
            ("postmark://token@", "https://api.postmarkapp.com/email"),
            ("mailgun://:key@mg.example.org", "https://api.mailgun.net/v3/mg.example.org/messages.mime"),
            ("mailgun://api:key@mg.example.org?region=eu", "https://api.eu.mailgun.net/v3/mg.example.org/messages.mime"),
            ("ses://AKID:secret@eu-west-1", "https://email.eu-west-1.amazonaws.com/v2/email/outbound-emails"),
            ("ses://us-gov-west-1", "https://email.us-gov-west-1.amazonaws.com/v2/email/outbound-emails"),
            ("ses://cn-north-1", "https://email.cn-north-1.amazonaws.com.cn/v2/email/outbound-emails"),
            ("postmark://token@?endpoint=https://gateway.example/pm/", "https://gateway.example/pm/email"),
        ],
    )  # fmt: skip
    def test_where_they_lead(self, url: str, endpoint: str) -> None:
        api, _ = PROVIDERS[url.partition(":")[0]](url)
        assert vars(api)["_url"] == endpoint

    def test_secrets_are_percent_decoded(self) -> None:
        api, _ = PROVIDERS["sendgrid"]("sendgrid://:a%2Fb%40c%2Cd@")
        assert api.secrets == ("a/b@c,d",)

    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("sendgrid://", "no API key"),
            (f"sendgrid://{CANARY}", "does not belong|no API key"),
            (f"sendgrid://ann:{CANARY}@", "a user beside the API key"),
            (f"sendgrid://:{CANARY}/x@", "cannot be read"),
            (f"sendgrid://:{CANARY}#x@", "cannot be read"),
            (f"sendgrid://:{CANARY}@api.sendgrid.com:443", "does not belong"),
            (f"sendgrid://:{CANARY}@api.sendgrid.com?region=eu", "both a host and a region"),
            (f"sendgrid://:{CANARY}@?region=mars", "global or eu"),
            (f"sendgrid://:{CANARY}@?sandbox=perhaps", "true or false"),
            (f"sendgrid://:{CANARY}@?sandbx=true", "did you mean 'sandbox'"),
            (f"sendgrid://:x?{CANARY}@", "unknown option, there are"),
            (f"sendgrid://:{CANARY}@?timeout=soon", "a number from 0.05 to 600"),
            (f"sendgrid://:{CANARY}@?connections=1.5", "whole number"),
            (f"sendgrid://:{CANARY}@?timeout=1&timeout=2", "twice"),
            (f"sendgrid://:{CANARY}%20x@", "blank"),
            (f"sendgrid://:{CANARY}@?endpoint=http://gateway.example", "in the clear"),
            (f"sendgrid://:{CANARY}@?endpoint=ftp://gateway.example", "https://"),
            (f"sendgrid://:{CANARY}@?endpoint=https://[", "https://"),
            (f"sendgrid://:{CANARY}@?categories=1+2+3+4+5+6+7+8+9+10+11", "ten categories"),
            (f"sendgrid://:{CANARY}@[", "cannot be read"),
            (f"postmark://?x={CANARY}", "unknown option"),
            (f"mailgun://:{CANARY}@", "names no domain"),
            (f"mailgun://:{CANARY}@localhost", "names no domain"),
            (f"ses://AKID:{CANARY}@", "names no region"),
            (f"ses://AKID:{CANARY}@nowhere", "names no region"),
            (f"ses://{CANARY}@eu-west-1", "both an access key and its secret"),
            (f"ses://AKID:{CANARY}/more@eu-west-1", "cannot be read"),
        ],
    )
    def test_wrong_ones_are_refused_without_showing_the_secret(self, url: str, told: str) -> None:
        with pytest.raises(SettingsError, match=told) as caught:
            open_provider(url)
        said = str(caught.value)
        assert CANARY.lower() not in said.lower()
        assert f"write {url.partition(':')[0]}://" in said

    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("sendgird://:x@", "did you mean sendgrid://"),
            ("telex://x", "telex://; known are"),
            (CANARY, "no scheme: a relay is smtp://relay.example.com"),
            ("", "no scheme"),
            (f"{CANARY}-1://x", "nothing://"),
        ],
    )
    def test_schemes_that_are_not_known(self, url: str, told: str) -> None:
        with pytest.raises(SettingsError, match=told) as caught:
            open_sender(url, database=None, connections=1)  # type: ignore[arg-type]  # it does not get that far
        assert CANARY not in str(caught.value)

    def test_ses_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from homing.senders.providers import ses as module

        def missing(name: str) -> Any:
            raise ModuleNotFoundError(name)

        monkeypatch.setattr(module, "import_module", missing)
        with pytest.raises(SettingsError, match=r"pip install 'homing\[ses\]'"):
            open_provider("ses://eu-west-1")

    def test_an_account_shows_no_secret(self) -> None:
        for url in (
            f"sendgrid://:{CANARY}@",
            f"ses://AKID:{CANARY}@eu-west-1",
            f"mailgun://:{CANARY}@a.example",
        ):
            api, account = PROVIDERS[url.partition(":")[0]](url)
            assert CANARY not in f"{account!r} {account} {api!r}"

    async def test_those_of_the_guide_open(self) -> None:
        page = Path(__file__).parents[2] / "docs" / "mail_providers.md"
        urls = re.findall(r"^HOMING_MAIL_URL='(.+)'$", page.read_text(), re.MULTILINE)
        assert len(urls) == 5
        for url in urls:
            await open_sender(url, database=None, connections=1).close()  # type: ignore[arg-type]  # none of them needs one

    async def test_every_scheme_opens(self) -> None:
        urls = ("memory://", "sendgrid://:k@", "ses://eu-west-1", "postmark://t@", "mailgun://:k@a.example")
        senders = [open_sender(url, database=None, connections=1) for url in urls]  # type: ignore[arg-type]  # none of them needs one
        assert isinstance(senders[0], MemorySender)
        assert [sender.name for sender in senders] == ["memory", "sendgrid", "ses", "postmark", "mailgun"]
        for sender in senders:
            await sender.close()
