"""A sender around another one: it tries again at once, keeps to a rate, and sends equal mails once.

    sender = ReliableMailSender(inner, retries=Schedule((0.0, 2.0, 7.0)), rate_per_second=5, burst=10)
    result = await sender.send(message)

* **Tries.** As many as `retries` has entries, with the waits between them prolonged by up to `jitter`
  of themselves. Only what may be over in seconds is tried again (`mail.is_retryable`), and only for
  the recipients that are still open. Who is asked to wait for longer than `longest_wait` hands the
  result out instead: the queue outside waits better than a slot in here.
* **Rate.** Every call of the inner sender takes a token from the bucket of its key, retries included.
  Who finds none waits in line.
* **Equal mails.** Calls under way with the same key (`MailMessage.merge_key`) and the same recipients
  share one result. Nothing is remembered afterwards. When the first of them is called off, the others
  are told that nobody knows (`unknown`).

Nothing is raised, whatever the inner sender does (NTF-20).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from homing.engine.model import Monotonic, Rand
from homing.engine.policy import Schedule
from homing.engine.token_bucket import TokenBucket
from homing.senders.mail import (
    MailMessage,
    MailSender,
    SendError,
    SendErrorCode,
    SendResult,
    Verdict,
    is_retryable,
)

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
#: Told of an exception that the inner sender should not have raised.
OnCrash: TypeAlias = Callable[[Exception], None]
_Key: TypeAlias = tuple[str, str, tuple[str, ...]]

#: The specification's waits: tried at once, after two seconds, and the third try is the last.
THREE_TRIES = Schedule((0.0, 2.0, 7.0))
#: Less than this may not move a clock at all, and what is left of a token by rounding is less.
_SHORTEST_SLEEP = 1e-6


class Delivery(Struct, frozen=True, gc=False):
    """What became of one mail, and of each try on the way."""

    result: SendResult
    #: In their order; the last one that was made at all is mostly the result.
    attempts: tuple[SendResult, ...]
    #: Seconds spent in the line for tokens.
    waited: float = 0.0


class ReliableMailSender:
    """Make it and use it in one event loop. `rate_per_second=0` is no limit."""

    def __init__(
        self,
        inner: MailSender,
        *,
        retries: Schedule = THREE_TRIES,
        jitter: float = 0.25,
        rate_per_second: float = 5.0,
        burst: int = 10,
        rate_limit_key: str = "mail",
        longest_wait: float = 10.0,
        rand: Rand = random.random,
        monotonic: Monotonic = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        on_crash: OnCrash | None = None,
    ) -> None:
        self._inner = inner
        self._retries = retries
        self._jitter = jitter
        self._rate, self._burst = rate_per_second, max(1, burst)
        self._default_key = rate_limit_key
        self._longest_wait = longest_wait
        self._rand = rand
        self._monotonic = monotonic
        self._sleep = sleep
        self._on_crash = on_crash
        self._lines: dict[str, _Line] = {}
        self._flights: dict[_Key, _Flight] = {}

    @property
    def name(self) -> str:
        return self._inner.name

    async def send(self, message: MailMessage, *, rate_limit_key: str | None = None) -> SendResult:
        return (await self.deliver(message, rate_limit_key=rate_limit_key)).result

    async def deliver(self, message: MailMessage, *, rate_limit_key: str | None = None) -> Delivery:
        """As `send`, with all that was tried."""
        limit = self._default_key if rate_limit_key is None else rate_limit_key
        merge_key = message.merge_key
        if merge_key is None:
            return await self._try(message, limit)
        key = (merge_key, limit, message.recipients)
        if (flight := self._flights.get(key)) is not None:
            return await flight.join()
        flight = self._flights[key] = _Flight()
        # This is what the others are told when whoever began is called off: nobody knows how far it had come.
        delivery = Delivery(self._unknown("the call was given up"), ())
        try:
            delivery = await self._try(message, limit)
        finally:
            del self._flights[key]
            flight.land(delivery)
        return delivery

    def usable(self) -> bool:
        return self._inner.usable()

    async def available(self) -> bool:
        return await self._inner.available()

    async def close(self) -> None:
        await self._inner.close()

    # Tries

    async def _try(self, message: MailMessage, limit: str) -> Delivery:
        waited = await self._line(limit).turn() if self._rate else 0.0
        result = await self._once(message)
        if result.status != "retryable":
            return Delivery(result, (result,), waited)
        return await self._try_again(message, limit, [result], waited)

    async def _try_again(
        self, message: MailMessage, limit: str, attempts: list[SendResult], waited: float
    ) -> Delivery:
        while (wait := self._wait_after(attempts)) is not None:
            message = _rest_of(message, attempts[-1])
            await self._sleep(wait)
            if self._rate:
                waited += await self._line(limit).turn()
            attempts.append(await self._once(message))
        return Delivery(_summed(attempts), tuple(attempts), waited)

    async def _once(self, message: MailMessage) -> SendResult:
        try:
            return await self._inner.send(message)
        except Exception as bug:  # noqa: BLE001 - a result is a value (NTF-20), also where a sender has a bug
            if self._on_crash is not None:
                self._on_crash(bug)
            return self._unknown(f"the sender crashed: {type(bug).__name__}")

    def _unknown(self, message: str) -> SendResult:
        error = SendError(SendErrorCode.UNKNOWN, message)
        return SendResult(status="retryable", provider=self._inner.name, error=error, unknown=True)

    def _wait_after(self, attempts: list[SendResult]) -> float | None:
        """Seconds until the next try; None when the last one stands."""
        last, tries = attempts[-1], len(attempts)
        if tries >= len(self._retries.waits) or not last.attempted or not is_retryable(last):
            return None
        if last.unknown:
            # It may have been taken, and each further try may be a double: that is for the queue to weigh.
            return None
        wait = max(self._retries(tries, self._rand), last.retry_after or 0.0)
        if last.retry_after is not None and last.retry_after > self._longest_wait:
            return None
        return wait * (1 + self._jitter * self._rand())

    def _line(self, key: str) -> _Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(
                TokenBucket(self._rate, self._burst, self._monotonic), self._monotonic, self._sleep
            )
        return line


class _Line:
    """Those who wait for a token of one bucket, in the order of their coming."""

    def __init__(self, bucket: TokenBucket, monotonic: Monotonic, sleep: Sleep) -> None:
        self._bucket = bucket
        self._monotonic = monotonic
        self._sleep = sleep
        self._first = asyncio.Lock()
        self._waiting = 0

    async def turn(self) -> float:
        """Take a token; the seconds that it took."""
        # The lock alone would let somebody pass between its release and the next one's waking.
        if not self._waiting and not self._bucket.take():
            return 0.0
        began = self._monotonic()
        self._waiting += 1
        try:
            async with self._first:
                while wait := self._bucket.take():
                    await self._sleep(max(wait, _SHORTEST_SLEEP))
        finally:
            self._waiting -= 1
        return self._monotonic() - began


class _Flight:
    """One call, made by the first who asked; the others wait for what becomes of it.

    It runs in the task of the first: one of its own for each mail would cost as much as rendering it.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[Delivery]] = []

    async def join(self) -> Delivery:
        waiter: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return await waiter

    def land(self, delivery: Delivery) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(delivery)


def _rest_of(message: MailMessage, result: SendResult) -> MailMessage:
    """The mail for those who have neither got it nor been refused."""
    settled = {who for who, verdict in result.verdicts.items() if verdict.status != "deferred"}
    if not settled:
        return message
    return replace(message, recipients=tuple(who for who in message.recipients if who not in settled))


def _summed(attempts: list[SendResult]) -> SendResult:
    """What all tries together say: of each recipient the last verdict, and of the mail its worst end."""
    if len(attempts) == 1:
        return attempts[0]
    # A try that was never made says less than the one before it.
    last = next((attempt for attempt in reversed(attempts) if attempt.attempted), attempts[-1])
    verdicts: Mapping[str, Verdict] = {who: v for one in attempts for who, v in one.verdicts.items()}
    unknown = any(attempt.unknown for attempt in attempts) and last.status != "sent"
    refused = any(verdict.status == "rejected" for verdict in verdicts.values())
    if last.status == "sent" and refused:
        error = next(one.error for one in reversed(attempts) if one.error is not None)
        return replace(last, status="failed", verdicts=verdicts, error=error)
    return replace(last, verdicts=verdicts, unknown=unknown)
