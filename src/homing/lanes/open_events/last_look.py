"""Between the rate limit and the provider: is this mail still to be sent?

A claim may wait for its turn for seconds or minutes. Somebody may unsubscribe meanwhile, the window may
close, another worker may take the row over. So the sender that keeps to the rate has this one inside, which
reads the row, its event and its subscription again when the claim is not new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from homing.engine.model import Claim, Monotonic, Outcome
from homing.errors import DatabaseError
from homing.lanes.open_events.notification import Notification
from homing.lanes.open_events.notifications import Notifications, Standing
from homing.senders.mail import MailMessage, MailSender, SendError, SendErrorCode, SendResult

#: What was read less long ago than this is still so. At full speed a claim is sent within it.
_FRESH = 0.2

#: What speaks against sending, now that a row stands so; None when nothing does.
Objection: TypeAlias = Callable[[Standing | None], Outcome | None]


class Look:
    """One mail on its way, and what was found when it was looked at again."""

    __slots__ = ("claim", "found", "objection")

    def __init__(self, claim: Claim[Notification], objection: Objection) -> None:
        self.claim = claim
        self.objection = objection
        self.found: Outcome | None = None


class LastLook:
    """A sender of mails. One that is no longer to be sent as it is comes back as never attempted."""

    def __init__(
        self, inner: MailSender, notifications: Notifications, *, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._inner = inner
        self._notifications = notifications
        self._monotonic = monotonic
        self._expected: dict[str, Look] = {}

    @property
    def name(self) -> str:
        return self._inner.name

    @contextmanager
    def expecting(
        self, message: MailMessage, claim: Claim[Notification], objection: Objection
    ) -> Iterator[Look]:
        """While a mail is on its way to here, know what it was made from."""
        look = self._expected[message.message_id] = Look(claim, objection)
        try:
            yield look
        finally:
            if self._expected.get(message.message_id) is look:
                del self._expected[message.message_id]

    async def send(self, message: MailMessage) -> SendResult:
        look = self._expected.get(message.message_id)
        if look is None or self._monotonic() - look.claim.item.claimed < _FRESH:
            return await self._inner.send(message)
        try:
            standing = await self._notifications.standing(look.claim.id)
        except DatabaseError:
            return self._unsent("retryable", "the notification could not be read again")
        look.found = look.objection(standing)
        if look.found is not None:
            return self._unsent("failed", "the notification or its subscription has changed")
        return await self._inner.send(message)

    def _unsent(self, status: str, why: str) -> SendResult:
        error = SendError(SendErrorCode.UNKNOWN, why)
        if status == "retryable":
            return SendResult(status="retryable", provider=self.name, error=error, attempted=False)
        return SendResult(status="failed", provider=self.name, error=error, attempted=False)

    def usable(self) -> bool:
        return self._inner.usable()

    async def available(self) -> bool:
        return await self._inner.available()

    async def close(self) -> None:
        await self._inner.close()
