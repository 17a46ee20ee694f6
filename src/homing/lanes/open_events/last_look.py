"""Between the rate limit and the provider: is this mail still to be sent?

A claim may wait for its turn for seconds or minutes. Somebody may unsubscribe meanwhile, the window may
close, another worker may take the row over. So the sender that keeps to the rate has this one inside, which
reads the row, its event and its subscription again when the claim is not new.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self, TypeAlias

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
    """One mail on its way, and what was found when it was looked at again. It lasts as long as its block.

    Not by `contextmanager`, which takes three times as long, for every mail.
    """

    __slots__ = ("_expected", "_id", "claim", "found", "objection")

    def __init__(
        self, expected: dict[str, Look], id: str, claim: Claim[Notification], objection: Objection
    ) -> None:
        self._expected = expected
        self._id = id
        self.claim = claim
        self.objection = objection
        self.found: Outcome | None = None

    def __enter__(self) -> Self:
        self._expected[self._id] = self
        return self

    def __exit__(self, *_error: object) -> None:
        if self._expected.get(self._id) is self:
            del self._expected[self._id]


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

    def expecting(self, message: MailMessage, claim: Claim[Notification], objection: Objection) -> Look:
        """While a mail is on its way to here, know what it was made from."""
        return Look(self._expected, message.message_id, claim, objection)

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
