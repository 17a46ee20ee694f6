"""`memory://`: mails are kept in a list, and what becomes of them can be scripted."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from homing.senders.mail import MailMessage, SendError, SendErrorCode, SendResult, Verdict

_ACCEPTED = Verdict(status="accepted", code=250, enhanced="2.0.0", text="kept in memory")


class MemorySender:
    """Keeps what it is given.

    `answer(address, verdict)` scripts a recipient for good, `answer_next(result)` the next call, in
    the order they were given. A mail is in `messages` whatever became of it, and in `delivered` with
    the recipients that accepted it.
    """

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self.messages: list[MailMessage] = []
        self.delivered: list[tuple[str, MailMessage]] = []
        self.is_available = True
        self.closed = False
        self._verdicts: dict[str, Verdict] = {}
        self._results: deque[SendResult] = deque()

    @property
    def name(self) -> str:
        return self._name

    def answer(self, address: str, verdict: Verdict) -> None:
        self._verdicts[address] = verdict

    def answer_next(self, *results: SendResult) -> None:
        self._results.extend(results)

    async def send(self, message: MailMessage) -> SendResult:
        self.messages.append(message)
        result = self._results.popleft() if self._results else self._judge(message)
        self._keep(message, result)
        return result

    def _judge(self, message: MailMessage) -> SendResult:
        verdicts = {address: self._verdicts.get(address, _ACCEPTED) for address in message.recipients}
        return _result_of(self._name, verdicts)

    def _keep(self, message: MailMessage, result: SendResult) -> None:
        for address in message.recipients:
            verdict = result.verdicts.get(address)
            accepted = verdict.status == "accepted" if verdict is not None else result.status == "sent"
            if accepted:
                self.delivered.append((address, message))

    def usable(self) -> bool:
        return self.is_available

    async def available(self) -> bool:
        return self.is_available

    async def close(self) -> None:
        self.closed = True


def _result_of(provider: str, verdicts: Mapping[str, Verdict]) -> SendResult:
    """The result of a mail of which every recipient has a verdict."""
    statuses = {verdict.status for verdict in verdicts.values()}
    if "deferred" in statuses:
        error = SendError(SendErrorCode.PROVIDER_ERROR, _first_text(verdicts, "deferred"))
        return SendResult(status="retryable", provider=provider, verdicts=verdicts, error=error)
    if "rejected" in statuses:
        error = SendError(SendErrorCode.INVALID_RECIPIENT, _first_text(verdicts, "rejected"))
        return SendResult(status="failed", provider=provider, verdicts=verdicts, error=error)
    return SendResult(status="sent", provider=provider, verdicts=verdicts)


def _first_text(verdicts: Mapping[str, Verdict], status: str) -> str:
    return next(v.text or status for v in verdicts.values() if v.status == status)
