"""When a mail goes to the next sender, and when it must not."""

from __future__ import annotations

import asyncio

import pytest
from tests.senders.peers import mail, sender_to

from homing.senders.failover import FailoverSender
from homing.senders.mail import SendError, SendErrorCode, SendResult, Verdict
from homing.senders.memory import MemorySender
from homing.testing.smtp_sink import SmtpSink, drop

ACCEPTED = Verdict(status="accepted", code=250)
DEFERRED = Verdict(status="deferred", code=450)


def retryable(code: SendErrorCode, **more: object) -> SendResult:
    given = {"status": "retryable", "provider": "first", "error": SendError(code, "no")}
    return SendResult(**(given | more))  # type: ignore[arg-type]  # fields by name, of mixed types


class Pair:
    def __init__(self) -> None:
        self.first, self.second = MemorySender("first"), MemorySender("second")
        self.both = FailoverSender([self.first, self.second])


@pytest.fixture
def pair() -> Pair:
    return Pair()


async def test_the_first_is_preferred(pair: Pair) -> None:
    result = await pair.both.send(mail())
    assert (result.status, result.provider) == ("sent", "first")
    assert pair.second.messages == []


@pytest.mark.parametrize(
    "out",
    [
        retryable(SendErrorCode.NETWORK_ERROR),
        retryable(SendErrorCode.UNAUTHORIZED),
        retryable(SendErrorCode.RATE_LIMITED, attempted=False),
        retryable(SendErrorCode.RATE_LIMITED, verdicts={"ann@example.org": DEFERRED}),
    ],
)
async def test_a_relay_that_is_out_is_passed_over(pair: Pair, out: SendResult) -> None:
    pair.first.answer_next(out)
    result = await pair.both.send(mail())
    assert (result.status, result.provider) == ("sent", "second")


@pytest.mark.parametrize(
    "answered",
    [
        retryable(SendErrorCode.UNKNOWN, unknown=True),
        retryable(SendErrorCode.NETWORK_ERROR, unknown=True),
        retryable(SendErrorCode.PROVIDER_ERROR, verdicts={"ann@example.org": DEFERRED}),
        retryable(SendErrorCode.RATE_LIMITED, verdicts={"a@e.org": ACCEPTED, "b@e.org": DEFERRED}),
        SendResult(status="failed", provider="first", error=SendError(SendErrorCode.INVALID_RECIPIENT, "no")),
    ],
)
async def test_an_answer_about_the_mail_stands(pair: Pair, answered: SendResult) -> None:
    pair.first.answer_next(answered)
    assert await pair.both.send(mail()) is answered
    assert pair.second.messages == []


async def test_who_is_not_available_is_not_asked(pair: Pair) -> None:
    pair.first.is_available = False
    assert await pair.both.available()
    assert (await pair.both.send(mail())).provider == "second"
    assert pair.first.messages == []


async def test_nobody_is_available(pair: Pair) -> None:
    pair.first.is_available = pair.second.is_available = False
    assert not await pair.both.available()
    result = await pair.both.send(mail())
    assert (result.status, result.attempted) == ("retryable", False)


async def test_an_attempt_counts_though_the_next_was_busy(pair: Pair) -> None:
    tried = retryable(SendErrorCode.NETWORK_ERROR)
    pair.first.answer_next(tried)
    pair.second.answer_next(retryable(SendErrorCode.RATE_LIMITED, provider="second", attempted=False))
    assert await pair.both.send(mail()) is tried


async def test_the_last_word_when_all_are_out(pair: Pair) -> None:
    pair.first.answer_next(retryable(SendErrorCode.RATE_LIMITED, attempted=False))
    pair.second.answer_next(retryable(SendErrorCode.NETWORK_ERROR, provider="second"))
    result = await pair.both.send(mail())
    assert (result.provider, result.attempted) == ("second", True)


async def test_closing_closes_all(pair: Pair) -> None:
    await pair.both.close()
    assert pair.first.closed
    assert pair.second.closed


def test_nobody_at_all_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FailoverSender([])


async def test_two_real_relays(unused_tcp_port: int) -> None:
    async with SmtpSink() as sink:
        out = sender_to(f"smtp://127.0.0.1:{unused_tcp_port}", name="out")
        both = FailoverSender([out, sender_to(sink, name="works")])
        results = [await both.send(mail(number=n)) for n in range(8)]
        await both.close()
        assert {(r.status, r.provider) for r in results} == {("sent", "works")}
        assert len(sink.mails) == 8
        assert not await out.available()


async def test_an_unknown_outcome_makes_no_double() -> None:
    dropped = lambda stage, _: drop(accept=True) if stage == "dot" else None  # noqa: E731  (a line says it best)
    async with SmtpSink(script=dropped) as first, SmtpSink() as second:
        both = FailoverSender([sender_to(first), sender_to(second)])
        result = await both.send(mail())
        await both.close()
        assert result.unknown
        assert (len(first.mails), len(second.mails)) == (1, 0)


class Silent(MemorySender):
    """A relay that is out and does not even say so."""

    def __init__(self) -> None:
        super().__init__("silent")
        self.is_available = False
        self.asked = 0

    async def available(self) -> bool:
        self.asked += 1
        await asyncio.Event().wait()
        return False


async def test_a_silent_relay_holds_nobody_up() -> None:
    silent, healthy = Silent(), MemorySender("healthy")
    failover = FailoverSender([silent, healthy])
    async with asyncio.timeout(60):
        assert await failover.available()
        result = await failover.send(mail("ann@example.org"))
        assert (result.status, result.provider) == ("sent", "healthy")
        await asyncio.sleep(0)
        assert silent.asked == 1, "it is asked beside, once"
        await failover.close()
