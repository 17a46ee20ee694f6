"""The lane `mail_outbox`, and the way out for the mails of all lanes."""

from __future__ import annotations

from functools import partial
from typing import Any

from homing.engine.policy import Exponential, Policy
from homing.errors import SettingsError
from homing.lanes.mail_outbox.dispatching import Dispatching
from homing.lanes.mail_outbox.lane import MailOutboxLane, transition
from homing.lanes.mail_outbox.orders import MailOrders
from homing.lanes.mail_outbox.outbox import CHANNEL, MailOutbox
from homing.parts.ground import Ground
from homing.senders.addresses import InvalidAddress, parse_address
from homing.senders.caught_mail import Shelf
from homing.senders.open import open_sender
from homing.settings import Settings


class Mails:
    def __init__(self, ground: Ground) -> None:
        settings = ground.settings
        self.shelf = Shelf(ground.database)
        _check_sender(settings.mail_from)
        self.sender = open_sender(settings.mail_url, ground.database, connections=settings.mail_connections)
        self.outbox = MailOutbox(
            ground.database,
            transition,
            owner=ground.owner,
            lease_seconds=settings.dispatch_lease_seconds,
            max_attempts=settings.dispatch_max_attempts,
            untold=partial(ground.telemetry.attempts_untold, MailOutboxLane.name),
        )
        lane = MailOutboxLane(
            self.outbox,
            self.sender,
            ground.templates(),
            policy=mail_policy(settings),
            lease_seconds=settings.dispatch_lease_seconds,
            default_sender=settings.mail_from,
        )
        self.line = ground.line(
            lane,
            self.outbox,
            CHANNEL,
            concurrency=ground.mails_at_once,
            slots=settings.mail_batch,
            weigh=self.outbox.weigh,
        )
        self.orders = MailOrders(self.outbox, ground.telemetry)
        self.dispatching = Dispatching(
            self.line.deliverer,
            self.outbox,
            max_attempts=settings.dispatch_max_attempts,
            calls_per_minute=settings.dispatch_rate_limit_per_minute,
        )

    def api(self) -> tuple[list[Any], dict[str, Any]]:
        from homing.lanes.mail_outbox.api import InternalDispatch
        from homing.lanes.mail_outbox.api import Mails as MailsApi

        return [InternalDispatch, MailsApi], {
            "dispatching": self.dispatching,
            "mail_orders": self.orders,
            "outbox": self.outbox,
            "shelf": self.shelf,
            "provider": self.sender.name,
        }

    async def close(self) -> None:
        await self.sender.close()


def mail_policy(settings: Settings) -> Policy:
    backoff = Exponential(
        settings.dispatch_backoff_base_seconds,
        settings.dispatch_backoff_max_seconds,
        settings.dispatch_backoff_jitter,
    )
    return Policy(settings.dispatch_max_attempts, backoff)


def _check_sender(mail_from: str) -> None:
    """It would fail every mail that names no sender of its own, for good."""
    try:
        parse_address(mail_from)
    except InvalidAddress as error:
        raise SettingsError(f"HOMING_MAIL_FROM={mail_from!r} cannot be used: {error}") from None
