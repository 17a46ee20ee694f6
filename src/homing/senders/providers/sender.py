"""A `MailSender` by way of a provider's HTTP API, whichever it is.

| what happened | status | error | attempted | unknown |
|---|---|---|---|---|
| no connection, TLS failed, time-out before the last byte | retryable | network_error | yes | |
| no complete answer after the last byte, or one that is none | retryable | unknown | yes | yes |
| the breaker is open, or the sender is closed | retryable | network_error | no | |
| the provider asked everybody to wait, and the time is not over | retryable | rate_limited | no | |
| it cannot be assembled, or is too large | failed | validation_error | yes | |
| anything the provider answers | see `judgement`, and each provider | | yes | |

The breaker opens after five failures in a row that concern the provider as a whole: network, 5xx, 429
without a time to wait for, and `unauthorized`. The latter too, because a key that is refused is refused
for every mail, and a lane that cannot send had better claim nothing. The probe is a request to send with
nothing in it: it needs no other right than sending does, and can never become a mail.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_network
from typing import Protocol

from homing.engine.model import Monotonic
from homing.senders.addresses import InvalidAddress, envelope_address, needs_smtputf8
from homing.senders.breaker import Breaker
from homing.senders.egress import EgressGuard
from homing.senders.mail import MailMessage, SendError, SendErrorCode, SendResult, Verdict
from homing.senders.mime import Unassemblable
from homing.senders.providers.fields import hides_all
from homing.senders.providers.judgement import Accepted, Refusal, invalid_mail, unclear
from homing.senders.smtp_reply import clean_text
from homing.senders.webhook import WebhookRequest, WebhookResult, WebhookSender, tls_context
from homing.senders.webhook_dns import Lookup

#: Nobody is believed who wants us to wait for longer; then one mail asks again.
_LONGEST_HOLD = 300.0
#: Timers fire a little early, and who was told to wait two seconds must not come too soon by that.
_NEARLY = 0.02
#: Who gets the URL of a provider is who runs Homing, so it may lead anywhere but to metadata services.
_ANYWHERE = tuple(ip_network(everything) for everything in ("0.0.0.0/0", "::/0"))
_ACCEPTED = Verdict(status="accepted")


class Api(Protocol):
    """A provider: how it is asked, and what its answers mean."""

    @property
    def scheme(self) -> str:
        """What the URL begins with; also the sender's name."""

    @property
    def place(self) -> str:
        """Which of several accounts this is, where that is no secret; or empty."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be repeated."""

    @property
    def most_recipients(self) -> int:
        """Addresses that one request may have."""

    @property
    def most_bytes(self) -> int:
        """Bytes that the body of a request may have."""

    @property
    def shows_recipients(self) -> bool:
        """Whether it makes To and Cc of the addresses that it sends to."""

    async def request(self, message: MailMessage, recipients: Sequence[str]) -> WebhookRequest | Refusal:
        """Ask for a mail; raises `Unassemblable` or `InvalidAddress` for what cannot be one."""

    async def probe(self) -> WebhookRequest | Refusal:
        """Ask for nothing, in a way that is refused by who takes our key."""

    def judge(self, answer: WebhookResult, recipients: Sequence[str], now: datetime) -> Accepted | Refusal:
        """What an answer means for these recipients."""


class ApiSender:
    """Sends by one provider. Make it and use it in one event loop."""

    def __init__(
        self,
        api: Api,
        *,
        connections: int = 20,
        cafile: str | None = None,
        name: str | None = None,
        breaker: Breaker | None = None,
        monotonic: Monotonic = time.monotonic,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        lookup: Lookup | None = None,
    ) -> None:
        self._api = api
        self._name = api.scheme if name is None else name
        self._monotonic = monotonic
        self._clock = clock
        self._breaker = breaker if breaker is not None else Breaker(monotonic)
        # Who waits for a connection does not use up the time for a request.
        self._slots = asyncio.Semaphore(connections)
        self._http = WebhookSender(
            EgressGuard(_ANYWHERE, allow_http=True),
            connections_per_host=connections,
            connections=connections,
            ssl_context=_context(cafile),
            monotonic=monotonic,
            clock=clock,
            lookup=lookup,
        )
        self._held_until = 0.0
        self._trouble = ""
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<ApiSender {self._name}>"

    async def send(self, message: MailMessage) -> SendResult:
        if not self.usable() and not await self.available():
            return self._result((), self._not_now())
        recipients, refused = _recipients(message.recipients)
        try:
            results = [await self._deliver(message, group) for group in self._groups(message, recipients)]
        except (Unassemblable, InvalidAddress) as error:
            return self._result((), invalid_mail(str(error)))
        if refused or not results:
            results.append(self._unaddressed(refused))
        return results[0] if len(results) == 1 else _summed(results)

    def usable(self) -> bool:
        return self._breaker.closed and self._held() <= 0 and not self._closed

    async def available(self) -> bool:
        if self._held() > 0 or self._closed:
            return False
        return await self._breaker.available(self._probe)

    async def check(self) -> str | None:
        """Ask without sending: what is wrong, or None."""
        judged = await self._ask_nothing()
        return judged.message if isinstance(judged, Refusal) and judged.retryable else None

    async def close(self) -> None:
        self._closed = True
        await self._http.close()

    # One mail, in as few requests as may be

    def _groups(self, message: MailMessage, recipients: Sequence[str]) -> list[Sequence[str]]:
        size = self._api.most_recipients
        if len(recipients) > 1 and self._api.shows_recipients and hides_all(message, recipients):
            size = 1
        return [recipients[start : start + size] for start in range(0, len(recipients), size)]

    async def _deliver(self, message: MailMessage, group: Sequence[str]) -> SendResult:
        judged = await self._ask(message, group)
        if len(group) > 1 and isinstance(judged, Refusal) and judged.code is SendErrorCode.INVALID_RECIPIENT:
            return await self._deliver_without(message, group, judged)
        return self._result(group, judged)

    async def _deliver_without(
        self, message: MailMessage, group: Sequence[str], refusal: Refusal
    ) -> SendResult:
        """One bad address made it refuse the mail for all. Nobody got it, so the others are tried anew."""
        bad = [who for who in group if who in refusal.recipients]
        good = [who for who in group if who not in refusal.recipients]
        if bad and good:
            return _summed([self._result(bad, refusal), await self._deliver(message, good)])
        return _summed([self._result([who], await self._ask(message, [who])) for who in group])

    async def _ask(self, message: MailMessage, group: Sequence[str]) -> Accepted | Refusal:
        async with self._slots:
            if not self.usable():
                # That was found out by others, while this one waited for a connection.
                return self._not_now()
            judged = await self._exchange(await self._api.request(message, group), group)
        self._learn(judged)
        return judged

    async def _exchange(self, request: WebhookRequest | Refusal, group: Sequence[str]) -> Accepted | Refusal:
        if isinstance(request, Refusal):
            return request
        if len(request.body) > self._api.most_bytes:
            return invalid_mail(f"it is larger than the {self._api.most_bytes / 1e6:g} MB that may be sent")
        answer = await self._http.send(request)
        if answer.status is not None:
            return self._judge(answer, group)
        if answer.unknown:
            return unclear(f"{answer.message}, after the last byte")
        return Refusal(code=SendErrorCode.NETWORK_ERROR, message=answer.message, retryable=True)

    def _judge(self, answer: WebhookResult, group: Sequence[str]) -> Accepted | Refusal:
        """Whatever stands in an answer, the mail it is about stays in somebody's hands."""
        try:
            return self._api.judge(answer, group, self._clock())
        except Exception as bug:  # noqa: BLE001 - what others write must not decide what our code survives
            return unclear(f"HTTP {answer.status}, with an answer that cannot be read ({type(bug).__name__})")

    # What is known of the provider

    def _learn(self, judged: Accepted | Refusal) -> None:
        if isinstance(judged, Accepted) or not judged.retryable:
            # Also where it refused a mail: it is there, and looks at what it gets.
            self._breaker.succeeded()
            return
        self._trouble = judged.message
        if judged.holds and judged.wait is not None:
            self._held_until = self._monotonic() + min(judged.wait, _LONGEST_HOLD)
        if not (judged.holds and judged.code is SendErrorCode.RATE_LIMITED):
            self._breaker.failed()

    def _held(self) -> float:
        """Seconds for which we were asked to wait, of those that are left."""
        return self._held_until - self._monotonic() - _NEARLY if self._held_until else 0.0

    def _not_now(self) -> Refusal:
        if (wait := self._held()) > 0:
            message = "the provider asked us to wait"
            return Refusal(
                code=SendErrorCode.RATE_LIMITED, message=message, retryable=True, wait=wait, attempted=False
            )
        message = f"the provider is left alone after failures in a row; the last: {self._trouble}"
        if self._closed:
            message = "the sender is closed"
        return Refusal(code=SendErrorCode.NETWORK_ERROR, message=message, retryable=True, attempted=False)

    async def _probe(self) -> bool:
        judged = await self._ask_nothing()
        if isinstance(judged, Refusal) and judged.retryable:
            self._trouble = judged.message
            return False
        return True

    async def _ask_nothing(self) -> Accepted | Refusal:
        return await self._exchange(await self._api.probe(), ())

    # Results

    def _result(self, group: Sequence[str], judged: Accepted | Refusal) -> SendResult:
        if isinstance(judged, Accepted):
            return self._accepted(group, judged)
        message = self._clean(judged.message)
        return SendResult(
            status="retryable" if judged.retryable else "failed",
            provider=self._name,
            verdicts=_verdicts(group, judged, message),
            error=SendError(judged.code, message),
            retry_after=judged.wait,
            attempted=judged.attempted,
            unknown=judged.unknown,
        )

    def _accepted(self, group: Sequence[str], accepted: Accepted) -> SendResult:
        sent = SendResult(
            status="sent",
            provider=self._name,
            provider_message_id=accepted.message_id,
            verdicts=dict.fromkeys([who for who in group if who not in accepted.refused], _ACCEPTED),
        )
        if not accepted.refused:
            return sent
        refusal = Refusal(code=SendErrorCode.INVALID_RECIPIENT, message=accepted.reason)
        return _summed([sent, self._result(accepted.refused, refusal)])

    def _unaddressed(self, refused: dict[str, Verdict]) -> SendResult:
        if not refused:
            return self._result((), invalid_mail("there is no recipient"))
        text = next(iter(refused.values())).text or ""
        error = SendError(SendErrorCode.INVALID_RECIPIENT, text)
        return SendResult(status="failed", provider=self._name, verdicts=refused, error=error)

    def _clean(self, message: str) -> str:
        for secret in self._api.secrets:
            message = message.replace(secret, "[redacted]")
        return clean_text(message)


@lru_cache(maxsize=8)
def _context(cafile: str | None) -> ssl.SSLContext:
    """To read all authorities of a system takes 20 ms, and they are the same for every provider."""
    return tls_context(cafile)


def _recipients(addresses: Sequence[str]) -> tuple[list[str], dict[str, Verdict]]:
    """Who can be written to, and what is wrong with the others; one bad address stops nobody else."""
    good: list[str] = []
    refused: dict[str, Verdict] = {}
    for address in dict.fromkeys(addresses):
        try:
            envelope_address(address)
        except InvalidAddress as error:
            refused[address] = Verdict(status="rejected", text=str(error))
            continue
        if needs_smtputf8(address):
            refused[address] = Verdict(status="rejected", text="providers take only ASCII before the @")
        else:
            good.append(address)
    return good, refused


def _verdicts(group: Sequence[str], refusal: Refusal, text: str) -> dict[str, Verdict]:
    if refusal.unknown or not refusal.attempted or refusal.code is SendErrorCode.NETWORK_ERROR:
        # Nothing was said of anybody.
        return {}
    return dict.fromkeys(group, Verdict(status="deferred" if refusal.retryable else "rejected", text=text))


def _summed(results: Sequence[SendResult]) -> SendResult:
    """Several requests for one mail, as if they had been one."""
    errors = [result for result in results if result.error is not None]
    # What keeps the mail open is what the lane has to know.
    telling = next(
        (result for result in errors if result.status == "retryable"), errors[0] if errors else None
    )
    waits = [result.retry_after for result in results if result.retry_after is not None]
    ids = (result.provider_message_id for result in results if result.provider_message_id is not None)
    return SendResult(
        status="sent" if telling is None else telling.status,
        provider=results[0].provider,
        provider_message_id=next(ids, None),
        verdicts={who: verdict for result in results for who, verdict in result.verdicts.items()},
        error=None if telling is None else telling.error,
        retry_after=max(waits, default=None),
        attempted=any(result.attempted for result in results),
        unknown=any(result.unknown for result in results),
    )
