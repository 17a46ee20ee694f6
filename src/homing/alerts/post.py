"""A told alert becomes a mail and a webhook: rows of our own lanes, under keys that make each once.

An alert by a way that does not work waits there like any other message, and is given up after a day.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from homing.alerts.rules import Cause
from homing.alerts.store import AlertStore, Waiting
from homing.alerts.words import Told, Words, words_of
from homing.db import iso
from homing.errors import DatabaseError
from homing.lanes.dispatch_jobs.dead_letters import ALERT_TYPE, SOURCE
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.target import target_of
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import MailOutbox, new_token
from homing.senders.templates import Rendered, Templates
from homing.telemetry import Telemetry

Way = Literal["mail", "webhook"]

#: How the idempotency keys of alerts begin. The lanes' triggers know it, too.
KEY: Final = "homing-alert:"
TEMPLATE: Final = "alert"
PACKAGED_TEMPLATES = Path(__file__).with_name("templates")
#: What is wrong now is of no interest tomorrow.
_LASTS = timedelta(days=1)
_MAX_RETRIES = 10
#: A mail about mails that wait would wait behind them.
_OWN_LANE: Mapping[str, Way] = {"mail_outbox": "mail", "dispatch_jobs": "webhook"}

_encode = msgspec.json.Encoder().encode


class Webhook(Struct, frozen=True):
    url: str
    credentials_id: int | None = None

    @property
    def target(self) -> str:
        return target_of(self.url, self.credentials_id)


class Ways(Struct, frozen=True):
    """Whom alerts go to."""

    mail_to: str | None = None
    webhook: Webhook | None = None

    @property
    def all(self) -> tuple[Way, ...]:
        mail: tuple[Way, ...] = ("mail",) if self.mail_to else ()
        return (*mail, "webhook") if self.webhook is not None else mail

    @property
    def alert_target(self) -> str:
        """The target that has no rule; empty where there is none."""
        return self.webhook.target if self.webhook is not None else ""

    def of(self, cause: Cause) -> tuple[Way, ...]:
        """All, but the one that the alert says does not work, if another is left."""
        stuck = cause.kind in {"backlog", "idle"} and _OWN_LANE.get(str(cause.facts.get("lane")))
        return tuple(way for way in self.all if way != stuck) or self.all


class Post:
    def __init__(
        self,
        store: AlertStore,
        ways: Ways,
        outbox: MailOutbox,
        jobs: DispatchJobs,
        telemetry: Telemetry,
        *,
        templates: Templates,
        base_url: Callable[[], str],
    ) -> None:
        self.ways = ways
        self._store, self._outbox, self._jobs, self._telemetry = store, outbox, jobs, telemetry
        self._templates, self._base_url = templates, base_url
        #: For when the operator's own template cannot be rendered: an alert is no place to fail.
        self._packaged = Templates(PACKAGED_TEMPLATES)

    async def hand_over(self) -> int:
        """Everything that was told and is not yet on its way; how many went."""
        waiting = await self._store.waiting()
        for one in waiting:
            try:
                await self._hand_over(one)
            except DatabaseError:
                raise
            except Exception as bug:  # noqa: BLE001 - one that cannot be written must not hold up the others
                self._telemetry.crashed("alert.crashed", bug)
        return len(waiting)

    async def _hand_over(self, one: Waiting) -> None:
        alert, words = one.alert, words_of(one.alert.kind, one.alert.event, one.alert.facts)
        mail_id = await self._mail(alert, words) if "mail" in one.ways else None
        job_id = await self._webhook(alert, words) if "webhook" in one.ways else None
        await self._store.hand_over(alert.id, mail_id, job_id)
        self._telemetry.log.warning(
            "alert.raised",
            id=alert.id, cause=alert.cause, kind=alert.kind, raised=alert.event, ways=list(one.ways),
        )  # fmt: skip

    # ── by mail ──────────────────────────────────────────────────────────────────────────────────

    async def _mail(self, alert: Told, words: Words) -> int | None:
        if self.ways.mail_to is None:
            return None
        rendered = self._render(alert, words)
        mail = NewMail(
            token=new_token(),
            to_address=self.ways.mail_to,
            subject=rendered.subject,
            text_body=rendered.text,
            html_body=rendered.html,
            headers={"Auto-Submitted": "auto-generated"},
            idempotency_key=f"{KEY}{alert.id}",
            expires_at=iso(alert.at + _LASTS),
            metadata={"homing": "alert", "cause": alert.cause},
            # Before all others: it may be about how many they are.
            urgent=True,
        )
        (ordered,) = await self._outbox.enqueue([mail])
        self._telemetry.enqueued("mail_outbox", int(ordered.verdict == "created"))
        return ordered.id

    def _render(self, alert: Told, words: Words) -> Rendered:
        variables = self._variables(alert, words)
        for templates in (self._templates, self._packaged):
            rendered = templates.render(TEMPLATE, variables, "en")
            if isinstance(rendered, Rendered):
                return rendered
            self._telemetry.log.error("alert.template_failed", error=rendered.message)
        raise AssertionError("the packaged template takes these variables")

    def _variables(self, alert: Told, words: Words) -> dict[str, Any]:
        return {
            "id": alert.id,
            "cause": alert.cause,
            "kind": alert.kind,
            "event": alert.event,
            "title": words.title,
            "facts": [{"name": name, "value": value} for name, value in words.facts],
            "advice": words.advice,
            "link": self._base_url() + words.link,
            "at": f"{alert.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        }

    # ── by webhook ───────────────────────────────────────────────────────────────────────────────

    async def _webhook(self, alert: Told, words: Words) -> int | None:
        webhook = self.ways.webhook
        if webhook is None:
            return None
        job = NewJob(
            source=SOURCE,
            type=ALERT_TYPE,
            target_url=webhook.url,
            target=webhook.target,
            credentials_id=webhook.credentials_id,
            payload=_encode(self._event(alert, words)).decode(),
            max_retries=_MAX_RETRIES,
            expires_at=iso(alert.at + _LASTS),
            idempotency_key=f"{KEY}{alert.id}",
        )
        (ordered,) = await self._jobs.enqueue([job])
        self._telemetry.enqueued("dispatch_jobs", int(ordered.verdict == "created"))
        return ordered.id

    def _event(self, alert: Told, words: Words) -> dict[str, Any]:
        data = {
            "id": alert.id,
            "cause": alert.cause,
            "kind": alert.kind,
            "event": alert.event,
            "title": words.title,
            "advice": words.advice,
            "link": self._base_url() + words.link,
            "facts": dict(alert.facts),
        }
        # Many a chat program shows what is called `text`, and leaves the rest alone.
        text = f"{words.title}\n{data['link']}"
        return {"type": ALERT_TYPE, "timestamp": iso(alert.at), "text": text, "data": data}


def ways_in_words(ways: Sequence[str]) -> str:
    return " and ".join(ways) or "the page only"
