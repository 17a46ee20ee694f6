"""Alerts to people: what is looked at, whom they go to, and the loop."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from msgspec.structs import replace

from homing.alerts.deaths import UNCLASSIFIED, VARIOUS, Feed, FoundDeaths, NotedDeaths
from homing.alerts.desk import Alerts as Desk
from homing.alerts.eyes import (
    BacklogEye,
    DeadEye,
    Eye,
    IdleEye,
    OldestDue,
    TargetEye,
    WorkerEye,
)
from homing.alerts.post import PACKAGED_TEMPLATES, Post, Ways, Webhook
from homing.alerts.rules import Terms
from homing.alerts.store import AlertStore
from homing.alerts.watch import Watch
from homing.db import Database
from homing.desk.desk import Desk as MessageDesk
from homing.errors import InvalidRequest, SettingsError
from homing.lanes.dispatch_jobs.tsid import number_of, text_of
from homing.messages.model import HowMany, LaneName, Wanted
from homing.parts.emails import Emails
from homing.parts.ground import Ground
from homing.parts.jobs import Jobs
from homing.parts.mails import Mails
from homing.parts.notifications import Notifications
from homing.senders.drafts import checked_recipients
from homing.senders.egress import EgressGuard
from homing.settings import Settings
from homing.workers.fleet import Fleet

#: Words that stand for several, and how one looks that messages have to the letter, neither cut nor mended.
_MANY_WORDS: Final = frozenset({UNCLASSIFIED, VARIOUS, "None"})
_OWN_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{1,79}")
#: So many are counted, within so many seconds; when that is not enough some are taken to be left.
_MOST_COUNTED: Final = 10_000
_PATIENCE: Final = 0.1


class Alerts:
    def __init__(
        self,
        ground: Ground,
        *,
        mails: Mails,
        jobs: Jobs,
        emails: Emails,
        notifications: Notifications,
        fleet: Fleet,
        desk: MessageDesk,
    ) -> None:
        settings = ground.settings
        self._ground, self._terms = ground, terms_of(settings)
        self._mails, self._jobs, self._emails, self._notifications = mails, jobs, emails, notifications
        self._fleet, self._messages = fleet, desk
        self.ways = ways_of(settings, jobs.egress)
        self._store = AlertStore(ground.database)
        post = Post(
            self._store,
            self.ways,
            mails.outbox,
            jobs.store,
            ground.telemetry,
            templates=ground.templates(PACKAGED_TEMPLATES),
            base_url=lambda: ground.base_url,
        )
        self.watch = Watch(
            self._store,
            post,
            self._terms,
            ground.telemetry,
            owner=ground.owner,
            feeds=self._feeds(),
            eyes=self._eyes(),
            interval=settings.alert_interval_seconds,
            idle=self._idle,
        )
        self.desk = Desk(self._store, post, self.watch.round, self._trouble)

    def _feeds(self) -> list[Feed]:
        main, jobs = self._ground.database, self._jobs.database
        return [
            self._noted("mail_outbox", "homing_mail_death", main, lambda number: f"outbox_{number}"),
            self._noted("email_log", "homing_email_death", main, lambda number: f"email_{number}"),
            self._noted("dispatch_jobs", "homing_job_death", jobs, text_of),
            FoundDeaths("open_events", self._notifications.database, self._store),
        ]

    def _noted(self, lane: str, table: str, database: Database, name_of: Callable[[int], str]) -> NotedDeaths:
        return NotedDeaths(lane, table, database, self._store, name_of)

    def _eyes(self) -> list[Eye]:
        due, held = self._oldest_due(), {"dispatch_jobs": self._jobs.store.held_back}
        return [
            *(BacklogEye(lane, oldest, self._terms, held.get(lane)) for lane, oldest in due.items()),
            TargetEye(self._jobs.database, self._terms, self.ways.alert_target),
            *(IdleEye(lane, oldest, self._fleet, self._terms) for lane, oldest in due.items()),
            WorkerEye(self._fleet),
            DeadEye(self._left),
        ]

    def _oldest_due(self) -> dict[str, OldestDue]:
        """Of each lane; what alerts themselves put into it is left out."""
        return {
            "mail_outbox": partial(self._mails.outbox.oldest_due, with_alerts=False),
            "dispatch_jobs": partial(self._jobs.store.oldest_due, but_for=self.ways.alert_target),
            "email_log": self._emails.log.oldest_due,
            "open_events": self._notifications.rows.oldest_due,
        }

    async def _idle(self) -> frozenset[str]:
        crews = await self._fleet.crews(("mail_outbox", "dispatch_jobs"))
        return frozenset(lane for lane, crew in crews.items() if crew.is_idle)

    async def _left(self, lane: str, word: str) -> HowMany | None:
        """How many are dead of a word; of one that is no error's own, only whether the lane has no dead."""
        desk = self._messages.lanes.get(cast("LaneName", lane))
        if desk is None:
            return None
        # By their states, not by their phase: so an index tells whether there is one, wherever it lies.
        states = tuple(state for state, phase in desk.phases.items() if phase == "dead")
        dead = Wanted(lanes=(desk.name,), states=states)
        if _is_written_so(word):
            found = await desk.count(replace(dead, error=word), most=_MOST_COUNTED, seconds=_PATIENCE)
            if found.number or not found.is_lower_bound:
                return found
        found = await desk.count(dead, most=1, seconds=_PATIENCE)
        return None if found.number or found.is_lower_bound else found

    async def _trouble(self) -> str | None:
        """What the settings alone do not show."""
        webhook = self.ways.webhook
        if webhook is None or webhook.credentials_id is None:
            return None
        if await self._jobs.credentials.get(webhook.credentials_id) is not None:
            return None
        return "HOMING_ALERT_WEBHOOK_CREDENTIALS_ID: there are no such credentials; `homing credentials list`"

    def api(self) -> tuple[list[Any], dict[str, Any]]:
        from homing.alerts.api import AlertsApi

        return [AlertsApi], {"alerts": self.desk}


def _is_written_so(word: str) -> bool:
    return _OWN_WORD.fullmatch(word) is not None and word not in _MANY_WORDS


def terms_of(settings: Settings) -> Terms:
    return Terms(
        cooldown=settings.alert_cooldown_seconds,
        target_failures=settings.alert_target_failures,
        backlog_age=settings.alert_backlog_age_seconds,
        most_per_hour=settings.alert_most_per_hour,
    )


def ways_of(settings: Settings, egress: EgressGuard) -> Ways:
    """Raises for what could never be delivered: an alert is the last that should die of a typo."""
    return Ways(_recipients(settings.alert_mail_to), _webhook(settings, egress))


def _recipients(given: str) -> str | None:
    if not given:
        return None
    try:
        return ", ".join(checked_recipients("HOMING_ALERT_MAIL_TO", given))
    except InvalidRequest as error:
        raise SettingsError(str(error)) from None


def _webhook(settings: Settings, egress: EgressGuard) -> Webhook | None:
    url, credentials = settings.alert_webhook_url, settings.alert_webhook_credentials_id
    if url is None:
        if credentials is not None:
            raise SettingsError(
                "HOMING_ALERT_WEBHOOK_CREDENTIALS_ID is set, and HOMING_ALERT_WEBHOOK_URL is not"
            )
        return None
    if (refusal := egress.url_refusal(url)) is not None:
        raise SettingsError(f"HOMING_ALERT_WEBHOOK_URL cannot be used: {refusal}")
    if credentials is None:
        return Webhook(url)
    number = number_of(credentials)
    if number is None:
        raise SettingsError(
            "HOMING_ALERT_WEBHOOK_CREDENTIALS_ID is no id of credentials: it has 13 characters"
        )
    return Webhook(url, number)
