"""Every sender runs the same suite."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.senders.conformance import Bench, SenderConformance
from tests.senders.peers import sender_to

from homing.senders.failover import FailoverSender
from homing.senders.mail import MailSender, SendError, SendErrorCode, SendResult, Verdict
from homing.senders.memory import MemorySender
from homing.testing.smtp_sink import Act, SinkSettings, SmtpSink, Stage, reply


class SmtpBench:
    def __init__(self, sink: SmtpSink, sender: MailSender) -> None:
        self.sender = sender
        self._sink = sink

    def defer(self, address: str) -> None:
        refusals[self._sink.port, address] = reply("450 4.2.1 later")

    def reject(self, address: str) -> None:
        refusals[self._sink.port, address] = reply(f"550 5.1.1 <{address}> is unknown")

    def arrived(self) -> list[tuple[str, str]]:
        return [(who, m.message_id or "") for m in self._sink.mails for who in m.recipients]

    async def go_down(self) -> None:
        await self._sink.close()


#: What a sink says of a recipient, by the sink's port.
refusals: dict[tuple[int, str], Act] = {}


def refusing_sink(*, pipelining: bool) -> SmtpSink:
    def script(stage: Stage, argument: str) -> Act | None:
        return refusals.get((sink.port, argument)) if stage == "rcpt" else None

    sink = SmtpSink(SinkSettings(script=script, pipelining=pipelining))
    return sink


@pytest.fixture(autouse=True)
def _forget_refusals() -> None:
    refusals.clear()


class TestSmtpSender(SenderConformance):
    @pytest.fixture(params=[True, False], ids=["pipelining", "step by step"])
    async def bench(self, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
        async with refusing_sink(pipelining=request.param) as sink:
            sender = sender_to(sink, connections=5)
            yield SmtpBench(sink, sender)
            await sender.close()


class TestFailoverSender(SenderConformance):
    @pytest.fixture
    async def bench(self, unused_tcp_port: int) -> AsyncIterator[Bench]:
        """The first relay is always out."""
        async with refusing_sink(pipelining=True) as sink:
            sender = FailoverSender([sender_to(f"smtp://127.0.0.1:{unused_tcp_port}"), sender_to(sink)])
            yield SmtpBench(sink, sender)
            await sender.close()


class MemoryBench:
    def __init__(self, sender: MemorySender) -> None:
        self.memory = sender
        self.sender: MailSender = sender

    def defer(self, address: str) -> None:
        self.memory.answer(address, Verdict(status="deferred", code=450))

    def reject(self, address: str) -> None:
        self.memory.answer(address, Verdict(status="rejected", code=550))

    def arrived(self) -> list[tuple[str, str]]:
        return [(address, message.message_id) for address, message in self.memory.delivered]

    async def go_down(self) -> None:
        out = SendError(SendErrorCode.NETWORK_ERROR, "out")
        self.memory.answer_next(SendResult(status="retryable", provider="memory", error=out))


class TestMemorySender(SenderConformance):
    @pytest.fixture
    def bench(self) -> Bench:
        return MemoryBench(MemorySender())
