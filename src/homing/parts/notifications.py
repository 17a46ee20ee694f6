"""The lane `open_events`: fan-out, subscriptions with their links, and the worker that mails."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

from homing.db import Database
from homing.engine.policy import read_milliseconds
from homing.errors import SettingsError
from homing.lanes.mail_outbox.orders import MailOrders, MailRequest, order_of
from homing.lanes.open_events.fanout import Fanout
from homing.lanes.open_events.lane import OpenEventsLane, policy_of_terms, transition
from homing.lanes.open_events.last_look import LastLook
from homing.lanes.open_events.links import Links, open_link_keys
from homing.lanes.open_events.locales import (
    VERIFICATION,
    choose_locale,
    missing_templates,
    supported_locales,
)
from homing.lanes.open_events.notification import CHANNEL, Terms
from homing.lanes.open_events.notifications import Notifications as Rows
from homing.lanes.open_events.payload import DeliveryPolicy, Jobs
from homing.lanes.open_events.subscriptions import Confirmation, Subscriptions
from homing.parts.ground import Ground
from homing.senders.mail import MailSender
from homing.senders.reliable import ReliableMailSender
from homing.settings import Settings

#: A process claims what it can send within about this time; the rest is left to others.
_SECONDS_AHEAD = 10
_RATE_LIMIT_KEY = "mail-open-seat"


class Notifications:
    def __init__(
        self, ground: Ground, database: Database, sender: MailSender, mail_orders: MailOrders
    ) -> None:
        settings = ground.settings
        self._ground, self._settings = ground, settings
        self._mail_orders = mail_orders
        self.database = database
        self.locales = supported_locales(settings.notify_locales)
        self.rows = Rows(
            database,
            transition,
            terms=Terms(ground.owner, settings.notify_lock_ttl_seconds, settings.notify_expire_after_seconds),
            untold=partial(ground.telemetry.attempts_untold, OpenEventsLane.name),
            unread_lock=partial(ground.telemetry.lock_unreadable, OpenEventsLane.name),
        )
        self.lane = self._open_lane(sender)
        self.line = ground.line(
            self.lane,
            self.rows,
            CHANNEL,
            concurrency=min(ground.mails_at_once, _at_once(settings)),
            slots=_slots(settings),
            database=database,
        )
        self.fanout = Fanout(database, ground.telemetry)

    @cached_property
    def links(self) -> Links:
        settings = self._settings
        return Links(
            lambda: open_link_keys(settings.encryption_key, settings.database_url),
            lambda: self._ground.base_url,
        )

    def _open_lane(self, sender: MailSender) -> OpenEventsLane:
        settings = self._settings
        last_look = LastLook(sender, self.rows)
        schedule = read_milliseconds(settings.notify_retry_schedule_ms)
        return OpenEventsLane(
            self.rows,
            self._reliable(last_look),
            last_look,
            self._ground.templates(),
            Jobs(
                self.links,
                DeliveryPolicy(
                    settings.notify_max_attempts,
                    settings.notify_lock_ttl_seconds,
                    tuple(round(wait * 1000) for wait in schedule.waits),
                ),
                locales=self.locales,
                default_locale=settings.default_locale,
                template_version=settings.notify_template_version,
                time_zone=settings.notify_time_zone,
            ),
            policy=policy_of_terms(settings.notify_max_attempts, schedule, settings.notify_lock_ttl_seconds),
            lock_ttl_seconds=settings.notify_lock_ttl_seconds,
            default_sender=settings.mail_from,
            time_zone=settings.notify_time_zone,
        )

    def _reliable(self, sender: MailSender) -> ReliableMailSender:
        settings = self._settings
        return ReliableMailSender(
            sender,
            retries=read_milliseconds(settings.notify_send_retries_ms),
            jitter=settings.notify_send_jitter,
            rate_per_second=settings.notify_rate_per_second,
            burst=settings.notify_rate_burst,
            rate_limit_key=_RATE_LIMIT_KEY,
            on_crash=lambda bug: self._ground.telemetry.crashed("mail.crashed", bug, lane="open_events"),
        )

    # ── in ───────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(
            self.database,
            self.links,
            send_confirmation=self._send_confirmation,
            clock=lambda: datetime.now(UTC),
        )

    async def _send_confirmation(self, wanted: Confirmation) -> None:
        """A mail like any other: by the outbox, which retries it and shows what became of it."""
        request = MailRequest(
            to=[wanted.email],
            template=VERIFICATION,
            locale=choose_locale(wanted.locale, self.locales, self._settings.default_locale),
            variables={
                "verificationUrl": wanted.url,
                "expirationMinutes": wanted.expiration_minutes,
                "contactValue": wanted.email,
            },
            idempotencyKey=wanted.key,
            sendAt=wanted.send_at,
        )
        await self._mail_orders.place(order_of(request))

    def api(self) -> tuple[list[Any], dict[str, Any]]:
        from homing.lanes.open_events.api import ROUTES
        from homing.lanes.open_events.pages import PageTerms, subscriber_pages
        from homing.lanes.open_events.subscription_look import SubscriptionLook

        settings = self._settings
        return [*ROUTES, subscriber_pages()], {
            "fanout": self.fanout,
            "subscriptions": self.subscriptions,
            "subscription_look": SubscriptionLook(self.database, self.subscriptions),
            "notifications": self.rows,
            "page_terms": PageTerms(self.locales, settings.default_locale, settings.notify_time_zone),
        }

    def check_templates(self) -> None:
        """Raise unless every locale has every template: who writes mails must have the words."""
        version = self._settings.notify_template_version
        if missing := missing_templates(self._ground.templates(), self.locales, version):
            raise SettingsError(
                f"HOMING_NOTIFY_LOCALES and HOMING_NOTIFY_TEMPLATE_VERSION ask for what is missing in "
                f"{self._settings.template_dir}: {'; '.join(missing)}"
            )


def _at_once(settings: Settings) -> int:
    """Who waits for the rate limit is not given back by a stop, so few do; it is enough for the rate."""
    if not settings.notify_rate_per_second:
        return settings.notify_batch
    return settings.notify_rate_burst + int(2 * settings.notify_rate_per_second)


def _slots(settings: Settings) -> int:
    """What waits for the rate limit is better left to a worker that has nothing to do."""
    if not settings.notify_rate_per_second:
        return settings.notify_batch
    ahead = settings.notify_rate_burst + settings.notify_rate_per_second * _SECONDS_AHEAD
    return max(1, min(settings.notify_batch, int(ahead)))
