"""What every `MailSender` promises. A new one gives a `Bench` and runs `SenderConformance`.

class TestMySender(SenderConformance):
    @pytest.fixture
    async def bench(self) -> AsyncIterator[Bench]: ...
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest
from tests.senders.peers import mail

from homing.senders.mail import MailSender


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
