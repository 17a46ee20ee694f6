"""Tries within an attempt, a rate, and one call for equal mails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.senders.conformance import Bench, SenderConformance
from tests.senders.peers import mail, until
from tests.senders.test_sender_conformance import MemoryBench

from homing.engine.policy import Schedule
from homing.senders.mail import (
    MailMessage,
    MailSender,
    SendError,
    SendErrorCode,
    SendResult,
    Verdict,
    is_retryable,
)
from homing.senders.memory import MemorySender
from homing.senders.reliable import ReliableMailSender

SENT = SendResult(status="sent", provider="memory")
THREE = Schedule((0.0, 2.0, 7.0))


def retryable(code: SendErrorCode = SendErrorCode.NETWORK_ERROR, **more: Any) -> SendResult:
    return SendResult(status="retryable", provider="memory", error=SendError(code, "later"), **more)


def failed(code: SendErrorCode) -> SendResult:
    return SendResult(status="failed", provider="memory", error=SendError(code, "never"))


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def around(inner: MailSender, time: Time | None = None, **options: Any) -> ReliableMailSender:
    clock = time or Time()
    given: dict[str, Any] = {"retries": THREE, "jitter": 0.0, "rate_per_second": 0, "rand": lambda: 0.0}
    return ReliableMailSender(inner, **(given | options), monotonic=clock, sleep=clock.sleep)


class Slow(MemorySender):
    """Sends nothing until it is let, and says so when it is called off."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.called_off = 0

    async def send(self, message: MailMessage) -> SendResult:
        self.messages.append(message)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.called_off += 1
            raise
        return SENT


class Broken(MemorySender):
    async def send(self, message: MailMessage) -> SendResult:
        self.messages.append(message)
        raise RuntimeError("ann@example.org")


class TestWhichCodes:
    @pytest.mark.clause("NTF-12")
    @pytest.mark.parametrize("code", SendErrorCode)
    def test_a_code_decides_with_the_status(self, code: SendErrorCode) -> None:
        passing = {"rate_limited", "network_error", "provider_error", "unknown"}
        assert is_retryable(retryable(code)) is (code.value in passing)
        assert not is_retryable(failed(code))

    def test_a_sent_mail_is_not_retried(self) -> None:
        assert not is_retryable(SENT)


class TestTries:
    @pytest.mark.clause("NTF-21")
    async def test_as_many_as_there_are_entries_with_their_waits_between(self) -> None:
        inner, time = MemorySender(), Time()
        inner.answer_next(*[retryable()] * 5)
        delivery = await around(inner, time).deliver(mail())
        assert len(inner.messages) == 3
        assert time.slept == [0.0, 2.0]
        assert delivery.result == retryable()
        assert delivery.attempts == (retryable(), retryable(), retryable())

    @pytest.mark.clause("NTF-21")
    async def test_a_success_ends_them(self) -> None:
        inner = MemorySender()
        inner.answer_next(retryable(), SENT)
        delivery = await around(inner).deliver(mail())
        assert delivery.result.status == "sent"
        assert [attempt.status for attempt in delivery.attempts] == ["retryable", "sent"]

    @pytest.mark.parametrize("code", [code for code in SendErrorCode if not is_retryable(retryable(code))])
    async def test_what_waiting_does_not_mend_is_tried_once(self, code: SendErrorCode) -> None:
        inner = MemorySender()
        inner.answer_next(retryable(code))
        result = await around(inner).send(mail())
        assert (len(inner.messages), result) == (1, retryable(code))

    async def test_a_refusal_stands(self) -> None:
        inner = MemorySender()
        inner.answer_next(failed(SendErrorCode.PROVIDER_ERROR))
        assert (await around(inner).send(mail())).status == "failed"
        assert len(inner.messages) == 1

    async def test_jitter_only_prolongs(self) -> None:
        inner, time = MemorySender(), Time()
        inner.answer_next(*[retryable()] * 3)
        await around(inner, time, jitter=0.25, rand=lambda: 0.5, retries=Schedule((4.0, 8.0, 1.0))).send(
            mail()
        )
        assert time.slept == [4.5, 9.0]

    async def test_the_longer_of_schedule_and_retry_after_holds(self) -> None:
        inner, time = MemorySender(), Time()
        inner.answer_next(retryable(retry_after=5.0), retryable(retry_after=1.0))
        await around(inner, time).send(mail())
        assert time.slept == [5.0, 2.0]

    async def test_a_long_retry_after_is_handed_out(self) -> None:
        inner, time = MemorySender(), Time()
        inner.answer_next(retryable(SendErrorCode.RATE_LIMITED, retry_after=10.5))
        result = await around(inner, time).send(mail())
        assert (result.retry_after, time.slept, len(inner.messages)) == (10.5, [], 1)

    async def test_what_was_not_attempted_is_not_tried_again(self) -> None:
        inner = MemorySender()
        inner.answer_next(retryable(attempted=False))
        assert await around(inner).send(mail()) == retryable(attempted=False)
        assert len(inner.messages) == 1

    async def test_a_try_that_was_not_made_hides_none_that_was(self) -> None:
        inner = MemorySender()
        inner.answer_next(retryable(SendErrorCode.PROVIDER_ERROR), retryable(attempted=False))
        result = await around(inner).send(mail())
        assert result.attempted
        assert result.error is not None
        assert result.error.code is SendErrorCode.PROVIDER_ERROR

    @pytest.mark.clause("NTF-21")
    async def test_what_may_have_been_taken_is_not_tried_again(self) -> None:
        """Each of these tries could be a double, and the queue outside tries again as well."""
        inner, time = MemorySender(), Time()
        lost = replace(retryable(SendErrorCode.UNKNOWN), unknown=True)
        inner.answer_next(retryable(), lost, SENT)
        delivery = await around(inner, time).deliver(mail())
        assert delivery.attempts == (retryable(), lost)
        assert (delivery.result.status, delivery.result.unknown) == ("retryable", True)

    @pytest.mark.clause("NTF-20")
    async def test_an_exception_is_a_result(self) -> None:
        inner, crashes = Broken(), list[Exception]()
        result = await around(inner, on_crash=crashes.append).send(mail())
        assert (result.status, result.unknown) == ("retryable", True)
        assert result.error is not None
        assert result.error.code is SendErrorCode.UNKNOWN
        assert "RuntimeError" in result.error.message
        assert "ann@" not in result.error.message
        assert [type(crash) for crash in crashes] == [RuntimeError]


class TestSeveralRecipients:
    async def test_only_those_still_open_are_tried_again(self) -> None:
        inner = MemorySender()
        accepted, later = Verdict("accepted"), Verdict("deferred")
        inner.answer_next(retryable(verdicts={"ann@example.org": accepted, "bob@example.org": later}))
        result = await around(inner).send(mail("ann@example.org", "bob@example.org"))
        assert [m.recipients for m in inner.messages] == [
            ("ann@example.org", "bob@example.org"),
            ("bob@example.org",),
        ]
        assert result.status == "sent"
        assert {who: v.status for who, v in result.verdicts.items()} == {
            "ann@example.org": "accepted",
            "bob@example.org": "accepted",
        }

    async def test_who_was_refused_on_the_way_is_not_forgotten(self) -> None:
        inner = MemorySender()
        refused, later = Verdict("rejected", 550), Verdict("deferred")
        first = retryable(
            SendErrorCode.PROVIDER_ERROR, verdicts={"no@example.org": refused, "bob@example.org": later}
        )
        inner.answer_next(first)
        result = await around(inner).send(mail("no@example.org", "bob@example.org"))
        assert result.status == "failed"
        assert result.verdicts["no@example.org"] == refused
        assert result.verdicts["bob@example.org"].status == "accepted"
        assert result.error is not None


class TestRate:
    @pytest.mark.clause("NTF-21")
    async def test_a_burst_goes_out_at_once_and_then_the_rate_holds(self) -> None:
        inner, time = MemorySender(), Time()
        sender = around(inner, time, rate_per_second=5, burst=2)
        deliveries = [await sender.deliver(mail(number=n)) for n in range(5)]
        assert [d.waited for d in deliveries] == pytest.approx([0, 0, 0.2, 0.2, 0.2], abs=1e-4)
        assert time.now == pytest.approx(100.6, abs=1e-4)

    async def test_retries_take_tokens_too(self) -> None:
        inner, time = MemorySender(), Time()
        inner.answer_next(retryable(), retryable(), SENT)
        sender = around(inner, time, rate_per_second=1, burst=1, retries=Schedule((0.0, 0.0, 0.0)))
        delivery = await sender.deliver(mail())
        assert delivery.waited == pytest.approx(2.0)

    async def test_who_waits_is_served_in_the_order_of_coming(self) -> None:
        inner, time = MemorySender(), Time()
        sender = around(inner, time, rate_per_second=10, burst=1)
        await asyncio.gather(*[sender.send(mail(number=n)) for n in range(20)])
        assert [m.message_id for m in inner.messages] == [f"<m{n}@example.org>" for n in range(20)]
        assert time.now == pytest.approx(101.9, abs=1e-4)

    async def test_a_key_has_a_bucket_of_its_own(self) -> None:
        inner, time = MemorySender(), Time()
        sender = around(inner, time, rate_per_second=1, burst=1, rate_limit_key="mail-open-seat")
        await sender.send(mail())
        assert (await sender.deliver(mail(), rate_limit_key="mail")).waited == 0
        assert (await sender.deliver(mail(), rate_limit_key="mail-open-seat")).waited == pytest.approx(1.0)

    async def test_a_burst_of_nothing_lets_one_through(self) -> None:
        assert (await around(MemorySender(), rate_per_second=1, burst=0).deliver(mail())).waited == 0

    async def test_who_gives_up_waiting_takes_no_token(self) -> None:
        inner, forever = MemorySender(), asyncio.Event()

        async def sleep(_seconds: float) -> None:
            await forever.wait()

        time = Time()
        sender = ReliableMailSender(inner, rate_per_second=1, burst=1, monotonic=time, sleep=sleep)
        await sender.send(mail(number=1))
        waiting = asyncio.create_task(sender.send(mail(number=2)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        time.now += 1
        await sender.send(mail(number=3))
        assert [m.message_id for m in inner.messages] == ["<m1@example.org>", "<m3@example.org>"]


def same(**changes: Any) -> MailMessage:
    given: dict[str, Any] = {"dedupe_key": "event-1", "metadata": {"subscriptionId": 7}}
    return mail(**(given | changes))


class TestEqualMails:
    @pytest.mark.clause("NTF-21")
    async def test_calls_under_way_share_one_result(self) -> None:
        inner = Slow()
        sender = around(inner)
        calls = [asyncio.create_task(sender.deliver(same())) for _ in range(5)]
        await until(lambda: inner.messages, "the call")
        inner.gate.set()
        deliveries = await asyncio.gather(*calls)
        assert len(inner.messages) == 1
        assert len({id(delivery) for delivery in deliveries}) == 1

    @pytest.mark.clause("NTF-05", "NTF-21")
    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(lambda: same(metadata={"subscriptionId": 8}), id="another subscription"),
            pytest.param(lambda: same(dedupe_key="event-2"), id="another event"),
            pytest.param(lambda: same(recipients=("bob@example.org",)), id="another recipient"),
        ],
    )
    async def test_others_are_sent_on_their_own(self, other: Callable[[], MailMessage]) -> None:
        inner = Slow()
        inner.gate.set()
        sender = around(inner)
        await asyncio.gather(sender.send(same()), sender.send(other()))
        assert len(inner.messages) == 2

    async def test_nothing_is_shared_without_a_key(self) -> None:
        inner = Slow()
        inner.gate.set()
        sender = around(inner)
        await asyncio.gather(*[sender.send(mail()) for _ in range(3)])
        assert len(inner.messages) == 3

    @pytest.mark.clause("NTF-21")
    async def test_nothing_is_remembered(self) -> None:
        inner = MemorySender()
        sender = around(inner)
        await sender.send(same())
        await sender.send(same())
        assert len(inner.messages) == 2

    async def test_who_joined_may_leave(self) -> None:
        inner = Slow()
        sender = around(inner)
        first, second = (asyncio.create_task(sender.send(same())) for _ in range(2))
        await until(lambda: inner.messages, "the call")
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        inner.gate.set()
        assert (await first).status == "sent"
        assert (len(inner.messages), inner.called_off) == (1, 0)

    async def test_when_the_first_is_called_off_the_others_are_told_that_nobody_knows(self) -> None:
        inner = Slow()
        sender = around(inner)
        first, second = (asyncio.create_task(sender.send(same())) for _ in range(2))
        await until(lambda: inner.messages, "the call")
        first.cancel()
        result = await second
        assert (result.status, result.unknown) == ("retryable", True)
        assert (len(inner.messages), inner.called_off) == (1, 1)

    async def test_the_end_of_all_callers_is_the_calls(self) -> None:
        inner = Slow()
        sender = around(inner)
        calls = [asyncio.create_task(sender.send(same())) for _ in range(2)]
        await until(lambda: inner.messages, "the call")
        for call in calls:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        assert inner.called_off == 1

    async def test_after_a_call_that_was_called_off_the_next_is_made(self) -> None:
        inner = Slow()
        sender = around(inner)
        call = asyncio.create_task(sender.send(same()))
        await until(lambda: inner.messages, "the call")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        inner.gate.set()
        assert (await sender.send(same())).status == "sent"
        assert (len(inner.messages), inner.called_off) == (2, 1)


class TestAsASender(SenderConformance):
    @pytest.fixture
    def bench(self) -> Bench:
        bench = MemoryBench(MemorySender())
        bench.sender = around(bench.memory, retries=Schedule((0.0,)))
        return bench

    async def test_it_is_as_usable_as_the_inner_one(self) -> None:
        inner = MemorySender("relay")
        sender = around(inner)
        assert (sender.name, sender.usable(), await sender.available()) == ("relay", True, True)
        inner.is_available = False
        assert (sender.usable(), await sender.available()) == (False, False)
