"""What every `MailSender` promises. A new one gives a `Bench` and runs `SenderConformance`.

class TestMySender(SenderConformance):
    @pytest.fixture
    async def bench(self) -> AsyncIterator[Bench]: ...

A sender by way of a provider's API gives a `ProviderBench` and runs `ProviderConformance`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from tests.senders.peers import mail, until

from homing.senders.mail import Attachment, MailSender, SendErrorCode, SendResult, is_retryable
from homing.senders.providers import ApiSender
from homing.testing.http_sink import Answer
from homing.testing.mail_providers import ProviderPeer, Taken


class Bench(Protocol):
    """A sender, a way to make the other side say no, and a look at what arrived."""

    sender: MailSender

    def defer(self, address: str) -> None: ...

    def reject(self, address: str) -> None: ...

    def arrived(self) -> list[tuple[str, str]]:
        """(address, Message-ID) of every mail that somebody got."""

    async def go_down(self) -> None:
        """From now on nobody can be reached."""


class SenderConformance:
    @pytest.fixture
    def bench(self) -> Bench:
        raise NotImplementedError

    async def test_a_mail_is_sent_once(self, bench: Bench) -> None:
        result = await bench.sender.send(mail("ann@example.org"))
        assert result.status == "sent"
        assert result.error is None
        assert result.attempted
        assert not result.unknown
        assert bench.arrived() == [("ann@example.org", "<m1@example.org>")]

    async def test_each_recipient_has_a_verdict(self, bench: Bench) -> None:
        result = await bench.sender.send(mail("ann@example.org", "bob@example.org"))
        assert {who: v.status for who, v in result.verdicts.items()} == {
            "ann@example.org": "accepted",
            "bob@example.org": "accepted",
        }

    async def test_the_result_names_who_sent_it(self, bench: Bench) -> None:
        result = await bench.sender.send(mail())
        assert result.provider
        assert bench.sender.name

    async def test_deferred_is_retryable(self, bench: Bench) -> None:
        bench.defer("ann@example.org")
        result = await bench.sender.send(mail("ann@example.org"))
        assert result.status == "retryable"
        assert result.error is not None
        assert result.verdicts["ann@example.org"].status == "deferred"
        assert bench.arrived() == []

    async def test_rejected_is_failed(self, bench: Bench) -> None:
        bench.reject("ann@example.org")
        result = await bench.sender.send(mail("ann@example.org"))
        assert result.status == "failed"
        assert result.error is not None
        assert "ann@" not in result.error.message
        assert bench.arrived() == []

    async def test_one_recipient_does_not_fail_the_others(self, bench: Bench) -> None:
        bench.reject("no@example.org")
        bench.defer("later@example.org")
        recipients = ("no@example.org", "ann@example.org", "later@example.org")
        result = await bench.sender.send(mail(*recipients))
        assert result.status == "retryable"
        assert {who: v.status for who, v in result.verdicts.items()} == {
            "no@example.org": "rejected",
            "ann@example.org": "accepted",
            "later@example.org": "deferred",
        }
        assert bench.arrived() == [("ann@example.org", "<m1@example.org>")]

    async def test_many_at_a_time(self, bench: Bench) -> None:
        results = await asyncio.gather(*[bench.sender.send(mail(number=n)) for n in range(100)])
        assert {result.status for result in results} == {"sent"}
        assert sorted(bench.arrived()) == sorted(
            ("ann@example.org", f"<m{n}@example.org>") for n in range(100)
        )

    async def test_it_is_available(self, bench: Bench) -> None:
        assert await bench.sender.available()

    async def test_an_outage_raises_nothing(self, bench: Bench) -> None:
        await bench.go_down()
        result = await bench.sender.send(mail())
        assert result.status == "retryable"
        assert result.error is not None
        assert bench.arrived() == []

    async def test_closing_twice_is_no_harm(self, bench: Bench) -> None:
        await bench.sender.send(mail())
        await bench.sender.close()
        await bench.sender.close()


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ProviderBench:
    """A sender, and the provider at its other end."""

    def __init__(self, peer: ProviderPeer, open_sender: Callable[..., ApiSender]) -> None:
        self.peer = peer
        self.clock = Clock()
        #: Makes a sender; options of the URL may be given.
        self.open = open_sender
        self._made = self.open(clock=self.clock)
        self.sender: MailSender = self._made

    @property
    def api(self) -> ApiSender:
        return self._made

    def defer(self, address: str) -> None:
        self.peer.desk.deferred.add(address)

    def reject(self, address: str) -> None:
        self.peer.desk.rejected.add(address)

    def arrived(self) -> list[tuple[str, str]]:
        return [(who, taken.header("Message-ID") or "") for taken in self.taken() for who in taken.recipients]

    def taken(self) -> list[Taken]:
        return self.peer.desk.mails

    async def go_down(self) -> None:
        await self.peer.sink.close()

    def next(self, *answers: Answer) -> None:
        self.peer.desk.faults.extend(answers)


def full_mail(**changes: Any) -> Any:
    """A mail with everything that a mail may have."""
    given: dict[str, Any] = {
        "to": ("Ann <ann@example.org>",),
        "cc": ('"Bob, B." <bob@example.org>',),
        "recipients": ("ann@example.org", "bob@example.org", "hidden@example.org"),
        "reply_to": ("help@example.org",),
        "subject": "Ein Platz ist frei: 有空位了",
        "text": "Text, 有空位了.\n",
        "html": "<p>Html, 有空位了.</p>",
        "headers": (("X-Campaign", "seats"),),
        "attachments": (Attachment("plan.pdf", b"%PDF-1.7 \x00\xff", "application/pdf"),),
        "unsubscribe_url": "https://seats.example/u?token=abc",
        "dedupe_key": "0123456789abcdef0123456789abcdef01234567",
        "trace_id": "trace-1",
        "metadata": {"subscriptionId": 7, "openEventId": 9, "term": "12026", "campus": "NB"},
    }
    return mail(**(given | changes))


def code_of(result: SendResult) -> SendErrorCode | None:
    return None if result.error is None else result.error.code


class ProviderConformance(SenderConformance):
    """What a provider's sender promises beyond the above."""

    @pytest.fixture
    def bench(self) -> ProviderBench:
        raise NotImplementedError

    # A provider takes a request or refuses it, and puts off nobody among several: that is left out here.
    async def test_one_recipient_does_not_fail_the_others(self, bench: Bench) -> None:
        bench.reject("no@example.org")
        recipients = ("no@example.org", "ann@example.org", "bob@example.org")
        result = await bench.sender.send(mail(*recipients))
        assert result.status == "failed"
        assert {who: v.status for who, v in result.verdicts.items()} == {
            "no@example.org": "rejected",
            "ann@example.org": "accepted",
            "bob@example.org": "accepted",
        }
        assert sorted(who for who, _ in bench.arrived()) == ["ann@example.org", "bob@example.org"]

    # What the mail says

    async def test_all_of_a_mail_arrives(self, bench: ProviderBench) -> None:
        result = await bench.sender.send(full_mail())
        (taken,) = bench.taken()
        assert (result.status, result.provider_message_id) == ("sent", taken.provider_id)
        assert sorted(taken.recipients) == ["ann@example.org", "bob@example.org", "hidden@example.org"]
        assert (taken.to, taken.cc) == (("ann@example.org",), ("bob@example.org",))
        assert taken.subject == "Ein Platz ist frei: 有空位了"
        assert (taken.text or "").strip() == "Text, 有空位了."
        assert (taken.html or "").strip() == "<p>Html, 有空位了.</p>"
        assert taken.attachments == (("plan.pdf", b"%PDF-1.7 \x00\xff"),)
        assert taken.header("X-Campaign") == "seats"
        assert "hidden@" not in str(taken.headers)

    @pytest.mark.clause("NTF-05")
    async def test_the_provider_is_told_the_key_with_the_subscription(self, bench: ProviderBench) -> None:
        await bench.sender.send(full_mail())
        await bench.sender.send(full_mail(metadata={"subscriptionId": 8}))
        told = [taken.told for taken in bench.taken()]
        assert len({one["dedupeKey"] for one in told}) == 2
        assert all(one["dedupeKey"].startswith("0123456789abcdef") for one in told)
        assert told[0]["dedupeKey"].endswith("7")
        assert {name: told[0][name] for name in ("subscriptionId", "openEventId", "term", "campus")} == {
            "subscriptionId": "7",
            "openEventId": "9",
            "term": "12026",
            "campus": "NB",
        }

    async def test_headers_that_a_receiver_needs(self, bench: ProviderBench) -> None:
        await bench.sender.send(full_mail())
        (taken,) = bench.taken()
        assert taken.header("Message-ID") == "<m1@example.org>"
        assert taken.header("List-Unsubscribe") == "<https://seats.example/u?token=abc>"
        assert taken.header("List-Unsubscribe-Post") == "List-Unsubscribe=One-Click"
        assert taken.header("X-Trace-Id") == "trace-1"

    async def test_a_link_by_plain_http_offers_no_one_click(self, bench: ProviderBench) -> None:
        await bench.sender.send(full_mail(unsubscribe_url="http://127.0.0.1:8080/u"))
        (taken,) = bench.taken()
        assert taken.header("List-Unsubscribe") == "<http://127.0.0.1:8080/u>"
        assert taken.header("List-Unsubscribe-Post") is None

    @pytest.mark.parametrize(
        "body",
        [
            b"[" * 5000,
            b'{"errors":' + b"[" * 5000,
            b'{"errors":[{"message":"m","field":"personalizations.0.to.' + b"1" * 4400 + b'.email"}]}',
            b'{"ErrorCode":' + b"9" * 2400 + b',"Message":' + b"9" * 2400 + b"}",
            b'{"message":"\xff\xfe","id":[{}]}',
        ],
        ids=["brackets", "brackets inside", "digits", "numbers", "no text"],
    )
    async def test_garbage_in_an_answer_is_a_result_too(self, bench: ProviderBench, body: bytes) -> None:
        for status in (400, 422, 200, 202, 429, 500):
            bench.next(Answer(status=status, body=body))
            result = await bench.sender.send(mail())
            assert result.attempted
            assert result.status in ({"failed", "retryable"} if status >= 400 else {"sent", "retryable"})

    async def test_a_bug_in_reading_an_answer_leaves_the_mail_open(
        self, bench: ProviderBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody knows then whether it was taken."""

        def broken(*_given: object) -> None:
            raise ZeroDivisionError(full_mail().text)

        assert isinstance(bench.sender, ApiSender)
        monkeypatch.setattr(bench.sender._api, "judge", broken)
        result = await bench.sender.send(full_mail())
        assert (result.status, code_of(result), result.unknown) == ("retryable", SendErrorCode.UNKNOWN, True)
        assert result.error is not None
        assert "ZeroDivisionError" in result.error.message
        assert (full_mail().text or "?") not in result.error.message

    async def test_only_those_still_open_get_it(self, bench: ProviderBench) -> None:
        await bench.sender.send(full_mail(recipients=("bob@example.org",)))
        (taken,) = bench.taken()
        assert taken.recipients == ("bob@example.org",)

    async def test_hidden_recipients_do_not_see_each_other(self, bench: ProviderBench) -> None:
        result = await bench.sender.send(full_mail(recipients=("x@example.org", "y@example.org")))
        assert sorted(who for who, _ in bench.arrived()) == ["x@example.org", "y@example.org"]
        for taken in bench.taken():
            shown = {*taken.to, *taken.cc} & {"x@example.org", "y@example.org"}
            assert len(shown) <= 1
        assert (result.status, len(result.verdicts)) == ("sent", 2)

    async def test_strange_metadata_fails_no_mail(self, bench: ProviderBench) -> None:
        strange = {"subscriptionId": 7, "x" * 300: "y" * 3000, "n\r\nm": "a\r\n--b", "none": None, "ü": "ü€"}
        message = full_mail(metadata=strange, dedupe_key="k" * 400, trace_id="t\r\nBcc: x@example.org")
        assert (await bench.sender.send(message)).status == "sent"
        (taken,) = bench.taken()
        assert taken.told["dedupeKey"]
        assert taken.header("X-Trace-Id") is None

    # What may go wrong

    async def test_an_address_that_is_none_is_refused_on_its_own(self, bench: ProviderBench) -> None:
        result = await bench.sender.send(mail("ann@example.org", "no address", "jörg@example.org", to=()))
        assert result.status == "failed"
        assert code_of(result) is SendErrorCode.INVALID_RECIPIENT
        assert {who: v.status for who, v in result.verdicts.items()} == {
            "ann@example.org": "accepted",
            "no address": "rejected",
            "jörg@example.org": "rejected",
        }

    async def test_what_cannot_be_a_mail_is_not_asked_for(self, bench: ProviderBench) -> None:
        result = await bench.sender.send(mail(headers=(("X-Bad", "a\r\nBcc: x@example.org"),)))
        assert (result.status, code_of(result)) == ("failed", SendErrorCode.VALIDATION_ERROR)
        assert bench.peer.sink.count == 0

    async def test_too_large_a_mail_is_not_sent(
        self, bench: ProviderBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(type(bench.api._api), "most_bytes", 50_000)
        result = await bench.sender.send(mail(text="x" * 60_000))
        assert (result.status, code_of(result)) == ("failed", SendErrorCode.VALIDATION_ERROR)
        assert bench.peer.sink.count == 0

    async def test_an_unverified_sender_is_ours_to_mend(self, bench: ProviderBench) -> None:
        result = await bench.sender.send(mail(sender="Homing <a@unverified.example>"))
        assert (result.status, code_of(result)) == ("retryable", SendErrorCode.UNAUTHORIZED)
        assert not is_retryable(result)

    @pytest.mark.parametrize("status", [500, 502, 503])
    async def test_trouble_over_there_is_retryable(self, bench: ProviderBench, status: int) -> None:
        bench.next(Answer(status=status, body=b"<html>oops</html>"))
        result = await bench.sender.send(mail())
        assert (result.status, code_of(result)) == ("retryable", SendErrorCode.PROVIDER_ERROR)
        assert is_retryable(result)
        assert result.verdicts["ann@example.org"].status == "deferred"

    @pytest.mark.parametrize("status", [401, 403])
    async def test_a_refused_key_is_unauthorized(self, bench: ProviderBench, status: int) -> None:
        bench.next(Answer(status=status))
        result = await bench.sender.send(mail())
        assert (result.status, code_of(result)) == ("retryable", SendErrorCode.UNAUTHORIZED)
        assert not is_retryable(result)

    async def test_a_refusal_in_no_known_words_is_final(self, bench: ProviderBench) -> None:
        bench.next(Answer(status=418, body=b"a teapot"))
        result = await bench.sender.send(mail())
        assert (result.status, code_of(result)) == ("failed", SendErrorCode.PROVIDER_ERROR)

    async def test_a_redirect_is_not_followed(self, bench: ProviderBench) -> None:
        bench.next(Answer(status=307, headers=(("Location", "https://elsewhere.example/"),)))
        assert code_of(await bench.sender.send(mail())) is SendErrorCode.UNAUTHORIZED

    async def test_a_wait_is_kept_by_everybody(self, bench: ProviderBench) -> None:
        bench.next(Answer(status=429, headers=(("Retry-After", "7"),)))
        result = await bench.sender.send(mail())
        assert (result.status, code_of(result)) == ("retryable", SendErrorCode.RATE_LIMITED)
        assert (result.retry_after, result.attempted) == (7.0, True)
        assert not bench.sender.usable()
        assert not await bench.sender.available()
        bench.clock.now += 3
        second = await bench.sender.send(mail())
        assert (code_of(second), second.attempted) == (SendErrorCode.RATE_LIMITED, False)
        assert second.retry_after == pytest.approx(4, abs=0.1)
        assert bench.peer.sink.count == 1
        bench.clock.now += 4
        assert bench.sender.usable()
        assert (await bench.sender.send(mail())).status == "sent"

    # When the line is bad

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(Answer(silent=True), id="silence"),
            pytest.param(Answer(status=200, drip=0.2, body=b"." * 50), id="byte by byte"),
            pytest.param(Answer(raw=b"", reset=True), id="reset"),
            pytest.param(Answer(raw=b"220 mail.example ESMTP\r\n", close=True), id="no http"),
            pytest.param(Answer(status=200, body=b"<html>Please log in</html>"), id="another's page"),
        ],
    )
    async def test_no_answer_after_the_last_byte_is_unknown(
        self, bench: ProviderBench, answer: Answer
    ) -> None:
        # On a connection that is open already the request is written at once, however busy the machine is.
        await bench.sender.send(mail())
        vars(bench.api._api)["_timeout"] = 0.3
        bench.next(answer)
        result = await bench.sender.send(mail())
        assert (result.status, code_of(result), result.unknown) == ("retryable", SendErrorCode.UNKNOWN, True)
        assert (result.attempted, result.verdicts) == (True, {})
        # Whatever became of it, it was asked for once.
        assert bench.peer.sink.count == 2

    async def test_a_reset_before_the_last_byte_is_known(self, bench: ProviderBench) -> None:
        # More than the system takes at once, to somebody who reads the headers and hangs up.
        bench.peer.sink.on_head = Answer(raw=b"", reset=True)
        result = await bench.sender.send(mail(text="x" * 8_000_000))
        assert (result.status, code_of(result)) == ("retryable", SendErrorCode.NETWORK_ERROR)
        assert not result.unknown

    # The breaker

    async def test_failures_in_a_row_stop_the_asking(self, bench: ProviderBench) -> None:
        bench.next(*[Answer(status=503)] * 6)
        for _ in range(5):
            await bench.sender.send(mail())
        assert not bench.sender.usable()
        result = await bench.sender.send(mail())
        assert (result.attempted, code_of(result)) == (False, SendErrorCode.NETWORK_ERROR)
        bench.clock.now += 1
        assert not await bench.sender.available()
        bench.clock.now += 60
        assert await bench.sender.available()
        # It was asked without sending anything, and the next mail goes out.
        assert bench.taken() == []
        assert (await bench.sender.send(mail())).status == "sent"

    async def test_a_refused_key_stops_the_asking_too(self, bench: ProviderBench) -> None:
        sender = bench.open(key="another")
        for _ in range(5):
            assert code_of(await sender.send(mail())) is SendErrorCode.UNAUTHORIZED
        assert not sender.usable()
        assert await sender.check() is not None
        assert await bench.api.check() is None
        assert bench.taken() == []
        await sender.close()

    async def test_refused_mails_do_not_stop_the_asking(self, bench: ProviderBench) -> None:
        bench.reject("no@example.org")
        for _ in range(10):
            await bench.sender.send(mail("no@example.org"))
        assert bench.sender.usable()

    # Ourselves

    async def test_connections_are_few_and_kept(self, bench: ProviderBench) -> None:
        sender = bench.open("connections=3")
        results = await asyncio.gather(*[sender.send(mail(number=n)) for n in range(30)])
        assert {result.status for result in results} == {"sent"}
        assert bench.peer.sink.connected <= 3
        await sender.close()

    async def test_who_waits_for_a_connection_uses_up_no_time(self, bench: ProviderBench) -> None:
        sender = bench.open("connections=1&timeout=5")
        bench.next(Answer(silent=True))
        first = asyncio.create_task(sender.send(mail(number=1)))
        await until(lambda: bench.peer.sink.count, "the first request")
        second = asyncio.create_task(sender.send(mail(number=2)))
        first.cancel()
        assert (await second).status == "sent"
        await asyncio.gather(first, return_exceptions=True)
        await sender.close()

    async def test_no_secret_is_ever_shown(self, bench: ProviderBench) -> None:
        secrets = bench.api._api.secrets
        bench.next(*[Answer(status=status, body=" ".join(secrets).encode()) for status in (400, 422, 500)])
        said = str([await bench.sender.send(mail()) for _ in range(3)])
        shown = f"{said} {bench.api!r} {vars(bench.api)!r} {bench.api._api!r}"
        assert secrets
        assert not [secret for secret in secrets if secret in shown]

    async def test_a_closed_sender_sends_nothing(self, bench: ProviderBench) -> None:
        await bench.sender.close()
        result = await bench.sender.send(mail())
        assert (result.status, result.attempted) == ("retryable", False)
        assert bench.peer.sink.count == 0
