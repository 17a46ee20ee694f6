"""Notifications on the operator's desk: found, shown with masked addresses, and set as they would be sent."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.db import Row, load_queries
from homing.db.conditions import readable, readable_or_never
from homing.db.patience import patiently
from homing.engine.model import Claim
from homing.lanes.open_events.desk_conditions import LAYOUT, PHASES
from homing.lanes.open_events.lane import OpenEventsLane
from homing.lanes.open_events.notification import Notification, event_of, read_object, subscriber_of
from homing.lanes.open_events.notifications import Notifications, attempts_of_notifications
from homing.lanes.open_events.view import notification_id, read_error
from homing.messages.attempts import delivered_attempt, ended_after, failed_attempts, own_attempts, tells_of
from homing.messages.facts import DUE, facts, json_body, moment_fact, possible
from homing.messages.mails import parts_of
from homing.messages.model import Detail, LaneName, MailParts, Phase, Step, Summary, Verb
from homing.messages.table_desk import TableDesk
from homing.senders.addresses import mask
from homing.senders.mail import MailMessage
from homing.senders.preview import assembled

#: One statement must not hold another program's file locked for long.
_MOST_AT_ONCE = 500


class NotificationDesk(TableDesk[Notifications]):
    name: LaneName = "open_events"
    phases: Mapping[str, Phase] = PHASES
    scope = "notifications"
    from_states: Mapping[Verb, tuple[str, ...]] = {
        "requeue": ("skipped", "failed", "expired"),
        "cancel": ("pending",),
        "send_now": ("pending",),
    }
    _layout = LAYOUT

    def __init__(self, notifications: Notifications, lane: OpenEventsLane) -> None:
        super().__init__(notifications, __package__ or "")
        self._kept = attempts_of_notifications(notifications.database)
        self._lane = lane
        self._listed_query = load_queries(__package__ or "", self._database.dialect, "desk")["listed"]

    # ── many ─────────────────────────────────────────────────────────────────────────────────────

    async def _summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        return [_summary(row) for row in await self._listed([row["id"] for row in rows])]

    async def _listed(self, ids: list[int]) -> list[Row]:
        given = {"ids": msgspec.json.encode(ids).decode()}
        return list(await self._rows.database.fetch(self._listed_query, given)) if ids else []

    async def act(self, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        changed: list[int] = []
        for start in range(0, len(numbers), _MOST_AT_ONCE):
            changed += await super().act(verb, numbers[start : start + _MOST_AT_ONCE])
        return changed

    async def _ask(self, name: str, **parameters: Any) -> Sequence[Row]:
        """Another program may hold its lock for a while; nobody is told."""
        return await patiently(lambda: super(NotificationDesk, self)._ask(name, **parameters))

    def _words(self, text: str) -> str:
        """`error` is JSON with a message; of another program's text, all of it."""
        message = read_object(text).get("message")
        return message if isinstance(message, str) and message else text

    # ── one ──────────────────────────────────────────────────────────────────────────────────────

    async def show(self, number: int, *, whole: bool = False) -> Detail | None:  # noqa: ARG002 - nobody sees it whole here
        row = await self._rows.get(number)
        if row is None:
            return None
        summary = _summary(row)
        error = read_error(row["error"])
        return Detail(
            summary,
            _fields(row, error),
            _timeline(row, summary, error, await self._kept.of(number)),
            json_body({"event": row["event_payload"]}),
            has_mail=True,
            verbs=possible(self.from_states, summary.state),
            waits=_waits(row, summary, error, datetime.now(UTC)),
        )

    async def mail(self, number: int) -> MailParts | None:
        """As it would be sent now, whether or not it is to be."""
        row = await self._rows.get(number)
        if row is None:
            return None
        composed = await self._composed(number, row)
        if isinstance(composed, str):
            return MailParts((), None, None, "", composed)
        return parts_of(await to_thread(assembled, _masked(composed)))

    async def _composed(self, number: int, row: Row) -> MailMessage | str:
        events = await self._rows.run("events", ids=_list_of(row["open_event_id"]))
        people = await self._rows.run("subscribers", ids=_list_of(number))
        subscriber = subscriber_of(people[0]) if people else None
        if not events or subscriber is None:
            return "its event or its subscription is gone"
        at = readable(row["last_attempt_at"]) or datetime.now(UTC)
        item = Notification(
            row["open_event_id"], row["subscription_id"], row["dedupe_key"], has_error=False, has_ended=False,
            claimed_at=at, claimed=0.0,
        )  # fmt: skip
        composed = await to_thread(
            self._lane.compose, Claim(number, 0, 0, item), event_of(events[0]), subscriber
        )
        return composed if isinstance(composed, MailMessage) else f"{composed.failure.message}"


def _masked(message: MailMessage) -> MailMessage:
    """To whom it goes is nobody's business, here as in the list."""
    address = message.recipients[0]
    hidden = mask(address)
    return replace(
        message,
        to=(hidden,) if hidden != "***" else (),
        recipients=(),
        text=_without(address, hidden, message.whole_text),
        html=_without(address, hidden, message.whole_html),
    )


def _without(address: str, hidden: str, text: str | None) -> str | None:
    return text.replace(address, hidden) if text and address else text


def _list_of(id: int) -> str:
    return msgspec.json.encode([id]).decode()


def _summary(row: Row) -> Summary:
    error = read_error(row["error"])
    state = row["status"]
    return Summary(
        lane="open_events",
        id=notification_id(row["id"]),
        number=row["id"],
        state=state,
        phase=PHASES.get(state, "waiting"),
        title=_title(row),
        to=mask(row["contact_value"]) if row["contact_value"] else "",
        attempts=row["attempts"],
        error=str(error["code"]) if state != "sent" and error and error.get("code") is not None else None,
        created_at=readable_or_never(row["created_at"]),
        due_at=readable(row["due_at"]) if state == "pending" else None,
    )


def _title(row: Row) -> str:
    course = read_object(row["event_payload"]).get("courseTitle")
    section = " ".join(str(row[name]) for name in ("term_id", "campus_code", "index_number") if row[name])
    return f"{course} ({section})" if isinstance(course, str) and course else section


def _fields(row: Row, error: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    told = error or {}
    return facts(
        [
            ("To", mask(row["contact_value"]) if row["contact_value"] else None),
            ("Section", f"{row['term_id']} / {row['campus_code']} / {row['index_number']}"),
            ("Event", row["open_event_id"]),
            ("Event at", moment_fact(row["event_at"])),
            ("Section became", row["status_after"]),
            ("Subscription", row["subscription_id"]),
            ("Subscription is", row["subscription_status"]),
            ("Contact type", row["contact_type"]),
            ("Locale", row["locale"]),
            ("Last notified", moment_fact(row["last_notified_at"])),
            ("Dedupe key", row["dedupe_key"]),
            ("Attempts", row["attempts"]),
            ("Claims", row["claim_seq"]),
            ("Provider", told.get("provider")),
            ("Provider's id", told.get("providerMessageId")),
            ("Held by", row["locked_by"] if row["status"] == "pending" else None),
            ("Held since", moment_fact(row["locked_at"]) if row["status"] == "pending" else None),
            ("Trace", row["trace_id"]),
        ]
    )


def _timeline(row: Row, summary: Summary, error: Mapping[str, Any] | None, kept: Sequence[Row]) -> list[Step]:
    kept = own_attempts(kept, summary.created_at)
    steps = [Step(summary.created_at, "created", "Fanned out to this subscription"), *failed_attempts(kept)]
    detected, tried, locked = (readable(row[name]) for name in ("event_at", "last_attempt_at", "locked_at"))
    if detected is not None:
        steps.append(Step(detected, "event", f"The section became {row['status_after']}"))
    said = str(error["message"]) if error and error.get("message") is not None else None
    well = summary.state == "sent"
    unknown = bool(error and error.get("unknown"))
    if well and tried is not None:
        steps.append(delivered_attempt(row, kept, row["attempts"], tried))
    elif tried is not None and not tells_of(kept, tried):
        title = f"Last attempt, of {max(row['attempts'], 1)}"
        steps.append(
            Step(tried, "attempt", title, well=well, error_class=summary.error, error=said, unknown=unknown)
        )
    if summary.phase == "waiting":
        if row["locked_by"] is not None and locked is not None:
            steps.append(Step(locked, "claimed", "Locked", worker=row["locked_by"]))
        elif summary.due_at is not None:
            steps.append(Step(summary.due_at, "waits", "Looked at again"))
        return sorted(steps, key=lambda step: step.at)
    at = ended_after(kept, tried or summary.created_at)
    why = None if well else said
    end = Step(at, summary.phase, summary.state.capitalize(), well=well, error_class=summary.error, error=why)
    return sorted([*steps, end], key=lambda step: step.at)


def _waits(row: Row, summary: Summary, error: Mapping[str, Any] | None, now: datetime) -> str | None:
    if summary.phase != "waiting":
        return None
    if row["locked_by"] is not None:
        return f"{row['locked_by']} has it"
    if summary.due_at is None or summary.due_at <= now:
        return f"{DUE}the next free worker takes it"
    return str((error or {}).get("message") or "it waits for its next attempt")
