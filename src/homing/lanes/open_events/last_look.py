"""Between the rate limit and the provider: is this mail still wanted?

A claim may wait for its turn for seconds or minutes, and somebody may unsubscribe meanwhile. So the sender
that keeps to the rate has this one inside, which reads the subscription again when the claim is not new.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from homing.engine.model import Monotonic
from homing.errors import DatabaseError
from homing.lanes.open_events.notification import Notification
from homing.lanes.open_events.notifications import Notifications, Standing
from homing.senders.mail import MailMessage, MailSender, SendError, SendErrorCode, SendResult

#: What was read less long ago than this is still so.
_FRESH = 1.0


class LastLook:
    """A sender of mails. One that is no longer wanted as it was comes back as never attempted."""

    def __init__(
        self, inner: MailSender, notifications: Notifications, *, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._inner = inner
        self._notifications = notifications
        self._monotonic = monotonic
        self._expected: dict[str, Notification] = {}

    @property
    def name(self) -> str:
        return self._inner.name

    @contextmanager
    def expecting(self, message: MailMessage, notification: Notification) -> Iterator[None]:
        """While a mail is on its way to here, know what it was made from."""
        self._expected[message.message_id] = notification
        try:
            yield
        finally:
            if self._expected.get(message.message_id) is notification:
                del self._expected[message.message_id]

    async def send(self, message: MailMessage) -> SendResult:
        notification = self._expected.get(message.message_id)
        if notification is None or self._monotonic() - notification.claimed < _FRESH:
            return await self._inner.send(message)
        try:
            standing = await self._notifications.standing(notification.subscription_id)
        except DatabaseError:
            return self._unsent("retryable", "the subscription could not be read again")
        if not _same(standing, notification):
            return self._unsent("failed", "the subscription has changed")
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


def _same(standing: Standing | None, notification: Notification) -> bool:
    read = notification.subscriber
    if standing is None or read is None:
        return False
    return (standing.contact_value, standing.status, standing.metadata) == (
        read.contact_value,
        read.status,
        read.metadata,
    )
