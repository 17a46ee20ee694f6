"""The lane `email_log`: a scheduler that publishes, a sender that a queue feeds, the broker between."""

from __future__ import annotations

from functools import partial
from typing import Any

from homing.brokers.address import identity
from homing.brokers.open import open_broker
from homing.engine.policy import Policy, read_schedule
from homing.lanes.email_log.consuming import Consuming
from homing.lanes.email_log.email import Terms
from homing.lanes.email_log.lane import SendLane, transition
from homing.lanes.email_log.log import CHANNEL, EmailLog
from homing.lanes.email_log.orders import EmailOrders
from homing.lanes.email_log.queues import queues_of
from homing.lanes.email_log.schedule.due import DueEmails
from homing.lanes.email_log.schedule.lane import Obituaries, ScheduleLane
from homing.lanes.email_log.schedule.queue_watch import QueueWatch
from homing.lines import Feed, Line
from homing.parts.ground import Ground
from homing.senders.mail import MailSender
from homing.senders.mailing import Mailing
from homing.settings import Settings

#: Publishes are confirmed together, so as many wait for it as one statement can settle.
_PUBLISHES_AT_ONCE = 500
#: What waits in memory is gone with its process, and never waits for long.
_LOST_IN_MEMORY = 60.0


class Emails:
    def __init__(self, ground: Ground, sender: MailSender) -> None:
        settings = ground.settings
        self._ground = ground
        self.broker = open_broker(settings.email_broker_url or settings.broker_url, ground.telemetry)
        self._in_memory = self.broker.name == "memory"
        self.queues = queues_of(
            settings.email_queue_prefix,
            dots=self.broker.name != "sqs",
            kind=settings.email_queue_type,
        )
        #: By which processes, and sightings of the queue, know whether they mean the same one.
        self.place = f"{identity(settings.email_broker_url or settings.broker_url)} {self.queues.send.name}"
        self._terms = self._terms_of(settings)
        self.schedule = self._schedule_line(settings)
        self.log = EmailLog(
            ground.database,
            partial(transition, settings.email_max_attempts),
            terms=self._terms,
            telemetry=ground.telemetry,
        )
        self.send = self._send_line(settings, sender)
        self.orders = EmailOrders(
            self.log, self.schedule.deliverer, ground.telemetry, publishes=not self._in_memory
        )

    def _terms_of(self, settings: Settings) -> Terms:
        lost_after = settings.email_lost_after_seconds
        return Terms(
            owner=self._ground.owner,
            lease_seconds=settings.email_lease_seconds,
            max_attempts=settings.email_max_attempts,
            publish_new=settings.email_publish_new,
            lost_after_seconds=min(lost_after, _LOST_IN_MEMORY) if self._in_memory else lost_after,
            queue=self.place,
        )

    def _schedule_line(self, settings: Settings) -> Line:
        ground, terms = self._ground, self._terms
        external = not self._in_memory
        self.due = DueEmails(
            ground.database,
            terms=terms,
            telemetry=ground.telemetry,
            tell=Obituaries(self.broker, self.queues) if external else None,
            watch=QueueWatch(self.broker, self.queues.send, lease_seconds=terms.lease_seconds)
            if external
            else None,
        )
        lane = ScheduleLane(
            self.due, self.broker, self.queues, ground.telemetry, lease_seconds=terms.lease_seconds
        )
        interval = settings.email_retry_interval_seconds
        return ground.line(
            lane,
            self.due,
            CHANNEL,
            concurrency=_PUBLISHES_AT_ONCE,
            slots=_PUBLISHES_AT_ONCE,
            # With a broker in memory, who creates an email leaves it to the process that sends.
            longest_pause=min(interval, 1.0) if self._in_memory else interval,
        )

    def _send_line(self, settings: Settings, sender: MailSender) -> Line:
        ground, prefetch = self._ground, settings.email_prefetch
        lane = SendLane(
            self.log,
            Mailing(sender, ground.templates(), settings.mail_from),
            policy=email_policy(settings),
            lease_seconds=settings.email_lease_seconds,
        )
        at_once = ground.mails_at_once
        line = ground.line(
            lane,
            self.log,
            CHANNEL,
            concurrency=at_once,
            slots=prefetch,
            weigh=self.log.weigh,
            counted_as="email_log",
        )
        consuming = Consuming(lane, line.deliverer, ground.telemetry)
        line.open_feed = lambda: Feed(
            self.broker,
            self.queues.send,
            consuming,
            ground.telemetry,
            prefetch=prefetch,
            may_send=lane.usable,
        )
        return line

    def api(self) -> tuple[list[Any], dict[str, Any]]:
        from homing.lanes.email_log.api import Emails as EmailsApi

        return [EmailsApi], {
            "emails": self.log,
            "email_orders": self.orders,
        }

    async def close(self) -> None:
        await self.broker.close()


def email_policy(settings: Settings) -> Policy:
    return Policy(settings.email_max_attempts, read_schedule(settings.email_backoff_schedule))
