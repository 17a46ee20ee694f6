"""The lane: one attempt is one mail to one subscriber, if it is still to be sent."""

from __future__ import annotations

import hashlib
import re
import time
from asyncio import to_thread
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.db.plain import plain
from homing.engine.model import (
    Bury,
    Claim,
    Complete,
    Delivered,
    Discard,
    Failure,
    Monotonic,
    Outcome,
    Reject,
    Retry,
    RetryIn,
    Settlement,
    Skip,
)
from homing.engine.policy import Policy, Schedule
from homing.lanes.open_events.last_look import LastLook
from homing.lanes.open_events.letters import Letter, Letters
from homing.lanes.open_events.notification import Notification, OpenEvent, Subscriber
from homing.lanes.open_events.notifications import Notifications, Standing
from homing.lanes.open_events.payload import Jobs, Unusable, check
from homing.lanes.open_events.preferences import Preferences, read_preferences, waits_until
from homing.senders.addresses import InvalidAddress, check_address, parse_address
from homing.senders.mail import MailMessage, MailSender, SendErrorCode, SendResult, is_retryable
from homing.senders.templates import Rendered, TakesLong, TemplateProblem, Templates

#: Another program may change what a subscriber wants at any time, so who waits is looked at again this often.
LONGEST_LOOK_AWAY = 15 * 60.0
#: Until an earlier notification of the same subscription has most likely ended.
_BEHIND_ANOTHER = 5.0
_BEFORE_ANOTHER = 1.0
#: Why a notification ends whose subscriber has had a mail with its dedupe key.
DUPLICATE = "duplicate"
#: Nobody asks us to wait longer than this and means it.
_LONGEST_DELAY = 7 * 86400.0
_LONGEST_MESSAGE = 500
_LONGEST_TRACE = 200

_encode = msgspec.json.Encoder().encode


def policy_of_terms(max_attempts: int, schedule: Schedule, lock_ttl_seconds: float) -> Policy:
    """NTF-13: the schedule, capped by the time of a lock; `decide` takes what was asked for where it is more.

    What comes back uncharged may do so as often as it likes: its event expires.
    """
    waits = tuple(min(wait, lock_ttl_seconds) for wait in schedule.waits)
    return Policy(max_attempts, Schedule(waits), max_deferrals=2**31)


class Report(Struct, frozen=True, gc=False):
    """What a settlement writes beside the state."""

    provider: str | None = None
    provider_message_id: str | None = None
    retry_after: float | None = None
    #: It may have been taken all the same.
    unknown: bool = False
    #: False for what ends without counting as an attempt.
    charged: bool = True


class OpenEventsLane:
    name = "open_events"

    def __init__(
        self,
        notifications: Notifications,
        sender: MailSender,
        last_look: LastLook,
        templates: Templates,
        jobs: Jobs,
        *,
        policy: Policy,
        lock_ttl_seconds: float,
        default_sender: str,
        time_zone: str = "UTC",
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self.store = notifications
        self.policy = policy
        self.lease_seconds = lock_ttl_seconds
        self._sender = sender
        self._last_look = last_look
        self._templates = templates
        self._jobs = jobs
        self._letters = Letters(monotonic)
        self._default_sender = default_sender
        self._domain = parse_address(default_sender).address.rpartition("@")[2]
        self._time_zone = time_zone
        self._monotonic = monotonic

    def policy_of(self, _claim: Claim[Notification]) -> Policy:
        return self.policy

    async def available(self) -> bool:
        return await self._sender.available()

    async def attempt(self, claim: Claim[Notification]) -> Outcome:
        item = claim.item
        event, subscriber = item.event, item.subscriber
        if event is None or subscriber is None:
            return _orphaned("open event" if event is None else "subscription")
        if (objection := self._objection(claim, event, subscriber)) is not None:
            return objection
        try:
            message = self.compose(claim, event, subscriber, hurried=True)
        except TakesLong:
            message = await to_thread(self.compose, claim, event, subscriber)
        if not isinstance(message, MailMessage):
            return message
        with self._last_look.expecting(
            message, claim, lambda standing: self._second_thoughts(claim, event, subscriber, standing)
        ) as look:
            result = await self._sender.send(message)
        if result.status == "failed" and not result.attempted:
            return look.found or _changed()
        return conclude(result)

    def _second_thoughts(
        self, claim: Claim[Notification], event: OpenEvent, read: Subscriber, standing: Standing | None
    ) -> Outcome | None:
        """What has come up since the claim; None when the mail may go out as it was made."""
        if standing is None or standing.fence != claim.fence:
            # Whatever is said here is refused: the row is another's.
            return _wait("taken_over", "the notification is another worker's by now", 0.0)
        if not standing.subscribed:
            return _orphaned("subscription")
        if standing.duplicate:
            return _duplicate()
        now = replace(
            read,
            contact_value=standing.contact_value,
            status=standing.status,
            metadata=standing.metadata,
        )
        objection = self._objection(claim, replace(event, expired=standing.expired), now)
        return objection or (None if now == read else _changed())

    # ── whether ──────────────────────────────────────────────────────────────────────────────────

    def _objection(
        self, claim: Claim[Notification], event: OpenEvent, subscriber: Subscriber
    ) -> Outcome | None:
        """Why nothing is to be sent, or not now."""
        preferences = read_preferences(subscriber.metadata)
        return (
            self._is_over(claim, event)
            or _not_eligible(event, subscriber, preferences)
            or _no_address(subscriber)
            or (_duplicate() if claim.item.duplicate else None)
            or _limit_reached(claim.item, preferences)
            or self._not_now(claim.item, preferences)
            or _after_twin(claim)
            or _after_another(claim.item, preferences)
        )

    def _is_over(self, claim: Claim[Notification], event: OpenEvent) -> Outcome | None:
        if event.expired and not claim.item.has_ended:
            return Skip(Failure("expired", "the event is too old to be news"), Report(charged=False))
        if claim.attempts >= self.policy.max_attempts:
            return Reject(Failure("attempts_used_up", "no attempts are left"), Report(charged=False))
        return None

    def _not_now(self, item: Notification, preferences: Preferences) -> Outcome | None:
        # The database's time, as all times of the rows are.
        now = item.claimed_at + timedelta(seconds=self._monotonic() - item.claimed)
        until = waits_until(preferences, now, self._time_zone)
        if until is None:
            return None
        wait = min((until - now).total_seconds(), LONGEST_LOOK_AWAY)
        return _wait("outside_window", "snoozed, or outside of the delivery window", wait)

    # ── what ─────────────────────────────────────────────────────────────────────────────────────

    def compose(
        self, claim: Claim[Notification], event: OpenEvent, subscriber: Subscriber, *, hurried: bool = False
    ) -> MailMessage | Reject:
        """The mail, whether or not it is to be sent; or why there can be none. `hurried`, it may raise."""
        job = self._jobs.build(claim.id, claim.item, event, subscriber)
        problem = check(job)
        if problem is not None:
            return _unusable(problem)
        shared = self._jobs.shared(event, subscriber)
        rendered = self._rendered(job["template"], job["links"], *shared, hurried=hurried)
        if isinstance(rendered, TemplateProblem):
            return _unusable(rendered)
        return self._message(claim, job, rendered)

    def _rendered(
        self,
        template: Mapping[str, Any],
        links: Mapping[str, str],
        locale: str,
        shared: Mapping[str, Any],
        *,
        hurried: bool,
    ) -> Letter | Rendered | TemplateProblem:
        id, version = template["id"], template["version"]
        return self._letters.write(
            (id, version, locale),
            shared,
            links,
            lambda links: self._templates.render(id, {**shared, **links}, locale, version, hurried=hurried),
        )

    def _message(
        self, claim: Claim[Notification], job: Mapping[str, Any], rendered: Letter | Rendered
    ) -> MailMessage:
        recipient, event, template, links = (
            job[part] for part in ("recipient", "event", "template", "links")
        )
        return MailMessage(
            message_id=f"<{_token(claim)}@{self._domain}>",
            date=claim.item.claimed_at,
            sender=self._default_sender,
            recipients=(recipient["email"],),
            to=(_mailbox(**recipient),),
            subject=rendered.subject,
            text=rendered.text,
            html=rendered.html,
            headers=_trace(job.get("traceId")),
            unsubscribe_url=links["unsubscribeUrl"],
            manage_url=links["manageUrl"],
            dedupe_key=job["dedupeKey"],
            trace_id=job.get("traceId"),
            metadata={
                "subscriptionId": job["subscriptionId"],
                "openEventId": job["openEventId"],
                "term": event["termId"],
                "campus": event["campusCode"],
            },
            locale=job["locale"],
            template_id=template["id"],
            template_version=template["version"],
            variables=template["variables"],
        )

    def describe(self, claim: Claim[Notification], settlement: Settlement | None) -> Mapping[str, Any]:
        fields = {
            "openEventId": claim.item.open_event_id,
            "subscriptionId": claim.item.subscription_id,
            "traceId": claim.item.event.trace_id if claim.item.event else None,
        }
        report = getattr(settlement, "report", None)
        return fields if report is None else {**fields, "provider": report.provider}


def _token(claim: Claim[Notification]) -> str:
    """The same for every attempt, so that a receiver can drop a double."""
    item = claim.item
    told = f"{item.dedupe_key}:{item.subscription_id}:{claim.id}"
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:32]


def _mailbox(email: str, name: str | None = None) -> str:
    if name is None:
        return email
    return '"{}" <{}>'.format(re.sub(r'(["\\])', r"\\\1", name), email)


def _trace(trace_id: str | None) -> tuple[tuple[str, str], ...]:
    """So that whoever has the mail finds the event. What others wrote may not be fit for a header."""
    usable = trace_id and trace_id.isascii() and trace_id.isprintable() and len(trace_id) <= _LONGEST_TRACE
    return (("X-Trace-Id", trace_id),) if trace_id and usable else ()


def _wait(code: str, message: str, seconds: float) -> Retry:
    return Retry(Failure(code, message), seconds, charged=False)


def _changed() -> Retry:
    return _wait("changed", "the subscription has changed", 0.0)


def _orphaned(what: str) -> Reject:
    code = what.replace(" ", "_") + "_missing"
    return Reject(Failure(code, f"there is no such {what}"))


def _unusable(problem: Unusable | TemplateProblem) -> Reject:
    return Reject(Failure(problem.code.value, problem.message))


def _not_eligible(event: OpenEvent, subscriber: Subscriber, preferences: Preferences) -> Skip | None:
    standing = subscriber.standing
    if (subscriber.contact_type or "").strip().lower() != "email":
        return Skip(Failure("not_email", "the contact is no email address"))
    if standing == "unsubscribed":
        return Skip(Failure("unsubscribed", "the subscriber has unsubscribed"))
    if standing != "active":
        return Skip(Failure("ineligible", "the subscription is not active"))
    if (event.status_after or "").strip().upper() != "OPEN":
        return Skip(Failure("ineligible", "the section did not open"))
    if not preferences.wants_open:
        return Skip(Failure("ineligible", "the subscriber does not want to hear of open seats"))
    return None


def _no_address(subscriber: Subscriber) -> Skip | None:
    code = SendErrorCode.INVALID_RECIPIENT.value
    try:
        check_address((subscriber.contact_value or "").strip())
    except InvalidAddress as refused:
        return Skip(Failure(code, str(refused)))
    return None


def _duplicate() -> Skip:
    return Skip(Failure(DUPLICATE, "the subscriber was sent another notification with this dedupe key"))


def _limit_reached(item: Notification, preferences: Preferences) -> Skip | None:
    limit = preferences.max_notifications
    if limit is None or item.notified < limit:
        return None
    return Skip(Failure("limit_reached", f"the subscription's limit of {limit} notifications is reached"))


def _after_twin(claim: Claim[Notification]) -> Retry | None:
    """While one with the same dedupe key and subscription is on its way, the other waits."""
    twin = claim.item.twin
    if twin is None:
        return None
    # Two that were claimed in the same moment see each other: the one that goes first looks again first.
    wait = _BEHIND_ANOTHER if twin < claim.id else _BEFORE_ANOTHER
    return _wait("after_another", f"notification {twin} has the same dedupe key and goes first", wait)


def _after_another(item: Notification, preferences: Preferences) -> Retry | None:
    """Of two that are on their way, only one may be the last that the subscriber wants."""
    limit = preferences.max_notifications
    if limit is None or item.notified + item.ahead < limit:
        return None
    return _wait("after_another", "an earlier notification of the subscription goes first", _BEHIND_ANOTHER)


def conclude(result: SendResult) -> Outcome:
    report = Report(result.provider, result.provider_message_id, result.retry_after, result.unknown)
    if result.status == "sent":
        return Delivered(report)
    error = result.error
    code = error.code if error is not None else SendErrorCode.UNKNOWN
    failure = Failure(code.value, plain(error.message, _LONGEST_MESSAGE) if error is not None else "")
    if is_retryable(result):
        return Retry(failure, result.retry_after, result.attempted, report)
    if code == SendErrorCode.INVALID_RECIPIENT:
        return Skip(failure, report)
    return Reject(failure, report)


# ── what is written ──────────────────────────────────────────────────────────────────────────────


def transition(claim: Claim[Notification], settlement: Settlement) -> Mapping[str, Any]:
    """The columns that each settlement writes."""
    report: Report = settlement.report or Report()
    match settlement:
        case Complete(millis=millis):
            return _columns(claim, "sent", error=_sent(report), told="notify_sent", millis=millis)
        case RetryIn(delay=delay, failure=failure, charged=charged):
            # Whoever waits has a word in `error`. A requeue takes it away, and so ends the wait.
            keeps = not charged and (claim.item.has_error or not delay)
            error = None if keeps else _error(failure, report)
            return _columns(claim, "pending", charged=charged, error=error, delay=delay)
        case Bury(failure=failure, charged=charged):
            return _ended(claim, "failed", failure, report, charged=charged)
        case Discard(failure=failure):
            status = "expired" if failure.code == "expired" else "skipped"
            return _ended(claim, status, failure, report)


def _ended(
    claim: Claim[Notification], status: str, failure: Failure, report: Report, *, charged: bool = True
) -> Mapping[str, Any]:
    charged = charged and report.charged
    # What ends without an attempt keeps the word of the last one.
    keeps = not charged and claim.item.has_error
    return _columns(
        claim,
        status,
        charged=charged,
        error=None if keeps else _error(failure, report),
        # Of a duplicate the subscriber was told.
        told=None if failure.code == DUPLICATE else "notify_failed",
        code=failure.code,
    )


def _columns(
    claim: Claim[Notification],
    status: str,
    *,
    charged: bool = True,
    error: str | None = None,
    delay: float = 0.0,
    told: str | None = None,
    code: str | None = None,
    millis: int | None = None,
) -> Mapping[str, Any]:
    item = claim.item
    return {
        "status": status,
        "charged": int(charged),
        "delay": min(delay, _LONGEST_DELAY),
        "error": error,
        "told": told,
        "snapshot": (item.event.status_after or "").strip().upper() or None if item.event else None,
        "story": _story(claim, code) if told else None,
        "millis": millis,
    }


def _story(claim: Claim[Notification], code: str | None) -> str:
    story = {"notificationId": claim.id, "openEventId": claim.item.open_event_id}
    return _encode({**story, "code": code} if code else story).decode()


def _sent(report: Report) -> str:
    """Exactly what the contract lists."""
    id = report.provider_message_id
    message_id = plain(id, _LONGEST_MESSAGE) if id is not None else None
    return _encode({"provider": report.provider, "providerMessageId": message_id, "status": "sent"}).decode()


def _error(failure: Failure, report: Report) -> str:
    told: dict[str, Any] = {"code": failure.code, "message": plain(failure.message, _LONGEST_MESSAGE)}
    if report.provider is not None:
        told["provider"] = report.provider
    if report.retry_after is not None:
        told["retryAfterSeconds"] = report.retry_after
    if report.unknown:
        told["unknown"] = True
    return _encode(told).decode()
