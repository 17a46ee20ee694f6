"""Notifications on the operator's desk: found, shown with masked addresses, and set as they would be sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.db import Dialect, Row, load_queries
from homing.db.conditions import Conditions, is_one_of, readable, readable_or_never
from homing.db.looking import Stream, first_after, look
from homing.engine.model import Claim
from homing.lanes.open_events.desk_conditions import (
    ORDERED,
    PHASES,
    STATE,
    TABLE,
    by_id,
    in_order,
    number_of,
    other_conditions,
    states_of,
)
from homing.lanes.open_events.desk_dead import NotificationDeadDesk
from homing.lanes.open_events.lane import OpenEventsLane
from homing.lanes.open_events.notification import Notification, event_of, read_object, subscriber_of
from homing.lanes.open_events.notifications import Notifications
from homing.lanes.open_events.view import notification_id, read_error
from homing.messages.facts import DUE, facts, json_body, moment_fact, possible
from homing.messages.model import Detail, LaneName, MailParts, Phase, Seen, Step, Summary, Wanted
from homing.senders.addresses import mask
from homing.senders.mail import MailMessage
from homing.senders.preview import assembled

_NEW = "lower(o.fanout_status) = 'pending' AND o.due_at IS NULL"
_WAITING = "lower(o.fanout_status) = 'pending' AND o.due_at IS NOT NULL"


class NotificationDesk(NotificationDeadDesk):
    name: LaneName = "open_events"
    phases: Mapping[str, Phase] = PHASES
    scope = "notifications"

    def __init__(self, notifications: Notifications, lane: OpenEventsLane) -> None:
        super().__init__(notifications)
        self._rows = notifications
        self._lane = lane
        self._queries = load_queries(__package__ or "", notifications.database.dialect, "desk")

    def number(self, id: str) -> int | None:
        return number_of(id)

    async def counts(self) -> Mapping[str, int]:
        return await self._rows.counts()

    async def oldest_due(self) -> float:
        return await self._rows.oldest_due()

    # ── many ─────────────────────────────────────────────────────────────────────────────────────

    async def find(self, wanted: Wanted, *, before: int | None, limit: int) -> Seen:
        database = self._rows.database
        states = states_of(wanted)
        others = other_conditions(wanted, database.dialect)
        if not states or others is None:
            return Seen((), None)
        if wanted.until is not None and before is None:
            before = await first_after(database, TABLE, wanted.until)
        stream, also = _stream(database.dialect, wanted, states, others)
        seen = await look(database, TABLE, stream, also, before=before, limit=limit, since=wanted.since)
        rows = await self._listed([row["id"] for row in seen.rows])
        return Seen([_summary(row) for row in rows], seen.next, seen.looked_at)

    async def _listed(self, ids: list[int]) -> list[Row]:
        given = {"ids": msgspec.json.encode(ids).decode()}
        return list(await self._rows.database.fetch(self._queries["listed"], given)) if ids else []

    # ── one ──────────────────────────────────────────────────────────────────────────────────────

    async def show(self, number: int) -> Detail | None:
        row = await self._rows.get(number)
        if row is None:
            return None
        summary = _summary(row)
        error = read_error(row["error"])
        return Detail(
            summary,
            _fields(row, error),
            _timeline(row, summary, error),
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
        found = assembled(_masked(composed))
        return MailParts(found.headers, found.text, found.html, found.source, found.trouble)

    async def _composed(self, number: int, row: Row) -> MailMessage | str:
        events = await self._rows.run("events", ids=_list_of(row["open_event_id"]))
        people = await self._rows.run("subscribers", ids=_list_of(number))
        subscriber = subscriber_of(people[0]) if people else None
        if not events or subscriber is None:
            return "its event or its subscription is gone"
        at = readable(row["last_attempt_at"]) or datetime.now(UTC)
        item = Notification(
            row["open_event_id"], row["subscription_id"], row["dedupe_key"], has_error=False, claimed_at=at,
            claimed=0.0,
        )  # fmt: skip
        composed = self._lane.compose(Claim(number, 0, 0, item), event_of(events[0]), subscriber)
        return composed if isinstance(composed, MailMessage) else f"{composed.failure.message}"


def _masked(message: MailMessage) -> MailMessage:
    """To whom it goes is nobody's business, here as in the list."""
    address = message.to[0] if message.to else ""
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


def _stream(
    dialect: Dialect, wanted: Wanted, states: tuple[str, ...], others: Conditions
) -> tuple[Stream, Conditions]:
    """By which index the rows are read, and what is left to be looked for among them."""
    every = len(states) == len(PHASES)
    asked = Conditions(() if every else (is_one_of(STATE, states),))
    if wanted.id is not None:
        named = by_id(wanted.id).texts[0]
        rest = asked + Conditions(tuple(text for text in others.texts if text != named), others.values)
        if number_of(wanted.id) is not None:
            return Stream((named,)), rest
        return Stream((), (named,), named), rest
    if every or "sent" in states:
        # Nearly all of them: the newest are soon found among all.
        return Stream(), asked + others
    ended = tuple(in_order(dialect, state) for state in states if state in ORDERED)
    if "pending" not in states:
        return Stream(ended), others
    return Stream((*ended, _NEW), (_WAITING,), asked.texts[0]), others


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


def _timeline(row: Row, summary: Summary, error: Mapping[str, Any] | None) -> list[Step]:
    steps = [Step(summary.created_at, "created", "Fanned out to this subscription")]
    detected, tried, locked = (readable(row[name]) for name in ("event_at", "last_attempt_at", "locked_at"))
    if detected is not None:
        steps.append(Step(detected, "event", f"The section became {row['status_after']}"))
    said = str(error["message"]) if error and error.get("message") is not None else None
    well = summary.state == "sent"
    unknown = bool(error and error.get("unknown"))
    if tried is not None:
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
    end = Step(tried or summary.created_at, summary.phase, summary.state.capitalize(), well=well,
               error_class=summary.error, error=None if well else said)  # fmt: skip
    return sorted([*steps, end], key=lambda step: step.at)


def _waits(row: Row, summary: Summary, error: Mapping[str, Any] | None, now: datetime) -> str | None:
    if summary.phase != "waiting":
        return None
    if row["locked_by"] is not None:
        return f"{row['locked_by']} has it"
    if summary.due_at is None or summary.due_at <= now:
        return f"{DUE}the next free worker takes it"
    return str((error or {}).get("message") or "it waits for its next attempt")
