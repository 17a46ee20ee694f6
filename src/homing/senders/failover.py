"""Several senders in order of preference: the next one is asked when a relay as a whole is out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from homing.senders.mail import MailMessage, MailSender, SendError, SendErrorCode, SendResult

_RELAY_IS_OUT = frozenset(
    {SendErrorCode.NETWORK_ERROR, SendErrorCode.UNAUTHORIZED, SendErrorCode.RATE_LIMITED}
)


class FailoverSender:
    """Tries the senders that are available, in order. `provider` of the result names the one used.

    A mail goes on to the next sender only if nobody can have got it from this one: a result that is
    unknown, or that accepted a recipient, stays as it is. A refusal is an answer, and no reason to
    ask elsewhere.
    """

    def __init__(self, senders: Sequence[MailSender]) -> None:
        if not senders:
            raise ValueError("failover needs at least one sender")
        self._senders = tuple(senders)
        self._probes: dict[MailSender, asyncio.Task[bool]] = {}

    @property
    def name(self) -> str:
        return "failover"

    async def send(self, message: MailMessage) -> SendResult:
        best: SendResult | None = None
        for sender in self._senders:
            if not sender.usable():
                self._probe(sender)
                continue
            result = await sender.send(message)
            if not _may_go_elsewhere(result):
                return result
            best = _more_telling(best, result)
        return best if best is not None else self._nobody()

    def _nobody(self) -> SendResult:
        return SendResult(
            status="retryable",
            provider=self.name,
            error=SendError(SendErrorCode.NETWORK_ERROR, "no sender is available at the moment"),
            attempted=False,
        )

    def usable(self) -> bool:
        return any(sender.usable() for sender in self._senders)

    async def available(self) -> bool:
        """A relay that is out is asked again beside the others: its silence holds nobody up."""
        probes = [self._probe(sender) for sender in self._senders if not sender.usable()]
        while probes and not self.usable():
            await asyncio.wait(probes, return_when=asyncio.FIRST_COMPLETED)
            probes = [probe for probe in probes if not probe.done()]
        return self.usable()

    def _probe(self, sender: MailSender) -> asyncio.Task[bool]:
        probe = self._probes.get(sender)
        if probe is None or probe.done():
            probe = self._probes[sender] = asyncio.get_running_loop().create_task(sender.available())
        return probe

    async def close(self) -> None:
        for probe in self._probes.values():
            probe.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)
        for sender in self._senders:
            await sender.close()


def _may_go_elsewhere(result: SendResult) -> bool:
    return (
        result.status == "retryable"
        and not result.unknown
        and result.error is not None
        and result.error.code in _RELAY_IS_OUT
        and all(verdict.status != "accepted" for verdict in result.verdicts.values())
    )


def _more_telling(earlier: SendResult | None, later: SendResult) -> SendResult:
    """A mail that one relay tried counts as tried, also when the next had its breaker open."""
    return earlier if earlier is not None and earlier.attempted and not later.attempted else later
