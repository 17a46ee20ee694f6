"""A told alert becomes a mail and a webhook: rows of our own lanes, under keys that make each once.

An alert by a way that does not work waits there like any other message, and is given up after a day.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from homing.alerts.rules import Cause
from homing.alerts.store import AlertStore, Waiting, Way
from homing.alerts.words import Told, Words, words_of
from homing.db import Row, iso
from homing.errors import DatabaseError, Refused
from homing.lanes.dispatch_jobs.dead_letters import ALERT_TYPE, SOURCE
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.target import target_of
from homing.lanes.mail_outbox.mail import ALERT_KEY, NewMail
from homing.lanes.mail_outbox.outbox import MailOutbox, new_token
from homing.senders.mail import SendErrorCode
from homing.senders.templates import Rendered, TakesLong, TemplateProblem, Templates
from homing.telemetry import Telemetry


class Went(Struct, frozen=True):
    """It is a message of that way's lane."""

    id: int


class Barred(Struct, frozen=True):
    """It cannot become one: nobody is set to get it, or the database does not take it."""


class Taken(Struct, frozen=True):
    """Something else lies under its key."""


class Away(Struct, frozen=True):
    """The database of that way does not answer: later."""


#: What came of an alert by one way.
Became = Went | Barred | Taken | Away

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

    def of(self, cause: Cause, idle: Container[str] = ()) -> tuple[Way, ...]:
        """All, but the one that the alert says does not work, and those whose lane nobody works on.

        Each is left out only if another is left; where all are idle it waits until somebody works again.
        """
        stuck = cause.kind in {"backlog", "idle"} and _OWN_LANE.get(str(cause.facts.get("lane")))
        left = tuple(way for way in self.all if way != stuck) or self.all
        asleep = {way for lane, way in _OWN_LANE.items() if lane in idle}
        return tuple(way for way in left if way not in asleep) or left


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
        #: Ways whose database did not answer in this round: it is not asked again for every alert.
        self._away: set[Way] = set()

    async def hand_over(self) -> None:
        """Everything that was told and is not yet on its way."""
        self._away.clear()
        after = 0
        while page := await self._waiting(after):
            for one in page:
                await self._guarded(one)
            after = page[-1].alert.id

    async def _waiting(self, after: int) -> Sequence[Waiting]:
        return await self._store.waiting(after, self._away, set(self.ways.all) - self._away)

    async def _guarded(self, one: Waiting) -> None:
        try:
            await self._hand_over(one)
        except DatabaseError:
            raise
        except Exception as bug:  # noqa: BLE001 - one that cannot be written must not hold up the others
            self._telemetry.crashed("alert.crashed", bug)

    async def _hand_over(self, one: Waiting) -> None:
        placed = await self._place(one, one.left)
        if not all(isinstance(became, Went) for became in placed.values()):
            # It did not go by a way that it was to go: by the others, then.
            placed |= await self._place(one, [way for way in self.ways.all if way not in one.ways])
        went = {**one.went, **{way: became.id for way, became in placed.items() if isinstance(became, Went)}}
        if not went and any(isinstance(became, Taken) for became in placed.values()):
            await self._store.renew_token(one.alert.id)
            return
        await self._note(one, went, {way for way, became in placed.items() if isinstance(became, Away)})

    async def _note(self, one: Waiting, went: Mapping[Way, int], later: Collection[Way]) -> None:
        alert, ways = one.alert, {*went, *later}
        if later and (went, ways) == (one.went, set(one.ways)):
            # It waits as before.
            return
        if await self._store.note_ways(alert.id, ways, went):
            self._telemetry.log.warning(
                "alert.raised",
                id=alert.id, cause=alert.cause, kind=alert.kind, raised=alert.event, ways=list(went),
            )  # fmt: skip

    async def _place(self, one: Waiting, ways: Sequence[Way]) -> dict[Way, Became]:
        words = words_of(one.alert.kind, one.alert.event, one.alert.facts)
        return {way: await self._become(way, one, words) for way in ways}

    async def _become(self, way: Way, one: Waiting, words: Words) -> Became:
        if way in self._away:
            return Away()
        try:
            return await (self._mail(one, words) if way == "mail" else self._webhook(one, words))
        except Refused as error:
            # To try it again would change nothing: it is on the page, and goes by the other way.
            self._telemetry.log.warning("alert.refused", id=one.alert.id, way=way, error=str(error))
            return Barred()
        except DatabaseError as error:
            self._away.add(way)
            self._telemetry.log.warning("alert.failed", way=way, error=str(error))
            return Away()

    def _known_again(self, one: Waiting, way: Way, row: Row | None) -> Became:
        """After a crash our message is there already; but another may have been there first."""
        if row is not None and row["fingerprint"] == _mark(one):
            return Went(int(row["id"]))
        self._telemetry.log.error("alert.key_taken", id=one.alert.id, way=way)
        return Taken()

    # ── by mail ──────────────────────────────────────────────────────────────────────────────────

    async def _mail(self, one: Waiting, words: Words) -> Became:
        if self.ways.mail_to is None:
            return Barred()
        (ordered,) = await self._outbox.enqueue([self._new_mail(one, words, self.ways.mail_to)])
        if ordered.verdict == "created":
            self._telemetry.enqueued("mail_outbox", 1)
            return Went(ordered.id)
        return self._known_again(one, "mail", await self._outbox.get(ordered.id))

    def _new_mail(self, one: Waiting, words: Words, mail_to: str) -> NewMail:
        alert = one.alert
        rendered = self._render(alert, words)
        return NewMail(
            token=new_token(),
            to_address=mail_to,
            subject=rendered.subject,
            text_body=rendered.text,
            html_body=rendered.html,
            headers={"Auto-Submitted": "auto-generated"},
            idempotency_key=_key(one),
            fingerprint=_mark(one),
            expires_at=iso(alert.at + _LASTS),
            metadata={"homing": "alert", "cause": alert.cause},
            # Before all others: it may be about how many they are.
            urgent=True,
        )

    def _render(self, alert: Told, words: Words) -> Rendered:
        variables = self._variables(alert, words)
        for templates in (self._templates, self._packaged):
            try:
                rendered = templates.render(TEMPLATE, variables, "en", hurried=True)
            except TakesLong:
                rendered = TemplateProblem(
                    SendErrorCode.VALIDATION_ERROR, f"template {TEMPLATE}: takes too long"
                )
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

    async def _webhook(self, one: Waiting, words: Words) -> Became:
        if self.ways.webhook is None:
            return Barred()
        (ordered,) = await self._jobs.enqueue([self._new_job(one, words, self.ways.webhook)])
        if ordered.verdict == "created":
            self._telemetry.enqueued("dispatch_jobs", 1)
            return Went(ordered.id)
        return self._known_again(one, "webhook", await self._jobs.get(ordered.id))

    def _new_job(self, one: Waiting, words: Words, webhook: Webhook) -> NewJob:
        alert = one.alert
        return NewJob(
            source=SOURCE,
            type=ALERT_TYPE,
            target_url=webhook.url,
            target=webhook.target,
            credentials_id=webhook.credentials_id,
            payload=_encode(self._event(alert, words)).decode(),
            max_retries=_MAX_RETRIES,
            expires_at=iso(alert.at + _LASTS),
            idempotency_key=_key(one),
            fingerprint=_mark(one),
        )

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


def _key(one: Waiting) -> str:
    return f"{ALERT_KEY}{one.alert.id}:{one.token}"


def _mark(one: Waiting) -> str:
    """By which we know our own again, though the words may be others by then."""
    return hashlib.sha256(_key(one).encode()).hexdigest()
